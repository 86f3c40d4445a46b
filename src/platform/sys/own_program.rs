//! The running program: in a form that cannot be written to, and under another command line.

use std::ffi::{CString, OsStr};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nix::libc;

use super::children::stat_field;

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

/// Replaces the command line of this process as others see it (`/proc/<pid>/cmdline`). It cannot become longer: what does not
/// fit is cut off. Does nothing where the kernel does not tell where it is, as an emulator's.
pub(crate) fn set_command_line(words: &[&OsStr]) {
    let Some(range) = command_line() else { return };
    let mut bytes: Vec<u8> = words.join(OsStr::new("\0")).into_vec();
    bytes.truncate(range.len().saturating_sub(1));
    bytes.resize(range.len(), 0);
    // SAFETY: the kernel's answer, of this very process: the memory of its arguments, which can be written, stays as long as the
    // process does, and nothing else refers to. The last byte remains a NUL, so each argument that begins in it still ends.
    unsafe {
        let place = std::ptr::with_exposed_provenance_mut::<u8>(range.start);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, range.len());
    }
}

/// The addresses of this process's command line.
fn command_line() -> Option<Range<usize>> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let range = stat_field(&stat, 48)?..stat_field(&stat, 49)?;
    (range.start > 0 && range.start < range.end).then_some(range)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
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

    #[test]
    fn the_command_line_is_replaced_as_far_as_it_fits() {
        use crate::platform::sys::clone::{CloneKind, Side, exit, fork, wait};
        let shown = || std::fs::read("/proc/self/cmdline").unwrap();
        let room = shown().len();
        let long = OsString::from("x".repeat(room));
        let check = || {
            set_command_line(&["a".as_ref(), "b c".as_ref()]);
            let is_short = shown().starts_with(b"a\0b c\0\0") && shown().len() == room;
            set_command_line(&[&long]);
            is_short && shown() == [long.as_bytes()[1..].to_vec(), vec![0]].concat()
        };
        match fork(CloneKind::default()).unwrap() {
            Side::Child => exit(i32::from(!check())),
            Side::Parent(pid) => assert_eq!(wait(pid).unwrap(), 0),
        }
    }
}
