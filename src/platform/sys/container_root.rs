//! A container's file system, before and while others can write to it: every path is resolved as the
//! container would, with its root as `/`, by the kernel, and the result is used by descriptor.
//!
//! Owns descriptors. Needs openat2 (Linux 5.6).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag};
use nix::libc;
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat, mknodat};
use nix::unistd::{Gid, Uid, fchownat, symlinkat};

use super::mount_tree::{NO_DEV, NO_EXEC, NO_SUID, NewFileSystem};
use super::open::openat2_patiently;

/// How many dangling links are followed one after another while a file is made.
const MAX_DANGLING: usize = 16;

/// The root directory of a container, or another directory that must not be left.
#[derive(Debug)]
pub(crate) struct ContainerRoot(OwnedFd);

impl AsFd for ContainerRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorFacts {
    pub is_directory: bool,
    pub is_link: bool,
    pub is_file: bool,
    /// Major and minor number of a character device.
    pub character_device: Option<(u32, u32)>,
    /// A pipe or a socket, by name or not.
    pub is_pipe_or_socket: bool,
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    pub inode: u64,
}

/// The file systems whose files have special effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Proc,
    DevPts,
    Other,
}

/// The kernel's type differs in width between machines; the number does not.
const DEVPTS_SUPER_MAGIC: nix::sys::statfs::FsType = nix::sys::statfs::FsType(0x1cd1);

pub(crate) fn file_system(fd: BorrowedFd<'_>) -> io::Result<FileSystem> {
    let kind = nix::sys::statfs::fstatfs(fd)?.filesystem_type();
    Ok(if kind == nix::sys::statfs::PROC_SUPER_MAGIC {
        FileSystem::Proc
    } else if kind == DEVPTS_SUPER_MAGIC {
        FileSystem::DevPts
    } else {
        FileSystem::Other
    })
}

pub(crate) fn facts(fd: BorrowedFd<'_>) -> io::Result<DescriptorFacts> {
    let stat = fstat(fd)?;
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    let number = |part: u64| u32::try_from(part).unwrap_or(u32::MAX);
    let device = (number(nix::sys::stat::major(stat.st_rdev)), number(nix::sys::stat::minor(stat.st_rdev)));
    Ok(DescriptorFacts {
        is_directory: kind == SFlag::S_IFDIR,
        is_link: kind == SFlag::S_IFLNK,
        is_file: kind == SFlag::S_IFREG,
        character_device: (kind == SFlag::S_IFCHR).then_some(device),
        is_pipe_or_socket: kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode & 0o7777,
        inode: stat.st_ino,
    })
}

/// Changes owner and group of an open file.
pub(crate) fn set_owner(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    fchownat(fd, "", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::AT_EMPTY_PATH)?;
    Ok(())
}

/// Points at a path on the node; links are followed.
pub(crate) fn point_at(path: &Path) -> io::Result<OwnedFd> {
    Ok(nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?)
}

impl ContainerRoot {
    /// A directory of the node as root.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(nix::fcntl::open(path, flags, Mode::empty())?))
    }

    /// The descriptor's directory as root.
    pub(crate) fn below(directory: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(directory.try_clone_to_owned()?))
    }

    /// The file at `path`, opened with `flags`. Links are followed as in the container, the magic ones of
    /// procfs never.
    ///
    /// # Errors
    /// The kernel's answer; `ELOOP` for a magic link.
    pub(super) fn resolve(&self, path: &Path, flags: OFlag, mode: Mode) -> io::Result<OwnedFd> {
        let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(resolve);
        Ok(openat2_patiently(&self.0, path, how)?)
    }

    /// Points at what is at `path`.
    pub(crate) fn point(&self, path: &Path) -> io::Result<OwnedFd> {
        self.resolve(path, OFlag::O_PATH, Mode::empty())
    }

    /// Points at what is at `path`, also if it is a link.
    pub(crate) fn point_unfollowed(&self, path: &Path) -> io::Result<OwnedFd> {
        self.resolve(path, OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty())
    }

    /// Opens the directory `path`, which is made with what is missing above it. A dangling link is followed:
    /// the directory is made at its target, in this root.
    ///
    /// # Errors
    /// The kernel's answer; `ENOTDIR` when another kind of file is in the way.
    pub(crate) fn ensure_dir(&self, path: &Path, mode: u32) -> io::Result<OwnedFd> {
        self.ensure_dir_through(path, mode, MAX_DANGLING)
    }

    /// Makes one directory in an existing one; the path to it may contain `..`.
    ///
    /// # Errors
    /// The kernel's answer; `EEXIST` when something exists there.
    pub(crate) fn make_dir(&self, path: &Path, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::EEXIST.into());
        };
        let above = self.resolve(above, flags, Mode::empty())?;
        mkdirat(&above, name, Mode::from_bits_truncate(mode))?;
        self.resolve(path, flags, Mode::empty())
    }

    fn ensure_dir_through(&self, path: &Path, mode: u32, links: usize) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let mut sofar = PathBuf::from("/");
        let mut current = self.resolve(&sofar, flags, Mode::empty())?;
        for name in names(path)? {
            let above = sofar.clone();
            sofar.push(name);
            current = match self.resolve(&sofar, flags, Mode::empty()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // One level below an open directory: a single name, so nothing is followed.
                    match mkdirat(&current, name, Mode::from_bits_truncate(mode)) {
                        Ok(()) => self.resolve(&sofar, flags, Mode::empty())?,
                        Err(Errno::EEXIST) => match Self::dangling(&current, name, &above, links)? {
                            Some(target) => self.ensure_dir_through(&target, mode, links - 1)?,
                            None => self.resolve(&sofar, flags, Mode::empty())?,
                        },
                        Err(errno) => return Err(errno.into()),
                    }
                }
                other => other?,
            };
        }
        Ok(current)
    }

    /// Opens the file `path`, made empty if it does not exist. Dangling links as in
    /// [`ContainerRoot::ensure_dir`].
    pub(crate) fn ensure_file(&self, path: &Path) -> io::Result<OwnedFd> {
        self.ensure_file_through(path, MAX_DANGLING)
    }

    fn ensure_file_through(&self, path: &Path, links: usize) -> io::Result<OwnedFd> {
        match self.point(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let (parent, name) = self.parent_of(path)?;
        match mknodat(&parent, name, SFlag::S_IFREG, Mode::from_bits_truncate(0o644), 0) {
            Ok(()) => self.point(path),
            Err(Errno::EEXIST) => {
                let above = path.parent().unwrap_or(Path::new("/"));
                match Self::dangling(&parent, name, above, links)? {
                    Some(target) => self.ensure_file_through(&target, links - 1),
                    None => self.point(path),
                }
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// The target of the link `name` in `parent` (which `above` leads to), as a clean path in this root;
    /// `None` if it is no link.
    fn dangling(parent: &OwnedFd, name: &OsStr, above: &Path, links: usize) -> io::Result<Option<PathBuf>> {
        match nix::fcntl::readlinkat(parent, name) {
            Ok(_) if links == 0 => Err(Errno::ELOOP.into()),
            Ok(target) => Ok(Some(clean(&above.join(target)))),
            Err(_) => Ok(None),
        }
    }

    /// Makes a device node, pipe or socket at `path` with exactly this owner and mode. An existing file is
    /// replaced unless it is a directory.
    pub(crate) fn make_node(&self, path: &Path, node: DeviceNode) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        let kind = match node.kind {
            NodeKind::Character => SFlag::S_IFCHR,
            NodeKind::Block => SFlag::S_IFBLK,
            NodeKind::Pipe => SFlag::S_IFIFO,
        };
        let mode = Mode::from_bits_truncate(node.mode);
        let device = nix::sys::stat::makedev(node.major.into(), node.minor.into());
        let make = || {
            // The umask must not apply, and no mode is changed afterwards: by name that would follow a link.
            let umask = nix::sys::stat::umask(Mode::empty());
            let outcome = mknodat(&parent, name, kind, mode, device);
            nix::sys::stat::umask(umask);
            outcome
        };
        let is_same = |stat: &FileStat| {
            SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == kind
                && (kind == SFlag::S_IFIFO || stat.st_rdev == device)
        };
        match make() {
            Err(Errno::EEXIST) if fstat(&parent)?.st_dev != fstat(&self.0)?.st_dev => {
                // A mount. What is in it may be the node's own, or a user's: it is neither replaced nor changed.
                let there = fstatat(&parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
                if is_same(&there) {
                    return Ok(());
                }
                let problem = "another file is there, in a volume: mount the device elsewhere";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
            }
            Err(Errno::EEXIST) => {
                nix::unistd::unlinkat(&parent, name, nix::unistd::UnlinkatFlags::NoRemoveDir)?;
                make()?;
            }
            other => other?,
        }
        // In a volume the name may be replaced concurrently: the file is opened, and checked before it is
        // changed.
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let found = nix::fcntl::openat(&parent, name, flags, Mode::empty())?;
        let stat = fstat(&found)?;
        if !is_same(&stat) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "replaced while being created"));
        }
        set_owner(found.as_fd(), node.uid, node.gid)
    }

    /// A symbolic link at `path`, unless a file exists there.
    pub(crate) fn ensure_link(&self, path: &Path, content: &str) -> io::Result<()> {
        let (parent, name) = self.parent_of(path)?;
        match symlinkat(content, &parent, name) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads a regular file of at most `limit` bytes; a longer one is cut. Files whose opening could block or
    /// have effects are not opened.
    pub(crate) fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        if !facts(self.point(path)?.as_fd())?.is_file {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = self.resolve(path, flags, Mode::empty())?;
        if !facts(file.as_fd())?.is_file {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = Vec::new();
        File::from(file).take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn parent_of<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = self.ensure_dir(path.parent().unwrap_or(Path::new("/")), 0o755)?;
        Ok((parent, name))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceNode {
    pub kind: NodeKind,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Character,
    Block,
    Pipe,
}

/// An absolute path without `.` and `..`, as text: `..` at the top stays at the top.
#[must_use]
pub(crate) fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

/// The names of a path. `..` is refused: its meaning depends on links that may change concurrently.
fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path contains .."));
            }
        }
    }
    Ok(names)
}

/// The node's procfs, held open: it is used for this process when the container's own is untrusted or out of
/// reach.
#[derive(Debug)]
pub(crate) struct Procfs(OwnedFd);

impl Procfs {
    /// Opens a procfs that is mounted nowhere, so that no part of it is covered by another mount; where that
    /// is impossible, `/proc`.
    ///
    /// # Errors
    /// The kernel's answer, or that another file system is mounted at `/proc`.
    pub(crate) fn open() -> io::Result<Self> {
        let detached = NewFileSystem::open("proc").and_then(|new| new.mount(NO_SUID | NO_DEV | NO_EXEC));
        if let Ok(detached) = detached {
            return Ok(Self(detached.into()));
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open("/proc", flags, Mode::empty())?;
        if file_system(fd.as_fd())? != FileSystem::Proc {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "/proc is not a procfs"));
        }
        Ok(Self(fd))
    }

    /// Opens a file of this procfs: no other mount and no link out of it is entered.
    fn open_file(&self, path: &str, flags: OFlag) -> io::Result<File> {
        let resolve =
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS | ResolveFlag::RESOLVE_NO_XDEV;
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
        let fd = openat2_patiently(&self.0, Path::new(path), how)?;
        if file_system(fd.as_fd())? != FileSystem::Proc {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not on procfs"));
        }
        Ok(File::from(fd))
    }

    pub(crate) fn writer(&self, path: &str) -> io::Result<File> {
        self.open_file(path, OFlag::O_WRONLY)
    }

    /// Writes a short text in one call, as the kernel's own files require.
    pub(crate) fn write(&self, path: &str, text: &str) -> io::Result<()> {
        use std::io::Write;
        self.writer(path)?.write_all(text.as_bytes())
    }
}

/// Changes to the directory `path` of this process's root, and follows no magic link.
///
/// # Errors
/// The kernel's answer, or that the directory is outside of the root.
pub(crate) fn change_directory(path: &Path) -> io::Result<()> {
    let root = ContainerRoot::open(Path::new("/"))?;
    let directory = root.resolve(path, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?;
    nix::unistd::fchdir(&directory)?;
    // The kernel marks a directory that cannot be reached from the root as `(unreachable)`; the C library
    // makes that ENOENT.
    let here = nix::unistd::getcwd()?;
    if here.as_os_str().as_bytes().first() != Some(&b'/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "outside of the container"));
    }
    Ok(())
}

/// True for the kernel's permission errors.
#[must_use]
pub(crate) fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_node_has_its_mode_and_a_links_target_keeps_its_own() {
        let base = std::env::temp_dir().join(format!("edge-agent-node-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let target = base.join("target");
        std::fs::write(&target, "").unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&target, base.join("node")).unwrap();
        let node = DeviceNode { kind: NodeKind::Pipe, major: 0, minor: 0, mode: 0o666, uid: 7, gid: 8 };
        let umask = nix::sys::stat::umask(Mode::from_bits_truncate(0o077));
        let made = ContainerRoot::open(&base).unwrap().make_node(Path::new("/node"), node);
        assert_eq!(nix::sys::stat::umask(umask).bits(), 0o077, "it is as it was");
        made.unwrap();
        let found = std::fs::symlink_metadata(base.join("node")).unwrap();
        assert!(found.file_type().is_fifo());
        assert_eq!(found.permissions().mode() & 0o7777, 0o666);
        assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o600);
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn node_replaces_nothing_in_a_mount_below_the_root() {
        let base = Path::new("/dev/shm").join(format!("edge-agent-node-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let (file, fifo) = (base.join("file"), base.join("fifo"));
        std::fs::write(&file, "a user's").unwrap();
        nix::unistd::mkfifo(&fifo, Mode::from_bits_truncate(0o600)).unwrap();
        let root = ContainerRoot::open(Path::new("/")).unwrap();
        let node = DeviceNode { kind: NodeKind::Pipe, major: 0, minor: 0, mode: 0o666, uid: 7, gid: 8 };
        let refused = root.make_node(&file, node).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{refused}");
        assert_eq!(std::fs::read(&file).unwrap(), b"a user's");
        root.make_node(&fifo, node).unwrap();
        assert_eq!(std::fs::metadata(&fifo).unwrap().permissions().mode() & 0o777, 0o600, "as it was");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
