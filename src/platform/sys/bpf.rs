//! eBPF programs that control access to devices: the required part of `bpf(2)`.
//!
//! Owns descriptors while it works; the kernel keeps an attached program as long as its cgroup.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::libc;

const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// Further programs may be attached to the cgroup and below it; all must agree.
const ALLOW_MULTI: u32 = 2;

/// `union bpf_attr` for `BPF_PROG_LOAD`, with the fields of the first kernels with device programs.
#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
struct Attach {
    target_fd: u32,
    bpf_fd: u32,
    kind: u32,
    flags: u32,
}

/// Makes the kernel run this program (instructions of eBPF, eight bytes each) for every device that a process
/// in the cgroup opens or makes.
///
/// # Errors
/// The kernel's answer; it needs `CONFIG_CGROUP_BPF` and `CAP_SYS_ADMIN`, or `CAP_BPF` and `CAP_NET_ADMIN`.
pub(in crate::platform) fn attach_device_program(cgroup: &Path, program: &[u8]) -> io::Result<()> {
    let directory = File::open(cgroup)?;
    let license = c"Apache-2.0";
    let load = Load {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt: u32::try_from(program.len() / 8).unwrap_or(u32::MAX),
        insns: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        ..Load::default()
    };
    // SAFETY: the structure lives through the call, its size is passed, and its pointers are to memory that
    // does as well and is as long as `insn_cnt` states (the license ends with a zero).
    let loaded = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>()) };
    let descriptor = i32::try_from(loaded).unwrap_or(-1);
    if descriptor < 0 {
        return Err(explain("load", &io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just made this descriptor for this call, and nothing else owns it.
    let program = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let number = |descriptor: i32| u32::try_from(descriptor).unwrap_or(u32::MAX);
    let attach = Attach {
        target_fd: number(directory.as_raw_fd()),
        bpf_fd: number(program.as_raw_fd()),
        kind: ATTACH_CGROUP_DEVICE,
        flags: ALLOW_MULTI,
    };
    // SAFETY: the structure lives through the call and its size is passed; both descriptors are open.
    let attached =
        unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, &raw const attach, size_of::<Attach>()) };
    if attached < 0 {
        return Err(explain("attach", &io::Error::last_os_error()));
    }
    Ok(())
}

fn explain(what: &str, error: &io::Error) -> io::Error {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; needs CAP_SYS_ADMIN, or CAP_BPF and CAP_NET_ADMIN",
        Some(libc::ENOSYS | libc::EINVAL) => "; needs a kernel with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF",
        _ => "",
    };
    io::Error::new(error.kind(), format!("{what} a device program: {error}{hint}"))
}
