//! `subPath`: one directory or file of a volume, bound where no container can exchange it for something else.
//!
//! Owns `volume-subpaths` of a pod. A writer of the volume may create links and rename directories at any
//! moment: the bind source is an open descriptor that was reached without following a link, never a path.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use crate::platform::sys::dir::{Handle, Mounts, identity};
use crate::platform::sys::mount;

/// Which part of which volume, for which mount of which container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubPath {
    /// Root of the volume on the node.
    pub volume_path: PathBuf,
    /// Below it; relative and without `..`.
    pub path: String,
    pub volume: String,
    pub container: String,
    pub index: usize,
}

/// A sub-path cannot be mounted. Texts are upstream's: details of the node's file system are for the log
/// alone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubPathError {
    #[error("failed to create subPath directory for volumeMount {volume:?} of container {container:?}")]
    Create {
        volume: String,
        container: String,
        #[source]
        source: io::Error,
    },
    /// It cannot be opened safely, or not bound.
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    Prepare {
        volume: String,
        container: String,
        #[source]
        source: io::Error,
    },
}

/// Creates the directory if it is missing and binds it; returns the path to mount. A bind of the same file is
/// kept, an outdated one is replaced.
pub(super) fn ensure(pod_dir: &Path, wanted: &SubPath) -> Result<PathBuf, SubPathError> {
    let relative: PathBuf = normal_parts(&wanted.path).collect();
    let (volume, container) = (wanted.volume.clone(), wanted.container.clone());
    match wanted.volume_path.join(&relative).metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_missing(&wanted.volume_path, &relative).map_err(|source| SubPathError::Create {
                volume,
                container,
                source,
            })?;
        }
        // Any other error appears when the path is opened, and is returned then.
        _ => {}
    }
    let place = ["volume-subpaths", &wanted.volume, &wanted.container];
    let target = pod_dir.join(place.iter().collect::<PathBuf>()).join(wanted.index.to_string());
    let bound = bind(&wanted.volume_path, &relative, || make_place(pod_dir, &place), &target);
    bound.map_err(|source| SubPathError::Prepare {
        volume: wanted.volume.clone(),
        container: wanted.container.clone(),
        source,
    })?;
    Ok(target)
}

fn normal_parts(path: &str) -> impl Iterator<Item = OsString> {
    let normal = |part| match part {
        Component::Normal(name) => Some(OsString::from(name)),
        _ => None,
    };
    Path::new(path).components().filter_map(normal).collect::<Vec<_>>().into_iter()
}

/// Directories from the first that is missing, each with the mode of the volume's root.
fn make_missing(volume: &Path, relative: &Path) -> io::Result<()> {
    let base = volume.canonicalize()?;
    let mode = base.metadata()?.permissions().mode() & 0o7777;
    let mut existing = relative;
    let (real, mut missing) = loop {
        existing = existing.parent().unwrap_or(Path::new(""));
        match base.join(existing).canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && existing != Path::new("") => {}
            other => break (other?, relative.iter().skip(existing.iter().count())),
        }
    };
    let mut current = open_below(&base, &real)?;
    missing.try_for_each(|name| {
        current = current.make_dir(name, mode)?;
        Ok(())
    })
}

/// `real` has all its links resolved: a link found now was created since.
fn open_below(base: &Path, real: &Path) -> io::Result<Handle> {
    let outside = |_| io::Error::new(io::ErrorKind::PermissionDenied, "the path leads outside the volume");
    let relative = real.strip_prefix(base).map_err(outside)?;
    if relative.as_os_str().is_empty() {
        return Handle::open(base);
    }
    Handle::open(base)?.below(relative, Mounts::Cross)
}

/// The pod's own directory is not recreated: after a wait for a dead server the pod may be removed.
pub(super) fn make_place(pod_dir: &Path, names: &[&str]) -> io::Result<()> {
    let mut path = pod_dir.to_owned();
    names.iter().try_for_each(|name| {
        path.push(name);
        match std::fs::DirBuilder::new().mode(0o750).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    })
}

fn bind(
    volume: &Path,
    relative: &Path,
    make_place: impl FnOnce() -> io::Result<()>,
    target: &Path,
) -> io::Result<()> {
    let base = volume.canonicalize()?;
    let source = open_below(&base, &base.join(relative).canonicalize()?)?;
    make_place()?;
    bind_open(source.as_fd(), target, source.metadata()?.is_dir())
}

/// Binds the file behind a descriptor. A bind of the same file is kept, another one replaced.
pub(super) fn bind_open(source: BorrowedFd<'_>, target: &Path, is_dir: bool) -> io::Result<()> {
    if mount::is_mount_point(target)? {
        if is_same(source, target) {
            return Ok(());
        }
        mount::unmount(target)?;
    }
    make_target(target, is_dir)?;
    mount::bind_descriptor(source, target)
}

/// A stale bind of a dead file system counts as different, and is replaced.
fn is_same(source: BorrowedFd<'_>, target: &Path) -> bool {
    let found = target.symlink_metadata().map(|found| (found.dev(), found.ino()));
    matches!((identity(source), found), (Ok(source), Ok(target)) if source == target)
}

fn make_target(target: &Path, is_dir: bool) -> io::Result<()> {
    match target.symlink_metadata() {
        Ok(found) if found.is_dir() == is_dir => return Ok(()),
        // The volume's directory has become a file, or the other way round. Nothing is mounted here any more.
        Ok(found) if found.is_dir() => std::fs::remove_dir(target)?,
        Ok(_) => std::fs::remove_file(target)?,
        Err(_) => {}
    }
    if is_dir {
        return std::fs::DirBuilder::new().mode(0o750).create(target);
    }
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o640).open(target).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::tear_down_dir;
    use super::*;
    use crate::platform::sys::dir::exchange;
    use crate::platform::testing::TempDir;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct SubPathLocation {
        scratch: TempDir,
        pod_dir: PathBuf,
        volume: PathBuf,
    }

    impl SubPathLocation {
        fn new() -> Self {
            let scratch = TempDir::new();
            let (pod_dir, volume) = (scratch.0.join("pods/uid"), scratch.0.join("volume"));
            std::fs::create_dir_all(&pod_dir).unwrap();
            std::fs::create_dir_all(&volume).unwrap();
            Self { scratch, pod_dir, volume }
        }

        fn ensure(&self, path: &str) -> Result<PathBuf, SubPathError> {
            let wanted = SubPath {
                volume_path: self.volume.clone(),
                path: path.to_owned(),
                volume: "data".to_owned(),
                container: "web".to_owned(),
                index: 0,
            };
            ensure(&self.pod_dir, &wanted)
        }
    }

    impl Drop for SubPathLocation {
        fn drop(&mut self) {
            tear_down_dir(&self.pod_dir).unwrap();
        }
    }

    #[test]
    fn missing_sub_path_is_created_with_the_volume_mode_and_bound() {
        let place = SubPathLocation::new();
        std::fs::set_permissions(&place.volume, std::fs::Permissions::from_mode(0o3777)).unwrap();
        let target = place.ensure("a//b/./c/").unwrap();
        assert_eq!(target, place.pod_dir.join("volume-subpaths/data/web/0"));
        for made in ["a", "a/b", "a/b/c"] {
            let mode = place.volume.join(made).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o3777, "{made}");
        }
        std::fs::write(target.join("seen"), "x").unwrap();
        assert!(place.volume.join("a/b/c/seen").exists());
        assert_eq!(place.ensure("a/b/c").unwrap(), target, "again");
        let count = mount::mount_points().unwrap().into_iter().filter(|point| *point == target).count();
        assert_eq!(count, 1);
    }

    #[test]
    fn one_that_comes_after_its_pod_has_gone_leaves_nothing_behind() {
        let place = SubPathLocation::new();
        std::fs::create_dir_all(place.volume.join("dir")).unwrap();
        tear_down_dir(&place.pod_dir).unwrap();
        let late = place.ensure("dir");
        let is_back = place.pod_dir.exists();
        assert!(
            matches!(&late, Err(SubPathError::Prepare { source, .. }) if source.kind() == io::ErrorKind::NotFound),
            "{late:?}"
        );
        assert!(!is_back);
    }

    #[test]
    fn files_are_bound_too_and_an_outdated_bind_is_replaced() {
        let place = SubPathLocation::new();
        std::fs::write(place.volume.join("conf"), "old").unwrap();
        let target = place.ensure("conf").unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old");
        std::fs::write(place.volume.join("new"), "new").unwrap();
        std::fs::rename(place.volume.join("new"), place.volume.join("conf")).unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old", "the bind shows the replaced file");
        place.ensure("conf").unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "new");
        std::fs::remove_file(place.volume.join("conf")).unwrap();
        std::fs::create_dir(place.volume.join("conf")).unwrap();
        assert!(place.ensure("conf").unwrap().is_dir(), "a file that became a directory");
    }

    #[test]
    fn sub_path_links_inside_the_volume_work_and_escapes_fail() {
        let place = SubPathLocation::new();
        let outside = place.scratch.0.join("outside");
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::create_dir_all(place.volume.join("real")).unwrap();
        symlink("real", place.volume.join("inner")).unwrap();
        symlink(place.volume.join("real"), place.volume.join("absolute")).unwrap();
        symlink("/", place.volume.join("root")).unwrap();
        symlink("../outside", place.volume.join("up")).unwrap();
        symlink("/proc/self/root", place.volume.join("magic")).unwrap();
        symlink("nowhere", place.volume.join("dangling")).unwrap();
        for fine in ["inner", "absolute", "inner/new"] {
            place.ensure(fine).unwrap();
        }
        for attack in ["root", "root/etc", "up", "magic", "magic/etc"] {
            let error = place.ensure(attack).unwrap_err();
            let text = "failed to prepare subPath for volumeMount \"data\" of container \"web\"";
            assert_eq!(error.to_string(), text, "{attack}");
        }
        for attack in ["up/new", "root/edge-agent-must-not-exist", "dangling", "dangling/x"] {
            let error = place.ensure(attack).unwrap_err();
            let text = "failed to create subPath directory for volumeMount \"data\" of container \"web\"";
            assert_eq!(error.to_string(), text, "{attack}");
        }
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        assert!(!Path::new("/edge-agent-must-not-exist").exists());
        assert!(!place.volume.join("nowhere").exists());
    }

    #[test]
    fn sub_path_link_swap_race_never_binds_or_writes_outside() {
        let place = SubPathLocation::new();
        let outside = place.scratch.0.join("outside");
        std::fs::create_dir_all(&outside).unwrap();
        for both in [outside.join("both"), place.volume.join("dir/both")] {
            std::fs::create_dir_all(both).unwrap();
        }
        let secret = outside.join("both").metadata().unwrap().ino();
        symlink(&outside, place.volume.join("link")).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (volume, ends) = (place.volume.clone(), Arc::clone(&over));
        let (told, swapped) = std::sync::mpsc::channel();
        let attack = move || {
            let mut swaps = 0_u32;
            while !ends.load(Ordering::Relaxed) {
                exchange(&volume.join("dir"), &volume.join("link")).unwrap();
                swaps += 1;
            }
            told.send(swaps).unwrap();
        };
        let attacker = crate::platform::rt::spawn_thread("attacker", attack).unwrap();
        let (mut bound, mut refused) = (0, 0);
        let started = std::time::Instant::now();
        let mut round = 0_u32;
        while started.elapsed() < std::time::Duration::from_secs(2) {
            round += 1;
            let path = if round.is_multiple_of(8) {
                format!("dir/new{}", round % 50)
            } else {
                "dir/both".to_owned()
            };
            match place.ensure(&path) {
                Ok(target) => {
                    bound += 1;
                    assert_ne!(target.metadata().unwrap().ino(), secret, "the outside is bound");
                }
                Err(_) => refused += 1,
            }
        }
        over.store(true, Ordering::Relaxed);
        attacker.join().unwrap();
        let swaps = swapped.recv().unwrap();
        let names: Vec<_> =
            std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["both"], "nothing was made outside");
        assert!(swaps > 10 && bound + refused > 10, "{swaps} swaps, {bound} bound, {refused} refused");
    }
}
