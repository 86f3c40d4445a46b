//! Opening files that somebody else chose.
//!
//! Owns the flags that keep `open` from waiting. Must not know what is read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Opens for reading without waiting for a pipe's writer and without making a terminal ours. The caller checks what it is.
pub fn open_without_waiting(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

/// The same, but a symlink at the end of the path is refused: whoever wrote the file must not choose another.
pub fn open_without_following(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

/// True for `ELOOP`: symlinks that lead in a circle.
#[must_use]
pub fn is_symlink_loop(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ELOOP as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symlink_to_itself_is_told_from_other_errors() {
        let path = std::env::temp_dir().join(format!("edge-agent-loop-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(is_symlink_loop(&open_without_waiting(&path).unwrap_err()));
        assert!(open_without_following(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(!is_symlink_loop(&open_without_waiting(&path).unwrap_err()));
    }
}
