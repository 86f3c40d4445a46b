//! Reads tar archives from untrusted sources: POSIX (pax), GNU and old ones. Holds nothing in memory beyond
//! one entry's names.
//!
//! Owns the format. Reading only; sparse files are refused by name.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::compression::skip;

const BLOCK: usize = 512;
/// Names, link targets, and pax records of one entry.
const MAX_EXTENSION: u64 = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error("read the archive")]
    Read(#[source] io::Error),
    #[error("damaged tar archive at byte {at}: {problem}")]
    Damaged { at: u64, problem: &'static str },
    #[error("{path:?}: {what} are not supported in an image: create the archive without them")]
    Unsupported { path: OsString, what: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// A file; its content follows.
    File,
    /// Another name of an entry before it.
    HardLink,
    SymbolicLink,
    Character,
    Block,
    Directory,
    Fifo,
}

/// One entry, without its content.
#[derive(Clone, Debug)]
pub(crate) struct TarEntry {
    /// As it is in the archive.
    pub path: OsString,
    pub link: OsString,
    pub kind: EntryKind,
    /// Bytes of content.
    pub size: u64,
    pub content_at: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Major and minor number of a device.
    pub device: (u32, u32),
    pub extended: Vec<(String, Vec<u8>)>,
}

/// An archive that is read from its beginning to its end.
pub(crate) struct TarReader<R> {
    source: R,
    at: u64,
    /// Of the current entry's content, and its padding.
    content: u64,
    padding: u64,
    ended: bool,
}

/// What extension headers say about the entry after them.
#[derive(Default)]
struct Extension {
    path: Option<OsString>,
    link: Option<OsString>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<(i64, u32)>,
    extended: Vec<(String, Vec<u8>)>,
    sparse: bool,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, at: 0, content: 0, padding: 0, ended: false }
    }

    /// What follows the archive.
    pub(crate) fn into_inner(self) -> R {
        self.source
    }

    /// The next entry; `None` at the end. What was not read of the last one's content is skipped.
    pub(crate) fn next_entry(&mut self) -> Result<Option<TarEntry>, TarError> {
        let mut extension = Extension::default();
        // Extensions before one entry: path, link and attributes. More is an attempt to keep this process
        // busy.
        for _ in 0..8 {
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(&header[124..136]).ok_or_else(|| self.damaged("the size is not a number"))?;
            let size = u64::try_from(size).map_err(|_| self.damaged("the size is negative"))?;
            match header[156] {
                b'L' => extension.path = Some(self.long_name(size)?),
                b'K' => extension.link = Some(self.long_name(size)?),
                b'x' => {
                    let records = self.extension(size)?;
                    self.pax(&records, &mut extension)?;
                }
                // Global records carry comments (git's commit) and nothing that a layer needs.
                b'g' => drop(self.extension(size)?),
                kind => return self.entry(&header, kind, size, extension).map(Some),
            }
        }
        Err(self.damaged("too many extension headers for one entry"))
    }

    /// The block of a header; `None` at the end, which may be marked, or simply be the end.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        if self.ended {
            return Ok(None);
        }
        let rest = self.content;
        if self.skip(rest)? < rest {
            return Err(self.damaged("truncated file"));
        }
        self.content = 0;
        // Some writers leave out the padding of the last file.
        let padding = std::mem::take(&mut self.padding);
        self.skip(padding)?;
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.source.read(&mut block[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TarError::Read(error)),
            }
        }
        self.at += filled as u64;
        if block.iter().all(|byte| *byte == 0) {
            self.ended = true;
            return Ok(None);
        }
        if filled < BLOCK {
            return Err(self.damaged("truncated header"));
        }
        let stored = number(&block[148..156]).ok_or_else(|| self.damaged("not a tar header"))?;
        let sum = |signed: bool| -> i64 {
            block
                .iter()
                .enumerate()
                .map(|(at, byte)| match (at, signed) {
                    (148..156, _) => i64::from(b' '),
                    (_, true) => i64::from(byte.cast_signed()),
                    (_, false) => i64::from(*byte),
                })
                .sum()
        };
        if stored != sum(false) && stored != sum(true) {
            return Err(self.damaged("header checksum mismatch"));
        }
        Ok(Some(block))
    }

    fn entry(
        &mut self,
        header: &[u8; BLOCK],
        kind: u8,
        size: u64,
        extension: Extension,
    ) -> Result<TarEntry, TarError> {
        let path = extension.path.unwrap_or_else(|| {
            let name = text(&header[..100]);
            // GNU's headers have times where POSIX' have a prefix.
            let prefix =
                if &header[257..263] == b"ustar\0" { text(&header[345..500]) } else { OsStr::new("") };
            if prefix.is_empty() {
                name.to_owned()
            } else {
                OsString::from_vec([prefix.as_bytes(), b"/", name.as_bytes()].concat())
            }
        });
        let unsupported = |what| Err(TarError::Unsupported { path: path.clone(), what });
        let (kind, is_old_directory) = match kind {
            b'0' | 0 | b'7' => (EntryKind::File, path.as_bytes().ends_with(b"/")),
            b'1' => (EntryKind::HardLink, false),
            b'2' => (EntryKind::SymbolicLink, false),
            b'3' => (EntryKind::Character, false),
            b'4' => (EntryKind::Block, false),
            b'5' => (EntryKind::Directory, false),
            b'6' => (EntryKind::Fifo, false),
            b'S' => return unsupported("sparse files"),
            b'M' | b'V' | b'D' => return unsupported("GNU multi-volume and dump entries"),
            _ => return unsupported("entries of unknown type"),
        };
        if extension.sparse {
            return unsupported("sparse files");
        }
        let kind = if is_old_directory { EntryKind::Directory } else { kind };
        let size = extension.size.unwrap_or(size);
        // Other kinds have no content, whatever their size says.
        self.content = if kind == EntryKind::File || is_old_directory { size } else { 0 };
        self.padding = self.content.next_multiple_of(BLOCK as u64).saturating_sub(self.content);
        let field = |from: usize, to: usize| number(&header[from..to]);
        let small = |from: usize, to: usize| field(from, to).and_then(|value| u32::try_from(value).ok());
        let bad = |problem| TarError::Damaged { at: self.at, problem };
        Ok(TarEntry {
            link: extension.link.unwrap_or_else(|| text(&header[157..257]).to_owned()),
            kind,
            size: self.content,
            content_at: self.at,
            mode: small(100, 108).ok_or_else(|| bad("the mode is not a number"))? & 0o7777,
            uid: extension.uid.or_else(|| small(108, 116)).ok_or_else(|| bad("the owner is not a number"))?,
            gid: extension.gid.or_else(|| small(116, 124)).ok_or_else(|| bad("the group is not a number"))?,
            mtime: extension.mtime.or_else(|| Some((field(136, 148)?, 0))).unwrap_or_default(),
            device: (small(329, 337).unwrap_or_default(), small(337, 345).unwrap_or_default()),
            extended: extension.extended,
            path,
        })
    }

    fn long_name(&mut self, size: u64) -> Result<OsString, TarError> {
        let mut name = self.extension(size)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(OsString::from_vec(name))
    }

    /// The content of an extension, which is held in memory.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        if size > MAX_EXTENSION {
            return Err(self.damaged("an extension header is larger than 256 KiB"));
        }
        let mut bytes = Vec::new();
        let read = self.source.by_ref().take(size).read_to_end(&mut bytes).map_err(TarError::Read)?;
        self.at += read as u64;
        if (read as u64) < size {
            return Err(self.damaged("truncated extension header"));
        }
        self.skip(size.next_multiple_of(BLOCK as u64) - size)?;
        Ok(bytes)
    }

    /// `LENGTH KEY=VALUE\n`, the length being that of the whole.
    fn pax(&self, mut records: &[u8], extension: &mut Extension) -> Result<(), TarError> {
        while !records.is_empty() {
            let (key, value, rest) = record(records).ok_or_else(|| self.damaged("invalid pax record"))?;
            records = rest;
            let bad = || self.damaged("invalid number in a pax record");
            let word = std::str::from_utf8(value);
            match key {
                "path" => extension.path = Some(OsString::from_vec(value.to_owned())),
                "linkpath" => extension.link = Some(OsString::from_vec(value.to_owned())),
                "size" => {
                    extension.size = Some(word.ok().and_then(|word| word.parse().ok()).ok_or_else(bad)?);
                }
                "uid" => extension.uid = Some(word.ok().and_then(|word| word.parse().ok()).ok_or_else(bad)?),
                "gid" => extension.gid = Some(word.ok().and_then(|word| word.parse().ok()).ok_or_else(bad)?),
                "mtime" => extension.mtime = Some(word.ok().and_then(pax_time).ok_or_else(bad)?),
                _ if key.starts_with("GNU.sparse.") => extension.sparse = true,
                _ => {
                    if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                        extension.extended.push((name.to_owned(), value.to_owned()));
                    }
                }
            }
        }
        Ok(())
    }

    fn skip(&mut self, count: u64) -> Result<u64, TarError> {
        let skipped = skip(&mut self.source, count).map_err(TarError::Read)?;
        self.at += skipped;
        Ok(skipped)
    }

    fn damaged(&self, problem: &'static str) -> TarError {
        TarError::Damaged { at: self.at, problem }
    }
}

impl<R: Read + Seek> TarReader<R> {
    /// Goes past the content of the entry that was read last, without reading it.
    pub(crate) fn pass(&mut self) -> Result<(), TarError> {
        let far = i64::try_from(self.content).map_err(|_| self.damaged("a file is too large"))?;
        self.source.seek(SeekFrom::Current(far)).map_err(TarError::Read)?;
        self.at += self.content;
        self.content = 0;
        Ok(())
    }
}

/// The content of the entry that was read last.
impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.content).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let count = self.source.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the archive is truncated inside a file",
            ));
        }
        self.content -= count as u64;
        self.at += count as u64;
        Ok(count)
    }
}

fn record(records: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let space = records.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&records[..space]).ok()?.parse().ok()?;
    let (whole, rest) = records.split_at_checked(length)?;
    let body = whole.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((std::str::from_utf8(&body[..equals]).ok()?, &body[equals + 1..], rest))
}

fn pax_time(text: &str) -> Option<(i64, u32)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_negative = seconds.starts_with('-');
    let seconds: i64 = seconds.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    Some(if is_negative && nanoseconds > 0 {
        (seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds)
    } else {
        (seconds, nanoseconds)
    })
}

/// Octal digits, or GNU's big-endian bytes after a marked one. Blank is 0.
fn number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        let negative = first & 0x40 != 0;
        let start = if negative { -1_i128 } else { 0 };
        let value = field.iter().enumerate().try_fold(start, |value, (at, byte)| {
            let byte = if at == 0 && !negative { byte & 0x7f } else { *byte };
            value.checked_mul(256)?.checked_add(i128::from(byte))
        })?;
        return i64::try_from(value).ok();
    }
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let digits = std::str::from_utf8(&field[..end]).ok()?.trim();
    if digits.is_empty() { Some(0) } else { i64::from_str_radix(digits, 8).ok() }
}

fn text(field: &[u8]) -> &OsStr {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    OsStr::from_bytes(&field[..end])
}

impl TarEntry {
    /// The path relative to a root: without `/` and `.`; `None` with a `..`, or when it has a zero byte.
    #[must_use]
    pub(crate) fn below_root(path: &OsStr) -> Option<std::path::PathBuf> {
        use std::path::Component;
        let mut clean = std::path::PathBuf::new();
        for component in Path::new(path).components() {
            match component {
                Component::Normal(name) => clean.push(name),
                Component::CurDir | Component::RootDir => {}
                Component::ParentDir | Component::Prefix(_) => return None,
            }
        }
        (!path.as_bytes().contains(&0)).then_some(clean)
    }
}
