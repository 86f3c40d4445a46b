//! The origin of a pod: the kubelet's annotations.

use crate::model::api::pod::Pod;
use crate::model::types::{PodSource, Timestamp};

/// Annotation with the pod's content hash (its uid).
pub(crate) const CONFIG_HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

pub(crate) const CONFIG_SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";

/// Annotation with the moment the pod was first seen.
pub(crate) const CONFIG_SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";

/// Annotation that marks a mirror pod.
pub(crate) const CONFIG_MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Annotations with the source and time at which the agent first read a pod: never compared, never
/// overwritten.
pub(crate) const LOCAL_ANNOTATIONS: [&str; 3] =
    [CONFIG_SOURCE_ANNOTATION, CONFIG_SEEN_ANNOTATION, CONFIG_MIRROR_ANNOTATION];

/// Writes source and time of first sight into a pod.
pub(crate) fn mark_first_seen(pod: &mut Pod, source: PodSource, now: Timestamp) {
    let annotations = &mut pod.metadata.annotations;
    annotations.insert(CONFIG_SOURCE_ANNOTATION.to_owned(), source.as_str().to_owned());
    annotations.insert(CONFIG_SEEN_ANNOTATION.to_owned(), now.to_rfc3339_nano());
    pod.metadata.generation = pod.metadata.generation.max(1);
}

/// When a source wanted the pod for the first time.
#[must_use]
pub(crate) fn first_seen(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.annotations.get(CONFIG_SEEN_ANNOTATION).and_then(|seen| Timestamp::parse_rfc3339(seen))
}

/// The pod came through the node's own API.
#[must_use]
pub(crate) fn is_from_api(pod: &Pod) -> bool {
    pod.metadata
        .annotations
        .get(CONFIG_SOURCE_ANNOTATION)
        .is_some_and(|source| source == PodSource::Api.as_str())
}
