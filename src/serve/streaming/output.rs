//! Bytes that go to a client over WebSocket and come from nowhere else: a log.
//!
//! Owns the form upstream's API server gives them.

use std::io;
use std::rc::Rc;

use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::pipe::Activity;
use super::websocket::connection::{Messages, WebSocketConnection};

/// Sends all pieces, each as a message, and says good-bye; a piece that could not be read cuts the connection.
pub(super) async fn over_websocket(
    io: impl AsyncRead + AsyncWrite + 'static,
    base64: bool,
    mut pieces: mpsc::Receiver<io::Result<Bytes>>,
    activity: Rc<Activity>,
) {
    let messages = Messages { base64, closes: false, raw: true };
    let (mut connection, _) = WebSocketConnection::start(io, messages, &[], &activity);
    let mut outlet = connection.outlet(0);
    // Upstream's server begins with an empty message: the client knows that it is there.
    if outlet.send(&[]).await.is_err() {
        return;
    }
    loop {
        let piece = tokio::select! {
            biased;
            () = connection.gone() => return,
            // Losing it is safe: a piece stays in the channel until it is received.
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
