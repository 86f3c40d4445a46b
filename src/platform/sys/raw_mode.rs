//! The terminal on standard input, without a line discipline.

use std::io;

use nix::libc;

/// Raw mode: while it lives, the reader gets every key unchanged, without echo, line editing or signals.
#[derive(Debug)]
pub(crate) struct RawMode {
    before: libc::termios,
}

impl RawMode {
    /// Changes the terminal; it is restored on drop.
    pub(crate) fn enter() -> io::Result<Self> {
        // SAFETY: all zeroes are a termios; tcgetattr fills it.
        let mut before: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: it writes one termios.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, &raw mut before) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut raw = before;
        // SAFETY: it changes the copy alone.
        unsafe { libc::cfmakeraw(&raw mut raw) };
        // SAFETY: it reads one termios.
        if unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, &raw const raw) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // SAFETY: as above. Errors are ignored: a closed terminal needs no restoring.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, &raw const self.before) };
    }
}
