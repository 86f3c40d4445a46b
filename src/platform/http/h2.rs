//! The HTTP/2 client of the program: channels of gRPC and the client of an apiserver share one type of connection.
//!
//! Owns the settings of connections and the count of their streams.

pub mod dial;
pub mod tls;
pub mod tunnel;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;

use crate::platform::logging::chain;

/// Servers permit 100 streams and more. At its limit a connection would queue requests in silence.
const MAX_STREAMS: usize = 90;
/// Of an apiserver's answer; audit annotations and warnings can be long.
const MAX_HEADER_BYTES: u32 = 32 * 1024;
/// Watches that were dropped while the server was writing to them.
const MAX_RESET_STREAMS: usize = 10;

/// A connection below HTTP/2. One type for all sockets, so that the program contains one HTTP/2 client.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// TCP, a Unix socket, TLS over one of them, or a tunnel.
pub(crate) type Io = Box<dyn Wire>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct H2Settings {
    /// A ping is sent when nothing has arrived for this long; `None`: never.
    pub ping_after: Option<Duration>,
    /// How long the answer to a ping may take.
    pub ping_timeout: Duration,
    /// Ping also when no request is under way.
    pub ping_idle: bool,
    /// What the server may send ahead, in bytes: per stream, per connection. `None`: the library's defaults, which are
    /// for fast networks.
    pub windows: Option<[u32; 2]>,
}

impl H2Settings {
    /// For an apiserver: client-go's pings and their variables, and windows for small boxes.
    pub(crate) fn of_apiserver(variable: impl Fn(&str) -> Option<String>) -> Self {
        let seconds = |name: &str, default: u64| {
            let given = variable(name).and_then(|text| text.trim().parse().ok());
            Duration::from_secs(given.unwrap_or(default))
        };
        let ping_after = seconds("HTTP2_READ_IDLE_TIMEOUT_SECONDS", 30);
        Self {
            ping_after: (!ping_after.is_zero()).then_some(ping_after),
            ping_timeout: seconds("HTTP2_PING_TIMEOUT_SECONDS", 15),
            ping_idle: true,
            windows: Some([64 * 1024, 256 * 1024]),
        }
    }
}

/// Begins HTTP/2 on a connection, which a task of its own carries until its end. Returns its request side and the
/// number of streams that the server permits.
pub(in crate::platform) async fn handshake(
    io: Io,
    settings: &H2Settings,
) -> Result<(SendRequest<Body>, Arc<AtomicUsize>), hyper::Error> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.ping_after)
        .keep_alive_timeout(settings.ping_timeout)
        .keep_alive_while_idle(settings.ping_idle);
    if let Some([stream, connection]) = settings.windows {
        builder
            .initial_stream_window_size(stream)
            .initial_connection_window_size(connection)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_concurrent_reset_streams(MAX_RESET_STREAMS);
    }
    let (requests, mut connection) = builder.handshake(TokioIo::new(io)).await?;
    let permitted = Arc::new(AtomicUsize::new(MAX_STREAMS));
    let seen = Arc::clone(&permitted);
    tokio::spawn(async move {
        let ended = poll_fn(|context| {
            let polled = Pin::new(&mut connection).poll(context);
            // The server may change it at any time.
            seen.store(connection.current_max_send_streams(), Relaxed);
            polled
        });
        if let Err(error) = ended.await {
            log::debug!(err:% = chain(&error); "HTTP/2 connection lost");
        }
    });
    Ok((requests, permitted))
}

/// A connection whose streams are counted.
pub(crate) struct H2Connection {
    requests: SendRequest<Body>,
    streams: Rc<Cell<usize>>,
    permitted: Arc<AtomicUsize>,
}

/// A stream that is taken and not used yet.
pub(crate) struct H2Stream {
    requests: SendRequest<Body>,
    count: StreamCount,
}

/// The body of an answer. Dropping it ends the stream.
pub(crate) struct H2Body {
    body: Incoming,
    _count: StreamCount,
}

/// A request without an answer.
#[derive(Debug)]
pub(crate) struct H2Error {
    /// The server has certainly not seen it.
    pub unsent: bool,
    pub message: String,
}

struct StreamCount(Rc<Cell<usize>>);

impl Drop for StreamCount {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl H2Connection {
    /// Begins HTTP/2 on a connection.
    pub(crate) async fn over(io: Io, settings: &H2Settings) -> Result<Self, hyper::Error> {
        let (requests, permitted) = handshake(io, settings).await?;
        Ok(Self { requests, streams: Rc::default(), permitted })
    }

    /// False as soon as the server says that the connection takes no more requests. Streams under way go on.
    pub(crate) fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }

    /// The number of streams in use.
    pub(crate) fn streams(&self) -> usize {
        self.streams.get()
    }

    /// Takes a stream; `None` when as many are in use as may be.
    pub(crate) fn stream(&self) -> Option<H2Stream> {
        let most = self.permitted.load(Relaxed).clamp(1, MAX_STREAMS);
        if !self.is_open() || self.streams.get() >= most {
            return None;
        }
        self.streams.set(self.streams.get() + 1);
        Some(H2Stream { requests: self.requests.clone(), count: StreamCount(Rc::clone(&self.streams)) })
    }
}

impl H2Stream {
    /// Sends a request and waits for the head of the answer. Dropping the future resets the stream.
    pub(crate) async fn send(mut self, request: Request<Bytes>) -> Result<Response<H2Body>, H2Error> {
        let request = request.map(|body| Body::new(Full::new(body)));
        match self.requests.try_send_request(request).await {
            Ok(response) => Ok(response.map(|body| H2Body { body, _count: self.count })),
            Err(mut error) => {
                let unsent = error.take_message().is_some();
                Err(H2Error { unsent, message: chain(error.error()) })
            }
        }
    }
}

impl H2Body {
    /// The next part; `None` at the end. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(bytes) if !bytes.is_empty() => return Some(Ok(bytes)),
                    // Trailers, or an empty part.
                    _ => {}
                },
                Err(error) => return Some(Err(chain(&error))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_set_by_the_variables_of_client_go() {
        let pings = |after: Option<&str>, timeout: Option<&str>| {
            let settings = H2Settings::of_apiserver(|name| {
                let value = if name.contains("READ_IDLE") { after } else { timeout };
                value.map(str::to_owned)
            });
            (settings.ping_after.map(|after| after.as_secs()), settings.ping_timeout.as_secs())
        };
        assert_eq!(pings(None, None), (Some(30), 15));
        assert_eq!(pings(Some("60"), Some("5")), (Some(60), 5));
        assert_eq!(pings(Some("0"), Some("x")), (None, 15));
    }
}
