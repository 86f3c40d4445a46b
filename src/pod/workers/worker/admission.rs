//! The worker and admission: a place on the node, and room for resizes.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Next, Worker};
use crate::model::api::pod::{Pod, PodStatus};
use crate::model::disruption::{PREEMPTED, PREEMPTING};
use crate::model::observed::ObservedPod;
use crate::pod::admission::rules::{
    Rejection, keep_transition, may_wait, needs_runtime_features, rejected_status, was_admitted,
};
use crate::pod::inbox::Eviction;
use crate::pod::lifecycle::PodWorkerEvent;
use crate::pod::plan::{PodPlan, resize};
use crate::pod::scheduling::{gated_status, is_gated};
use crate::pod::workers::PodPressure as _;
use crate::runtime::Runtime;

/// Pause before a plugin is asked again for a waiting pod's devices. No plugin reports when they become
/// available.
const ALLOCATE_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Upstream: for killing a pod, and for cleaning up after it.
const SHORTEST_KILL: Duration = Duration::from_secs(10);
const LONGEST_CLEAN_UP: Duration = Duration::from_secs(30);

impl<R: Runtime> Worker<R> {
    /// A running pod keeps its place; any other pod needs one. `Some` when it must wait for room or for its
    /// gates, or has failed for want of room.
    pub(super) async fn wait_for_admission(&mut self, observed: &ObservedPod) -> Option<Next> {
        let shared = Rc::clone(&self.shared);
        let admission = &shared.deps.admission;
        let last = shared.deps.statuses.last(&self.uid);
        self.had_place |= last.as_ref().is_some_and(was_admitted);
        self.resizing.learn(observed, last.as_ref());
        if observed.ready_sandbox().is_some() || observed.live_containers().next().is_some() {
            shared.wake(self.resizing.allocate(&self.pod, observed, admission));
            shared.deps.executor.keep_resources(&self.pod).await;
            return None;
        }
        if is_gated(&self.pod.spec) {
            let last = shared.deps.statuses.last(&self.uid);
            let status = gated_status(&self.pod, last.as_ref(), shared.deps.clock.now());
            shared.deps.statuses.set(&self.pod, status);
            return Some(Next::OnUpdate);
        }
        if needs_runtime_features(&self.pod) {
            match shared.deps.runtime.status().await {
                Ok(status) => {
                    shared.wake(admission.set_runtime_features(&shared.deps.executor.by_class_name(&status)));
                }
                Err(error) => return Some(self.runtime_trouble(&error)),
            }
        }
        self.resizing.allocate_all();
        self.preempt().await;
        let (verdict, news) = admission.admit(&self.pod);
        shared.wake(news);
        if let Err(rejection) = verdict {
            return Some(self.reject(observed, &rejection, Next::OnUpdate).await);
        }
        let rejection =
            Rejection::of_allocation(shared.deps.executor.allocate_devices(&self.pod).await.err()?);
        let last = shared.deps.statuses.last(&self.uid);
        let is_told = last.is_some_and(|last| rejection.is_in(&last));
        shared.wake(admission.revoke(&self.pod, &rejection, is_told));
        Some(self.reject(observed, &rejection, Next::After(ALLOCATE_AGAIN_AFTER)).await)
    }

    /// Publishes why the pod does not run. Returns `again` when it waits; a pod that has failed is ended.
    async fn reject(&mut self, observed: &ObservedPod, rejection: &Rejection, again: Next) -> Next {
        let shared = Rc::clone(&self.shared);
        let status = self.status(observed, &PodPlan::default());
        let waits = may_wait(&self.pod, rejection, self.had_place);
        let mut status = rejected_status(status, !observed.containers.is_empty(), rejection, waits);
        let last = shared.deps.statuses.last(&self.uid);
        status.start_time = last.as_ref().and_then(|last| last.start_time).or(status.start_time);
        keep_transition(&mut status, last.as_ref());
        shared.deps.statuses.set(&self.pod, status);
        if waits {
            return again;
        }
        self.on_event(PodWorkerEvent::PodTerminal).await;
        Next::Now
    }

    /// Ends other pods when a critical pod of the cluster has no room, and waits until their resources are free.
    async fn preempt(&self) {
        let mut ending = Vec::new();
        for victim in self.shared.deps.admission.victims(&self.pod) {
            let (done, ended) = oneshot::channel();
            let grace_seconds = victim.termination_grace_period_seconds();
            log::info!(pod:% = victim.pod_ref(), requestingPod:% = self.pod.pod_ref(); "Preempting pod to free up \
                 resources");
            let message = PREEMPTED.to_owned();
            let eviction = Eviction { is_shutdown: false, reason: PREEMPTING, message, grace_seconds, done };
            self.shared.evict(&victim.metadata.uid, eviction);
            let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or_default());
            ending.push((ended, Instant::now() + SHORTEST_KILL.max(grace * 3 / 2) + LONGEST_CLEAN_UP));
        }
        for (ended, until) in ending {
            // Dropped or late: admission says whether there is room.
            let _ = timeout_at(until, ended).await;
        }
    }

    /// Records the events of a resize, once per step.
    pub(super) fn record_resize(&self, status: &PodStatus, allocated: &Pod) {
        let deps = &self.shared.deps;
        let before = deps.statuses.last(&self.uid).unwrap_or_default();
        for news in resize::events_between(&before, status, &self.pod, allocated) {
            deps.executor.record_resize(&self.pod, &news);
        }
    }

    /// Sets the pod's cgroup to the larger of current and desired resources: it is widened before containers
    /// grow, and narrowed after they have shrunk.
    pub(super) async fn keep_cgroup(&self, allocated: &Pod, observed: &ObservedPod) {
        let widest = resize::widest(allocated, observed, &self.resizing.actuated);
        self.shared.deps.executor.keep_pod_cgroup(&widest).await;
    }
}
