//! Stopping containers: hooks first, then groups one after another, members of a group at the same time, one
//! grace budget for all.
//!
//! Owns the waits during a stop and their bounds.

use std::pin::pin;
use std::rc::Rc;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Duration, Instant, sleep_until};

use crate::model::containers::{ContainerKind, find_container};
use crate::model::observed::ContainerStateKind;
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::executor::hooks::{HookRunner, HookSite};
use crate::pod::executor::{Executor, Run, field_path, retry_after};
use crate::pod::hooks::{self, Hook, stop_grace};
use crate::pod::image::StartFailure as Failure;
use crate::pod::inbox::Inbox;
use crate::pod::plan::StopContainer;
use crate::runtime::{Runtime, RuntimeError};

/// What may shorten the waits of a running plan.
#[derive(Clone)]
pub(crate) enum Patience {
    /// The pod is to run. Its removal cancels pulls, hooks and stops: it is taken down by another plan.
    UntilRemoval(Rc<Inbox>),
    /// The pod is being taken down, and this is the end of its grace period. It may move earlier while the
    /// plan runs.
    Until(watch::Receiver<Instant>),
}

impl Patience {
    /// For a plan whose waits are never shortened.
    #[must_use]
    pub(in crate::pod) fn as_planned() -> Self {
        let far = Instant::now() + Duration::from_secs(365 * 24 * 3600);
        Self::Until(watch::channel(far).1)
    }

    /// A plan for a pod that was to run has become obsolete.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::UntilRemoval(inbox) if inbox.has_removal())
    }

    /// Returns when [`Self::is_over`] becomes true.
    pub(super) async fn over(&self) {
        match self {
            Self::UntilRemoval(inbox) => inbox.removal().await,
            Self::Until(_) => std::future::pending().await,
        }
    }
}

/// The time that a container has to stop. It can only get shorter.
struct Grace {
    end: Instant,
    /// The end of the pod's grace period.
    of_pod: Option<watch::Receiver<Instant>>,
}

impl Grace {
    fn new(time: Duration, patience: &Patience) -> Self {
        let end = Instant::now() + time;
        match patience {
            Patience::UntilRemoval(_) => Self { end, of_pod: None },
            Patience::Until(of_pod) => Self { end: end.min(*of_pod.borrow()), of_pod: Some(of_pod.clone()) },
        }
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    async fn shortened(&mut self) {
        if let Some(of_pod) = &mut self.of_pod
            && let Ok(earlier) = of_pod.wait_for(|of_pod| *of_pod < self.end).await
        {
            self.end = *earlier;
            return;
        }
        std::future::pending::<()>().await;
    }
}

struct Stopping<R> {
    runtime: Rc<R>,
    hooks: Rc<HookRunner<R>>,
    events: EventRecorder,
    site: HookSite,
    field_path: String,
    message: String,
    /// Only of a container that runs.
    pre_stop: Option<Hook>,
    grace: Grace,
}

impl<R: Runtime> Stopping<R> {
    /// Expected flow: the event, the hook, the wait for `turn` to reach `group`, the runtime's stop. All
    /// within the grace, except that the runtime always gets two seconds.
    async fn run(mut self, group: usize, turn: watch::Receiver<usize>) -> Result<(), RuntimeError> {
        self.event(EventType::Normal, "Killing", &self.message);
        let late = match self.pre_stop.take().filter(|_| !self.grace.left().is_zero()) {
            Some(hook) => self.run_pre_stop(hook).await,
            None => None,
        };
        self.wait_for_group(group, turn).await;
        let stopped = self.stop().await;
        if let Some(mut late) = late {
            let killed = || Err("the container was stopped before the hook completed".to_owned());
            self.report_hook_outcome(late.try_join_next().map_or_else(killed, flat));
        }
        stopped
    }

    /// Waits for the hook until the grace period is over. A hook that is still running then is returned: it
    /// is not awaited any more, and runs until its container is killed.
    async fn run_pre_stop(&mut self, hook: Hook) -> Option<JoinSet<Result<(), String>>> {
        let is_sleep = hook.handler.sleep.is_some();
        let (hooks, site) = (Rc::clone(&self.hooks), self.site.clone());
        let mut running = JoinSet::new();
        running.spawn_local(async move { hooks.run(&site, &hook).await });
        let end = self.grace.end;
        let outcome = tokio::select! {
            biased;
            Some(outcome) = running.join_next() => flat(outcome),
            () = sleep_until(end) => return (!is_sleep).then_some(running),
            // Dropping the hook is safe: a shorter grace period asks for an earlier stop.
            () = self.grace.shortened() => Err("the grace period was shortened".to_owned()),
        };
        // A sleep cannot fail, it can only be cut short.
        if !is_sleep {
            self.report_hook_outcome(outcome);
        }
        None
    }

    fn report_hook_outcome(&self, outcome: Result<(), String>) {
        if let Err(message) = outcome {
            let site = &self.site;
            log::warn!(pod:% = site.pod, containerName:% = site.name, err = message; "PreStop hook failed");
            self.event(EventType::Warning, "FailedPreStopHook", "PreStopHook failed");
        }
    }

    /// Waiting for earlier groups counts against the container's own grace period.
    async fn wait_for_group(&mut self, group: usize, mut turn: watch::Receiver<usize>) {
        loop {
            let end = self.grace.end;
            tokio::select! {
                biased;
                _ = turn.wait_for(|turn| *turn >= group) => return,
                () = sleep_until(end) => return,
                // Cancel safe: the grace period keeps its end.
                () = self.grace.shortened() => {}
            }
        }
    }

    async fn stop(&mut self) -> Result<(), RuntimeError> {
        loop {
            let asked = stop_grace(self.grace.left());
            let killed_at = Instant::now() + asked;
            let mut call = pin!(self.runtime.stop_container(&self.site.id, asked));
            loop {
                tokio::select! {
                    biased;
                    stopped = &mut call => return stopped,
                    () = self.grace.shortened() => {}
                }
                // The stop is repeated only if that brings the end forward.
                if Instant::now() + stop_grace(self.grace.left()) < killed_at {
                    break;
                }
            }
        }
    }

    fn event(&self, kind: EventType, reason: &str, message: &str) {
        self.events.event(&self.site.pod, Some(self.field_path.clone()), kind, reason, message);
    }
}

/// The result of a hook in its own task.
fn flat(joined: Result<Result<(), String>, JoinError>) -> Result<(), String> {
    joined.unwrap_or_else(|error| Err(error.to_string()))
}

impl<R: Runtime> Executor<R> {
    /// Stops the groups in order. Every member is tried; the first failure is reported. Hooks of all groups
    /// start at once (upstream: a sidecar's hook runs before the containers that it serves are gone).
    pub(super) async fn stop_containers(
        &self,
        run: &Run<'_>,
        groups: &[Vec<StopContainer>],
        grace_seconds: i64,
    ) -> Result<(), Failure> {
        tokio::select! {
            biased;
            // Dropping the stops is safe: the plan that takes the pod down stops the containers again.
            () = run.patience.over() => Ok(()),
            stopped = self.stop_groups(run, groups, grace_seconds) => stopped,
        }
    }

    async fn stop_groups(
        &self,
        run: &Run<'_>,
        groups: &[Vec<StopContainer>],
        grace_seconds: i64,
    ) -> Result<(), Failure> {
        let (turn, turns) = watch::channel(0);
        let mut stops = JoinSet::new();
        for (index, group) in groups.iter().enumerate() {
            for stop in group {
                let stopping = self.stopping(run, stop, grace_seconds);
                let turns = turns.clone();
                stops.spawn_local(async move { (index, stopping.run(index, turns).await) });
            }
        }
        let mut open: Vec<usize> = groups.iter().map(Vec::len).collect();
        let mut failure = None;
        while let Some(ended) = stops.join_next().await {
            let Ok((group, stopped)) = ended else { continue };
            open[group] -= 1;
            turn.send_replace(open.iter().take_while(|open| **open == 0).count());
            if let Err(error) = stopped {
                let message = format!("error killing pod: {error}");
                self.pod_event(run.pod, EventType::Warning, "FailedKillPod", &message);
                let retry_after = Some(retry_after(&error));
                failure = Some(Failure { reason: "FailedKillPod", message, retry_after });
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn stopping(&self, run: &Run<'_>, stop: &StopContainer, grace_seconds: i64) -> Stopping<R> {
        let kind = find_container(run.pod, &stop.name).map_or(ContainerKind::Regular, |(_, kind)| kind);
        let record = run.observed.containers.iter().find(|record| record.id == stop.id);
        // A container that was started by this plan has no record yet.
        let runs = record.is_none_or(|record| record.state == ContainerStateKind::Running);
        let annotations = record.map(|record| record.annotations.clone()).unwrap_or_default();
        let grace = stop.grace_seconds.unwrap_or(grace_seconds);
        Stopping {
            runtime: Rc::clone(&self.runtime),
            hooks: Rc::clone(&self.hooks),
            events: self.events.clone(),
            site: HookSite {
                pod: run.pod.pod_ref(),
                name: stop.name.clone(),
                id: stop.id.clone(),
                pod_ip: self.pod_ip(run.pod, run.sandbox.as_ref()),
            },
            field_path: field_path(&stop.name, kind),
            message: stop.message.clone(),
            pre_stop: hooks::pre_stop(run.pod, &stop.name, &annotations).filter(|_| runs),
            grace: Grace::new(Duration::from_secs(u64::try_from(grace).unwrap_or(0)), run.patience),
        }
    }
}

#[cfg(test)]
mod tests;
