//! Strategic merge patches of the status of Pods.
//!
//! Owns which fields of a status are the node's, and the one form in which they are sent and compared. A status that
//! is compared in another form than it was sent in would be sent again for ever.
//!
//! Pure: what it returns depends on its arguments alone.

#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hasher as _};

use serde_json::{Map, Value, json};

use crate::model::api::pod::{ContainerStatus, Pod, PodCondition, PodStatus};
use crate::model::containers::is_terminal;
use crate::model::ordered::Sortable as _;
use crate::model::types::PodUid;
use crate::pod::status::rules::{hide_early_end, is_client_owned};

/// Shared with the control plane: the node sends it with a terminal phase only, and never removes it.
const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// The reason of the node's own [`DISRUPTION_TARGET`].
const BY_KUBELET: &str = "TerminationByKubelet";
/// Conditions of the node that not every status has: removed by name when they are absent.
const OPTIONAL: [&str; 3] = ["PodResizePending", "PodResizeInProgress", "AllContainersRestarting"];
/// Upstream's `MaxPodTerminationMessageLogLength`: what the messages of all containers may take.
const MESSAGES_BYTES: usize = 12 * 1024;
/// The node's fields of a status, `conditions` apart; what a status does not have is null in a patch.
const FIELDS: [&str; 13] = [
    "observedGeneration",
    "phase",
    "reason",
    "message",
    "startTime",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
    "resize",
];

/// The node's part of the pod's status as it is sent: no terminal phase while a container runs, and nothing is ready
/// in one.
#[must_use]
pub(crate) fn outgoing(pod: &Pod) -> PodStatus {
    let mut status = pod.status.clone();
    hide_early_end(&mut status);
    if is_terminal(&status) {
        let why = if status.phase == "Succeeded" { "PodCompleted" } else { "PodFailed" };
        let is_ready = |condition: &&mut PodCondition| {
            matches!(condition.type_.as_str(), "Ready" | "ContainersReady") && condition.status == "True"
        };
        for condition in status.conditions.iter_mut().filter(is_ready) {
            "False".clone_into(&mut condition.status);
            why.clone_into(&mut condition.reason);
            condition.message.clear();
        }
    }
    normalised(pod, status)
}

/// The node's part of the pod's status as the server shows it.
#[must_use]
pub(crate) fn shown(pod: &Pod) -> PodStatus {
    normalised(pod, pod.status.clone())
}

/// Equal for statuses of equal meaning: the form has whole seconds of UTC, sorted lists, and no absent fields.
#[must_use]
pub(crate) fn digest(status: &PodStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(json!(status).to_string().as_bytes());
    hasher.finish()
}

/// The body of a patch that turns the node's part of any status into `status`, of [`outgoing`]. It needs no earlier
/// version: it names the node's fields only, and the uid is a precondition.
#[must_use]
pub(crate) fn pod_status(uid: &PodUid, status: &PodStatus) -> Value {
    let fields = json!(status);
    let mut body: Map<String, Value> =
        FIELDS.iter().map(|name| ((*name).to_owned(), fields[*name].clone())).collect();
    for addresses in ["podIPs", "hostIPs"] {
        let known = fields[addresses].as_array().into_iter().flatten().cloned();
        let whole = std::iter::once(json!({"$patch": "replace"})).chain(known).collect();
        body.insert(addresses.to_owned(), Value::Array(whole));
    }
    let is_absent = |name: &&&str| !status.conditions.iter().any(|condition| condition.type_ == **name);
    let absent = OPTIONAL.iter().filter(is_absent);
    let conditions = status.conditions.iter().map(whole_condition);
    let conditions = conditions.chain(absent.map(|name| json!({"$patch": "delete", "type": name}))).collect();
    body.insert("conditions".to_owned(), Value::Array(conditions));
    json!({"metadata": {"uid": uid}, "status": body})
}

/// Entries of the list are merged by type: an absent field has to be named.
fn whole_condition(condition: &PodCondition) -> Value {
    let mut whole =
        json!({"lastProbeTime": null, "lastTransitionTime": null, "reason": null, "message": null});
    if let (Value::Object(whole), Value::Object(fields)) = (&mut whole, json!(condition)) {
        whole.extend(fields);
    }
    whole
}

fn normalised(pod: &Pod, mut status: PodStatus) -> PodStatus {
    status.qos_class.clear();
    status.nominated_node_name.clear();
    status.resource_claim_statuses.clear();
    let has_ended = is_terminal(&status);
    status.conditions.retain(|condition| match condition.type_.as_str() {
        DISRUPTION_TARGET => has_ended && condition.reason == BY_KUBELET,
        type_ => !is_client_owned(type_),
    });
    for condition in &mut status.conditions {
        condition.last_probe_time = None;
    }
    status.conditions.order_by(|one, other| one.type_.cmp(&other.type_));
    let spec = &pod.spec;
    let place = |status: &ContainerStatus| {
        spec.init_containers.iter().position(|container| container.name == status.name).unwrap_or(usize::MAX)
    };
    status
        .init_container_statuses
        .order_by(|one, other| place(one).cmp(&place(other)).then_with(|| one.name.cmp(&other.name)));
    status.container_statuses.order_by(|one, other| one.name.cmp(&other.name));
    status.ephemeral_container_statuses.order_by(|one, other| one.name.cmp(&other.name));
    let containers = spec.init_containers.len() + spec.containers.len() + spec.ephemeral_containers.len();
    let most = MESSAGES_BYTES / containers.max(1);
    let regular = status.container_statuses.iter_mut().chain(&mut status.init_container_statuses);
    for container in regular.chain(&mut status.ephemeral_container_statuses) {
        for state in [&mut container.state, &mut container.last_state] {
            if let Some(ended) = &mut state.terminated {
                let mut end = most.min(ended.message.len());
                while !ended.message.is_char_boundary(end) {
                    end -= 1;
                }
                ended.message.truncate(end);
            }
        }
    }
    status
}
