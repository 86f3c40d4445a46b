//! The agent as its own container runtime: images, sandboxes, network and containers with nothing else
//! installed.
//!
//! One sandbox is one monitor process, which owns the pod's processes, their streams and their exits. This
//! side decides, keeps records and the network, and recovers all of it after a restart. ADR 0015 has the map.
//!
//! | module | what it is | where it runs |
//! |---|---|---|
//! | `layout`, `spec`, `facts`, `protocol` | data exchanged between the processes | everywhere |
//! | `images` | image store, unpacking, import | agent (blocking), puller |
//! | `registry` | pulls | the puller, a short-lived child |
//! | `oci`, `seccomp` | decide what a container is to be (pure) | agent |
//! | `apparmor` | the default profile, and which ones the kernel has | agent (blocking) |
//! | `network` | bridge, addresses, host ports, CNI | agent (blocking) |
//! | `pod_network` | when and in which thread `network` works; for the Docker back-end, too | agent |
//! | `client` | requests to monitors | agent |
//! | `runtime` | CRI's calls: records, and the order of effects | agent |
//! | `monitor` | a pod's processes and logs | the monitor |
//! | `init` | from a bundle to a running program | children of the monitor |

pub mod apparmor;
pub mod client;
pub mod facts;
pub mod images;
pub mod init;
pub mod layout;
pub mod monitor;
pub mod network;
pub mod oci;
pub(in crate::runtime) mod pod_network;
pub mod protocol;
pub mod registry;
pub mod runtime;
pub mod seccomp;
pub mod spec;
