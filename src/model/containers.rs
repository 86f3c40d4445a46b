//! Facts about the containers of a pod spec that several decisions share: kinds, identity hash, lookups.
//!
//! Owns the container hash, which is part of the adoption contract.

use crate::model::api::pod::{Container, Pod, PodStatus};
use crate::model::types::ContainerName;

/// Which list of the pod spec a container comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ContainerKind {
    /// `initContainers` without a restart policy of their own.
    Init,
    /// `initContainers` with `restartPolicy: Always`.
    Sidecar,
    /// `containers`.
    Regular,
    /// `ephemeralContainers`.
    Ephemeral,
}

/// The value of the annotation `io.kubernetes.container.hash`, bit for bit the kubelet's, so that each can
/// take over the other's containers: FNV-1a (32 bit) over Go's print of the JSON bytes of image and name.
#[must_use]
pub(crate) fn container_hash(container: &Container) -> String {
    let json = format!(
        "{{\"image\":{},\"name\":{}}}",
        go_json_string(&container.image),
        go_json_string(&container.name)
    );
    let printed: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    let hash = format!("([]uint8)[{}]", printed.join(" "))
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}

/// Go's encoder escapes what could break out of HTML, too.
fn go_json_string(text: &str) -> String {
    serde_json::Value::from(text)
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// A sidecar: an init container that keeps running.
#[must_use]
pub(crate) fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// The kind of an entry of `initContainers`.
#[must_use]
pub(crate) fn init_kind(init_container: &Container) -> ContainerKind {
    if is_sidecar(init_container) { ContainerKind::Sidecar } else { ContainerKind::Init }
}

/// Every init and regular container with its kind, in spec order, init containers first. Ephemeral containers
/// are left out: they affect neither phase nor plan.
pub(crate) fn all_containers(pod: &Pod) -> impl Iterator<Item = (&Container, ContainerKind)> {
    let init = pod.spec.init_containers.iter().map(|container| (container, init_kind(container)));
    init.chain(pod.spec.containers.iter().map(|container| (container, ContainerKind::Regular)))
}

/// The same, then the ephemeral containers.
pub(crate) fn all_with_ephemeral(pod: &Pod) -> impl Iterator<Item = (&Container, ContainerKind)> {
    let guests = pod.spec.ephemeral_containers.iter();
    all_containers(pod).chain(guests.map(|container| (container, ContainerKind::Ephemeral)))
}

/// A container of the spec by name, whichever list it is in.
#[must_use]
pub(crate) fn find_container<'a>(
    pod: &'a Pod,
    name: &ContainerName,
) -> Option<(&'a Container, ContainerKind)> {
    all_with_ephemeral(pod).find(|(container, _)| container.name == name.as_str())
}

/// Succeeded or Failed.
#[must_use]
pub(crate) fn is_terminal(status: &PodStatus) -> bool {
    matches!(status.phase.as_str(), "Succeeded" | "Failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_hash_is_the_kubelets() {
        let container =
            Container { name: "test_container".into(), image: "foo/image:v1".into(), ..Default::default() };
        assert_eq!(container_hash(&container), "8e45cbd0");
    }

    #[test]
    fn only_name_and_image_count_for_the_hash() {
        let mut container = Container { name: "web".into(), image: "nginx".into(), ..Default::default() };
        let before = container_hash(&container);
        container.args = vec!["--verbose".into()];
        assert_eq!(container_hash(&container), before);
        container.image = "nginx:2".into();
        assert_ne!(container_hash(&container), before);
    }
}
