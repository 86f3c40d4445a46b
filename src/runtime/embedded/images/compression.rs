//! Decompression by the content's own signature, not by its declared media type.
//!
//! Owns the choice of a decoder and its bounds.

use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

/// Read-ahead of a decoder.
const BUFFER: usize = 64 * 1024;
/// The largest supported window of zstd: 8 MiB, which its levels up to 19 need and which the format sets as a
/// minimum for decoders.
const ZSTD_WINDOW_LOG: u32 = 23;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Reads a stream: gzip (also several members), zstd (also several frames) or plain.
pub(crate) enum Decompress<R: Read> {
    Plain(io::Chain<io::Cursor<Vec<u8>>, R>),
    Gzip(Box<MultiGzDecoder<Source<R>>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, Source<R>>>),
}

pub(crate) type Source<R> = BufReader<io::Chain<io::Cursor<Vec<u8>>, R>>;

impl<R: Read> Decompress<R> {
    /// Looks at the first bytes.
    pub(crate) fn new(mut source: R) -> io::Result<Self> {
        let mut head = Vec::with_capacity(ZSTD.len());
        source.by_ref().take(ZSTD.len() as u64).read_to_end(&mut head)?;
        let (is_gzip, is_zstd) = (head.starts_with(&GZIP), is_zstd(&head));
        let whole = io::Cursor::new(head).chain(source);
        Ok(if is_gzip {
            Self::Gzip(Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, whole))))
        } else if is_zstd {
            let mut decoder =
                zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(BUFFER, whole))?;
            decoder.window_log_max(ZSTD_WINDOW_LOG)?;
            Self::Zstd(Box::new(decoder))
        } else {
            Self::Plain(whole)
        })
    }

    #[must_use]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

/// A frame, or a skippable one as `zstd:chunked` and `pzstd` begin with.
fn is_zstd(head: &[u8]) -> bool {
    head == ZSTD || matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

impl<R: Read> Read for Decompress<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // zstd reports an empty buffer as an error.
        if buffer.is_empty() {
            return Ok(0);
        }
        match self {
            Self::Plain(source) => source.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
        }
    }
}

impl<R: Read> std::fmt::Debug for Decompress<R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Gzip(_) => "Gzip",
            Self::Zstd(_) => "Zstd",
        })
    }
}

/// Reads to the end, but for a document no more than `max` bytes.
pub(crate) fn read_bounded(source: &mut dyn Read, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        let message = format!("larger than {max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Reads and drops `count` bytes; fewer when the source ends.
pub(super) fn skip(source: &mut dyn Read, count: u64) -> io::Result<u64> {
    let mut buffer = [0; 4096];
    let mut skipped = 0;
    while skipped < count {
        let most = usize::try_from(count - skipped).unwrap_or(usize::MAX).min(buffer.len());
        match source.read(&mut buffer[..most]) {
            Ok(0) => break,
            Ok(read) => skipped += read as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        Decompress::new(bytes)?.read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn every_form_reads_the_same_also_in_pieces() {
        let text = "many words ".repeat(20_000).into_bytes();
        let (one, two) = text.split_at(70_001);
        let zstd = |bytes| zstd::encode_all(bytes, 3).unwrap();
        assert_eq!(read(&text).unwrap(), text);
        assert_eq!(read(&gzip(&text)).unwrap(), text);
        assert_eq!(read(&[gzip(one), gzip(two)].concat()).unwrap(), text);
        assert_eq!(read(&zstd(&text[..])).unwrap(), text);
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        assert_eq!(read(&[&skippable[..], &zstd(one), &skippable, &zstd(two)].concat()).unwrap(), text);
        for short in [&b""[..], b"x", &[0x1f]] {
            assert_eq!(read(short).unwrap(), short);
        }
    }

    #[test]
    fn what_is_cut_short_is_an_error() {
        let text = b"words".repeat(1000);
        for whole in [gzip(&text), zstd::encode_all(&text[..], 3).unwrap()] {
            assert!(read(&whole[..whole.len() - 5]).is_err());
        }
    }

    #[test]
    fn a_window_beyond_the_bound_is_refused() {
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        encoder.write_all(&vec![7; 40_000_000]).unwrap();
        assert!(read(&encoder.finish().unwrap()).is_err());
    }

    #[test]
    fn a_document_is_bounded() {
        assert_eq!(read_bounded(&mut &b"1234"[..], 4).unwrap(), b"1234");
        assert!(read_bounded(&mut &b"12345"[..], 4).is_err());
    }
}
