//! The state of pods in a runtime, in the agent's own types: decisions get no other view of it.
//!
//! Owns data types. Everything here may be a second old and partial.

use std::collections::BTreeMap;

use crate::model::ordered::Sortable as _;
use crate::model::types::{ContainerId, ContainerName, PodRef, SandboxId, Timestamp};

/// All that the runtime holds of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedPod {
    pub sandboxes: Vec<ObservedSandbox>,
    /// Every container record, exited ones too, newest first.
    pub containers: Vec<ObservedContainer>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedSandbox {
    pub id: SandboxId,
    /// Read from the sandbox's labels.
    pub pod: PodRef,
    /// CRI's `SANDBOX_READY`.
    pub ready: bool,
    /// How often the sandbox was recreated.
    pub attempt: u32,
    pub created_at: Timestamp,
    /// Primary address first; empty for host network and while unknown. Only a status call fills it.
    pub ips: Vec<String>,
    /// The sandbox uses the node's network namespace. Only a status call fills it.
    pub host_network: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerStateKind {
    Created,
    /// Its first process runs.
    Running,
    /// It has ended; exit code and times are set.
    Exited,
    /// The runtime does not know the state.
    #[default]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedContainer {
    pub id: ContainerId,
    /// Read from the container's labels.
    pub pod: PodRef,
    /// Label `io.kubernetes.container.name`.
    pub name: ContainerName,
    pub sandbox: SandboxId,
    pub state: ContainerStateKind,
    /// CRI metadata attempt = restart count.
    pub attempt: u32,
    /// Annotation `io.kubernetes.container.hash`, empty when absent.
    pub hash: String,
    /// Image as the runtime names it.
    pub image: String,
    /// Image id (digest reference) the container was created from.
    pub image_id: String,
    pub created_at: Timestamp,
    /// When its process started; zero if it never did. Only a status call fills this and the fields below.
    pub started_at: Timestamp,
    /// When it ended; zero while it has not.
    pub finished_at: Timestamp,
    /// Meaningful when exited.
    pub exit_code: i32,
    /// The runtime's word: `Completed`, `Error`, `OOMKilled`, `StartError`...
    pub reason: String,
    /// The runtime's message, then (filled by the agent) the termination message.
    pub message: String,
    /// All annotations, the agent's included.
    pub annotations: BTreeMap<String, String>,
    /// Absolute path of the log file.
    pub log_path: String,
    /// Host paths by container path, to find the termination log again.
    pub mounts: Vec<ObservedMount>,
    /// The user of its first process, if the runtime reports it. Only a status call fills it.
    pub user: Option<ObservedUser>,
}

/// Numeric identity of a container's first process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedUser {
    pub uid: i64,
    /// Primary group id.
    pub gid: i64,
    /// Supplementary group ids.
    pub supplemental_groups: Vec<i64>,
}

/// A bind mount the runtime reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedMount {
    pub container_path: String,
    pub host_path: String,
    pub recursive_read_only: bool,
}

impl ObservedPod {
    /// The newest ready sandbox.
    #[must_use]
    pub(crate) fn ready_sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.iter().find(|sandbox| sandbox.ready)
    }

    /// The newest record of a container.
    #[must_use]
    pub(crate) fn container(&self, name: &ContainerName) -> Option<&ObservedContainer> {
        self.containers.iter().find(|container| container.name == *name)
    }

    /// Containers whose process may be alive: running, or in a state the runtime cannot tell.
    pub(crate) fn live_containers(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.containers.iter().filter(|container| {
            matches!(container.state, ContainerStateKind::Running | ContainerStateKind::Unknown)
        })
    }

    /// Sorts both lists, newest first, which all other code relies on. For containers that is the highest
    /// attempt: a container that a dead agent requested may be created long after those of the next agent.
    pub(crate) fn sort(&mut self) {
        self.sandboxes
            .order_by(|a, b| (b.created_at, b.attempt, &b.id).cmp(&(a.created_at, a.attempt, &a.id)));
        self.containers
            .order_by(|a, b| (b.attempt, b.created_at, &b.id).cmp(&(a.attempt, a.created_at, &a.id)));
    }
}
