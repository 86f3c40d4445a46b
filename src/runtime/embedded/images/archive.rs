//! Files of an archive, or of a directory, by name: what an import reads from.
//!
//! Owns how a place in a compressed archive is reached.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::compression::{self, Decompress, skip};
use super::tar::{EntryKind, TarEntry, TarReader};
use super::{ImageError, MAX_DOCUMENT, TarError, io_error};
use crate::platform::sys::open::open_file_below;

/// Files and links of an archive: an image has a few dozen.
const MAX_MEMBERS: usize = 100_000;
/// Links to follow to a file, as old `docker save` makes them for equal layers.
const MAX_LINKS: usize = 8;

/// The source of an import.
pub(super) enum Files {
    Directory(PathBuf),
    Archive(Archive),
}

pub(super) struct Archive {
    path: PathBuf,
    members: BTreeMap<String, Member>,
    is_plain: bool,
    /// The compressed stream, and how far it has been read.
    stream: Option<(u64, Decompress<File>)>,
}

enum Member {
    File { at: u64, size: u64 },
    Link(String),
}

impl Files {
    /// Opens an archive and lists it, or a directory.
    pub(super) fn open(path: &Path) -> Result<Self, ImageError> {
        let file = crate::platform::sys::open::open_without_waiting(path).map_err(io_error("open", path))?;
        let metadata = file.metadata().map_err(io_error("stat", path))?;
        if metadata.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        if !metadata.is_file() {
            return Err(ImageError::Invalid("not a file or directory".to_owned()));
        }
        let unreadable = |error| ImageError::Archive(TarError::Read(error));
        let is_plain = Decompress::new(&file).map_err(unreadable)?.is_plain();
        (&file).rewind().map_err(io_error("read", path))?;
        let mut members = BTreeMap::new();
        if is_plain {
            let mut tar = TarReader::new(&file);
            while let Some(entry) = tar.next_entry().map_err(ImageError::Archive)? {
                note(&mut members, &entry)?;
                tar.pass().map_err(ImageError::Archive)?;
            }
        } else {
            let stream = Decompress::new(&file).map_err(unreadable)?;
            let mut tar = TarReader::new(io::BufReader::with_capacity(64 * 1024, stream));
            while let Some(entry) = tar.next_entry().map_err(ImageError::Archive)? {
                note(&mut members, &entry)?;
            }
        }
        Ok(Self::Archive(Archive { path: path.to_owned(), members, is_plain, stream: None }))
    }

    /// Where the file is; an archive's files are best read in this order. `None` when there is none.
    pub(super) fn position(&self, name: &str) -> Option<(u64, u64)> {
        match self {
            Self::Directory(path) => {
                let file = open_file_below(path, Path::new(name)).ok()?;
                Some((0, file.metadata().ok()?.len()))
            }
            Self::Archive(archive) => archive.find(name),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// A whole document.
    pub(super) fn document(&mut self, name: &str) -> Result<Vec<u8>, ImageError> {
        let mut file = self.file(name)?;
        compression::read_bounded(&mut file, MAX_DOCUMENT).map_err(io_error("read", Path::new(name)))
    }

    /// A file, to be read from its beginning.
    pub(super) fn file(&mut self, name: &str) -> Result<Box<dyn Read + '_>, ImageError> {
        match self {
            Self::Directory(path) => {
                let file =
                    open_file_below(path, Path::new(name)).map_err(io_error("open", &path.join(name)))?;
                Ok(Box::new(file))
            }
            Self::Archive(archive) => {
                let (at, size) = archive.find(name).ok_or_else(|| {
                    ImageError::Invalid(format!("file {name:?} is missing: the archive is incomplete"))
                })?;
                archive.read(at, size)
            }
        }
    }
}

fn note(members: &mut BTreeMap<String, Member>, entry: &TarEntry) -> Result<(), ImageError> {
    let Some(path) = TarEntry::below_root(&entry.path) else { return Ok(()) };
    let Some(name) = path.to_str().map(str::to_owned) else { return Ok(()) };
    let member = match entry.kind {
        EntryKind::File => Member::File { at: entry.content_at, size: entry.size },
        EntryKind::HardLink => Member::Link(entry.link.to_string_lossy().into_owned()),
        EntryKind::SymbolicLink => {
            let above = path.parent().unwrap_or(Path::new(""));
            Member::Link(above.join(&entry.link).to_string_lossy().into_owned())
        }
        _ => return Ok(()),
    };
    members.insert(name, member);
    if members.len() > MAX_MEMBERS {
        return Err(ImageError::Invalid(format!("more than {MAX_MEMBERS} files: not an image archive")));
    }
    Ok(())
}

/// Resolves `.` and `..` in the text alone: these names are not on a disk.
fn lexical(name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

impl Archive {
    fn find(&self, name: &str) -> Option<(u64, u64)> {
        let mut name = lexical(name);
        for _ in 0..MAX_LINKS {
            match self.members.get(&name)? {
                Member::File { at, size } => return Some((*at, *size)),
                Member::Link(target) => name = lexical(target),
            }
        }
        None
    }

    fn read(&mut self, at: u64, size: u64) -> Result<Box<dyn Read + '_>, ImageError> {
        let broken = |error| ImageError::Archive(TarError::Read(error));
        let open = || File::open(&self.path);
        if self.is_plain {
            let mut file = open().map_err(broken)?;
            file.seek(SeekFrom::Start(at)).map_err(broken)?;
            return Ok(Box::new(file.take(size)));
        }
        // Reading backwards means starting from the beginning.
        if self.stream.as_ref().is_none_or(|(read, _)| *read > at) {
            self.stream = Some((0, open().and_then(Decompress::new).map_err(broken)?));
        }
        let Some((read, stream)) = &mut self.stream else {
            return Err(ImageError::Invalid("the archive cannot be reopened".to_owned()));
        };
        let far = at - *read;
        *read += skip(stream, far).map_err(broken)?;
        Ok(Box::new(Counted { stream, read, left: size }))
    }
}

/// Part of a stream; counts how far it has been read.
struct Counted<'a> {
    stream: &'a mut Decompress<File>,
    read: &'a mut u64,
    left: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.stream.read(&mut buffer[..most])?;
        *self.read += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}
