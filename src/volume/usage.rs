//! How much of the disk a volume takes, as `du -x` counts: blocks, not lengths; hard links once; one file system; no links
//! followed.
//!
//! Owns nothing. A count of a volume in use is true for no single moment.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::sys::dir::{Handle, Mounts};

/// `st_blocks` counts these, whatever the file system's own block is.
const BLOCK_BYTES: u64 = 512;

/// What a directory takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on disk.
    pub bytes: u64,
    /// Files, directories and links, the directory itself included.
    pub inodes: u64,
}

/// Counts `root` and everything below it. What vanishes meanwhile is not counted.
///
/// # Errors
/// When `root` or a directory below cannot be read.
pub fn measure(root: &Path) -> io::Result<Usage> {
    let root = Handle::open(root)?;
    let mut count = Count { usage: Usage::default(), linked: BTreeSet::new() };
    count.add(&root)?;
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let dir = if path.as_os_str().is_empty() { None } else { enter(&root, &path)? };
        let Some(dir) = dir.as_ref().or((path.as_os_str().is_empty()).then_some(&root)) else { continue };
        for name in dir.names()? {
            let name = name?;
            if count.entry(dir, &name)? {
                pending.push(path.join(&name));
            }
        }
    }
    Ok(count.usage)
}

/// `None` when it is gone, or has become something else or somebody else's.
fn enter(root: &Handle, path: &Path) -> io::Result<Option<Handle>> {
    match root.below(path, Mounts::Stay) {
        Ok(handle) => Ok(handle.metadata()?.is_dir().then_some(handle)),
        Err(_) => Ok(None),
    }
}

struct Count {
    usage: Usage,
    /// Inodes with several names that were counted.
    linked: BTreeSet<u64>,
}

impl Count {
    /// True for a directory to go into.
    fn entry(&mut self, dir: &Handle, name: &OsStr) -> io::Result<bool> {
        let Ok(handle) = dir.below(Path::new(name), Mounts::Stay).or_else(|_| link(dir, name)) else {
            return Ok(false);
        };
        self.add(&handle)?;
        Ok(handle.metadata()?.is_dir())
    }

    fn add(&mut self, handle: &Handle) -> io::Result<()> {
        let found = handle.metadata()?;
        if !found.is_dir() && found.nlink() > 1 && !self.linked.insert(found.ino()) {
            return Ok(());
        }
        self.usage.inodes += 1;
        self.usage.bytes += found.blocks() * BLOCK_BYTES;
        Ok(())
    }
}

/// Links take an inode, too.
fn link(dir: &Handle, name: &OsStr) -> io::Result<Handle> {
    let handle = dir.entry(name)?;
    if handle.metadata()?.is_symlink() { Ok(handle) } else { Err(io::ErrorKind::NotFound.into()) }
}

#[cfg(test)]
mod tests {
    use super::super::Scratch;
    use super::*;
    use crate::sys::mount;

    #[test]
    fn hard_links_count_once_and_neither_links_nor_mounts_are_entered() {
        let scratch = Scratch::new("usage");
        let (root, outside) = (scratch.0.join("root"), scratch.0.join("outside"));
        std::fs::create_dir_all(root.join("sub/mounted")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        let empty = measure(&root).unwrap();
        std::fs::write(root.join("file"), vec![1; 64 << 10]).unwrap();
        std::fs::hard_link(root.join("file"), root.join("sub/again")).unwrap();
        std::fs::write(outside.join("big"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        mount::bind(&outside, &root.join("sub/mounted")).unwrap();
        let full = measure(&root);
        mount::unmount(&root.join("sub/mounted")).unwrap();
        let full = full.unwrap();
        assert_eq!(empty.inodes, 3);
        // The file and the link came; what is mounted went.
        assert_eq!(full.inodes, 4);
        let grown = full.bytes - empty.bytes;
        assert!((48 << 10..128 << 10).contains(&grown), "{grown} bytes more");
    }
}
