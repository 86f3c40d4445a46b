//! The worker's dealings with the end the node has decided on.
//!
//! Must not know why the node cannot keep the pod.

use super::Worker;
use crate::api::pod::PodCondition;
use crate::mailbox::Eviction;
use crate::reconcile::eviction::EVICTED;
use crate::reconcile::eviction::rank::IMMEDIATELY;
use crate::reconcile::lifecycle::{PodWorkerEvent, PodWorkerState};
use crate::reconcile::status::is_terminal;
use crate::runtime::Runtime;

/// Upstream's condition of a pod that ends because of something that is not its own doing.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

impl<R: Runtime> Worker<R> {
    /// The status says so first, and durably: no agent runs the pod again, whatever happens to this one meanwhile. On a disk
    /// that takes nothing more the pod goes all the same, which may be what the disk needs.
    pub(super) async fn evict(&mut self, eviction: Eviction) {
        if !matches!(self.state, PodWorkerState::Syncing | PodWorkerState::WaitingForName) {
            return;
        }
        let Eviction { message, grace_seconds, done } = eviction;
        let mut status = self.last_status();
        if is_terminal(&status) {
            return;
        }
        self.held.clear();
        "Failed".clone_into(&mut status.phase);
        EVICTED.clone_into(&mut status.reason);
        status.message.clone_from(&message);
        status.conditions.retain(|condition| condition.type_ != DISRUPTION_TARGET);
        let condition = PodCondition {
            type_: DISRUPTION_TARGET.to_owned(),
            status: "True".to_owned(),
            observed_generation: self.pod.metadata.generation,
            last_transition_time: Some(self.shared.deps.clock.now()),
            reason: "TerminationByKubelet".to_owned(),
            message: message.clone(),
            ..PodCondition::default()
        };
        status.conditions.insert(0, condition);
        let shared = std::rc::Rc::clone(&self.shared);
        shared.deps.statuses.set(&self.pod, status);
        if let Err(error) = shared.deps.store.flush().await {
            log::warn!(pod:% = self.pod.pod_ref(), err:% = error; "Failed to remember the eviction of a pod before it ends");
        }
        shared.deps.executor.report_eviction(&self.pod, &message);
        self.evicted = Some(done);
        self.on_event(PodWorkerEvent::Evicted { grace_seconds }).await;
    }

    /// The pod ended in an earlier life of the agent and the runtime may have forgotten it since: it is not run again.
    pub(super) fn has_ended_before(&self) -> Option<PodWorkerEvent> {
        let last = self.shared.deps.statuses.last(&self.uid).filter(is_terminal)?;
        Some(match last.reason.as_str() {
            EVICTED => PodWorkerEvent::Evicted { grace_seconds: IMMEDIATELY },
            _ => PodWorkerEvent::PodTerminal,
        })
    }
}
