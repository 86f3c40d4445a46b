//! Mounts the agent itself makes and removes: tmpfs, hugetlbfs, binds, NFS, and the propagation of its own
//! directory.
//!
//! Owns mount calls and the reading of `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags};

/// The result of sharing mounts below a directory with containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    AlreadyShared,
    MadeShared,
    /// Something is mounted below, which a mount over it would hide.
    InUse(PathBuf),
}

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MountLine {
    root: PathBuf,
    point: PathBuf,
    shared: bool,
    /// For example `ext4`.
    kind: String,
    /// Of its files.
    device: u64,
}

/// The first kernel that can keep a tmpfs out of swap.
const TMPFS_NOSWAP: (u32, u32) = (6, 4);

/// Mounts a tmpfs of at most `size_bytes` (`None`: the kernel's default, half of the memory) that is never
/// swapped out where the kernel supports that (Linux 6.4).
pub fn mount_tmpfs(target: &Path, size_bytes: Option<i64>) -> io::Result<()> {
    let size = size_bytes.map(|size| format!(",size={size}")).unwrap_or_default();
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let mount = |options: String| {
        nix::mount::mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options.as_str()))
    };
    if super::node::is_older_than(TMPFS_NOSWAP) {
        return Ok(mount(format!("mode=1777{size}"))?);
    }
    match mount(format!("mode=1777{size},noswap")) {
        Err(Errno::EINVAL) => Ok(mount(format!("mode=1777{size}"))?),
        other => Ok(other?),
    }
}

/// Makes `target` a tmpfs of at most `size_bytes` for root alone; one that is already mounted exactly there
/// is resized.
///
/// # Errors
/// The kernel's answer; `EBUSY` when something that is no tmpfs is mounted there.
pub(crate) fn ensure_private_tmpfs(target: &Path, size_bytes: u64) -> io::Result<()> {
    let target = target.canonicalize()?;
    let present = mount_lines()?.into_iter().rfind(|line| line.point == target);
    let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    match present {
        Some(line) if line.kind != "tmpfs" => return Err(Errno::EBUSY.into()),
        Some(_) => flags |= MsFlags::MS_REMOUNT,
        None => {}
    }
    let mount = |options: String| {
        nix::mount::mount(Some("tmpfs"), &target, Some("tmpfs"), flags, Some(options.as_str()))
    };
    let options = format!("mode=0750,size={size_bytes}");
    match mount(format!("{options},noswap")) {
        Err(Errno::EINVAL) => Ok(mount(options)?),
        other => Ok(other?),
    }
}

/// Mounts a hugetlbfs of pages of `page_bytes`.
///
/// # Errors
/// The kernel's answer; `EINVAL` when it has no pages of that size.
pub(crate) fn mount_hugetlbfs(target: &Path, page_bytes: i64) -> io::Result<()> {
    let options = format!("mode=0777,pagesize={page_bytes}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    nix::mount::mount(Some("nodev"), target, Some("hugetlbfs"), flags, Some(options.as_str()))?;
    Ok(())
}

/// Mounts the file system `kind` from `source`. The kernel's own options (`ro`, `noatime`...) become flags,
/// as mount(8) does it; the file system gets the others.
///
/// # Errors
/// The kernel's answer; `ENODEV` when it has no such file system.
pub(crate) fn mount_remote(kind: &str, source: &str, target: &Path, options: &[String]) -> io::Result<()> {
    let (flags, rest) = split_options(options);
    nix::mount::mount(Some(source), target, Some(kind), flags, Some(rest.join(",").as_str()))?;
    Ok(())
}

fn split_options(options: &[String]) -> (MsFlags, Vec<&str>) {
    let mut flags = MsFlags::empty();
    let mut rest = Vec::new();
    for option in options.iter().flat_map(|option| option.split(',')) {
        match option {
            "" | "rw" | "defaults" | "_netdev" | "auto" | "noauto" | "nofail" => {}
            "ro" => flags |= MsFlags::MS_RDONLY,
            "nosuid" => flags |= MsFlags::MS_NOSUID,
            "nodev" => flags |= MsFlags::MS_NODEV,
            "noexec" => flags |= MsFlags::MS_NOEXEC,
            "noatime" => flags |= MsFlags::MS_NOATIME,
            "nodiratime" => flags |= MsFlags::MS_NODIRATIME,
            "relatime" => flags |= MsFlags::MS_RELATIME,
            "sync" => flags |= MsFlags::MS_SYNCHRONOUS,
            other => rest.push(other),
        }
    }
    (flags, rest)
}

/// True for the kernel's "no such file system": the module is missing.
#[must_use]
pub(crate) fn is_unknown_file_system(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENODEV as i32)
}

/// True for the errors of an unsupported protocol version.
#[must_use]
pub(crate) fn is_protocol_unsupported(error: &io::Error) -> bool {
    let codes = [Errno::EPROTONOSUPPORT, Errno::EINVAL];
    codes.iter().any(|code| error.raw_os_error() == Some(*code as i32))
}

/// Binds `source` onto `target`, a directory on a directory or anything else on a file.
pub(crate) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    nix::mount::mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(())
}

/// Gives a bind mount options of its own. Those of file systems have no effect on one.
pub(crate) fn remount_bind(target: &Path, options: &[String]) -> io::Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | split_options(options).0;
    nix::mount::mount(None::<&str>, target, None::<&str>, flags, None::<&str>)?;
    Ok(())
}

/// Bind-mounts the file behind a descriptor: it cannot be replaced concurrently.
pub(crate) fn bind_descriptor(source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    bind(&PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd())), target)
}

/// Unmounts, detaching if it is busy. Its copies, and the mount it was copied from, stay mounted. Never waits
/// for a server.
pub fn unmount(target: &Path) -> io::Result<()> {
    detach(target, MntFlags::empty())
}

/// The same; requests that wait for a server end with an error.
pub(crate) fn unmount_by_force(target: &Path) -> io::Result<()> {
    detach(target, MntFlags::MNT_FORCE)
}

fn detach(target: &Path, more: MntFlags) -> io::Result<()> {
    let lines = mount_lines()?;
    let top = lines.iter().rev().find(|line| line.point == target);
    // Unmounting a shared mount would propagate to all its peers. The lookup of a remote mount could wait for
    // its server, which unmounting does not.
    if top.is_some_and(|line| line.shared && !line.kind.starts_with("nfs")) {
        let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        nix::mount::mount(None::<&str>, target, None::<&str>, private, None::<&str>)?;
    }
    nix::mount::umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW | more)?;
    Ok(())
}

/// Makes mounts below `directory` propagate to containers that request it, and theirs to the node (upstream:
/// `MakeRShared`).
pub(crate) fn ensure_shared(directory: &Path) -> io::Result<Sharing> {
    let directory = directory.canonicalize()?;
    let lines = mount_lines()?;
    let holder = lines
        .iter()
        .filter(|line| directory.starts_with(&line.point))
        .max_by_key(|line| line.point.components().count());
    if holder.is_some_and(|line| line.shared) {
        return Ok(Sharing::AlreadyShared);
    }
    if !lines.iter().any(|line| line.point == directory) {
        if let Some(line) = lines.into_iter().find(|line| line.point.starts_with(&directory)) {
            return Ok(Sharing::InUse(line.point));
        }
        bind(&directory, &directory)?;
    }
    let shared = MsFlags::MS_SHARED | MsFlags::MS_REC;
    nix::mount::mount(None::<&str>, &directory, None::<&str>, shared, None::<&str>)?;
    Ok(Sharing::MadeShared)
}

/// Unmounts with everything written to the disk; fails when it is busy.
pub(crate) fn unmount_written(target: &Path) -> io::Result<()> {
    Ok(nix::mount::umount2(target, MntFlags::UMOUNT_NOFOLLOW)?)
}

/// Every mount point, and the device of the files there.
pub(crate) fn mounted_devices() -> io::Result<Vec<(PathBuf, u64)>> {
    Ok(mount_lines()?.into_iter().map(|line| (line.point, line.device)).collect())
}

/// Every mount point of this mount namespace, as `/proc/self/mountinfo` lists them (later mounts last).
pub fn mount_points() -> io::Result<Vec<PathBuf>> {
    Ok(mount_lines()?.into_iter().map(|line| line.point).collect())
}

/// What each mount of this namespace shows, as a path in its file system.
pub fn mount_roots() -> io::Result<Vec<PathBuf>> {
    Ok(mount_lines()?.into_iter().map(|line| line.root).collect())
}

/// Whether something is mounted exactly there. Does not access the mounted file system, so that no server can
/// block it.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    let real = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize()?.join(name),
        _ => path.to_owned(),
    };
    Ok(mount_points()?.contains(&real))
}

fn mount_lines() -> io::Result<Vec<MountLine>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
}

fn parse_line(line: &[u8]) -> Option<MountLine> {
    let mut fields = line.split(|byte| *byte == b' ');
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
    let mut device = fields.nth(2)?.split(|byte| *byte == b':');
    let device = number(device.next()?)? << 32 | number(device.next()?)?;
    let root = PathBuf::from(unescape(fields.next()?));
    let point = PathBuf::from(unescape(fields.next()?));
    let shared = fields.by_ref().skip(1).take_while(|field| *field != b"-");
    let shared = shared.filter(|field| field.starts_with(b"shared:")).count() > 0;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(MountLine { root, point, shared, kind, device })
}

/// mountinfo writes blanks and backslashes as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten();
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = code {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_with_blanks_are_read_back_as_they_are() {
        let line = |text: &str| {
            let line = parse_line(text.as_bytes()).unwrap();
            (line.point.display().to_string(), line.shared, line.kind)
        };
        let shared = line("36 35 98:0 / /mnt/a\\040b\\134c rw shared:1 master:2 - ext4 /dev/sda rw");
        assert_eq!(shared, ("/mnt/a b\\c".to_owned(), true, "ext4".to_owned()));
        let private = line("37 36 0:5 / /proc rw - proc shared:x rw");
        assert_eq!(private, ("/proc".to_owned(), false, "proc".to_owned()));
        assert_eq!(parse_line(b""), None);
    }

    #[test]
    fn options_of_the_kernel_become_flags_and_the_others_stay() {
        let options =
            ["ro,hard".to_owned(), "noatime".to_owned(), "vers=4.1".to_owned(), "_netdev".to_owned()];
        let (flags, rest) = split_options(&options);
        assert_eq!(flags, MsFlags::MS_RDONLY | MsFlags::MS_NOATIME);
        assert_eq!(rest, ["hard", "vers=4.1"]);
    }

    #[test]
    fn unmounting_a_shared_bind_keeps_mounts_of_the_original() {
        let root = std::env::temp_dir().join(format!("edge-agent-unshare-{}", std::process::id()));
        let (original, copy) = (root.join("original"), root.join("copy"));
        for dir in [&original, &copy] {
            std::fs::create_dir_all(dir).unwrap();
        }
        bind(&original, &original).unwrap();
        // Private first: a bind from a shared mount, as a machine's root often is, would join its peer group.
        for propagation in [MsFlags::MS_PRIVATE, MsFlags::MS_SHARED] {
            nix::mount::mount(None::<&str>, &original, None::<&str>, propagation, None::<&str>).unwrap();
        }
        bind(&original, &copy).unwrap();
        let below = original.join("below");
        std::fs::create_dir_all(&below).unwrap();
        mount_tmpfs(&below, Some(1 << 20)).unwrap();
        let travelled = is_mount_point(&copy.join("below")).unwrap();
        unmount(&copy).unwrap();
        let stays = is_mount_point(&below).unwrap();
        unmount(&original).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert!(travelled, "the mount below travelled to the copy, or the test tests nothing");
        assert!(stays);
    }

    #[test]
    fn ensure_shared_is_idempotent_and_refuses_with_mounts_below() {
        let root = std::env::temp_dir().join(format!("edge-agent-shared-{}", std::process::id()));
        let below = root.join("private").join("below");
        std::fs::create_dir_all(&below).unwrap();
        // A separate mount, so that the test does not depend on how the machine mounts its root.
        bind(&root, &root).unwrap();
        nix::mount::mount(None::<&str>, &root, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        mount_tmpfs(&below, Some(1 << 20)).unwrap();
        let private = root.join("private");
        let refused = ensure_shared(&private).unwrap();
        unmount(&below).unwrap();
        let made = ensure_shared(&private).unwrap();
        let again = ensure_shared(&below).unwrap();
        unmount(&private).unwrap();
        unmount(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(refused, Sharing::InUse(below));
        assert_eq!((made, again), (Sharing::MadeShared, Sharing::AlreadyShared));
    }
}
