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
    if access.is_unlimited() || !may_give(old, new) {
        return Ok(());
    }
    match new.key.kind {
        ObjectKind::Role | ObjectKind::ClusterRole => role(task, &access, old, new),
        _ => binding(task, &access, new, &new.content.body()),
    }
}

/// Whether the change may give more rights to a user. The labels of a ClusterRole decide which roles it is a part of.
fn may_give(old: Option<&LocalObject>, new: &LocalObject) -> bool {
    let (before, body) = (old.map(|old| old.content.body()).unwrap_or_default(), new.content.body());
    let is_same = |members: &[&str]| members.iter().all(|member| before[member] == body[member]);
    let has_same_labels = || old.is_some_and(|old| old.labels == new.labels);
    match new.key.kind {
        ObjectKind::Role => !is_same(&["rules", "aggregationRule"]),
        ObjectKind::ClusterRole => !is_same(&["rules", "aggregationRule"]) || !has_same_labels(),
        ObjectKind::RoleBinding | ObjectKind::ClusterRoleBinding => !is_same(&["roleRef", "subjects"]),
        _ => false,
    }
}

fn is_aggregated(body: &Value) -> bool {
    body["aggregationRule"].is_object()
}

fn role(
    task: &Task,
    access: &Access<'_>,
    old: Option<&LocalObject>,
    new: &LocalObject,
) -> Result<(), Failure> {
    let body = new.content.body();
    let resource = new.key.kind.plural();
    if access.may(&attributes("escalate", resource, &new.key.namespace, &new.key.name)) {
        return Ok(());
    }
    if is_aggregated(&body) || old.is_some_and(|old| is_aggregated(&old.content.body())) {
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
    confirm(access, &new.key.namespace, &rules_of(&body)).map_err(|why| task.refused(&new.key.name, &why))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::objects::wire;

    fn object(kind: ObjectKind, members: &Value) -> LocalObject {
        let mut object = json!({"metadata": {"name": "x", "namespace": "", "uid": "u"}});
        object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        wire::from_value(kind, object).unwrap()
    }

    #[test]
    fn what_may_give_rights_is_checked() {
        use ObjectKind::{ClusterRole, ClusterRoleBinding, Role};
        let labelled = |name: &str| json!({"metadata": {"name": "x", "uid": "u", "labels": {name: "true"}}});
        let noted = json!({"metadata": {"name": "x", "uid": "u", "annotations": {"a": "b"}}});
        let rules = json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
        let aggregated = json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
        let part = labelled("rbac.authorization.k8s.io/aggregate-to-view");
        let subjects = json!({"subjects": [{"kind": "User", "name": "jane"}]});
        for (kind, changed, gives) in [
            (ClusterRole, &json!({}), false),
            (ClusterRole, &noted, false),
            (ClusterRole, &part, true),
            (ClusterRole, &rules, true),
            (ClusterRole, &aggregated, true),
            (Role, &rules, true),
            (Role, &part, false),
            (ClusterRoleBinding, &part, false),
            (ClusterRoleBinding, &subjects, true),
        ] {
            let (old, new) = (object(kind, &json!({})), object(kind, changed));
            assert_eq!(may_give(Some(&old), &new), gives, "{kind:?} {changed}");
        }
        assert!(may_give(None, &object(ClusterRole, &part)), "a new one");
    }
}
