//! The rules that an API server applies when a pod is created (upstream: `ValidatePodCreate`), for all fields
//! of the types.
//!
//! Owns the order of the parts and the rules of metadata. Expects a defaulted pod; reports every broken rule,
//! never only the first.
//!
//! Pure: what it returns depends on its arguments alone.

mod claim;
mod container;
pub(in crate::desired) mod disk;
mod env;
mod object;
mod probe;
mod resources;
mod scheduling;
mod security;
mod spec;
pub(in crate::desired) mod volume;

pub use crate::model::field_error::{FieldError, FieldErrorKind};
pub(crate) use object::{refused_change, validate_object};

use serde_json::Value;

use crate::devices::rules::annotation_problems;
use crate::model::api::pod::{ObjectMeta, Pod, ResourceRequirements, StringMap};
use crate::model::field_error::{Errors, Path};

/// The most bytes of all annotations of an object together.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// The errors of a defaulted pod; empty when it is valid.
#[must_use]
pub(super) fn validate_pod(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    metadata(&pod.metadata, &Path::Root("metadata"), &mut errors);
    for (key, why) in annotation_problems(pod) {
        let annotations = Path::Root("metadata");
        let annotations = annotations.child("annotations");
        errors.invalid(&annotations.key(key), &pod.metadata.annotations[key], why);
    }
    spec::validate(&pod.spec, &Path::Root("spec"), &mut errors);
    volume::claim_names(pod, &mut errors);
    errors.0
}

/// The errors of a template of a pod, with its defaults.
pub(super) fn template_errors(pod: &Pod, metadata: &Path<'_>, spec: &Path<'_>, errors: &mut Errors) {
    labels(&pod.metadata.labels, &metadata.child("labels"), errors);
    let annotations_at = metadata.child("annotations");
    annotations(&pod.metadata.annotations, &annotations_at, errors);
    for (key, why) in annotation_problems(pod) {
        errors.invalid(&annotations_at.key(key), &pod.metadata.annotations[key], why);
    }
    spec::validate(&pod.spec, spec, errors);
}

/// The errors of a pod's `nodeName` as it was written: a pod with scheduling gates must not have one.
#[must_use]
pub(super) fn validate_placement(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if !pod.spec.scheduling_gates.is_empty() && !pod.spec.node_name.is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.forbidden(&Path::Root("spec").child("nodeName"), detail);
    }
    errors.0
}

/// The errors of ephemeral containers that are added to a pod (upstream: `validateEphemeralContainers`).
#[must_use]
pub(super) fn validate_ephemeral(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let spec = Path::Root("spec");
    let all = spec.child("ephemeralContainers");
    let taken = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let mut names: Vec<&str> = taken.map(|container| container.name.as_str()).collect();
    for (index, container) in pod.spec.ephemeral_containers.iter().enumerate() {
        let at = all.index(index);
        errors.name(&at.child("name"), &container.name, crate::model::names::dns_label);
        if names.contains(&container.name.as_str()) {
            errors.duplicate(&at.child("name"), &container.name);
        }
        names.push(&container.name);
        errors.present(&at.child("image"), &container.image);
        let policies = ["Always", "IfNotPresent", "Never"];
        errors.one_of(&at.child("imagePullPolicy"), &container.image_pull_policy, &policies);
        let target = &container.target_container_name;
        let is_there = pod.spec.containers.iter().any(|container| container.name == *target);
        if !target.is_empty() && !is_there {
            errors.not_found(&at.child("targetContainerName"), target);
        }
        let resources = &container.resources;
        for (field, is_set) in [
            ("ports", !container.ports.is_empty()),
            ("livenessProbe", container.liveness_probe.is_some()),
            ("readinessProbe", container.readiness_probe.is_some()),
            ("startupProbe", container.startup_probe.is_some()),
            ("lifecycle", container.lifecycle.is_some()),
            ("resources", *resources != ResourceRequirements::default()),
            ("resizePolicy", !container.resize_policy.is_empty()),
            ("restartPolicy", container.restart_policy.is_some()),
        ] {
            if is_set {
                errors.forbidden(&at.child(field), "cannot be set for an Ephemeral Container");
            }
        }
        for (index, mount) in container.volume_mounts.iter().enumerate() {
            let mounts = at.child("volumeMounts");
            let mount_at = mounts.index(index);
            if !pod.spec.volumes.iter().any(|volume| volume.name == mount.name) {
                errors.not_found(&mount_at.child("name"), &mount.name);
            }
            errors.present(&mount_at.child("mountPath"), &mount.mount_path);
            if !mount.sub_path.is_empty() || !mount.sub_path_expr.is_empty() {
                errors.forbidden(&mount_at.child("subPath"), "cannot be set for an Ephemeral Container");
            }
        }
    }
    errors.0
}

fn metadata(metadata: &ObjectMeta, at: &Path<'_>, errors: &mut Errors) {
    if metadata.name.is_empty() {
        errors.required(&at.child("name"), "name or generateName is required");
    } else {
        errors.all(&at.child("name"), &metadata.name, crate::model::names::dns_subdomain(&metadata.name));
    }
    if metadata.namespace.is_empty() {
        errors.required(&at.child("namespace"), "");
    } else {
        errors.all(
            &at.child("namespace"),
            &metadata.namespace,
            crate::model::names::dns_label(&metadata.namespace),
        );
    }
    if !metadata.uid.is_empty() && !metadata.uid.is_safe() {
        // Not a rule upstream, but the uid names directories and cgroups on this node.
        let detail = "must consist of at most 128 alphanumeric characters, '-', '_' or '.', and must not begin with '.'";
        errors.invalid(&at.child("uid"), metadata.uid.as_str(), detail);
    }
    labels(&metadata.labels, &at.child("labels"), errors);
    owners(&metadata.owner_references, &at.child("ownerReferences"), errors);
    annotations(&metadata.annotations, &at.child("annotations"), errors);
    for (index, finalizer) in metadata.finalizers.iter().enumerate() {
        let finalizers = at.child("finalizers");
        errors.all(&finalizers.index(index), finalizer, crate::model::names::qualified_name(finalizer));
    }
}

fn owners(references: &[Value], at: &Path<'_>, errors: &mut Errors) {
    let mut controller: Option<String> = None;
    for (index, reference) in references.iter().enumerate() {
        let at_one = at.index(index);
        let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        let version = text("apiVersion");
        for (field, value, what) in [
            ("apiVersion", version.rsplit('/').next().unwrap_or_default(), "version"),
            ("kind", text("kind"), "kind"),
            ("name", text("name"), "name"),
            ("uid", text("uid"), "uid"),
        ] {
            if value.is_empty() {
                errors.invalid(&at_one.child(field), text(field), format!("{what} must not be empty"));
            }
        }
        if version == "v1" && text("kind") == "Event" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.invalid_number(&at_one, reference, detail);
        }
        if reference.get("controller").and_then(Value::as_bool) == Some(true) {
            let name = format!("{}/{}", text("kind"), text("name"));
            if let Some(first) = &controller {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                );
                errors.invalid_number(at, Value::from(references), detail);
            }
            controller.get_or_insert(name);
        }
    }
}

/// Labels and node selectors.
pub(super) fn labels(labels: &StringMap, at: &Path<'_>, errors: &mut Errors) {
    for (name, value) in labels {
        errors.all(at, name, crate::model::names::qualified_name(name));
        errors.all(at, value, crate::model::names::label_value(value));
    }
}

fn annotations(annotations: &StringMap, at: &Path<'_>, errors: &mut Errors) {
    for name in annotations.keys() {
        errors.all(at, name, crate::model::names::qualified_name(&name.to_lowercase()));
    }
    let bytes: usize = annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_ANNOTATION_BYTES {
        errors.too_long(at, MAX_ANNOTATION_BYTES);
    }
}

#[cfg(test)]
mod tests;
