//! Removing a pod's directory: unmounts what volumes mounted there, deletes the rest, and stops at any other
//! mount.
//!
//! Owns nothing. An earlier run may have been interrupted anywhere: it works on what is there.

use std::io::ErrorKind;
use std::path::Path;

use super::VolumeError;
use crate::platform::sys::dir::{is_mount_in_the_way, remove_contents};
use crate::platform::sys::mount;
use crate::pod::volume::rules::own_mounts;

pub(super) fn tear_down_dir(pod_dir: &Path) -> Result<(), VolumeError> {
    let failed = |action| move |source| VolumeError::TearDown { action, path: pod_dir.to_owned(), source };
    // The mount table knows real paths only.
    let real = match pod_dir.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed("stat pod directory"))?,
    };
    let points = mount::mount_points().map_err(failed("list mounts below"))?;
    for path in own_mounts(&real, &points) {
        let failed = |source| VolumeError::TearDown { action: "unmount volume", path: path.clone(), source };
        mount::unmount(&path).map_err(failed)?;
    }
    let left = mount::mount_points().map_err(failed("list mounts below"))?;
    if let Some(path) = left.into_iter().find(|point| point.starts_with(&real)) {
        return Err(VolumeError::StillMounted { path });
    }
    remove_contents(&real).map_err(|error| {
        let path = real.join(error.path);
        if is_mount_in_the_way(&error.source) {
            VolumeError::StillMounted { path }
        } else {
            VolumeError::TearDown { action: "remove", path, source: error.source }
        }
    })?;
    match std::fs::remove_dir(&real) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove pod directory")(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[test]
    fn removing_a_pod_directory_never_crosses_a_foreign_mount() {
        let scratch = TempDir::new();
        let pod_dir = scratch.0.join("uid");
        let foreign = pod_dir.join("data");
        std::fs::create_dir_all(&foreign).unwrap();
        mount::mount_tmpfs(&foreign, Some(1 << 20)).unwrap();
        std::fs::write(foreign.join("precious"), "x").unwrap();
        let result = tear_down_dir(&pod_dir);
        let survived = foreign.join("precious").exists();
        mount::unmount(&foreign).unwrap();
        assert!(matches!(result, Err(VolumeError::StillMounted { path }) if path == foreign));
        assert!(survived);
    }

    #[test]
    fn stacked_mounts_are_unmounted_newest_first_behind_a_symlink() {
        let scratch = TempDir::new();
        let linked = scratch.0.join("linked");
        let real = scratch.0.join("real");
        let ram = real.join("uid/volumes/kubernetes.io~empty-dir/ram");
        let sub_path = real.join("uid/volume-subpaths/ram/web/0");
        for dir in [&ram, &sub_path] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::os::unix::fs::symlink(&real, &linked).unwrap();
        mount::mount_tmpfs(&ram, Some(1 << 20)).unwrap();
        mount::mount_tmpfs(&ram, Some(1 << 20)).unwrap();
        mount::bind(&ram, &sub_path).unwrap();
        let result = tear_down_dir(&linked.join("uid"));
        let left: Vec<_> =
            mount::mount_points().unwrap().into_iter().filter(|point| point.starts_with(&real)).collect();
        for point in left.iter().rev() {
            mount::unmount(point).unwrap();
        }
        result.unwrap();
        assert!(left.is_empty(), "{left:?}");
        assert!(!real.join("uid").exists());
    }
}
