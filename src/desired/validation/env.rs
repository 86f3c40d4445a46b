//! Rules of environment variables and of the references that downward API volumes share with them.

use crate::model::api::pod::{
    Container, EnvFromSource, EnvVar, EnvVarSource, KeySelector, ObjectFieldSelector, ResourceFieldSelector,
};
use crate::model::api::quantity::Quantity;
use crate::model::field_error::{Errors, Path};
use crate::model::names;

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const DIVISORS: [&str; 14] =
    ["0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub(super) fn validate(container: &Container, at: &Path<'_>, errors: &mut Errors) {
    for (index, variable) in container.env.iter().enumerate() {
        env_var(variable, &at.child("env").index(index), errors);
    }
    for (index, source) in container.env_from.iter().enumerate() {
        env_from(source, &at.child("envFrom").index(index), errors);
    }
}

fn env_var(variable: &EnvVar, at: &Path<'_>, errors: &mut Errors) {
    errors.name(&at.child("name"), &variable.name, names::env_name);
    let Some(source) = &variable.value_from else { return };
    let source_at = at.child("valueFrom");
    let set = [
        source.field_ref.is_some(),
        source.resource_field_ref.is_some(),
        source.config_map_key_ref.is_some(),
        source.secret_key_ref.is_some(),
        source.file_key_ref.is_some(),
    ];
    match set.into_iter().filter(|is_set| *is_set).count() {
        0 => errors.invalid(
            &source_at,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        _ if !variable.value.is_empty() => {
            errors.invalid(&source_at, "", "may not be specified when `value` is not empty");
        }
        1 => {}
        _ => errors.invalid(&source_at, "", "may not have more than one field specified at a time"),
    }
    env_source(source, &source_at, errors);
}

fn env_source(source: &EnvVarSource, at: &Path<'_>, errors: &mut Errors) {
    if let Some(field) = &source.field_ref {
        field_ref(field, FieldUse::Env, &at.child("fieldRef"), errors);
    }
    if let Some(resource) = &source.resource_field_ref {
        resource_field_ref(resource, FieldUse::Env, &at.child("resourceFieldRef"), errors);
    }
    if let Some(key) = &source.config_map_key_ref {
        key_ref(key, &at.child("configMapKeyRef"), errors);
    }
    if let Some(key) = &source.secret_key_ref {
        key_ref(key, &at.child("secretKeyRef"), errors);
    }
    if let Some(key) = &source.file_key_ref {
        let key_at = at.child("fileKeyRef");
        errors.name(&key_at.child("key"), &key.key, names::env_name);
        errors.name(&key_at.child("volumeName"), &key.volume_name, names::dns_label);
        errors.name(&key_at.child("path"), &key.path, names::descending_path);
    }
}

fn key_ref(key: &KeySelector, at: &Path<'_>, errors: &mut Errors) {
    errors.present(&at.child("name"), &key.name);
    errors.name(&at.child("key"), &key.key, names::config_key);
}

fn env_from(source: &EnvFromSource, at: &Path<'_>, errors: &mut Errors) {
    if !source.prefix.is_empty() {
        errors.all(&at.child("prefix"), &source.prefix, names::env_name(&source.prefix));
    }
    for (field, reference) in [("configMapRef", &source.config_map_ref), ("secretRef", &source.secret_ref)] {
        if let Some(reference) = reference {
            errors.name(&at.child(field).child("name"), &reference.name, names::dns_subdomain);
        }
    }
    match (source.config_map_ref.is_some(), source.secret_ref.is_some()) {
        (false, false) => errors.invalid(at, "", "must specify one of: `configMapRef` or `secretRef`"),
        (true, true) => errors.invalid(at, "", "may not have more than one field specified at a time"),
        _ => {}
    }
}

/// The user of a field reference: each supports a different set of fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldUse {
    Env,
    Volume,
}

/// A reference to a field of the pod.
pub(super) fn field_ref(field: &ObjectFieldSelector, used: FieldUse, at: &Path<'_>, errors: &mut Errors) {
    errors.present(&at.child("apiVersion"), &field.api_version);
    let path_at = at.child("fieldPath");
    let path = field.field_path.as_str();
    if path.is_empty() {
        return errors.required(&path_at, "");
    }
    if let Some((parent, key)) = path.strip_suffix("']").and_then(|rest| rest.split_once("['")) {
        return match parent {
            "metadata.annotations" => errors.all(&path_at, key, names::qualified_name(&key.to_lowercase())),
            "metadata.labels" => errors.all(&path_at, key, names::qualified_name(key)),
            _ => errors.invalid(&path_at, path, format!("does not support subscript: {parent:?}")),
        };
    }
    let supported: &[&str] = if used == FieldUse::Env { &ENV_FIELDS } else { &VOLUME_FIELDS };
    if !supported.contains(&path) {
        errors.not_supported(&path_at, path, supported);
    }
}

pub(super) fn resource_field_ref(
    reference: &ResourceFieldSelector,
    used: FieldUse,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    if used == FieldUse::Volume && reference.container_name.is_empty() {
        errors.required(&at.child("containerName"), "");
    }
    let resource = reference.resource.as_str();
    let pages =
        ["limits.hugepages-", "requests.hugepages-"].iter().any(|prefix| resource.starts_with(prefix));
    if resource.is_empty() {
        errors.required(&at.child("resource"), "");
    } else if !pages && !RESOURCES.contains(&resource) {
        errors.not_supported(&at.child("resource"), resource, &RESOURCES);
    }
    let Some(divisor) = reference.divisor else { return };
    let is_one_of = |texts: &[&str]| texts.iter().any(|text| Quantity::parse(text) == Ok(divisor));
    let what = resource.split_once('.').map_or(resource, |(_, what)| what);
    let (good, words) = if what == "cpu" {
        (is_one_of(&["0", "1m", "1"]), "1m and 1")
    } else {
        (is_one_of(&DIVISORS), "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei")
    };
    if !good {
        let detail = format!("only divisor's values {words} are supported with the {what} resource");
        errors.invalid(&at.child("divisor"), &divisor.to_string(), detail);
    }
}
