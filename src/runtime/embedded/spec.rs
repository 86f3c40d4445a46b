//! The agent's instructions for the processes that make pods and containers: fully decided, without any
//! choice left.
//!
//! `OciSpec` has the names and the meaning of the OCI runtime specification 1.2 (its `config.json`), as far
//! as it is used: external runtimes get it unchanged, the built-in executor reads the same. `Bundle` and
//! `PodSpec` add what the specification leaves to the caller of a runtime. Owns types. Made by `oci` (pure),
//! carried out by `init`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::MapAccess;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::api::fields::{Fields, FieldsVisitor, read_field, write_field};
use crate::model::api::{record, wire};
use crate::model::runtime_config::IdRange;

record! {
    /// What a pod's monitor makes before any container.
    #[derive(Eq)]
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
        /// Directories in every cgroup hierarchy, which the monitor enters before it makes anything; empty when the agent
        /// moves it.
        pub cgroups: Vec<PathBuf>,
    }

    /// One container, ready to be started.
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

    #[derive(Eq)]
    pub struct Overlay {
        /// Read-only layers, topmost first; at least one.
        pub lower: Vec<PathBuf>,
        /// The directory that receives changes.
        pub upper: PathBuf,
        /// Overlayfs' work directory, on the file system of `upper`.
        pub work: PathBuf,
    }

    /// A program to run in a running container: an exec.
    #[derive(Eq)]
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
}

wire! {
    /// `config.json`.
    pub struct OciSpec {
        /// `1.1.0`, the first version with mount mappings: runc 1.1 and crun 1.8 accept it, and that crun accepts
        /// no later one.
        #[wire(always)]
        pub oci_version: String,
        #[wire(always)]
        pub process: Process,
        #[wire(always)]
        pub root: Root,
        /// Empty here, because the pod sets it.
        pub hostname: String,
        #[wire(always)]
        pub mounts: Vec<OciMount>,
        pub annotations: BTreeMap<String, String>,
        #[wire(always)]
        pub linux: Linux,
    }

    #[derive(Eq)]
    pub struct Process {
        /// A TTY on all three streams.
        #[wire(always)]
        pub terminal: bool,
        pub console_size: Option<ConsoleSize>,
        #[wire(always)]
        pub user: User,
        /// Program and arguments; the program is looked up in `PATH` of `env`.
        #[wire(always)]
        pub args: Vec<String>,
        /// `NAME=value`.
        #[wire(always)]
        pub env: Vec<String>,
        #[wire(always)]
        pub cwd: String,
        /// Sets of `CAP_…`.
        #[wire(always)]
        pub capabilities: Capabilities,
        pub rlimits: Vec<Rlimit>,
        #[wire(always)]
        pub no_new_privileges: bool,
        /// Profile by name; empty for none.
        pub apparmor_profile: String,
        /// -1000..1000; a value that the kernel refuses is clamped to what it allows.
        pub oom_score_adj: Option<i32>,
        /// Process label; empty for none.
        pub selinux_label: String,
    }

    #[derive(Copy, Eq)]
    pub struct ConsoleSize {
        #[wire(always)]
        pub height: u16,
        #[wire(always)]
        pub width: u16,
    }

    #[derive(Eq)]
    pub struct User {
        /// User id, as the container sees it.
        #[wire(always)]
        pub uid: u32,
        #[wire(always)]
        pub gid: u32,
        pub additional_gids: Vec<u32>,
    }

    /// `capabilities`: names such as `CAP_CHOWN`.
    #[derive(Eq)]
    pub struct Capabilities {
        /// Can ever be acquired.
        #[wire(always)]
        pub bounding: Vec<String>,
        #[wire(always)]
        pub effective: Vec<String>,
        /// Kept over execve.
        pub inheritable: Vec<String>,
        /// Can become effective.
        #[wire(always)]
        pub permitted: Vec<String>,
        /// Kept over execve by programs without file capabilities.
        pub ambient: Vec<String>,
    }

    #[derive(Eq)]
    pub struct Rlimit {
        /// `RLIMIT_NOFILE`…
        #[wire(always, rename = "type")]
        pub kind: String,
        /// Upper limit of `soft`.
        #[wire(always)]
        pub hard: u64,
        #[wire(always)]
        pub soft: u64,
    }

    #[derive(Eq)]
    pub struct Root {
        #[wire(always)]
        pub path: PathBuf,
        #[wire(always)]
        pub readonly: bool,
    }

    /// `mounts[]`. Options are those of `mount(8)` and of the specification: `bind`, `rbind`, `ro`, `rro`,
    /// `nosuid`, `nodev`, `noexec`, `relatime`, `strictatime`, `private`, `rprivate`, `slave`, `rslave`,
    /// `shared`, `rshared`, `mode=…`, `size=…`…
    #[derive(Eq)]
    pub struct OciMount {
        /// In the container, absolute.
        #[wire(always)]
        pub destination: String,
        /// `bind`, `proc`, `sysfs`, `tmpfs`, `devpts`, `mqueue`, `cgroup`.
        #[wire(always, rename = "type")]
        pub kind: String,
        /// Path on the node for binds, else a name.
        #[wire(always)]
        pub source: String,
        #[wire(always)]
        pub options: Vec<String>,
    }

    pub struct Linux {
        /// Namespaces to make (`path` empty) or join. Absent kinds are the node's.
        #[wire(always)]
        pub namespaces: Vec<Namespace>,
        /// Users of a pod's own user namespace.
        pub uid_mappings: Vec<IdMapping>,
        /// Groups of a pod's own user namespace.
        pub gid_mappings: Vec<IdMapping>,
        /// Nodes to make below `/dev` beyond the default ones.
        pub devices: Vec<Device>,
        /// cgroup path, for external runtimes; the built-in executor enters [`Bundle::cgroups`] instead.
        pub cgroups_path: String,
        /// For external runtimes, and for the device rules.
        #[wire(always)]
        pub resources: Resources,
        /// In the specification's form, for external runtimes; the built-in executor loads
        /// [`Bundle::seccomp_filter`].
        pub seccomp: Option<serde_json::Value>,
        /// Propagation of the root: `private`, `rprivate`, `rslave`, `rshared`.
        pub rootfs_propagation: String,
        pub masked_paths: Vec<String>,
        pub readonly_paths: Vec<String>,
        /// Context of mounts; empty for none.
        pub mount_label: String,
    }

    /// `linux.namespaces[]`.
    #[derive(Eq)]
    pub struct Namespace {
        /// `pid`, `network`, `ipc`, `uts`, `mount`, `cgroup`, `user`.
        #[wire(always, rename = "type")]
        pub kind: String,
        /// Empty for a new one; else `/proc/<pid>/ns/…`.
        pub path: String,
    }

    /// `uidMappings[]`, `gidMappings[]`.
    #[derive(Copy, Eq)]
    pub struct IdMapping {
        /// First id in the container.
        #[wire(always, rename = "containerID")]
        pub container_id: u32,
        /// First id on the node.
        #[wire(always, rename = "hostID")]
        pub host_id: u32,
        #[wire(always)]
        pub size: u32,
    }

    /// `linux.devices[]`.
    #[derive(Eq)]
    pub struct Device {
        /// `c`, `b`, `p`.
        #[wire(always, rename = "type")]
        pub kind: String,
        /// In the container.
        #[wire(always)]
        pub path: String,
        #[wire(always)]
        pub major: u32,
        #[wire(always)]
        pub minor: u32,
        #[wire(always)]
        pub file_mode: u32,
        /// Owner in the container.
        #[wire(always)]
        pub uid: u32,
        /// Group in the container.
        #[wire(always)]
        pub gid: u32,
        /// Path on the node, if different. Not part of the specification: for nodes that may not be made but only
        /// bound.
        pub host_path: String,
    }
}

/// `linux.resources` without the cgroup values that the agent writes itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// Device rules in order; the last that matches wins.
    pub devices: Vec<DeviceRule>,
    /// CPU, memory and so on in the specification's form, for external runtimes; empty for the built-in
    /// executor.
    pub others: BTreeMap<String, serde_json::Value>,
}

impl Fields for Resources {
    fn read<'de, M: MapAccess<'de>>(&mut self, name: &str, members: &mut M) -> Result<(), M::Error> {
        if name == "devices" {
            return read_field(&mut self.devices, members);
        }
        self.others.insert(name.to_owned(), members.next_value()?);
        Ok(())
    }

    fn write<M: SerializeMap>(&self, members: &mut M) -> Result<(), M::Error> {
        write_field(members, "devices", &self.devices, true)?;
        self.others.iter().try_for_each(|(name, value)| members.serialize_entry(name, value))
    }
}

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor::new("Resources"))
    }
}

impl Serialize for Resources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        self.write(&mut members)?;
        members.end()
    }
}

wire! {
    /// `linux.resources.devices[]`.
    #[derive(Eq)]
    pub struct DeviceRule {
        #[wire(always)]
        pub allow: bool,
        /// `a`, `c`, `b`; empty is `a`.
        #[wire(rename = "type")]
        pub kind: String,
        /// `None` for all.
        pub major: Option<i64>,
        /// `None` for all.
        pub minor: Option<i64>,
        /// Letters of `rwm`.
        #[wire(always)]
        pub access: String,
    }
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
