//! How long pods take to start, by the definition of upstream's service level: without the time for images
//! and init containers.
//!
//! Owns the data of a pod between its first appearance and its start; it is freed then.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::api::pod::{Pod, PodStatus};
use crate::model::types::PodUid;
use crate::platform::metrics::{self, Family};

/// Upstream's upper bounds of the buckets, in seconds.
pub(crate) const BUCKETS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
static SLI: Family = Family::seconds(
    "kubelet_pod_start_sli_duration_seconds",
    "Duration in seconds to start a stateless pod, excluding time to pull images and run init containers",
    &[],
)
.with_buckets(&BUCKETS);
static TOTAL: Family = Family::seconds(
    "kubelet_pod_start_total_duration_seconds",
    "Duration in seconds to start a pod, including time to pull images and run init containers",
    &[],
)
.with_buckets(&BUCKETS);

struct Start {
    since: Instant,
    pulls: u32,
    /// The time since there have been any.
    pulling: Instant,
    /// The total time of earlier pulls.
    pulled: Duration,
}

thread_local! {
    static STARTS: RefCell<BTreeMap<PodUid, Start>> = const { RefCell::new(BTreeMap::new()) };
}

/// A pod appears for the first time.
pub(crate) fn expect(uid: &PodUid) {
    let now = Instant::now();
    let start = || Start { since: now, pulls: 0, pulling: now, pulled: Duration::ZERO };
    STARTS.with_borrow_mut(|all| {
        all.entry(uid.clone()).or_insert_with(start);
    });
}

/// An image is being pulled for a pod, until this is dropped.
pub(crate) struct Pull(PodUid);

impl Pull {
    #[must_use]
    pub(crate) fn begin(uid: &PodUid) -> Self {
        change(uid, |start| {
            if start.pulls == 0 {
                start.pulling = Instant::now();
            }
            start.pulls += 1;
        });
        Self(uid.clone())
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        change(&self.0, |start| {
            start.pulls = start.pulls.saturating_sub(1);
            if start.pulls == 0 {
                start.pulled += start.pulling.elapsed();
            }
        });
    }
}

fn change(uid: &PodUid, change: impl FnOnce(&mut Start)) {
    STARTS.with_borrow_mut(|all| all.get_mut(uid).map(change));
}

/// Takes a new status of a pod: once all its containers run, its start duration is recorded, and its data is
/// freed.
pub(crate) fn observe(pod: &Pod, status: &PodStatus) {
    let containers = &status.container_statuses;
    let is_over = matches!(status.phase.as_str(), "Succeeded" | "Failed");
    let runs = !containers.is_empty() && containers.iter().all(|container| container.state.running.is_some());
    if !is_over && !runs {
        return;
    }
    let Some(start) = forget(&pod.metadata.uid).filter(|_| !is_over) else { return };
    let total = start.since.elapsed();
    metrics::observe(&TOTAL, &[], total);
    if !is_stateful(pod) {
        metrics::observe(&SLI, &[], total.saturating_sub(start.pulled).saturating_sub(of_init(status)));
    }
}

/// Frees the data of a removed pod.
pub(crate) fn remove(uid: &PodUid) {
    let _ = forget(uid);
}

fn forget(uid: &PodUid) -> Option<Start> {
    STARTS.with_borrow_mut(|all| all.remove(uid))
}

/// Of those that have ended; one that was started again counts with its last run.
fn of_init(status: &PodStatus) -> Duration {
    let ended = status.init_container_statuses.iter().filter_map(|container| {
        let ended = container.state.terminated.as_ref()?;
        Some(ended.finished_at?.saturating_since(ended.started_at?))
    });
    ended.sum()
}

/// Upstream's word for a pod with a volume that is no Secret, ConfigMap, downward API or emptyDir.
fn is_stateful(pod: &Pod) -> bool {
    pod.spec.volumes.iter().any(|volume| {
        volume.secret.is_none()
            && volume.config_map.is_none()
            && volume.downward_api.is_none()
            && volume.empty_dir.is_none()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::api::decode::decode;

    #[expect(clippy::needless_pass_by_value, reason = "its callers write it in place")]
    fn pod(uid: &str, volumes: serde_json::Value) -> Pod {
        decode(json!({"metadata": {"name": "p", "uid": uid}, "spec": {"volumes": volumes}})).unwrap().object
    }

    #[expect(clippy::needless_pass_by_value, reason = "its callers write it in place")]
    fn status(init: serde_json::Value, states: &[&str]) -> PodStatus {
        let containers: Vec<_> =
            states.iter().map(|state| json!({"name": "c", "state": {*state: {}}})).collect();
        let whole =
            json!({"phase": "Pending", "initContainerStatuses": init, "containerStatuses": containers});
        decode::<Pod>(json!({"status": whole})).unwrap().object.status
    }

    fn shown() -> Vec<String> {
        let mut text = metrics::Text::default();
        metrics::write_recorded(&mut text, &["kubelet_pod_start_"]);
        let text = text.finish();
        let wanted = |line: &&str| line.contains("_sum ") || line.contains("_count ");
        text.lines()
            .filter(wanted)
            .map(|line| line.trim_start_matches("kubelet_pod_start_").to_owned())
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn start_sli_excludes_pulls_and_init_and_counts_a_pod_once() {
        let uid = PodUid::from("a");
        let one = pod("a", json!([{"name": "v", "emptyDir": {}}]));
        let second = async || tokio::time::advance(Duration::from_secs(1)).await;
        expect(&uid);
        second().await;
        let first = Pull::begin(&uid);
        second().await;
        let other = Pull::begin(&uid);
        second().await;
        drop(first);
        second().await;
        drop(other);
        second().await;
        let init = json!([{"name": "i", "state": {"terminated":
            {"exitCode": 0, "startedAt": "2026-11-20T16:00:00Z", "finishedAt": "2026-11-20T16:00:01Z"}}}]);
        observe(&one, &status(init.clone(), &["running", "waiting"]));
        assert_eq!(shown(), Vec::<String>::new(), "one of them does not run yet");
        second().await;
        for _ in 0..2 {
            observe(&one, &status(init.clone(), &["running", "running"]));
        }
        let expected = [
            "sli_duration_seconds_sum 2",
            "sli_duration_seconds_count 1",
            "total_duration_seconds_sum 6",
            "total_duration_seconds_count 1",
        ];
        assert_eq!(shown(), expected);

        let kept = pod("b", json!([{"name": "v", "hostPath": {"path": "/d"}}]));
        expect(&kept.metadata.uid);
        second().await;
        observe(&kept, &status(json!([]), &["running"]));
        assert_eq!(shown()[2..], ["total_duration_seconds_sum 7", "total_duration_seconds_count 2"]);
        assert_eq!(shown()[1], expected[1], "it keeps something");

        let ended = pod("c", json!([]));
        expect(&ended.metadata.uid);
        observe(&ended, &PodStatus { phase: "Failed".to_owned(), ..PodStatus::default() });
        observe(&ended, &status(json!([]), &["running"]));
        assert_eq!(shown()[3], "total_duration_seconds_count 2");
    }
}
