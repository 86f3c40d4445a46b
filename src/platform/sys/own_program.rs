//! The running program, in a form that cannot be written to.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;

/// The agent's own executable as [`read_only`] makes it.
///
/// # Errors
/// Linux before 5.12, or no right to mount.
pub(crate) fn read_only_exe() -> io::Result<OwnedFd> {
    read_only(Path::new("/proc/self/exe"))
}

/// A program on a read-only mount that is attached nowhere. When it is run from this descriptor
/// (`/proc/self/fd/N`), it cannot be opened for writing through its `/proc/<pid>/exe`, not even when the
/// process has ended: a container that gets hold of it cannot replace the agent on the node.
///
/// # Errors
/// Linux before 5.12, or no right to mount.
pub fn read_only(program: &Path) -> io::Result<OwnedFd> {
    let program = CString::new(program.as_os_str().as_bytes())?;
    let flags = libc::c_ulong::from(libc::OPEN_TREE_CLOEXEC | libc::OPEN_TREE_CLONE);
    // SAFETY: a path that ends with a zero; the descriptor is new.
    let tree = unsafe {
        match libc::syscall(libc::SYS_open_tree, libc::c_long::from(libc::AT_FDCWD), program.as_ptr(), flags)
        {
            -1 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?),
        }
    };
    let attributes =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: an open descriptor, an empty path, and a structure of the given size.
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
    use std::fs::File;
    use std::os::unix::fs::OpenOptionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// The attack: keeps `/proc/<pid>/exe` open and opens it for writing once the process is gone. Returns
    /// the result.
    fn write_when_gone(program: &str) -> io::Result<File> {
        let mut process = Command::new(program).arg0("busybox").args(["sleep", "1000"]).spawn().unwrap();
        let exe = format!("/proc/{}/exe", process.id());
        let kept = File::options().read(true).custom_flags(libc::O_PATH).open(&exe).unwrap();
        let busy = File::options().write(true).open(&exe).unwrap_err();
        assert!([libc::ETXTBSY, libc::EROFS].map(Some).contains(&busy.raw_os_error()), "{busy}");
        process.kill().unwrap();
        process.wait().unwrap();
        File::options().write(true).open(format!("/proc/self/fd/{}", kept.as_raw_fd()))
    }

    #[test]
    fn what_runs_from_it_cannot_be_written_even_when_it_has_ended() {
        let copy = std::env::temp_dir().join(format!("edge-agent-program-{}", std::process::id()));
        std::fs::copy("/bin/busybox", &copy).unwrap();
        // Without it the attack succeeds, which proves that the test tries the right thing.
        assert!(write_when_gone(copy.to_str().unwrap()).is_ok());
        match read_only(&copy) {
            Ok(program) => {
                let refused = write_when_gone(&format!("/proc/self/fd/{}", program.as_raw_fd())).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
                assert!(read_only_exe().is_ok());
            }
            // Only where the kernel does not support it.
            Err(error) => assert!(crate::platform::sys::node::kernel_version() < (5, 12), "{error}"),
        }
        std::fs::remove_file(&copy).unwrap();
    }
}
