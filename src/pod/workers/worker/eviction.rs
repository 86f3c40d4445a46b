//! Evictions and shutdowns, from the worker's side.

use super::Worker;
use crate::model::api::pod::{PodCondition, PodStatus};
use crate::model::containers::is_terminal;
use crate::model::disruption::{
    EVICTED, IMMEDIATELY, OFFLINE_TOO_LONG, PREEMPTING, disruption_message, ends_for_good, is_shutdown_status,
};
use crate::model::provenance::is_of_cluster;
use crate::pod::inbox::Eviction;
use crate::pod::lifecycle::{PodWorkerEvent, PodWorkerState};
use crate::pod::status::rules::DISRUPTION_TARGET;
use crate::runtime::Runtime;

impl<R: Runtime> Worker<R> {
    /// Stores the status first, durably: no agent runs the pod again, even if this one dies meanwhile. On a
    /// full disk the pod is evicted all the same, which may free the disk.
    pub(super) async fn evict(&mut self, eviction: Eviction) {
        let is_kept = matches!(self.state, PodWorkerState::Syncing | PodWorkerState::WaitingForName);
        if eviction.is_shutdown && !(is_kept && ends_for_good(&self.pod, &eviction.message)) {
            return self.end_for_shutdown(eviction).await;
        }
        if !is_kept {
            return;
        }
        let Eviction { reason, message, grace_seconds, done, .. } = eviction;
        if !self.show_disruption(reason, &message) {
            return;
        }
        let shared = std::rc::Rc::clone(&self.shared);
        if let Err(error) = shared.deps.store.flush().await {
            log::warn!(pod:% = self.pod.pod_ref(), err:% = error; "Failed to store pod eviction");
        }
        shared.deps.executor.report_eviction(&self.pod, reason, &message);
        self.evicted = Some(done);
        self.on_event(PodWorkerEvent::Evicted { grace_seconds }).await;
    }

    /// Ends the pod for a shutdown of the machine, or earlier than it would end anyway. Nothing of that is
    /// stored: after the boot the state is as after a power cut.
    async fn end_for_shutdown(&mut self, eviction: Eviction) {
        let Eviction { reason, message, grace_seconds, done, .. } = eviction;
        let is_kept = matches!(self.state, PodWorkerState::Syncing | PodWorkerState::WaitingForName);
        if !is_kept && !matches!(self.state, PodWorkerState::Terminating { .. }) {
            return;
        }
        if is_kept && !self.show_disruption(reason, &message) {
            return;
        }
        self.ending = Some(done);
        self.on_event(PodWorkerEvent::Shutdown { grace_seconds }).await;
    }

    /// Nothing of the pod runs any more: notifies the caller that waits for it.
    pub(super) fn ended_with_machine(&mut self) {
        if matches!(self.state, PodWorkerState::Finished { .. }) {
            self.shared.deps.prober.remove(&self.uid);
        }
        self.ending = None;
    }

    /// The shutdown was cancelled: the pod is as before, and ended containers run again by their restart
    /// policy.
    pub(super) fn cancel_shutdown(&self) {
        let mut status = self.last_status();
        if !is_shutdown_status(&self.pod, &status) {
            return;
        }
        let has_run = status.container_statuses.iter().any(|container| !container.container_id.is_empty());
        (if has_run { "Running" } else { "Pending" }).clone_into(&mut status.phase);
        status.reason.clear();
        status.message.clear();
        status.conditions.retain(|condition| condition.type_ != DISRUPTION_TARGET);
        self.shared.deps.statuses.set(&self.pod, status);
    }

    /// Sets the reason of the pod's end in its status. `false`: the pod has ended before.
    fn show_disruption(&mut self, reason: &str, message: &str) -> bool {
        let mut status = self.last_status();
        if is_terminal(&status) {
            return false;
        }
        self.failed_starts.clear();
        "Failed".clone_into(&mut status.phase);
        reason.clone_into(&mut status.reason);
        message.clone_into(&mut status.message);
        status.conditions.retain(|condition| condition.type_ != DISRUPTION_TARGET);
        let condition = PodCondition {
            type_: DISRUPTION_TARGET.to_owned(),
            status: "True".to_owned(),
            observed_generation: self.pod.metadata.generation,
            last_transition_time: Some(self.shared.deps.clock.now()),
            reason: "TerminationByKubelet".to_owned(),
            message: disruption_message(reason, message).to_owned(),
            ..PodCondition::default()
        };
        status.conditions.insert(0, condition);
        self.shared.deps.statuses.set(&self.pod, status);
        true
    }

    /// The pod ended under an earlier agent and the runtime may have lost its records since, or the cluster calls it
    /// ended: it is not run again.
    pub(super) fn has_ended_before(&self) -> Option<PodWorkerEvent> {
        let last = self.shared.deps.statuses.last(&self.uid);
        let last = last.filter(is_terminal).or_else(|| self.take_end_of_cluster())?;
        Some(match last.reason.as_str() {
            EVICTED | PREEMPTING | OFFLINE_TOO_LONG => PodWorkerEvent::Evicted { grace_seconds: IMMEDIATELY },
            _ => PodWorkerEvent::PodTerminal,
        })
    }

    /// The cluster calls the pod ended, and the records of this node do not say so: an end is never taken back.
    fn take_end_of_cluster(&self) -> Option<PodStatus> {
        let end = &self.pod.status;
        if !is_of_cluster(&self.pod) || !is_terminal(end) {
            return None;
        }
        let mut status = self.shared.deps.statuses.last(&self.uid).unwrap_or_else(|| end.clone());
        status.phase.clone_from(&end.phase);
        status.reason.clone_from(&end.reason);
        status.message.clone_from(&end.message);
        self.shared.deps.statuses.set(&self.pod, status.clone());
        Some(status)
    }
}
