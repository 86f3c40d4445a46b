//! The roles that exist without having been created, and their bindings: one table.
//!
//! Owns the table's form. Pure: what it returns depends on its arguments alone.

use serde_json::{Value, json};

use super::{GROUP, PolicyRule, RbacRole};
use crate::model::api::pod::StringMap;

const TABLE: &str = include_str!("roles.txt");

/// Marks what exists without having been created.
pub(crate) const LABEL: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");
const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// A built-in ClusterRole.
pub(crate) struct BuiltInRole {
    pub role: RbacRole,
    /// The groups that a ClusterRoleBinding of the same name gives it to.
    pub groups: Vec<&'static str>,
}

/// In the order of the table.
#[must_use]
pub(crate) fn roles() -> Vec<BuiltInRole> {
    let mut roles: Vec<BuiltInRole> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix("= ") {
            Some(head) => roles.push(role(head)),
            None => {
                if let Some(last) = roles.last_mut() {
                    last.role.rules.push(rule(line));
                }
            }
        }
    }
    roles
}

fn role(head: &'static str) -> BuiltInRole {
    let mut words = head.split(' ');
    let mut built_in = BuiltInRole { role: RbacRole::default(), groups: Vec::new() };
    let role = &mut built_in.role;
    words.next().unwrap_or_default().clone_into(&mut role.name);
    role.labels.insert(LABEL.0.to_owned(), LABEL.1.to_owned());
    while let (Some(mark), Some(names)) = (words.next(), words.next()) {
        for name in names.split(',') {
            let label = || [AGGREGATE_TO, name].concat();
            match mark {
                ">" => built_in.groups.push(name),
                "+" => drop(role.labels.insert(label(), "true".to_owned())),
                _ => role.selectors.get_or_insert_default().push(json!({"matchLabels": {label(): "true"}})),
            }
        }
    }
    built_in
}

fn rule(line: &str) -> PolicyRule {
    let mut words = line.split(' ');
    let [verbs, groups, rest] = [(); 3].map(|()| words.next().unwrap_or_default());
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let verbs = match verbs {
        "read" => "get,list,watch",
        "write" => "create,delete,deletecollection,patch,update",
        "all" => "create,delete,deletecollection,get,list,patch,update,watch",
        verbs => verbs,
    };
    let rule = PolicyRule { verbs: list(verbs), ..PolicyRule::default() };
    match groups {
        "/" => PolicyRule { paths: list(rest), ..rule },
        "core" => PolicyRule { groups: vec![String::new()], resources: list(rest), ..rule },
        groups => PolicyRule { groups: list(groups), resources: list(rest), ..rule },
    }
}

/// The members beside the metadata, with these rules.
#[must_use]
pub(crate) fn role_body(role: &RbacRole, rules: &[PolicyRule]) -> Value {
    let rules: Vec<Value> = rules.iter().map(PolicyRule::to_value).collect();
    match &role.selectors {
        Some(selectors) => json!({"aggregationRule": {"clusterRoleSelectors": selectors}, "rules": rules}),
        None => json!({"rules": rules}),
    }
}

/// The members of the ClusterRoleBinding beside the metadata.
#[must_use]
pub(crate) fn binding_body(built_in: &BuiltInRole) -> Value {
    let subject = |group: &&str| json!({"apiGroup": GROUP, "kind": "Group", "name": group});
    json!({
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": built_in.role.name},
        "subjects": built_in.groups.iter().map(subject).collect::<Vec<_>>(),
    })
}

/// The labels of a binding.
#[must_use]
pub(crate) fn binding_labels() -> StringMap {
    [(LABEL.0.to_owned(), LABEL.1.to_owned())].into()
}
