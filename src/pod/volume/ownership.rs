//! `fsGroup`: files of a volume get the pod's group (reference 9.5). Links are not followed, other file
//! systems not entered.
//!
//! Owns the walk. It runs in slices, so that a large volume neither blocks the thread pool nor outlives its
//! worker; the root is changed last, which is how `OnRootMismatch` detects a completed walk.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{VolumeError, set_up_error};
use crate::platform::rt;
use crate::platform::sys::dir::{Handle, Mounts};

/// Files per slice; after that other jobs get the thread.
const SLICE: usize = 4096;
/// The group may read and write.
const FILE_BITS: u32 = 0o660;
/// The group may enter, and files created inside belong to it.
const DIR_BITS: u32 = 0o2770;

/// `fsGroupChangePolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Each time the volume is mounted.
    Always,
    /// Only when the group or mode of the root directory is wrong.
    OnRootMismatch,
}

impl Policy {
    /// From its name in a pod; `Always` is the default.
    pub(super) fn of(name: Option<&str>) -> Self {
        if name == Some("OnRootMismatch") { Self::OnRootMismatch } else { Self::Always }
    }
}

/// Changes the group of everything below `root`. A file that cannot be changed is logged, and the pod starts
/// all the same (upstream). Dropping the future stops after the current slice.
pub(super) async fn apply(volume: &str, root: &Path, group: u32, policy: Policy) -> Result<(), VolumeError> {
    let owned = root.to_owned();
    let started = rt::blocking("set group of volume", move || Walk::start(&owned, group, policy)).await;
    let mut walk = started.map_err(|error| set_up_error(volume, "set group of", root, error))?;
    while !walk.is_done {
        walk = rt::blocking("set group of volume", move || walk.slice(SLICE)).await;
    }
    if let Some((path, error)) = walk.first_failure {
        let path = root.join(path);
        log::warn!(volume, files = walk.failures, first:% = path.display(), err:% = error; "Failed to set \
             group of volume files");
    }
    Ok(())
}

struct Walk {
    root: Handle,
    group: u32,
    /// Directories whose entries have not been changed, relative to the root, which is the empty path.
    pending: Vec<PathBuf>,
    is_done: bool,
    failures: usize,
    first_failure: Option<(PathBuf, io::Error)>,
}

impl Walk {
    fn start(root: &Path, group: u32, policy: Policy) -> io::Result<Self> {
        let root = Handle::open(root)?;
        let is_done = policy == Policy::OnRootMismatch && root_matches(&root, group)?;
        Ok(Self { root, group, pending: vec![PathBuf::new()], is_done, failures: 0, first_failure: None })
    }

    /// Processes about `limit` files, at least one directory.
    fn slice(mut self, limit: usize) -> Self {
        let mut seen = 0;
        while seen < limit {
            let Some(path) = self.pending.pop() else {
                let changed = change(&self.root, self.group);
                self.note(Path::new(""), changed);
                self.is_done = true;
                return self;
            };
            let entries = self.directory(&path);
            seen += 1 + entries.as_ref().copied().unwrap_or_default();
            self.note(&path, entries);
        }
        self
    }

    fn note<T>(&mut self, path: &Path, result: io::Result<T>) -> Option<T> {
        // Removed meanwhile, or replaced by a link or a mount: not to be changed any more.
        let is_gone = |error: &io::Error| {
            error.kind() == io::ErrorKind::NotFound || error.kind() == io::ErrorKind::CrossesDevices
        };
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if !is_gone(&error) {
                    self.failures += 1;
                    self.first_failure.get_or_insert_with(|| (path.to_owned(), error));
                }
                None
            }
        }
    }

    /// How many entries it has.
    fn directory(&mut self, path: &Path) -> io::Result<usize> {
        let dir = if path.as_os_str().is_empty() {
            self.root.duplicate()?
        } else {
            self.root.below(path, Mounts::Stay)?
        };
        let mut count = 0;
        for name in dir.names()? {
            let path = path.join(name?);
            count += 1;
            let entered = change_entry(&dir, path.file_name().unwrap_or_default(), self.group);
            if self.note(&path, entered) == Some(true) {
                self.pending.push(path);
            }
        }
        Ok(count)
    }
}

/// True for a directory to go into.
fn change_entry(dir: &Handle, name: &OsStr, group: u32) -> io::Result<bool> {
    if let Ok(handle) = dir.below(Path::new(name), Mounts::Stay) {
        change(&handle, group)?;
        return Ok(handle.metadata()?.is_dir());
    }
    // A link, a mount, or removed. Only a link is changed.
    if let Ok(handle) = dir.entry(name)
        && handle.metadata()?.is_symlink()
    {
        handle.set_group(group)?;
    }
    Ok(false)
}

/// Writes only what differs.
fn change(handle: &Handle, group: u32) -> io::Result<()> {
    let found = handle.metadata()?;
    let mode = found.mode() & 0o7777;
    let wanted = mode | if found.is_dir() { DIR_BITS } else { FILE_BITS };
    let other_group = found.gid() != group;
    if other_group {
        handle.set_group(group)?;
    }
    // A change of group clears setuid and setgid.
    if mode != wanted || (other_group && mode & 0o6000 != 0) {
        handle.set_mode(wanted)?;
    }
    Ok(())
}

fn root_matches(root: &Handle, group: u32) -> io::Result<bool> {
    let found = root.metadata()?;
    Ok(found.gid() == group && found.mode() & DIR_BITS == DIR_BITS)
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use super::*;
    use crate::platform::sys::mount;
    use crate::platform::testing::TempDir;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const GROUP: u32 = 54321;

    fn look(path: &Path) -> (u32, u32) {
        let found = std::fs::symlink_metadata(path).unwrap();
        (found.gid(), found.mode() & 0o7777)
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn fs_group_is_applied_but_not_behind_links_or_mounts() {
        let scratch = TempDir::new();
        let (root, outside) = (scratch.0.join("root"), scratch.0.join("outside"));
        std::fs::create_dir_all(root.join("sub/mounted")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(root.join("sub/file"), "").unwrap();
        set_mode(&root.join("sub/file"), 0o4600);
        set_mode(&root.join("sub"), 0o700);
        std::fs::write(outside.join("precious"), "").unwrap();
        set_mode(&outside, 0o700);
        let before = look(&outside);
        symlink(&outside, root.join("link")).unwrap();
        mount::bind(&outside, &root.join("sub/mounted")).unwrap();
        let applied = run(apply("v", &root, GROUP, Policy::Always));
        mount::unmount(&root.join("sub/mounted")).unwrap();
        applied.unwrap();
        assert_eq!(look(&root.join("sub/file")), (GROUP, 0o4660));
        assert_eq!(look(&root.join("sub")), (GROUP, 0o2770));
        assert_eq!(look(&root.join("link")).0, GROUP, "the link itself");
        assert_eq!(look(&root).0, GROUP);
        assert_eq!(look(&outside), before, "behind a link and a mount");
        assert_ne!(look(&outside.join("precious")).0, GROUP);
    }

    #[test]
    fn on_root_mismatch_checks_only_the_root() {
        let scratch = TempDir::new();
        let (root, file) = (scratch.0.join("root"), scratch.0.join("root/file"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(&file, "").unwrap();
        let ways = [(Policy::OnRootMismatch, GROUP), (Policy::OnRootMismatch, 0), (Policy::Always, GROUP)];
        for (policy, expected) in ways {
            run(apply("v", &root, GROUP, policy)).unwrap();
            assert_eq!(look(&file).0, expected, "{policy:?}");
            std::os::unix::fs::chown(&file, None, Some(0)).unwrap();
        }
        set_mode(&root, 0o770);
        run(apply("v", &root, GROUP, Policy::OnRootMismatch)).unwrap();
        assert_eq!(look(&file).0, GROUP, "a root without setgid is a mismatch");
    }

    #[test]
    fn unchangeable_files_are_counted_and_others_still_changed() {
        let scratch = TempDir::new();
        let root = scratch.0.join("root");
        std::fs::create_dir_all(root.join("ro")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        // The device is that of the root, the mount is not: it is left alone, which is no failure.
        mount::bind(&root, &root.join("ro")).unwrap();
        let walk = Walk::start(&root, GROUP, Policy::Always).unwrap().slice(SLICE);
        mount::unmount(&root.join("ro")).unwrap();
        assert!(walk.is_done && walk.failures == 0, "{:?}", walk.first_failure);
        assert_eq!(look(&root.join("file")).0, GROUP);
        // procfs refuses every change of owner.
        let refused = Walk::start(Path::new("/proc/self/attr"), GROUP, Policy::Always).unwrap().slice(SLICE);
        assert!(refused.is_done && refused.failures > 1, "{}", refused.failures);
        assert!(refused.first_failure.is_some());
    }

    #[test]
    fn a_walk_of_many_slices_reaches_every_file() {
        let scratch = TempDir::new();
        let root = scratch.0.join("root");
        for dir in 0..5 {
            let dir = root.join(dir.to_string());
            std::fs::create_dir_all(&dir).unwrap();
            for file in 0..6 {
                std::fs::write(dir.join(file.to_string()), "").unwrap();
            }
        }
        let mut walk = Walk::start(&root, GROUP, Policy::Always).unwrap();
        let mut slices = 0;
        while !walk.is_done {
            walk = walk.slice(8);
            slices += 1;
        }
        assert_eq!(walk.failures, 0);
        assert!(slices > 1, "{slices}");
        assert_eq!(look(&root.join("4").join("0")).0, GROUP);
        assert_eq!(look(&root.join("0").join("5")).0, GROUP);
    }
}
