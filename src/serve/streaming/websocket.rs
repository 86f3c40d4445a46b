//! WebSocket as Kubernetes' clients speak it, the server's side: channels within messages, or a tunnel for
//! SPDY.
//!
//! Owns the handshake and a connection. The codec is written here: a few hundred lines, where a crate would
//! bring its own SHA-1, base64, random numbers and a client.

pub(in crate::serve) mod connection;
pub(in crate::serve) mod frame;
pub(in crate::serve) mod handshake;

use crate::codec::base64::NotBase64;

/// The channel on which v5 signals that another one is closed.
pub(in crate::serve) const CLOSE_CHANNEL: u8 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::serve) enum WebSocketError {
    #[error("frame has reserved bits set")]
    Reserved,
    #[error("frame is not masked")]
    Unmasked,
    #[error("frame has unknown opcode {0}")]
    Kind(u8),
    #[error("control frame is too long or fragmented")]
    Control,
    #[error("unexpected continuation frame")]
    Order,
    #[error("text is not base64")]
    Base64,
}

impl From<NotBase64> for WebSocketError {
    fn from(_: NotBase64) -> Self {
        Self::Base64
    }
}
