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
    /// A control frame beyond the bound.
    #[error("control frame of {0} bytes is too large")]
    FrameTooLarge(usize),
    /// A truncated control frame.
    #[error("control frame of type {0} is truncated")]
    Short(u16),
    /// A header block that cannot be decompressed.
    #[error("headers cannot be decompressed")]
    Compression,
    /// A header block beyond the bound.
    #[error("headers are too long")]
    HeadersTooLarge,
    /// A malformed header block.
    #[error("invalid headers")]
    Headers,
}
