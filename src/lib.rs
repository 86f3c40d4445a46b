//! `agent`: a kubelet for the edge. The map of the house; ARCHITECTURE.md describes the arrows between these modules and
//! what is deliberately absent.
//!
//! A module imports lower ranks only, and within a rank only modules listed before it. `tests/tidy` checks that.

// Rank 0: words.
pub mod api;
pub mod desired;
pub mod labels;
pub mod objects;
pub mod observed;
pub mod ordered;
pub mod runtime_config;
pub mod types;
// Rank 1: decisions.
pub mod reconcile;
// Rank 2: seams.
pub mod clock;
pub mod logging;
pub mod metrics;
pub mod rt;
pub mod runtime;
// Rank 3: generated messages and the kernel. `sys` is the only module that may use unsafe code.
pub mod proto;
#[allow(unsafe_code, reason = "kernel calls; every block states why it is sound")]
pub mod sys;
// Rank 4: adapters.
pub mod cgroup;
pub mod dbus;
pub mod http;
pub mod logind;
pub mod openrc;
pub mod store;
// Rank 6: the shell's parts.
pub mod admission;
pub mod cdi;
pub mod container_logs;
pub mod cri_server;
pub mod device_plugins;
pub mod devices;
pub mod events;
pub mod executor;
pub mod handler;
pub mod image;
pub mod mailbox;
pub mod node;
pub mod observe;
pub mod pleg;
pub mod pod_config;
pub mod pod_start;
pub mod pod_worker;
pub mod prober;
pub mod server;
pub mod source;
pub mod stats;
pub mod status;
pub mod streaming;
pub mod volume;
// Above the server, which offers it its paths.
pub mod localapi;
// Rank 7: the shell.
pub mod cli;
pub mod config;
pub mod init;
pub mod kubelet;
pub mod upgrade;
