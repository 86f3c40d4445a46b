//! Output to a client over WebSocket without input: a log.
//!
//! Owns the framing, which is that of upstream's API server.

use std::io;
use std::rc::Rc;

use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::pipe::Activity;
use super::websocket::connection::{Messages, WebSocketConnection};

/// Sends each piece as a message, then closes the WebSocket; a piece that could not be read cuts the
/// connection.
pub(super) async fn over_websocket(
    io: impl AsyncRead + AsyncWrite + 'static,
    base64: bool,
    mut pieces: mpsc::Receiver<io::Result<Bytes>>,
    activity: Rc<Activity>,
) {
    let messages = Messages { base64, closes: false, raw: true };
    let (mut connection, _) = WebSocketConnection::start(io, messages, &[], &activity);
    let mut outlet = connection.outlet(0);
    // Upstream's server begins with an empty message to signal that it is ready.
    if outlet.send(&[]).await.is_err() {
        return;
    }
    loop {
        let piece = tokio::select! {
            biased;
            () = connection.gone() => return,
            // Dropping it is safe: a piece stays in the channel until it is received.
            piece = pieces.recv() => piece,
        };
        match piece {
            Some(Ok(bytes)) => {
                if outlet.write(&bytes).await.is_err() {
                    return;
                }
            }
            Some(Err(_)) => return,
            None => break,
        }
    }
    connection.close().await;
}
