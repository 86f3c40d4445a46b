//! The identity of the directory at a path, as a text that stays the same across boots.
//!
//! Owns the choice of stable attributes.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::libc;
use nix::sys::statvfs::statvfs;

/// Names the directory, symlinks followed: its inode number, its birth time and the file system's id, as far
/// as they exist. Two texts are equal exactly when all of these are.
///
/// Device numbers change across boots, so they are used only for want of something better: a birth time also
/// tells directories on different file systems apart, and a recreated directory from the removed one, inode
/// number reused or not. The file system's id is derived from its UUID on ext4 and btrfs. On xfs, vfat and
/// f2fs it is the device number again, which is left out where there is a birth time.
pub(crate) fn directory_identity(path: &Path) -> io::Result<String> {
    let metadata = std::fs::metadata(path)?;
    let born = birth_time(path)?;
    let birth = born.map(|(seconds, nanos)| format!(" born={seconds}.{nanos:09}")).unwrap_or_default();
    // musl's statvfs has these 32 bits alone.
    let id = statvfs(path)?.filesystem_id() & 0xffff_ffff;
    let is_known = born.is_none() || id != device_as_id(metadata.dev());
    let file_system = if is_known { format!(" fs={id:x}") } else { String::new() };
    Ok(format!("inode={}{birth}{file_system}", metadata.ino()))
}

/// As file systems make an id of a device number.
fn device_as_id(device: u64) -> libc::c_ulong {
    let (major, minor) = (libc::major(device), libc::minor(device));
    libc::c_ulong::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// The inode's birth time. Not every file system records it, kernels before 4.11 cannot return it, and a file
/// system's root may report 0. The standard library supports it on glibc only.
fn birth_time(path: &Path) -> io::Result<Option<(i64, u32)>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: plain data, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (libc::AT_STATX_SYNC_AS_STAT, libc::STATX_BTIME);
    // SAFETY: the path ends with NUL and the buffer is of the call's type; both live over the call.
    let result =
        unsafe { libc::syscall(libc::SYS_statx, libc::AT_FDCWD, path.as_ptr(), flags, mask, &raw mut found) };
    let born = (found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
    Ok((result == 0 && found.stx_mask & libc::STATX_BTIME != 0 && born != (0, 0)).then_some(born))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_directory_is_itself_whatever_it_holds_and_not_its_copy() {
        let root = std::env::temp_dir().join(format!("edge-agent-identity-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("a")).unwrap();
        fs::create_dir_all(root.join("b")).unwrap();
        let identity = |name: &str| directory_identity(&root.join(name)).unwrap();
        let first = identity("a");
        fs::write(root.join("a/file"), "x").unwrap();
        assert_eq!(identity("a"), first, "with another content");
        assert_ne!(identity("b"), first);
        fs::rename(root.join("a"), root.join("away")).unwrap();
        assert_eq!(identity("away"), first, "under another name");
        std::os::unix::fs::symlink("away", root.join("link")).unwrap();
        assert_eq!(identity("link"), first, "by a link");
        fs::create_dir(root.join("a")).unwrap();
        assert_ne!(identity("a"), first, "made again");
        assert!(directory_identity(&root.join("none")).is_err());
        fs::remove_dir_all(&root).unwrap();
    }

    /// On every file system whose kernel records birth times; the tests' own has to be one.
    #[test]
    fn a_directory_made_again_with_the_same_inode_is_another_one() {
        let root = std::env::temp_dir().join(format!("edge-agent-reuse-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        let before = directory_identity(&root).unwrap();
        assert!(before.contains(" born="), "{before}");
        // Birth times have the resolution of the kernel's timer.
        let made_again = (0..100_000).find(|_| {
            fs::remove_dir(&root).unwrap();
            fs::create_dir(&root).unwrap();
            directory_identity(&root).unwrap() != before
        });
        fs::remove_dir(&root).unwrap();
        assert!(made_again.is_some(), "{before}");
    }
}
