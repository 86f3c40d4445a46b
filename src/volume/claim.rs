//! `persistentVolumeClaim`: the volume behind a claim, a directory of this node or an export of another.
//!
//! Owns `volumes/kubernetes.io~local-volume` of a pod. Must not know how claims are bound.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{MountedVolume, VolumeError, make_dir, ownership, plugin_dir, set_up_error};
use crate::rt;
use crate::sys::mount;

/// The directory name of the plugin, as the kubelet has it on disk.
const PLUGIN: &str = "kubernetes.io~local-volume";

/// Who the files of a volume are to belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FsGroup {
    pub(super) group: u32,
    pub(super) policy: ownership::Policy,
}

/// A directory of this node, used as it is; made when it is missing.
pub(super) fn ensure_host_path(name: &str, path: &Path) -> Result<MountedVolume, VolumeError> {
    if !path.exists() {
        make_dir(path, 0o755).map_err(|error| set_up_error(name, "create host path", path, error))?;
    }
    Ok(MountedVolume { host_path: path.to_owned(), ..MountedVolume::default() })
}

/// Mode of a claim's directory, as of those that provisioners of local directories make: whichever user a pod has, it may
/// write. `fsGroup` narrows nothing and gives the files their group.
const CLAIM_MODE: u32 = 0o777;

/// Makes the directory of a claim when it is used for the first time. One that is there is left as it is.
pub(super) async fn ensure_directory(name: &str, path: &Path) -> Result<(), VolumeError> {
    let (name, path) = (name.to_owned(), path.to_owned());
    rt::blocking("make claim directory", move || {
        if path.is_dir() {
            return Ok(());
        }
        let failed = |error| set_up_error(&name, "create the directory of a claim", &path, error);
        make_dir(path.parent().unwrap_or(&path), 0o750).map_err(failed)?;
        make_dir(&path, CLAIM_MODE).map_err(failed)?;
        // The umask must not decide.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(CLAIM_MODE)).map_err(failed)
    })
    .await
}

/// Binds a local volume into the pod's directory. Its files get the pod's group when no other pod uses it.
pub(super) async fn ensure_local(
    pod_dir: &Path,
    name: &str,
    volume: &str,
    source: &Path,
    fs_group: Option<FsGroup>,
) -> Result<MountedVolume, VolumeError> {
    let target = plugin_dir(pod_dir, PLUGIN).join(volume);
    let (owned_name, from, to) = (name.to_owned(), source.to_owned(), target.clone());
    let use_ = rt::blocking("look at local volume", move || look(&owned_name, &from, &to)).await?;
    if use_ == Use::Nobody
        && let Some(FsGroup { group, policy }) = fs_group
    {
        ownership::apply(name, source, group, policy).await?;
    }
    if use_ != Use::ThisPod {
        let (owned_name, from, to) = (name.to_owned(), source.to_owned(), target.clone());
        rt::blocking("bind local volume", move || bind(&owned_name, &from, &to)).await?;
    }
    Ok(MountedVolume { host_path: target, selinux_relabel: true, ..MountedVolume::default() })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Nobody,
    OtherPods,
    ThisPod,
}

fn look(name: &str, source: &Path, target: &Path) -> Result<Use, VolumeError> {
    if !source.exists() {
        return Err(VolumeError::LocalPathMissing { volume: name.to_owned(), path: source.to_owned() });
    }
    let parent = target.parent().unwrap_or(target);
    make_dir(parent, 0o750).map_err(|error| set_up_error(name, "create directory", parent, error))?;
    let failed = |error| set_up_error(name, "read mounts below", target, error);
    if mount::is_mount_point(target).map_err(failed)? {
        return Ok(Use::ThisPod);
    }
    let place: PathBuf = target.components().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect();
    let points = mount::mount_points().map_err(failed)?;
    Ok(if points.iter().any(|point| point.ends_with(&place)) { Use::OtherPods } else { Use::Nobody })
}

fn bind(name: &str, source: &Path, target: &Path) -> Result<(), VolumeError> {
    let failed = |action| move |error| set_up_error(name, action, target, error);
    make_dir(target, 0o750).map_err(failed("create directory"))?;
    mount::bind(source, target).map_err(failed("bind local volume on"))
}

#[cfg(test)]
mod tests {
    use super::super::{Scratch, run, tear_down_dir};
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_local_volume_is_bound_once_and_its_data_stays_when_the_pod_goes() {
        let scratch = Scratch::new("local");
        let (disk, pod_dir) = (scratch.0.join("disk"), scratch.0.join("pods/uid"));
        let fs_group = Some(FsGroup { group: 4321, policy: ownership::Policy::OnRootMismatch });
        let make = || run(ensure_local(&pod_dir, "data", "pv-1", &disk, fs_group));
        let missing = make().unwrap_err().to_string();
        let text = format!("MountVolume.SetUp failed for volume \"data\" : path {disk:?} does not exist");
        assert_eq!(missing, text);
        std::fs::create_dir_all(&disk).unwrap();
        std::fs::write(disk.join("rows"), "x").unwrap();
        let mounted = make().unwrap();
        make().unwrap();
        assert_eq!(mounted.host_path, pod_dir.join("volumes/kubernetes.io~local-volume/pv-1"));
        let count =
            mount::mount_points().unwrap().iter().filter(|point| **point == mounted.host_path).count();
        let seen = mounted.host_path.join("rows").exists();
        tear_down_dir(&pod_dir).unwrap();
        assert_eq!((count, seen), (1, true));
        assert!(!pod_dir.exists());
        assert_eq!(disk.join("rows").metadata().unwrap().gid(), 4321);
    }

    #[test]
    fn the_directory_of_a_claim_is_made_once_for_everybody_and_then_left_alone() {
        let scratch = Scratch::new("claim");
        let path = scratch.0.join("volumes/default/data");
        run(ensure_directory("data", &path)).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o777, "whatever the umask");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        run(ensure_directory("data", &path)).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o700);
        std::fs::write(scratch.0.join("file"), "").unwrap();
        let error = run(ensure_directory("data", &scratch.0.join("file/x"))).unwrap_err().to_string();
        assert!(error.contains("create the directory of a claim"), "{error}");
    }

    #[test]
    fn the_group_of_a_volume_that_another_pod_uses_is_left_alone() {
        let scratch = Scratch::new("shared-local");
        let disk = scratch.0.join("disk");
        std::fs::create_dir_all(&disk).unwrap();
        let make = |pod: &str, group: u32| {
            let fs_group = Some(FsGroup { group, policy: ownership::Policy::Always });
            run(ensure_local(&scratch.0.join(pod), "data", "pv-shared-test", &disk, fs_group)).unwrap();
        };
        make("one", 111);
        make("two", 222);
        tear_down_dir(&scratch.0.join("one")).unwrap();
        tear_down_dir(&scratch.0.join("two")).unwrap();
        assert_eq!(disk.metadata().unwrap().gid(), 111);
    }
}
