//! The kernel and the machine: system calls, the async runtime, the clock, logging, metrics, cgroups, D-Bus,
//! HTTP and gRPC.

pub mod bind;
pub mod cgroup;
pub mod clock;
pub mod dbus;
pub mod dice;
pub mod grpc;
pub mod http;
pub mod logging;
pub mod logind;
pub mod metrics;
pub mod openrc;
pub mod proto;
pub mod rt;
#[allow(unsafe_code, reason = "kernel calls; every block states why it is sound")]
pub mod sys;
#[cfg(test)]
pub(crate) mod testing;
pub mod x509;
