//! The worker during the execution of a plan: updates that it takes, statuses that it publishes, failures
//! that it records.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Worker;
use crate::model::api::pod::Pod;
use crate::model::observed::ObservedPod;
use crate::pod::executor::{Execution, Patience};
use crate::pod::hooks::longest_kill;
use crate::pod::image::StartFailure;
use crate::pod::lifecycle::PodWorkerState;
use crate::pod::plan::{Action, PodPlan};
use crate::pod::workers::failed_starts::FailedStart;
use crate::runtime::Runtime;

impl<R: Runtime> Worker<R> {
    /// Executes a plan. A removal that arrives meanwhile cancels what can be cancelled (pulls, hooks, stops),
    /// so that the pod can be taken down at once.
    pub(super) async fn act(&mut self, pod: &Pod, observed: &ObservedPod, plan: &PodPlan) {
        let (shared, inbox) = (Rc::clone(&self.shared), Rc::clone(&self.inbox));
        let patience = Patience::UntilRemoval(Rc::clone(&inbox));
        let mut execution = pin!(shared.deps.executor.execute(pod, observed, plan, &patience));
        let mut seen = inbox.observation_requests();
        let execution = loop {
            tokio::select! {
                biased;
                execution = &mut execution => break execution,
                // Cancel safe: requests are counted.
                () = inbox.observation_requested(seen) => {
                    seen = inbox.observation_requests();
                    self.show_probes(observed, plan);
                }
            }
        };
        self.note_failures(execution, plan);
    }

    /// A plan may take long: results of probes are published at once meanwhile, as upstream does.
    fn show_probes(&self, observed: &ObservedPod, plan: &PodPlan) {
        let status = self.status(observed, plan);
        self.shared.deps.statuses.set(&self.pod, status);
    }

    /// Executes a plan that takes the pod down, and takes updates meanwhile: a shorter grace period has
    /// effect at once.
    pub(super) async fn execute_termination(&mut self, observed: &ObservedPod, plan: &PodPlan) -> Execution {
        let (shared, pod, inbox) = (Rc::clone(&self.shared), Rc::clone(&self.pod), Rc::clone(&self.inbox));
        let (end, ends) = watch::channel(self.end_of_grace());
        let patience = Patience::Until(ends);
        let mut execution = pin!(shared.deps.executor.execute(&pod, observed, plan, &patience));
        let mut seen = inbox.observation_requests();
        loop {
            tokio::select! {
                biased;
                execution = &mut execution => return execution,
                // Cancel safe: requests are counted.
                () = inbox.observation_requested(seen) => {
                    seen = inbox.observation_requests();
                    self.show_probes(observed, plan);
                }
                // Cancel safe: an event that was not recorded is recorded on the next attempt.
                () = tokio::time::sleep(self.time_until_late()), if !self.is_late => {
                    self.is_late = true;
                    shared.deps.executor.report_late_end(&pod);
                }
                // Cancel safe: updates stay in the mailbox until they are taken.
                () = inbox.pod_update() => {
                    self.read(inbox.take_pod_updates()).await;
                    let earlier = self.end_of_grace();
                    end.send_if_modified(|end| {
                        let is_earlier = earlier < *end;
                        *end = earlier.min(*end);
                        is_earlier
                    });
                    self.mark_removal().await;
                }
            }
        }
    }

    /// Time until the pod has exceeded its longest expected termination.
    fn time_until_late(&self) -> Duration {
        match self.state {
            PodWorkerState::Terminating { since, grace_seconds, .. } => longest_kill(grace_seconds)
                .saturating_sub(self.shared.deps.clock.now().saturating_since(since)),
            _ => Duration::MAX,
        }
    }

    /// On the monotonic clock. Now, for a pod that is not being taken down.
    fn end_of_grace(&self) -> Instant {
        let left = self.state.grace_left(self.shared.deps.clock.now()).unwrap_or_default();
        Instant::now() + Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }

    fn note_failures(&mut self, execution: Execution, plan: &PodPlan) {
        let now = self.shared.deps.clock.now();
        for action in &plan.actions {
            match action {
                Action::StartContainer(start) => {
                    self.failed_starts.containers.remove(&start.name);
                }
                Action::CreateSandbox { .. } => self.failed_starts.pod = None,
                Action::ResizeContainer(_) => self.failed_starts.resize = None,
                _ => {}
            }
        }
        let held = |failure: StartFailure| FailedStart {
            reason: failure.reason,
            message: failure.message,
            until: failure.retry_after.map(|after| now.saturating_add(after)),
        };
        for (name, failure) in execution.containers {
            self.failed_starts.containers.insert(name, held(failure));
        }
        if let Some(failure) = execution.pod {
            self.failed_starts.pod = Some(held(failure));
        }
        self.failed_starts.resize = execution.resize.map(held).or(self.failed_starts.resize.take());
        self.resizing.note(execution.resized);
    }
}
