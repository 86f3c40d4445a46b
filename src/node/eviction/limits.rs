//! Pods that exceed their limits of local storage: `sizeLimit` of an `emptyDir`, limits of
//! `ephemeral-storage`.
//!
//! Owns upstream's order and texts (`localStorageEviction`). As upstream, a critical pod's limits are not
//! enforced.

use super::rank::{Disks, is_candidate};
use crate::model::api::pod::Pod;
use crate::model::containers::all_containers;
use crate::node::usage::PodUse;
use crate::pod::resources::pod_limits;

const RESOURCE: &str = "ephemeral-storage";

/// The pod has to be measured: it has a limit that is enforced.
#[must_use]
pub(in crate::node) fn has_limits(pod: &Pod) -> bool {
    let by_volume = pod.spec.volumes.iter().any(|volume| {
        let limit = volume.empty_dir.as_ref().and_then(|empty| empty.size_limit.as_ref());
        limit.is_some_and(|limit| limit.value() > 0)
    });
    is_candidate(pod)
        && (by_volume
            || all_containers(pod).any(|(container, _)| container.resources.limits.contains_key(RESOURCE)))
}

/// Why the pod must be evicted, if so: upstream's signal name for metrics, and the message.
#[must_use]
pub(crate) fn exceeded(pod: &Pod, usage: &PodUse, disks: Disks) -> Option<(&'static str, String)> {
    if !is_candidate(pod) {
        return None;
    }
    let volume = || Some(("emptydirfs.limit", volume(pod, usage)?));
    let whole = || Some(("ephemeralpodfs.limit", whole(pod, usage)?));
    let container = || Some(("ephemeralcontainerfs.limit", container(pod, usage, disks)?));
    volume().or_else(whole).or_else(container)
}

fn volume(pod: &Pod, usage: &PodUse) -> Option<String> {
    pod.spec.volumes.iter().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit?;
        let used = usage.volumes.iter().find(|used| used.name == volume.name)?.fs.used?;
        let is_over = limit.value() > 0 && used > u64::try_from(limit.value()).unwrap_or(u64::MAX);
        is_over.then(|| format!("Usage of EmptyDir volume {:?} exceeds the limit \"{limit}\". ", volume.name))
    })
}

fn whole(pod: &Pod, usage: &PodUse) -> Option<String> {
    let limit = pod_limits(pod).get(RESOURCE).copied()?;
    let containers =
        usage.containers.iter().flat_map(|container| [container.rootfs, container.logs]).flatten();
    let volumes = usage.volumes.iter().filter(|volume| volume.is_ephemeral).map(|volume| volume.fs);
    let used = containers.chain(volumes).filter_map(|part| part.used).fold(0, u64::saturating_add);
    let is_over = used > u64::try_from(limit.value()).unwrap_or(u64::MAX);
    is_over
        .then(|| format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "))
}

fn container(pod: &Pod, usage: &PodUse, disks: Disks) -> Option<String> {
    all_containers(pod).find_map(|(spec, _)| {
        let limit = spec.resources.limits.get(RESOURCE)?;
        let container = usage.containers.iter().find(|container| container.name == spec.name)?;
        // Upstream: with a separate image file system, images and layers do not count against the node's
        // disk.
        let rootfs = container.rootfs.filter(|_| !disks.has_imagefs);
        let parts = [rootfs, container.logs].into_iter().flatten();
        let used = parts.filter_map(|part| part.used).fold(0, u64::saturating_add);
        let is_over = used > u64::try_from(limit.value()).unwrap_or(u64::MAX);
        is_over.then(|| {
            format!("Container {} exceeded its local ephemeral storage limit \"{limit}\". ", container.name)
        })
    })
}
