//! Which pods end because the node has been without its cluster for too long (`--offline-max-age`): those of which
//! the cluster may have started another one elsewhere.
//!
//! Owns the decision, which is pure, and the task that asks for it.

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::model::api::pod::Pod;
use crate::model::containers::is_terminal;
use crate::model::disruption::OFFLINE_TOO_LONG;
use crate::model::duration::GoDuration;
use crate::model::provenance::is_of_cluster;
use crate::model::types::{PodUid, Timestamp};
use crate::platform::clock::Clock;
use crate::pod::inbox::Eviction;
use crate::pod::status::StatusManager;
use crate::pod::workers::PodPressure;

pub(crate) struct FenceParts {
    /// `--offline-max-age`.
    pub limit: Option<Duration>,
    pub statuses: Rc<StatusManager>,
    pub pods: Rc<dyn PodPressure>,
    pub clock: Clock,
    /// When the cluster last answered; `None` while it does, and for a node that it has never answered.
    pub last_contact: Rc<dyn Fn() -> Option<Timestamp>>,
}

/// The task `cluster fence`. It ends with the process.
pub(crate) async fn run(parts: FenceParts) {
    let mut lost = None;
    loop {
        sleep(TICK).await;
        let Some(last_contact) = (parts.last_contact)() else {
            lost = None;
            continue;
        };
        // The last tick that found the cluster is as late as this one: the bound stays one from below.
        let uptime = parts.clock.since_boot();
        let offline = uptime.saturating_sub(*lost.get_or_insert(uptime));
        let pods = parts.statuses.all_pods();
        for uid in expired(pods.iter(), last_contact, parts.clock.now(), offline, parts.limit) {
            let pod = pods.iter().find(|pod| pod.metadata.uid == uid);
            let grace_seconds = pod.map_or(0, Pod::termination_grace_period_seconds);
            let message = format!(
                "Pod was terminated: the node has had no contact with its cluster since {}.",
                last_contact.to_rfc3339()
            );
            let (done, _) = oneshot::channel();
            let eviction =
                Eviction { is_shutdown: false, reason: OFFLINE_TOO_LONG, message, grace_seconds, done };
            parts.pods.evict(&uid, eviction);
        }
    }
}

/// How often the task asks. Limits are minutes at least.
const TICK: Duration = Duration::from_secs(30);
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

#[cfg(test)]
mod tests;
