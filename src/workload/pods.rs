//! The pods of the controllers: what one counts as, and which of them go first.
//!
//! Pure: what it returns depends on its arguments alone.

use std::cmp::Ordering;
use std::rc::Rc;
use std::time::Duration;

use crate::model::api::pod::{ContainerStatus, Pod, PodStatus, StringMap};
use crate::model::containers::is_terminal;
use crate::model::types::{PodUid, Timestamp};

/// The finalizer of a pod that its Job has not counted.
pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A pod with its newest status.
#[derive(Clone, Debug)]
pub(crate) struct PodView {
    pub pod: Rc<Pod>,
    pub status: Rc<PodStatus>,
    /// It is being deleted, and may still run.
    pub is_deleted: bool,
}

impl PodView {
    /// A pod that was removed and still ends. The version that it was removed with may have the finalizer, but none is
    /// removed before its Job has counted it.
    pub(super) fn removed(mut pod: Rc<Pod>, status: Rc<PodStatus>) -> Self {
        if pod.metadata.finalizers.iter().any(|finalizer| finalizer == TRACKING) {
            Rc::make_mut(&mut pod).metadata.finalizers.retain(|finalizer| finalizer != TRACKING);
        }
        Self { pod, status, is_deleted: true }
    }

    pub(super) fn uid(&self) -> &PodUid {
        &self.pod.metadata.uid
    }

    pub(super) fn name(&self) -> &str {
        &self.pod.metadata.name
    }

    pub(super) fn labels(&self) -> &StringMap {
        &self.pod.metadata.labels
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.pod.metadata.annotations.get(name).map(String::as_str)
    }

    pub(super) fn label(&self, name: &str) -> &str {
        self.labels().get(name).map_or("", String::as_str)
    }

    pub(super) fn created(&self) -> Timestamp {
        self.pod.metadata.creation_timestamp.unwrap_or_default()
    }

    pub(super) fn phase(&self) -> &str {
        &self.status.phase
    }

    pub(super) fn is_terminal(&self) -> bool {
        is_terminal(&self.status)
    }

    /// Upstream's `IsPodActive`.
    pub(super) fn is_active(&self) -> bool {
        !self.is_terminal() && !self.is_deleted
    }

    /// Since when it is ready.
    pub(super) fn ready_since(&self) -> Option<Timestamp> {
        let mut conditions = self.status.conditions.iter();
        let ready = conditions.find(|condition| condition.type_ == "Ready")?;
        (ready.status == "True").then(|| ready.last_transition_time.unwrap_or_default())
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready_since().is_some()
    }

    /// How long it has to stay ready until it is available; zero: it is.
    pub(super) fn available_in(&self, min_ready: i64, now: Timestamp) -> Option<Duration> {
        let since = self.ready_since()?;
        let seconds = Duration::from_secs(u64::try_from(min_ready).unwrap_or_default());
        Some(seconds.saturating_sub(now.saturating_since(since)))
    }

    /// The uid of the object that manages it.
    pub(super) fn owner(&self) -> Option<&str> {
        owner_uid(&self.pod)
    }

    fn containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.status.init_container_statuses.iter().chain(&self.status.container_statuses)
    }

    pub(super) fn restarts(&self) -> i64 {
        self.containers().map(|container| i64::from(container.restart_count)).sum()
    }

    /// When it ended, of a pod that has (upstream: `getFinishedTime`).
    pub(super) fn finished(&self) -> Timestamp {
        let ends = self.status.container_statuses.iter().filter_map(|container| {
            let terminated = container.state.terminated.as_ref()?;
            terminated.finished_at.filter(|at| !at.is_zero())
        });
        let transition = |kind: &str| {
            let condition = self.status.conditions.iter().find(|condition| condition.type_ == kind);
            condition.and_then(|condition| condition.last_transition_time)
        };
        ends.max()
            .or_else(|| transition("Ready"))
            .or(self.pod.metadata.deletion_timestamp)
            .unwrap_or_else(|| self.created())
    }

    fn max_restarts(&self) -> i32 {
        self.containers().map(|container| container.restart_count).max().unwrap_or_default()
    }

    fn deletion_cost(&self) -> i64 {
        self.annotation(DELETION_COST).and_then(|cost| cost.parse().ok()).unwrap_or_default()
    }
}

/// The uid of the object that manages a pod.
pub(super) fn owner_uid(pod: &Pod) -> Option<&str> {
    let owner = pod.metadata.owner_references.iter().find(|owner| owner["controller"] == true)?;
    owner["uid"].as_str()
}

/// Whether its Job has not counted it.
pub(super) fn is_tracked(pod: &PodView) -> bool {
    pod.pod.metadata.finalizers.iter().any(|finalizer| finalizer == TRACKING)
}

/// Which of two pods of a ReplicaSet goes first when there are too many (upstream: `ActivePodsWithRanks`).
pub(super) fn first_to_go(one: &PodView, other: &PodView, now: Timestamp) -> Ordering {
    let phase = |pod: &PodView| match pod.phase() {
        "Pending" => 0,
        "Running" => 2,
        _ => 1,
    };
    phase(one)
        .cmp(&phase(other))
        .then_with(|| one.is_ready().cmp(&other.is_ready()))
        .then_with(|| one.deletion_cost().cmp(&other.deletion_cost()))
        .then_with(|| younger_first(one.ready_since(), other.ready_since(), now, (one, other)))
        .then_with(|| other.max_restarts().cmp(&one.max_restarts()))
        .then_with(|| younger_first(Some(one.created()), Some(other.created()), now, (one, other)))
        .then_with(|| one.uid().cmp(other.uid()))
}

/// The younger one; of two of about the same age, which is judged by its logarithm, the one with the lesser uid.
fn younger_first(
    one: Option<Timestamp>,
    other: Option<Timestamp>,
    now: Timestamp,
    pods: (&PodView, &PodView),
) -> Ordering {
    let (Some(one), Some(other)) = (one, other) else { return Ordering::Equal };
    if one == other {
        return Ordering::Equal;
    }
    let rank = |time: Timestamp| now.saturating_since(time).as_nanos().checked_ilog2();
    rank(one).cmp(&rank(other)).then_with(|| pods.0.uid().cmp(pods.1.uid()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::api::decode::decode;

    fn view(uid: &str, phase: &str, ready: Option<i64>, restarts: i32, created: i64, cost: &str) -> PodView {
        let conditions = ready.map_or(json!([]), |since| {
            let since = Timestamp::from_secs(since).to_rfc3339();
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}])
        });
        let pod = json!({
            "metadata": {"name": uid, "uid": uid, "creationTimestamp": Timestamp::from_secs(created).to_rfc3339(),
                "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}},
            "status": {"phase": phase, "conditions": conditions, "containerStatuses": [{"name": "a", "restartCount": restarts}]},
        });
        let pod = decode::<Pod>(pod).unwrap().object;
        PodView { status: Rc::new(pod.status.clone()), pod: Rc::new(pod), is_deleted: false }
    }

    #[test]
    fn pods_go_in_upstreams_order() {
        let now = Timestamp::from_secs(100_000);
        let mut pods = [
            view("old", "Running", Some(1_000), 0, 900, "0"),
            view("dear", "Running", Some(99_990), 0, 900, "100"),
            view("young", "Running", Some(99_000), 0, 900, "0"),
            view("unready", "Running", None, 0, 10, "0"),
            view("pending", "Pending", None, 0, 10, "100"),
            view("broken", "Running", Some(1_000), 3, 900, "0"),
        ];
        pods.sort_by(|one, other| first_to_go(one, other, now));
        let order: Vec<&str> = pods.iter().map(PodView::name).collect();
        assert_eq!(order, ["pending", "unready", "young", "broken", "old", "dear"]);
    }

    #[test]
    fn a_pod_becomes_available_after_it_was_ready_for_long_enough() {
        let pod = view("a", "Running", Some(100), 0, 0, "0");
        let left = |now| pod.available_in(30, Timestamp::from_secs(now)).map(|left| left.as_secs());
        assert_eq!((left(100), left(110), left(130), left(900)), (Some(30), Some(20), Some(0), Some(0)));
        assert_eq!(view("a", "Running", None, 0, 0, "0").available_in(0, Timestamp::from_secs(1)), None);
    }
}
