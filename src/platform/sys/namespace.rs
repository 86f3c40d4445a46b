//! Namespaces of this process: making, joining, and what is set in a fresh one.
//!
//! Owns nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::libc;
use nix::sched::CloneFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Namespaces {
    pub mount: bool,
    pub pid: bool,
    pub network: bool,
    /// System V IPC and POSIX queues.
    pub ipc: bool,
    /// Host and domain name.
    pub uts: bool,
    /// View of the cgroup tree.
    pub cgroup: bool,
    /// User and group ids, capabilities.
    pub user: bool,
}

impl Namespaces {
    fn flags(self) -> CloneFlags {
        let mut flags = CloneFlags::empty();
        flags.set(CloneFlags::CLONE_NEWNS, self.mount);
        flags.set(CloneFlags::CLONE_NEWPID, self.pid);
        flags.set(CloneFlags::CLONE_NEWNET, self.network);
        flags.set(CloneFlags::CLONE_NEWIPC, self.ipc);
        flags.set(CloneFlags::CLONE_NEWUTS, self.uts);
        flags.set(CloneFlags::CLONE_NEWCGROUP, self.cgroup);
        flags.set(CloneFlags::CLONE_NEWUSER, self.user);
        flags
    }

    #[must_use]
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Enters new namespaces. A new PID namespace applies to the next child.
pub(crate) fn unshare(kinds: Namespaces) -> io::Result<()> {
    if kinds.is_empty() {
        return Ok(());
    }
    Ok(nix::sched::unshare(kinds.flags())?)
}

/// Joins namespaces of a process (`target` is its pidfd, Linux 5.8) or the one of `target`, a file of
/// `/proc/<pid>/ns`.
pub(crate) fn join(target: BorrowedFd<'_>, kinds: Namespaces) -> io::Result<()> {
    Ok(nix::sched::setns(target, kinds.flags())?)
}

pub(crate) fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<bool> {
    let (one, other) = (nix::sys::stat::fstat(one)?, nix::sys::stat::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

/// Sets the host name of the UTS namespace.
///
/// # Errors
/// The kernel's answer; `EINVAL` for more than 64 bytes.
pub(crate) fn set_hostname(name: &str) -> io::Result<()> {
    Ok(nix::unistd::sethostname(name)?)
}

/// Switches the loopback interface of the network namespace on.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket: OwnedFd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: all zeros is a valid ifreq: numbers and a union of plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = (*from).cast_signed() as libc::c_char;
    }
    // Only these flags are needed, and a new loopback has no other flag that could get lost.
    let up = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = i16::try_from(up).unwrap_or(i16::MAX);
    let address = std::ptr::from_mut(&mut request);
    // SAFETY: the structure outlives the call, which reads it.
    let answer = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS as _, address) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a namespace file such as `/proc/1/ns/pid`, and checks that it is one.
pub(crate) fn open(path: &std::path::Path) -> io::Result<OwnedFd> {
    const NSFS_MAGIC: nix::sys::statfs::FsType = nix::sys::statfs::FsType(0x6e73_6673);
    let file = File::open(path)?;
    let kind = nix::sys::statfs::fstatfs(&file)?.filesystem_type();
    if kind != NSFS_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a namespace"));
    }
    Ok(file.into())
}
