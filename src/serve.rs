//! The agent's servers: the kubelet API, the Kubernetes API of the box, streaming, and CRI.

pub mod accounts;
pub mod cri;
pub(crate) mod docker;
pub mod localapi;
pub mod rbac;
pub mod roles;
pub mod server;
pub mod streaming;
