//! Unpacks a layer's archive to a directory that overlayfs takes as a layer. The archive is untrusted.
//!
//! Owns what a layer may contain and how much.
//!
//! Guarantees: nothing outside the directory is created, changed or linked to, whatever the archive says;
//! memory is bounded by the names of one entry; the content is what `diff_id` says or nothing at all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::tar::{EntryKind, TarEntry, TarError, TarReader};
use crate::codec::hex;
use crate::model::amount::Amount;
use crate::platform::sys::layer::{LayerDir, LayerNodeKind, NodeAttributes, SpecialNode, free_space};

/// Overlayfs' mark of a directory that hides the one below.
pub(super) const OPAQUE: &str = "trusted.overlay.opaque";
const WHITEOUT: &[u8] = b".wh.";
const BUFFER: usize = 64 * 1024;
/// Free space is checked again after this many bytes or entries.
const LOOK_BYTES: u64 = 16 * 1024 * 1024;
const LOOK_ENTRIES: u64 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnpackLimits {
    pub entries: u64,
    /// Bytes of the archive without compression.
    pub bytes: u64,
    pub path_bytes: usize,
    /// Directories above an entry.
    pub depth: usize,
    /// Bytes of the disk that stay free.
    pub free_bytes: u64,
    /// Inodes of the disk that stay free.
    pub free_inodes: u64,
    /// Percent of the disk that stay free where that is less.
    pub free_percent: u64,
    /// Additional free space that is kept once more than `keep_after` is written, so that a decompression
    /// bomb evicts no pod.
    pub keep: Option<Amount>,
    /// See `keep`.
    pub keep_after: u64,
}

/// A layer of any size may unpack to this much.
const LEAST_BOUND: u64 = 1024 * 1024 * 1024;
/// No layer unpacks to more.
const MOST_BOUND: u64 = 64 * 1024 * 1024 * 1024;
/// Programs and texts compress to a third; a hundredth is a bomb, or an empty disk image.
const MOST_RATIO: u64 = 100;
/// A layer that unpacks to more than this ratio must leave the free space that eviction needs.
const USUAL_RATIO: u64 = 10;

impl UnpackLimits {
    /// The limits for a layer with this compressed size.
    #[must_use]
    pub(in crate::runtime) fn for_compressed(bytes: u64) -> Self {
        Self {
            bytes: bytes.saturating_mul(MOST_RATIO).clamp(LEAST_BOUND, MOST_BOUND),
            keep_after: bytes.saturating_mul(USUAL_RATIO),
            ..Self::default()
        }
    }
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self {
            entries: 2_000_000,
            bytes: MOST_BOUND,
            path_bytes: 4095,
            depth: 200,
            free_bytes: 64 * 1024 * 1024,
            free_inodes: 1000,
            free_percent: 5,
            keep: None,
            keep_after: 0,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error(transparent)]
    Tar(#[from] TarError),
    /// It would reach outside, or is malformed.
    #[error("{path:?}: {problem}")]
    Refused { path: OsString, problem: &'static str },
    #[error("write {path:?} of the layer")]
    Write {
        path: OsString,
        #[source]
        source: io::Error,
    },
    #[error("set the extended attribute {name:?} of {path:?}")]
    Extended {
        path: OsString,
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("the layer has more than {limit} {what}")]
    Limit {
        what: &'static str,
        /// How much is allowed.
        limit: u64,
    },
    #[error(
        "no space for the layer: {free} {what} free, {floor} reserved; remove images (agent image prune) or files"
    )]
    Space {
        /// Bytes or inodes.
        what: &'static str,
        free: u64,
        floor: u64,
    },
    #[error("layer content has digest {found}, expected {expected}: the archive is damaged or was modified")]
    Digest {
        /// As the image's configuration says.
        expected: String,
        found: String,
    },
    #[error("read the layer")]
    Read(#[source] io::Error),
}

/// What was written, for the store's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub bytes: u64,
    pub inodes: u64,
}

/// Unpacks into the empty directory `root`; `scratch` is a file that may be written meanwhile.
pub(super) fn unpack(
    root: &Path,
    scratch: File,
    diff_id: &str,
    archive: &mut dyn Read,
    limits: &UnpackLimits,
) -> Result<Written, LayerError> {
    let open = |source| LayerError::Write { path: root.as_os_str().to_owned(), source };
    let hashing = Hashing { source: archive, sha: Sha256::new(), bytes: 0, limit: limits.bytes };
    let mut tar = TarReader::new(BufReader::with_capacity(BUFFER, hashing));
    let mut unpacker = Unpacker {
        place: root,
        root: LayerDir::open(root).map_err(open)?,
        limits,
        directories: BufWriter::new(scratch),
        written: Written { bytes: 0, inodes: 1 },
        checked: Written::default(),
        entries: 0,
        parent: None,
        replaced: false,
        buffer: vec![0; BUFFER],
    };
    unpacker.check_limits()?;
    while let Some(entry) = tar.next_entry().map_err(|error| over(error, limits))? {
        unpacker.apply(&entry, &mut tar)?;
    }
    let mut rest = tar.into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(|error| over(TarError::Read(error), limits))?;
    check_digest(diff_id, rest.into_inner().sha)?;
    unpacker.finish()
}

/// Reads a layer that is there already, for its digest alone.
pub(super) fn compare(
    diff_id: &str,
    archive: &mut dyn Read,
    limits: &UnpackLimits,
) -> Result<(), LayerError> {
    let mut hashing = Hashing { source: archive, sha: Sha256::new(), bytes: 0, limit: limits.bytes };
    io::copy(&mut hashing, &mut io::sink()).map_err(|error| over(TarError::Read(error), limits))?;
    check_digest(diff_id, hashing.sha)
}

fn check_digest(diff_id: &str, sha: Sha256) -> Result<(), LayerError> {
    let found = format!("sha256:{}", hex::encode(&sha.finalize()));
    if found == diff_id { Ok(()) } else { Err(LayerError::Digest { expected: diff_id.to_owned(), found }) }
}

/// The limit of bytes travels through `io::Error`.
fn over(error: TarError, limits: &UnpackLimits) -> LayerError {
    match error {
        TarError::Read(error)
            if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<TooMuch>) =>
        {
            LayerError::Limit { what: "bytes", limit: limits.bytes }
        }
        other => LayerError::Tar(other),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("more than allowed")]
struct TooMuch;

/// Hashes and counts what goes by.
struct Hashing<'a> {
    source: &'a mut dyn Read,
    sha: Sha256,
    bytes: u64,
    limit: u64,
}

impl Read for Hashing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.sha.update(&buffer[..count]);
        self.bytes += count as u64;
        if self.bytes > self.limit {
            return Err(io::Error::other(TooMuch));
        }
        Ok(count)
    }
}

struct Unpacker<'a> {
    place: &'a Path,
    root: LayerDir,
    limits: &'a UnpackLimits,
    /// Paths and times of directories. The times are set after the last entry was written.
    directories: BufWriter<File>,
    written: Written,
    checked: Written,
    entries: u64,
    /// The directory of the last entry.
    parent: Option<(PathBuf, LayerDir)>,
    /// The last entry took another's place.
    replaced: bool,
    buffer: Vec<u8>,
}

impl Unpacker<'_> {
    fn apply(&mut self, entry: &TarEntry, content: &mut dyn Read) -> Result<(), LayerError> {
        let refused = |problem| LayerError::Refused { path: entry.path.clone(), problem };
        let write = |source| LayerError::Write { path: entry.path.clone(), source };
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(LayerError::Limit { what: "entries", limit: self.limits.entries });
        }
        if entry.path.len() > self.limits.path_bytes {
            return Err(LayerError::Limit { what: "bytes in a path", limit: self.limits.path_bytes as u64 });
        }
        let path = TarEntry::below_root(&entry.path).ok_or_else(|| refused("the path leads outside"))?;
        if path.components().count() > self.limits.depth {
            return Err(LayerError::Limit { what: "directories in a path", limit: self.limits.depth as u64 });
        }
        let Some(name) = path.file_name() else {
            if entry.kind != EntryKind::Directory {
                return Err(refused("only a directory can be the root"));
            }
            return self.describe(
                &path,
                &LayerDir::directory(&self.root, Path::new("")).map_err(write)?,
                OsStr::new(""),
                entry,
            );
        };
        let above = path.parent().unwrap_or(Path::new(""));
        let parent = match self.parent.take() {
            Some((at, parent)) if at == above => parent,
            _ => self.make_parent(above, entry)?,
        };
        match name.as_bytes().strip_prefix(WHITEOUT) {
            Some(hidden) => self.hide(&parent, OsStr::from_bytes(hidden), entry)?,
            None => self.make(&path, &parent, name, entry, content)?,
        }
        // The replaced entry may have been a link on the way to this one.
        if !std::mem::take(&mut self.replaced) {
            self.parent = Some((above.to_owned(), parent));
        }
        self.check_limits_periodically()
    }

    /// Makes the node and describes it.
    fn make(
        &mut self,
        path: &Path,
        parent: &LayerDir,
        name: &OsStr,
        entry: &TarEntry,
        content: &mut dyn Read,
    ) -> Result<(), LayerError> {
        let write = |source| LayerError::Write { path: entry.path.clone(), source };
        let refused = |problem| LayerError::Refused { path: entry.path.clone(), problem };
        let present = parent.kind(name).map_err(write)?;
        self.replaced = present != LayerNodeKind::Absent;
        if entry.kind == EntryKind::Directory {
            if present != LayerNodeKind::Directory {
                if present != LayerNodeKind::Absent {
                    parent.remove(name).map_err(write)?;
                }
                parent.make_dir(name).map_err(write)?;
                self.written.inodes += 1;
                // The existing entry hid the layers below; the directory must still hide them.
                if present != LayerNodeKind::Absent {
                    parent.set_extended(name, OPAQUE, b"y").map_err(write)?;
                }
            }
            return self.describe(path, parent, name, entry);
        }
        if entry.kind == EntryKind::HardLink {
            let target =
                TarEntry::below_root(&entry.link).ok_or_else(|| refused("the link leads outside"))?;
            let target_name = target.file_name().ok_or_else(|| refused("a hard link to the root"))?;
            if target == path {
                return Ok(());
            }
            let above = target.parent().unwrap_or(Path::new(""));
            let target_parent = self.root.directory(above).map_err(write)?;
            match target_parent.kind(target_name).map_err(write)? {
                LayerNodeKind::Other => {}
                LayerNodeKind::Directory => return Err(refused("a hard link to a directory")),
                LayerNodeKind::Absent | LayerNodeKind::Whiteout => {
                    return Err(refused("a hard link to a file outside this layer"));
                }
            }
            if present == LayerNodeKind::Directory {
                // The directory might contain the link's target.
                return Err(refused("a hard link in place of a directory"));
            }
            // The same file, reached through links: removing one name would remove the other.
            if present != LayerNodeKind::Absent {
                parent.remove(name).map_err(write)?;
                if target_parent.kind(target_name).map_err(write)? == LayerNodeKind::Absent {
                    return Err(refused("a hard link to itself through another path"));
                }
            }
            return parent.make_hard_link(name, &target_parent, target_name).map_err(write);
        }
        if present != LayerNodeKind::Absent {
            parent.remove(name).map_err(write)?;
        }
        self.written.inodes += 1;
        let (major, minor) = entry.device;
        match entry.kind {
            EntryKind::File => self.copy(parent, name, entry, content)?,
            EntryKind::SymbolicLink => {
                if entry.link.is_empty() || entry.link.as_bytes().contains(&0) {
                    return Err(refused("a link without a target"));
                }
                parent.make_link(name, &entry.link).map_err(write)?;
            }
            // 0:0 has no driver, so it cannot be opened. Overlayfs takes it for an absent name, with the same
            // result.
            EntryKind::Character => {
                parent.make_node(name, SpecialNode::Character { major, minor }).map_err(write)?;
            }
            EntryKind::Block => parent.make_node(name, SpecialNode::Block { major, minor }).map_err(write)?,
            EntryKind::Fifo => parent.make_node(name, SpecialNode::Fifo).map_err(write)?,
            EntryKind::Directory | EntryKind::HardLink => {}
        }
        self.describe(path, parent, name, entry)
    }

    fn copy(
        &mut self,
        parent: &LayerDir,
        name: &OsStr,
        entry: &TarEntry,
        content: &mut dyn Read,
    ) -> Result<(), LayerError> {
        let write = |source| LayerError::Write { path: entry.path.clone(), source };
        let mut file = parent.make_file(name).map_err(write)?;
        loop {
            let count = match content.read(&mut self.buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(over(TarError::Read(error), self.limits)),
            };
            if count == 0 {
                break;
            }
            file.write_all(&self.buffer[..count]).map_err(write)?;
            self.written.bytes += count as u64;
            self.check_limits_periodically()?;
        }
        // Usage is counted in blocks.
        self.written.bytes += entry.size.next_multiple_of(4096).saturating_sub(entry.size);
        Ok(())
    }

    fn describe(
        &mut self,
        path: &Path,
        parent: &LayerDir,
        name: &OsStr,
        entry: &TarEntry,
    ) -> Result<(), LayerError> {
        let mut extended = Vec::new();
        for (key, value) in &entry.extended {
            if key.starts_with("trusted.overlay.") || key.starts_with("user.overlay.") {
                let problem = "images must not set extended attributes of overlayfs";
                return Err(LayerError::Refused { path: entry.path.clone(), problem });
            }
            // All others are the node's own policy: SELinux labels, IMA measurements.
            if key == "security.capability"
                || key.starts_with("user.")
                || key.starts_with("system.posix_acl_")
            {
                extended.push((key.clone(), value.clone()));
            }
        }
        let attributes = NodeAttributes {
            uid: entry.uid,
            gid: entry.gid,
            mode: (entry.kind != EntryKind::SymbolicLink).then_some(entry.mode),
            mtime: entry.mtime,
        };
        let error = |(source, key): (io::Error, Option<String>)| match key {
            None => LayerError::Write { path: entry.path.clone(), source },
            Some(name) => LayerError::Extended { path: entry.path.clone(), name, source },
        };
        match parent.set_attributes(name, &attributes, &extended) {
            // A file system without user attributes: programs cope, as with containerd.
            Err((source, Some(key)))
                if key != "security.capability" && source.kind() == io::ErrorKind::Unsupported =>
            {
                let capabilities: Vec<_> =
                    extended.into_iter().filter(|(key, _)| key == "security.capability").collect();
                parent.set_attributes(name, &attributes, &capabilities).map_err(error)?;
            }
            other => other.map_err(error)?,
        }
        if entry.kind == EntryKind::Directory {
            self.remember_time(path, entry.mtime)
                .map_err(|source| LayerError::Write { path: entry.path.clone(), source })?;
        }
        Ok(())
    }

    /// `.wh.NAME`, without the mark.
    fn hide(&mut self, parent: &LayerDir, name: &OsStr, entry: &TarEntry) -> Result<(), LayerError> {
        let write = |source| LayerError::Write { path: entry.path.clone(), source };
        match name.as_bytes() {
            b".wh..opq" => return parent.set_extended(OsStr::new(""), OPAQUE, b"y").map_err(write),
            // aufs kept its own metadata under such names.
            other if other.starts_with(WHITEOUT) => return Ok(()),
            b"" | b"." | b".." => {
                return Err(LayerError::Refused { path: entry.path.clone(), problem: "empty whiteout" });
            }
            _ => {}
        }
        match parent.kind(name).map_err(write)? {
            // The whiteout concerns the layers below: what this layer has by that name stays and hides them.
            LayerNodeKind::Directory => parent.set_extended(name, OPAQUE, b"y").map_err(write),
            LayerNodeKind::Whiteout | LayerNodeKind::Other => Ok(()),
            LayerNodeKind::Absent => {
                self.written.inodes += 1;
                parent.make_node(name, SpecialNode::Character { major: 0, minor: 0 }).map_err(write)
            }
        }
    }

    /// The directory at `above`; those that the archive does not mention are made.
    fn make_parent(&mut self, above: &Path, entry: &TarEntry) -> Result<LayerDir, LayerError> {
        let write = |source| LayerError::Write { path: entry.path.clone(), source };
        match self.root.directory(above) {
            Ok(parent) => return Ok(parent),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_not_directory(&error) => {}
            Err(error) => return Err(write(error)),
        }
        let mut here = self.root.directory(Path::new("")).map_err(write)?;
        let mut at = PathBuf::new();
        for name in above {
            at.push(name);
            here = match self.root.directory(&at) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::NotFound || is_not_directory(&error) => {
                    match here.kind(name).map_err(write)? {
                        LayerNodeKind::Absent => here.make_dir(name).map_err(write)?,
                        LayerNodeKind::Whiteout => {
                            here.remove(name).map_err(write)?;
                            here.make_dir(name).map_err(write)?;
                            here.set_extended(name, OPAQUE, b"y").map_err(write)?;
                        }
                        LayerNodeKind::Directory | LayerNodeKind::Other => {
                            let problem = "its parent is not a directory in this layer";
                            return Err(LayerError::Refused { path: entry.path.clone(), problem });
                        }
                    }
                    self.written.inodes += 1;
                    self.root.directory(&at).map_err(write)?
                }
                Err(error) => return Err(write(error)),
            };
        }
        Ok(here)
    }

    fn remember_time(&mut self, path: &Path, mtime: (i64, u32)) -> io::Result<()> {
        let path = path.as_os_str().as_bytes();
        self.directories.write_all(&u32::try_from(path.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        self.directories.write_all(&mtime.0.to_le_bytes())?;
        self.directories.write_all(&mtime.1.to_le_bytes())?;
        self.directories.write_all(path)
    }

    fn finish(self) -> Result<Written, LayerError> {
        let scratch = |source| LayerError::Write { path: OsString::from("(times of directories)"), source };
        let mut file = self.directories.into_inner().map_err(|error| scratch(error.into_error()))?;
        file.seek(SeekFrom::Start(0)).map_err(scratch)?;
        let mut times = BufReader::new(file);
        loop {
            let (mut length, mut seconds, mut nanoseconds) = ([0; 4], [0; 8], [0; 4]);
            match times.read_exact(&mut length) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(self.written),
                other => other.map_err(scratch)?,
            }
            times
                .read_exact(&mut seconds)
                .and_then(|()| times.read_exact(&mut nanoseconds))
                .map_err(scratch)?;
            let mut path = vec![0; usize::try_from(u32::from_le_bytes(length)).unwrap_or_default()];
            times.read_exact(&mut path).map_err(scratch)?;
            let mtime = (i64::from_le_bytes(seconds), u32::from_le_bytes(nanoseconds));
            let path = PathBuf::from(OsString::from_vec(path));
            let set = |place: &LayerDir, name: &OsStr| {
                if name.is_empty() || place.kind(name)? == LayerNodeKind::Directory {
                    place.set_time(name, mtime)?;
                }
                Ok(())
            };
            let above = path.parent().unwrap_or(Path::new(""));
            let result = match self.root.directory(above) {
                Ok(parent) => set(&parent, path.file_name().unwrap_or_default()),
                // A later entry replaced it.
                Err(error) if error.kind() == io::ErrorKind::NotFound || is_not_directory(&error) => Ok(()),
                Err(error) => Err(error),
            };
            result.map_err(|source| LayerError::Write { path: path.into_os_string(), source })?;
        }
    }

    fn check_limits_periodically(&mut self) -> Result<(), LayerError> {
        let far = self.written.bytes - self.checked.bytes >= LOOK_BYTES
            || self.written.inodes - self.checked.inodes >= LOOK_ENTRIES;
        if far { self.check_limits() } else { Ok(()) }
    }

    fn check_limits(&mut self) -> Result<(), LayerError> {
        self.checked = self.written;
        let free = free_space(self.place)
            .map_err(|source| LayerError::Write { path: self.place.as_os_str().to_owned(), source })?;
        let keeps = self.limits.keep.filter(|_| self.written.bytes > self.limits.keep_after);
        let keep = keeps.map_or(0, |keep| keep.of(free.total_bytes));
        for (what, free, total, most, keep) in [
            ("bytes", free.bytes, free.total_bytes, self.limits.free_bytes, keep),
            ("inodes", free.inodes, free.total_inodes, self.limits.free_inodes, 0),
        ] {
            let floor = most.min(total / 100 * self.limits.free_percent).max(keep);
            if free < floor {
                return Err(LayerError::Space { what, free, floor });
            }
        }
        Ok(())
    }
}

fn is_not_directory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotADirectory
}
