//! Project quotas of a file system: files that are counted together, and a limit of their bytes.
//!
//! Owns the layout of what the kernel reads and writes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use nix::libc;

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
const GET_ATTRIBUTES: libc::Ioctl = libc::_IOR::<FileAttributes>(0x58, 31);
const SET_ATTRIBUTES: libc::Ioctl = libc::_IOW::<FileAttributes>(0x58, 32);
/// `FS_XFLAG_PROJINHERIT`.
const INHERIT: u32 = 0x200;
/// `quotactl_fd`, by the number that it has on every architecture.
const QUOTACTL_FD: libc::c_long = 443;
/// Commands of `quotactl`: `Q_GETQUOTA`, `Q_SETQUOTA`, `Q_XGETQSTATV`.
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
const GET_STATE: u32 = 0x5808;
/// `FS_QUOTA_PDQ_ENFD`.
const ENFORCED: u16 = 1 << 5;
/// The kernel's unit of limits.
pub(crate) const UNIT: u64 = 1024;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct FileAttributes {
    flags: u32,
    extent: [u32; 2],
    project: u32,
    rest: [u32; 3],
}

/// `struct dqblk`.
#[repr(C)]
#[derive(Default)]
struct DiskQuota {
    hard: u64,
    soft: u64,
    space: u64,
    inode_limits: [u64; 2],
    inodes: u64,
    times: [u64; 2],
    /// Which members are set.
    valid: u32,
}

/// `struct fs_quota_statv`: longer than any version of it.
#[repr(C)]
struct State {
    version: u8,
    pad: u8,
    flags: u16,
    rest: [u32; 63],
}

/// The project of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Project {
    /// 0: none.
    pub id: u32,
    /// Of a directory: what is made in it is of the same project.
    pub inherits: bool,
}

/// What is counted for a project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProjectUse {
    /// 0: none.
    pub limit: u64,
    pub bytes: u64,
    pub inodes: u64,
}

fn attributes(file: &File) -> io::Result<FileAttributes> {
    let mut found = FileAttributes::default();
    // SAFETY: the kernel writes one such structure, which outlives the call.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), GET_ATTRIBUTES, &raw mut found) };
    if answer == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn project(file: &File) -> io::Result<Project> {
    let found = attributes(file)?;
    Ok(Project { id: found.project, inherits: found.flags & INHERIT != 0 })
}

/// Writes only what differs.
pub(crate) fn set_project(file: &File, wanted: Project) -> io::Result<()> {
    let mut new = attributes(file)?;
    let flags = new.flags & !INHERIT | if wanted.inherits { INHERIT } else { 0 };
    if (new.project, new.flags) == (wanted.id, flags) {
        return Ok(());
    }
    (new.project, new.flags) = (wanted.id, flags);
    // SAFETY: the kernel reads one such structure, which outlives the call.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), SET_ATTRIBUTES, &raw const new) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// True when the file system of `place` keeps the limits of projects.
pub(crate) fn is_enforced(place: &File) -> bool {
    let mut state = State { version: 1, pad: 0, flags: 0, rest: [0; 63] };
    control(place, GET_STATE, 0, (&raw mut state).cast()).is_ok() && state.flags & ENFORCED != 0
}

/// Of a project that the file system does not know: nothing.
pub(crate) fn usage(place: &File, id: u32) -> io::Result<ProjectUse> {
    let mut found = DiskQuota::default();
    match control(place, GET_QUOTA, id, (&raw mut found).cast()) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(ProjectUse::default()),
        other => other.map(|()| ProjectUse {
            limit: found.hard.saturating_mul(UNIT),
            bytes: found.space,
            inodes: found.inodes,
        }),
    }
}

/// Sets the limit of a project's bytes, rounded up to whole [`UNIT`]s.
pub(crate) fn set_limit(place: &File, id: u32, bytes: u64) -> io::Result<()> {
    // `QIF_BLIMITS`.
    let mut new = DiskQuota { hard: bytes.div_ceil(UNIT), valid: 1, ..DiskQuota::default() };
    control(place, SET_QUOTA, id, (&raw mut new).cast())
}

/// `quotactl` for projects. Kernels before 5.14 want to know the block device.
fn control(place: &File, command: u32, id: u32, data: *mut libc::c_void) -> io::Result<()> {
    // `PRJQUOTA`.
    let command = command << 8 | 2;
    // SAFETY: the callers' structures are those of their commands, and outlive the call.
    let mut answer = unsafe { libc::syscall(QUOTACTL_FD, place.as_raw_fd(), command, id, data) };
    let error = io::Error::last_os_error();
    if answer == 0 {
        return Ok(());
    }
    if error.raw_os_error() != Some(libc::ENOSYS) {
        return Err(error);
    }
    let device = block_device(place)?;
    // SAFETY: as above; the path ends with NUL.
    answer = unsafe { libc::syscall(libc::SYS_quotactl, command, device.as_ptr(), id, data) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The device that the file system of `place` is on.
fn block_device(place: &File) -> io::Result<std::ffi::CString> {
    let device = place.metadata()?.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let facts = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent"))?;
    let name = facts.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let name = name.ok_or(io::ErrorKind::NotFound)?;
    Ok(std::ffi::CString::new(format!("/dev/{name}"))?)
}
