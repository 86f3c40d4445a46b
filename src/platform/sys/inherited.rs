//! A listening socket that the service manager has opened for this process (`sd_listen_fds(3)`).
//!
//! Owns the descriptor: it is taken once.

use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{UnixAddr, getsockname};

/// The first descriptor that is passed.
const FIRST: i32 = 3;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The socket that was passed, if it is the one at `path`.
pub(crate) fn listener(path: &Path) -> Option<UnixListener> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let is_meant = number("LISTEN_PID") == Some(std::process::id()) && number("LISTEN_FDS")? > 0;
    // Another kind of descriptor is not taken, and stays open as it is.
    let address: UnixAddr = is_meant.then(|| getsockname(FIRST).ok())??;
    if address.path() != Some(path) || TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the service manager has opened this descriptor for this very process, and it is taken once.
    let listener = unsafe { UnixListener::from_raw_fd(FIRST) };
    fcntl(listener.as_fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
    listener.set_nonblocking(true).ok()?;
    Some(listener)
}
