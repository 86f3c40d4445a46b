//! SPDY/3.1 as Kubernetes' clients speak it, the server's side.
//!
//! Owns frames, header blocks and a connection's streams.

pub mod connection;
pub mod dictionary;
pub mod frame;
pub mod headers;

/// A client that does not speak SPDY/3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpdyError {
    #[error("unsupported SPDY version {0}, expected 3")]
    Version(u16),
    #[error("control frame of {0} bytes is too large")]
    FrameTooLarge(usize),
    #[error("control frame of type {0} is truncated")]
    Short(u16),
    #[error("headers cannot be decompressed")]
    Compression,
    #[error("headers are too long")]
    HeadersTooLarge,
    #[error("invalid headers")]
    Headers,
}
