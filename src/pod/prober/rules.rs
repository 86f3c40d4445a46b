//! The results of probes for container instances, and their effects on readiness, start gating and restarts.
//!
//! Owns the vocabulary of probing and its rules.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;

use crate::model::api::pod::{Container, ContainerStatus, Pod, PodStatus, Probe};
use crate::model::containers::{ContainerKind, all_containers};
use crate::model::types::ContainerId;
use crate::pod::restart::restarts_after_kill;

mod counter;
mod target;

pub(crate) use counter::{ProbeCounter, is_reported};
pub(crate) use target::{ProbeTarget, probe_target};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pod) enum ProbeKind {
    /// Has the container started? Until then the other probes wait.
    Startup,
    /// May it receive traffic?
    Readiness,
    /// Does it still work?
    Liveness,
}

impl ProbeKind {
    /// All kinds, in order of importance.
    pub(in crate::pod) const ALL: [Self; 3] = [Self::Startup, Self::Readiness, Self::Liveness];

    /// As events name it.
    #[must_use]
    pub(in crate::pod) fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }

    #[must_use]
    pub(in crate::pod) fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
        }
    }
}

/// A published result: the threshold has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    Success,
    /// It does not.
    Failure,
}

/// Published results of one container instance; `None` until a probe has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InstanceProbes {
    pub startup: Option<ProbeResult>,
    pub readiness: Option<ProbeResult>,
    pub liveness: Option<ProbeResult>,
}

/// Published results by instance. An instance without an entry has none.
pub(in crate::pod) type ProbeResults = BTreeMap<ContainerId, InstanceProbes>;

/// Containers that may be probed: ordinary ones and sidecars, with a probe of any kind.
pub(in crate::pod) fn probed_containers(pod: &Pod) -> impl Iterator<Item = (&Container, ContainerKind)> {
    all_containers(pod).filter(|(container, kind)| {
        matches!(kind, ContainerKind::Regular | ContainerKind::Sidecar)
            && ProbeKind::ALL.iter().any(|kind| kind.of(container).is_some())
    })
}

/// The results of an instance before its first run. `remembered` is an earlier status of the pod. If it is of
/// this same instance, the agent was restarted while the instance kept running, so its results hold until the
/// first run. (Upstream forgets them, and a startup probe runs again.)
#[must_use]
pub(in crate::pod) fn initial_results(
    container: &Container,
    id: &ContainerId,
    remembered: Option<&PodStatus>,
) -> InstanceProbes {
    let remembered = remembered.and_then(|status| status_of(status, &container.name, id));
    let was_started = remembered.is_some_and(|status| status.started == Some(true));
    let was_ready = remembered.is_some_and(|status| status.ready);
    let readiness = if was_ready { ProbeResult::Success } else { ProbeResult::Failure };
    InstanceProbes {
        startup: container.startup_probe.as_ref().filter(|_| was_started).map(|_| ProbeResult::Success),
        readiness: container.readiness_probe.as_ref().map(|_| readiness),
        liveness: container.liveness_probe.as_ref().map(|_| ProbeResult::Success),
    }
}

/// The status of one instance, if this pod's status has it.
fn status_of<'a>(status: &'a PodStatus, name: &str, id: &ContainerId) -> Option<&'a ContainerStatus> {
    let mut statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let is_it = |known: &str| known.split_once("://").is_some_and(|(_, known)| known == id.as_str());
    statuses.find(|status| status.name == name && is_it(&status.container_id))
}

/// A running instance has started: its startup probe, if it has one, has succeeded.
#[must_use]
pub(crate) fn has_started(container: &Container, id: &ContainerId, results: &ProbeResults) -> bool {
    let result = results.get(id).and_then(|probes| probes.startup);
    container.startup_probe.is_none() || result == Some(ProbeResult::Success)
}

/// A running instance is ready: it has started, and its readiness probe, if it has one, has succeeded.
#[must_use]
pub(crate) fn is_ready(container: &Container, id: &ContainerId, results: &ProbeResults) -> bool {
    let result = results.get(id).and_then(|probes| probes.readiness);
    has_started(container, id, results)
        && (container.readiness_probe.is_none() || result == Some(ProbeResult::Success))
}

/// The failed probe for which a running instance must be killed.
#[must_use]
pub(in crate::pod) fn failed_probe(
    container: &Container,
    id: &ContainerId,
    results: &ProbeResults,
) -> Option<ProbeKind> {
    let probes = results.get(id)?;
    let failed = Some(ProbeResult::Failure);
    if container.startup_probe.is_some() && probes.startup == failed {
        Some(ProbeKind::Startup)
    } else if container.liveness_probe.is_some() && probes.liveness == failed {
        Some(ProbeKind::Liveness)
    } else {
        None
    }
}

/// Whether an instance that is or was killed for a failed probe runs again: it counts as failed, whatever its
/// exit code.
#[must_use]
pub(in crate::pod) fn runs_again_after_kill(
    pod: &Pod,
    container: &Container,
    id: &ContainerId,
    results: &ProbeResults,
) -> bool {
    failed_probe(container, id, results).is_some() && restarts_after_kill(pod, container)
}

#[cfg(test)]
mod tests;
