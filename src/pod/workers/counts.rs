//! What is known of restarts beside the runtime's records: the store's counts and back-off, the last status, the log files.
//!
//! Owns the counts of one pod between looks. Must not decide which of them counts: that is the plan's.

use std::collections::BTreeMap;

use crate::model::api::pod::{Pod, PodStatus};
use crate::model::back_off::BackOff;
use crate::model::observed::ObservedPod;
use crate::model::ordered::Ordered as _;
use crate::model::types::ContainerName;
use crate::pod::executor::Executor;
use crate::pod::plan::{Action, PodPlan};
use crate::pod::restart::counts_after;
use crate::pod::workers::ContainerStates;
use crate::runtime::Runtime;
use crate::store::{StoreHandle, StoredContainerState};

/// Of one pod.
pub(super) struct Counts {
    stored: ContainerStates,
    /// What the log files say of the next counts; `None` before the first look.
    logged: Option<BTreeMap<ContainerName, u32>>,
}

impl Counts {
    /// Starts from what the store remembers.
    pub(super) fn new(stored: ContainerStates) -> Self {
        Self { stored, logged: None }
    }

    /// A new life of the pod: nothing of the old one counts.
    pub(super) fn clear(&mut self) {
        self.stored.clear();
        self.logged = Some(BTreeMap::new());
    }

    /// At the first look: where the runtime knows nothing of the pod, as after a reboot, the log files tell which instances
    /// there were (upstream: `calcRestartCountByLogDir`). The last status cannot: it may be older than the last start.
    pub(super) async fn learn<R: Runtime>(
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

    /// Restart counts and back-off are on disk before the restart happens, so that no crash makes a busy loop of a crash
    /// loop. First starts have nothing to remember and write nothing.
    pub(super) async fn remember(&mut self, pod: &Pod, plan: &PodPlan, store: &StoreHandle) {
        for action in &plan.actions {
            let Action::StartContainer(start) = action else { continue };
            let state = StoredContainerState { restart_count: start.attempt, back_off: start.back_off };
            let known = self.stored.get(&start.name).copied().unwrap_or_default();
            if known == state {
                continue;
            }
            let written = store.put_container_state(&pod.metadata.uid, &start.name, state).await;
            if let Err(error) = written {
                // A full or read-only disk must not stop what should run: the store writes it when it can.
                log::warn!(pod:% = pod.pod_ref(), err:% = error; "Failed to remember restart count");
            }
            self.stored.insert(start.name.clone(), state);
        }
    }

    /// Crash-loop entries.
    pub(super) fn back_off(&self) -> BTreeMap<ContainerName, BackOff> {
        self.stored.iter().filter_map(|(name, state)| Some((name.clone(), state.back_off?))).into_map()
    }

    /// The store's counts.
    pub(super) fn stored(&self) -> BTreeMap<ContainerName, u32> {
        self.stored.iter().map(|(name, state)| (name.clone(), state.restart_count)).into_map()
    }

    /// What the last status and the log files say of the next counts.
    pub(super) fn shown(&self, last: Option<&PodStatus>) -> BTreeMap<ContainerName, u32> {
        let mut shown = counts_after(last);
        for (name, count) in self.logged.iter().flatten() {
            let known = shown.entry(name.clone()).or_default();
            *known = (*known).max(*count);
        }
        shown
    }
}
