//! The rules of roles and their bindings (upstream: `pkg/apis/rbac/validation`, 1.36).
//!
//! Owns them. Pure.

use serde_json::{Value, json};

use super::KindRules;
use crate::model::field_error::{Errors, Path};
use crate::model::objects::LocalObject;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) const ROLE: KindRules =
    KindRules { defaults: |_| {}, validate: role, validate_update: |_, _, _| {} };
pub(super) const BINDING: KindRules =
    KindRules { defaults: binding_defaults, validate: binding, validate_update: same_role };

fn items<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    value[member].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

fn role(object: &LocalObject, body: &Value, errors: &mut Errors) {
    let rules = Path::Root("rules");
    for (index, rule) in items(body, "rules").iter().enumerate() {
        let at = rules.index(index);
        if items(rule, "verbs").is_empty() {
            errors.required(&at.child("verbs"), "verbs must contain at least one value");
        }
        let lists = ["apiGroups", "resources", "resourceNames"];
        if items(rule, "nonResourceURLs").is_empty() {
            for (list, why) in lists.into_iter().zip([
                "resource rules must supply at least one api group",
                "resource rules must supply at least one resource",
            ]) {
                if items(rule, list).is_empty() {
                    errors.required(&at.child(list), why);
                }
            }
            continue;
        }
        let paths = at.child("nonResourceURLs");
        if !object.key.namespace.is_empty() {
            let why = "namespaced rules cannot apply to non-resource URLs";
            errors.invalid_number(&paths, &rule["nonResourceURLs"], why);
        } else if lists.iter().any(|list| !items(rule, list).is_empty()) {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            errors.invalid_number(&paths, &rule["nonResourceURLs"], why);
        }
    }
}

fn binding_defaults(body: &mut Value) {
    if let Some(reference) = body["roleRef"].as_object_mut() {
        reference.entry("apiGroup").or_insert_with(|| json!(GROUP));
    }
    for subject in body["subjects"].as_array_mut().into_iter().flatten() {
        if matches!(text(subject, "kind"), "User" | "Group") && text(subject, "apiGroup").is_empty() {
            subject["apiGroup"] = json!(GROUP);
        }
    }
}

fn binding(object: &LocalObject, body: &Value, errors: &mut Errors) {
    let (at, reference) = (Path::Root("roleRef"), &body["roleRef"]);
    let is_namespaced = !object.key.namespace.is_empty();
    errors.optional_of(&at.child("apiGroup"), Some(text(reference, "apiGroup")), &[GROUP]);
    let kinds: &[&str] = if is_namespaced { &["ClusterRole", "Role"] } else { &["ClusterRole"] };
    errors.optional_of(&at.child("kind"), Some(text(reference, "kind")), kinds);
    errors.present(&at.child("name"), text(reference, "name"));
    let subjects = Path::Root("subjects");
    for (index, subject) in items(body, "subjects").iter().enumerate() {
        let at = subjects.index(index);
        errors.present(&at.child("name"), text(subject, "name"));
        let group = match text(subject, "kind") {
            "ServiceAccount" => {
                if !is_namespaced {
                    errors.present(&at.child("namespace"), text(subject, "namespace"));
                }
                ""
            }
            "User" | "Group" => GROUP,
            kind => {
                errors.not_supported(&at.child("kind"), kind, &["Group", "ServiceAccount", "User"]);
                continue;
            }
        };
        errors.optional_of(&at.child("apiGroup"), Some(text(subject, "apiGroup")), &[group]);
    }
}

fn same_role(old: &Value, new: &Value, errors: &mut Errors) {
    if old["roleRef"] != new["roleRef"] {
        errors.invalid_number(&Path::Root("roleRef"), &new["roleRef"], "cannot change roleRef");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::objects::{ObjectKind, wire};

    fn said(kind: ObjectKind, body: Value) -> Vec<String> {
        let mut whole = json!({"metadata": {"name": "n", "namespace": "ns"}});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let object = wire::from_value(kind, whole).unwrap();
        let mut body = body;
        let rules = super::super::rules(kind);
        (rules.defaults)(&mut body);
        let mut errors = Errors::default();
        (rules.validate)(&object, &body, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_and_bindings_are_checked_as_upstream_does() {
        let rule = |rule: Value| json!({"rules": [rule]});
        let sound = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
        let paths = json!({"nonResourceURLs": ["/healthz"], "verbs": ["get"]});
        let (narrow, wide) = (ObjectKind::Role, ObjectKind::ClusterRole);
        for (kind, body, errors) in [
            (narrow, rule(sound.clone()), vec![]),
            (wide, rule(paths.clone()), vec![]),
            (wide, json!({"aggregationRule": {"clusterRoleSelectors": []}, "rules": null}), vec![]),
            (
                narrow,
                rule(paths),
                vec![
                    "rules[0].nonResourceURLs: Invalid value: [\"/healthz\"]: namespaced rules cannot apply to non-resource URLs",
                ],
            ),
            (
                narrow,
                rule(json!({"resources": ["pods"]})),
                vec![
                    "rules[0].verbs: Required value: verbs must contain at least one value",
                    "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                ],
            ),
            (
                wide,
                rule(json!({"nonResourceURLs": ["/x"], "resources": ["pods"], "verbs": ["get"]})),
                vec![
                    "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: rules cannot apply to both regular resources and non-resource URLs",
                ],
            ),
        ] {
            assert_eq!(said(kind, body.clone()), errors, "{body}");
        }
        let (inner, outer) = (ObjectKind::RoleBinding, ObjectKind::ClusterRoleBinding);
        let bound = |role: &str, subject: Value| json!({"roleRef": {"kind": role, "name": "r"}, "subjects": [subject]});
        for (kind, body, errors) in [
            (inner, bound("Role", json!({"kind": "ServiceAccount", "name": "robot"})), vec![]),
            (outer, bound("ClusterRole", json!({"kind": "User", "name": "jane"})), vec![]),
            (
                outer,
                bound("Role", json!({"kind": "ServiceAccount", "name": "robot"})),
                vec![
                    "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                    "subjects[0].namespace: Required value",
                ],
            ),
            (
                inner,
                bound("Role", json!({"kind": "Robot", "name": ""})),
                vec![
                    "subjects[0].name: Required value",
                    "subjects[0].kind: Unsupported value: \"Robot\": supported values: \"Group\", \"ServiceAccount\", \"User\"",
                ],
            ),
            (
                inner,
                bound("Role", json!({"kind": "ServiceAccount", "name": "r", "apiGroup": "v1"})),
                vec!["subjects[0].apiGroup: Unsupported value: \"v1\": supported values: \"\""],
            ),
            (
                inner,
                json!({"roleRef": {"kind": "Role", "apiGroup": "x"}}),
                vec![
                    "roleRef.apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\"",
                    "roleRef.name: Required value",
                ],
            ),
        ] {
            assert_eq!(said(kind, body.clone()), errors, "{body}");
        }
        let mut errors = Errors::default();
        let binds = |name: &str| json!({"roleRef": {"kind": "Role", "name": name}});
        same_role(&binds("a"), &binds("a"), &mut errors);
        assert!(errors.0.is_empty());
        same_role(&binds("a"), &binds("b"), &mut errors);
        assert_eq!(errors.0[0].detail, "cannot change roleRef");
    }
}
