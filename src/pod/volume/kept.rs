//! Volumes that pods keep when their claim, or its PersistentVolume, is deleted.
//!
//! Owns what this process remembers of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use super::{MountedVolume, Volumes, claim, plugin_dir};
use crate::model::api::pod::Pod;
use crate::model::objects::{ClaimedVolume, ObjectKey, ObjectKind, wire};
use crate::model::types::PodUid;
use crate::platform::rt;
use crate::platform::sys::mount;

/// By pod, and by the name that it gives the volume.
pub(super) type Kept = RefCell<BTreeMap<(PodUid, String), (ClaimedVolume, MountedVolume)>>;

impl Volumes {
    pub(super) fn keep(&self, pod: &Pod, name: &str, volume: ClaimedVolume, mounted: &MountedVolume) {
        let key = (pod.metadata.uid.clone(), name.to_owned());
        self.kept.borrow_mut().insert(key, (volume, mounted.clone()));
    }

    pub(super) fn forget_kept(&self, uid: &PodUid) {
        self.kept.borrow_mut().retain(|(pod, _), _| pod != uid);
    }

    pub(super) fn kept_volume(&self, pod: &Pod, name: &str) -> Option<ClaimedVolume> {
        let key = (pod.metadata.uid.clone(), name.to_owned());
        self.kept.borrow().get(&key).map(|(volume, _)| volume.clone())
    }

    /// What the pod has of a claim that is gone. Nothing is mounted.
    pub(super) async fn kept_mount(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        name: &str,
        claim: String,
        read_only: bool,
    ) -> Option<MountedVolume> {
        let key = (pod.metadata.uid.clone(), name.to_owned());
        let known = self.kept.borrow().get(&key).map(|(_, mounted)| mounted.clone());
        let mounted = known.unwrap_or_else(|| {
            // The directory of a claim is mounted by a name that tells the claim, also to a later process.
            let (kind, namespace) = (ObjectKind::PersistentVolumeClaim, pod.metadata.namespace.clone());
            let volume = wire::volume_name(&ObjectKey { kind, namespace, name: claim });
            let host_path = plugin_dir(pod_dir, claim::PLUGIN).join(volume);
            MountedVolume { host_path, read_only, selinux_relabel: true, ..MountedVolume::default() }
        });
        let (path, is_below) = (mounted.host_path.clone(), mounted.host_path.starts_with(pod_dir));
        let is_there = rt::blocking("stat kept volume", move || {
            // A path of the node is not mounted.
            !is_below || mount::is_mount_point(&path).unwrap_or(false)
        });
        is_there.await.then_some(mounted)
    }
}
