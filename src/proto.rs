//! Messages and calls generated from `proto/`.
//!
//! Owns nothing but the include. `runtime/convert` and `runtime/cri` are its users; nobody else may know these types.

/// CRI v1 of Kubernetes 1.36.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod runtime {
    tonic::include_proto!("runtime.v1");
}

/// containerd's own event service.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod containerd_events {
    tonic::include_proto!("containerd.services.events.v1");
}
