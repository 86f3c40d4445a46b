//! The seam between pods and containers: CRI's verbs with our types. Implementations live in `runtime/`.
//!
//! Owns the `Runtime` trait and the messages it speaks. Must not know any implementation, nor pods' desired state beyond
//! what one call needs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::observed::{ObservedContainer, ObservedSandbox};
use crate::types::{ContainerId, PodRef, PodUid, SandboxId};

/// What a runtime can do, verb by verb as CRI has them. All calls are bounded in time by the implementation: none hangs
/// with a hanging runtime. All of them may be repeated.
#[expect(async_fn_in_trait, reason = "one thread, one implementation per binary role: no Send bound wanted")]
pub trait Runtime: 'static {
    /// Name and version of the runtime.
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError>;
    /// Whether runtime and network are ready.
    async fn status(&self) -> Result<RuntimeStatus, RuntimeError>;
    /// The cgroup driver the runtime wants; `None` when it does not say (older runtimes: keep the configured one).
    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, RuntimeError>;

    /// Sandboxes with pod labels, of one pod or of all; without the fields only a status call fills.
    async fn list_sandboxes(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedSandbox>, RuntimeError>;
    /// One sandbox in full.
    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, RuntimeError>;
    /// Makes and starts a sandbox, network included.
    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId, RuntimeError>;
    /// Stops a sandbox and what is left in it. Fine on one that is stopped or gone.
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError>;
    /// Removes a stopped sandbox. Fine on one that is gone.
    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError>;

    /// Containers with pod labels, of one pod or of all; without the fields only a status call fills.
    async fn list_containers(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedContainer>, RuntimeError>;
    /// One container in full.
    async fn container_status(&self, id: &ContainerId) -> Result<ObservedContainer, RuntimeError>;
    /// Makes a container in a sandbox.
    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError>;
    /// Starts a made container.
    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError>;
    /// Asks it to stop and kills it after `grace`. Fine on one that has ended or is gone.
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError>;
    /// Removes an ended container. Fine on one that is gone.
    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError>;

    /// The image a reference resolves to, if it is present.
    async fn image_status(&self, image: &str) -> Result<Option<ImageStatus>, RuntimeError>;
    /// Pulls an image and returns the reference to create containers with.
    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&ImageAuth>,
        sandbox: &SandboxConfig,
    ) -> Result<String, RuntimeError>;

    /// Waits for the next hint that something changed, and returns at once if one came since the last call. `Err` with
    /// [`ErrorKind::Unimplemented`] when the runtime offers none: the caller then relists more often. Hints may be lost;
    /// they carry no facts.
    async fn next_change(&self) -> Result<(), RuntimeError>;
}

/// `Version`.
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
}

/// Who writes cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Plain directories.
    Cgroupfs,
    /// systemd slices and scopes.
    Systemd,
}

/// How a call failed, as far as callers must tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The socket does not answer; nothing was done.
    Unavailable,
    /// The answer did not come in time; the call may have had effect.
    Timeout,
    /// The object does not exist.
    NotFound,
    /// The name is in use, usually by an earlier try of our own that is still under way.
    AlreadyExists,
    /// The runtime does not have this call.
    Unimplemented,
    /// The runtime said no.
    Refused,
}

/// A failed call: which one, on what, and the runtime's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message}")]
pub struct RuntimeError {
    /// CRI's name of the call.
    pub call: &'static str,
    /// What kind of failure.
    pub kind: ErrorKind,
    /// The runtime's message, as users know it from the kubelet.
    pub message: String,
}

impl RuntimeError {
    /// A failed `call`.
    #[must_use]
    pub fn new(call: &'static str, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { call, kind, message: message.into() }
    }
}

/// `NamespaceMode` of CRI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMode {
    /// Shared by the pod's containers.
    #[default]
    Pod,
    /// Each container its own.
    Container,
    /// The node's.
    Node,
}

/// Which namespaces the pod shares with whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceOptions {
    /// Network.
    pub network: NamespaceMode,
    /// PIDs.
    pub pid: NamespaceMode,
    /// System V IPC and POSIX queues.
    pub ipc: NamespaceMode,
}

/// Everything `RunPodSandbox` needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxConfig {
    /// Name, namespace and uid.
    pub pod: PodRef,
    /// Counts sandboxes of this pod.
    pub attempt: u32,
    /// Empty for host network.
    pub hostname: String,
    /// Absolute directory of the pod's logs.
    pub log_directory: String,
    /// The pod's resolv.conf; `None` leaves it to the runtime.
    pub dns: Option<DnsConfig>,
    /// Host ports.
    pub port_mappings: Vec<PortMapping>,
    /// Pod labels plus the contract's.
    pub labels: BTreeMap<String, String>,
    /// Pod annotations.
    pub annotations: BTreeMap<String, String>,
    /// In the form of the cgroup driver in use.
    pub cgroup_parent: String,
    /// `securityContext.sysctls`.
    pub sysctls: BTreeMap<String, String>,
    /// Network, pid, ipc.
    pub namespaces: NamespaceOptions,
    /// Some container of the pod is privileged.
    pub privileged: bool,
    /// `runAsUser` of the pod.
    pub run_as_user: Option<i64>,
    /// `runAsGroup` of the pod.
    pub run_as_group: Option<i64>,
    /// fsGroup, then the listed ones.
    pub supplemental_groups: Vec<i64>,
    /// Sum over the pod.
    pub resources: LinuxResources,
    /// RuntimeClass handler, empty for the default.
    pub runtime_handler: String,
}

/// `DNSConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// `name` or `name:value`.
    pub options: Vec<String>,
}

/// `PortMapping`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMapping {
    /// `TCP`, `UDP`, `SCTP`.
    pub protocol: String,
    /// In the pod.
    pub container_port: i32,
    /// On the node; 0 for none.
    pub host_port: i32,
    /// Address on the node, empty for all.
    pub host_ip: String,
}

/// Everything `CreateContainer` needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerConfig {
    /// Container name.
    pub name: String,
    /// Restart count.
    pub attempt: u32,
    /// The reference the runtime resolved.
    pub image: String,
    /// The text of the spec.
    pub user_specified_image: String,
    /// `command`, expanded.
    pub command: Vec<String>,
    /// `args`, expanded.
    pub args: Vec<String>,
    /// `workingDir`.
    pub working_dir: String,
    /// In order of definition.
    pub envs: Vec<(String, String)>,
    /// In order of the spec.
    pub mounts: Vec<Mount>,
    /// Relative to the sandbox's log directory.
    pub log_path: String,
    /// `stdin`.
    pub stdin: bool,
    /// `stdinOnce`.
    pub stdin_once: bool,
    /// `tty`.
    pub tty: bool,
    /// The contract's labels.
    pub labels: BTreeMap<String, String>,
    /// The contract's annotations.
    pub annotations: BTreeMap<String, String>,
    /// cgroup values.
    pub resources: LinuxResources,
    /// Who it may be and what it may do.
    pub security: ContainerSecurity,
}

/// A bind mount to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Inside the container, absolute.
    pub container_path: String,
    /// On the node.
    pub host_path: String,
    /// Not writable.
    pub readonly: bool,
    /// How later mounts travel.
    pub propagation: MountPropagation,
    /// Ask the runtime to relabel for SELinux.
    pub selinux_relabel: bool,
}

/// `MountPropagation` of CRI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountPropagation {
    /// None.
    #[default]
    Private,
    /// From the node in.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// `LinuxContainerResources`; zero and `None` mean "do not set".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinuxResources {
    /// Microseconds.
    pub cpu_period: i64,
    /// Microseconds per period, -1 for no limit.
    pub cpu_quota: i64,
    /// Relative weight.
    pub cpu_shares: i64,
    /// Bytes.
    pub memory_limit_bytes: i64,
    /// Memory plus swap, bytes.
    pub memory_swap_limit_bytes: i64,
    /// -1000..1000.
    pub oom_score_adj: i64,
    /// Page size (`2MB`) to bytes.
    pub hugepage_limits: Vec<(String, u64)>,
    /// cgroup v2 file to value.
    pub unified: BTreeMap<String, String>,
}

/// `LinuxContainerSecurityContext`, as far as pods of this version use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSecurity {
    /// All doors open.
    pub privileged: bool,
    /// `capabilities.add`.
    pub add_capabilities: Vec<String>,
    /// `capabilities.drop`.
    pub drop_capabilities: Vec<String>,
    /// Numeric user.
    pub run_as_user: Option<i64>,
    /// Numeric group.
    pub run_as_group: Option<i64>,
    /// User by name, when the image says so and the spec nothing.
    pub run_as_username: String,
    /// `readOnlyRootFilesystem`.
    pub readonly_rootfs: bool,
    /// `!allowPrivilegeEscalation`.
    pub no_new_privs: bool,
    /// fsGroup, then the listed ones.
    pub supplemental_groups: Vec<i64>,
    /// As the sandbox.
    pub namespaces: NamespaceOptions,
    /// `RuntimeDefault`, `Unconfined` or an absolute profile path.
    pub seccomp: SeccompChoice,
    /// Paths hidden from the container (procMount Default).
    pub masked_paths: Vec<String>,
    /// Paths made read-only (procMount Default).
    pub readonly_paths: Vec<String>,
}

/// Which seccomp profile applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SeccompChoice {
    /// None at all.
    #[default]
    Unconfined,
    /// The runtime's own.
    RuntimeDefault,
    /// A profile file on the node.
    Localhost(String),
}

/// `ImageStatus`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageStatus {
    /// What to create containers with.
    pub id: String,
    /// Numeric user the image runs as, when it says one.
    pub uid: Option<i64>,
    /// User name the image runs as, when it is a name.
    pub username: String,
    /// Bytes.
    pub size_bytes: u64,
}

/// Registry credentials for one pull.
#[derive(Clone, PartialEq, Eq)]
pub struct ImageAuth {
    /// User.
    pub username: String,
    /// Password or token.
    pub password: String,
}

/// Never prints the password.
impl std::fmt::Debug for ImageAuth {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ImageAuth").field("username", &self.username).finish_non_exhaustive()
    }
}

pub mod labels;

pub mod convert;
pub mod cri;
pub mod fake;
