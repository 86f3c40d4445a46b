//! Role-based access control: roles, bindings and a request in, a decision out (upstream: the authorizer `RBAC`, 1.36).
//!
//! Owns the meaning of rules, and when a role may be given to others. Denying is the default: what cannot be read
//! grants nothing.
//!
//! Pure: what it returns depends on its arguments alone.

pub mod built_in;
pub mod escalation;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::model::api::pod::StringMap;
use crate::model::selector::selects;

/// The API group of roles and bindings.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
/// Everything, in each list of a rule.
const ALL: &str = "*";

/// A request for objects, as authorizers see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectAttributes {
    /// `get`, `list`, ...
    pub verb: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    /// Empty for all namespaces and for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
}

/// Who asks, with all groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub name: &'a str,
    pub groups: &'a [String],
}

/// One of a role's `rules`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyRule {
    pub verbs: Vec<String>,
    pub groups: Vec<String>,
    /// With their subresources: `pods/log`, `*/scale`.
    pub resources: Vec<String>,
    /// Empty for all.
    pub names: Vec<String>,
    /// `nonResourceURLs`; a `*` at the end stands for any rest.
    pub paths: Vec<String>,
}

/// The members of a rule in JSON, in the order of its fields.
const MEMBERS: [&str; 5] = ["verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"];

fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|found| found == word)
}

fn has_or_all(list: &[String], word: &str) -> bool {
    list.iter().any(|found| found == ALL || found == word)
}

/// The texts of a list; empty for anything else.
pub(crate) fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

impl PolicyRule {
    #[must_use]
    pub(crate) fn from_value(value: &Value) -> Self {
        let [verbs, groups, resources, names, paths] = MEMBERS.map(|member| texts(&value[member]));
        Self { verbs, groups, resources, names, paths }
    }

    fn lists(&self) -> [&Vec<String>; 5] {
        [&self.verbs, &self.groups, &self.resources, &self.names, &self.paths]
    }

    #[must_use]
    pub(crate) fn to_value(&self) -> Value {
        let mut value = json!({});
        for (member, list) in MEMBERS.into_iter().zip(self.lists()).filter(|(_, list)| !list.is_empty()) {
            value[member] = json!(list);
        }
        value
    }

    #[must_use]
    pub(crate) fn allows(&self, asked: &ObjectAttributes) -> bool {
        has_or_all(&self.verbs, &asked.verb)
            && has_or_all(&self.groups, &asked.group)
            && self.resources.iter().any(|resource| is_resource(resource, asked))
            && (self.names.is_empty() || has(&self.names, &asked.name))
    }

    #[must_use]
    pub(crate) fn allows_path(&self, verb: &str, path: &str) -> bool {
        has_or_all(&self.verbs, verb) && self.paths.iter().any(|rule| covers_path(rule, path))
    }
}

/// `pods`, `pods/log`, `*/log`, `*`: the last stands for subresources, too.
fn is_resource(rule: &str, asked: &ObjectAttributes) -> bool {
    if rule == ALL {
        return true;
    }
    let (resource, subresource) = rule.split_once('/').unwrap_or((rule, ""));
    subresource == asked.subresource
        && (resource == asked.resource || (resource == ALL && !subresource.is_empty()))
}

fn covers_path(rule: &str, path: &str) -> bool {
    rule == path || (rule.ends_with(ALL) && path.starts_with(rule.trim_end_matches(ALL)))
}

/// A Role or ClusterRole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RbacRole {
    /// Empty of a ClusterRole.
    pub namespace: String,
    pub name: String,
    pub labels: StringMap,
    /// Of an aggregated role those of the roles it selects.
    pub rules: Vec<PolicyRule>,
    /// `aggregationRule.clusterRoleSelectors`; `None`: the rules are its own.
    pub selectors: Option<Vec<Value>>,
}

impl RbacRole {
    /// `body` has the members beside the metadata.
    #[must_use]
    pub(crate) fn of((namespace, name): (&str, &str), labels: &StringMap, body: &Value) -> Self {
        let selectors = body["aggregationRule"]["clusterRoleSelectors"].as_array();
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            labels: labels.clone(),
            rules: rules_of(body),
            selectors: selectors.filter(|_| namespace.is_empty()).cloned(),
        }
    }
}

/// `rules` of a role.
#[must_use]
pub(crate) fn rules_of(body: &Value) -> Vec<PolicyRule> {
    body["rules"].as_array().into_iter().flatten().map(PolicyRule::from_value).collect()
}

/// `roleRef` of a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleReference {
    pub is_cluster_role: bool,
    pub name: String,
}

impl RoleReference {
    /// `None`: it refers to no role.
    #[must_use]
    pub(crate) fn of(body: &Value) -> Option<Self> {
        let reference = &body["roleRef"];
        if !matches!(reference["apiGroup"].as_str(), None | Some("" | GROUP)) {
            return None;
        }
        let is_cluster_role = match reference["kind"].as_str()? {
            "ClusterRole" => true,
            "Role" => false,
            _ => return None,
        };
        Some(Self { is_cluster_role, name: reference["name"].as_str()?.to_owned() })
    }
}

/// A RoleBinding or ClusterRoleBinding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// Empty of a ClusterRoleBinding.
    pub namespace: String,
    pub role: RoleReference,
    subjects: Vec<BoundSubject>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BoundSubject {
    /// A user, or the user of a service account.
    User(String),
    Group(String),
}

/// The user of a service account.
#[must_use]
pub(crate) fn account_user(namespace: &str, name: &str) -> String {
    ["system:serviceaccount:", namespace, ":", name].concat()
}

impl Binding {
    /// `None`: it grants nothing.
    #[must_use]
    pub(crate) fn of(namespace: &str, body: &Value) -> Option<Self> {
        let role = RoleReference::of(body)?;
        let subject = |subject: &Value| {
            let name = subject["name"].as_str()?.to_owned();
            Some(match subject["kind"].as_str()? {
                "User" => BoundSubject::User(name),
                "Group" => BoundSubject::Group(name),
                "ServiceAccount" => {
                    let of = subject["namespace"].as_str().filter(|of| !of.is_empty()).unwrap_or(namespace);
                    BoundSubject::User(account_user(of, &name))
                }
                _ => return None,
            })
        };
        let subjects = body["subjects"].as_array().into_iter().flatten().filter_map(subject).collect();
        let is_sound = role.is_cluster_role || !namespace.is_empty();
        is_sound.then(|| Self { namespace: namespace.to_owned(), role, subjects })
    }

    fn is_for(&self, who: Subject<'_>) -> bool {
        self.subjects.iter().any(|subject| match subject {
            BoundSubject::User(name) => name == who.name,
            BoundSubject::Group(name) => has(who.groups, name),
        })
    }
}

/// All roles and bindings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rbac {
    /// By namespace and name.
    roles: BTreeMap<(String, String), RbacRole>,
    bindings: Vec<Binding>,
}

impl Rbac {
    #[must_use]
    pub(crate) fn new(roles: impl IntoIterator<Item = RbacRole>, bindings: Vec<Binding>) -> Self {
        let mut all = BTreeMap::new();
        for role in roles {
            all.insert((role.namespace.clone(), role.name.clone()), role);
        }
        let aggregated = all.values().filter(|role| role.selectors.is_some());
        let named: Vec<String> = aggregated.map(|role| role.name.clone()).collect();
        for name in named {
            let mut whole = Vec::new();
            aggregate(&all, &name, &mut BTreeSet::new(), &mut whole);
            if let Some(role) = all.get_mut(&(String::new(), name)) {
                // The selectors stay: a role that is aggregated itself is walked through, not read.
                role.rules = whole;
            }
        }
        Self { roles: all, bindings }
    }

    #[must_use]
    pub(crate) fn allows(&self, who: Subject<'_>, asked: &ObjectAttributes) -> bool {
        self.rules(who, &asked.namespace).any(|rule| rule.allows(asked))
    }

    #[must_use]
    pub(crate) fn allows_path(&self, who: Subject<'_>, verb: &str, path: &str) -> bool {
        self.rules(who, "").any(|rule| rule.allows_path(verb, path))
    }

    /// The rules for a user in a namespace, or in none.
    pub(crate) fn rules<'a>(
        &'a self,
        who: Subject<'a>,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a PolicyRule> {
        let is_here = move |binding: &&Binding| {
            (binding.namespace.is_empty() || binding.namespace == namespace) && binding.is_for(who)
        };
        let bindings = self.bindings.iter().filter(is_here);
        bindings.flat_map(|binding| self.role(&binding.role, &binding.namespace).unwrap_or_default())
    }

    /// The rules of the role that a binding in this namespace refers to; `None`: there is no such role.
    #[must_use]
    pub(crate) fn role(&self, role: &RoleReference, namespace: &str) -> Option<&[PolicyRule]> {
        let namespace = if role.is_cluster_role { "" } else { namespace };
        let found = self.roles.get(&(namespace.to_owned(), role.name.clone()))?;
        Some(&found.rules)
    }
}

/// Adds the rules of the roles that an aggregated role selects, each once.
fn aggregate(
    all: &BTreeMap<(String, String), RbacRole>,
    name: &str,
    visited: &mut BTreeSet<String>,
    rules: &mut Vec<PolicyRule>,
) {
    let Some(RbacRole { selectors: Some(selectors), .. }) = all.get(&(String::new(), name.to_owned())) else {
        return;
    };
    if !visited.insert(name.to_owned()) {
        return;
    }
    for role in all.values().filter(|role| role.namespace.is_empty()) {
        if !selectors.iter().any(|selector| selects(selector, &role.labels)) {
            continue;
        }
        if role.selectors.is_some() {
            aggregate(all, &role.name, visited, rules);
            continue;
        }
        for rule in &role.rules {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
