//! The order in which pods are evicted, and the messages.
//!
//! Owns upstream's order and texts. Invariant: a critical pod is never in the answer.

use std::cmp::Reverse;
use std::fmt::Write;

use super::{Observations, Signal, Threshold};
use crate::model::api::pod::{Container, Pod};
use crate::model::api::quantity::Quantity;
use crate::model::containers::{all_containers, is_terminal};
use crate::model::disruption::IMMEDIATELY;
use crate::model::ordered::Sortable as _;
use crate::node::usage::{FileSystem, PodUse};
use crate::pod::resources::{is_critical, pod_requests, priority};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disks {
    /// Images have a disk of their own.
    pub has_imagefs: bool,
    /// Writable layers are on the images' disk, not on the node's.
    pub layers_with_images: bool,
}

/// What counts on a disk.
fn counted(usage: &PodUse, signal: Signal, disks: Disks) -> Vec<&FileSystem> {
    let of_images = matches!(signal, Signal::ImagefsAvailable | Signal::ImagefsInodesFree);
    let separate = disks.has_imagefs && disks.layers_with_images;
    let (layers, rest) = (of_images || !separate, !of_images || !disks.has_imagefs);
    let containers = usage.containers.iter();
    let mut parts = Vec::new();
    if layers {
        parts.extend(containers.clone().filter_map(|container| container.rootfs.as_ref()));
    }
    if rest {
        parts.extend(containers.filter_map(|container| container.logs.as_ref()));
        parts.extend(usage.volumes.iter().filter(|volume| volume.is_ephemeral).map(|volume| &volume.fs));
    }
    parts
}

/// How much of the scarce resource the pod uses; `None` if unknown.
fn used(usage: &PodUse, signal: Signal, disks: Disks) -> Option<u64> {
    let sum = |of: fn(&FileSystem) -> Option<u64>| {
        Some(counted(usage, signal, disks).into_iter().filter_map(of).fold(0, u64::saturating_add))
    };
    match signal.resource() {
        "memory" => usage.usage.counted.working_set,
        "pids" => usage.usage.counted.pids,
        "inodes" => sum(|part| part.inodes_used),
        _ => sum(|part| part.used),
    }
}

/// The pod holds something that can be reclaimed.
#[must_use]
pub(in crate::node) fn is_candidate(pod: &Pod) -> bool {
    !is_critical(pod) && !is_terminal(&pod.status) && pod.metadata.deletion_timestamp.is_none()
}

/// The pods that may be evicted, the first to be evicted first. Ordered by: usage above requests, lower
/// priority, largest usage above requests. A pod without measurements comes first, as upstream. For
/// processes, requests do not count.
#[must_use]
pub(crate) fn rank<'a>(
    signal: Signal,
    pods: impl Iterator<Item = (&'a Pod, Option<&'a PodUse>)>,
    disks: Disks,
) -> Vec<&'a Pod> {
    let mut ranked: Vec<(u8, i32, Reverse<i64>, &Pod)> = pods
        .filter(|(pod, _)| is_candidate(pod))
        .map(|(pod, usage)| {
            let asked = match signal.resource() {
                "pids" | "inodes" => 0,
                resource => pod_requests(pod).get(resource).map_or(0, |amount| amount.value()),
            };
            let used = usage.and_then(|usage| used(usage, signal, disks));
            let beyond = used.map(|used| i64::try_from(used).unwrap_or(i64::MAX).saturating_sub(asked));
            let class = match beyond {
                beyond if beyond.is_none() || signal == Signal::PidAvailable => 0,
                Some(1..) => 1,
                _ => 2,
            };
            (class, priority(pod), Reverse(beyond.unwrap_or(i64::MAX)), pod)
        })
        .collect();
    ranked.order_by_key(|found| (found.0, found.1, found.2));
    ranked.into_iter().map(|(_, _, _, pod)| pod).collect()
}

/// The grace period in seconds of an evicted pod: `IMMEDIATELY` for a hard threshold.
#[must_use]
pub(crate) fn grace_seconds(pod: &Pod, threshold: &Threshold, max_pod_grace_seconds: i64) -> i64 {
    if threshold.is_hard {
        return IMMEDIATELY;
    }
    let own = pod.spec.termination_grace_period_seconds.unwrap_or(max_pod_grace_seconds);
    max_pod_grace_seconds.min(own).max(IMMEDIATELY)
}

/// The message in the status and the event of an evicted pod (upstream: `evictionMessage`).
#[must_use]
pub(crate) fn message(
    pod: &Pod,
    usage: Option<&PodUse>,
    threshold: &Threshold,
    seen: &Observations,
) -> String {
    let resource = threshold.signal.resource();
    let mut message = format!("The node was low on resource: {resource}. ");
    if let Some(observed) = seen.get(&threshold.signal) {
        let (quantity, available) =
            (amount(threshold.value.of(observed.capacity)), amount(observed.available));
        // Writing to a String cannot fail.
        let _ = write!(message, "Threshold quantity: {quantity}, available: {available}. ");
    }
    for container in usage.into_iter().flat_map(|usage| &usage.containers) {
        let Some(spec) = find(pod, &container.name) else { continue };
        let used = match resource {
            "memory" => container.usage.counted.working_set,
            "ephemeral-storage" => {
                let used = |part: Option<FileSystem>| part.and_then(|part| part.used);
                used(container.rootfs).zip(used(container.logs)).map(|(a, b)| a.saturating_add(b))
            }
            _ => None,
        };
        let asked = spec.resources.requests.get(resource).copied().unwrap_or(Quantity::from_units(0));
        let Some(used) = used.map(amount).filter(|used| used.value() > asked.value()) else { continue };
        let _ = write!(
            message,
            "Container {} was using {used}, request is {asked}, has larger consumption of {resource}. ",
            container.name
        );
    }
    message
}

fn amount(number: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(number).unwrap_or(i64::MAX))
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    all_containers(pod).map(|(container, _)| container).find(|container| container.name == name)
}

#[cfg(test)]
mod tests;
