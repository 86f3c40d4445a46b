//! Creating processes: fork, children that get another parent or PID namespace, their end, and parent-death
//! signals.
//!
//! Owns nothing. Only processes with one thread are forked, which is checked: the child continues with a copy of
//! everything.

use crate::model::ordered::Sortable as _;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The parent; the child's process id as this side sees it.
    Parent(i32),
    Child,
}

/// Options of a child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CloneKind {
    /// Its parent is the caller's parent.
    pub sibling: bool,
    /// It is the first process of a new PID namespace.
    pub pid_namespace: bool,
}

/// Set once this process, or the one it was forked from, was found to have one thread.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Checks that this process has one thread. A child has a copy of that thread only: locks held by other
/// threads would stay locked in it.
///
/// # Errors
/// `EINVAL` when there are more.
pub(super) fn check_single_thread() -> io::Result<()> {
    // Unit tests run beside a thread that waits for them. Otherwise one check is enough: a forking process
    // starts no threads, and a container's seccomp filter, loaded before the last fork, may kill the process
    // for this call.
    if cfg!(test) || ALONE.load(Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: changes nothing where it succeeds; the kernel refuses it to a process that has more than one
    // thread.
    if unsafe { libc::unshare(libc::CLONE_THREAD) } != 0 {
        return Err(io::Error::last_os_error());
    }
    ALONE.store(true, Ordering::Relaxed);
    Ok(())
}

/// Makes a child that continues here with a copy of everything.
///
/// # Errors
/// The kernel's answer; `EINVAL` when this process has more than one thread.
pub(crate) fn fork(kind: CloneKind) -> io::Result<Side> {
    check_single_thread()?;
    let mut flags = libc::SIGCHLD;
    if kind.sibling {
        flags |= libc::CLONE_PARENT;
    }
    if kind.pid_namespace {
        flags |= libc::CLONE_NEWPID;
    }
    // SAFETY: without CLONE_VM and with no stack given this is fork: the child has its own copy of memory and
    // returns here. The remaining arguments, whose order differs between architectures, are all null. There
    // is one thread, so no lock of the C library is held by a thread that the child does not have.
    let answer = unsafe {
        libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0_usize, 0_usize, 0_usize, 0_usize)
    };
    match answer {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(i32::try_from(pid).unwrap_or(i32::MAX))),
    }
}

/// Ends this process without running any of the parent's cleanup: no buffers, no handlers, no destructors.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: _exit takes any number and does not return.
    unsafe { libc::_exit(code) }
}

/// Waits for a child. Returns its exit code, or 128 and the signal that ended it.
///
/// # Errors
/// The kernel's answer; `ECHILD` when it is no child of this process.
pub(crate) fn wait(pid: i32) -> io::Result<i32> {
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
pub(crate) fn die_with_parent() -> io::Result<()> {
    Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?)
}

/// Makes this process undumpable: others cannot read its memory, its descriptors or its program.
pub(crate) fn hide() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Makes this process the subreaper of its descendants.
#[cfg(test)]
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// Allows this thread all CPUs of its cgroup. A restriction that it inherits would otherwise hold whatever the cgroup
/// gets (Linux 6.2).
pub(crate) fn allow_all_cpus() {
    let all = [u8::MAX; 1024];
    // SAFETY: the kernel reads so many bytes of a local, and ignores CPUs that the machine does not have.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, all.len(), all.as_ptr()) };
}

/// A session of its own, without a terminal.
pub(crate) fn new_session() -> io::Result<()> {
    nix::unistd::setsid()?;
    Ok(())
}

#[must_use]
pub(crate) fn process_id() -> i32 {
    nix::unistd::getpid().as_raw()
}

/// A close-on-exec pipe: the read end, then the write end.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?)
}

/// All signals as a new program expects them: none blocked, none ignored, none handled.
pub(crate) fn reset_signals() {
    for number in 1..=64 {
        // The C library hides two signals, which may be ignored all the same: so the kernel is called
        // directly.
        let default = [0_u64; 8];
        // SAFETY: all zeros is the default disposition with no flags and an empty mask in every
        // architecture's layout, which is shorter than this; no old one is requested. The kernel refuses the
        // two signals that have no other.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, number, default.as_ptr(), 0_usize, 8_usize) };
    }
    // Cannot fail: the set is well formed and the operation is valid.
    let _ = nix::sys::signal::sigprocmask(
        nix::sys::signal::SigmaskHow::SIG_SETMASK,
        Some(&nix::sys::signal::SigSet::empty()),
        None,
    );
}

/// Closes every descriptor and reaps children forever. For the first process of a PID namespace, which no
/// signal from inside ends. It filters its system calls down to those that waiting needs, so that a process
/// that traces it gains nothing.
pub(crate) fn reap_forever() -> ! {
    // SAFETY: ignoring SIGCHLD makes the kernel reap; no handler runs.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    // SAFETY: this function does not return, so that no value that owns a descriptor is used or dropped.
    if unsafe { close_range(0, u32::MAX) }.is_err() || super::seccomp::restrict_to_waiting().is_err() {
        exit(1);
    }
    loop {
        nix::unistd::pause();
    }
}

/// A value that owns no descriptor.
///
/// # Safety
/// Neither the value nor anything reachable from it may own or borrow a descriptor.
pub(crate) unsafe trait NoDescriptors {}

// SAFETY: a number.
unsafe impl NoDescriptors for i32 {}
// SAFETY: text.
unsafe impl NoDescriptors for PathBuf {}
// SAFETY: at most the value.
unsafe impl<A: NoDescriptors> NoDescriptors for Option<A> {}
// SAFETY: as its parts.
unsafe impl<A: NoDescriptors, B: NoDescriptors> NoDescriptors for (A, B) {}

/// Continues as `work`, with nothing open but the three standard descriptors and `kept`, and exits with its
/// exit code. Everything else that was inherited through fork is closed for good.
pub(crate) fn continue_as<const N: usize, A: NoDescriptors>(
    kept: [Option<OwnedFd>; N],
    argument: A,
    work: fn([Option<OwnedFd>; N], A) -> i32,
) -> ! {
    // Never drops the values it owns, whatever happens: unwinding into the callers would drop what they own.
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            exit(127);
        }
    }
    let _ends = Ends;
    let mut numbers: Vec<RawFd> = (0..3).chain(kept.iter().flatten().map(AsRawFd::as_raw_fd)).collect();
    numbers.order_by(Ord::cmp);
    let mut first = 0;
    for number in numbers.iter().map(|number| number.cast_unsigned()).chain([u32::MAX]) {
        if first < number {
            // SAFETY: this function does not return and nothing unwinds through it, so that callers' values
            // are neither used nor dropped; `work` is a plain function and `argument` owns none, so that it
            // has no descriptor but `kept`.
            if unsafe { close_range(first, number - 1) }.is_err() {
                exit(1);
            }
        }
        first = number.saturating_add(1);
    }
    exit(work(kept, argument))
}

/// Sets close-on-exec on all descriptors from `first` on.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 1 << 2;
    // SAFETY: sets a flag of numbers that may not even be open; nothing is closed.
    unsafe {
        on_range(first, u32::MAX, CLOSE_RANGE_CLOEXEC, |fd| {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        })
    }
}

/// Closes the numbers from `first` to `last`.
///
/// # Safety
/// Values that own one of them are never used or dropped afterwards.
unsafe fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: by the caller's promise.
    unsafe {
        on_range(first, last, 0, |fd| {
            libc::close(fd);
        })
    }
}

/// `close_range(2)`; where the kernel lacks it or its flag (before Linux 5.9 and 5.11), calls `one` for each
/// number.
///
/// # Safety
/// As [`close_range`], when `flags` or `one` close.
unsafe fn on_range(first: u32, last: u32, flags: u32, one: impl Fn(RawFd)) -> io::Result<()> {
    // SAFETY: numbers only; what it means for owners is the caller's promise.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EPERM)) {
        return Err(error);
    }
    // Numbers beyond the soft limit may exist (it can be lowered), so the hard limit is the bound.
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    let end = u32::try_from(hard).unwrap_or(1 << 20).min(1 << 20);
    (first..=last.min(end)).filter_map(|fd| RawFd::try_from(fd).ok()).for_each(one);
    Ok(())
}

/// Another name in process lists.
pub(crate) fn set_name(name: &std::ffi::CStr) {
    let _ = nix::sys::prctl::set_name(name);
}

/// Whether the other end of this socket or pipe is still open.
#[must_use]
pub(crate) fn is_connected(fd: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polled = [PollFd::new(fd, PollFlags::empty())];
    let hung = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    match poll(&mut polled, PollTimeout::ZERO) {
        Ok(_) => !polled[0].revents().is_some_and(|events| events.intersects(hung)),
        Err(_) => true,
    }
}

/// A copy of a descriptor that programs inherit, as a careless parent leaves it.
#[cfg(test)]
pub(crate) fn leak(fd: BorrowedFd<'_>) -> i32 {
    // SAFETY: makes a new descriptor of one that is open; the test's process ends with it.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, 50) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn count_open(_kept: [Option<OwnedFd>; 2], expected: i32) -> i32 {
        let open = std::fs::read_dir("/proc/self/fd")
            .map_or(-1, |entries| i32::try_from(entries.count()).unwrap_or(-1));
        // The directory's own descriptor is among them.
        i32::from(open != expected + 1)
    }

    #[test]
    fn a_restriction_to_some_cpus_can_be_taken_back() {
        let allowed = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap().to_owned()
        };
        let restricted_and_back = move || {
            allow_all_cpus();
            let all = allowed();
            let this = Pid::from_raw(0);
            let own = nix::sched::sched_getaffinity(this).unwrap();
            let first = (0..nix::sched::CpuSet::count()).find(|cpu| own.is_set(*cpu).unwrap()).unwrap();
            let mut one = nix::sched::CpuSet::new();
            one.set(first).unwrap();
            nix::sched::sched_setaffinity(this, &one).unwrap();
            allow_all_cpus();
            assert_eq!(allowed(), all);
        };
        std::thread::scope(|threads| threads.spawn(restricted_and_back).join()).unwrap();
    }

    #[test]
    fn only_the_streams_and_what_is_kept_stay_open() {
        let files: Vec<File> = (0..5).map(|_| File::open("/dev/null").unwrap()).collect();
        let code = match fork(CloneKind::default()).unwrap() {
            Side::Parent(pid) => wait(pid).unwrap(),
            Side::Child => continue_as([files[2].try_clone().ok().map(Into::into), None], 4, count_open),
        };
        assert_eq!((code, files.len()), (0, 5));
    }

    #[test]
    fn what_panics_after_descriptors_were_closed_does_not_come_back() {
        let code = match fork(CloneKind::default()).unwrap() {
            Side::Parent(pid) => wait(pid).unwrap(),
            Side::Child => continue_as([None], 0, |[_], number| 1 / number),
        };
        assert_eq!(code, 127);
    }
}
