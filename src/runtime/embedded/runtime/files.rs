//! The directory of a sandbox: its content beside records, and its removal.
//!
//! Owns files and mounts below the state directory, and writable layers. Everything here blocks.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::super::layout::{Layout, SandboxDir};
use super::record::write_whole;
use super::{Failure, OpenError};
use crate::codec::hex;
use crate::model::ordered::Sortable as _;
use crate::platform::sys::{dir, mount, node};
use crate::runtime::{DnsConfig, NamespaceMode, SandboxConfig};

/// containerd's size of a pod's `/dev/shm`.
const SHM_OPTIONS: &str = "nosuid,nodev,noexec,mode=1777,size=65536k";
/// Only the agent and its monitors have access.
const PRIVATE: u32 = 0o700;
/// Prefix of the names of directories that wait for removal.
const DISCARDED: &str = ".removing-";
/// A node's resolv.conf or hosts file larger than this is not copied whole.
const MAX_COPY: u64 = 1 << 20;

pub(super) fn make_directories(layout: &Layout) -> Result<(), OpenError> {
    let dirs = [
        (layout.images(), PRIVATE),
        // Containers with users of their own reach their files through here.
        (layout.writable_layers(), 0o711),
        (layout.sandboxes(), 0o711),
        (layout.network(), PRIVATE),
        (layout.seccomp(), PRIVATE),
    ];
    for (path, mode) in dirs {
        dir::make_dir(&path, mode).map_err(|source| OpenError::Directory { path, source })?;
    }
    Ok(())
}

/// A new random id: 64 hexadecimal digits, as containerd's.
pub(super) fn new_id() -> Result<String, Failure> {
    use io::Read as _;
    let mut bytes = [0_u8; 32];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Failure::because("read /dev/urandom", &error))?;
    Ok(hex::encode(&bytes))
}

/// Makes a directory that must not exist yet, with exactly this mode: the agent's umask must not decide what
/// containers can read.
pub(super) fn make_new_dir(path: &Path, mode: u32) -> Result<(), Failure> {
    let result = std::fs::DirBuilder::new()
        .mode(mode)
        .create(path)
        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(mode)));
    result.map_err(|error| Failure::because(&format!("create directory {}", path.display()), &error))
}

/// Removes access that an earlier version gave other users: they could read the environment of a sandbox's
/// containers, including values from Secrets. What containers read through the directory keeps its mode.
pub(super) fn close_to_others(dir: &SandboxDir) {
    let files = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let containers = files(&dir.containers()).into_iter().flat_map(|container| files(&container));
    let shown = [dir.hostname(), dir.hosts(), dir.resolv_conf()];
    for path in files(&dir.0).into_iter().chain(containers).filter(|path| !shown.contains(path)) {
        let is_open = std::fs::symlink_metadata(&path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o077 != 0);
        if is_open && let Err(error) = std::fs::set_permissions(&path, Permissions::from_mode(0o600)) {
            log::warn!(path:% = path.display(), err:% = error; "Failed to restrict record access: chmod 600");
        }
    }
}

/// Mounts `/dev/shm` of the pod, unless the pod uses the node's.
pub(super) fn mount_shm(dir: &SandboxDir, config: &SandboxConfig) -> Result<(), Failure> {
    if config.namespaces.ipc == NamespaceMode::Node {
        return Ok(());
    }
    let shm = dir.shm();
    make_new_dir(&shm, 0o711)?;
    mount::mount_remote("tmpfs", "shm", &shm, &[SHM_OPTIONS.to_owned()])
        .map_err(|error| Failure::because("failed to mount sandbox shm", &error))
}

/// Writes the three files for `/etc`.
pub(super) fn write_etc(dir: &SandboxDir, config: &SandboxConfig) -> Result<(), Failure> {
    let failed = |error: super::record::RecordError| Failure::because("setup sandbox files", &error);
    let hostname = if config.hostname.is_empty() {
        node::hostname().map_err(|error| Failure::because("failed to get hostname", &error))?
    } else {
        config.hostname.clone()
    };
    let write = |path: &Path, bytes: &[u8]| {
        write_whole(path, bytes).map_err(failed)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o644))
            .map_err(|error| Failure::because(&format!("change mode of {}", path.display()), &error))
    };
    write(&dir.hostname(), format!("{hostname}\n").as_bytes())?;
    write(&dir.hosts(), &copy_of(Path::new("/etc/hosts")))?;
    let resolv_conf = match config.dns.as_ref().and_then(DnsConfig::resolv_conf) {
        Some(text) => text.into_bytes(),
        None => copy_of(Path::new("/etc/resolv.conf")),
    };
    write(&dir.resolv_conf(), &resolv_conf)
}

/// The content of a file of the node; empty when it does not exist.
fn copy_of(path: &Path) -> Vec<u8> {
    use io::Read as _;
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        let _ = file.take(MAX_COPY).read_to_end(&mut bytes);
    }
    bytes
}

/// Removes a sandbox's directory: mounts, then everything else, the record last. Succeeds when some or all of
/// it is already gone.
pub(super) fn remove_sandbox_dir(dir: &SandboxDir) -> Result<(), Failure> {
    unmount_below(&dir.0)?;
    remove_dir_record_last(&dir.0, &dir.record())
}

/// Removes a container's directory in the same way.
pub(super) fn remove_container_dir(path: &Path, record: &Path) -> Result<(), Failure> {
    unmount_below(path)?;
    remove_dir_record_last(path, record)
}

fn unmount_below(path: &Path) -> Result<(), Failure> {
    if !path.exists() {
        return Ok(());
    }
    let failed = |error: io::Error| Failure::because(&format!("unmount below {}", path.display()), &error);
    let mut points: Vec<PathBuf> =
        mount::mount_points().map_err(failed)?.into_iter().filter(|point| point.starts_with(path)).collect();
    points.order_by(Ord::cmp);
    for point in points.iter().rev() {
        match mount::unmount(point) {
            // Already unmounted: stacked mounts have the same path, and an earlier unmount may have removed
            // several.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            other => other.map_err(failed)?,
        }
    }
    Ok(())
}

fn remove_dir_record_last(path: &Path, record: &Path) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(&format!("remove {}", path.display()), error);
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| failed(&error))?,
    };
    for entry in entries {
        let entry = entry.map_err(|error| failed(&error))?;
        if entry.path() != record {
            remove_entry(&entry.path()).map_err(|error| failed(&error))?;
        }
    }
    remove_entry(record).map_err(|error| failed(&error))?;
    std::fs::remove_dir(path).or_else(missing_is_fine).map_err(|error| failed(&error))
}

/// Removes one of the runtime's files or directories with everything below it.
fn remove_entry(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.is_dir() {
        return std::fs::remove_file(path).or_else(missing_is_fine);
    }
    dir::remove_contents(path).map_err(|error| error.source)?;
    std::fs::remove_dir(path).or_else(missing_is_fine)
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Renames a writable layer, which is instant at any size, for a later removal. `None` when it does not
/// exist.
pub(super) fn discard(layout: &Layout, layer: &Path, number: u64) -> Result<Option<PathBuf>, Failure> {
    let name = format!("{DISCARDED}{}-{number}", std::process::id());
    let discarded = layout.writable_layers().join(name);
    match std::fs::rename(layer, &discarded) {
        Ok(()) => Ok(Some(discarded)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::because(&format!("rename {}", layer.display()), &error)),
    }
}

/// Removes what was discarded, by this agent or an earlier one. The content is a container's: no link is
/// followed.
pub(super) fn remove_discarded(path: &Path) {
    let removed = dir::remove_contents(path).map_err(|error| {
        io::Error::new(error.source.kind(), format!("{}: {}", error.path.display(), error.source))
    });
    if let Err(error) = removed.and_then(|()| std::fs::remove_dir(path)) {
        log::warn!(path:% = path.display(), err:% = error; "Failed to remove writable layer, retrying at \
             the next start");
    }
}

/// Writable layers without a record, discarded ones included.
pub(super) fn orphaned_layers(layout: &Layout, is_known: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(layout.writable_layers()).into_iter().flatten().flatten();
    let unknown = entries.filter(|entry| !entry.file_name().to_str().is_some_and(&is_known));
    unknown.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("edge-agent-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn ids_are_64_digits_and_never_the_same() {
        let (one, other) = (new_id().unwrap(), new_id().unwrap());
        assert!(one.len() == 64 && one.bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
        assert_ne!(one, other);
    }

    #[test]
    fn pod_resolv_conf_matches_containerd_and_defaults_to_the_node() {
        let dns = DnsConfig {
            servers: vec!["10.0.0.10".to_owned(), "fd00::a".to_owned()],
            searches: vec!["svc.local".to_owned(), "local".to_owned()],
            options: vec!["ndots:5".to_owned()],
        };
        assert_eq!(
            dns.resolv_conf().unwrap(),
            "search svc.local local\nnameserver 10.0.0.10\nnameserver fd00::a\noptions ndots:5\n"
        );
        assert_eq!(DnsConfig::default().resolv_conf(), None);
    }

    #[test]
    fn what_an_earlier_version_left_readable_is_closed() {
        let root = scratch("open");
        let dir = SandboxDir(root.join("one"));
        let container = dir.container("c");
        std::fs::create_dir_all(&container.0).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let secret = [dir.record(), container.bundle(), container.record(), container.facts()];
        for path in secret.iter().chain([&dir.hosts()]) {
            std::fs::write(path, "x").unwrap();
            std::fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
        }
        close_to_others(&dir);
        for path in &secret {
            assert_eq!(mode(path), 0o600, "{}", path.display());
        }
        assert_eq!(mode(&dir.hosts()), 0o644);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn sandbox_dir_removal_unmounts_and_is_idempotent() {
        let root = scratch("sandbox");
        let dir = SandboxDir(root.join("one"));
        make_new_dir(&dir.0, PRIVATE).unwrap();
        let config = SandboxConfig { hostname: "pod".to_owned(), ..SandboxConfig::default() };
        std::fs::write(dir.record(), "{}").unwrap();
        mount_shm(&dir, &config).unwrap();
        write_etc(&dir, &config).unwrap();
        std::fs::write(dir.shm().join("segment"), "x").unwrap();
        assert_eq!(std::fs::read_to_string(dir.hostname()).unwrap(), "pod\n");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let shm = dir.shm();
        let line = mounts.lines().find(|line| line.contains(shm.to_str().unwrap())).unwrap();
        for option in ["nosuid", "nodev", "noexec", "size=65536k"] {
            assert!(line.contains(option), "{option}: {line}");
        }
        remove_sandbox_dir(&dir).unwrap();
        assert!(!dir.0.exists());
        remove_sandbox_dir(&dir).unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(root.to_str().unwrap()), "{mounts}");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn discarded_layer_is_moved_away_and_found_as_orphan_later() {
        let root = scratch("discard");
        let layout = Layout::new(&root.join("data"), &root.join("state"));
        make_directories(&layout).unwrap();
        let layer = layout.writable_layers().join("c1");
        std::fs::create_dir_all(layer.join("upper/dir")).unwrap();
        let discarded = discard(&layout, &layer, 1).unwrap().unwrap();
        assert!(!layer.exists());
        assert_eq!(discard(&layout, &layer, 2).unwrap(), None);
        std::fs::create_dir_all(layout.writable_layers().join("known")).unwrap();
        let orphans = orphaned_layers(&layout, |name| name == "known");
        assert_eq!(orphans, std::slice::from_ref(&discarded));
        remove_discarded(&discarded);
        assert!(!discarded.exists());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
