//! What a kind of object that is kept as JSON adds to the rules of all objects: the API server's defaults, its
//! validation, and which changes it refuses.
//!
//! Owns the choice by kind; the rules of each family of kinds are in a file below. Pure.

pub mod addresses;
mod definitions;
mod kept;
mod rbac;
mod service;
mod volumes;
mod workloads;

use serde_json::Value;

use crate::model::field_error::Errors;
use crate::model::objects::{LocalObject, ObjectKey, ObjectKind};

pub(crate) use workloads::default_template;

/// The rules of one kind. Each gets the members of the object beside its metadata, of which the form is known to fit
/// the table of types.
pub(crate) struct KindRules {
    /// Fills in what the API server's defaulting fills in.
    pub defaults: fn(&mut Value),
    /// The errors of an object with its defaults. Its metadata has been validated.
    pub validate: fn(&LocalObject, &Value, &mut Errors),
    /// The errors of a change from one valid object to another.
    pub validate_update: fn(&Value, &Value, &mut Errors),
}

const NONE: KindRules = KindRules { defaults: |_| {}, validate: |_, _, _| {}, validate_update: |_, _, _| {} };

/// The finalizer of a definition whose objects have yet to go.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The key of the definition of a kind.
#[must_use]
pub(crate) fn definition_key(kind: ObjectKind) -> ObjectKey {
    let name = format!("{}.{}", kind.plural(), kind.group());
    ObjectKey { kind: ObjectKind::CustomResourceDefinition, namespace: String::new(), name }
}

/// The kind that a definition defines, from its members beside the metadata.
#[must_use]
pub(crate) fn defined_kind(body: &Value) -> Option<ObjectKind> {
    definitions::kind(body)
}

/// Of a kind that is kept and not acted on: what does not happen.
#[must_use]
pub(crate) fn unacted(kind: ObjectKind) -> Option<&'static str> {
    kept::unacted(kind)
}

/// What does not happen with an object. Clients that write it are shown this.
#[must_use]
pub(crate) fn warning(object: &LocalObject) -> Option<&'static str> {
    match object.key.kind {
        ObjectKind::CustomResourceDefinition => definitions::unacted(&object.content.body()),
        kind => unacted(kind),
    }
}

#[must_use]
pub(crate) fn rules(kind: ObjectKind) -> KindRules {
    match kind {
        ObjectKind::CustomResourceDefinition => definitions::RULES,
        ObjectKind::PriorityClass => kept::PRIORITY_CLASS,
        ObjectKind::Role | ObjectKind::ClusterRole => rbac::ROLE,
        ObjectKind::RoleBinding | ObjectKind::ClusterRoleBinding => rbac::BINDING,
        ObjectKind::PersistentVolume => volumes::VOLUME,
        ObjectKind::CSIDriver => volumes::DRIVER,
        ObjectKind::Service => service::SERVICE,
        ObjectKind::EndpointSlice => service::ENDPOINT_SLICE,
        ObjectKind::Endpoints => service::ENDPOINTS,
        ObjectKind::Deployment => workloads::DEPLOYMENT,
        ObjectKind::ReplicaSet => workloads::REPLICA_SET,
        ObjectKind::DaemonSet => workloads::DAEMON_SET,
        ObjectKind::StatefulSet => workloads::STATEFUL_SET,
        ObjectKind::Job => workloads::JOB,
        ObjectKind::CronJob => workloads::CRON_JOB,
        _ => NONE,
    }
}

/// Puts into an object what its predecessor has and a client that replaces it may leave out.
pub(crate) fn carry_over(kind: ObjectKind, old: &Value, new: &mut Value) {
    if kind == ObjectKind::Service {
        service::carry_over(old, new);
    }
}
