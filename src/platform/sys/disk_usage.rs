//! How much of a disk a tree of files uses, as `du` counts it.
//!
//! Owns the walk. Blocks for as long as the disk takes.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How many files with several names are recorded so that they count once; beyond this each name counts.
const MOST_LINKED: usize = 65_536;
/// How many directories are queued for the walk; a wider tree is counted in part.
const MOST_WAITING: usize = 65_536;

/// Bytes on disk and inodes of a directory and all below it. Links are not followed, other file systems not
/// entered, files with several names counted once. Files that disappear meanwhile are not counted.
pub(crate) fn disk_usage(root: &Path) -> io::Result<(u64, u64)> {
    let top = root.symlink_metadata()?;
    let (mut bytes, mut inodes) = (top.blocks().saturating_mul(512), 1_u64);
    let mut linked = BTreeSet::new();
    let mut waiting = if top.is_dir() { vec![root.to_owned()] } else { Vec::new() };
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != top.dev() {
                continue;
            }
            let has_names = !metadata.is_dir() && metadata.nlink() > 1;
            if has_names && linked.len() < MOST_LINKED && !linked.insert(metadata.ino()) {
                continue;
            }
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            inodes += 1;
            if metadata.is_dir() && waiting.len() < MOST_WAITING {
                waiting.push(entry.path());
            }
        }
    }
    Ok((bytes, inodes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_count_once_and_links_lead_nowhere() {
        let root = std::env::temp_dir().join(format!("edge-agent-du-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        assert!(disk_usage(&root).is_err(), "there is no such directory");
        fs::create_dir_all(root.join("a/b")).unwrap();
        let empty = disk_usage(&root).unwrap();
        assert_eq!(empty.1, 3);
        fs::write(root.join("a/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(root.join("a/file"), root.join("a/b/again")).unwrap();
        std::os::unix::fs::symlink("/", root.join("a/everything")).unwrap();
        let (bytes, inodes) = disk_usage(&root).unwrap();
        assert_eq!(inodes, 5, "two directories, the root, a file of two names, a link");
        assert!((100_000..150_000).contains(&(bytes - empty.0)), "{bytes} {empty:?}");
        fs::remove_dir_all(&root).unwrap();
    }
}
