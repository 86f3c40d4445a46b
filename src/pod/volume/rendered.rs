//! Volumes made of objects and of the pod itself: `configMap`, `secret`, `downwardAPI`, `projected`.
//!
//! Owns `volumes/kubernetes.io~{configmap,secret,downward-api,projected}` of a pod: all but ConfigMaps are
//! kept in memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use super::atomic_writer::{AtomicWriter, DATA};
use super::{MountedVolume, VolumeError, Volumes, make_dir, pod_dir, set_up_error};
use crate::model::api::pod::{Pod, Volume};
use crate::model::containers::all_containers;
use crate::model::provenance::realm;
use crate::model::types::{PodUid, Timestamp};
use crate::platform::rt;
use crate::platform::sys::mount;
use crate::pod::volume::projection::{
    Payload, ProjectionContext, ProjectionError, is_projected, nested_mount_points, project,
};

/// The one plugin whose volumes are on disk.
const CONFIG_MAP_PLUGIN: &str = "kubernetes.io~configmap";
/// Upstream's mode of the root directory, which is an emptyDir there: on disk, and in memory.
const DISK_ROOT_MODE: u32 = 0o777;
const MEMORY_ROOT_MODE: u32 = 0o1777;
/// The pod's group may enter, and owns the files created inside.
const GROUP_ROOT_MODE: u32 = 0o2550;

/// The inputs from which volumes were last rendered, by pod.
#[derive(Default)]
pub(super) struct Refreshed(RefCell<BTreeMap<PodUid, Ingredients>>);

impl Refreshed {
    /// The pod's volumes have been removed.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.0.borrow_mut().remove(uid);
    }
}

/// The inputs of the content that can change: objects, and the pod's own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ingredients {
    generation: u64,
    pod: u64,
}

impl Volumes {
    /// Changes when volumes that wait for an object may be tried again.
    #[must_use]
    pub(in crate::pod) fn objects_generation(&self) -> u64 {
        let of_csi = self.csi().map_or(0, |csi| csi.generation());
        self.objects.generation().wrapping_add(of_csi)
    }

    /// Sets up one volume of a rendered kind.
    pub(super) async fn ensure_rendered(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &Volume,
    ) -> Result<MountedVolume, VolumeError> {
        let (rendering, pod_dir) = (self.render(pod, volume), pod_dir.to_owned());
        rt::blocking("set up volume", move || rendering.ensure(&pod_dir)).await
    }

    /// Updates the volumes that are rendered from objects and from the pod's metadata, if they are set up, and the
    /// sizes of claims.
    /// Cheap when nothing has changed.
    ///
    /// # Errors
    /// The first volume that fails; it keeps its content, and the others are updated.
    pub(crate) async fn refresh(&self, pod: &Pod) -> Result<(), VolumeError> {
        self.refresh_limits(pod).await;
        let of_csi = self.refresh_csi(pod).await;
        self.refresh_rendered(pod).await.and(of_csi)
    }

    async fn refresh_rendered(&self, pod: &Pod) -> Result<(), VolumeError> {
        if !pod.spec.volumes.iter().any(is_projected) {
            return Ok(());
        }
        let (uid, inputs) = (&pod.metadata.uid, self.inputs(pod));
        if self.refreshed.0.borrow().get(uid) == Some(&inputs) {
            return Ok(());
        }
        let (mut result, mut is_settled) = (Ok(()), true);
        for volume in pod.spec.volumes.iter().filter(|volume| is_projected(volume)) {
            let (rendering, pod_dir) = (self.render(pod, volume), pod_dir(&self.config, uid));
            match rt::blocking("refresh volume", move || rendering.refresh(&pod_dir)).await {
                Ok(true) => {
                    // Tokens are renewed all the time, and a quiet node logs nothing.
                    let level = if has_token(volume) { log::Level::Debug } else { log::Level::Info };
                    log::log!(level, pod:% = pod.pod_ref(), volume = volume.name; "Updated volume content");
                }
                Ok(false) => {}
                Err(error) => {
                    // A missing object is retried when objects change; any other error is retried by the next
                    // refresh.
                    is_settled &= matches!(error, VolumeError::Projection { .. });
                    result = result.and(Err(error));
                }
            }
        }
        if is_settled {
            self.refreshed.0.borrow_mut().insert(uid.clone(), inputs);
        }
        result
    }

    fn inputs(&self, pod: &Pod) -> Ingredients {
        let mut hasher = DefaultHasher::new();
        (&pod.metadata.labels, &pod.metadata.annotations).hash(&mut hasher);
        for (container, _) in all_containers(pod) {
            format!("{:?}", container.resources).hash(&mut hasher);
        }
        Ingredients { generation: self.objects.of(realm(pod)).generation(), pod: hasher.finish() }
    }

    fn render(&self, pod: &Pod, volume: &Volume) -> Rendering {
        let context = ProjectionContext { objects: &*self.objects, allocatable: &self.config.capacity };
        let group = pod.spec.security_context.as_ref().and_then(|security| security.fs_group);
        Rendering {
            name: volume.name.clone(),
            plugin: plugin(volume),
            payload: project(pod, volume, &context),
            group: group.and_then(|group| u32::try_from(group).ok()),
            nested: nested_mount_points(pod, &volume.name),
            now: self.clock.now(),
        }
    }
}

struct Rendering {
    name: String,
    plugin: &'static str,
    payload: Result<Payload, ProjectionError>,
    group: Option<u32>,
    nested: BTreeSet<String>,
    now: Timestamp,
}

fn has_token(volume: &Volume) -> bool {
    let sources = volume.projected.iter().flat_map(|projected| &projected.sources);
    sources.into_iter().any(|source| source.service_account_token.is_some())
}

fn plugin(volume: &Volume) -> &'static str {
    if volume.config_map.is_some() {
        CONFIG_MAP_PLUGIN
    } else if volume.secret.is_some() {
        "kubernetes.io~secret"
    } else if volume.downward_api.is_some() {
        "kubernetes.io~downward-api"
    } else {
        "kubernetes.io~projected"
    }
}

impl Rendering {
    /// Sets up the volume. An existing one keeps its content when the new content fails: a container that
    /// restarts does not need an object that was deleted since.
    fn ensure(self, pod_dir: &Path) -> Result<MountedVolume, VolumeError> {
        let path = self.path(pod_dir);
        match &self.payload {
            Ok(payload) => {
                self.make_root(&path, payload)?;
                self.write(&path, payload)?;
            }
            Err(_) if is_set_up(&path) => {}
            Err(problem) => return Err(self.projection_error(problem.clone())),
        }
        Ok(MountedVolume {
            host_path: path,
            read_only: true,
            selinux_relabel: true,
            ..MountedVolume::default()
        })
    }

    /// Updates the content of a volume that is set up; true when it changed.
    fn refresh(&self, pod_dir: &Path) -> Result<bool, VolumeError> {
        let path = self.path(pod_dir);
        if !is_set_up(&path) {
            return Ok(false);
        }
        match &self.payload {
            Ok(payload) => self.write(&path, payload),
            Err(problem) => Err(self.projection_error(problem.clone())),
        }
    }

    fn path(&self, pod_dir: &Path) -> PathBuf {
        pod_dir.join("volumes").join(self.plugin).join(&self.name)
    }

    fn projection_error(&self, problem: ProjectionError) -> VolumeError {
        VolumeError::Projection { volume: self.name.clone(), problem }
    }

    fn make_root(&self, path: &Path, payload: &Payload) -> Result<(), VolumeError> {
        let failed = |action| move |source| set_up_error(&self.name, action, path, source);
        make_dir(path, 0o750).map_err(failed("create directory"))?;
        let in_memory = self.plugin != CONFIG_MAP_PLUGIN;
        if in_memory && !mount::is_mount_point(path).map_err(failed("list mounts below"))? {
            mount::mount_tmpfs(path, None).map_err(failed("mount tmpfs on"))?;
        }
        let mode = if in_memory { MEMORY_ROOT_MODE } else { DISK_ROOT_MODE };
        let mode = mode | if self.group.is_some() { GROUP_ROOT_MODE } else { 0 };
        let metadata = std::fs::metadata(path).map_err(failed("read"))?;
        if self.group.is_some_and(|group| group != metadata.gid()) {
            chown(path, None, self.group).map_err(failed("set group of"))?;
        }
        if metadata.mode() & 0o7777 != mode {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
                .map_err(failed("set mode of"))?;
        }
        // A file on which another volume is mounted already serves as a mount point.
        for nested in self.nested.iter().filter(|nested| !payload.contains_key(*nested)) {
            make_dir(&path.join(nested), 0o755).map_err(failed("create mount points in"))?;
        }
        Ok(())
    }

    fn write(&self, path: &Path, payload: &Payload) -> Result<bool, VolumeError> {
        let mut writer =
            AtomicWriter { root: path, group: self.group, now: self.now, before: &mut || Ok(()) };
        writer
            .write(payload)
            .map_err(|error| set_up_error(&self.name, error.action, &error.path, error.source))
    }
}

/// The volume has content, even if no file.
fn is_set_up(path: &Path) -> bool {
    std::fs::symlink_metadata(path.join(DATA)).is_ok()
}

#[cfg(test)]
mod tests;
