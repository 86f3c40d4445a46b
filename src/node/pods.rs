//! Eviction of pods, one at a time.
//!
//! Owns the order of steps: first unused images and containers are removed, then the first pod in the order
//! is evicted, then the agent waits until all its resources are free.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Look, NodeManager};
use crate::model::api::pod::Pod;
use crate::model::disruption::{EVICTED, IMMEDIATELY, Pressure};
use crate::model::ordered::Ordered as _;
use crate::model::types::PodUid;
use crate::node::eviction::limits::{exceeded, has_limits};
use crate::node::eviction::rank::{Disks, grace_seconds, is_candidate, message, rank};
use crate::node::eviction::{Signal, Threshold};
use crate::node::usage::PodUse;
use crate::platform::metrics::{self, Family};
use crate::pod::admission::rules::is_rejected;
use crate::pod::events::EventType;
use crate::pod::inbox::Eviction;
use crate::pod::scheduling::is_gated;

static EVICTIONS: Family = Family::counter(
    "kubelet_evictions",
    "Cumulative number of pod evictions, by eviction signal",
    &["eviction_signal"],
);

/// How often limits of local storage are checked, while a pod has one: each check walks the pod's
/// directories.
const LIMITS_PERIOD: Duration = Duration::from_secs(60);
/// Upstream: for killing the pod, and for cleaning up after it.
const SHORTEST_KILL: Duration = Duration::from_secs(10);
const LONGEST_CLEAN_UP: Duration = Duration::from_secs(30);

impl NodeManager {
    /// Reclaims for a threshold. `true`: something was reclaimed, and its effect has to be measured.
    pub(super) async fn reclaim(&mut self, threshold: Threshold, look: &Look) -> bool {
        let signal = threshold.signal;
        let is_news = self.reported_signal.replace(signal) != Some(signal);
        if is_news {
            let message = format!("Attempting to reclaim {}", signal.resource());
            self.parts.events.node_event(EventType::Warning, "EvictionThresholdMet", &message);
        }
        if self.is_futile {
            return false;
        }
        if signal.pressure() == Pressure::Disk {
            if is_news {
                // Workers remove dead containers now; that may be enough.
                return true;
            }
            if frees_images(signal, look.disks) && self.free_for_thresholds().await {
                return true;
            }
        }
        let evicted = self.evict_one(threshold, look).await;
        self.is_futile = !evicted;
        evicted
    }

    async fn evict_one(&mut self, threshold: Threshold, look: &Look) -> bool {
        let pods = self.candidates();
        if pods.is_empty() {
            log::debug!(signal = threshold.signal.name(); "Unable to evict any pods from the node");
            return false;
        }
        let usage = self.measure().await;
        let with_usage = pods.iter().map(|pod| (pod, usage.get(&pod.metadata.uid)));
        let ranked = rank(threshold.signal, with_usage, look.disks);
        let Some(pod) = ranked.first() else { return false };
        let message = message(pod, usage.get(&pod.metadata.uid), &threshold, &look.seen);
        let grace = grace_seconds(pod, &threshold, self.parts.config.get().eviction.max_pod_grace_seconds);
        self.evict(pod, message, grace, threshold.signal.name()).await;
        true
    }

    /// Pods that may be evicted and hold resources.
    fn candidates(&self) -> Vec<Pod> {
        let mut pods = self.parts.statuses.all_pods();
        pods.retain(|pod| is_candidate(pod) && !is_rejected(&pod.status) && !is_gated(&pod.spec));
        pods
    }

    async fn measure(&self) -> BTreeMap<PodUid, PodUse> {
        match (self.parts.measure)().await {
            Ok(summary) => summary.pods.into_iter().map(|pod| (pod.pod.uid.clone(), pod)).into_map(),
            Err(error) => {
                log::warn!(err = error; "Failed to collect pod usage");
                BTreeMap::new()
            }
        }
    }

    /// Evicts a pod and waits until its resources are free, up to a bound.
    async fn evict(&self, pod: &Pod, message: String, grace_seconds: i64, signal: &str) {
        log::info!(pod:% = pod.pod_ref(), signal = signal, graceSeconds = grace_seconds; "Evicting pod");
        metrics::count(&EVICTIONS, &[signal]);
        let (done, ended) = oneshot::channel();
        let eviction = Eviction { is_shutdown: false, reason: EVICTED, message, grace_seconds, done };
        self.parts.pods.evict(&pod.metadata.uid, eviction);
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or_default());
        let patience = SHORTEST_KILL.max(grace * 3 / 2) + LONGEST_CLEAN_UP;
        if tokio::time::timeout(patience, ended).await.is_err() {
            log::warn!(pod:% = pod.pod_ref(); "Timed out waiting for evicted pod to terminate");
        }
    }

    /// Evicts pods that use more of the disk than their limits. Returns the time until the next check, if any
    /// pod has a limit.
    pub(super) async fn enforce_limits(&mut self, disks: Disks) -> Option<Duration> {
        if !self.parts.config.get().isolates_storage {
            return None;
        }
        let mut pods = self.candidates();
        pods.retain(has_limits);
        if pods.is_empty() {
            return None;
        }
        let now = self.now();
        if now >= self.limits_at {
            let usage = self.measure().await;
            for pod in &pods {
                let why = usage.get(&pod.metadata.uid).and_then(|usage| exceeded(pod, usage, disks));
                if let Some((signal, message)) = why {
                    self.evict(pod, message, IMMEDIATELY, signal).await;
                }
            }
            self.limits_at = self.now().saturating_add(LIMITS_PERIOD);
        }
        Some(self.limits_at.saturating_sub(now))
    }
}

/// Images are on the disk that is short of space.
fn frees_images(signal: Signal, disks: Disks) -> bool {
    let of_images = matches!(signal, Signal::ImagefsAvailable | Signal::ImagefsInodesFree);
    of_images || !disks.has_imagefs
}
