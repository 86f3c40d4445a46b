//! The origin of a pod: the kubelet's annotations.

use crate::model::api::pod::Pod;
use crate::model::objects::Realm;
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

/// The pod came through an API: the node's own or the cluster's.
#[must_use]
pub(crate) fn is_from_api(pod: &Pod) -> bool {
    matches!(source_of(pod), Some(PodSource::Api | PodSource::Cluster))
}

/// The pod came from the cluster that the node has joined.
#[must_use]
pub(crate) fn is_of_cluster(pod: &Pod) -> bool {
    source_of(pod) == Some(PodSource::Cluster)
}

/// Whose objects the pod may refer to: a pod sees only those of its own realm.
#[must_use]
pub(crate) fn realm(pod: &Pod) -> Realm {
    if is_of_cluster(pod) { Realm::Cluster } else { Realm::Node }
}

/// Names the source of a pod in upstream's word, for clients of the kubelet's API.
pub(crate) fn show_source(pod: &mut Pod) {
    if is_of_cluster(pod) {
        let shown = PodSource::Cluster.shown().to_owned();
        pod.metadata.annotations.insert(CONFIG_SOURCE_ANNOTATION.to_owned(), shown);
    }
}

fn source_of(pod: &Pod) -> Option<PodSource> {
    pod.metadata.annotations.get(CONFIG_SOURCE_ANNOTATION).and_then(|source| PodSource::from_name(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_realm_of_a_pod_is_that_of_its_source() {
        for (source, is_api, wanted) in [
            (Some(PodSource::File), false, Realm::Node),
            (Some(PodSource::Http), false, Realm::Node),
            (Some(PodSource::Api), true, Realm::Node),
            (Some(PodSource::Cluster), true, Realm::Cluster),
            (None, false, Realm::Node),
        ] {
            let mut pod = Pod::default();
            if let Some(source) = source {
                mark_first_seen(&mut pod, source, Timestamp::default());
            }
            assert_eq!((is_from_api(&pod), realm(&pod)), (is_api, wanted), "{source:?}");
        }
    }
}
