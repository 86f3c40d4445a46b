//! The rules that an API server applies to ConfigMaps, Secrets, claims and RuntimeClasses, and the changes
//! that it refuses (upstream: `ValidateConfigMap`, `ValidateSecret`, `ValidatePersistentVolumeClaim`,
//! `ValidateRuntimeClass` and their `Update` forms, 1.36).
//!
//! Owns the rules. No message contains a value of a Secret.

use super::claim::claim_spec;
use super::{labels, metadata, resources, spec};
use crate::model::api::pod::{ObjectMeta, ResourceRequirements};
use crate::model::field_error::{Errors, FieldError, Path};
use crate::model::names;
use crate::model::objects::wire::{BadKeys, STORAGE};
use crate::model::objects::{
    AnyObject, ConfigMapData, LocalObject, ObjectContent, ObjectData, ObjectKind, RuntimeClassSpec,
};

/// Upstream's limit for all values of one object together.
const MAX_OBJECT_BYTES: usize = 1024 * 1024;
/// Replaces a secret value in messages, as upstream.
const REDACTED: &str = "<secret contents redacted>";
const IMMUTABLE: &str = "field is immutable when `immutable` is set";
const SERVICE_ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// The errors of an object: `wire` is the document, `object` its decoded form, `bad` the keys whose values
/// cannot be decoded.
#[must_use]
pub(crate) fn validate_object(wire: &AnyObject, object: &LocalObject, bad: &BadKeys) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let mut meta = ObjectMeta { namespace: object.key.namespace.clone(), ..wire.metadata().clone() };
    if object.content == ObjectContent::Namespace {
        // It names a directory of claims, and has the length limit of a name prefix.
        errors.name(&Path::Root("metadata").child("name"), &meta.name, names::dns_label);
        if !errors.0.is_empty() {
            return errors.0;
        }
    }
    if !object.key.kind.is_namespaced() {
        // It needs no namespace.
        "default".clone_into(&mut meta.namespace);
    }
    if matches!(
        object.key.kind,
        ObjectKind::Role | ObjectKind::RoleBinding | ObjectKind::ClusterRole | ObjectKind::ClusterRoleBinding
    ) {
        errors.name(&Path::Root("metadata").child("name"), &meta.name, names::path_segment);
        "role".clone_into(&mut meta.name);
    }
    metadata(&meta, &Path::Root("metadata"), &mut errors);
    for (field, key) in bad {
        let detail = "illegal base64 data; put plain text into stringData (Secret) or data (ConfigMap)";
        errors.invalid(&Path::Root(field).key(key), REDACTED, detail);
    }
    match &object.content {
        ObjectContent::ConfigMap { data, .. } => config_map(data, &mut errors),
        ObjectContent::Secret { secret_type, data, .. } => {
            secret(object, secret_type, data, bad, &mut errors);
        }
        ObjectContent::Claim(claim) => {
            if let AnyObject::Claim(wire) = wire {
                let spec = Path::Root("spec");
                claim_spec(&wire.spec, claim.storage, &spec, &mut errors);
            }
        }
        ObjectContent::RuntimeClass(class) => runtime_class(class, &mut errors),
        ObjectContent::Namespace | ObjectContent::Plain(_) => {}
    }
    errors.0
}

fn runtime_class(class: &RuntimeClassSpec, errors: &mut Errors) {
    let handler = Path::Root("handler");
    errors.all(&handler, &class.handler, names::dns_label(&class.handler));
    if let Some(pod_fixed) = &class.overhead {
        // Upstream validates them as a container's limits, and names them so.
        let limits = ResourceRequirements { limits: pod_fixed.clone(), ..ResourceRequirements::default() };
        resources::validate(&limits, &Path::Root("overhead"), errors);
    }
    if let Some(scheduling) = &class.scheduling {
        let at = Path::Root("scheduling");
        labels(&scheduling.node_selector, &at.child("nodeSelector"), errors);
        spec::tolerations(&scheduling.tolerations, &at.child("tolerations"), errors);
    }
}

fn config_map(data: &ConfigMapData, errors: &mut Errors) {
    let fields = [
        ("data", &data.data, &data.binary_data, "duplicate of key present in binaryData"),
        ("binaryData", &data.binary_data, &data.data, "duplicate of key present in data"),
    ];
    for (field, keys, other, duplicate) in fields {
        let at = Path::Root(field);
        for key in keys.keys() {
            errors.all(&at.key(key), key, names::config_key(key));
            if other.contains_key(key) {
                errors.invalid(&at.key(key), key, duplicate);
            }
        }
    }
    if bytes(&data.data) + bytes(&data.binary_data) > MAX_OBJECT_BYTES {
        errors.too_long(&Path::Root("data"), MAX_OBJECT_BYTES);
    }
}

fn bytes(data: &ObjectData) -> usize {
    data.values().map(Vec::len).sum()
}

fn secret(object: &LocalObject, secret_type: &str, data: &ObjectData, bad: &BadKeys, errors: &mut Errors) {
    let at = Path::Root("data");
    for key in data.keys() {
        errors.all(&at.key(key), key, names::config_key(key));
    }
    if bytes(data) > MAX_OBJECT_BYTES {
        errors.too_long(&at, MAX_OBJECT_BYTES);
    }
    let lacks = |key: &str| !data.contains_key(key) && !bad.iter().any(|(_, bad)| bad == key);
    let (needed, json): (&[&str], bool) = match secret_type {
        "kubernetes.io/service-account-token" => {
            if object.annotations.get(SERVICE_ACCOUNT_NAME).is_none_or(String::is_empty) {
                errors.required(&Path::Root("metadata").child("annotations").key(SERVICE_ACCOUNT_NAME), "");
            }
            (&[], false)
        }
        "kubernetes.io/dockercfg" => (&[".dockercfg"], true),
        "kubernetes.io/dockerconfigjson" => (&[".dockerconfigjson"], true),
        "kubernetes.io/basic-auth" if !lacks("username") || !lacks("password") => (&[], false),
        "kubernetes.io/basic-auth" => (&["username", "password"], false),
        "kubernetes.io/ssh-auth" => (&["ssh-privatekey"], false),
        "kubernetes.io/tls" => (&["tls.crt", "tls.key"], false),
        _ => (&[], false),
    };
    for key in needed {
        let is_empty = *key == "ssh-privatekey" && data.get(*key).is_some_and(Vec::is_empty);
        if lacks(key) || is_empty {
            errors.required(&at.key(key), "");
        } else if let Some(value) = data.get(*key).filter(|_| json) {
            match serde_json::from_slice::<serde_json::Value>(value) {
                Ok(serde_json::Value::Object(_)) => {}
                Ok(_) => errors.invalid(&at.key(key), REDACTED, "must be a JSON object"),
                // The parser's message names a position, never the content.
                Err(error) => errors.invalid(&at.key(key), REDACTED, error.to_string()),
            }
        }
    }
}

/// Why an object may not replace the existing one of that kind and name; empty when it may.
#[must_use]
pub(crate) fn refused_change(old: &ObjectContent, new: &ObjectContent) -> Vec<FieldError> {
    let mut errors = Errors::default();
    match (old, new) {
        (
            ObjectContent::ConfigMap { data: old, immutable: true },
            ObjectContent::ConfigMap { data: new, immutable },
        ) => {
            frozen(*immutable, old.data != new.data, &mut errors);
            if old.binary_data != new.binary_data {
                errors.forbidden(&Path::Root("binaryData"), IMMUTABLE);
            }
        }
        (
            ObjectContent::Secret { secret_type: old_type, data: old, immutable: was },
            ObjectContent::Secret { secret_type, data: new, immutable },
        ) => {
            if old_type != secret_type {
                errors.invalid(&Path::Root("type"), secret_type, "field is immutable");
            }
            if *was {
                frozen(*immutable, old != new, &mut errors);
            }
        }
        (ObjectContent::Claim(old), ObjectContent::Claim(new)) => {
            let at = Path::Root("spec");
            let is_moved = !old.volume_name.is_empty() && old.volume_name != new.volume_name;
            if is_moved || (&old.access_modes, &old.storage_class) != (&new.access_modes, &new.storage_class)
            {
                errors.forbidden(
                    &at,
                    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
                );
            }
            if new.storage < old.storage {
                let path = at.child("resources");
                errors.forbidden(
                    &path.child("requests").child(STORAGE),
                    "field can not be less than status.capacity",
                );
            }
        }
        (ObjectContent::RuntimeClass(old), ObjectContent::RuntimeClass(new))
            if old.handler != new.handler =>
        {
            errors.invalid(&Path::Root("handler"), &new.handler, "field is immutable");
        }
        _ => {}
    }
    errors.0
}

fn frozen(still: bool, differs: bool, errors: &mut Errors) {
    if !still {
        errors.forbidden(&Path::Root("immutable"), IMMUTABLE);
    }
    if differs {
        errors.forbidden(&Path::Root("data"), IMMUTABLE);
    }
}

#[cfg(test)]
mod tests;
