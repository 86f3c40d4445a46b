//! The plan of a pod that is to run: sandbox first, then init containers, then the rest, then what can be pruned.
//!
//! Owns the order of actions. Must not know termination of unwanted pods.

use std::collections::BTreeSet;
use std::time::Duration;

use super::init::{changed_definition, definition_changed, failed_for_good, plan_init, unknown_state};
use super::{Action, Blocked, PlanContext, PodPlan, StartContainer, StopContainer};
use crate::api::pod::{Container, Pod};
use crate::observed::{ContainerStateKind, ObservedContainer, ObservedPod, ObservedSandbox};
use crate::reconcile::containers::init_kind;
use crate::reconcile::plan::ContainerKind;
use crate::reconcile::restart::{BackOffDecision, back_off, restarts_after};
use crate::reconcile::termination::compute_termination;
use crate::types::{ContainerId, ContainerName, go_duration};

pub(super) fn plan(pod: &Pod, observed: &ObservedPod, context: &PlanContext) -> PodPlan {
    let mut planner = Planner { pod, observed, context, plan: PodPlan::default(), removed: BTreeSet::new() };
    let attempt = new_sandbox_attempt(pod, observed, context);
    let creates_sandbox = attempt.is_some_and(|attempt| planner.replace_sandbox(attempt));
    if attempt.is_none() {
        planner.keep_running();
    }
    planner.prune(creates_sandbox);
    planner.plan
}

/// `Some(attempt)` when the pod cannot go on in the sandbox it has.
fn new_sandbox_attempt(pod: &Pod, observed: &ObservedPod, context: &PlanContext) -> Option<u32> {
    let Some(newest) = observed.sandboxes.first() else { return Some(0) };
    let ready = observed.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    let unfit = context.sandbox_status_read
        && (newest.host_network != pod.spec.host_network
            || (!pod.spec.host_network && newest.ips.is_empty()));
    if ready == 1 && newest.ready && !unfit {
        return None;
    }
    let last = observed.sandboxes.iter().map(|sandbox| sandbox.attempt).max().unwrap_or(0);
    Some(last.saturating_add(1))
}

struct Planner<'a> {
    pod: &'a Pod,
    observed: &'a ObservedPod,
    context: &'a PlanContext,
    plan: PodPlan,
    /// Records that this plan removes.
    removed: BTreeSet<ContainerId>,
}

impl<'a> Planner<'a> {
    /// Stops what is left and, if anything is to run, makes a new sandbox. True when it does.
    fn replace_sandbox(&mut self, attempt: u32) -> bool {
        let wanted = self.wanted_in_new_sandbox(attempt);
        self.stop_everything();
        if wanted.is_empty() {
            return false;
        }
        // A container that must wait needs no sandbox meanwhile, but the others may not wait for it.
        let before = self.plan.actions.len();
        for (container, kind) in wanted {
            self.start(container, kind, true);
        }
        if self.plan.actions.len() > before {
            self.plan.actions.insert(before, Action::CreateSandbox { attempt });
            if let Some(newest) = self.observed.sandboxes.first().filter(|sandbox| !sandbox.ready) {
                // Its network may still be held.
                self.plan.actions.insert(before, Action::StopSandbox { id: newest.id.clone() });
            }
            return true;
        }
        false
    }

    /// What starts first in a new sandbox; empty when the pod has had its run.
    fn wanted_in_new_sandbox(&self, attempt: u32) -> Vec<(&'a Container, ContainerKind)> {
        let spec = &self.pod.spec;
        let ruled = spec.containers.iter().any(|container| container.restart_policy.is_some());
        let has_run = attempt != 0 && !self.observed.containers.is_empty();
        let init_failed = spec.init_containers.iter().any(|container| {
            self.newest(&container.name).is_some_and(|record| failed_for_good(self.pod, container, record))
        });
        if (spec.restart_policy == "Never" && has_run && !ruled) || init_failed {
            return Vec::new();
        }
        let regular: Vec<_> = spec
            .containers
            .iter()
            .filter(|container| {
                self.newest(&container.name).is_none_or(|record| self.runs_again(container, record))
            })
            .map(|container| (container, ContainerKind::Regular))
            .collect();
        match spec.init_containers.first() {
            Some(first) if !regular.is_empty() => vec![(first, init_kind(first))],
            _ => regular,
        }
    }

    /// Only an end that is known counts as having run.
    fn runs_again(&self, container: &Container, record: &ObservedContainer) -> bool {
        record.state != ContainerStateKind::Exited || restarts_after(self.pod, container, record.exit_code)
    }

    fn stop_everything(&mut self) {
        let grace = self.pod.termination_grace_period_seconds();
        let stop = compute_termination(Some(self.pod), self.observed, grace);
        self.plan.actions.extend(stop.actions);
    }

    /// The sandbox is fine: see to the containers in it.
    fn keep_running(&mut self) {
        let initialised = self.pod.spec.containers.iter().any(|container| {
            self.in_sandbox(&container.name).is_some_and(|record| {
                matches!(record.state, ContainerStateKind::Created | ContainerStateKind::Running)
            })
        });
        let init = plan_init(self.pod, initialised, |name| self.in_sandbox(name));
        if init.failed {
            self.stop_everything();
            return;
        }
        let regular = if init.done { self.regular_containers() } else { Regular::default() };
        if init.done && regular.kept == 0 && regular.starts.is_empty() {
            self.stop_everything();
            return;
        }
        self.stop_listed(init.starts.iter().filter_map(|start| start.stop.as_ref()), &regular.stops);
        for start in &init.starts {
            self.start(start.container, init_kind(start.container), false);
        }
        for container in regular.starts {
            self.start(container, ContainerKind::Regular, false);
        }
    }

    fn regular_containers(&self) -> Regular<'a> {
        let mut regular = Regular::default();
        for container in &self.pod.spec.containers {
            let Some(record) = self.newest(&container.name) else {
                regular.starts.push(container);
                continue;
            };
            let why_stop = match record.state {
                ContainerStateKind::Created => None,
                ContainerStateKind::Exited if self.runs_again(container, record) => None,
                ContainerStateKind::Exited => continue,
                ContainerStateKind::Unknown => Some(unknown_state(&container.name)),
                ContainerStateKind::Running if definition_changed(container, record) => {
                    Some(changed_definition(&container.name))
                }
                ContainerStateKind::Running if self.in_sandbox(&container.name).is_none() => {
                    Some(format!("Container {} runs in an old sandbox, will be restarted", container.name))
                }
                ContainerStateKind::Running => {
                    regular.kept += 1;
                    continue;
                }
            };
            regular.stops.extend(why_stop.map(|message| (record, message)));
            regular.starts.push(container);
        }
        regular
    }

    /// Stops the listed instances, and every live instance that has a newer one of the same name, together.
    fn stop_listed<'b>(
        &mut self,
        init: impl Iterator<Item = &'b (&'a ObservedContainer, String)>,
        regular: &'b [(&'a ObservedContainer, String)],
    ) where
        'a: 'b,
    {
        let mut group: Vec<StopContainer> = init
            .chain(regular)
            .map(|(record, message)| StopContainer {
                id: record.id.clone(),
                name: record.name.clone(),
                message: message.clone(),
            })
            .collect();
        for record in self.observed.live_containers() {
            let outdated = self.newest(record.name.as_str()).is_some_and(|newest| newest.id != record.id);
            if outdated && group.iter().all(|stop| stop.id != record.id) {
                let message = format!("Stopping container {}", record.name);
                group.push(StopContainer { id: record.id.clone(), name: record.name.clone(), message });
            }
        }
        if !group.is_empty() {
            let grace_seconds = self.pod.termination_grace_period_seconds();
            self.plan.actions.push(Action::StopContainers { groups: vec![group], grace_seconds });
        }
    }

    /// Starts a container, or says that it waits for its back-off. An instance that was made and never started is
    /// replaced under its own attempt and its own back-off: an earlier agent died in between, or the start failed.
    fn start(&mut self, container: &Container, kind: ContainerKind, in_new_sandbox: bool) {
        let name = ContainerName::from(container.name.as_str());
        let newest = self.newest(&container.name);
        // What is passed on without a new run having ended stays as it is: forgetting it would make a busy loop.
        let stored = self.context.back_off.get(&name).copied();
        if let Some(made) = newest.filter(|record| record.state == ContainerStateKind::Created) {
            self.remove(made);
            let start = StartContainer { name, kind, attempt: made.attempt, back_off: stored };
            self.plan.actions.push(Action::StartContainer(start));
            return;
        }
        let counted = self.context.restart_counts.get(&name).copied();
        // The count is written down before each start, so after a crash in between it is this very start's.
        let next = newest.map_or(0, |record| record.attempt.saturating_add(1));
        let attempt = next.max(counted.unwrap_or(0));
        let ended = self
            .observed
            .containers
            .iter()
            .find(|record| record.name == name && record.state == ContainerStateKind::Exited);
        // A success that runs again only because the sandbox is new (init containers) is no crash.
        let fresh_run =
            kind == ContainerKind::Init && (in_new_sandbox || self.in_sandbox(&container.name).is_none());
        let entry = match ended.filter(|_| !fresh_run) {
            None => stored,
            Some(ended) => match back_off(stored, ended.finished_at, self.context.now, self.context.limits) {
                BackOffDecision::Start(entry) => Some(entry),
                BackOffDecision::Wait { delay, remaining } => {
                    self.wait(name, delay, remaining);
                    return;
                }
            },
        };
        self.plan.actions.push(Action::StartContainer(StartContainer {
            name,
            kind,
            attempt,
            back_off: entry,
        }));
    }

    fn wait(&mut self, name: ContainerName, delay: Duration, remaining: Duration) {
        let message = format!(
            "back-off {} restarting failed container={name} pod={}",
            go_duration(delay),
            self.pod.pod_ref()
        );
        self.plan.blocked.push(Blocked { name, reason: "CrashLoopBackOff", message });
        let soonest = self.plan.requeue_after.map_or(remaining, |after| after.min(remaining));
        self.plan.requeue_after = Some(soonest);
    }

    fn remove(&mut self, record: &ObservedContainer) {
        if self.removed.insert(record.id.clone()) {
            let action = Action::RemoveContainer { id: record.id.clone(), name: record.name.clone() };
            self.plan.actions.push(action);
        }
    }

    /// Removes what only piles up: never the newest record of a container, nor the newest sandbox.
    fn prune(&mut self, creates_sandbox: bool) {
        let observed = self.observed;
        for record in &observed.containers {
            let newest = self.newest(record.name.as_str()).is_some_and(|newest| newest.id == record.id);
            let surplus = match record.state {
                ContainerStateKind::Created => true,
                ContainerStateKind::Exited => {
                    let newer_dead =
                        observed.containers.iter().take_while(|other| other.id != record.id).filter(
                            |other| other.name == record.name && other.state == ContainerStateKind::Exited,
                        );
                    newer_dead.count() >= self.context.max_dead_per_container
                }
                ContainerStateKind::Running | ContainerStateKind::Unknown => false,
            };
            if surplus && !newest {
                self.remove(record);
            }
        }
        let older = usize::from(!creates_sandbox);
        for sandbox in observed.sandboxes.iter().skip(older) {
            if !sandbox.ready && !self.holds_records(sandbox) {
                self.plan.actions.push(Action::RemoveSandbox { id: sandbox.id.clone() });
            }
        }
    }

    fn holds_records(&self, sandbox: &ObservedSandbox) -> bool {
        let mut records = self.observed.containers.iter();
        records.any(|record| record.sandbox == sandbox.id && !self.removed.contains(&record.id))
    }

    fn newest(&self, name: &str) -> Option<&'a ObservedContainer> {
        self.observed.containers.iter().find(|record| record.name.as_str() == name)
    }

    /// The newest record of a container, if it belongs to the sandbox in use.
    fn in_sandbox(&self, name: &str) -> Option<&'a ObservedContainer> {
        let sandbox = self.observed.ready_sandbox()?;
        self.newest(name).filter(|record| record.sandbox.is_empty() || record.sandbox == sandbox.id)
    }
}

/// What the regular containers ask for.
#[derive(Default)]
struct Regular<'a> {
    kept: usize,
    starts: Vec<&'a Container>,
    stops: Vec<(&'a ObservedContainer, String)>,
}
