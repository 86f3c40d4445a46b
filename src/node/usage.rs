//! What the node, its pods and their containers use: measured by `stats`, ranked by `eviction`, shown by the APIs.
//!
//! Pure: values alone.

use crate::model::types::{PodRef, Timestamp};
use crate::platform::cgroup::usage::{ContainerStats, Detail, Psi};
use crate::platform::sys::node::FileSystemFacts;

/// The usage, all of it read at about the same time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    pub node: NodeUse,
    /// Pods that have a running container, by namespace and name.
    pub pods: Vec<PodUse>,
}

/// CPU and memory of a container, a pod, the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub at: Timestamp,
    /// Cumulative counters, and memory usage.
    pub counted: ContainerStats,
    /// Billionths of a core in use now; `None` unless requested, and for what has just started.
    pub nano_cores: Option<u64>,
    /// Time lost waiting for CPU, memory, disks; `None` unless requested.
    pub psi: [Option<Psi>; 3],
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeUse {
    pub name: String,
    /// When it was booted.
    pub started_at: Timestamp,
    pub usage: Usage,
    /// Bytes of memory it has.
    pub memory_total: Option<u64>,
    /// Bytes of swap it has.
    pub swap_total: Option<u64>,
    pub cpus: u64,
    pub interfaces: Vec<Interface>,
    /// The one that leads out.
    pub default_interface: Option<String>,
    /// What the kernel counts for the disks that file systems are mounted from.
    pub disks: Vec<Disk>,
    /// The maximum number of processes and threads.
    pub max_pids: Option<u64>,
    /// How many there are.
    pub pids: Option<u64>,
    /// `pods` for all pods together, `kubelet` for this program.
    pub system: Vec<SystemUse>,
    /// Where pods' directories are.
    pub fs: Option<FileSystem>,
    /// Where images are.
    pub image_fs: Option<FileSystem>,
    /// Where writable layers are.
    pub container_fs: Option<FileSystem>,
}

/// A cgroup that belongs to no pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SystemUse {
    /// `pods`, `kubelet`.
    pub name: &'static str,
    /// Below the root of a hierarchy.
    pub cgroup: String,
    pub usage: Usage,
}

/// A disk or a part of one, counted since the node was booted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// As it is mounted: `/dev/sda1`.
    pub device: String,
    /// The numbers after the name in its line of `/proc/diskstats`, in order.
    pub counts: [u64; 11],
}

/// A network interface, counted since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// `eth0`...
    pub name: String,
    pub rx_bytes: u64,
    pub rx_packets: u64,
    /// Received with errors.
    pub rx_errors: u64,
    /// Received and dropped.
    pub rx_dropped: u64,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    /// Not sent because of errors.
    pub tx_errors: u64,
    /// Dropped instead of sent.
    pub tx_dropped: u64,
}

/// The usage of a file system by one subject, and the file system itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystem {
    pub at: Timestamp,
    /// The file system as a whole.
    pub facts: FileSystemFacts,
    /// Bytes in use by the subject; `None` while unknown.
    pub used: Option<u64>,
    /// Inodes in use by the subject.
    pub inodes_used: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodUse {
    pub pod: PodRef,
    pub started_at: Timestamp,
    /// Its cgroup below the root of a hierarchy, empty when it was not found.
    pub cgroup: String,
    /// CPU and memory of all that is in its cgroup; of its containers together where it has none.
    pub usage: Usage,
    /// Figures that only `/metrics/cadvisor` shows.
    pub detail: Option<Detail>,
    /// Its running containers, by name.
    pub containers: Vec<ContainerUse>,
    /// Its interfaces; none with the host network.
    pub interfaces: Vec<Interface>,
    /// Its volumes that can be measured.
    pub volumes: Vec<VolumeUse>,
    /// Writable layers, logs and volumes on the node's disk, together.
    pub ephemeral: Option<FileSystem>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerUse {
    pub name: String,
    /// The runtime's id.
    pub id: String,
    /// Its image, as the runtime names it.
    pub image: String,
    pub started_at: Timestamp,
    /// Its cgroup below the root of a hierarchy, empty when it was not found.
    pub cgroup: String,
    pub usage: Usage,
    /// Figures that only `/metrics/cadvisor` shows.
    pub detail: Option<Detail>,
    /// Its writable layer.
    pub rootfs: Option<FileSystem>,
    pub logs: Option<FileSystem>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUse {
    pub name: String,
    /// The claim behind it, in the pod's namespace.
    pub claim: Option<String>,
    pub fs: FileSystem,
    /// It counts as the pod's local ephemeral storage: it is on the node's disk, and not a claim.
    pub is_ephemeral: bool,
}
