//! What is known of restarts beside the runtime's records: the store's counts and back-off, the last status,
//! the log files.
//!
//! Owns the counts of one pod between syncs. Must not decide which of them counts: the plan does.

use std::collections::BTreeMap;

use crate::model::api::pod::{Pod, PodStatus};
use crate::model::back_off::BackOff;
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedPod};
use crate::model::ordered::Ordered as _;
use crate::model::types::ContainerName;
use crate::pod::executor::Executor;
use crate::pod::plan::{Action, PodPlan};
use crate::pod::restart::counts_after;
use crate::pod::workers::ContainerStates;
use crate::runtime::Runtime;
use crate::store::{StoreHandle, StoredContainerState};

/// The state from which a pod that comes back under its uid continues.
#[derive(Clone, Default)]
pub(super) struct EarlierLife {
    states: ContainerStates,
    /// The newest record of each container that ran. The runtime has removed them.
    ended: Vec<ObservedContainer>,
}

impl EarlierLife {
    /// Nothing of the pod ever ran.
    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty() && self.ended.is_empty()
    }
}

/// Of one pod.
pub(super) struct Counts {
    stored: ContainerStates,
    /// Of containers that have not started since the pod came back.
    earlier: EarlierLife,
    /// The last runs of this life, kept when their records are about to be removed.
    ended: Vec<ObservedContainer>,
    /// The next restart counts by the log files; `None` before the first observation.
    logged: Option<BTreeMap<ContainerName, u32>>,
}

impl Counts {
    /// Starts from the stored counts, and from those of an earlier life of the pod.
    pub(super) fn new(stored: ContainerStates, earlier: EarlierLife) -> Self {
        Self { stored, earlier, ended: Vec::new(), logged: None }
    }

    /// To be called before the runtime's records are removed.
    pub(super) fn remember_ended(&mut self, observed: &ObservedPod) {
        for record in observed.containers.iter().filter(|record| record.state == ContainerStateKind::Exited) {
            if self.ended.iter().all(|kept| kept.name != record.name) {
                self.ended.push(record.clone());
            }
        }
    }

    /// The state from which the next life of the pod continues: restart counts and back-off together, or a
    /// start would count as a restart without its wait.
    pub(super) fn take_life(&mut self) -> EarlierLife {
        let mut life = std::mem::take(&mut self.earlier);
        life.ended.retain(|record| self.ended.iter().all(|newer| newer.name != record.name));
        life.ended.append(&mut self.ended);
        life.states.append(&mut self.stored);
        life
    }

    /// A new life of the pod begins in the same worker.
    pub(super) fn begin_next_life(&mut self) {
        self.earlier = self.take_life();
        self.logged = Some(BTreeMap::new());
    }

    /// At the first observation: if the runtime has no record of the pod, as after a reboot, the log files
    /// tell which instances there were (upstream: `calcRestartCountByLogDir`). The last status cannot: it may
    /// be older than the last start.
    pub(super) async fn restore_counts<R: Runtime>(
        &mut self,
        pod: &Pod,
        observed: &ObservedPod,
        executor: &Executor<R>,
    ) {
        if self.logged.is_some() {
            return;
        }
        let is_unknown = observed.sandboxes.is_empty() && observed.containers.is_empty();
        self.logged = Some(if is_unknown { executor.logged_counts(pod).await } else { BTreeMap::new() });
    }

    /// Stores restart counts and back-off before the restart happens, so that a crash of the agent cannot
    /// turn a crash loop into a busy loop. First starts have no counts and write nothing.
    pub(super) async fn remember(&mut self, pod: &Pod, plan: &PodPlan, store: &StoreHandle) {
        for action in &plan.actions {
            let Action::StartContainer(start) = action else { continue };
            let state = StoredContainerState { restart_count: start.attempt, back_off: start.back_off };
            // From here on the runtime's record of the new instance has its end.
            self.earlier.states.remove(&start.name);
            self.earlier.ended.retain(|record| record.name != start.name);
            let known = self.stored.get(&start.name).copied().unwrap_or_default();
            if known == state {
                continue;
            }
            let written = store.put_container_state(&pod.metadata.uid, &start.name, state).await;
            if let Err(error) = written {
                // A full or read-only disk must not stop a start: the store writes the counts when it can.
                log::warn!(pod:% = pod.pod_ref(), err:% = error; "Failed to store restart count");
            }
            self.stored.insert(start.name.clone(), state);
        }
    }

    pub(super) fn back_off(&self) -> BTreeMap<ContainerName, BackOff> {
        self.states().filter_map(|(name, state)| Some((name.clone(), state.back_off?))).into_map()
    }

    /// The counts of an earlier life of the pod, of containers that have not started since.
    pub(super) fn earlier(&self) -> BTreeMap<ContainerName, u32> {
        self.earlier.states.iter().map(|(name, state)| (name.clone(), state.restart_count)).into_map()
    }

    /// The store's counts, and those of an earlier life.
    pub(super) fn stored(&self) -> BTreeMap<ContainerName, u32> {
        self.states().map(|(name, state)| (name.clone(), state.restart_count)).into_map()
    }

    /// The last runs in an earlier life of the pod, of containers that have not started since.
    pub(super) fn ended(&self) -> Vec<ObservedContainer> {
        self.earlier.ended.clone()
    }

    fn states(&self) -> impl Iterator<Item = (&ContainerName, &StoredContainerState)> {
        self.earlier.states.iter().chain(&self.stored)
    }

    /// The next counts by the last status and the log files.
    pub(super) fn shown(&self, last: Option<&PodStatus>) -> BTreeMap<ContainerName, u32> {
        let mut shown = counts_after(last);
        for (name, count) in self.logged.iter().flatten() {
            let known = shown.entry(name.clone()).or_default();
            *known = (*known).max(*count);
        }
        shown
    }
}
