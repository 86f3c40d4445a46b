//! Writing the content of an image's layer: every path is resolved inside the layer's directory, links of the
//! layer included.
//!
//! Owns descriptors and the kernel's flags.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, makedev, mkdirat, mknodat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, LinkatFlags, Uid, UnlinkatFlags, fchownat, linkat, symlinkat, unlinkat};

use super::open::openat2_patiently;

/// Links followed on the way to a directory, as the kernel limits them.
const MAX_LINKS: usize = 40;

const POINT: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC).union(OFlag::O_NOFOLLOW);

/// A directory below (or at) the root of a layer.
#[derive(Debug)]
pub(crate) struct LayerDir(OwnedFd);

/// A node without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpecialNode {
    Character { major: u32, minor: u32 },
    Block { major: u32, minor: u32 },
    Fifo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerNodeKind {
    Absent,
    Directory,
    /// Overlayfs' mark for a removed name: character device 0:0.
    Whiteout,
    Other,
}

/// Owner, mode and time of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeAttributes {
    pub uid: u32,
    pub gid: u32,
    /// Permission bits with setuid, setgid and sticky; `None` for a link, which has none.
    pub mode: Option<u32>,
    /// Modification time: seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
}

impl LayerDir {
    /// Opens the root of a layer; links in `path` itself are followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(nix::fcntl::open(path, flags, Mode::empty())?))
    }

    /// The directory `relative` below this root: links are followed as by a process with this root.
    ///
    /// # Errors
    /// The kernel's answer; `ENOTDIR` when it is no directory.
    pub(crate) fn directory(&self, relative: &Path) -> io::Result<Self> {
        if relative.as_os_str().is_empty() {
            return Ok(Self(self.0.try_clone()?));
        }
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match openat2_patiently(&self.0, relative, how) {
            // Kernels before 5.6 do not have the call; filters of older container runtimes refuse it.
            Err(Errno::ENOSYS | Errno::EPERM) => self.walk(relative),
            other => Ok(Self(other?)),
        }
    }

    /// As [`LayerDir::directory`], step by step. Nothing else writes below the root meanwhile.
    fn walk(&self, relative: &Path) -> io::Result<Self> {
        let mut way: Vec<OwnedFd> = vec![self.0.try_clone()?];
        let mut rest: Vec<PathBuf> = reversed(relative);
        let mut links = 0;
        while let Some(step) = rest.pop() {
            match step.components().next() {
                Some(Component::ParentDir) if way.len() > 1 => drop(way.pop()),
                Some(Component::RootDir) => way.truncate(1),
                Some(Component::Normal(name)) => {
                    let here = way.last().ok_or(Errno::ENOENT)?;
                    let next = openat(here, name, POINT, Mode::empty())?;
                    let metadata = File::from(next.try_clone()?).metadata()?;
                    if metadata.is_symlink() {
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(Errno::ELOOP.into());
                        }
                        rest.extend(reversed(Path::new(&readlinkat(here, name)?)));
                    } else if metadata.is_dir() {
                        way.push(next);
                    } else {
                        return Err(Errno::ENOTDIR.into());
                    }
                }
                _ => {}
            }
        }
        way.pop().map(Self).ok_or_else(|| Errno::ENOENT.into())
    }

    /// What `name` is; a link is not followed.
    pub(crate) fn kind(&self, name: &OsStr) -> io::Result<LayerNodeKind> {
        let found = match openat(&self.0, name, POINT, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(LayerNodeKind::Absent),
            other => File::from(other?),
        };
        let metadata = found.metadata()?;
        let is_device = nix::libc::mode_t::try_from(metadata.mode())
            .is_ok_and(|mode| SFlag::from_bits_truncate(mode) & SFlag::S_IFMT == SFlag::S_IFCHR);
        Ok(match (metadata.is_dir(), is_device && metadata.rdev() == 0) {
            (true, _) => LayerNodeKind::Directory,
            (_, true) => LayerNodeKind::Whiteout,
            _ => LayerNodeKind::Other,
        })
    }

    pub(crate) fn make_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(mkdirat(&self.0, name, Mode::from_bits_truncate(0o755))?)
    }

    /// Makes a new file, open for writing; an existing one is an error.
    pub(crate) fn make_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
    }

    /// Makes a symbolic link; its target is text.
    pub(crate) fn make_link(&self, name: &OsStr, target: &OsStr) -> io::Result<()> {
        Ok(symlinkat(target, &self.0, name)?)
    }

    /// Makes a device or pipe.
    pub(crate) fn make_node(&self, name: &OsStr, node: SpecialNode) -> io::Result<()> {
        let (kind, device) = match node {
            SpecialNode::Character { major, minor } => (SFlag::S_IFCHR, makedev(major.into(), minor.into())),
            SpecialNode::Block { major, minor } => (SFlag::S_IFBLK, makedev(major.into(), minor.into())),
            SpecialNode::Fifo => (SFlag::S_IFIFO, 0),
        };
        Ok(mknodat(&self.0, name, kind, Mode::S_IRUSR | Mode::S_IWUSR, device)?)
    }

    /// Gives the node `target_name` of `target` a second name here. A symlink is linked itself, not its
    /// target.
    pub(crate) fn make_hard_link(&self, name: &OsStr, target: &Self, target_name: &OsStr) -> io::Result<()> {
        Ok(linkat(&target.0, target_name, &self.0, name, LinkatFlags::empty())?)
    }

    /// Removes `name`, with all below it when it is a directory.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR | Errno::EPERM) => {}
            other => return Ok(other?),
        }
        let flags = POINT | OFlag::O_DIRECTORY;
        let directory = openat(&self.0, name, flags, Mode::empty())?;
        super::dir::remove_contents(&proc_path(&directory)).map_err(|error| error.source)?;
        Ok(unlinkat(&self.0, name, UnlinkatFlags::RemoveDir)?)
    }

    /// Sets owner, mode, extended attributes and time of `name`, in the order in which none undoes another.
    /// An empty name is this directory. An attribute that the file system does not support is returned by
    /// name.
    pub(crate) fn set_attributes(
        &self,
        name: &OsStr,
        attributes: &NodeAttributes,
        extended: &[(String, Vec<u8>)],
    ) -> Result<(), (io::Error, Option<String>)> {
        let plain = |errno: Errno| (io::Error::from(errno), None);
        let node = self.point(name).map_err(|error| (error, None))?;
        let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        fchownat(&node, "", Some(uid), Some(gid), AtFlags::AT_EMPTY_PATH).map_err(plain)?;
        let path = proc_path(&node);
        if let Some(mode) = attributes.mode {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
                .map_err(|error| (error, None))?;
        }
        for (key, value) in extended {
            set_extended(&path, key, value).map_err(|error| (error, Some(key.clone())))?;
        }
        self.set_time(name, attributes.mtime).map_err(|error| (error, None))
    }

    /// Sets the modification time of `name`; an empty name is this directory.
    pub(crate) fn set_time(&self, name: &OsStr, mtime: (i64, u32)) -> io::Result<()> {
        let node = self.point(name)?;
        // A 32-bit C library has no times after 2038.
        #[expect(
            clippy::useless_conversion,
            clippy::unnecessary_fallible_conversions,
            reason = "narrower there"
        )]
        let time = TimeSpec::new(
            mtime.0.try_into().unwrap_or(i32::MAX.into()),
            mtime.1.min(999_999_999).try_into().unwrap_or(0),
        );
        // `/proc/self/fd/N` leads to the very node of the descriptor and, when that is a link, no further.
        Ok(utimensat(nix::fcntl::AT_FDCWD, &proc_path(&node), &time, &time, UtimensatFlags::FollowSymlink)?)
    }

    /// Sets one extended attribute of this directory or of a name in it.
    pub(crate) fn set_extended(&self, name: &OsStr, key: &str, value: &[u8]) -> io::Result<()> {
        set_extended(&proc_path(&self.point(name)?), key, value)
    }

    /// Writes everything of this file system to the disk.
    pub(crate) fn sync_file_system(&self) -> io::Result<()> {
        // An `O_PATH` descriptor is refused.
        let directory = File::open(proc_path(&self.0))?;
        Ok(nix::unistd::syncfs(&directory)?)
    }

    fn point(&self, name: &OsStr) -> io::Result<OwnedFd> {
        if name.is_empty() {
            return self.0.try_clone();
        }
        Ok(openat(&self.0, name, POINT, Mode::empty())?)
    }
}

/// Whether copies of files share their blocks (reflinks): on Btrfs and XFS.
pub(crate) fn shares_blocks(path: &Path) -> io::Result<bool> {
    let kind = nix::sys::statfs::statfs(path)?.filesystem_type();
    // `XFS_SUPER_MAGIC`, which is not declared for musl.
    let xfs = nix::sys::statfs::FsType(0x5846_5342);
    Ok(kind == nix::sys::statfs::BTRFS_SUPER_MAGIC || kind == xfs)
}

fn reversed(path: &Path) -> Vec<PathBuf> {
    path.components().rev().map(|component| PathBuf::from(component.as_os_str())).collect()
}

fn proc_path(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

fn set_extended(path: &Path, key: &str, value: &[u8]) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let key = CString::new(key)?;
    // SAFETY: both names end with a zero, the value has the length that is passed, and all outlive the call.
    let answer =
        unsafe { nix::libc::setxattr(path.as_ptr(), key.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    Ok(Errno::result(answer).map(drop)?)
}

/// Whether a node has an extended attribute with this value, which must be short, such as a mark.
///
/// # Errors
/// The kernel's answer, except for a missing attribute.
pub(crate) fn has_extended(node: &super::dir::Handle, key: &str, value: &[u8]) -> io::Result<bool> {
    use std::os::fd::AsFd;
    let path = CString::new(format!("/proc/self/fd/{}", node.as_fd().as_raw_fd()))?;
    let key = CString::new(key)?;
    let mut found = [0_u8; 64];
    // SAFETY: both names end with a zero, the buffer has the length that is passed, and all outlive the call.
    let answer =
        unsafe { nix::libc::getxattr(path.as_ptr(), key.as_ptr(), found.as_mut_ptr().cast(), found.len()) };
    match Errno::result(answer) {
        Ok(length) => Ok(usize::try_from(length).ok().and_then(|length| found.get(..length)) == Some(value)),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP | Errno::ERANGE) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Free space of the file system that `path` is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    /// Bytes available to unprivileged users.
    pub bytes: u64,
    pub total_bytes: u64,
    /// Inodes; `u64::MAX` for file systems that make them as needed.
    pub inodes: u64,
    /// The total number of inodes; the maximum value where the file system does not count them.
    pub total_inodes: u64,
}

/// Free bytes and inodes of the file system at `path`.
#[expect(clippy::useless_conversion, reason = "narrower on 32-bit machines")]
pub(crate) fn free_space(path: &Path) -> io::Result<Free> {
    let answer = nix::sys::statvfs::statvfs(path)?;
    let fragment = u64::from(answer.fragment_size());
    let bytes = u64::from(answer.blocks_available()).saturating_mul(fragment);
    let total_bytes = u64::from(answer.blocks()).saturating_mul(fragment);
    let inodes = if answer.files() == 0 { u64::MAX } else { u64::from(answer.files_available()) };
    let total_inodes = if answer.files() == 0 { u64::MAX } else { u64::from(answer.files()) };
    Ok(Free { bytes, total_bytes, inodes, total_inodes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Concurrent renames make the kernel fail the lookup of a path with `..` in it.
    #[test]
    fn renames_elsewhere_do_not_fail_a_lookup() {
        let root = std::env::temp_dir().join(format!("edge-agent-layer-renames-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("in/a/b/c")).unwrap();
        std::fs::create_dir_all(root.join("one")).unwrap();
        let layer = LayerDir::open(&root.join("in")).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::rename(root.join("one"), root.join("two")).unwrap();
                    std::fs::rename(root.join("two"), root.join("one")).unwrap();
                }
            });
            let found =
                (0..20_000).try_for_each(|_| layer.directory(Path::new("a/b/../b/../b/c/../c")).map(drop));
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            found.unwrap();
        });
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn links_lead_inside_the_root_with_and_without_openat2() {
        let root = std::env::temp_dir().join(format!("edge-agent-layer-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("in/a/b")).unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::os::unix::fs::symlink("/a", root.join("in/absolute")).unwrap();
        std::os::unix::fs::symlink("../../../../a", root.join("in/up")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("in/loop")).unwrap();
        let layer = LayerDir::open(&root.join("in")).unwrap();
        let inode =
            |directory: &LayerDir| File::from(directory.0.try_clone().unwrap()).metadata().unwrap().ino();
        let expected = std::fs::metadata(root.join("in/a/b")).unwrap().ino();
        for path in ["a/b", "absolute/b", "up/b", "../../a/b", "up/../a/b"] {
            assert_eq!(inode(&layer.directory(Path::new(path)).unwrap()), expected, "{path}");
            assert_eq!(inode(&layer.walk(Path::new(path)).unwrap()), expected, "{path}");
        }
        for path in ["loop/b", "a/c"] {
            let errors = [layer.directory(Path::new(path)), layer.walk(Path::new(path))];
            let [one, two] = errors.map(|answer| answer.unwrap_err().raw_os_error());
            assert_eq!(one, two, "{path}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
