//! Reading one manifest file safely: it may be huge, a pipe, a device, or in the middle of a write.
//!
//! Owns the bounded read and the identity of a file's content.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::desired::source::manifest::MAX_MANIFEST_BYTES;
use crate::platform::sys::open::{is_symlink_loop, open_without_waiting};

/// Changes whenever the file's content may have changed, as far as the file system can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    #[must_use]
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A file that cannot be used. The path is not included; the caller adds it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("broken symlink; fix or delete it")]
    Dangling,
    #[error("symlink loop; fix or delete it")]
    Loop,
    #[error("it is a {kind}, not a regular file; replace or remove it")]
    NotRegular { kind: &'static str },
    /// Beyond upstream's limit.
    #[error("larger than the manifest limit of {MAX_MANIFEST_BYTES} bytes")]
    TooLarge,
    #[error("{call}: {source}; check its permissions and the file system")]
    Io { call: &'static str, source: io::Error },
}

/// The content of a path, symlinks followed.
#[derive(Debug)]
pub(crate) enum PathContent {
    Missing,
    File(Identity),
    Directory,
    /// Something that is never read.
    Unusable(ReadError),
}

/// Checks the path without opening it.
#[must_use]
pub(crate) fn inspect(path: &Path) -> PathContent {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => PathContent::File(Identity::of(&metadata)),
        Ok(metadata) if metadata.is_dir() => PathContent::Directory,
        Ok(metadata) => PathContent::Unusable(ReadError::NotRegular { kind: kind_of(&metadata) }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::symlink_metadata(path) {
            // It was created between the two calls.
            Ok(metadata) if metadata.is_file() => PathContent::File(Identity::of(&metadata)),
            Ok(_) => PathContent::Unusable(ReadError::Dangling),
            Err(_) => PathContent::Missing,
        },
        Err(error) if is_symlink_loop(&error) => PathContent::Unusable(ReadError::Loop),
        Err(source) => PathContent::Unusable(ReadError::Io { call: "stat", source }),
    }
}

/// Reads at most [`MAX_MANIFEST_BYTES`] of a regular file. The identity is from before the read: if a writer
/// was active meanwhile, the next check finds a difference.
pub(crate) fn read_manifest_file(path: &Path) -> Result<(Vec<u8>, Identity), ReadError> {
    let mut file = open_without_waiting(path).map_err(|source| ReadError::Io { call: "open", source })?;
    let metadata = file.metadata().map_err(|source| ReadError::Io { call: "fstat", source })?;
    if !metadata.is_file() {
        return Err(ReadError::NotRegular { kind: kind_of(&metadata) });
    }
    if metadata.size() > MAX_MANIFEST_BYTES as u64 {
        return Err(ReadError::TooLarge);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.size()).unwrap_or(0) + 1);
    let limit = MAX_MANIFEST_BYTES as u64 + 1;
    Read::by_ref(&mut file)
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|source| ReadError::Io { call: "read", source })?;
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(ReadError::TooLarge);
    }
    Ok((bytes, Identity::of(&metadata)))
}

fn kind_of(metadata: &fs::Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_fifo() {
        "named pipe"
    } else if kind.is_socket() {
        "socket"
    } else if kind.is_dir() {
        "directory"
    } else if kind.is_char_device() || kind.is_block_device() {
        "device"
    } else {
        "special file"
    }
}
