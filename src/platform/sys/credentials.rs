//! Privileges of this process: users, groups, capabilities, limits, keyring, system call filter. They are
//! only reduced.
//!
//! Owns nothing.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Gid, Uid};

/// A thread's four capability sets and its bounding set, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CapabilitySets {
    /// The limit of what execve can ever add.
    pub bounding: u64,
    pub effective: u64,
    /// The capabilities that can be made effective.
    pub permitted: u64,
    /// Kept over execve.
    pub inheritable: u64,
    /// Kept over execve by programs without file capabilities.
    pub ambient: u64,
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn prctl(option: i32, second: libc::c_ulong, third: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: only options that take numbers are used here.
    let answer = unsafe { libc::prctl(option, second, third, 0 as libc::c_ulong, 0 as libc::c_ulong) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// The highest capability this kernel knows.
#[must_use]
pub(in crate::platform) fn last_capability() -> u32 {
    // The kernel refuses numbers beyond its last; the sets have 64 bits.
    (0..64_u32)
        .take_while(|number| prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(*number), 0).is_ok())
        .last()
        .unwrap_or_default()
}

/// The bounding set: the most that this process and its children can ever have.
#[must_use]
pub(crate) fn bounding_capabilities() -> u64 {
    let has = |number: &u32| {
        prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(*number), 0).is_ok_and(|has| has == 1)
    };
    (0..64).filter(has).fold(0, |set, number| set | 1 << number)
}

/// Removes what is not in `keep` from the bounding set, permanently.
pub(crate) fn bound_capabilities(keep: u64) -> io::Result<()> {
    for number in 0..=last_capability() {
        if keep & (1 << number) == 0 {
            prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0)?;
        }
    }
    Ok(())
}

/// Capabilities stay permitted when the user changes, until the next execve.
pub(crate) fn keep_capabilities(keep: bool) -> io::Result<()> {
    prctl(libc::PR_SET_KEEPCAPS, libc::c_ulong::from(keep), 0)?;
    Ok(())
}

/// Sets all but the bounding set exactly.
pub(crate) fn set_capabilities(sets: CapabilitySets) -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    const PR_CAP_AMBIENT: i32 = 47;
    let header = Header { version: VERSION_3, pid: 0 };
    let part = |shift: u32| {
        let word = |set: u64| u32::try_from(set >> shift & u64::from(u32::MAX)).unwrap_or(0);
        Data {
            effective: word(sets.effective),
            permitted: word(sets.permitted),
            inheritable: word(sets.inheritable),
        }
    };
    let data = [part(0), part(32)];
    // The agent's ambient set must not reach the container; kernels before 4.3 have no such set.
    let _ = prctl(PR_CAP_AMBIENT, 4, 0);
    // SAFETY: version 3 takes two words of each set; both structures outlive the call.
    let answer = unsafe { libc::syscall(libc::SYS_capset, std::ptr::from_ref(&header), data.as_ptr()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    for number in (0..64_u32).filter(|number| sets.ambient & (1 << number) != 0) {
        prctl(PR_CAP_AMBIENT, 2, libc::c_ulong::from(number))?;
    }
    Ok(())
}

/// Groups and users, all three ids of each.
///
/// # Errors
/// The kernel's answer; `EINVAL` for ids that the user namespace does not map.
pub(crate) fn set_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    nix::unistd::setgroups(&groups)?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    nix::unistd::setresgid(gid, gid, gid)?;
    nix::unistd::setresuid(uid, uid, uid)?;
    Ok(())
}

/// Programs executed from here on gain no privileges.
pub(crate) fn set_no_new_privileges() -> io::Result<()> {
    Ok(nix::sys::prctl::set_no_new_privs()?)
}

/// The mask for modes of new files.
pub(crate) fn set_umask(mask: u32) {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(mask));
}

/// Joins a new, empty session keyring, so that keys of the node are out of reach.
pub(crate) fn new_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: without a name an anonymous keyring is made; the other arguments are not read.
    match unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0_usize, 0, 0, 0) } {
        -1 => match Errno::last() {
            // A kernel without keys has none to hide; where the call is filtered, it is filtered for the
            // container, too.
            Errno::ENOSYS | Errno::EPERM => Ok(()),
            errno => Err(errno.into()),
        },
        _ => Ok(()),
    }
}

/// Sets a limit by the name of the OCI runtime specification. A limit that the kernel refuses to raise stays
/// at its ceiling.
///
/// # Errors
/// The kernel's answer; `InvalidInput` for an unknown name.
pub(crate) fn set_limit(name: &str, soft: u64, hard: u64) -> io::Result<()> {
    let resource = limit_number(name).ok_or(io::ErrorKind::InvalidInput)?;
    let set = |soft: u64, hard: u64| {
        // The 64-bit form on every architecture.
        let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
        // SAFETY: pid 0 is this process; the structure outlives the call and no old value is requested.
        match unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, std::ptr::from_ref(&limit), 0_usize) }
        {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    match set(soft, hard) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let mut now = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: no new value is given; the structure takes the old one.
            let answer = unsafe {
                libc::syscall(libc::SYS_prlimit64, 0, resource, 0_usize, std::ptr::from_mut(&mut now))
            };
            if answer < 0 {
                return Err(io::Error::last_os_error());
            }
            let hard = hard.min(now.rlim_max);
            set(soft.min(hard), hard)
        }
        other => other,
    }
}

/// Raises the hard limit to `hard`, where it is lower and this process may; the soft limit stays.
///
/// # Errors
/// The kernel's answer; `InvalidInput` for an unknown name.
pub(crate) fn raise_limit(name: &str, hard: u64) -> io::Result<()> {
    let resource = limit_number(name).ok_or(io::ErrorKind::InvalidInput)?;
    let mut now = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: pid 0 is this process; no new value is given; the structure takes the old one.
    let answer =
        unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, 0_usize, std::ptr::from_mut(&mut now)) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    if now.rlim_max < hard { set_limit(name, now.rlim_cur, hard) } else { Ok(()) }
}

fn limit_number(name: &str) -> Option<u32> {
    // The numbers are the same on all supported architectures.
    let names = [
        "RLIMIT_CPU",
        "RLIMIT_FSIZE",
        "RLIMIT_DATA",
        "RLIMIT_STACK",
        "RLIMIT_CORE",
        "RLIMIT_RSS",
        "RLIMIT_NPROC",
        "RLIMIT_NOFILE",
        "RLIMIT_MEMLOCK",
        "RLIMIT_AS",
        "RLIMIT_LOCKS",
        "RLIMIT_SIGPENDING",
        "RLIMIT_MSGQUEUE",
        "RLIMIT_NICE",
        "RLIMIT_RTPRIO",
        "RLIMIT_RTTIME",
    ];
    names.iter().position(|known| *known == name).and_then(|number| u32::try_from(number).ok())
}

/// Whether this process may execute `path`, with its effective ids.
pub(crate) fn may_execute(path: &Path) -> io::Result<()> {
    use nix::fcntl::{AT_FDCWD, AtFlags};
    Ok(nix::unistd::faccessat(AT_FDCWD, path, nix::unistd::AccessFlags::X_OK, AtFlags::AT_EACCESS)?)
}

/// Replaces this process by another program.
///
/// # Errors
/// Returns only if that fails.
pub(crate) fn execute(program: &Path, arguments: &[CString], environment: &[CString]) -> io::Error {
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else {
        return io::ErrorKind::InvalidInput.into();
    };
    match nix::unistd::execve(&path, arguments, environment) {
        Ok(never) => match never {},
        Err(errno) => errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::sys::clone::{self, CloneKind, Side};

    fn session_keyring() -> i64 {
        const KEYCTL_GET_KEYRING_ID: libc::c_int = 0;
        const KEY_SPEC_SESSION_KEYRING: libc::c_int = -3;
        // SAFETY: numbers only.
        unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 1) }
    }

    #[test]
    fn the_session_keyring_is_another_one_afterwards() {
        let code = match clone::fork(CloneKind::default()).unwrap() {
            Side::Parent(pid) => clone::wait(pid).unwrap(),
            Side::Child => {
                let before = session_keyring();
                let joined = new_keyring();
                clone::exit(i32::from(joined.is_err() || before <= 0 || session_keyring() == before))
            }
        };
        assert_eq!(code, 0);
    }

    #[test]
    fn limits_have_the_kernels_numbers() {
        let numbers = [
            ("RLIMIT_CPU", libc::RLIMIT_CPU),
            ("RLIMIT_CORE", libc::RLIMIT_CORE),
            ("RLIMIT_NPROC", libc::RLIMIT_NPROC),
            ("RLIMIT_NOFILE", libc::RLIMIT_NOFILE),
            ("RLIMIT_MEMLOCK", libc::RLIMIT_MEMLOCK),
            ("RLIMIT_AS", libc::RLIMIT_AS),
            ("RLIMIT_RTTIME", libc::RLIMIT_RTTIME),
        ];
        for (name, number) in numbers {
            assert_eq!(limit_number(name).map(i64::from), Some(i64::from(number)), "{name}");
        }
    }
}
