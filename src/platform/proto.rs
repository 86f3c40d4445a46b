//! Messages and calls generated from `proto/`.
//!
//! Owns nothing but the include. Only `runtime/convert`, `runtime/cri`, `handler/grpc`, `devices`,
//! `device_plugins`, `cri_server` and `pod/csi` may use these types.

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

/// containerd's own task service.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod containerd_tasks {
    tonic::include_proto!("containerd.services.tasks.v1");
}

#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod device_plugin {
    tonic::include_proto!("v1beta1");
}

#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod plugin_registration {
    tonic::include_proto!("pluginregistration");
}

/// The PodResources API: which pods use which devices.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod pod_resources {
    tonic::include_proto!("v1");
}

/// The node service of CSI 1.x.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

/// gRPC's health checking protocol.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod health {
    tonic::include_proto!("grpc.health.v1");
}
