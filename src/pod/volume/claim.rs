//! `persistentVolumeClaim`: the volume behind a claim, a directory of this node or an export of another.
//!
//! Owns `volumes/kubernetes.io~local-volume` of a pod.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{MountedVolume, VolumeError, host_path, make_dir, ownership, plugin_dir, set_up_error};
use crate::model::api::pod::HostPathVolumeSource;
use crate::model::objects::ClaimedVolume;
use crate::platform::rt;
use crate::platform::sys::mount;

/// The directory name of the plugin, as the kubelet has it on disk.
pub(super) const PLUGIN: &str = "kubernetes.io~local-volume";

/// The group that the files of a volume get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FsGroup {
    pub(super) group: u32,
    pub(super) policy: ownership::Policy,
}

/// A path of this node; without a type a missing one is created as a directory.
pub(super) fn ensure_host_path(
    pod_dir: &Path,
    name: &str,
    source: &HostPathVolumeSource,
) -> Result<MountedVolume, VolumeError> {
    let path = Path::new(&source.path);
    if source.type_.is_empty() && !path.exists() {
        make_dir(path, 0o755).map_err(|error| set_up_error(name, "create host path", path, error))?;
    }
    host_path::ensure(pod_dir, name, source)
}

/// Marks a single-pod volume as the pod's, whose mounts do not show that: by an empty directory, which goes with the
/// pod's.
pub(super) async fn reserve(
    pod_dir: &Path,
    name: &str,
    volume: &str,
    claims_in_use: &BeingGiven,
) -> Result<(), VolumeError> {
    let _given = Given::take(name, volume, claims_in_use)?;
    let (owned_name, of_pod, of) = (name.to_owned(), pod_dir.to_owned(), volume.to_owned());
    rt::blocking("find pods of volume", move || {
        let mark = |pod: &Path| plugin_dir(pod, PLUGIN).join(&of);
        let failed = |action| {
            let (name, at) = (&owned_name, &of_pod);
            move |error| set_up_error(name, action, at, error)
        };
        if mark(&of_pod).exists() {
            return Ok(());
        }
        let pods =
            std::fs::read_dir(of_pod.parent().unwrap_or(&of_pod)).map_err(failed("list pods beside"))?;
        if pods.flatten().any(|pod| mark(&pod.path()).exists()) {
            return Err(VolumeError::InUse { volume: owned_name.clone() });
        }
        make_dir(&mark(&of_pod), 0o750).map_err(failed("mark the volume in"))
    })
    .await
}

/// Mode of a claim's directory, as with provisioners of local directories: pods of any user may write.
/// `fsGroup` does not narrow it and sets the group of the files.
const CLAIM_MODE: u32 = 0o777;

/// Creates the directory of a claim at its first use. An existing one is left unchanged.
pub(super) async fn ensure_directory(name: &str, path: &Path) -> Result<(), VolumeError> {
    let (name, path) = (name.to_owned(), path.to_owned());
    rt::blocking("create claim directory", move || {
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

/// Single-pod volumes whose setup is in progress: the mount table does not show them yet.
pub(super) type BeingGiven = Rc<RefCell<BTreeSet<String>>>;

/// Marks a volume as being set up until it is dropped.
struct Given<'a> {
    volume: &'a str,
    all: &'a BeingGiven,
}

impl<'a> Given<'a> {
    fn take(name: &str, volume: &'a str, all: &'a BeingGiven) -> Result<Self, VolumeError> {
        if all.borrow_mut().insert(volume.to_owned()) {
            Ok(Self { volume, all })
        } else {
            Err(VolumeError::InUse { volume: name.to_owned() })
        }
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        self.all.borrow_mut().remove(self.volume);
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LocalVolume<'a> {
    pub(super) name: &'a str,
    pub(super) volume: &'a str,
    pub(super) source: &'a Path,
    pub(super) options: &'a [String],
    pub(super) fs_group: Option<FsGroup>,
    pub(super) single_pod: bool,
}

/// No pod uses the volume.
pub(super) async fn is_unused(pod_dir: &Path, volume: &ClaimedVolume, source: &Path) -> bool {
    let (name, from) = (volume.name.clone(), source.to_owned());
    let target = plugin_dir(pod_dir, PLUGIN).join(&name);
    let found = rt::blocking("stat local volume", move || find_use(&name, &from, &target)).await;
    matches!(found, Ok(Use::Unused))
}

/// Binds a local volume into the pod's directory. Its files get the pod's group when no other pod uses it. A
/// single-pod volume is refused while another pod uses it, in upstream's words (`GenerateMountVolumeFunc`,
/// 1.36): the pod retries.
pub(super) async fn ensure_local(
    pod_dir: &Path,
    wanted: LocalVolume<'_>,
    claims_in_use: &BeingGiven,
) -> Result<MountedVolume, VolumeError> {
    let LocalVolume { name, volume, source, options, fs_group, single_pod } = wanted;
    let _given = if single_pod { Some(Given::take(name, volume, claims_in_use)?) } else { None };
    let target = plugin_dir(pod_dir, PLUGIN).join(volume);
    let (owned_name, from, to) = (name.to_owned(), source.to_owned(), target.clone());
    let use_ = rt::blocking("stat local volume", move || find_use(&owned_name, &from, &to)).await?;
    if single_pod && use_ == Use::OtherPods {
        return Err(VolumeError::InUse { volume: name.to_owned() });
    }
    if use_ == Use::Unused
        && let Some(FsGroup { group, policy }) = fs_group
    {
        ownership::apply(name, source, group, policy).await?;
    }
    let is_new = use_ != Use::ThisPod;
    // The options also of a bind that an earlier process did not finish.
    if is_new || !options.is_empty() {
        let (owned_name, from, to) = (name.to_owned(), is_new.then(|| source.to_owned()), target.clone());
        let options = options.to_owned();
        let job = move || bind(&owned_name, from.as_deref(), &to, &options);
        rt::blocking("bind local volume", job).await?;
    }
    Ok(MountedVolume { host_path: target, selinux_relabel: true, ..MountedVolume::default() })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Unused,
    OtherPods,
    ThisPod,
}

fn find_use(name: &str, source: &Path, target: &Path) -> Result<Use, VolumeError> {
    if !source.exists() {
        return Err(VolumeError::LocalPathMissing { volume: name.to_owned(), path: source.to_owned() });
    }
    let parent = target.parent().unwrap_or(target);
    make_dir(parent, 0o750).map_err(|error| set_up_error(name, "create directory", parent, error))?;
    let failed = |error| set_up_error(name, "list mounts below", target, error);
    if mount::is_mount_point(target).map_err(failed)? {
        return Ok(Use::ThisPod);
    }
    let place: PathBuf = target.components().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect();
    // `<pods>/<uid>/volumes/<plugin>/<volume>`: pods of this agent, not of another one on the machine.
    let pods_dir = target.ancestors().nth(4).unwrap_or(target);
    let pods_dir = pods_dir.canonicalize().map_err(failed)?;
    let points = mount::mount_points().map_err(failed)?;
    let is_ours = |point: &PathBuf| point.starts_with(&pods_dir) && point.ends_with(&place);
    Ok(if points.iter().any(is_ours) { Use::OtherPods } else { Use::Unused })
}

/// `source`: unless it is bound.
fn bind(name: &str, source: Option<&Path>, target: &Path, options: &[String]) -> Result<(), VolumeError> {
    let failed = |action| move |error| set_up_error(name, action, target, error);
    if let Some(source) = source {
        make_dir(target, 0o750).map_err(failed("create directory"))?;
        mount::bind(source, target).map_err(failed("bind local volume on"))?;
    }
    if options.is_empty() {
        return Ok(());
    }
    mount::remount_bind(target, options).map_err(failed("set mountOptions of"))
}

#[cfg(test)]
mod tests {
    use super::super::{run, tear_down_dir};
    use super::*;
    use crate::platform::testing::TempDir;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn local_volume_is_bound_once_and_keeps_its_data() {
        let scratch = TempDir::new();
        let (disk, pod_dir) = (scratch.0.join("disk"), scratch.0.join("pods/uid"));
        let fs_group = Some(FsGroup { group: 4321, policy: ownership::Policy::OnRootMismatch });
        let wanted = LocalVolume {
            name: "data",
            volume: "pv-1",
            source: &disk,
            options: &[],
            fs_group,
            single_pod: false,
        };
        let make = || run(ensure_local(&pod_dir, wanted, &BeingGiven::default()));
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
    fn claim_directory_is_created_world_writable_once_then_kept() {
        let scratch = TempDir::new();
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
        let scratch = TempDir::new();
        let disk = scratch.0.join("disk");
        std::fs::create_dir_all(&disk).unwrap();
        let make = |pod: &str, group: u32| {
            let fs_group = Some(FsGroup { group, policy: ownership::Policy::Always });
            let wanted = LocalVolume {
                name: "data",
                volume: "pv-shared-test",
                source: &disk,
                options: &[],
                fs_group,
                single_pod: false,
            };
            run(ensure_local(&scratch.0.join(pod), wanted, &BeingGiven::default())).unwrap();
        };
        make("one", 111);
        make("two", 222);
        tear_down_dir(&scratch.0.join("one")).unwrap();
        tear_down_dir(&scratch.0.join("two")).unwrap();
        assert_eq!(disk.metadata().unwrap().gid(), 111);
    }
    #[test]
    fn a_volume_for_one_pod_goes_to_one_at_a_time() {
        let scratch = TempDir::new();
        let disk = scratch.0.join("disk");
        std::fs::create_dir_all(&disk).unwrap();
        let wanted = LocalVolume {
            name: "data",
            volume: "pv-one",
            source: &disk,
            options: &[],
            fs_group: None,
            single_pod: true,
        };
        let given = BeingGiven::default();
        let pod = |name: &str| scratch.0.join("pods").join(name);
        let make = |name: &str| run(ensure_local(&pod(name), wanted, &given));
        make("one").unwrap();
        make("one").unwrap();
        let refused = make("two").unwrap_err().to_string();
        assert_eq!(
            refused,
            "MountVolume.SetUp failed for volume \"data\" : volume uses the ReadWriteOncePod access mode and is \
             already in use by another pod"
        );
        // Two pods at once: the second comes while the first is still being set up.
        tear_down_dir(&pod("one")).unwrap();
        given.borrow_mut().insert("pv-one".to_owned());
        assert!(matches!(make("two"), Err(VolumeError::InUse { .. })));
        given.borrow_mut().clear();
        make("two").unwrap();
        assert!(given.borrow().is_empty());
        let shared = LocalVolume { single_pod: false, ..wanted };
        run(ensure_local(&pod("three"), shared, &given)).unwrap();
        for name in ["two", "three"] {
            tear_down_dir(&pod(name)).unwrap();
        }
    }
}
