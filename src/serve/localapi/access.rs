//! Authorization for objects: Kubernetes' attributes of a request, the node's policy, and roles.
//!
//! Owns the decision and the message of a denial. Pure.

use std::rc::Rc;

use serde_json::{Value, json};

use super::path::RequestInfo;
use super::resource::{Catalog, Store, Verb, qualified};
use super::status::{self, Failure};
use crate::model::objects::ObjectKind;
use crate::serve::rbac::{ObjectAttributes, Rbac, Subject};
use crate::serve::server::access::{ANONYMOUS, MASTERS, Policy, User, VIEWERS};

/// As upstream's `RequestInfo`: a namespace is in itself, and a field selector may name the only object of a list.
#[must_use]
pub(in crate::serve) fn attributes_of(wanted: &RequestInfo) -> ObjectAttributes {
    let is_namespace = wanted.resource.store == Store::Namespaces;
    let namespace = if is_namespace { &wanted.name } else { &wanted.namespace };
    let name = match (&wanted.name, wanted.verb) {
        (Some(name), _) => Some(name.as_str()),
        (None, Verb::List | Verb::Watch) => selected_name(&wanted.options.field_selector),
        (None, _) => None,
    };
    ObjectAttributes {
        verb: wanted.verb.as_str().to_owned(),
        group: wanted.resource.group.to_owned(),
        resource: wanted.resource.plural.to_owned(),
        subresource: wanted.subresource.map(|part| part.name.to_owned()).unwrap_or_default(),
        namespace: namespace.clone().unwrap_or_default(),
        name: name.unwrap_or_default().to_owned(),
    }
}

/// The name that a field selector requires.
fn selected_name(fields: &str) -> Option<&str> {
    // Names have no letters that are escaped; an escaped comma would look like the end of a field.
    if fields.contains('\\') {
        return None;
    }
    let required = fields.split(',').find_map(|field| field.strip_prefix("metadata.name="));
    let name = required.map(|value| value.strip_prefix('=').unwrap_or(value))?;
    (!matches!(name, "." | "..") && !name.contains(['/', '%'])).then_some(name)
}

fn is_in(user: &User, group: &str) -> bool {
    user.groups.iter().any(|found| found == group)
}

/// What a user may do: by the policy, and by the roles where it does not allow.
pub(crate) struct Access<'a> {
    pub policy: Policy,
    pub user: &'a User,
    /// Asked for only where the policy does not allow.
    pub roles: &'a dyn Fn() -> Rc<Rbac>,
}

impl Access<'_> {
    /// The user may do everything, whatever roles there are.
    #[must_use]
    pub(crate) fn is_unlimited(&self) -> bool {
        self.policy.is_open_to(self.user) || is_in(self.user, MASTERS)
    }

    #[must_use]
    pub(crate) fn may(&self, asked: &ObjectAttributes) -> bool {
        may(self.policy, self.user, asked) || self.has_role(|rbac, who| rbac.allows(who, asked))
    }

    /// Whether the user may request a path that names no object.
    #[must_use]
    pub(crate) fn may_path(&self, path: &str, verb: &str) -> bool {
        may_path(self.policy, self.user, path, verb)
            || self.has_role(|rbac, who| rbac.allows_path(who, verb, path))
    }

    fn has_role(&self, allows: impl Fn(&Rbac, Subject<'_>) -> bool) -> bool {
        let groups = self.user.all_groups();
        allows(&(self.roles)(), Subject { name: &self.user.name, groups: &groups })
    }

    /// `status` of a SelfSubjectRulesReview.
    #[must_use]
    pub(crate) fn rules(&self, namespace: &str) -> Value {
        let mut status = rules(self.policy, self.user);
        if self.is_unlimited() {
            return status;
        }
        let (groups, rbac) = (self.user.all_groups(), (self.roles)());
        let who = Subject { name: &self.user.name, groups: &groups };
        for rule in rbac.rules(who, namespace) {
            let member = if rule.paths.is_empty() { "resourceRules" } else { "nonResourceRules" };
            if let Some(list) = status[member].as_array_mut() {
                let rule = rule.to_value();
                if !list.contains(&rule) {
                    list.push(rule);
                }
            }
        }
        status
    }
}

#[must_use]
fn may(policy: Policy, user: &User, asked: &ObjectAttributes) -> bool {
    if policy.is_open_to(user) || is_in(user, MASTERS) {
        return true;
    }
    let asks_about_itself = matches!(
        asked.resource.as_str(),
        "selfsubjectaccessreviews" | "selfsubjectrulesreviews" | "selfsubjectreviews"
    );
    if asks_about_itself && asked.verb == "create" {
        return user.name != ANONYMOUS;
    }
    is_in(user, VIEWERS)
        && matches!(asked.verb.as_str(), "get" | "list" | "watch")
        && is_shown(&asked.group, &asked.resource)
        && matches!(asked.subresource.as_str(), "" | "log" | "status" | "resize" | "ephemeralcontainers")
}

/// What viewers may read: everything but Secrets.
fn is_shown(group: &str, plural: &str) -> bool {
    Catalog::default().all().any(|resource| {
        resource.group == group
            && resource.plural == plural
            && !matches!(resource.store, Store::Objects(ObjectKind::Secret) | Store::Review)
    })
}

/// Whether a user may request a path that names no object: discovery, for authenticated users; health, for
/// everyone.
#[must_use]
fn may_path(policy: Policy, user: &User, path: &str, verb: &str) -> bool {
    if policy.is_open_to(user) || is_in(user, MASTERS) {
        return true;
    }
    let below = |roots: &[&str]| {
        roots
            .iter()
            .any(|root| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    let known = user.name != ANONYMOUS;
    verb == "get"
        && (below(&["/healthz", "/livez", "/readyz", "/version"])
            || (known && path == "/")
            || (known && below(&["/api", "/apis", "/openapi"])))
}

/// The API server's message for a denied request.
#[must_use]
pub(crate) fn refusal(user: &User, asked: &ObjectAttributes) -> Failure {
    let resource = match asked.subresource.as_str() {
        "" => asked.resource.clone(),
        part => format!("{}/{part}", asked.resource),
    };
    let place = match asked.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let subject = match asked.name.as_str() {
        "" => qualified(&asked.resource, &asked.group),
        name => format!("{} \"{name}\"", qualified(&asked.resource, &asked.group)),
    };
    let message = format!(
        "{subject} is forbidden: User \"{}\" cannot {} resource \"{resource}\" in API group \"{}\" {place}",
        user.name, asked.verb, asked.group
    );
    status::forbidden(&asked.group, &asked.resource, &asked.name, message)
}

/// The same for a path.
#[must_use]
pub(in crate::serve) fn path_refusal(user: &User, path: &str, verb: &str) -> Failure {
    let message = format!("forbidden: User \"{}\" cannot {verb} path \"{path}\"", user.name);
    status::forbidden("", "", "", message)
}

/// The same by the policy alone.
#[must_use]
fn rules(policy: Policy, user: &User) -> Value {
    let rule = |verbs: &[&str], groups: &[&str], resources: &[&str]| json!({"verbs": verbs, "apiGroups": groups, "resources": resources});
    if policy.is_open_to(user) || is_in(user, MASTERS) {
        return json!({
            "resourceRules": [rule(&["*"], &["*"], &["*"])],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        });
    }
    let mut resources = Vec::new();
    let mut paths = vec!["/healthz", "/livez", "/readyz", "/version", "/version/"];
    if user.name != ANONYMOUS {
        paths.extend(["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]);
        resources.extend([
            rule(
                &["create"],
                &["authorization.k8s.io"],
                &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
            ),
            rule(&["create"], &["authentication.k8s.io"], &["selfsubjectreviews"]),
        ]);
    }
    if is_in(user, VIEWERS) {
        let catalog = Catalog::default();
        let shown = catalog.all().filter(|found| is_shown(found.group, found.plural));
        let looks = |store| match store {
            Store::PodMetrics | Store::NodeMetrics => &["get", "list"][..],
            _ => &["get", "list", "watch"][..],
        };
        resources.extend(shown.map(|found| rule(looks(found.store), &[found.group], &[found.plural])));
        resources.push(rule(&["get"], &[""], &["pods/log", "pods/status"]));
    }
    json!({
        "resourceRules": resources,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": paths}],
        "incomplete": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::localapi::path::{self, ApiCall};

    fn member(group: &str) -> User {
        User::of_node("jane".to_owned(), vec![group.to_owned()])
    }

    fn asked(line: &str) -> ObjectAttributes {
        let mut words = line.split(' ').map(str::to_owned);
        let (verb, path) = (words.next().unwrap(), words.next().unwrap());
        let (resource, subresource) = path.split_once('/').unwrap_or((&path, ""));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        ObjectAttributes {
            verb,
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: words.next().unwrap_or_default(),
            name: words.next().unwrap_or_default(),
        }
    }

    #[test]
    fn attributes_of_requests_are_upstreams() {
        let pods = "/api/v1/namespaces/a/pods";
        for (method, path, query, namespace, name) in [
            ("GET", "/api/v1/namespaces/a", "", "a", "a"),
            ("PATCH", "/api/v1/namespaces/a", "", "a", "a"),
            ("GET", "/api/v1/namespaces/a/status", "", "a", "a"),
            ("GET", "/api/v1/namespaces", "", "", ""),
            ("GET", "/api/v1/nodes/n", "", "", "n"),
            ("GET", pods, "fieldSelector=metadata.name%3Dx", "a", "x"),
            ("GET", pods, "watch=1&fieldSelector=spec.nodeName%3Dn%2Cmetadata.name%3D%3Dx", "a", "x"),
            ("GET", pods, "fieldSelector=metadata.name!%3Dx", "a", ""),
            ("GET", pods, "fieldSelector=spec.nodeName%3Dn%5C%2Cmetadata.name%3Dx", "a", ""),
            ("GET", pods, "fieldSelector=metadata.name%3Dx%2Fy", "a", ""),
            ("GET", "/api/v1/namespaces/a/pods/web", "fieldSelector=metadata.name%3Dx", "a", "web"),
            // Upstream: a role cannot restrict it to names.
            ("DELETE", pods, "fieldSelector=metadata.name%3Dx", "a", ""),
        ] {
            let Ok(ApiCall::Object(wanted)) = path::read(&Catalog::default(), method, path, query) else {
                panic!("{method} {path}")
            };
            let asked = attributes_of(&wanted);
            let found = (asked.namespace.as_str(), asked.name.as_str());
            assert_eq!(found, (namespace, name), "{method} {path} {query}");
        }
    }

    #[test]
    fn viewers_look_at_all_but_secrets_and_enter_nothing() {
        for (line, viewer) in [
            ("list pods default", true),
            ("watch pods", true),
            ("get pods/log default web", true),
            ("list configmaps default", true),
            ("get nodes", true),
            ("list events.events.k8s.io", true),
            ("list pods.metrics.k8s.io default", true),
            ("list secrets default", false),
            ("get secrets default s", false),
            ("get pods/exec default web", false),
            ("create pods/exec default web", false),
            ("get pods/attach default web", false),
            ("create pods/portforward default web", false),
            ("get nodes/proxy", false),
            ("create pods default", false),
            ("delete pods default web", false),
            ("patch configmaps default a", false),
            ("get *", false),
            ("list deployments.apps default", true),
            ("list gadgets.example.com default", false),
            ("create selfsubjectaccessreviews.authorization.k8s.io", true),
        ] {
            let asked = asked(line);
            assert_eq!(may(Policy::Local, &member(VIEWERS), &asked), viewer, "{line}");
            assert!(may(Policy::Local, &member(MASTERS), &asked), "{line}");
            assert!(may(Policy::AlwaysAllow, &member("others"), &asked), "{line}");
            let itself = asked.resource.starts_with("selfsubject");
            assert_eq!(may(Policy::Local, &member("others"), &asked), itself, "{line}");
            assert!(!may(Policy::Local, &User::anonymous(), &asked), "{line}");
        }
    }

    #[test]
    fn discovery_paths_are_open_to_every_authenticated_user() {
        let path = |user: &User, path: &str| may_path(Policy::Local, user, path, "get");
        assert!(path(&member("others"), "/apis/x") && path(&member("others"), "/version"));
        assert!(!path(&member("others"), "/metrics") && !path(&member("others"), "/apisx"));
        assert!(path(&member("others"), "/") && !path(&User::anonymous(), "/"));
        assert!(path(&User::anonymous(), "/livez/ping") && !path(&User::anonymous(), "/api"));
    }

    #[test]
    fn authorization_refusals_match_the_apiserver() {
        let said = |line: &str| refusal(&member("others"), &asked(line)).message;
        assert_eq!(
            said("list pods default"),
            "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
        );
        assert_eq!(
            said("get pods/log default web"),
            "pods \"web\" is forbidden: User \"jane\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"default\""
        );
        assert_eq!(
            said("list nodes.metrics.k8s.io"),
            "nodes.metrics.k8s.io is forbidden: User \"jane\" cannot list resource \"nodes\" in API group \"metrics.k8s.io\" at the cluster scope"
        );
        assert_eq!(
            path_refusal(&member("others"), "/x", "get").message,
            "forbidden: User \"jane\" cannot get path \"/x\""
        );
    }

    #[test]
    fn rules_say_what_the_decision_says() {
        let rules = rules(Policy::Local, &member(VIEWERS));
        let text = rules.to_string();
        assert!(
            text.contains("\"pods\"") && text.contains("pods/log") && !text.contains("secrets"),
            "{text}"
        );
        for rule in rules["resourceRules"].as_array().unwrap() {
            for verb in rule["verbs"].as_array().unwrap() {
                for resource in rule["resources"].as_array().unwrap() {
                    let (plural, part) = resource
                        .as_str()
                        .unwrap()
                        .split_once('/')
                        .unwrap_or((resource.as_str().unwrap(), ""));
                    let asked = ObjectAttributes {
                        verb: verb.as_str().unwrap().to_owned(),
                        group: rule["apiGroups"][0].as_str().unwrap().to_owned(),
                        resource: plural.to_owned(),
                        subresource: part.to_owned(),
                        ..ObjectAttributes::default()
                    };
                    assert!(may(Policy::Local, &member(VIEWERS), &asked), "{asked:?}");
                }
            }
        }
    }
}
