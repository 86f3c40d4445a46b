//! Header blocks of SPDY/3: one zlib stream per direction for the life of a connection, flushed after every
//! block.
//!
//! Owns the decompressor and the bounds.

use std::collections::BTreeMap;

use flate2::{Decompress, FlushDecompress, Status};

use super::SpdyError;
use super::dictionary::{CHECKSUM, dictionary};

/// Kubernetes' headers take a hundred bytes; a larger block is an attempt to exhaust memory.
const MAX_BLOCK: usize = 16 * 1024;
/// zlib's window of 32 KiB.
const ZLIB_HEADER: [u8; 2] = [0x78, 0x20];
/// The maximum length of a stored block of deflate.
const STORED_MAX: usize = 0xffff;
/// The end of a zlib sync flush, an empty stored block: Go's clients return what they have read at this
/// point, and treat anything else as a truncated stream.
const FLUSHED: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// Name, in lower case, to value.
pub(in crate::serve) type Headers = BTreeMap<String, String>;

pub(in crate::serve) struct HeaderReader {
    stream: Decompress,
}

impl Default for HeaderReader {
    fn default() -> Self {
        Self { stream: Decompress::new(true) }
    }
}

impl HeaderReader {
    /// Decodes the headers of the next block.
    ///
    /// # Errors
    /// The block is malformed; the decompressor is unusable afterwards.
    pub(in crate::serve) fn read(&mut self, block: &[u8]) -> Result<Headers, SpdyError> {
        parse(&self.inflate(block)?)
    }

    fn inflate(&mut self, mut input: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut plain = Vec::new();
        let mut piece = [0_u8; 1024];
        loop {
            let (consumed, produced) = (self.stream.total_in(), self.stream.total_out());
            let status = self.stream.decompress(input, &mut piece, FlushDecompress::Sync);
            let moved = |now: u64, before: u64| usize::try_from(now - before).unwrap_or_default();
            let taken = moved(self.stream.total_in(), consumed);
            let made = moved(self.stream.total_out(), produced);
            input = input.get(taken..).unwrap_or_default();
            plain.extend_from_slice(piece.get(..made).unwrap_or_default());
            if plain.len() > MAX_BLOCK {
                return Err(SpdyError::HeadersTooLarge);
            }
            match status {
                Err(error) if error.needs_dictionary() == Some(CHECKSUM) => {
                    self.stream.set_dictionary(&dictionary()).map_err(|_| SpdyError::Compression)?;
                }
                Err(_) | Ok(Status::StreamEnd) => return Err(SpdyError::Compression),
                // All input is consumed and all output is produced.
                Ok(_) if made < piece.len() && input.is_empty() => return Ok(plain),
                Ok(_) if taken == 0 && made == 0 => return Err(SpdyError::Compression),
                Ok(_) => {}
            }
        }
    }
}

fn parse(block: &[u8]) -> Result<Headers, SpdyError> {
    let mut rest = block;
    let count = number(&mut rest)?;
    let mut headers = Headers::new();
    // Each header takes at least eight bytes, so the block's length bounds the loop.
    for _ in 0..count {
        let name = text(&mut rest)?;
        let value = text(&mut rest)?;
        headers.insert(name.to_ascii_lowercase(), value);
    }
    Ok(headers)
}

fn number(rest: &mut &[u8]) -> Result<u32, SpdyError> {
    let (head, tail) = rest.split_first_chunk::<4>().ok_or(SpdyError::Headers)?;
    *rest = tail;
    Ok(u32::from_be_bytes(*head))
}

fn text(rest: &mut &[u8]) -> Result<String, SpdyError> {
    let length = usize::try_from(number(rest)?).map_err(|_| SpdyError::Headers)?;
    let (text, tail) = rest.split_at_checked(length).ok_or(SpdyError::Headers)?;
    *rest = tail;
    String::from_utf8(text.to_vec()).map_err(|_| SpdyError::Headers)
}

/// Writes blocks uncompressed, in zlib's stored form: a reply's headers are not worth a compressor's memory.
#[derive(Default)]
pub(crate) struct HeaderWriter {
    begun: bool,
}

impl HeaderWriter {
    #[must_use]
    pub(in crate::serve) fn write(&mut self, headers: &Headers) -> Vec<u8> {
        let mut plain = Vec::new();
        let count = |length: usize| u32::try_from(length).unwrap_or_default().to_be_bytes();
        plain.extend(count(headers.len()));
        for (name, value) in headers {
            plain.extend(count(name.len()));
            plain.extend(name.as_bytes());
            plain.extend(count(value.len()));
            plain.extend(value.as_bytes());
        }
        let mut block = Vec::with_capacity(plain.len() + 16);
        if !std::mem::replace(&mut self.begun, true) {
            block.extend(ZLIB_HEADER);
            block.extend(CHECKSUM.to_be_bytes());
        }
        for piece in plain.chunks(STORED_MAX) {
            let length = u16::try_from(piece.len()).unwrap_or(u16::MAX);
            block.push(0);
            block.extend(length.to_le_bytes());
            block.extend((!length).to_le_bytes());
            block.extend(piece);
        }
        block.extend(FLUSHED);
        block
    }
}
