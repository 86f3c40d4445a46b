//! What a kind of object that is kept as JSON adds to the rules of all objects: the API server's defaults, its
//! validation, and which changes it refuses.
//!
//! Owns the choice by kind; the rules of each family of kinds are in a file below. Pure.

pub mod addresses;
mod kept;
mod rbac;
mod service;
mod workloads;

use serde_json::Value;

use crate::model::field_error::Errors;
use crate::model::objects::{LocalObject, ObjectKind};

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

#[must_use]
pub(crate) fn rules(kind: ObjectKind) -> KindRules {
    match kind {
        ObjectKind::PriorityClass => kept::PRIORITY_CLASS,
        ObjectKind::Role | ObjectKind::ClusterRole => rbac::ROLE,
        ObjectKind::RoleBinding | ObjectKind::ClusterRoleBinding => rbac::BINDING,
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
