//! Pods that come through the node's own API: the fields that are set on create, and the permitted changes
//! (upstream: the pod strategy's `PrepareForCreate`, `ValidatePodUpdate`, `ValidatePodResize`,
//! `ValidatePodEphemeralContainersUpdate`, 1.36).
//!
//! Owns these rules and their messages.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::{Map, Value};

use crate::desired::defaults::default_pod;
use crate::desired::static_pod::refused_reference;
use crate::desired::validation::{validate_ephemeral, validate_placement, validate_pod};
use crate::model::api::pod::{
    Container, ObjectMeta, Pod, PodCondition, PodSpec, PodStatus, ResourceRequirements, Toleration,
};
use crate::model::field_error::{FieldError, FieldErrorKind};
use crate::model::names::qualified_name;
use crate::model::provenance::{CONFIG_HASH_ANNOTATION, LOCAL_ANNOTATIONS, mark_first_seen};
use crate::model::types::{PodSource, PodUid, Timestamp};
use crate::pod::plan::resize::infeasible;
use crate::pod::scheduling::{first_status, is_gated, place};
use crate::pod::status::rules::{add_client_conditions, is_client_owned};

/// The part of a pod that one path may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The pod itself: metadata, images and few other fields.
    Itself,
    /// `resize`: CPU and memory.
    Resize,
    /// `ephemeralcontainers`: adds ephemeral containers.
    EphemeralContainers,
}

const ONLY_THESE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn error(kind: FieldErrorKind, path: &str, value: String, detail: impl Into<String>) -> FieldError {
    FieldError { path: path.to_owned(), kind, value, detail: detail.into() }
}

fn forbidden(path: &str, detail: impl Into<String>) -> FieldError {
    error(FieldErrorKind::Forbidden, path, String::new(), detail)
}

fn invalid(path: &str, value: impl std::fmt::Display, detail: &str) -> FieldError {
    error(FieldErrorKind::Invalid, path, value.to_string(), detail)
}

/// Prepares a decoded pod, with name and namespace, to run on `node_name`.
pub(crate) fn create(pod: Pod, node_name: &str, uid: PodUid, now: Timestamp) -> Result<Pod, Vec<FieldError>> {
    let mut pod = default_pod(pod);
    let metadata = &mut pod.metadata;
    *metadata = ObjectMeta {
        name: std::mem::take(&mut metadata.name),
        generate_name: std::mem::take(&mut metadata.generate_name),
        namespace: std::mem::take(&mut metadata.namespace),
        labels: std::mem::take(&mut metadata.labels),
        annotations: std::mem::take(&mut metadata.annotations),
        owner_references: std::mem::take(&mut metadata.owner_references),
        finalizers: std::mem::take(&mut metadata.finalizers),
        uid,
        creation_timestamp: Some(now),
        generation: 1,
        ..ObjectMeta::default()
    };
    // Only the agent sets these annotations.
    metadata.annotations.retain(|name, _| !is_agent_annotation(name));
    let mut errors = Vec::new();
    if !pod.spec.node_name.is_empty() && pod.spec.node_name != node_name {
        let detail = format!("the only node is {node_name:?}; omit the field");
        errors.push(invalid("spec.nodeName", format!("{:?}", pod.spec.node_name), &detail));
    }
    errors.extend(validate_placement(&pod));
    errors.extend(validate_pod(&pod));
    if let Some(kind) = refused_reference(&pod) {
        errors.push(forbidden("spec", format!("pods of this node may not reference {kind}")));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    place(&mut pod.spec, node_name);
    mark_first_seen(&mut pod, PodSource::Api, now);
    pod.status = first_status(&pod);
    Ok(pod)
}

fn is_agent_annotation(annotation: &str) -> bool {
    LOCAL_ANNOTATIONS.contains(&annotation) || annotation == CONFIG_HASH_ANNOTATION
}

/// The pod that results when `new` replaces `old`: immutable fields keep their values.
pub(crate) fn update(old: &Pod, new: Pod, part: Part) -> Result<Pod, Vec<FieldError>> {
    let mut new = default_pod(new);
    let mut annotations = std::mem::take(&mut new.metadata.annotations);
    annotations.retain(|name, _| !is_agent_annotation(name));
    let ours = old.metadata.annotations.iter().filter(|(name, _)| is_agent_annotation(name));
    annotations.extend(ours.map(|(name, value)| (name.clone(), value.clone())));
    new.metadata = match part {
        Part::Itself => ObjectMeta {
            labels: new.metadata.labels,
            annotations,
            owner_references: new.metadata.owner_references,
            finalizers: new.metadata.finalizers,
            ..old.metadata.clone()
        },
        // The subresources change nothing else.
        _ => old.metadata.clone(),
    };
    new.status.clone_from(&old.status);
    if new.spec.node_name.is_empty() {
        new.spec.node_name.clone_from(&old.spec.node_name);
    }
    // Admission has filled them in, and the client's manifest need not have them.
    if new.spec.priority.is_none() {
        new.spec.priority = old.spec.priority;
    }
    if new.spec.preemption_policy.is_none() {
        new.spec.preemption_policy.clone_from(&old.spec.preemption_policy);
    }
    if new.spec.priority_class_name.is_empty() {
        new.spec.priority_class_name.clone_from(&old.spec.priority_class_name);
    }
    let mut errors = match part {
        Part::Itself => check_spec_update(&old.spec, &new.spec),
        Part::Resize => check_resize(old, &new),
        Part::EphemeralContainers => check_ephemeral_update(old, &new),
    };
    if errors.is_empty() {
        // They are not allowed on create, and the rules of create are checked here.
        let guests = std::mem::take(&mut new.spec.ephemeral_containers);
        errors = validate_pod(&new);
        new.spec.ephemeral_containers = guests;
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if new.spec != old.spec {
        new.metadata.generation = old.metadata.generation + 1;
    }
    Ok(new)
}

/// The stored part of a pod's status: what clients set. The rest is observed.
#[must_use]
pub(crate) fn stored_status(pod: &Pod) -> PodStatus {
    let mut status = PodStatus::pending();
    add_client_conditions(&mut status, pod);
    status
}

/// The pod with the conditions of `said` that clients own, for example those of readiness gates. The node's
/// own observations are kept, whatever the request contains.
pub(crate) fn update_status(old: &Pod, said: &PodStatus) -> Result<Pod, Vec<FieldError>> {
    let mut errors = Vec::new();
    let mut conditions: Vec<PodCondition> = Vec::new();
    for (index, condition) in said.conditions.iter().enumerate() {
        let at = |field: &str| format!("status.conditions[{index}].{field}");
        if !is_client_owned(&condition.type_) {
            continue;
        }
        for why in qualified_name(&condition.type_) {
            errors.push(invalid(&at("type"), format!("{:?}", condition.type_), &why));
        }
        if !matches!(condition.status.as_str(), "True" | "False" | "Unknown") {
            let supported = "supported values: \"False\", \"True\", \"Unknown\"";
            let value = format!("{:?}", condition.status);
            errors.push(error(FieldErrorKind::NotSupported, &at("status"), value, supported));
        }
        // Of two conditions of the same type the later one is used, as in a list by type.
        conditions.retain(|earlier| earlier.type_ != condition.type_);
        conditions.push(condition.clone());
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let status = PodStatus { conditions, ..stored_status(&Pod::default()) };
    Ok(Pod { status, ..old.clone() })
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().chain(&spec.containers)
}

fn containers_mut(spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    spec.init_containers.iter_mut().chain(&mut spec.containers)
}

const NODE_AFFINITY: &str = "nodeAffinity";

fn required_nodes(spec: &PodSpec) -> Option<&Value> {
    spec.affinity.as_ref()?.get(NODE_AFFINITY)?.get("requiredDuringSchedulingIgnoredDuringExecution")
}

/// The affinity with another `nodeAffinity`; an empty one is removed.
fn with_nodes(affinity: Option<Value>, nodes: Option<Value>) -> Option<Value> {
    let mut parts = match affinity {
        Some(Value::Object(parts)) => parts,
        _ => Map::new(),
    };
    parts.remove(NODE_AFFINITY);
    parts.extend(nodes.map(|nodes| (NODE_AFFINITY.to_owned(), nodes)));
    (!parts.is_empty()).then_some(Value::Object(parts))
}

fn check_spec_update(old: &PodSpec, new: &PodSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, old, new) in [
        ("spec.containers", old.containers.len(), new.containers.len()),
        ("spec.initContainers", old.init_containers.len(), new.init_containers.len()),
    ] {
        if old != new {
            return vec![forbidden(field, "pod updates may not add or remove containers")];
        }
    }
    let deadline = "spec.activeDeadlineSeconds";
    match (old.active_deadline_seconds, new.active_deadline_seconds) {
        (_, Some(seconds)) if !(0..=i64::from(i32::MAX)).contains(&seconds) => {
            errors.push(invalid(deadline, seconds, "must be between 0 and 2147483647, inclusive"));
        }
        (Some(before), Some(seconds)) if seconds > before => {
            errors.push(invalid(deadline, seconds, "must be less than or equal to previous value"));
        }
        (Some(_), None) => {
            errors.push(invalid(deadline, "null", "must not update from a positive integer to nil value"));
        }
        _ => {}
    }
    let alike = |toleration: &Toleration| Toleration { toleration_seconds: None, ..toleration.clone() };
    let now: Vec<Toleration> = new.tolerations.iter().map(alike).collect();
    if old.tolerations.iter().any(|toleration| !now.contains(&alike(toleration))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(forbidden("spec.tolerations", detail));
    }
    for gate in new.scheduling_gates.iter().filter(|gate| !old.scheduling_gates.contains(gate)) {
        let name = gate.get("name").and_then(Value::as_str).unwrap_or_default();
        let detail = format!("only deletion is allowed, but found new scheduling gate {name:?}");
        errors.push(forbidden("spec.schedulingGates", detail));
    }
    let mut rest = new.clone();
    rest.scheduling_gates.clone_from(&old.scheduling_gates);
    if is_gated(old) {
        let kept = old.node_selector.iter().all(|(name, value)| new.node_selector.get(name) == Some(value));
        if !kept {
            let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.push(invalid("spec.nodeSelector", format!("{:?}", new.node_selector), detail));
        }
        rest.node_selector.clone_from(&old.node_selector);
        if required_nodes(old).is_none() {
            let before = old.affinity.as_ref().and_then(|affinity| affinity.get(NODE_AFFINITY)).cloned();
            rest.affinity = with_nodes(rest.affinity, before);
        }
    }
    rest.active_deadline_seconds = old.active_deadline_seconds;
    rest.tolerations.clone_from(&old.tolerations);
    if old.termination_grace_period_seconds.is_some_and(|grace| grace < 0)
        && new.termination_grace_period_seconds == Some(1)
    {
        rest.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    for (new, old) in containers_mut(&mut rest).zip(containers(old)) {
        new.image.clone_from(&old.image);
    }
    if rest != *old {
        errors.push(forbidden("spec", ONLY_THESE));
    }
    errors
}

fn check_resize(old: &Pod, new: &Pod) -> Vec<FieldError> {
    let mut rest = new.spec.clone();
    for (new, old) in containers_mut(&mut rest).zip(containers(&old.spec)) {
        let own = [
            (&mut new.resources.limits, &old.resources.limits),
            (&mut new.resources.requests, &old.resources.requests),
        ];
        for (new, old) in own {
            for name in ["cpu", "memory"] {
                new.remove(name);
                new.extend(old.get_key_value(name).map(|(name, amount)| (name.clone(), *amount)));
            }
        }
    }
    if rest != old.spec {
        return vec![forbidden("spec", "only cpu and memory resources are mutable")];
    }
    let given = |pod: &Pod| {
        containers(&pod.spec).map(|each| each.resources.clone()).collect::<Vec<ResourceRequirements>>()
    };
    if given(old) == given(new) {
        return Vec::new();
    }
    infeasible(old, new, (false, false)).map(|why| invalid("spec", "", &why)).into_iter().collect()
}

fn check_ephemeral_update(old: &Pod, new: &Pod) -> Vec<FieldError> {
    let rest = PodSpec { ephemeral_containers: old.spec.ephemeral_containers.clone(), ..new.spec.clone() };
    if rest != old.spec {
        return vec![forbidden("spec", "only ephemeralContainers may be changed through this subresource")];
    }
    for known in &old.spec.ephemeral_containers {
        let path = "spec.ephemeralContainers";
        match new.spec.ephemeral_containers.iter().find(|container| container.name == known.name) {
            None => {
                let detail = format!("existing ephemeral containers {:?} may not be removed\n", known.name);
                return vec![forbidden(path, detail)];
            }
            Some(container) if container != known => {
                let detail = format!("existing ephemeral containers {:?} may not be changed\n", known.name);
                return vec![forbidden(path, detail)];
            }
            Some(_) => {}
        }
    }
    validate_ephemeral(new)
}

#[cfg(test)]
mod tests;
