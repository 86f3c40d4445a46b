//! Roles and bindings that a client writes: it gives no more than it holds (upstream: the storage `policybased`, 1.36).
//!
//! Owns the check. Who may do everything is not checked.

use serde_json::Value;

use super::Task;
use crate::model::objects::{LocalObject, ObjectKind};
use crate::serve::localapi::access::Access;
use crate::serve::localapi::status::Failure;
use crate::serve::rbac::{GROUP, ObjectAttributes, PolicyRule, RoleReference, Subject, escalation, rules_of};

/// # Errors
/// 403 with upstream's words.
pub(super) fn check(task: &Task, old: Option<&LocalObject>, new: &LocalObject) -> Result<(), Failure> {
    let access = task.api.access(task.policy, &task.user);
    let (before, body) = (old.map(|old| old.content.body()).unwrap_or_default(), new.content.body());
    let is_same = |members: &[&str]| members.iter().all(|member| before[member] == body[member]);
    match new.key.kind {
        _ if access.is_unlimited() => Ok(()),
        ObjectKind::Role | ObjectKind::ClusterRole if !is_same(&["rules", "aggregationRule"]) => {
            role(task, &access, new, &body)
        }
        ObjectKind::RoleBinding | ObjectKind::ClusterRoleBinding if !is_same(&["roleRef", "subjects"]) => {
            binding(task, &access, new, &body)
        }
        _ => Ok(()),
    }
}

fn role(task: &Task, access: &Access<'_>, new: &LocalObject, body: &Value) -> Result<(), Failure> {
    let resource = new.key.kind.plural();
    if access.may(&attributes("escalate", resource, &new.key.namespace, &new.key.name)) {
        return Ok(());
    }
    if body["aggregationRule"].is_object() {
        let all = || vec!["*".to_owned()];
        let everything = [
            PolicyRule { verbs: all(), groups: all(), resources: all(), ..PolicyRule::default() },
            PolicyRule { verbs: all(), paths: all(), ..PolicyRule::default() },
        ];
        if confirm(access, &new.key.namespace, &everything).is_err() {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            return Err(task.refused(&new.key.name, why));
        }
    }
    confirm(access, &new.key.namespace, &rules_of(body)).map_err(|why| task.refused(&new.key.name, &why))
}

fn binding(task: &Task, access: &Access<'_>, new: &LocalObject, body: &Value) -> Result<(), Failure> {
    // Another reference grants nothing.
    let Some(reference) = RoleReference::of(body) else { return Ok(()) };
    let namespace = &new.key.namespace;
    let kind = if reference.is_cluster_role { ObjectKind::ClusterRole } else { ObjectKind::Role };
    if access.may(&attributes("bind", kind.plural(), namespace, &reference.name)) {
        return Ok(());
    }
    let rbac = (access.roles)();
    let Some(rules) = rbac.role(&reference, namespace) else {
        let message = format!("{}.{GROUP} \"{}\" not found", kind.plural(), reference.name);
        return Err(Failure::new(404, "NotFound", message).about(GROUP, kind.plural(), &reference.name));
    };
    confirm(access, namespace, rules).map_err(|why| task.refused(&new.key.name, &why))
}

fn attributes(verb: &str, resource: &str, namespace: &str, name: &str) -> ObjectAttributes {
    ObjectAttributes {
        verb: verb.to_owned(),
        group: GROUP.to_owned(),
        resource: resource.to_owned(),
        subresource: String::new(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// Whether the user holds all of these rules in this namespace, or everywhere.
fn confirm(access: &Access<'_>, namespace: &str, rules: &[PolicyRule]) -> Result<(), String> {
    let (groups, rbac) = (access.user.all_groups(), (access.roles)());
    let who = Subject { name: &access.user.name, groups: &groups };
    let held: Vec<&PolicyRule> = rbac.rules(who, namespace).collect();
    let missing = escalation::missing(&held, rules);
    if missing.is_empty() { Ok(()) } else { Err(escalation::message(who, &missing)) }
}
