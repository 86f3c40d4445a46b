//! What is in a directory, to be compared.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Names below a directory, each with kind, mode and content.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// One of them.
#[derive(Clone, PartialEq, Eq)]
pub enum Entry {
    Directory(u32),
    File(u32, Vec<u8>),
    Link(PathBuf),
    Device(u32, u64),
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(mode) => write!(formatter, "directory {mode:o}"),
            Self::File(mode, content) => {
                let start = String::from_utf8_lossy(&content[..content.len().min(40)]).into_owned();
                write!(formatter, "file {mode:o} of {} bytes {start:?}", content.len())
            }
            Self::Link(target) => write!(formatter, "link to {}", target.display()),
            Self::Device(mode, number) => write!(formatter, "device {mode:o} {number}"),
        }
    }
}

/// Everything below `root` but for sockets and what `skip` names.
pub fn tree(root: &Path, skip: fn(&Path) -> bool) -> Tree {
    let mut found = Tree::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).expect("list a directory").flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).expect("it is below").to_owned();
            if skip(&name) {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).expect("look at what is listed");
            let (kind, mode) = (metadata.file_type(), metadata.mode() & 0o7777);
            let entry = if kind.is_dir() {
                waiting.push(path);
                Entry::Directory(mode)
            } else if kind.is_symlink() {
                Entry::Link(fs::read_link(&path).expect("read a link"))
            } else if kind.is_socket() {
                // It holds nothing, and whoever made it makes it anew.
                continue;
            } else if kind.is_file() {
                Entry::File(mode, fs::read(&path).expect("read a file"))
            } else {
                Entry::Device(metadata.mode(), metadata.rdev())
            };
            found.insert(name, entry);
        }
    }
    found
}

/// What differs, a line each, the first few.
pub fn differences(expected: &Tree, found: &Tree) -> Vec<String> {
    let names = expected.keys().chain(found.keys().filter(|name| !expected.contains_key(*name)));
    names
        .filter(|name| expected.get(*name) != found.get(*name))
        .map(|name| format!("{}: {:?} instead of {:?}", name.display(), found.get(name), expected.get(name)))
        .take(5)
        .collect()
}
