//! Child processes: creating them, waiting for their ends, and sending them signals without ever reaching
//! another process.
//!
//! Owns nothing.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::str::FromStr;

use nix::errno::Errno;
use nix::libc;

use super::clone::{self, CloneKind, Side};

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
    clone::check_single_thread()?;
    // SAFETY: single-threaded, so the child may do whatever its parent may; `NeverReturns` keeps it from
    // unwinding into frames that belong to the parent.
    let answer = match cgroup.and_then(|cgroup| fork_into(cgroup, false)) {
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

/// Makes a child that continues here with a copy of everything, and whose parent is the parent of this process. With a
/// cgroup of version 2 it is in that from its start, if the kernel can.
///
/// # Errors
/// No more processes or memory; `EINVAL` when this process has more than one thread.
pub(crate) fn fork_sibling(cgroup: Option<&Path>) -> io::Result<Side> {
    clone::check_single_thread()?;
    match cgroup.and_then(|cgroup| fork_into(cgroup, true)) {
        Some(0) => Ok(Side::Child),
        Some(pid) => Ok(Side::Parent(pid)),
        None => clone::fork(CloneKind { sibling: true, ..CloneKind::default() }),
    }
}

/// Forks into a cgroup; `None` when that cannot be done.
fn fork_into(cgroup: &Path, sibling: bool) -> Option<i32> {
    let directory = File::open(cgroup).ok()?;
    // `struct clone_args`, which the declarations of musl lack: flags first, the signal of the child's end, the cgroup last. A
    // sibling's signal is that of this process.
    let (flags, signal) = if sibling { (libc::CLONE_PARENT, 0) } else { (0, libc::SIGCHLD) };
    let mut arguments = [0_u64; 11];
    arguments[0] = CLONE_INTO_CGROUP | u64::from(flags.unsigned_abs());
    arguments[4] = u64::from(signal.unsigned_abs());
    arguments[10] = u64::try_from(directory.as_raw_fd()).ok()?;
    // SAFETY: without CLONE_VM and with no stack given this is fork: the child has its own copy of memory and returns here. The
    // kernel reads the arguments, a local of this function.
    let answer = unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) };
    i32::try_from(answer).ok().filter(|answer| *answer >= 0)
}

/// Runs a program with an empty environment and these three streams. Returns the process's id: the caller waits for it.
///
/// # Errors
/// No more processes or memory; a NUL in an argument; the program cannot be run.
pub(crate) fn spawn(program: &Path, arguments: &[&OsStr], streams: [BorrowedFd<'_>; 3]) -> io::Result<i32> {
    let path = CString::new(program.as_os_str().as_bytes())?;
    let arguments: Vec<CString> =
        arguments.iter().map(|word| CString::new(word.as_bytes())).collect::<Result<_, _>>()?;
    let mut words: Vec<_> = arguments.iter().map(|word| word.as_ptr()).collect();
    words.push(std::ptr::null());
    let environment = [std::ptr::null()];
    // It closes when the program runs; until then it takes the number of the error.
    let (mut failed, fails) = io::pipe()?;
    let flags = libc::c_long::from(libc::CLONE_VFORK | libc::SIGCHLD);
    // SAFETY: as in `fork_into`. The order of the arguments differs between architectures, and they are all null.
    let forked = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    match forked {
        -1 => Err(io::Error::last_os_error()),
        // The child of a process that may have other threads: until the program runs it only makes system calls.
        0 => {
            clone::reset_signals();
            for (number, stream) in (0..).zip(streams) {
                // SAFETY: duplicating onto the three standard descriptors, which the streams are not among: the process has them.
                unsafe { libc::dup2(stream.as_raw_fd(), number) };
            }
            // SAFETY: the texts end with NUL and the lists with null; they live until the process becomes the program.
            unsafe { libc::execve(path.as_ptr(), words.as_ptr(), environment.as_ptr()) };
            let errno = Errno::last_raw().to_ne_bytes();
            // SAFETY: writes a local, and ends the process without running anything of this program.
            unsafe {
                libc::write(fails.as_raw_fd(), errno.as_ptr().cast(), errno.len());
                libc::_exit(127)
            }
        }
        pid => {
            drop(fails);
            let (pid, mut errno) = (i32::try_from(pid).unwrap_or(i32::MAX), [0; 4]);
            if failed.read_exact(&mut errno).is_err() {
                return Ok(pid);
            }
            wait(pid)?;
            Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
        }
    }
}

/// Waits for a child's end and reaps it.
///
/// # Errors
/// It is no child of this process, or has been reaped.
pub(crate) fn wait(pid: i32) -> io::Result<ExitStatus> {
    let mut status = 0;
    loop {
        // SAFETY: waitpid writes one integer, a local of this function.
        match unsafe { libc::waitpid(pid, &raw mut status, 0) } {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => return Ok(ExitStatus::from_raw(status)),
        }
    }
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
    stat_field(&stat, 22).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A number in `/proc/<pid>/stat`, counted from 1 as in proc(5); 4 at least.
pub(super) fn stat_field<T: FromStr>(stat: &str, number: usize) -> Option<T> {
    // The name in parentheses, field 2, may hold anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(number - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd;
    use std::path::PathBuf;

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
    fn a_program_gets_its_streams_and_nothing_else() {
        let null = File::open("/dev/null").unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let (mut said, says) = io::pipe().unwrap();
            let words: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
            let streams = [null.as_fd(), says.as_fd(), null.as_fd()];
            let pid = spawn(Path::new(program), &words, streams).unwrap();
            drop(says);
            let mut text = String::new();
            said.read_to_string(&mut text).unwrap();
            (wait(pid).unwrap(), text)
        };
        let busybox = |arguments: &[&str]| run("/bin/busybox", arguments);
        assert_eq!(busybox(&["false"]).0.code(), Some(1));
        assert_eq!(busybox(&["env"]).1, "");
        let (_, signals) = busybox(&["grep", "Sig[BI]", "/proc/self/status"]);
        assert_eq!(signals, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
        let kind = |program: &str| spawn(Path::new(program), &[], [null.as_fd(); 3]).unwrap_err().kind();
        assert_eq!(kind("/nowhere"), io::ErrorKind::NotFound);
        assert_eq!(kind("/etc/passwd"), io::ErrorKind::PermissionDenied);
        assert_eq!(kind("a\0b"), io::ErrorKind::InvalidInput);
        assert_eq!(reap(), None, "nothing is left of those");
    }

    /// A new cgroup of version 2, to be removed by the caller, and the name that processes in it show.
    fn cgroup(purpose: &str) -> (PathBuf, String) {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists()).unwrap();
        let name = format!("agent-{purpose}-{}", std::process::id());
        std::fs::create_dir(root.join(&name)).unwrap();
        (root.join(&name), format!("0::/{name}"))
    }

    fn is_inside(name: &str) -> bool {
        std::fs::read_to_string("/proc/self/cgroup").unwrap().lines().any(|line| line == name)
    }

    #[test]
    fn a_child_starts_in_its_cgroup_or_where_its_parent_is() {
        let (own, name) = cgroup("fork");
        for (cgroup, code) in [(own.as_path(), 1), (&own.join("missing"), 0), (Path::new("/"), 0)] {
            let pid = fork(Some(cgroup), || i32::from(is_inside(&name))).unwrap();
            assert_eq!(clone::wait(pid).unwrap(), code, "{}", cgroup.display());
        }
        std::fs::remove_dir(&own).unwrap();
    }

    #[test]
    fn a_sibling_is_a_child_of_the_parent_and_in_its_cgroup() {
        let (own, name) = cgroup("sibling");
        for (cgroup, code) in [(Some(own.as_path()), 1), (Some(Path::new("/")), 0), (None, 0)] {
            let (mut said, mut says) = io::pipe().unwrap();
            let forker = fork(None, || match fork_sibling(cgroup).unwrap() {
                Side::Child => i32::from(is_inside(&name)),
                Side::Parent(pid) => i32::from(says.write_all(&pid.to_ne_bytes()).is_err()),
            })
            .unwrap();
            assert_eq!(clone::wait(forker).unwrap(), 0);
            let mut pid = [0; 4];
            said.read_exact(&mut pid).unwrap();
            assert_eq!(clone::wait(i32::from_ne_bytes(pid)).unwrap(), code, "{cgroup:?}");
        }
        std::fs::remove_dir(&own).unwrap();
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
