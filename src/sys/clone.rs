//! Making processes: fork, children that get another parent or PID namespace, their end, and what dies with whom.
//!
//! Owns nothing. Only for processes with one thread: the child goes on with a copy of everything. Must not know what
//! children are for.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// Which side of a fork this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that asked; the child's process id as this side sees it.
    Parent(i32),
    /// The new one.
    Child,
}

/// What is special about a child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// Its parent is the caller's parent.
    pub sibling: bool,
    /// It is the first process of a new PID namespace.
    pub pid_namespace: bool,
}

/// Makes a child that goes on here with a copy of everything.
///
/// # Errors
/// The kernel's answer.
pub fn fork(kind: Kind) -> io::Result<Side> {
    let mut flags = libc::SIGCHLD;
    if kind.sibling {
        flags |= libc::CLONE_PARENT;
    }
    if kind.pid_namespace {
        flags |= libc::CLONE_NEWPID;
    }
    // SAFETY: without CLONE_VM and with no stack given this is fork: the child has its own copy of memory and returns here.
    // The remaining arguments, whose order differs between architectures, are all null. Callers have one thread (module
    // documentation), so no lock of the C library is held by a thread that the child does not have.
    let answer = unsafe {
        libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0_usize, 0_usize, 0_usize, 0_usize)
    };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(i32::try_from(pid).unwrap_or(i32::MAX))),
    }
}

/// Ends this process without running anything of the parent's: no buffers, no handlers, no destructors.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit takes any number and does not return.
    unsafe { libc::_exit(code) }
}

/// Waits for a child. Its exit code, or 128 and the signal that ended it.
///
/// # Errors
/// The kernel's answer; `ECHILD` when it is no child of ours.
pub fn wait(pid: i32) -> io::Result<i32> {
    loop {
        match waitpid(Pid::from_raw(pid), None) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(128 + signal as i32),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Lets the kernel kill this process when its parent ends.
///
/// # Errors
/// The kernel's answer.
pub fn die_with_parent() -> io::Result<()> {
    Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?)
}

/// Keeps others from looking into this process: its memory, its descriptors, its program.
///
/// # Errors
/// The kernel's answer.
pub fn hide() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Becomes the one that orphans below it are given to.
///
/// # Errors
/// The kernel's answer.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// A session of its own, without a terminal.
///
/// # Errors
/// The kernel's answer.
pub fn new_session() -> io::Result<()> {
    nix::unistd::setsid()?;
    Ok(())
}

/// This process.
#[must_use]
pub fn process_id() -> i32 {
    nix::unistd::getpid().as_raw()
}

/// A pipe whose ends no program inherits: what is read, what is written.
///
/// # Errors
/// The kernel's answer.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?)
}

/// All signals as a new program expects them: none blocked, none ignored, none handled.
pub fn reset_signals() {
    for number in 1..=64 {
        // The C library keeps two signals to itself, which may be ignored all the same: so the kernel is asked.
        let default = [0_u64; 8];
        // SAFETY: all zeros is the default disposition with no flags and an empty mask in every architecture's layout, which
        // is shorter than this; no old one is asked for. The kernel refuses the two signals that have no other.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, number, default.as_ptr(), 0_usize, 8_usize) };
    }
    // Cannot fail: the set is well formed and the way is a valid one.
    let _ = nix::sys::signal::sigprocmask(
        nix::sys::signal::SigmaskHow::SIG_SETMASK,
        Some(&nix::sys::signal::SigSet::empty()),
        None,
    );
}

/// Reaps children for ever. Meant for the first process of a PID namespace, which no signal from inside ends.
pub fn reap_for_ever() -> ! {
    // SAFETY: ignoring SIGCHLD makes the kernel reap; no handler runs.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    loop {
        nix::unistd::pause();
    }
}

/// Closes every descriptor, for a process that needs none for the rest of its life.
///
/// # Errors
/// The kernel's answer; `ENOSYS` before Linux 5.9.
pub fn close_all() -> io::Result<()> {
    close_range(0, 0)
}

/// Lets no program that is executed from here on inherit a descriptor from `first` on. `proc_fds` lists them where the
/// kernel cannot do it by itself (before Linux 5.11).
///
/// # Errors
/// The kernel's answer.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 1 << 2;
    match close_range(first, CLOSE_RANGE_CLOEXEC) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)) => {}
        other => return other,
    }
    // Numbers beyond the soft limit may exist (it can be lowered), so the ceiling is what the kernel would ever give.
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    let end = i32::try_from(hard).unwrap_or(1 << 20).min(1 << 20);
    for fd in i32::try_from(first).unwrap_or(i32::MAX)..end {
        // SAFETY: a flag of a number that may not even be open: then the answer is EBADF, which changes nothing.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

fn close_range(first: u32, flags: u32) -> io::Result<()> {
    // SAFETY: closes or marks descriptors by number. Owners of closed ones are not used any more: callers do this where the
    // process becomes something else.
    match unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes `fd` the descriptor `number`, one of the three standard ones, for programs executed from here on.
///
/// # Errors
/// The kernel's answer.
pub fn become_stdio(fd: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    // SAFETY: only the numbers 0 to 2 are replaced, which nothing in this process owns.
    let answer = unsafe { libc::dup2(fd.as_raw_fd(), number.clamp(0, 2)) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Another name in process lists.
pub fn set_name(name: &std::ffi::CStr) {
    let _ = nix::sys::prctl::set_name(name);
}

/// Whether whoever holds the other end of this socket or pipe is still there.
#[must_use]
pub fn is_connected(fd: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polled = [PollFd::new(fd, PollFlags::empty())];
    let hung = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    match poll(&mut polled, PollTimeout::ZERO) {
        Ok(_) => !polled[0].revents().is_some_and(|events| events.intersects(hung)),
        Err(_) => true,
    }
}

/// A copy of a descriptor that programs do inherit: what a careless parent leaves behind.
#[cfg(test)]
pub fn leak(fd: BorrowedFd<'_>) -> i32 {
    // SAFETY: makes a new descriptor of one that is open; the test's process ends with it.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, 50) }
}
