//! Desired + observed -> `PodPlan`: what to do next for one pod (upstream: `computePodActions`).
//!
//! Owns the plan's vocabulary and the decision. A plan is data that can be printed, compared and stored; the
//! executor makes no decisions.
//!
//! Pure: what it returns depends on its arguments alone.

pub(super) mod termination;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::model::api::pod::{Pod, ResourceRequirements};
use crate::model::back_off::{BackOff, BackOffLimits};
use crate::model::containers::ContainerKind;
use crate::model::observed::{ObservedContainer, ObservedPod};
use crate::model::types::{ContainerId, ContainerName, SandboxId, Timestamp};
use crate::pod::plan::termination::compute_termination;
use crate::pod::prober::rules::ProbeResults;

mod init;
#[cfg(test)]
mod model_tests;
mod planner;
pub mod resize;
mod restart_all;
#[cfg(test)]
mod tests;

pub(crate) use resize::Actuated;
pub(crate) use restart_all::triggers;

/// What to do next for one pod: the actions in order, then when to sync again.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodPlan {
    /// In order. The first that fails ends the execution of this plan (a failed container start skips only
    /// the containers that must wait for it).
    pub actions: Vec<Action>,
    /// Sync again after this long even without an event; `None` when only an event can change anything.
    pub requeue_after: Option<Duration>,
    /// Containers that should run and do not, each with the reason for its status.
    pub blocked: Vec<Blocked>,
}

/// One step. Names and ids, never indexes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Stop containers: the groups one after another, the members of a group at the same time. `grace` is the
    /// budget for all groups together; each call gets what is left, at least two seconds (upstream's
    /// minimum).
    StopContainers {
        /// In stopping order.
        groups: Vec<Vec<StopContainer>>,
        grace_seconds: i64,
    },
    StopSandbox {
        id: SandboxId,
    },
    RemoveSandbox {
        id: SandboxId,
    },
    /// Remove an ended or never started container record.
    RemoveContainer {
        id: ContainerId,
        name: ContainerName,
        /// Its log stays, in place of the one before it.
        keep_log: bool,
    },
    CreateSandbox {
        /// Counts up from 0 per pod.
        attempt: u32,
    },
    /// Pull the image if the policy requires it, then create and start a container in the pod's ready
    /// sandbox.
    StartContainer(StartContainer),
    ResizeContainer(ResizeContainer),
}

/// One resource of a running container to change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResizeContainer {
    pub id: ContainerId,
    pub name: ContainerName,
    /// `cpu` or `memory`: the one to change.
    pub resource: &'static str,
    /// What the container has afterwards.
    pub resources: ResourceRequirements,
}

/// A container to stop and the message of its `Killing` event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StopContainer {
    pub id: ContainerId,
    pub name: ContainerName,
    /// For example `Stopping container web`.
    pub message: String,
    /// Grace period in seconds for this container instead of the action's: a failed probe may have its own.
    pub grace_seconds: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StartContainer {
    pub name: ContainerName,
    pub kind: ContainerKind,
    /// Restart count of the new instance.
    pub attempt: u32,
    /// The crash-loop entry to store before the start; `None` when a first run needs none.
    pub back_off: Option<BackOff>,
}

/// A container that waits, and its waiting state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub name: ContainerName,
    /// A Kubernetes waiting reason, for example `CrashLoopBackOff`.
    pub reason: &'static str,
    pub message: String,
}

/// The inputs of a plan besides the pod and its observation.
#[derive(Clone, Debug)]
pub(super) struct PlanContext {
    pub now: Timestamp,
    /// Crash-loop entries of this pod's containers.
    pub back_off: BTreeMap<ContainerName, BackOff>,
    /// Restart counts from the store: a lower bound for the runtime's, which are lost when its records are
    /// wiped.
    pub restart_counts: BTreeMap<ContainerName, u32>,
    /// The next restart counts by the last status ([`counts_after`](crate::pod::restart::counts_after)): an
    /// instance that vanished from the runtime counts as ended.
    pub shown_counts: BTreeMap<ContainerName, u32>,
    /// The last runs of an earlier life of the pod, for containers that have not started since: they count
    /// for restart count and back-off only.
    pub earlier: Vec<ObservedContainer>,
    pub limits: BackOffLimits,
    /// Set while the pod is being taken down.
    pub terminating: Option<Terminating>,
    /// Ended records to keep per container (`maximum-dead-containers-per-container`); the newest record
    /// always stays.
    pub max_dead_per_container: usize,
    /// A younger record of an ended container stays (`minimum-container-ttl-duration`).
    pub minimum_dead_age: Duration,
    /// The newest sandbox was read with a status call, so its `ips` and `host_network` are reliable.
    pub sandbox_status_read: bool,
    pub probes: ProbeResults,
    /// The resources that containers were given; one that is not listed has those of its spec.
    pub actuated: Actuated,
    /// Newest instances whose restart was requested: they are stopped, and the next ones start regardless of
    /// the restart policy and the back-off.
    pub restart: BTreeSet<ContainerId>,
}

impl Default for PlanContext {
    fn default() -> Self {
        Self {
            now: Timestamp::default(),
            back_off: BTreeMap::new(),
            restart_counts: BTreeMap::new(),
            shown_counts: BTreeMap::new(),
            earlier: Vec::new(),
            limits: BackOffLimits::default(),
            terminating: None,
            max_dead_per_container: 1,
            minimum_dead_age: Duration::ZERO,
            sandbox_status_read: false,
            probes: ProbeResults::new(),
            actuated: Actuated::new(),
            restart: BTreeSet::new(),
        }
    }
}

/// What to do next for `pod`, given its state in the runtime. Pure: equal inputs give equal plans.
#[must_use]
pub(super) fn compute_pod_plan(pod: &Pod, observed: &ObservedPod, context: &PlanContext) -> PodPlan {
    match context.terminating {
        Some(terminating) => compute_termination(Some(pod), observed, terminating.grace_seconds),
        None => planner::plan(pod, observed, context),
    }
}

/// How a pod is being taken down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terminating {
    /// Seconds; only ever decreases.
    pub grace_seconds: i64,
}

/// One line per action, for logs, tests and `--dry-run`.
impl fmt::Display for PodPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for action in &self.actions {
            writeln!(formatter, "{action}")?;
        }
        for blocked in &self.blocked {
            writeln!(formatter, "blocked {}: {}: {}", blocked.name, blocked.reason, blocked.message)?;
        }
        match self.requeue_after {
            Some(after) => writeln!(formatter, "resync after {after:?}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StopContainers { groups, grace_seconds } => {
                write!(formatter, "stop within {grace_seconds}s:")?;
                for (position, group) in groups.iter().enumerate() {
                    write!(formatter, "{}", if position == 0 { " " } else { ", then " })?;
                    let members: Vec<String> = group
                        .iter()
                        .map(|stop| format!("{} ({}: {})", stop.name, stop.id, stop.message))
                        .collect();
                    write!(formatter, "{}", members.join(" and "))?;
                }
                Ok(())
            }
            Self::StopSandbox { id } => write!(formatter, "stop sandbox {id}"),
            Self::RemoveSandbox { id } => write!(formatter, "remove sandbox {id}"),
            Self::RemoveContainer { id, name, keep_log } => {
                let but = if *keep_log { " except its log" } else { "" };
                write!(formatter, "remove container {name} ({id}){but}")
            }
            Self::CreateSandbox { attempt } => write!(formatter, "create sandbox, attempt {attempt}"),
            Self::ResizeContainer(resize) => {
                write!(formatter, "resize {} of container {} ({})", resize.resource, resize.name, resize.id)
            }
            Self::StartContainer(start) => {
                write!(
                    formatter,
                    "start {:?} container {}, attempt {}",
                    start.kind, start.name, start.attempt
                )?;
                match start.back_off {
                    Some(back_off) => write!(formatter, ", next back-off {:?}", back_off.delay),
                    None => Ok(()),
                }
            }
        }
    }
}
