//! The handshake of WebSocket.

use crate::codec::base64;

const HANDSHAKE: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// `Sec-WebSocket-Accept` for a client's `Sec-WebSocket-Key`.
#[must_use]
pub(in crate::serve) fn accept(key: &str) -> String {
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
