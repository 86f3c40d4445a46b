//! What a runtime reports, converted from CRI messages.
//!
//! Owns the reading direction of the mapping. Objects without pod labels are not Kubernetes' and are left
//! out.

use std::collections::BTreeMap;

use crate::model::observed::{
    ContainerStateKind, ObservedContainer, ObservedMount, ObservedSandbox, ObservedUser,
};
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{ContainerId, ContainerName, PodRef, PodUid, SandboxId, Timestamp};
use crate::platform::proto::runtime as cri;
use crate::runtime::{ImageStatus, RuntimeHandler, RuntimeImage, RuntimeStatus, labels};

/// A sandbox of a list; `None` when it does not belong to a kubelet's pod.
#[must_use]
pub(crate) fn sandbox_from_list(sandbox: cri::PodSandbox) -> Option<ObservedSandbox> {
    Some(ObservedSandbox {
        pod: pod_from_labels(&sandbox.labels)?,
        ready: readiness(sandbox.state),
        id: SandboxId::from(sandbox.id),
        attempt: sandbox.metadata.map_or(0, |metadata| metadata.attempt),
        created_at: Timestamp::from_nanos(sandbox.created_at),
        ips: Vec::new(),
        host_network: false,
    })
}

/// A sandbox in full. Without pod labels the pod is named by the metadata.
#[must_use]
pub(crate) fn sandbox_from_status(status: cri::PodSandboxStatus) -> ObservedSandbox {
    let ready = readiness(status.state);
    let metadata = status.metadata.unwrap_or_default();
    let pod = pod_from_labels(&status.labels).unwrap_or_else(|| PodRef {
        namespace: metadata.namespace,
        name: metadata.name,
        uid: PodUid::from(metadata.uid),
    });
    let host_network = status
        .linux
        .and_then(|linux| linux.namespaces)
        .and_then(|namespaces| namespaces.options)
        .is_some_and(|options| options.network() == cri::NamespaceMode::Node);
    let network = status.network.unwrap_or_default();
    let additional = network.additional_ips.into_iter().map(|address| address.ip);
    let ips = std::iter::once(network.ip).chain(additional).filter(|ip| !ip.is_empty());
    ObservedSandbox {
        id: SandboxId::from(status.id),
        pod,
        ready,
        attempt: metadata.attempt,
        created_at: Timestamp::from_nanos(status.created_at),
        ips: if host_network { Vec::new() } else { ips.collect() },
        host_network,
    }
}

/// A container of a list; `None` when it does not belong to a kubelet's pod.
#[must_use]
pub(crate) fn container_from_list(container: cri::Container) -> Option<ObservedContainer> {
    let pod = pod_from_labels(&container.labels)?;
    let metadata = container.metadata.unwrap_or_default();
    let name = container_name(&container.labels, metadata.name);
    if !may_name_files(name.as_str()) {
        return None;
    }
    Some(ObservedContainer {
        pod,
        name,
        state: container_state(container.state),
        hash: annotation(&container.annotations, labels::CONTAINER_HASH),
        id: ContainerId::from(container.id),
        sandbox: SandboxId::from(container.pod_sandbox_id),
        attempt: metadata.attempt,
        image: image_name(container.image),
        image_id: first_set(container.image_ref, container.image_id),
        created_at: Timestamp::from_nanos(container.created_at),
        ..ObservedContainer::default()
    })
}

/// A container in full. CRI's status does not name the sandbox, so the caller passes it.
#[must_use]
pub(crate) fn container_from_status(status: cri::ContainerStatus, sandbox: SandboxId) -> ObservedContainer {
    let metadata = status.metadata.unwrap_or_default();
    ObservedContainer {
        pod: pod_from_labels(&status.labels).unwrap_or_default(),
        name: container_name(&status.labels, metadata.name),
        state: container_state(status.state),
        hash: annotation(&status.annotations, labels::CONTAINER_HASH),
        id: ContainerId::from(status.id),
        sandbox,
        attempt: metadata.attempt,
        image: image_name(status.image),
        image_id: first_set(status.image_ref, status.image_id),
        created_at: Timestamp::from_nanos(status.created_at),
        started_at: Timestamp::from_nanos(status.started_at),
        finished_at: Timestamp::from_nanos(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason,
        message: status.message,
        annotations: status.annotations,
        log_path: status.log_path,
        mounts: status.mounts.into_iter().map(observed_mount).collect(),
        user: status.user.and_then(|user| user.linux).map(observed_user),
    }
}

/// `ImageStatusResponse`'s image.
#[must_use]
pub(crate) fn image_from_message(image: cri::Image) -> ImageStatus {
    ImageStatus {
        id: image.id,
        uid: image.uid.map(|uid| uid.value),
        username: image.username,
        size_bytes: image.size,
    }
}

#[must_use]
pub(crate) fn listed_image(image: cri::Image) -> RuntimeImage {
    RuntimeImage {
        id: image.id,
        names: image.repo_digests.into_iter().chain(image.repo_tags).collect(),
        size_bytes: image.size,
        pinned: image.pinned,
    }
}

/// The two readiness conditions, where a missing one counts as not met, and the runtime's abilities.
#[must_use]
pub(crate) fn status_from_message(answer: cri::StatusResponse) -> RuntimeStatus {
    let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
    let find = |kind: &str| match conditions.iter().find(|condition| condition.r#type == kind) {
        Some(condition) if condition.status => Ok(()),
        Some(condition) => Err(format!("{}: {}", condition.reason, condition.message)),
        None => Err(format!("{kind} is not reported by the runtime")),
    };
    RuntimeStatus {
        runtime_ready: find("RuntimeReady"),
        network_ready: find("NetworkReady"),
        handlers: answer.runtime_handlers.into_iter().map(handler).collect(),
        supplemental_groups_policy: answer.features.map(|features| features.supplemental_groups_policy),
    }
}

fn handler(handler: cri::RuntimeHandler) -> RuntimeHandler {
    let features = handler.features.unwrap_or_default();
    RuntimeHandler {
        name: handler.name,
        recursive_read_only_mounts: features.recursive_read_only_mounts,
        user_namespaces: features.user_namespaces,
    }
}

/// The pod named by the labels; `None` without a UID, and for names that no pod could have: they become the
/// name of a directory that is removed later.
#[must_use]
pub(crate) fn pod_from_labels(map: &BTreeMap<String, String>) -> Option<PodRef> {
    let uid = map.get(labels::POD_UID).map(|uid| PodUid::from(uid.as_str())).filter(PodUid::is_safe)?;
    let pod = PodRef {
        namespace: annotation(map, labels::POD_NAMESPACE),
        name: annotation(map, labels::POD_NAME),
        uid,
    };
    (may_name_files(&pod.namespace) && may_name_files(&pod.name)).then_some(pod)
}

/// Names become parts of paths: of logs, and of directories that are removed.
pub(in crate::runtime) fn may_name_files(name: &str) -> bool {
    !name.contains('/') && !matches!(name, "." | "..")
}

fn container_name(map: &BTreeMap<String, String>, metadata_name: String) -> ContainerName {
    map.get(labels::CONTAINER_NAME).cloned().unwrap_or(metadata_name).into()
}

fn annotation(map: &BTreeMap<String, String>, key: &str) -> String {
    map.get(key).cloned().unwrap_or_default()
}

/// An unknown state counts as not ready.
fn readiness(state: i32) -> bool {
    state == i32::from(cri::PodSandboxState::SandboxReady)
}

fn container_state(state: i32) -> ContainerStateKind {
    match cri::ContainerState::try_from(state) {
        Ok(cri::ContainerState::ContainerCreated) => ContainerStateKind::Created,
        Ok(cri::ContainerState::ContainerRunning) => ContainerStateKind::Running,
        Ok(cri::ContainerState::ContainerExited) => ContainerStateKind::Exited,
        Ok(cri::ContainerState::ContainerUnknown) | Err(_) => ContainerStateKind::Unknown,
    }
}

fn image_name(image: Option<cri::ImageSpec>) -> String {
    image.map(|image| image.image).unwrap_or_default()
}

fn first_set(first: String, second: String) -> String {
    if first.is_empty() { second } else { first }
}

fn observed_user(user: cri::LinuxContainerUser) -> ObservedUser {
    ObservedUser { uid: user.uid, gid: user.gid, supplemental_groups: user.supplemental_groups }
}

fn observed_mount(mount: cri::Mount) -> ObservedMount {
    ObservedMount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        recursive_read_only: mount.recursive_read_only,
    }
}

/// The cgroup driver that the runtime wants; `None` when it does not report one, or reports an unknown one.
#[must_use]
pub(crate) fn cgroup_driver_from_message(answer: cri::RuntimeConfigResponse) -> Option<CgroupDriver> {
    match cri::CgroupDriver::try_from(answer.linux.as_ref()?.cgroup_driver) {
        Ok(cri::CgroupDriver::Systemd) => Some(CgroupDriver::Systemd),
        Ok(cri::CgroupDriver::Cgroupfs) => Some(CgroupDriver::Cgroupfs),
        Err(_) => None,
    }
}
