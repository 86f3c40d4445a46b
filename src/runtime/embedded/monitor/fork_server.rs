//! `agent fork-server`: the process that monitors are forked from. It has executed and linked the program, which each
//! monitor would have to do otherwise.
//!
//! Its standard input is a socket of the agent, which closes it to end this process. Monitors are children of the agent,
//! not of this process.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use crate::platform::sys::children;
use crate::platform::sys::clone::{self, Side};
use crate::platform::sys::own_program::set_command_line;
use crate::platform::sys::packets::{self, Descriptors};
use crate::runtime::embedded::protocol::{Fork, MAX_MESSAGE};

/// The process, and each monitor that it becomes. Returns the exit code.
#[must_use]
pub fn main() -> u8 {
    match serve() {
        Ok(None) => 0,
        Ok(Some(directory)) => super::run(&directory),
        Err(error) => {
            super::log_error(&format_args!("agent fork-server, which only the agent starts: {error}"));
            1
        }
    }
}

/// Returns in the process of a new monitor, with the directory of its sandbox; `None` when the agent needs no more
/// monitors. Not inlined: its stack frame must not remain in every monitor.
#[inline(never)]
fn serve() -> io::Result<Option<PathBuf>> {
    children::close_inherited()?;
    // It was executed from a descriptor, whose number would be its name. `killall agent` must reach neither it nor monitors.
    clone::set_name(c"fork-server");
    let (socket, null) = (io::stdin(), io::stdout());
    let mut bytes = [0; MAX_MESSAGE];
    loop {
        let mut descriptors = Descriptors::default();
        let length = match packets::receive(socket.as_fd(), &mut bytes, &mut descriptors) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                packets::wait(socket.as_fd())?;
                continue;
            }
            // At once if it is no socket: a person has started this.
            other => other?,
        };
        if length == 0 {
            return Ok(None);
        }
        let [Some(stdout), Some(stderr), ..] = descriptors else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        // The agent no longer waits: there would be no parent who reaps the monitor.
        if !clone::is_connected(socket.as_fd()) {
            return Ok(None);
        }
        let fork = Fork::decode(&bytes[..length]);
        match children::fork_sibling(fork.cgroup.as_deref()) {
            Ok(Side::Child) => {
                // How the agent's successor finds a monitor that has not written its process id yet. If there may be a successor
                // that has searched already, this one must not begin.
                set_command_line(&["agent".as_ref(), "monitor".as_ref(), OsStr::new(&fork.directory)]);
                clone::set_name(c"pod-monitor");
                if !clone::is_connected(socket.as_fd()) {
                    return Ok(None);
                }
                // The monitor answers, not the server: whatever happens to that, the agent knows of every monitor.
                packets::send(socket.as_fd(), &std::process::id().to_ne_bytes(), &[])?;
                children::set_stdio(null.as_fd(), stdout.as_fd(), stderr.as_fd())?;
                return Ok(Some(fork.directory));
            }
            Ok(Side::Parent(_)) => {}
            Err(error) => {
                let errno = -error.raw_os_error().unwrap_or(i32::MAX);
                packets::send(socket.as_fd(), &errno.to_ne_bytes(), &[])?;
            }
        }
    }
}
