//! Directories by descriptor: going down without following links or crossing mounts, making and removing what
//! is below. The files' owner may rename and replace them concurrently; nothing outside the directory is ever
//! touched.
//!
//! Owns descriptors.

use std::ffi::{CString, OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag};
use nix::libc;
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{Gid, UnlinkatFlags};

use super::open::openat2_patiently;

/// Names read from a directory at a time: removing one of a million files needs no million names in memory.
const BATCH: usize = 1024;
/// Directories held open on the way down; deeper ones are moved up first, so that no depth exhausts stack or
/// descriptors.
const MAX_DEPTH: usize = 64;

/// An open directory, or an `O_PATH` descriptor of any other file.
#[derive(Debug)]
pub(crate) struct Handle(OwnedFd);

/// Whether a step down may enter another mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounts {
    /// A volume may have mounts below it.
    Cross,
    /// Mounts below are foreign and not entered; the error is `EXDEV`.
    Stay,
}

/// Something below a directory could not be removed.
#[derive(Debug)]
pub(crate) struct RemoveError {
    /// The obstacle, relative to the directory.
    pub path: PathBuf,
    pub source: io::Error,
}

impl Handle {
    /// Opens one of the agent's own directories: links in the path are followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(nix::fcntl::open(path, flags, Mode::empty())?))
    }

    /// Points at `relative` below this directory. No component may be a link or `..`, now or during the call.
    ///
    /// # Errors
    /// The kernel's answer: `ELOOP` or `ENOTDIR` for links, `EXDEV` for a mount with [`Mounts::Stay`].
    pub(crate) fn below(&self, relative: &Path, mounts: Mounts) -> io::Result<Self> {
        if relative.components().any(|component| !matches!(component, Component::Normal(_))) {
            return Err(Errno::EXDEV.into());
        }
        match self.resolve(relative, mounts) {
            // Kernels before 5.6 do not have the call; filters of older container runtimes refuse it.
            Err(Errno::ENOSYS | Errno::EPERM) => self.walk(relative, mounts),
            other => Self(other?).unless_link(),
        }
    }

    fn unless_link(self) -> io::Result<Self> {
        if self.metadata()?.is_symlink() { Err(Errno::ELOOP.into()) } else { Ok(self) }
    }

    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    fn resolve(&self, relative: &Path, mounts: Mounts) -> Result<OwnedFd, Errno> {
        let mut resolve = ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        if mounts == Mounts::Stay {
            resolve |= ResolveFlag::RESOLVE_NO_XDEV;
        }
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat2_patiently(&self.0, relative, OpenHow::new().flags(flags).resolve(resolve))
    }

    /// As [`Handle::below`], step by step. A bind mount of the same file system is not recognised as a mount
    /// here; callers that must not enter one have checked the mount table before.
    fn walk(&self, relative: &Path, mounts: Mounts) -> io::Result<Self> {
        let device = self.metadata()?.dev();
        let mut current = self.duplicate()?;
        for name in relative {
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            current = Self(nix::fcntl::openat(&current.0, name, flags, Mode::empty())?).unless_link()?;
            if mounts == Mounts::Stay && current.metadata()?.dev() != device {
                return Err(Errno::EXDEV.into());
            }
        }
        Ok(current)
    }

    /// Makes the directory `name` here with exactly `mode` and points at it. A directory that exists at that
    /// name, even one made a moment ago, is taken as it is; a link or file is refused.
    pub(crate) fn make_dir(&self, name: &OsStr, mode: u32) -> io::Result<Self> {
        let is_new = match nix::sys::stat::mkdirat(&self.0, name, Mode::from_bits_truncate(mode)) {
            Err(Errno::EEXIST) => false,
            other => other.map(|()| true)?,
        };
        let child = self.below(Path::new(name), Mounts::Cross)?;
        if !child.metadata()?.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if is_new {
            // The umask must not apply.
            child.set_mode(mode)?;
        }
        Ok(child)
    }

    /// Kind, mode, owner of what this points at.
    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        // Through the descriptor: `/proc/self/fd` would follow a link that it points at no further than to
        // itself.
        std::fs::File::from(self.0.try_clone()?).metadata()
    }

    /// Sets permission bits, setuid, setgid and sticky included.
    ///
    /// # Errors
    /// The kernel's answer; links have no mode.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        // fchmod refuses `O_PATH` descriptors; the path through procfs leads to the very same file.
        std::fs::set_permissions(self.proc_path(), std::fs::Permissions::from_mode(mode))
    }

    /// Sets the group, of a link itself too.
    pub(crate) fn set_group(&self, group: u32) -> io::Result<()> {
        nix::unistd::fchownat(&self.0, "", None, Some(Gid::from_raw(group)), AtFlags::AT_EMPTY_PATH)?;
        Ok(())
    }

    /// Names in this directory, in the order of the file system.
    pub(crate) fn names(&self) -> io::Result<impl Iterator<Item = io::Result<OsString>>> {
        Ok(std::fs::read_dir(self.proc_path())?.map(|entry| Ok(entry?.file_name())))
    }

    /// Opens what this points at for reading.
    pub(crate) fn reopen(&self) -> io::Result<std::fs::File> {
        std::fs::File::open(self.proc_path())
    }

    /// Points at the entry `name` of this directory, also if it is a link.
    pub(crate) fn entry(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(Self(nix::fcntl::openat(&self.0, name, flags, Mode::empty())?))
    }

    fn proc_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes one of the agent's own directories, and what is missing above it. An existing one keeps its mode.
pub(crate) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Removes everything in `root`, the directory itself stays. Follows no link and enters no mount: both are
/// refused by the kernel, whatever is renamed concurrently.
///
/// # Errors
/// The first obstacle; `EXDEV` or `EBUSY` for a mount point. What is removed stays removed; a retry is safe.
pub(crate) fn remove_contents(root: &Path) -> Result<(), RemoveError> {
    let at_root = |source| RemoveError { path: PathBuf::new(), source };
    let root = Handle::open(root).map_err(at_root)?;
    let mut removal = Removal { root: &root, moved: 0 };
    removal.empty(&root, Path::new(""), 0)
}

/// True for the kernel's errors when a mount point is removed or entered.
#[must_use]
pub(crate) fn is_mount_in_the_way(error: &io::Error) -> bool {
    [Errno::EXDEV, Errno::EBUSY].iter().any(|code| error.raw_os_error() == Some(*code as i32))
}

struct Removal<'a> {
    root: &'a Handle,
    /// Directories that were too deep and are emptied from the root.
    moved: u64,
}

impl Removal<'_> {
    fn empty(&mut self, dir: &Handle, path: &Path, depth: usize) -> Result<(), RemoveError> {
        loop {
            let names = dir.names().and_then(|names| names.take(BATCH).collect::<io::Result<Vec<_>>>());
            let names = names.map_err(|source| RemoveError { path: path.to_owned(), source })?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                self.remove(dir, &path.join(&name), &name, depth)?;
            }
        }
    }

    fn remove(&mut self, dir: &Handle, path: &Path, name: &OsStr, depth: usize) -> Result<(), RemoveError> {
        let failed = |source: io::Error| RemoveError { path: path.to_owned(), source };
        match nix::unistd::unlinkat(&dir.0, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            // For directories Linux returns EISDIR, POSIX EPERM.
            Err(Errno::EISDIR | Errno::EPERM) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let child = match dir.below(Path::new(name), Mounts::Stay) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(failed)?,
        };
        if !child.metadata().map_err(failed)?.is_dir() {
            return Err(failed(Errno::EPERM.into()));
        }
        if depth == MAX_DEPTH {
            return self.move_up(dir, name).map_err(failed);
        }
        self.empty(&child, path, depth + 1)?;
        match nix::unistd::unlinkat(&dir.0, name, UnlinkatFlags::RemoveDir) {
            // Filled again, or replaced, concurrently: the next batch handles it.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::ENOTDIR) => Ok(()),
            Err(error) => Err(failed(error.into())),
        }
    }

    fn move_up(&mut self, dir: &Handle, name: &OsStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            let fresh = format!(".removed-{}", self.moved);
            match nix::fcntl::renameat(&dir.0, name, &self.root.0, fresh.as_str()) {
                // An earlier, interrupted removal left one of that name.
                Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
                other => return Ok(other?),
            }
        }
    }
}

/// Device and inode: the identity of a file, whatever its names are.
pub(crate) fn identity(file: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let found = fstat(file)?;
    Ok((found.st_dev, found.st_ino))
}

/// Swaps two names at once. musl has no function for it.
pub(crate) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let [one, other] = [one, other].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (one, other, here) = (one?, other?, libc::AT_FDCWD);
    // SAFETY: the paths end with NUL and outlive the call.
    let answer = unsafe {
        libc::syscall(libc::SYS_renameat2, here, one.as_ptr(), here, other.as_ptr(), libc::RENAME_EXCHANGE)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;
    use std::os::unix::fs::symlink;

    type Way = fn(&Handle, &Path, Mounts) -> io::Result<Handle>;

    #[test]
    fn descent_refuses_symlinks_dotdot_and_mounts() {
        let scratch = TempDir::new();
        let root = scratch.0.join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join("mounted")).unwrap();
        symlink("/", root.join("link")).unwrap();
        symlink("a", root.join("inner")).unwrap();
        crate::platform::sys::mount::mount_tmpfs(&root.join("mounted"), Some(1 << 20)).unwrap();
        let handle = Handle::open(&root).unwrap();
        let code =
            |result: io::Result<Handle>| result.map(drop).map_err(|error| error.raw_os_error().unwrap());
        let ways: [(&str, Way); 2] = [("openat2", Handle::below), ("walk", Handle::walk)];
        let mut seen = Vec::new();
        for (way, down) in ways {
            let to = |path: &str, mounts| code(down(&handle, Path::new(path), mounts));
            seen.push((
                way,
                to("a/b", Mounts::Stay),
                to("link", Mounts::Cross),
                to("link/etc", Mounts::Cross),
            ));
            seen.push((
                way,
                to("mounted", Mounts::Cross),
                to("inner/b", Mounts::Cross),
                to("mounted", Mounts::Stay),
            ));
        }
        crate::platform::sys::mount::unmount(&root.join("mounted")).unwrap();
        let (looped, crossed) = (Err(Errno::ELOOP as i32), Err(Errno::EXDEV as i32));
        for (way, first, second, third) in [seen[0], seen[2]] {
            assert_eq!((first, second, third), (Ok(()), looped, looped), "{way}");
        }
        for (way, first, second, third) in [seen[1], seen[3]] {
            assert_eq!((first, second, third), (Ok(()), looped, crossed), "{way}");
        }
        for outside in ["..", "a/../..", "/etc"] {
            assert_eq!(code(handle.below(Path::new(outside), Mounts::Cross)), crossed, "{outside}");
        }
    }

    #[test]
    fn removing_follows_no_link_and_stops_at_a_mount_with_its_path() {
        let scratch = TempDir::new();
        let root = scratch.0.join("root");
        let outside = scratch.0.join("outside");
        std::fs::create_dir_all(root.join("a/mounted")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("precious"), "x").unwrap();
        symlink(&outside, root.join("a/link")).unwrap();
        // A bind of the same file system, which the device number alone does not reveal.
        crate::platform::sys::mount::bind(&outside, &root.join("a/mounted")).unwrap();
        let stopped = remove_contents(&root).unwrap_err();
        crate::platform::sys::mount::unmount(&root.join("a/mounted")).unwrap();
        assert_eq!(stopped.path, Path::new("a/mounted"));
        assert!(is_mount_in_the_way(&stopped.source), "{}", stopped.source);
        remove_contents(&root).unwrap();
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn a_tree_deeper_than_what_is_held_open_is_removed() {
        let scratch = TempDir::new();
        let root = scratch.0.join("root");
        std::fs::create_dir_all(&root).unwrap();
        let mut current = Handle::open(&root).unwrap();
        for _ in 0..MAX_DEPTH * 6 {
            current = current.make_dir(OsStr::new("d"), 0o755).unwrap();
        }
        drop(current);
        remove_contents(&root).unwrap();
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
    }

    #[test]
    fn make_dir_sets_the_mode_and_refuses_a_link_in_its_place() {
        let scratch = TempDir::new();
        let handle = Handle::open(&scratch.0).unwrap();
        let made = handle.make_dir(OsStr::new("new"), 0o2777).unwrap();
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o7777, 0o2777);
        symlink("/", scratch.0.join("link")).unwrap();
        std::fs::write(scratch.0.join("file"), "").unwrap();
        for name in ["link", "file"] {
            assert!(handle.make_dir(OsStr::new(name), 0o777).is_err(), "{name}");
        }
    }
}
