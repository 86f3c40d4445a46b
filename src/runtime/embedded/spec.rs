//! The agent's instructions for the processes that make pods and containers: fully decided, without any
//! choice left.
//!
//! `OciSpec` has the names and the meaning of the OCI runtime specification 1.2 (its `config.json`), as far
//! as it is used: external runtimes get it unchanged, the built-in executor reads the same. `Bundle` and
//! `PodSpec` add what the specification leaves to the caller of a runtime. Owns types. Made by `oci` (pure),
//! carried out by `init`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::model::runtime_config::IdRange;

/// What a pod's monitor makes before any container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodSpec {
    /// A network namespace of its own; `false` for the node's.
    pub own_network: bool,
    /// System V IPC and POSIX queues of its own.
    pub own_ipc: bool,
    /// Host name and domain name of its own.
    pub own_uts: bool,
    /// One PID namespace for all containers, with an init process that reaps.
    pub shared_pid: bool,
    /// A user namespace of its own, which then owns the other namespaces.
    pub users: Option<IdRange>,
    /// Set in the UTS namespace; empty leaves it unchanged.
    pub hostname: String,
    /// Set in the pod's namespaces: name with dots to value.
    pub sysctls: BTreeMap<String, String>,
    /// `oom_score_adj` of the monitor and the pod's init process.
    pub oom_score_adj: i32,
    /// Directories in every cgroup hierarchy, which the monitor enters before it makes anything; empty when the agent moves it.
    pub cgroups: Vec<PathBuf>,
}

/// One container, ready to be started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bundle {
    /// The specification. `root.path` is where `overlay` gets mounted.
    pub oci: OciSpec,
    /// Layers of the root file system.
    pub overlay: Overlay,
    /// Compiled seccomp filter: an array of `sock_filter` as the kernel takes it. `None` for unconfined.
    pub seccomp_filter: Option<PathBuf>,
    /// Directories in every cgroup hierarchy; the process enters all of them before it uses resources.
    pub cgroups: Vec<PathBuf>,
    /// Whether standard input stays open for attach; otherwise it is `/dev/null`.
    pub stdin: bool,
    /// Standard input is closed when the first attach that used it ends.
    pub stdin_once: bool,
    /// Absolute path of the log file in CRI's format; empty for none.
    pub log_path: PathBuf,
    /// Program and arguments of an external OCI runtime (`runc`, `crun`, …); empty for the built-in executor.
    pub external_runtime: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overlay {
    /// Read-only layers, topmost first; at least one.
    pub lower: Vec<PathBuf>,
    /// The directory that receives changes.
    pub upper: PathBuf,
    /// Overlayfs' work directory, on the file system of `upper`.
    pub work: PathBuf,
}

/// A program to run in a running container: an exec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecSpec {
    /// `process` of the specification.
    pub process: Process,
    /// As [`Bundle::seccomp_filter`].
    pub seccomp_filter: Option<PathBuf>,
    /// As [`Bundle::cgroups`].
    pub cgroups: Vec<PathBuf>,
    /// External OCI runtime of the container; empty for the built-in executor.
    pub external_runtime: Vec<String>,
    /// The container's directory ([`super::layout::ContainerDir`]); only external runtimes need it.
    pub directory: PathBuf,
}

/// `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OciSpec {
    /// `1.1.0`, the first version with mount mappings: runc 1.1 and crun 1.8 accept it, and that crun accepts
    /// no later one.
    pub oci_version: String,
    pub process: Process,
    pub root: Root,
    /// Empty here, because the pod sets it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    pub mounts: Vec<OciMount>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    pub linux: Linux,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Process {
    /// A TTY on all three streams.
    pub terminal: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console_size: Option<ConsoleSize>,
    pub user: User,
    /// Program and arguments; the program is looked up in `PATH` of `env`.
    pub args: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    pub cwd: String,
    /// Sets of `CAP_…`.
    pub capabilities: Capabilities,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rlimits: Vec<Rlimit>,
    pub no_new_privileges: bool,
    /// Profile by name; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub apparmor_profile: String,
    /// -1000..1000; a value that the kernel refuses is clamped to what it allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// Process label; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selinux_label: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleSize {
    pub height: u16,
    pub width: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct User {
    /// User id, as the container sees it.
    pub uid: u32,
    pub gid: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// `capabilities`: names such as `CAP_CHOWN`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Can ever be acquired.
    pub bounding: Vec<String>,
    pub effective: Vec<String>,
    /// Kept over execve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inheritable: Vec<String>,
    /// Can become effective.
    pub permitted: Vec<String>,
    /// Kept over execve by programs without file capabilities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ambient: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// `RLIMIT_NOFILE`…
    #[serde(rename = "type")]
    pub kind: String,
    /// Upper limit of `soft`.
    pub hard: u64,
    pub soft: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Root {
    pub path: PathBuf,
    pub readonly: bool,
}

/// `mounts[]`. Options are those of `mount(8)` and of the specification: `bind`, `rbind`, `ro`, `rro`,
/// `nosuid`, `nodev`, `noexec`, `relatime`, `strictatime`, `private`, `rprivate`, `slave`, `rslave`,
/// `shared`, `rshared`, `mode=…`, `size=…`…
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciMount {
    /// In the container, absolute.
    pub destination: String,
    /// `bind`, `proc`, `sysfs`, `tmpfs`, `devpts`, `mqueue`, `cgroup`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Path on the node for binds, else a name.
    pub source: String,
    pub options: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Linux {
    /// Namespaces to make (`path` empty) or join. Absent kinds are the node's.
    pub namespaces: Vec<Namespace>,
    /// Users of a pod's own user namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<IdMapping>,
    /// Groups of a pod's own user namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<IdMapping>,
    /// Nodes to make below `/dev` beyond the default ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// cgroup path, for external runtimes; the built-in executor enters [`Bundle::cgroups`] instead.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cgroups_path: String,
    /// For external runtimes, and for the device rules.
    pub resources: Resources,
    /// In the specification's form, for external runtimes; the built-in executor loads
    /// [`Bundle::seccomp_filter`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<serde_json::Value>,
    /// Propagation of the root: `private`, `rprivate`, `rslave`, `rshared`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rootfs_propagation: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masked_paths: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub readonly_paths: Vec<String>,
    /// Context of mounts; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mount_label: String,
}

/// `linux.namespaces[]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// `pid`, `network`, `ipc`, `uts`, `mount`, `cgroup`, `user`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Empty for a new one; else `/proc/<pid>/ns/…`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
}

/// `uidMappings[]`, `gidMappings[]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdMapping {
    /// First id in the container.
    #[serde(rename = "containerID")]
    pub container_id: u32,
    /// First id on the node.
    #[serde(rename = "hostID")]
    pub host_id: u32,
    pub size: u32,
}

/// `linux.devices[]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Device {
    /// `c`, `b`, `p`.
    #[serde(rename = "type")]
    pub kind: String,
    /// In the container.
    pub path: String,
    pub major: u32,
    pub minor: u32,
    pub file_mode: u32,
    /// Owner in the container.
    pub uid: u32,
    /// Group in the container.
    pub gid: u32,
    /// Path on the node, if different. Not part of the specification: for nodes that may not be made but only
    /// bound.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_path: String,
}

/// `linux.resources` without the cgroup values that the agent writes itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// Device rules in order; the last that matches wins.
    pub devices: Vec<DeviceRule>,
    /// CPU, memory and so on in the specification's form, for external runtimes; null for the built-in
    /// executor.
    #[serde(flatten)]
    pub others: BTreeMap<String, serde_json::Value>,
}

/// `linux.resources.devices[]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceRule {
    pub allow: bool,
    /// `a`, `c`, `b`; empty is `a`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// Letters of `rwm`.
    pub access: String,
}

/// Names of capabilities without `CAP_`, by number: the kernel's order.
pub(in crate::runtime) const CAPABILITY_NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
