//! The parts of containers' streams: files in memory, terminals' sizes, log files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

/// A file in memory, for handing a text to another process. `name` shows up in `/proc`.
pub(crate) fn memory_file(name: &std::ffi::CStr) -> io::Result<File> {
    // SAFETY: a string that ends with a zero and lives on; the descriptor is new.
    match unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: see above.
        fd => Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) })),
    }
}

/// Sets a terminal's size; its foreground processes get SIGWINCH.
pub(crate) fn resize_terminal(terminal: BorrowedFd<'_>, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A terminal's size: columns and rows.
pub(crate) fn terminal_size(terminal: BorrowedFd<'_>) -> io::Result<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) } {
        0 => Ok((size.ws_col, size.ws_row)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a log file for appending, made if missing; only owner and group may read it. A symlink at the end of
/// the path, or anything that is no regular file, is refused: a user who can write into the directory must
/// not choose the target.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().append(true).create(true).mode(0o640).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_log_is_a_regular_file_and_nothing_else() {
        let directory = std::env::temp_dir().join(format!("edge-agent-open-log-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("0.log");
        open_log(&path).unwrap().write_all(b"a").unwrap();
        open_log(&path).unwrap().write_all(b"b").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"ab");
        let link = directory.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open_log(&link).is_err());
        let pipe = directory.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(open_log(&pipe).is_err());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
