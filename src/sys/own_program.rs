//! The program we are, in a form nobody can write to.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::libc;

/// Our own executable on a read-only mount that no directory leads to. What is run from it (`/proc/self/fd/N`) cannot be
/// opened for writing through its `/proc/<pid>/exe`, not even when the process has ended: a container that gets hold of it
/// cannot replace the agent on the node.
///
/// # Errors
/// Linux before 5.12, or no right to mount.
pub fn read_only_exe() -> io::Result<OwnedFd> {
    let flags = libc::c_long::from(libc::OPEN_TREE_CLOEXEC) | libc::c_long::from(libc::OPEN_TREE_CLONE);
    // SAFETY: a path that ends with a zero; the descriptor is new.
    let tree = unsafe {
        let path = c"/proc/self/exe".as_ptr();
        match libc::syscall(libc::SYS_open_tree, libc::c_long::from(libc::AT_FDCWD), path, flags) {
            -1 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?),
        }
    };
    let attributes =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: an open descriptor, an empty path, and a structure of the size that is said.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::c_long::from(tree.as_raw_fd()),
            c"".as_ptr(),
            libc::c_long::from(libc::AT_EMPTY_PATH),
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if set == 0 { Ok(tree) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_from_it_cannot_be_written() {
        let Ok(program) = read_only_exe() else {
            // Only where the kernel cannot: elsewhere this must work.
            assert!(crate::sys::node::kernel_version() < (5, 12), "mount_setattr exists");
            return;
        };
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let refused = std::fs::File::options().write(true).open(&path).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        let said = std::process::Command::new(&path).arg("--list").output().unwrap();
        assert!(said.status.success(), "it is this test program");
    }
}
