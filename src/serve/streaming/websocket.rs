//! WebSocket as Kubernetes' clients speak it, the server's side: channels within messages, or a tunnel for SPDY.
//!
//! Owns the handshake and a connection. A codec of our own: a few hundred lines, where a crate would bring its own
//! SHA-1, base64, random numbers and a client.

pub mod connection;
pub mod frame;
pub mod handshake;

use crate::codec::base64::NotBase64;

/// The channel on which v5 says that another one is closed.
pub const CLOSE_CHANNEL: u8 = 255;

/// A client that does not speak WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebSocketError {
    #[error("frame has reserved bits set")]
    Reserved,
    /// Clients mask what they send.
    #[error("frame is not masked")]
    Unmasked,
    /// An unknown kind of frame.
    #[error("frame has unknown opcode {0}")]
    Kind(u8),
    /// A ping, pong or close that is long or in parts.
    #[error("control frame is too long or fragmented")]
    Control,
    /// A part of no message, or a message within another.
    #[error("unexpected continuation frame")]
    Order,
    /// Base64 that is none.
    #[error("text is not base64")]
    Base64,
}

impl From<NotBase64> for WebSocketError {
    fn from(_: NotBase64) -> Self {
        Self::Base64
    }
}
