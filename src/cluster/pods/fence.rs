//! Which pods end because the node has been without its cluster for too long (`--offline-max-age`): those of which
//! the cluster may have started another one elsewhere.
//!
//! Owns the decision.
//!
//! Pure: what it returns depends on its arguments alone.

use std::time::Duration;

use serde_json::Value;

use crate::model::api::pod::Pod;
use crate::model::containers::is_terminal;
use crate::model::duration::GoDuration;
use crate::model::provenance::is_of_cluster;
use crate::model::types::{PodUid, Timestamp};

/// Reason in the status of a pod that was ended.
pub(crate) const OFFLINE_TOO_LONG: &str = "OfflineTooLong";
/// Fences any pod; its value is a duration, `true` for the node's own limit, or `false`.
const ANNOTATION: &str = "cluster.agent.edge/offline-max-age";

/// The pods to end. `last_contact` is when the cluster last answered; `offline_since_boot` bounds the age from
/// below, for a clock that is wrong after a power cut.
pub(crate) fn expired<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    last_contact: Timestamp,
    now: Timestamp,
    offline_since_boot: Duration,
    limit: Option<Duration>,
) -> Vec<PodUid> {
    let age = now.saturating_since(last_contact).max(offline_since_boot);
    pods.filter(|pod| {
        is_of_cluster(pod) && !is_terminal(&pod.status) && pod.metadata.deletion_timestamp.is_none()
    })
    .filter(|pod| limit_of(pod, limit).is_some_and(|limit| age > limit))
    .map(|pod| pod.metadata.uid.clone())
    .collect()
}

fn limit_of(pod: &Pod, limit: Option<Duration>) -> Option<Duration> {
    let is_stateful = |owner: &Value| owner["kind"] == "StatefulSet";
    let limit = match pod.metadata.annotations.get(ANNOTATION).map(String::as_str) {
        Some("false") => None,
        Some(own) => GoDuration::parse(own).map_or(limit, |own| Some(own.to_std())),
        None => limit.filter(|_| pod.metadata.owner_references.iter().any(is_stateful)),
    };
    limit.filter(|limit| !limit.is_zero())
}
