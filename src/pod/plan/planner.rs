//! The plan of a pod that is to run: sandbox first, then init containers, then the others, then pruning.
//!
//! Owns the order of actions.

use std::collections::BTreeSet;
use std::time::Duration;

use super::init::{Stop, definition_changed, failed_for_good, made_of_other, plan_init, unknown_state};
use super::restart_all::{records_to_remove, triggers};
use super::{Action, Blocked, PlanContext, PodPlan, StartContainer, StopContainer, resize};
use crate::model::api::pod::{Container, Pod};
use crate::model::back_off::BackOff;
use crate::model::containers::{ContainerKind, all_containers, init_kind};
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedPod, ObservedSandbox};
use crate::model::types::{ContainerId, ContainerName, Timestamp, go_duration};
use crate::pod::plan::termination::{compute_termination, stop_all_containers};
use crate::pod::prober::rules::{failed_probe, runs_again_after_kill};
use crate::pod::restart::{
    BackOffDecision, FORGET_AFTER, back_off, may_restart_all, restarts_after, restarts_after_kill,
};

pub(super) fn plan(pod: &Pod, observed: &ObservedPod, context: &PlanContext) -> PodPlan {
    let mut planner = Planner { pod, observed, context, plan: PodPlan::default(), removed: BTreeSet::new() };
    if triggers(pod, observed).next().is_some() {
        planner.start_over();
        return planner.plan;
    }
    let attempt = new_sandbox_attempt(pod, observed, context);
    let creates_sandbox = attempt.is_some_and(|attempt| planner.replace_sandbox(attempt));
    if attempt.is_none() {
        planner.keep_running();
    }
    planner.prune(creates_sandbox);
    planner.plan
}

/// `Some(attempt)` when the pod needs a new sandbox.
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
    /// Stops all containers and, if anything is to run, creates a new sandbox. True when it does.
    fn replace_sandbox(&mut self, attempt: u32) -> bool {
        let wanted = self.first_in_new_sandbox(attempt);
        self.stop_everything();
        if wanted.is_empty() {
            return false;
        }
        // A waiting container needs no sandbox yet, but it must not delay the others.
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

    /// The containers that start first in a new sandbox; empty when the pod has completed.
    fn first_in_new_sandbox(&self, attempt: u32) -> Vec<(&'a Container, ContainerKind)> {
        let spec = &self.pod.spec;
        let ruled = spec.containers.iter().any(|container| container.restart_policy.is_some());
        let has_record = |(container, _): (&Container, ContainerKind)| self.newest(&container.name).is_some();
        let has_run = attempt != 0 && all_containers(self.pod).any(has_record);
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

    /// Only a known exit counts as a run.
    fn runs_again(&self, container: &Container, record: &ObservedContainer) -> bool {
        record.state != ContainerStateKind::Exited
            || restarts_after(self.pod, container, record.exit_code)
            || runs_again_after_kill(self.pod, container, &record.id, &self.context.probes)
    }

    fn stop_everything(&mut self) {
        let grace = self.pod.termination_grace_period_seconds();
        let stop = compute_termination(Some(self.pod), self.observed, grace);
        self.plan.actions.extend(stop.actions);
    }

    /// Stops all containers and removes all records, so that the pod restarts from the beginning in its
    /// sandbox. Repeated restarts wait like any other crash loop.
    fn start_over(&mut self) {
        let waits: Vec<_> = triggers(self.pod, self.observed)
            .map(|(container, record)| {
                let name = ContainerName::from(container.name.as_str());
                let entry = self.back_off_of(container, Some(record));
                (name, back_off(entry, record.finished_at, self.context.now, self.context.limits))
            })
            .collect();
        if waits.iter().all(|(_, decision)| matches!(decision, BackOffDecision::Wait { .. })) {
            for (name, decision) in waits {
                if let BackOffDecision::Wait { delay, remaining } = decision {
                    self.wait(name, delay, remaining);
                }
            }
            return;
        }
        self.plan.actions.extend(stop_all_containers(Some(self.pod), self.observed, 0));
        let removed = records_to_remove(self.pod, self.observed).into_iter().map(|record| {
            let (id, name) = (record.id.clone(), record.name.clone());
            Action::RemoveContainer { id, name, keep_log: true }
        });
        self.plan.actions.extend(removed);
    }

    /// The sandbox is ready: plans the containers in it.
    fn keep_running(&mut self) {
        if self.has_completed() {
            self.stop_everything();
            return;
        }
        let initialised = self.pod.spec.containers.iter().any(|container| {
            self.in_sandbox(&container.name).is_some_and(|record| {
                matches!(record.state, ContainerStateKind::Created | ContainerStateKind::Running)
            })
        });
        let init = plan_init(self.pod, initialised, &self.context.probes, |name| self.in_sandbox(name));
        if init.failed {
            self.stop_everything();
            return;
        }
        let regular = if init.done { self.regular_containers() } else { Regular::default() };
        self.stop_listed(init.starts.iter().filter_map(|start| start.stop.as_ref()), &regular.stops);
        self.start_ephemeral();
        for start in &init.starts {
            let killed = start.stop.as_ref().is_some_and(|stop| stop.by_probe);
            self.start_after(start.container, init_kind(start.container), false, killed);
        }
        for (container, killed) in regular.starts {
            self.start_after(container, ContainerKind::Regular, false, killed);
        }
        self.plan.actions.extend(resize::steps(self.pod, self.observed, self.context));
    }

    /// Every regular container has ended and none may run again: any other running container is not needed
    /// any more.
    fn has_completed(&self) -> bool {
        self.pod.spec.containers.iter().all(|container| {
            self.newest(&container.name).is_some_and(|record| !self.runs_again(container, record))
        })
    }

    /// Ephemeral containers run once and do not wait for other containers.
    fn start_ephemeral(&mut self) {
        for container in &self.pod.spec.ephemeral_containers {
            let name = ContainerName::from(container.name.as_str());
            let has_been =
                self.newest(&container.name).is_some() || self.context.shown_counts.contains_key(&name);
            if !has_been {
                let kind = ContainerKind::Ephemeral;
                let start = StartContainer { name, kind, attempt: 0, back_off: None };
                self.plan.actions.push(Action::StartContainer(start));
            }
        }
    }

    fn regular_containers(&self) -> Regular<'a> {
        let mut regular = Regular::default();
        for container in &self.pod.spec.containers {
            let Some(record) = self.newest(&container.name) else {
                regular.starts.push((container, false));
                continue;
            };
            let stop = match record.state {
                ContainerStateKind::Created => None,
                ContainerStateKind::Exited
                    if self.runs_again(container, record) || self.restart_requested(record) =>
                {
                    None
                }
                ContainerStateKind::Exited => continue,
                ContainerStateKind::Unknown => Some(Stop::new(record, unknown_state(&container.name))),
                ContainerStateKind::Running => match self.why_stop(container, record) {
                    Some(stop) => Some(stop),
                    None => continue,
                },
            };
            let killed = stop.as_ref().is_some_and(|stop| stop.by_probe);
            regular.stops.extend(stop);
            if !killed || restarts_after_kill(self.pod, container) {
                regular.starts.push((container, killed));
            }
        }
        regular
    }

    fn restart_requested(&self, record: &ObservedContainer) -> bool {
        self.context.restart.contains(&record.id)
    }

    /// Why a running regular container must be stopped, if it must.
    fn why_stop(&self, container: &Container, record: &'a ObservedContainer) -> Option<Stop<'a>> {
        let name = &container.name;
        if definition_changed(container, record) {
            return Some(Stop::new(
                record,
                format!("Container {name} definition changed, will be restarted"),
            ));
        }
        if self.restart_requested(record) {
            return Some(Stop::new(record, format!("Container {name} will be restarted, as requested")));
        }
        if let Some(kind) = failed_probe(container, &record.id, &self.context.probes) {
            let again = if restarts_after_kill(self.pod, container) { ", will be restarted" } else { "" };
            return Some(Stop::for_probe("Container", container, record, kind, again));
        }
        if let Some(message) = resize::needs_restart(container, self.observed, &self.context.actuated) {
            return Some(Stop::new(record, message));
        }
        self.in_sandbox(name)
            .is_none()
            .then(|| Stop::new(record, format!("Container {name} runs in an old sandbox, will be restarted")))
    }

    /// Stops the listed instances, and every live instance that has a newer one of the same name, together.
    fn stop_listed<'b>(&mut self, init: impl Iterator<Item = &'b Stop<'a>>, regular: &'b [Stop<'a>])
    where
        'a: 'b,
    {
        let mut group: Vec<StopContainer> = init.chain(regular).map(Stop::action).collect();
        for record in self.observed.live_containers() {
            let outdated = self.newest(record.name.as_str()).is_some_and(|newest| newest.id != record.id);
            if outdated && group.iter().all(|stop| stop.id != record.id) {
                group.push(Stop::new(record, format!("Stopping container {}", record.name)).action());
            }
        }
        if !group.is_empty() {
            let grace_seconds = self.pod.termination_grace_period_seconds();
            self.plan.actions.push(Action::StopContainers { groups: vec![group], grace_seconds });
        }
    }

    fn start(&mut self, container: &Container, kind: ContainerKind, in_new_sandbox: bool) {
        self.start_after(container, kind, in_new_sandbox, false);
    }

    /// Starts a container, or blocks it for its back-off. An instance that was created and never started is
    /// replaced under its own attempt and its own back-off: an earlier agent died in between, or the start
    /// failed. `killed` means that this plan stops its running instance for a failed probe.
    fn start_after(
        &mut self,
        container: &Container,
        kind: ContainerKind,
        in_new_sandbox: bool,
        killed: bool,
    ) {
        let name = ContainerName::from(container.name.as_str());
        let newest = self.newest(&container.name);
        // Without a new completed run the entry is kept unchanged: dropping it would make a busy loop.
        let stored = self.context.back_off.get(&name).copied();
        if let Some(made) = newest.filter(|record| record.state == ContainerStateKind::Created) {
            self.remove(made);
            let start = StartContainer { name, kind, attempt: made.attempt, back_off: stored };
            self.plan.actions.push(Action::StartContainer(start));
            return;
        }
        let newest = newest.or_else(|| self.earlier(&container.name));
        // The count is stored before each start, so after a crash in between it belongs to this start.
        let counted = self.context.restart_counts.get(&name).copied().unwrap_or(0);
        let shown = self.context.shown_counts.get(&name).copied().unwrap_or(0);
        let next = newest.map_or(shown, |record| record.attempt.saturating_add(1));
        // A success that runs again only because the sandbox is new (init containers) is no crash, and a
        // start that was decided before and left no record has completed its wait.
        let elsewhere = in_new_sandbox || self.in_sandbox(&container.name).is_none();
        let fresh_run = kind == ContainerKind::Init && newest.is_some() && elsewhere;
        let permitted = newest.is_some_and(|newest| self.restart_requested(newest))
            || (newest.is_some() && counted == next && stored.is_some());
        let ended_at = if killed { Some(self.context.now) } else { self.ended_at(container, next > counted) };
        let in_force = if permitted { stored } else { self.back_off_of(container, newest) };
        let entry = match ended_at.filter(|_| !fresh_run && !permitted) {
            None => in_force,
            Some(ended_at) => match back_off(in_force, ended_at, self.context.now, self.context.limits) {
                BackOffDecision::Start(entry) => Some(entry),
                BackOffDecision::Wait { delay, remaining } => {
                    self.wait(name, delay, remaining);
                    return;
                }
            },
        };
        let attempt = next.max(counted);
        let start = StartContainer { name, kind, attempt, back_off: entry };
        self.plan.actions.push(Action::StartContainer(start));
    }

    /// The crash-loop entry for the next run. An entry of another image or other resources does not count:
    /// upstream's key contains both.
    fn back_off_of(&self, container: &Container, newest: Option<&ObservedContainer>) -> Option<BackOff> {
        if newest.is_some_and(|record| made_of_other(container, record)) {
            return None;
        }
        self.context.back_off.get(&ContainerName::from(container.name.as_str())).copied()
    }

    /// The end of the last run that counts for the crash loop. `vanished` means that a run has left no
    /// record. For a container that may restart the whole pod, such a run is part of its crash loop, and only
    /// its start is known.
    fn ended_at(&self, container: &Container, vanished: bool) -> Option<Timestamp> {
        let mut records = self.observed.containers.iter().chain(&self.context.earlier);
        let of_container = |record: &&ObservedContainer| record.name.as_str() == container.name;
        if vanished && may_restart_all(container) && !records.clone().any(|record| of_container(&record)) {
            let now = self.context.now;
            let entry = self.context.back_off.get(&ContainerName::from(container.name.as_str()));
            let began = entry.map_or(now, |entry| entry.updated);
            return Some(if now.saturating_since(began) > FORGET_AFTER { now } else { began });
        }
        let ended =
            records.find(|record| of_container(record) && record.state == ContainerStateKind::Exited)?;
        Some(ended.finished_at)
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
            let (id, name) = (record.id.clone(), record.name.clone());
            self.plan.actions.push(Action::RemoveContainer { id, name, keep_log: false });
        }
    }

    /// Prunes old records: never the newest record of a container, nor the newest sandbox.
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
                    newer_dead.count() >= self.context.max_dead_per_container && self.is_old(record)
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

    /// Whether the record of an ended container may go; one that is too young is checked again later.
    fn is_old(&mut self, record: &ObservedContainer) -> bool {
        let age = self.context.now.saturating_since(record.created_at);
        let left = self.context.minimum_dead_age.saturating_sub(age);
        if left.is_zero() {
            return true;
        }
        self.plan.requeue_after = Some(self.plan.requeue_after.map_or(left, |after| after.min(left)));
        false
    }

    fn holds_records(&self, sandbox: &ObservedSandbox) -> bool {
        let mut records = self.observed.containers.iter();
        records.any(|record| record.sandbox == sandbox.id && !self.removed.contains(&record.id))
    }

    fn newest(&self, name: &str) -> Option<&'a ObservedContainer> {
        self.observed.containers.iter().find(|record| record.name.as_str() == name)
    }

    /// The last run of a container in an earlier life of the pod.
    fn earlier(&self, name: &str) -> Option<&'a ObservedContainer> {
        self.context.earlier.iter().find(|record| record.name.as_str() == name)
    }

    /// The newest record of a container, if it belongs to the sandbox in use.
    fn in_sandbox(&self, name: &str) -> Option<&'a ObservedContainer> {
        let sandbox = self.observed.ready_sandbox()?;
        self.newest(name).filter(|record| record.sandbox.is_empty() || record.sandbox == sandbox.id)
    }
}

#[derive(Default)]
struct Regular<'a> {
    /// The flag means that its running instance is being killed for a failed probe.
    starts: Vec<(&'a Container, bool)>,
    stops: Vec<Stop<'a>>,
}
