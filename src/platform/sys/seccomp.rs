//! Filters for system calls: loading one into the kernel.
//!
//! Owns nothing; a filter stays with the thread until it ends.

use std::io;

use nix::libc;

/// `AUDIT_ARCH_…` of this program, where kernels have more than one interface.
const INTERFACE_HERE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else if cfg!(target_arch = "arm") {
    Some(0x4000_0028)
} else {
    None
};

const SET_MODE_FILTER: libc::c_ulong = 1;
/// Older kernels would otherwise apply a costly mitigation to every filtered process, which newer ones make
/// optional.
const SPEC_ALLOW: libc::c_ulong = 4;

/// Filters the system calls of this thread, its later programs and its children. Needs `no_new_privs` or
/// `CAP_SYS_ADMIN`.
///
/// # Errors
/// The kernel's answer; `InvalidInput` when the program is invalid.
pub(crate) fn load(filter: &[u8]) -> io::Result<()> {
    // The kernel's own error.
    let wrong = || io::Error::from_raw_os_error(libc::EINVAL);
    if filter.is_empty() || !filter.len().is_multiple_of(8) {
        return Err(wrong());
    }
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    // Copied, for the bytes may not be aligned.
    let mut program: Vec<libc::sock_filter> = filter
        .chunks_exact(8)
        .map(|bytes| libc::sock_filter {
            code: u16::from_ne_bytes([bytes[0], bytes[1]]),
            jt: bytes[2],
            jf: bytes[3],
            k: number(&bytes[4..8]),
        })
        .collect();
    let description = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| wrong())?,
        filter: program.as_mut_ptr(),
    };
    for flags in [SPEC_ALLOW, 0] {
        // SAFETY: the description and the program it points to live through the call, and `len` is the
        // program's length; the kernel copies it.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const description) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // Linux before 4.17 does not have this flag.
        if flags == 0 || error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Ok(())
}

pub(crate) const LOAD: u16 = 0x20;
pub(crate) const AND: u16 = 0x54;
pub(crate) const JUMP: u16 = 0x05;
pub(crate) const JUMP_EQUAL: u16 = 0x15;
pub(crate) const JUMP_GREATER: u16 = 0x25;
pub(crate) const JUMP_GREATER_EQUAL: u16 = 0x35;
pub(crate) const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;

/// Whether a filter permits the calls of a process between its fork and the execution of its program, so that
/// it can be loaded before. `false` also for programs with instructions that this interpreter does not know.
#[must_use]
pub(crate) fn permits_start(filter: &[u8]) -> bool {
    let Some(interface) = INTERFACE_HERE else { return false };
    let fork = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    let calls = [
        (libc::SYS_clone, fork),
        (libc::SYS_setsid, 0),
        (libc::SYS_read, 0),
        (libc::SYS_write, 0),
        #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
        (libc::SYS_poll, 0),
        #[cfg(not(any(target_arch = "x86_64", target_arch = "arm")))]
        (libc::SYS_ppoll, 0),
        (libc::SYS_prctl, libc::PR_SET_PDEATHSIG.into()),
        (libc::SYS_prctl, libc::PR_SET_DUMPABLE.into()),
        (libc::SYS_prlimit64, 0),
        (libc::SYS_ioctl, 0),
        (libc::SYS_close, 0),
        (libc::SYS_close_range, 0),
        (libc::SYS_sendmsg, 0),
        (libc::SYS_execve, 0),
        (libc::SYS_exit_group, 0),
    ];
    calls.into_iter().all(|(number, first)| {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let first = u64::try_from(first).unwrap_or_default();
        matches!(verdict(filter, interface, number, first), Some(ALLOW | LOG))
    })
}

/// The kernel's verdict on a call; `None` for a program that it would refuse, or that has instructions that
/// compiled profiles do not use.
fn verdict(filter: &[u8], interface: u32, number: u32, first: u64) -> Option<u32> {
    let data = [&number.to_ne_bytes()[..], &interface.to_ne_bytes(), &[0; 8], &first.to_ne_bytes()].concat();
    let (mut at, mut value) = (0_usize, 0_u32);
    loop {
        let [a, b, yes, no, k @ ..] = *filter.get(at..)?.first_chunk::<8>()?;
        let k = u32::from_ne_bytes(k);
        let mut skip = 0;
        let mut choose = |holds: bool| skip = usize::from(if holds { yes } else { no });
        match u16::from_ne_bytes([a, b]) {
            LOAD => {
                let from = usize::try_from(k).ok()?;
                // The other arguments are zero.
                let word = data.get(from..).and_then(|rest| rest.first_chunk::<4>());
                value = word.map_or(0, |word| u32::from_ne_bytes(*word));
            }
            AND => value &= k,
            JUMP => skip = usize::try_from(k).ok()?,
            JUMP_EQUAL => choose(value == k),
            JUMP_GREATER => choose(value > k),
            JUMP_GREATER_EQUAL => choose(value >= k),
            RETURN => return Some(k),
            _ => return None,
        }
        at = skip.checked_add(1)?.checked_mul(8)?.checked_add(at)?;
    }
}

/// Filters all calls of this thread but those that waiting for signals and exiting need. Needs
/// `no_new_privs`.
pub(in crate::platform) fn restrict_to_waiting() -> io::Result<()> {
    const NUMBER: u32 = 0;
    const INTERFACE: u32 = 4;
    const FAIL: u32 = 0x0005_0000 | libc::EPERM.cast_unsigned();
    let calls = [
        #[cfg(target_arch = "x86_64")]
        libc::SYS_pause,
        #[cfg(target_arch = "arm")]
        libc::SYS_pause,
        libc::SYS_ppoll,
        libc::SYS_rt_sigreturn,
        libc::SYS_restart_syscall,
        libc::SYS_exit_group,
    ];
    let mut program = Vec::new();
    if let Some(own) = INTERFACE_HERE {
        // Numbers of another ABI of the same kernel mean other calls.
        program.extend([(LOAD, 0, INTERFACE), (JUMP_EQUAL, 1, own), (RETURN, 0, FAIL)]);
    }
    program.push((LOAD, 0, NUMBER));
    for (index, call) in (1_u8..).zip(calls) {
        let left = u8::try_from(calls.len()).unwrap_or_default().saturating_sub(index);
        program.push((JUMP_EQUAL, left + 1, u32::try_from(call).unwrap_or(u32::MAX)));
    }
    program.extend([(RETURN, 0, FAIL), (RETURN, 0, ALLOW)]);
    let bytes = program.into_iter().flat_map(|(code, yes, k): (u16, u8, u32)| {
        let mut bytes = [0; 8];
        bytes[..2].copy_from_slice(&code.to_ne_bytes());
        bytes[2] = yes;
        bytes[4..].copy_from_slice(&k.to_ne_bytes());
        bytes
    });
    load(&bytes.collect::<Vec<_>>())
}

/// For tests of what a filter does: a forked child loads it, makes two calls and reports their results.
#[cfg(test)]
pub mod testing {
    use nix::libc;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    /// Numbers of calls that take no pointers.
    pub mod calls {
        use nix::libc::{self, c_long};

        pub(crate) const GETPPID: c_long = libc::SYS_getppid;
        pub(crate) const UNSHARE: c_long = libc::SYS_unshare;
        pub(crate) const CLONE3: c_long = libc::SYS_clone3;
        pub(crate) const SOCKET: c_long = libc::SYS_socket;
        pub(crate) const PERSONALITY: c_long = libc::SYS_personality;
    }

    /// Error numbers of the calls in a filtered child, 0 for none; or the signal that ended it, negative.
    pub(crate) fn in_filtered_child(
        filter: &[u8],
        numbers: &[(libc::c_long, [libc::c_ulong; 2])],
    ) -> Vec<i32> {
        numbers.iter().map(|(number, arguments)| one(filter, *number, *arguments)).collect()
    }

    fn one(filter: &[u8], number: libc::c_long, arguments: [libc::c_ulong; 2]) -> i32 {
        // SAFETY: the child only loads the filter, makes one call and ends; each test is alone in its
        // process.
        match unsafe { fork() }.expect("fork") {
            ForkResult::Child => {
                let code = if super::load(filter).is_err() {
                    255
                } else {
                    // SAFETY: the tests choose calls that take numbers only, and their effects are not used
                    // here.
                    let done = unsafe { libc::syscall(number, arguments[0], arguments[1], 0, 0, 0, 0) };
                    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(254);
                    if done == -1 { error } else { 0 }
                };
                // SAFETY: ends this process at once, without the test harness's own ends.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => match waitpid(child, None).expect("wait") {
                WaitStatus::Exited(_, code) => code,
                WaitStatus::Signaled(_, signal, _) => -(signal as i32),
                other => panic!("{other:?}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn wait_only_filter_denies_other_syscalls() {
        use crate::platform::sys::clone::{CloneKind, Side, exit, fork, wait};
        let code = match fork(CloneKind::default()).unwrap() {
            Side::Parent(pid) => wait(pid).unwrap(),
            Side::Child => {
                let loaded = nix::sys::prctl::set_no_new_privs()
                    .map_err(Into::into)
                    .and_then(|()| super::restrict_to_waiting());
                let refused = std::fs::File::open("/dev/null").err().and_then(|error| error.raw_os_error());
                exit(i32::from(loaded.is_err() || refused != Some(nix::libc::EPERM)))
            }
        };
        assert_eq!(code, 0);
    }

    #[test]
    fn what_is_no_program_is_refused() {
        for broken in [&[][..], &[0; 7]] {
            assert_eq!(super::load(broken).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        }
        // Whole instructions, but no return: the kernel's own check fails.
        assert_eq!(super::load(&[0; 8]).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
}
