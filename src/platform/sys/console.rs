//! Terminals of containers: a pair from the container's own devpts.
//!
//! Owns the descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::stat::Mode;

use super::container_root::{ContainerRoot, FileSystem, facts, file_system};

#[derive(Debug)]
pub(crate) struct Console {
    /// The side of the terminal's user.
    pub master: OwnedFd,
    /// The program's side.
    pub terminal: OwnedFd,
}

/// Makes one from the devpts mounted at `/dev/pts` below `root`; anything else at that place is refused.
pub(crate) fn make_console(root: &ContainerRoot) -> io::Result<Console> {
    let path = Path::new("/dev/pts/ptmx");
    let is_ours = |fd: BorrowedFd<'_>| -> io::Result<bool> {
        Ok(file_system(fd)? == FileSystem::DevPts && facts(fd)?.character_device == Some((5, 2)))
    };
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "/dev/pts/ptmx is not devpts'");
    // Opening a device may already have effects, so it is checked first.
    if !is_ours(root.point(path)?.as_fd())? {
        return Err(wrong());
    }
    let master = root.resolve(path, OFlag::O_RDWR | OFlag::O_NOCTTY, Mode::empty())?;
    if !is_ours(master.as_fd())? {
        return Err(wrong());
    }
    let unlocked: libc::c_int = 0;
    // SAFETY: the call reads one int, which outlives it.
    let answer = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, std::ptr::from_ref(&unlocked)) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: takes flags by value; the answer is a new descriptor or -1. By descriptor: no path to the other
    // side is used.
    let terminal = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    if terminal < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: made a moment ago for this call, nothing else owns it.
    let terminal = unsafe { OwnedFd::from_raw_fd(terminal) };
    Ok(Console { master, terminal })
}

pub(crate) fn set_size(terminal: BorrowedFd<'_>, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call reads the structure, which outlives it.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, std::ptr::from_ref(&size)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a terminal the controlling one of this session, which has none.
pub(crate) fn take_control(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes a number by value.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
