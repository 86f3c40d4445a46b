//! The configuration of sandboxes and containers for a runtime, with CRI's meaning and the agent's types.
//!
//! Owns data types. Built by the rules of `pod`, consumed by implementations of `runtime::Runtime`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::api::record;
use crate::model::types::{ContainerId, PodRef};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupDriver {
    Cgroupfs,
    /// systemd slices and scopes.
    Systemd,
}

/// `NamespaceMode` of CRI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMode {
    /// Shared by the pod's containers.
    #[default]
    Pod,
    /// Each container its own.
    Container,
    Node,
}

record! {
    /// Which namespaces the pod's containers share.
    #[derive(Copy, Eq)]
    pub struct NamespaceOptions {
        pub network: NamespaceMode,
        pub pid: NamespaceMode,
        /// System V IPC and POSIX queues.
        pub ipc: NamespaceMode,
    }

    /// Everything `RunPodSandbox` needs.
    pub struct SandboxConfig {
        pub pod: PodRef,
        /// Counts sandboxes of this pod.
        pub attempt: u32,
        /// Empty for host network.
        pub hostname: String,
        /// Absolute directory of the pod's logs.
        pub log_directory: String,
        /// The pod's resolv.conf; `None` leaves it to the runtime.
        pub dns: Option<DnsConfig>,
        pub port_mappings: Vec<PortMapping>,
        /// Pod labels plus the contract's.
        pub labels: BTreeMap<String, String>,
        pub annotations: BTreeMap<String, String>,
        /// In the form of the cgroup driver in use.
        pub cgroup_parent: String,
        /// `securityContext.sysctls`.
        pub sysctls: BTreeMap<String, String>,
        pub namespaces: NamespaceOptions,
        /// Some container of the pod is privileged.
        pub privileged: bool,
        /// `runAsUser` of the pod.
        pub run_as_user: Option<i64>,
        /// `runAsGroup` of the pod.
        pub run_as_group: Option<i64>,
        /// fsGroup, then those of volumes, then the listed ones.
        pub supplemental_groups: Vec<i64>,
        /// Sum over the pod.
        pub resources: LinuxResources,
        /// Whether groups of the image's `/etc/group` count too.
        pub supplemental_groups_policy: SupplementalGroupsPolicy,
        pub selinux: Option<SelinuxLabel>,
        /// The pod's own user namespace; `None` for the node's.
        pub user_namespace: Option<IdRange>,
        /// `spec.overhead`.
        pub overhead: LinuxResources,
        /// RuntimeClass handler, empty for the default.
        pub runtime_handler: String,
    }
}

/// `SupplementalGroupsPolicy` of CRI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupplementalGroupsPolicy {
    /// The image's groups of the user, and the listed ones.
    #[default]
    Merge,
    /// Only the listed ones.
    Strict,
}

record! {
    /// `SELinuxOption` of CRI.
    #[derive(Eq)]
    pub struct SelinuxLabel {
        /// For example `system_u`.
        pub user: String,
        /// For example `system_r`.
        pub role: String,
        /// For example `container_t`.
        pub type_: String,
        /// For example `s0:c1,c2`.
        pub level: String,
    }

    /// Users and groups 0..`length` of a pod are `host`..`host+length` of the node.
    #[derive(Copy, Eq)]
    pub struct IdRange {
        /// First id on the node.
        pub host: u32,
        pub length: u32,
    }

    /// `DNSConfig`.
    #[derive(Eq)]
    pub struct DnsConfig {
        pub servers: Vec<String>,
        pub searches: Vec<String>,
        /// `name` or `name:value`.
        pub options: Vec<String>,
    }
}

impl DnsConfig {
    /// The text of a resolv.conf; `None` when the configuration is empty.
    #[must_use]
    pub(crate) fn resolv_conf(&self) -> Option<String> {
        let mut text = String::new();
        let mut add = |word: &str, values: &str| {
            for part in [word, " ", values, "\n"] {
                text.push_str(part);
            }
        };
        if !self.searches.is_empty() {
            add("search", &self.searches.join(" "));
        }
        for server in &self.servers {
            add("nameserver", server);
        }
        if !self.options.is_empty() {
            add("options", &self.options.join(" "));
        }
        (!text.is_empty()).then_some(text)
    }
}

record! {
    #[derive(Eq)]
    pub struct PortMapping {
        /// `TCP`, `UDP`, `SCTP`.
        #[wire(always)]
        pub protocol: String,
        #[wire(always)]
        pub container_port: i32,
        /// On the node; 0 for none.
        #[wire(always)]
        pub host_port: i32,
        /// Address on the node, empty for all.
        #[wire(always)]
        pub host_ip: String,
    }

    /// Everything `CreateContainer` needs.
    pub struct ContainerConfig {
        pub name: String,
        pub attempt: u32,
        /// The reference the runtime resolved.
        pub image: String,
        /// The text of the spec.
        pub user_specified_image: String,
        /// `command`, expanded.
        pub command: Vec<String>,
        /// `args`, expanded.
        pub args: Vec<String>,
        pub working_dir: String,
        /// In order of definition.
        pub envs: Vec<(String, String)>,
        /// In order of the spec.
        pub mounts: Vec<Mount>,
        pub devices: Vec<Device>,
        /// `vendor.com/class=name`, for a runtime that implements the Container Device Interface itself.
        pub cdi_devices: Vec<String>,
        /// Relative to the sandbox's log directory.
        pub log_path: String,
        pub stdin: bool,
        pub stdin_once: bool,
        pub tty: bool,
        /// The contract's labels.
        pub labels: BTreeMap<String, String>,
        /// The contract's annotations.
        pub annotations: BTreeMap<String, String>,
        pub resources: LinuxResources,
        pub security: ContainerSecurity,
        /// `lifecycle.stopSignal`, for example `SIGUSR1`; empty for the image's.
        pub stop_signal: String,
    }

    /// A device of the node that a container may use.
    #[derive(Eq)]
    pub struct Device {
        /// On the node: a device node, a link to one, or a directory of some.
        pub host_path: String,
        /// In the container, absolute.
        pub container_path: String,
        /// Letters of `rwm`.
        pub permissions: String,
        /// Permission bits instead of the node's; CRI has no word for these three.
        pub file_mode: Option<u32>,
        /// Owner in the container instead of the node's.
        pub uid: Option<u32>,
        /// Group in the container instead of the node's.
        pub gid: Option<u32>,
    }

    /// A bind mount to make.
    #[derive(Eq)]
    pub struct Mount {
        /// Inside the container, absolute.
        pub container_path: String,
        pub host_path: String,
        pub readonly: bool,
        /// How later mounts travel.
        pub propagation: MountPropagation,
        pub selinux_relabel: bool,
        /// Mounts below are not writable either; only with `readonly`.
        pub recursive_read_only: bool,
        /// Mount this image instead of `host_path`.
        pub image: Option<ImageMount>,
    }

    #[derive(Eq)]
    pub struct ImageMount {
        /// What the pull returned.
        pub image: String,
        /// The text of the spec.
        pub user_specified_image: String,
        /// A directory of the image; empty for all of it.
        pub sub_path: String,
    }
}

/// `MountPropagation` of CRI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountPropagation {
    #[default]
    Private,
    /// From the node in.
    HostToContainer,
    Bidirectional,
}

record! {
    /// `LinuxContainerResources`; zero and `None` mean "do not set".
    #[derive(Eq)]
    pub struct LinuxResources {
        pub cpu_period: i64,
        /// Microseconds per period, -1 for no limit.
        pub cpu_quota: i64,
        pub cpu_shares: i64,
        pub memory_limit_bytes: i64,
        /// Memory plus swap, bytes.
        pub memory_swap_limit_bytes: i64,
        /// -1000..1000.
        pub oom_score_adj: i64,
        /// Page size (`2MB`) to bytes.
        pub hugepage_limits: Vec<(String, u64)>,
        /// cgroup v2 file to value.
        pub unified: BTreeMap<String, String>,
        /// For example `0-1`; empty for all.
        pub cpuset_cpus: String,
        /// Memory nodes; empty for all.
        pub cpuset_mems: String,
    }

    /// `LinuxContainerSecurityContext`, as far as pods of this version use it.
    #[derive(Eq)]
    pub struct ContainerSecurity {
        pub privileged: bool,
        pub add_capabilities: Vec<String>,
        pub drop_capabilities: Vec<String>,
        pub run_as_user: Option<i64>,
        pub run_as_group: Option<i64>,
        /// User name, when the image sets one and the spec sets no user.
        pub run_as_username: String,
        /// `readOnlyRootFilesystem`.
        pub readonly_rootfs: bool,
        /// `!allowPrivilegeEscalation`.
        pub no_new_privs: bool,
        /// fsGroup, then those of volumes, then the listed ones.
        pub supplemental_groups: Vec<i64>,
        /// As the sandbox.
        pub namespaces: NamespaceOptions,
        /// `RuntimeDefault`, `Unconfined` or an absolute profile path.
        pub seccomp: SeccompChoice,
        /// Paths hidden from the container (procMount Default).
        pub masked_paths: Vec<String>,
        /// Paths made read-only (procMount Default).
        pub readonly_paths: Vec<String>,
        /// Whether groups of the image's `/etc/group` count too.
        pub supplemental_groups_policy: SupplementalGroupsPolicy,
        pub selinux: Option<SelinuxLabel>,
        /// AppArmor profile; `None` leaves it to the runtime.
        pub apparmor: Option<AppArmorChoice>,
        /// The pod's own user namespace; `None` for the node's.
        pub user_namespace: Option<IdRange>,
        /// Join the PID namespace of this container (ephemeral containers).
        pub target: Option<ContainerId>,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppArmorChoice {
    Unconfined,
    /// The runtime's own.
    RuntimeDefault,
    /// A profile loaded into the kernel, by name.
    Localhost(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeccompChoice {
    #[default]
    Unconfined,
    /// The runtime's own.
    RuntimeDefault,
    /// A profile file on the node.
    Localhost(String),
}

record! {
    #[derive(Eq)]
    pub struct ImageStatus {
        /// The id with which containers are created.
        pub id: String,
        /// Numeric user of the image, if it sets one.
        pub uid: Option<i64>,
        /// User name the image runs as, when it is a name.
        pub username: String,
        pub size_bytes: u64,
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeImage {
    /// The id in the status of its containers.
    pub id: String,
    /// Digests, then tags.
    pub names: Vec<String>,
    /// Bytes, as the runtime counts them.
    pub size_bytes: u64,
    /// Never to be collected as garbage.
    pub pinned: bool,
}

record! {
    /// One of the runtime's handlers (`runtimeClassName`).
    #[derive(Eq)]
    pub struct RuntimeHandler {
        /// Empty for the default.
        pub name: String,
        /// Read-only mounts can be recursive.
        pub recursive_read_only_mounts: bool,
        /// Pods can have their own user namespaces.
        pub user_namespaces: bool,
    }
}

/// Values of a cgroup above the containers' ones: the pod's, the QoS class's, the node's. `None` leaves a
/// value unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupValues {
    /// Relative weight, in `cpu.shares`.
    pub cpu_shares: Option<i64>,
    /// Microseconds per period, -1 for no limit.
    pub cpu_quota: Option<i64>,
    pub cpu_period: Option<i64>,
    pub memory_bytes: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
    /// Page size (`2MB`) to bytes, `None` for no limit.
    pub huge_pages: Vec<(String, Option<u64>)>,
}

/// Relative mount paths start at the root (upstream).
#[must_use]
pub(crate) fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}
