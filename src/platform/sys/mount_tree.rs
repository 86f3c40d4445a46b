//! Mounts by descriptor: made detached, given their attributes, attached to another descriptor's directory.
//! No path is resolved between a check and its use.
//!
//! Owns descriptors of mounts. Needs Linux 5.2, attributes of whole trees and id maps 5.12.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, MsFlags};

const OPEN_TREE_CLONE: u32 = 1;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: u32 = 0x40;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_SET_FD: u32 = 5;
const FSCONFIG_CMD_CREATE: u32 = 6;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// Attributes of a mount, as mount_setattr(2) has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountAttributes {
    pub set: u64,
    pub clear: u64,
}

/// `MOUNT_ATTR_RDONLY`.
pub(crate) const READ_ONLY: u64 = 0x1;
/// `MOUNT_ATTR_NOSUID`.
pub(crate) const NO_SUID: u64 = 0x2;
/// `MOUNT_ATTR_NODEV`.
pub(crate) const NO_DEV: u64 = 0x4;
/// `MOUNT_ATTR_NOEXEC`.
pub(crate) const NO_EXEC: u64 = 0x8;
/// `MOUNT_ATTR_NOATIME`.
pub(crate) const NO_ATIME: u64 = 0x10;
/// `MOUNT_ATTR_STRICTATIME`.
pub(crate) const STRICT_ATIME: u64 = 0x20;
/// All bits of the access time modes.
pub(crate) const ATIME: u64 = 0x70;
/// `MOUNT_ATTR_NODIRATIME`.
pub(crate) const NO_DIRATIME: u64 = 0x80;
/// `MOUNT_ATTR_NOSYMFOLLOW`.
pub(crate) const NO_SYMFOLLOW: u64 = 0x0020_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// Not at all.
    Private,
    /// From the node to the container.
    Slave,
    Shared,
    /// Not at all, and it cannot be bound.
    Unbindable,
}

impl Propagation {
    fn flag(self) -> MsFlags {
        match self {
            Self::Private => MsFlags::MS_PRIVATE,
            Self::Slave => MsFlags::MS_SLAVE,
            Self::Shared => MsFlags::MS_SHARED,
            Self::Unbindable => MsFlags::MS_UNBINDABLE,
        }
    }

    /// The same, as wide as mount_setattr(2) has it on every architecture.
    fn bits(self) -> u64 {
        match self {
            Self::Unbindable => 1 << 17,
            Self::Private => 1 << 18,
            Self::Slave => 1 << 19,
            Self::Shared => 1 << 20,
        }
    }
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A mount; detached ones end with their descriptor.
#[derive(Debug)]
pub(crate) struct Mount(OwnedFd);

impl AsFd for Mount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Mount> for OwnedFd {
    fn from(mount: Mount) -> Self {
        mount.0
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn owned(answer: libc::c_long) -> io::Result<OwnedFd> {
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(answer).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    // SAFETY: every caller passes the answer of a call that makes a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn done(answer: libc::c_long) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn proc_path(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// A new file system, being configured.
#[derive(Debug)]
pub(crate) struct NewFileSystem(OwnedFd);

impl NewFileSystem {
    /// Of `kind`, for example `tmpfs`.
    ///
    /// # Errors
    /// The kernel's answer; `ENODEV` when it has no such file system.
    pub(crate) fn open(kind: &str) -> io::Result<Self> {
        let kind = CString::new(kind)?;
        // SAFETY: the string outlives the call. 1 is FSOPEN_CLOEXEC.
        Ok(Self(owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 1) })?))
    }

    /// An option with a value.
    ///
    /// # Errors
    /// The kernel's answer; `EINVAL` also for values over 255 bytes.
    pub(crate) fn set(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let (key, value) = (CString::new(key)?, CString::new(value)?);
        let fd = self.0.as_raw_fd();
        // SAFETY: both strings outlive the call.
        done(unsafe {
            libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr(), 0)
        })
    }

    /// An option without a value.
    pub(crate) fn set_flag(&self, key: &str) -> io::Result<()> {
        let key = CString::new(key)?;
        let fd = self.0.as_raw_fd();
        // SAFETY: the string outlives the call, and a flag has no value.
        done(unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_SET_FLAG, key.as_ptr(), 0_usize, 0) })
    }

    pub(crate) fn set_descriptor(&self, key: &str, value: BorrowedFd<'_>) -> io::Result<()> {
        let key = CString::new(key)?;
        let (fd, value) = (self.0.as_raw_fd(), value.as_raw_fd());
        // SAFETY: the string outlives the call, and this command takes no other value than the number.
        done(unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_SET_FD, key.as_ptr(), 0_usize, value) })
    }

    /// Makes it, and a detached mount of it.
    pub(crate) fn mount(self, attributes: u64) -> io::Result<Mount> {
        let fd = self.0.as_raw_fd();
        // SAFETY: the command takes no key and no value.
        done(unsafe { libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, 0_usize, 0_usize, 0) })?;
        // The syscall's argument is 32 bits wide, as all attributes a new mount can have are.
        let attributes = u32::try_from(attributes).unwrap_or(u32::MAX);
        // SAFETY: numbers only. 1 is FSMOUNT_CLOEXEC.
        Ok(Mount(owned(unsafe { libc::syscall(libc::SYS_fsmount, fd, 1, attributes) })?))
    }
}

impl Mount {
    /// A detached copy of the mount at `path`, one of the agent's own (links are followed), with the mounts
    /// below it if `recursive`.
    pub(crate) fn copy_of(path: &Path, recursive: bool) -> io::Result<Self> {
        let path = c_path(path)?;
        let flags = OPEN_TREE_CLONE
            | libc::O_CLOEXEC.cast_unsigned()
            | if recursive { libc::AT_RECURSIVE.cast_unsigned() } else { 0 };
        // SAFETY: the string outlives the call.
        Ok(Self(owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })?))
    }

    /// A detached copy of the mount behind a descriptor: a file, a directory, or the root of a mount.
    pub(crate) fn copy_of_descriptor(fd: BorrowedFd<'_>, recursive: bool) -> io::Result<Self> {
        let flags = OPEN_TREE_CLONE
            | libc::O_CLOEXEC.cast_unsigned()
            | libc::AT_EMPTY_PATH.cast_unsigned()
            | if recursive { libc::AT_RECURSIVE.cast_unsigned() } else { 0 };
        let fd = fd.as_raw_fd();
        // SAFETY: the string is a constant.
        Ok(Self(owned(unsafe { libc::syscall(libc::SYS_open_tree, fd, c"".as_ptr(), flags) })?))
    }

    /// The topmost mount at `path`, without copying it.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let path = c_path(path)?;
        let flags = libc::O_CLOEXEC;
        // SAFETY: the string outlives the call.
        Ok(Self(owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })?))
    }

    /// Attaches it at `target`. This descriptor then refers to the attached mount.
    pub(crate) fn attach(&self, target: BorrowedFd<'_>) -> io::Result<()> {
        let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
        let (from, to) = (self.0.as_raw_fd(), target.as_raw_fd());
        // SAFETY: the strings are constants.
        done(unsafe { libc::syscall(libc::SYS_move_mount, from, c"".as_ptr(), to, c"".as_ptr(), flags) })
    }

    /// Changes attributes, of everything mounted below too if `recursive`. For kernels before 5.12 it must be
    /// attached, and `recursive` is an error.
    ///
    /// # Errors
    /// The kernel's answer; `ENOSYS` for what it cannot do.
    pub(crate) fn set_attributes(&self, attributes: MountAttributes, recursive: bool) -> io::Result<()> {
        if attributes == MountAttributes::default() {
            return Ok(());
        }
        let clear = attributes.clear | if attributes.set & ATIME == 0 { 0 } else { ATIME };
        let change = MountAttr { attr_set: attributes.set, attr_clr: clear, propagation: 0, userns_fd: 0 };
        match self.change(&change, recursive) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) && !recursive => {
                self.remount(attributes)
            }
            other => other,
        }
    }

    fn change(&self, change: &MountAttr, recursive: bool) -> io::Result<()> {
        let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
        let fd = self.0.as_raw_fd();
        // SAFETY: the structure outlives the call and its size is given; the string is a constant.
        done(unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                fd,
                c"".as_ptr(),
                flags,
                std::ptr::from_ref(change),
                size_of::<MountAttr>(),
            )
        })
    }

    /// The older call, which sets all attributes at once: existing ones are kept.
    fn remount(&self, attributes: MountAttributes) -> io::Result<()> {
        let now = nix::sys::statvfs::fstatvfs(&self.0)?.flags().bits();
        let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
        for (old, new, bit) in [
            (libc::ST_RDONLY, MsFlags::MS_RDONLY, READ_ONLY),
            (libc::ST_NOSUID, MsFlags::MS_NOSUID, NO_SUID),
            (libc::ST_NODEV, MsFlags::MS_NODEV, NO_DEV),
            (libc::ST_NOEXEC, MsFlags::MS_NOEXEC, NO_EXEC),
            (libc::ST_NOATIME, MsFlags::MS_NOATIME, NO_ATIME),
            (libc::ST_NODIRATIME, MsFlags::MS_NODIRATIME, NO_DIRATIME),
        ] {
            if (now & old != 0 && attributes.clear & bit == 0) || attributes.set & bit != 0 {
                flags |= new;
            }
        }
        if attributes.set & STRICT_ATIME != 0 {
            flags |= MsFlags::MS_STRICTATIME;
        }
        nix::mount::mount(None::<&str>, &proc_path(self.as_fd()), None::<&str>, flags, None::<&str>)?;
        Ok(())
    }

    /// Changes the propagation. For kernels before 5.12 it must be attached.
    pub(crate) fn set_propagation(&self, propagation: Propagation, recursive: bool) -> io::Result<()> {
        let change = MountAttr { attr_set: 0, attr_clr: 0, propagation: propagation.bits(), userns_fd: 0 };
        match self.change(&change, recursive) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                set_propagation(&proc_path(self.as_fd()), propagation, recursive)
            }
            other => other,
        }
    }

    /// Shows files' owners as the user namespace maps them. Detached mounts only, Linux 5.12.
    ///
    /// # Errors
    /// The kernel's answer; `EINVAL` when the file system cannot.
    pub(crate) fn map_ids(&self, users: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
        let userns_fd = u64::from(users.as_raw_fd().cast_unsigned());
        let change = MountAttr { attr_set: MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd };
        self.change(&change, recursive)
    }
}

/// Changes the propagation of mounts at and below `path`.
pub(crate) fn set_propagation(path: &Path, propagation: Propagation, recursive: bool) -> io::Result<()> {
    let mut flags = propagation.flag();
    if recursive {
        flags |= MsFlags::MS_REC;
    }
    nix::mount::mount(None::<&str>, path, None::<&str>, flags, None::<&str>)?;
    Ok(())
}

/// Mounts an overlay with the options in one string; for kernels that do not accept single layers (before
/// 6.8).
pub(crate) fn mount_overlay(target: &Path, options: &[u8]) -> io::Result<()> {
    let options = CString::new(options)?;
    let none = MsFlags::empty();
    nix::mount::mount(Some("overlay"), target, Some("overlay"), none, Some(options.as_c_str()))?;
    Ok(())
}

/// Makes the mount `root` the root directory of this mount namespace, removes all other mounts, and changes
/// to it.
pub(crate) fn enter_root(root: BorrowedFd<'_>) -> io::Result<()> {
    let here = Path::new(".");
    let old = nix::fcntl::open(
        "/",
        nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_DIRECTORY | nix::fcntl::OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::empty(),
    )?;
    nix::unistd::fchdir(root)?;
    // The old root ends up on top of the new one, at the same place: no directory has to be found or made for
    // it.
    nix::unistd::pivot_root(here, here)?;
    nix::unistd::fchdir(&old)?;
    // Unmounting must not propagate to the node.
    set_propagation(here, Propagation::Private, true)?;
    nix::mount::umount2(here, MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")?;
    Ok(())
}

/// Makes a directory of this mount namespace this process's root, and changes to it.
pub(crate) fn change_root(root: BorrowedFd<'_>) -> io::Result<()> {
    nix::unistd::fchdir(root)?;
    Ok(nix::unistd::chroot(".")?)
}

/// True for the errors of a missing call, option or file system.
#[must_use]
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    let codes = [Errno::ENOSYS, Errno::EINVAL, Errno::ENODEV, Errno::EOPNOTSUPP];
    codes.iter().any(|code| error.raw_os_error() == Some(*code as i32))
}
