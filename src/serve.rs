//! The agent's servers: the kubelet API, the Kubernetes API of the box, streaming, and CRI.

pub mod cri;
pub mod localapi;
pub mod server;
pub mod streaming;
