//! Init containers and sidecars: which of them start next, and whether the regular containers may.
//!
//! Owns the order of initialisation.

use super::resize::annotation;
use crate::model::api::pod::{Container, Pod};
use crate::model::containers::{container_hash, is_sidecar};
use crate::model::labels::CONTAINER_RESOURCES;
use crate::model::observed::{ContainerStateKind, ObservedContainer};
use crate::pod::plan::StopContainer;
use crate::pod::prober::rules::{ProbeKind, ProbeResults, failed_probe, has_started};
use crate::pod::restart::restarts_after;

#[derive(Debug, Default)]
pub(super) struct InitPlan<'a> {
    /// In order of the spec.
    pub starts: Vec<InitStart<'a>>,
    /// Regular containers may run.
    pub done: bool,
    /// An init container failed and may not run again: the pod has failed.
    pub failed: bool,
}

/// One init container or sidecar to start.
#[derive(Debug)]
pub(super) struct InitStart<'a> {
    pub container: &'a Container,
    /// The instance to stop first.
    pub stop: Option<Stop<'a>>,
}

#[derive(Debug)]
pub(super) struct Stop<'a> {
    pub record: &'a ObservedContainer,
    /// For its event.
    pub message: String,
    /// The failed probe's own grace, in seconds.
    pub grace_seconds: Option<i64>,
    /// It failed a probe and counts as ended.
    pub by_probe: bool,
}

impl<'a> Stop<'a> {
    pub(in crate::pod) fn new(record: &'a ObservedContainer, message: String) -> Self {
        Self { record, message, grace_seconds: None, by_probe: false }
    }

    /// For a failed probe: `<who> <name> failed <kind> probe<again>`.
    pub(in crate::pod) fn for_probe(
        who: &str,
        container: &Container,
        record: &'a ObservedContainer,
        kind: ProbeKind,
        again: &str,
    ) -> Self {
        let probe = kind.as_str().to_lowercase();
        let message = format!("{who} {} failed {probe} probe{again}", container.name);
        let grace_seconds = kind.of(container).and_then(|probe| probe.termination_grace_period_seconds);
        Self { record, message, grace_seconds, by_probe: true }
    }

    pub(in crate::pod) fn action(&self) -> StopContainer {
        StopContainer {
            id: self.record.id.clone(),
            name: self.record.name.clone(),
            message: self.message.clone(),
            grace_seconds: self.grace_seconds,
        }
    }
}

/// True for an instance that failed or whose exit is unknown.
fn has_failed(record: &ObservedContainer) -> bool {
    match record.state {
        ContainerStateKind::Exited => record.exit_code != 0 || record.reason == "OOMKilled",
        ContainerStateKind::Unknown => true,
        ContainerStateKind::Created | ContainerStateKind::Running => false,
    }
}

/// An ordinary init container that failed and may not run again.
pub(super) fn failed_for_good(pod: &Pod, container: &Container, record: &ObservedContainer) -> bool {
    // An exit code of 0 with OOMKilled is a failure too: pass a failure to the policy.
    let exit_code = if record.exit_code == 0 { 137 } else { record.exit_code };
    !is_sidecar(container) && has_failed(record) && !restarts_after(pod, container, exit_code)
}

/// Scans from the last init container backwards: the furthest one with a record shows the progress of
/// initialisation. Everything before it is complete, and of those only sidecars are kept running. `record`
/// gives the newest record of a container in the current sandbox; `initialised` means that a regular
/// container has been created.
pub(super) fn plan_init<'a>(
    pod: &'a Pod,
    initialised: bool,
    probes: &ProbeResults,
    record: impl Fn(&str) -> Option<&'a ObservedContainer>,
) -> InitPlan<'a> {
    let containers = &pod.spec.init_containers;
    let mut plan = InitPlan { done: initialised || containers.is_empty(), ..InitPlan::default() };
    let mut passed = initialised;
    for (position, container) in containers.iter().enumerate().rev() {
        // A container that was created and never ran shows no progress: an earlier sidecar may have ended
        // since.
        let ran = record(&container.name).filter(|found| found.state != ContainerStateKind::Created);
        let Some(found) = ran else {
            if passed && is_sidecar(container) {
                plan.starts.push(InitStart { container, stop: None });
            }
            continue;
        };
        if passed && !is_sidecar(container) {
            continue;
        }
        if failed_for_good(pod, container, found) {
            return InitPlan { failed: true, ..InitPlan::default() };
        }
        let restart = restart_of(container, found, probes);
        let stays = restart.is_none();
        plan.starts.extend(restart);
        if !passed && stays && is_over(container, found, probes) {
            match containers.get(position + 1) {
                Some(next) => plan.starts.push(InitStart { container: next, stop: None }),
                None => plan.done = true,
            }
        }
        passed = true;
    }
    if !passed && let Some(first) = containers.first() {
        plan.starts.push(InitStart { container: first, stop: None });
    }
    plan.starts.reverse();
    plan
}

/// The next one may begin: an ordinary init container has succeeded, a sidecar has started by its startup
/// probe.
fn is_over(container: &Container, record: &ObservedContainer, probes: &ProbeResults) -> bool {
    match record.state {
        ContainerStateKind::Running => is_sidecar(container) && has_started(container, &record.id, probes),
        ContainerStateKind::Exited => !is_sidecar(container) && !has_failed(record),
        ContainerStateKind::Created | ContainerStateKind::Unknown => false,
    }
}

/// The start that this container itself needs, if any.
fn restart_of<'a>(
    container: &'a Container,
    record: &'a ObservedContainer,
    probes: &ProbeResults,
) -> Option<InitStart<'a>> {
    let stop = match record.state {
        ContainerStateKind::Exited if is_sidecar(container) || has_failed(record) => None,
        ContainerStateKind::Unknown => Some(Stop::new(record, unknown_state(&container.name))),
        ContainerStateKind::Running if is_sidecar(container) => Some(why_stop(container, record, probes)?),
        ContainerStateKind::Created | ContainerStateKind::Exited | ContainerStateKind::Running => {
            return None;
        }
    };
    Some(InitStart { container, stop })
}

/// Why a running sidecar must be stopped, if it must. It is always started again.
fn why_stop<'a>(
    container: &Container,
    record: &'a ObservedContainer,
    probes: &ProbeResults,
) -> Option<Stop<'a>> {
    if definition_changed(container, record) {
        let message = format!("Init container {} definition changed", container.name);
        return Some(Stop::new(record, message));
    }
    let failed = failed_probe(container, &record.id, probes)?;
    Some(Stop::for_probe("Init container", container, record, failed, ""))
}

/// A container without a hash was created by a program that writes none: leave it alone.
pub(super) fn definition_changed(container: &Container, record: &ObservedContainer) -> bool {
    !record.hash.is_empty() && record.hash != container_hash(container)
}

/// The container was created from another image or with other resources than its spec has now.
pub(super) fn made_of_other(container: &Container, record: &ObservedContainer) -> bool {
    let made_with = record.annotations.get(CONTAINER_RESOURCES);
    definition_changed(container, record) || made_with.is_some_and(|made| *made != annotation(container))
}

pub(super) fn unknown_state(name: &str) -> String {
    format!("Container {name} is in unknown state, try killing it before restart")
}
