//! Child processes: creating them, waiting for their ends, and sending them signals without ever reaching
//! another process.
//!
//! Owns nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::libc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildExit {
    pub pid: i32,
    /// Exit code, 128 + signal when a signal ended it.
    pub code: i32,
    /// The signal that ended it, 0 for none.
    pub signal: i32,
}

/// Ends a panicking child at once: it must never return into its parent's code.
struct NeverReturns;

impl Drop for NeverReturns {
    fn drop(&mut self) {
        // SAFETY: _exit takes a number, runs nothing of this program and does not return.
        unsafe { libc::_exit(127) }
    }
}

/// Runs `child` in a new process, which exits with the code that it returns. Returns the process's id. With a cgroup of
/// version 2 the child is in it from its start, if the kernel can (Linux 5.7).
///
/// # Errors
/// No more processes or memory; `EINVAL` when this process has more than one thread.
pub(crate) fn fork(cgroup: Option<&Path>, child: impl FnOnce() -> i32) -> io::Result<i32> {
    super::clone::check_single_thread()?;
    // SAFETY: single-threaded, so the child may do whatever its parent may; `NeverReturns` keeps it from
    // unwinding into frames that belong to the parent.
    let answer = match cgroup.and_then(fork_into) {
        Some(answer) => answer,
        None => unsafe { libc::fork() },
    };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let guard = NeverReturns;
            let code = child();
            std::mem::forget(guard);
            // SAFETY: _exit takes a number and does not return.
            unsafe { libc::_exit(code) }
        }
        pid => Ok(pid),
    }
}

/// The C library's constant of this name is too narrow for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Forks into a cgroup; `None` when that cannot be done.
fn fork_into(cgroup: &Path) -> Option<i32> {
    let directory = File::open(cgroup).ok()?;
    // SAFETY: all zeros are valid values of these numbers.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    arguments.cgroup = u64::try_from(directory.as_raw_fd()).ok()?;
    // SAFETY: without CLONE_VM and with no stack given this is fork, as in `clone::fork`; the kernel reads the arguments, a local
    // of this function.
    let answer = unsafe {
        libc::syscall(libc::SYS_clone3, &raw const arguments, std::mem::size_of::<libc::clone_args>())
    };
    i32::try_from(answer).ok().filter(|answer| *answer >= 0)
}

/// Reaps any one child; `None` when none has ended.
#[must_use]
pub(crate) fn reap() -> Option<ChildExit> {
    let mut status = 0;
    // SAFETY: waitpid writes one integer, a local of this function.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL) };
    if pid <= 0 {
        return None;
    }
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        return Some(ChildExit { pid, code: 128 + signal, signal });
    }
    Some(ChildExit { pid, code: libc::WEXITSTATUS(status), signal: 0 })
}

/// A descriptor of this process, never of a later one with the same id. For a child that has not been reaped,
/// or one that is checked afterwards.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers; the descriptor it returns is new, close-on-exec and owned by
    // nothing else.
    unsafe {
        match libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0 as libc::c_long) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?)),
        }
    }
}

/// Sends a signal; no error when the process has ended.
///
/// # Errors
/// The kernel's answer; `EINVAL` for a number that is no signal.
pub(crate) fn pidfd_signal(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let none: libc::c_long = 0;
    // SAFETY: a descriptor that is open, an integer, a null pointer where the kernel allows one, and no
    // flags.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            libc::c_long::from(process.as_raw_fd()),
            libc::c_long::from(signal),
            none,
            none,
        )
    };
    match sent {
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

/// Sends SIGKILL to a process or, when negative, to a process group; no error when it does not exist. Never
/// to init or to everything.
pub(crate) fn kill_by_id(id: i32) {
    if id.unsigned_abs() > 1 {
        // SAFETY: kill takes two integers.
        unsafe { libc::kill(id, libc::SIGKILL) };
    }
}

/// Reads the descriptor of [`become_supervisor`]; `true` when SIGTERM was among the signals. It does not tell
/// how many children have ended: one signal may stand for many.
pub(crate) fn signals_came(signals: &mut impl io::Read) -> bool {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut taken = [0; SIZE];
    let mut asked = false;
    while signals.read(&mut taken).is_ok_and(|count| count == SIZE) {
        let [a, b, c, d, ..] = taken;
        asked |= u32::from_ne_bytes([a, b, c, d]).cast_signed() == libc::SIGTERM;
    }
    asked
}

/// Makes this process a supervisor: orphans among its descendants become its children, it leads a session of
/// its own, unprivileged processes cannot inspect it, and the signals that people and shells send do not end
/// it. Returns a descriptor that becomes readable when a child has ended or SIGTERM has come, see
/// [`signals_came`].
pub(crate) fn become_supervisor() -> io::Result<OwnedFd> {
    // SAFETY: prctl with integers; setsid without arguments; a signal set that is initialised by sigemptyset
    // before anything reads it; signalfd returns a descriptor that is new and owned here.
    unsafe {
        for (option, value) in [(libc::PR_SET_CHILD_SUBREAPER, 1), (libc::PR_SET_DUMPABLE, 0)] {
            let (value, none): (libc::c_ulong, libc::c_ulong) = (value, 0);
            if libc::prctl(option, value, none, none, none) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // Refused when the process already leads a group, which is sufficient.
        libc::setsid();
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        let mut blocked = set;
        for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGPIPE, libc::SIGQUIT] {
            libc::sigaddset(&raw mut blocked, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Closes the inherited descriptors above standard error that an executed program would inherit.
pub(crate) fn close_inherited() -> io::Result<()> {
    let entries = std::fs::read_dir("/proc/self/fd")?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for fd in numbers.filter(|fd| *fd > 2).collect::<Vec<_>>() {
        // SAFETY: queries a flag of a number. What this program opens is closed on exec, so a descriptor
        // without the flag was inherited, and no value owns it.
        unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFD);
            if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
                libc::close(fd);
            }
        }
    }
    Ok(())
}

/// Replaces standard input, output and error by these descriptors, for the program that is executed next. Safe,
/// since the three are never closed, which is all that their owner, the standard library, relies on.
pub(crate) fn set_stdio(
    stdin: BorrowedFd<'_>,
    stdout: BorrowedFd<'_>,
    stderr: BorrowedFd<'_>,
) -> io::Result<()> {
    // A descriptor that is itself one of the three would be overwritten before its turn: duplicates have
    // numbers above them, and are closed when this function returns.
    let [stdin, stdout, stderr] = [stdin, stdout, stderr].map(|fd| fd.try_clone_to_owned());
    nix::unistd::dup2_stdin(stdin?)?;
    nix::unistd::dup2_stdout(stdout?)?;
    Ok(nix::unistd::dup2_stderr(stderr?)?)
}

/// A process's start time, in clock ticks since boot: with its id, this identifies it permanently.
pub fn start_time(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything; the fields after the last one are numbers.
    stat.rsplit_once(')')
        .and_then(|(_, fields)| fields.split_whitespace().nth(19)?.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_child_ends_with_its_code_or_the_signal_that_ended_it() {
        let pid = fork(None, || 7).unwrap();
        let wait = |pid| loop {
            match reap() {
                Some(exit) if exit.pid == pid => break exit,
                _ => std::thread::yield_now(),
            }
        };
        assert_eq!(wait(pid), ChildExit { pid, code: 7, signal: 0 });

        let pid = fork(None, || {
            loop {
                std::thread::park();
            }
        })
        .unwrap();
        let process = pidfd_open(pid).unwrap();
        assert!(start_time(pid).unwrap() >= start_time(1).unwrap());
        assert_eq!(pidfd_signal(process.as_fd(), 999).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        pidfd_signal(process.as_fd(), libc::SIGKILL).unwrap();
        assert_eq!(wait(pid), ChildExit { pid, code: 137, signal: 9 });
        pidfd_signal(process.as_fd(), libc::SIGKILL).unwrap();
        assert!(pidfd_open(pid).is_err() && start_time(pid).is_err());
        assert_eq!(reap(), None);
    }

    #[test]
    fn a_child_starts_in_its_cgroup_or_where_its_parent_is() {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists()).unwrap();
        let name = format!("agent-fork-{}", std::process::id());
        let cgroup = root.join(&name);
        std::fs::create_dir(&cgroup).unwrap();
        for (cgroup, code) in [(cgroup.as_path(), 1), (&root.join("missing"), 0), (Path::new("/"), 0)] {
            let is_inside = || {
                let table = std::fs::read_to_string("/proc/self/cgroup").unwrap();
                i32::from(table.lines().any(|line| line == format!("0::/{name}")))
            };
            let pid = fork(Some(cgroup), is_inside).unwrap();
            assert_eq!(super::super::clone::wait(pid).unwrap(), code, "{}", cgroup.display());
        }
        std::fs::remove_dir(&cgroup).unwrap();
    }

    #[test]
    fn a_child_that_panics_does_not_come_back() {
        let pid = fork(None, || panic!("in the child")).unwrap();
        loop {
            match reap() {
                Some(exit) if exit.pid == pid => return assert_eq!((exit.code, exit.signal), (127, 0)),
                _ => std::thread::yield_now(),
            }
        }
    }
}
