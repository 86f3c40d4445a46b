//! The atomic writer: files that change all at once, for all readers and watchers and wherever the writer is
//! stopped.
//!
//! Owns the layout, which is the kubelet's: the files are in a directory `..<time>.<number>`; the symlink
//! `..data` names it, and is renamed over when there is a new one; a symlink per first path component leads
//! through `..data` to the files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;
use crate::pod::volume::projection::{Payload, ProjectedFile};

/// The link readers go through.
pub(super) const DATA: &str = "..data";
/// The next [`DATA`].
const NEXT_DATA: &str = "..data_tmp";
const DIR_MODE: u32 = 0o755;
/// With a group: it may read directories, and new files in them inherit it.
const GROUP_DIR_MODE: u32 = 0o2550;
/// Numbers tried for the name of a new directory: one is enough but for clocks that stand still.
const ATTEMPTS: u32 = 1000;

#[derive(Debug, thiserror::Error)]
#[error("{action} {path:?}")]
pub(super) struct WriteError {
    pub action: &'static str,
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

pub(super) struct AtomicWriter<'a> {
    /// Must exist; this is its only writer.
    pub root: &'a Path,
    /// The group of the written files besides root.
    pub group: Option<u32>,
    /// For the name of a new directory.
    pub now: Timestamp,
    /// Called before every change of the disk; an error stops the writer there.
    pub before: &'a mut dyn FnMut() -> io::Result<()>,
}

impl AtomicWriter<'_> {
    /// Makes `payload` the content. Returns false, and writes nothing, if it was the content before.
    /// Leftovers of an interrupted writer are removed; files that other programs created stay.
    pub(super) fn write(&mut self, payload: &Payload) -> Result<bool, WriteError> {
        let mut current = self.current();
        let is_new = !current.as_ref().is_some_and(|dir| self.holds(dir, payload));
        if is_new {
            let dir = self.make_dir()?;
            self.fill(&self.root.join(&dir), payload)?;
            self.point_at(&dir)?;
            current = Some(dir);
        }
        let names: BTreeSet<&str> = payload
            .keys()
            .map(|path| path.split_once('/').map_or(path.as_str(), |(first, _)| first))
            .into_set();
        self.make_links(&names)?;
        self.sweep(&names, current.as_deref())?;
        Ok(is_new)
    }

    /// The directory that readers see.
    fn current(&self) -> Option<String> {
        let target = fs::read_link(self.root.join(DATA)).ok()?;
        let target = target.to_str()?;
        (target.starts_with("..") && target.len() > 2 && !target.contains('/')).then(|| target.to_owned())
    }

    /// Whether the directory has exactly these files. False if it cannot be read.
    fn holds(&self, dir: &str, payload: &Payload) -> bool {
        let dir = self.root.join(dir);
        let mut found = BTreeMap::new();
        if list_files(&dir, "", &mut found).is_err() || !found.keys().eq(payload.keys()) {
            return false;
        }
        found.iter().zip(payload.values()).all(|((path, metadata), file)| {
            metadata.is_file()
                && metadata.mode() & 0o7777 == file.mode
                && metadata.len() == file.data.len() as u64
                && self.group.is_none_or(|group| metadata.gid() == group)
                && file.owner.is_none_or(|owner| metadata.uid() == owner)
                && fs::read(dir.join(path)).is_ok_and(|data| data == file.data)
        })
    }

    /// Creates a directory named after the current time.
    fn make_dir(&mut self) -> Result<String, WriteError> {
        let second = self.now.to_rfc3339().replace(['-', 'T', ':'], "_");
        let first = u32::try_from(self.now.as_nanos().rem_euclid(1_000_000_000)).unwrap_or_default();
        let mut number = first;
        loop {
            let name = format!("..{}.{number}", second.trim_end_matches('Z'));
            let path = self.root.join(&name);
            match self.act("create directory", &path, |path| fs::create_dir(path)) {
                Ok(()) => return Ok(name),
                Err(error)
                    if error.source.kind() == io::ErrorKind::AlreadyExists && number - first < ATTEMPTS =>
                {
                    number += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn fill(&mut self, dir: &Path, payload: &Payload) -> Result<(), WriteError> {
        self.own_dir(dir)?;
        let mut made = BTreeSet::new();
        for (path, file) in payload {
            for (at, _) in path.match_indices('/') {
                if made.insert(&path[..at]) {
                    let parent = dir.join(&path[..at]);
                    self.act("create directory", &parent, |path| fs::create_dir(path))?;
                    self.own_dir(&parent)?;
                }
            }
            self.write_file(&dir.join(path), file)?;
        }
        Ok(())
    }

    /// Sets the mode by chmod, which ignores the umask.
    fn own_dir(&mut self, dir: &Path) -> Result<(), WriteError> {
        let group = self.group;
        self.act("set owner and mode of", dir, |dir| {
            let extra = if group.is_some() { GROUP_DIR_MODE } else { 0 };
            own(dir, None, group, DIR_MODE | extra)
        })
    }

    fn write_file(&mut self, path: &Path, file: &ProjectedFile) -> Result<(), WriteError> {
        self.act("write", path, |path| {
            let mut open = fs::OpenOptions::new();
            open.write(true).create_new(true).mode(0o600).open(path)?.write_all(&file.data)
        })?;
        let group = self.group;
        self.act("set owner and mode of", path, |path| own(path, file.owner, group, file.mode))
    }

    /// The atomic switch.
    fn point_at(&mut self, dir: &str) -> Result<(), WriteError> {
        let next = self.root.join(NEXT_DATA);
        if fs::symlink_metadata(&next).is_ok() {
            self.act("remove", &next, remove)?;
        }
        self.act("create link", &next, |next| symlink(dir, next))?;
        let data = self.root.join(DATA);
        self.act("replace link", &data, |data| fs::rename(&next, data))
    }

    fn make_links(&mut self, names: &BTreeSet<&str>) -> Result<(), WriteError> {
        for name in names {
            let link = self.root.join(name);
            // Any other entry was created on purpose: a directory on which other volumes are mounted.
            if fs::symlink_metadata(&link).is_err() {
                self.act("create link", &link, |link| symlink(Path::new(DATA).join(name), link))?;
            }
        }
        Ok(())
    }

    /// Removes links to deleted files, and directories that no link leads to.
    fn sweep(&mut self, names: &BTreeSet<&str>, current: Option<&str>) -> Result<(), WriteError> {
        let failed = |source| WriteError { action: "list", path: self.root.to_owned(), source };
        let entries = fs::read_dir(self.root).map_err(failed)?;
        let paths: Vec<PathBuf> = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()
            .map_err(failed)?;
        for path in paths {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_left_over = name.starts_with("..") && name != DATA && Some(name) != current;
            let is_stale_link = || {
                !names.contains(name)
                    && !name.starts_with("..")
                    && fs::read_link(&path).is_ok_and(|target| target.starts_with(DATA))
            };
            if is_left_over || is_stale_link() {
                self.act("remove", &path, remove)?;
            }
        }
        Ok(())
    }

    fn act(
        &mut self,
        action: &'static str,
        path: &Path,
        effect: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let failed = |source| WriteError { action, path: path.to_owned(), source };
        (self.before)().map_err(failed)?;
        effect(path).map_err(failed)
    }
}

/// Owner first: chown may clear mode bits.
fn own(path: &Path, user: Option<u32>, group: Option<u32>, mode: u32) -> io::Result<()> {
    if user.is_some() || group.is_some() {
        lchown(path, user, group)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Everything below `dir` that is not a directory, by path relative to the first one.
fn list_files(dir: &Path, prefix: &str, found: &mut BTreeMap<String, fs::Metadata>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| io::ErrorKind::InvalidData)?;
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            list_files(&entry.path(), &path, found)?;
        } else {
            found.insert(path, metadata);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
