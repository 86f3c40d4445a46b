//! Filters for system calls: handing one to the kernel.
//!
//! Owns nothing; a filter is the thread's for good.

use std::io;

use nix::libc;

const SET_MODE_FILTER: libc::c_ulong = 1;
/// Older kernels would otherwise make every filtered process pay for a mitigation that newer ones leave to it.
const SPEC_ALLOW: libc::c_ulong = 4;

/// Filters the calls of this thread and of what it becomes or starts. Needs `no_new_privs` or `CAP_SYS_ADMIN`.
///
/// # Errors
/// The kernel's answer; `InvalidInput` when the program is none.
pub fn load(filter: &[u8]) -> io::Result<()> {
    // As the kernel says it.
    let wrong = || io::Error::from_raw_os_error(libc::EINVAL);
    if filter.is_empty() || !filter.len().is_multiple_of(8) {
        return Err(wrong());
    }
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    // Copied, for the bytes may lie where numbers must not.
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
        // SAFETY: the description and the program it points to live through the call, and `len` is the program's length;
        // the kernel copies it.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const description) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // Linux before 4.17 knows no such flag.
        if flags == 0 || error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Ok(())
}

/// For tests of what a filter does: a forked child loads it, makes two calls and tells how they went.
#[cfg(test)]
pub mod testing {
    use nix::libc;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    /// Numbers of calls that take no pointers.
    pub mod calls {
        use nix::libc::{self, c_long};

        pub const GETPPID: c_long = libc::SYS_getppid;
        pub const UNSHARE: c_long = libc::SYS_unshare;
        pub const CLONE3: c_long = libc::SYS_clone3;
        pub const SOCKET: c_long = libc::SYS_socket;
        pub const PERSONALITY: c_long = libc::SYS_personality;
    }

    /// Error numbers of the calls in a filtered child, 0 for none; or the signal that ended it, negative.
    pub fn in_filtered_child(filter: &[u8], numbers: &[(libc::c_long, [libc::c_ulong; 2])]) -> Vec<i32> {
        numbers.iter().map(|(number, arguments)| one(filter, *number, *arguments)).collect()
    }

    fn one(filter: &[u8], number: libc::c_long, arguments: [libc::c_ulong; 2]) -> i32 {
        // SAFETY: the child only loads the filter, makes one call and ends; each test is alone in its process.
        match unsafe { fork() }.expect("fork") {
            ForkResult::Child => {
                let code = if super::load(filter).is_err() {
                    255
                } else {
                    // SAFETY: calls that the tests choose take numbers only, and nothing here looks at what they do.
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
    fn what_is_no_program_is_refused() {
        for broken in [&[][..], &[0; 7]] {
            assert_eq!(super::load(broken).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        }
        // Of whole instructions, but with no end: the kernel's own check.
        assert_eq!(super::load(&[0; 8]).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
}
