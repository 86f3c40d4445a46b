//! WebSocket as Kubernetes' clients speak it, the server's side: channels within messages, or a tunnel for SPDY.
//!
//! Owns the handshake and a connection. Must not know what channels carry. A codec of our own: a few hundred lines, where a crate
//! would bring its own SHA-1, base64, random numbers and a client.

pub mod base64;
pub mod connection;
pub mod frame;

/// The channel on which v5 says that another one is closed.
pub const CLOSE_CHANNEL: u8 = 255;

/// The standard's.
const HANDSHAKE: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// `Sec-WebSocket-Accept` for a client's `Sec-WebSocket-Key`.
#[must_use]
pub fn accept(key: &str) -> String {
    let both = format!("{key}{HANDSHAKE}");
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, both.as_bytes());
    base64::encode(digest.as_ref())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_handshake_is_the_standards_example() {
        assert_eq!(super::accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
