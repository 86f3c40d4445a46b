//! Texts that the build has packed (`build.rs`): the length as four bytes, least significant first, then a zlib stream.
//!
//! Pure.

/// The text; empty if it is no packed one, which the build rules out.
#[must_use]
pub(crate) fn unpack(packed: &[u8]) -> String {
    let (length, packed) = packed.split_at(packed.len().min(4));
    let length = length.iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let mut text = Vec::with_capacity(length);
    let mut stream = flate2::Decompress::new(true);
    let _ = stream.decompress_vec(packed, &mut text, flate2::FlushDecompress::Finish);
    String::from_utf8(text).unwrap_or_default()
}
