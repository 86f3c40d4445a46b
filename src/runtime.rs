//! The interface between pods and containers: CRI's calls with this crate's types. Implementations are in
//! `runtime/`.
//!
//! Owns the `Runtime` trait and its message types.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::observed::{ObservedContainer, ObservedSandbox};
pub use crate::model::runtime_config::*;
use crate::model::types::{ContainerId, PodUid, SandboxId, Timestamp};
use crate::platform::cgroup::usage::ContainerStats;

/// What a runtime can do, one method per CRI call. The implementation bounds every call in time: none hangs
/// with a hanging runtime. Every call may be repeated.
#[expect(async_fn_in_trait, reason = "one thread, one implementation per binary role: no Send bound wanted")]
pub trait Runtime: 'static {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError>;
    /// Whether runtime and network are ready.
    async fn status(&self) -> Result<RuntimeStatus, RuntimeError>;
    /// The cgroup driver the runtime wants; `None` when it does not report one (older runtimes: keep the
    /// configured one).
    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, RuntimeError>;

    /// Sandboxes with pod labels, of one pod or of all; without the fields only a status call fills.
    async fn list_sandboxes(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedSandbox>, RuntimeError>;
    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, RuntimeError>;
    /// Creates and starts a sandbox, network included.
    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId, RuntimeError>;
    /// Stops a sandbox and everything left in it. Succeeds when the sandbox is already stopped or gone.
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError>;
    /// Removes a stopped sandbox. Succeeds when it is already gone.
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError>;

    /// Containers with pod labels, of one pod or of all; without the fields only a status call fills.
    async fn list_containers(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedContainer>, RuntimeError>;
    async fn container_status(&self, id: &ContainerId) -> Result<ObservedContainer, RuntimeError>;
    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError>;
    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError>;
    /// Asks a container to stop and kills it after `grace`. Succeeds when it has already ended or is gone.
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError>;
    /// Removes an ended container. Succeeds when it is already gone.
    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// Reopens a running container's log after its file was renamed.
    async fn reopen_container_log(&self, id: &ContainerId) -> Result<(), RuntimeError>;
    /// Changes a running container's cgroup values; zero values are left as they are.
    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError>;
    /// Runs a command in a running container and waits for its end. `None` waits without a limit; when
    /// `timeout` expires the command is killed and the answer is [`ErrorKind::Timeout`], which here means
    /// that and nothing else.
    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, RuntimeError>;

    /// Writes the state of a running container, which goes on, to the archive `location`. Without `timeout` the runtime
    /// decides how long that may take.
    async fn checkpoint_container(
        &self,
        _id: &ContainerId,
        _location: &Path,
        _timeout: Option<Duration>,
    ) -> Result<(), RuntimeError> {
        let message = "the container runtime makes no checkpoints";
        Err(RuntimeError::new("CheckpointContainer", ErrorKind::Unimplemented, message))
    }

    /// The image a reference resolves to, if it is present.
    async fn image_status(&self, image: &str) -> Result<Option<ImageStatus>, RuntimeError>;
    /// Pulls an image and returns the reference to create containers with.
    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&ImageAuth>,
        sandbox: &SandboxConfig,
    ) -> Result<String, RuntimeError>;

    async fn list_images(&self) -> Result<Vec<RuntimeImage>, RuntimeError>;
    /// Removes an image, by id, with all its names. Succeeds when it is already gone. Returns the number of
    /// bytes freed, if the runtime reports it.
    async fn remove_image(&self, id: &str) -> Result<Option<u64>, RuntimeError>;
    /// Where images and writable layers are.
    async fn disk_places(&self) -> Result<DiskPlaces, RuntimeError>;

    /// The ranges from which new pods get their addresses, one of each family. Pods that run keep theirs. Does nothing
    /// where the runtime does not assign addresses.
    async fn set_pod_cidrs(&self, _cidrs: &[String]) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Waits for the next hint that something changed, and returns at once if one came since the last call.
    /// `Err` with [`ErrorKind::Unimplemented`] when the runtime offers none: the caller then relists more
    /// often. Hints may be lost; they carry no facts.
    async fn next_change(&self) -> Result<(), RuntimeError>;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// `containerd`, `cri-o`, `fake`...
    pub name: String,
    /// The runtime's own version.
    pub version: String,
    /// CRI's, for example `v1`.
    pub api_version: String,
}

/// `Status`, reduced to what decides whether pods can start. `Err` carries `reason: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Condition `RuntimeReady`.
    pub runtime_ready: Result<(), String>,
    /// Condition `NetworkReady`; host-network pods do not need it.
    pub network_ready: Result<(), String>,
    /// What each runtime handler can do; empty when the runtime does not report it (containerd before 2.0).
    pub handlers: Vec<RuntimeHandler>,
    /// `features.supplementalGroupsPolicy`; `None` when the runtime does not report it.
    pub supplemental_groups_policy: Option<bool>,
}

/// Usage that only the runtime knows: disks, and containers whose cgroups cannot be found otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuntimeUse {
    pub containers: Vec<(ContainerId, ContainerFigures)>,
    /// The directory that holds writable layers, one subdirectory per container, if the runtime stores them
    /// that way.
    pub layers: Option<PathBuf>,
    pub images: Option<DiskFigures>,
    /// All writable layers, when they are elsewhere.
    pub all_layers: Option<DiskFigures>,
}

/// A container's usage as its runtime reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerFigures {
    /// When it was read; zero when the runtime does not report it.
    pub at: Timestamp,
    pub counted: ContainerStats,
    pub layer: Option<DiskFigures>,
}

/// Usage of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskFigures {
    /// A directory on that file system.
    pub place: PathBuf,
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

/// Directories on the disks that a runtime fills.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskPlaces {
    pub images: Option<PathBuf>,
    /// Writable layers, when they may be elsewhere.
    pub layers: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub exit_code: i32,
    /// What it wrote to stdout, then to stderr.
    pub output: Vec<u8>,
}

/// How a call failed, as far as callers must distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The socket does not answer; the call had no effect.
    Unavailable,
    /// The answer did not come in time; the call may have had effect.
    Timeout,
    NotFound,
    /// The name is in use, usually by an earlier attempt of this agent that is still under way.
    AlreadyExists,
    Unimplemented,
    Refused,
}

/// A failed call: which one, on what, and the runtime's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message}")]
pub struct RuntimeError {
    /// CRI's name of the call.
    pub call: &'static str,
    pub kind: ErrorKind,
    /// The runtime's message, as users know it from the kubelet.
    pub message: String,
}

impl RuntimeError {
    #[must_use]
    pub(crate) fn new(call: &'static str, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { call, kind, message: message.into() }
    }
}

/// Registry credentials for one pull. As JSON they go to the process that pulls.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ImageAuth {
    pub username: String,
    /// Password or token.
    pub password: String,
    /// The only server that may get them, a URL or `host[:port]`; when empty, every server that is asked
    /// (mirrors, too), as in containerd.
    pub server_address: String,
    /// A refresh token for the registry's token server, when there is no user.
    pub identity_token: String,
    /// A bearer token to send as it is.
    pub registry_token: String,
}

impl ImageAuth {
    #[must_use]
    pub fn of_user(username: String, password: String) -> Self {
        Self { username, password, ..Self::default() }
    }
}

/// Never prints the password.
impl std::fmt::Debug for ImageAuth {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ImageAuth").field("username", &self.username).finish_non_exhaustive()
    }
}

pub use crate::model::labels;

pub(crate) mod chosen;
pub mod convert;
pub mod cri;
pub(crate) mod docker;
pub mod embedded;
pub mod fake;
pub mod metered;
pub(crate) mod socket;
