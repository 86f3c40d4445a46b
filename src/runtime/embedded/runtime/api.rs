//! The embedded runtime's interface beyond [`crate::runtime::Runtime`]: for CRI servers.
//!
//! Owns types. The effects are in the files beside it.

use std::net::IpAddr;
use std::rc::Rc;

pub(crate) use super::super::client::{AttachSession, ExecSession, Streams};
use crate::model::observed::{ContainerStateKind, ObservedUser};
use crate::model::types::{ContainerId, SandboxId, Timestamp};
use crate::runtime::{ContainerConfig, SandboxConfig};

/// One sandbox in full, from its record.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SandboxView {
    pub id: SandboxId,
    /// What it was made from: metadata, labels, annotations, namespaces, handler.
    pub config: SandboxConfig,
    /// CRI's `SANDBOX_READY`.
    pub ready: bool,
    pub created_at: Timestamp,
    /// Primary first; empty for host network.
    pub ips: Vec<IpAddr>,
    /// The monitor's process id; 0 when there is none.
    pub pid: i32,
}

/// One container in full, from its record.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ContainerView {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    /// What it was made from: metadata, labels, annotations, mounts, resources, security.
    pub config: ContainerConfig,
    pub state: ContainerStateKind,
    pub created_at: Timestamp,
    /// Zero if it never started.
    pub started_at: Timestamp,
    /// Zero while it has not ended.
    pub finished_at: Timestamp,
    /// Meaningful when exited.
    pub exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`; empty while it has not ended.
    pub reason: String,
    pub message: String,
    /// Name of the image, for example `docker.io/library/busybox:1.36`.
    pub image: String,
    /// Digest reference of the image if it has one, else its id.
    pub image_ref: String,
    pub image_id: String,
    /// Absolute; empty for none.
    pub log_path: String,
    /// First process, as the node sees it; 0 when it does not run.
    pub pid: i32,
    /// Who the first process is at its start.
    pub user: Option<ObservedUser>,
}

/// What happened to a sandbox or container, for CRI's `GetContainerEvents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Created,
    Started,
    Stopped,
    /// Its record is gone.
    Deleted,
}

/// One event. A sandbox's event has no container.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuntimeEvent {
    pub kind: EventKind,
    pub at: Timestamp,
    pub sandbox: SandboxId,
    /// The container concerned; `None` for the sandbox itself.
    pub container: Option<ContainerId>,
    /// The sandbox's last state, once it is removed.
    pub last: Option<Rc<SandboxView>>,
}
