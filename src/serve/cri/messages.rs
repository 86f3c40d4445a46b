//! What the runtime shows, as CRI messages.
//!
//! Owns the mapping of views.

use std::collections::BTreeMap;

use serde_json::json;

use crate::model::observed::ContainerStateKind;
use crate::platform::proto::runtime as cri;
use crate::runtime::convert;
use crate::runtime::embedded::images::Image;
use crate::runtime::embedded::runtime::api::{ContainerView, SandboxView};

#[must_use]
pub(in crate::serve) fn sandbox_metadata(view: &SandboxView) -> cri::PodSandboxMetadata {
    cri::PodSandboxMetadata {
        name: view.config.pod.name.clone(),
        uid: view.config.pod.uid.to_string(),
        namespace: view.config.pod.namespace.clone(),
        attempt: view.config.attempt,
    }
}

#[must_use]
pub(in crate::serve) fn container_metadata(view: &ContainerView) -> cri::ContainerMetadata {
    cri::ContainerMetadata { name: view.config.name.clone(), attempt: view.config.attempt }
}

#[must_use]
pub(in crate::serve) fn sandbox_state(view: &SandboxView) -> cri::PodSandboxState {
    if view.ready { cri::PodSandboxState::SandboxReady } else { cri::PodSandboxState::SandboxNotready }
}

#[must_use]
pub(in crate::serve) fn container_state(view: &ContainerView) -> cri::ContainerState {
    match view.state {
        ContainerStateKind::Created => cri::ContainerState::ContainerCreated,
        ContainerStateKind::Running => cri::ContainerState::ContainerRunning,
        ContainerStateKind::Exited => cri::ContainerState::ContainerExited,
        ContainerStateKind::Unknown => cri::ContainerState::ContainerUnknown,
    }
}

/// An entry of `ListPodSandbox`.
#[must_use]
pub(in crate::serve) fn sandbox_item(view: &SandboxView) -> cri::PodSandbox {
    cri::PodSandbox {
        id: view.id.to_string(),
        metadata: Some(sandbox_metadata(view)),
        state: sandbox_state(view).into(),
        created_at: view.created_at.as_nanos(),
        labels: view.config.labels.clone(),
        annotations: view.config.annotations.clone(),
        runtime_handler: view.config.runtime_handler.clone(),
    }
}

#[must_use]
pub(in crate::serve) fn sandbox_status(view: &SandboxView) -> cri::PodSandboxStatus {
    // As containerd: a stopped sandbox has released its addresses.
    let mut ips = view.ips.iter().filter(|_| view.ready).map(ToString::to_string);
    let network = cri::PodSandboxNetworkStatus {
        ip: ips.next().unwrap_or_default(),
        additional_ips: ips.map(|ip| cri::PodIp { ip }).collect(),
    };
    let asked = convert::sandbox_config(&view.config);
    let options = asked.linux.and_then(|linux| linux.security_context?.namespace_options);
    cri::PodSandboxStatus {
        id: view.id.to_string(),
        metadata: Some(sandbox_metadata(view)),
        state: sandbox_state(view).into(),
        created_at: view.created_at.as_nanos(),
        network: Some(network),
        linux: Some(cri::LinuxPodSandboxStatus { namespaces: Some(cri::Namespace { options }) }),
        labels: view.config.labels.clone(),
        annotations: view.config.annotations.clone(),
        runtime_handler: view.config.runtime_handler.clone(),
    }
}

/// An image as containers name it: the requested reference, otherwise the image's own name.
fn image_spec(view: &ContainerView) -> cri::ImageSpec {
    let user_specified = &view.config.user_specified_image;
    let name = if view.image.is_empty() { &view.config.image } else { &view.image };
    cri::ImageSpec {
        image: name.clone(),
        user_specified_image: user_specified.clone(),
        ..cri::ImageSpec::default()
    }
}

/// An entry of `ListContainers`.
#[must_use]
pub(in crate::serve) fn container_item(view: &ContainerView) -> cri::Container {
    cri::Container {
        id: view.id.to_string(),
        pod_sandbox_id: view.sandbox.to_string(),
        metadata: Some(container_metadata(view)),
        // As containerd: in lists the image is the reference that the container was created with.
        image: Some(cri::ImageSpec { image: view.config.image.clone(), ..image_spec(view) }),
        image_ref: view.image_ref.clone(),
        state: container_state(view).into(),
        created_at: view.created_at.as_nanos(),
        labels: view.config.labels.clone(),
        annotations: view.config.annotations.clone(),
        image_id: view.image_id.clone(),
    }
}

#[must_use]
pub(in crate::serve) fn container_status(view: &ContainerView) -> cri::ContainerStatus {
    let asked = convert::container_config(&view.config);
    let stop_signal = asked.stop_signal;
    let resources = asked.linux.and_then(|linux| linux.resources).map(|mut resources| {
        // The effective value when none was requested: the memory limit bounds memory and swap together.
        if resources.memory_swap_limit_in_bytes == 0 {
            resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes.max(0);
        }
        resources
    });
    let user = view.user.as_ref().map(|user| cri::ContainerUser {
        linux: Some(cri::LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: user.supplemental_groups.clone(),
        }),
    });
    cri::ContainerStatus {
        id: view.id.to_string(),
        metadata: Some(container_metadata(view)),
        state: container_state(view).into(),
        created_at: view.created_at.as_nanos(),
        started_at: view.started_at.as_nanos(),
        finished_at: view.finished_at.as_nanos(),
        exit_code: view.exit_code,
        image: Some(image_spec(view)),
        image_ref: view.image_ref.clone(),
        reason: view.reason.clone(),
        message: view.message.clone(),
        labels: view.config.labels.clone(),
        annotations: view.config.annotations.clone(),
        mounts: asked.mounts,
        log_path: view.log_path.clone(),
        resources: Some(cri::ContainerResources { linux: resources, windows: None }),
        image_id: view.image_id.clone(),
        user,
        stop_signal,
    }
}

#[must_use]
pub(in crate::serve) fn image(image: &Image) -> cri::Image {
    let name = image.defaults.user.split(':').next().unwrap_or_default();
    let uid = name.parse().ok().map(|value| cri::Int64Value { value });
    cri::Image {
        id: image.id.clone(),
        repo_tags: image.repo_tags.clone(),
        repo_digests: image.repo_digests.clone(),
        size: image.size_bytes,
        username: if uid.is_some() { String::new() } else { name.to_owned() },
        uid,
        spec: Some(cri::ImageSpec { image: image.id.clone(), ..cri::ImageSpec::default() }),
        pinned: image.pinned,
    }
}

/// Verbose information about a sandbox, one JSON document under `info`, where clients expect it.
#[must_use]
pub(in crate::serve) fn sandbox_info(view: &SandboxView) -> BTreeMap<String, String> {
    let info = json!({
        "pid": view.pid,
        "runtimeHandler": view.config.runtime_handler,
        "runtimeType": "embedded",
        "config": view.config,
    });
    [("info".to_owned(), info.to_string())].into()
}

/// Verbose information about a container.
#[must_use]
pub(in crate::serve) fn container_info(view: &ContainerView) -> BTreeMap<String, String> {
    let info = json!({
        "pid": view.pid,
        "sandboxID": view.sandbox,
        "runtimeType": "embedded",
        "config": view.config,
    });
    [("info".to_owned(), info.to_string())].into()
}

/// Verbose information about an image.
#[must_use]
pub(in crate::serve) fn image_info(image: &Image) -> BTreeMap<String, String> {
    let defaults = &image.defaults;
    let info = json!({
        "imageSpec": {"config": {
            "User": defaults.user, "Env": defaults.env, "Entrypoint": defaults.entrypoint, "Cmd": defaults.cmd,
            "WorkingDir": defaults.working_dir, "StopSignal": defaults.stop_signal, "Labels": defaults.labels,
        }},
        "layers": image.layers,
    });
    [("info".to_owned(), info.to_string())].into()
}

#[must_use]
#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
pub(in crate::serve) fn number(value: u64) -> Option<cri::UInt64Value> {
    Some(cri::UInt64Value { value })
}
