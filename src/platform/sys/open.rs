//! Opening files at paths that others choose.
//!
//! Owns the flags that keep `open` from blocking.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, openat};
use nix::sys::stat::Mode;

/// A rename anywhere on the machine may make the kernel fail the lookup of a path with `..` in it (EAGAIN); a
/// machine that renames so often that this many tries fail is under attack.
const TRIES: usize = 1000;

/// openat2(2), retried when the kernel could not verify that the path stays below its root.
pub(super) fn openat2_patiently(root: &OwnedFd, path: &Path, how: OpenHow) -> Result<OwnedFd, Errno> {
    for _ in 0..TRIES {
        match nix::fcntl::openat2(root, path, how) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            other => return other,
        }
    }
    Err(Errno::EAGAIN)
}

/// Opens for reading without waiting for a pipe's writer, and never makes a terminal the controlling one. The
/// caller checks the file's type.
pub(crate) fn open_without_waiting(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

/// The same, but a symlink at the end of the path is refused: the file's author must not redirect it.
pub(crate) fn open_without_following(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

/// Opens a block device for reading, or fails with [`io::ErrorKind::ResourceBusy`] when a file system or another device
/// has it.
pub(crate) fn open_alone(device: &Path) -> io::Result<File> {
    let flags = OFlag::O_EXCL | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(device)
}

/// Opens a regular file below a directory whose content is untrusted: no symlink is followed on the way, and
/// nothing but a regular file is opened, because opening a device may already have effects.
pub(crate) fn open_file_below(root: &Path, path: &Path) -> io::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let mut found = OpenOptions::new().read(true).custom_flags(flags.bits()).open(root)?;
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => found = openat(&found, name, flags, Mode::empty())?.into(),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    if !found.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// True for `ELOOP`: too many symlinks, or a loop of them.
#[must_use]
pub(crate) fn is_symlink_loop(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ELOOP as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symlink_loop_is_distinguished_from_other_errors() {
        let path = std::env::temp_dir().join(format!("edge-agent-loop-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(is_symlink_loop(&open_without_waiting(&path).unwrap_err()));
        assert!(open_without_following(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(!is_symlink_loop(&open_without_waiting(&path).unwrap_err()));
    }

    #[test]
    fn a_file_below_is_opened_and_nothing_else() {
        let root = std::env::temp_dir().join(format!("edge-agent-below-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("in/sub")).unwrap();
        std::fs::write(root.join("in/sub/file"), "inside").unwrap();
        std::fs::write(root.join("outside"), "").unwrap();
        std::os::unix::fs::symlink("..", root.join("in/up")).unwrap();
        std::os::unix::fs::symlink("sub/file", root.join("in/link")).unwrap();
        nix::unistd::mkfifo(&root.join("in/pipe"), Mode::S_IRWXU).unwrap();
        let open = |path: &str| open_file_below(&root.join("in"), Path::new(path));
        assert_eq!(std::io::read_to_string(open("./sub/file").unwrap()).unwrap(), "inside");
        for path in ["../outside", "/etc/passwd", "up/outside", "link", "pipe", "sub", "gone", "sub/file/x"] {
            assert!(open(path).is_err(), "{path}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
