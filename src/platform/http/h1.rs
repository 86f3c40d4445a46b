//! The HTTP/1.1 client of the program: every socket is behind one type and every body is of one type, so that the protocol's
//! code exists once.
//!
//! Owns nothing: callers poll or spawn the connection.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::h2::Io;

pub(crate) type H1Sender = http1::SendRequest<Full<Bytes>>;
pub(crate) type H1Connection = http1::Connection<TokioIo<Io>, Full<Bytes>>;

/// A connection with the protocol's usual settings.
pub(crate) async fn begin(stream: Io) -> Result<(H1Sender, H1Connection), hyper::Error> {
    begin_with(&http1::Builder::new(), stream).await
}

/// A connection with settings of the caller's own.
pub(crate) async fn begin_with(
    settings: &http1::Builder,
    stream: Io,
) -> Result<(H1Sender, H1Connection), hyper::Error> {
    settings.handshake(TokioIo::new(stream)).await
}
