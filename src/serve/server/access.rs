//! Authorization.
//!
//! Owns the translation of a request into Kubernetes' attributes, and the node's own policy. Pure.

use serde_json::Value;

use crate::cluster::review::rules::{ReviewedUser, UserRealm};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub name: String,
    pub groups: Vec<String>,
    pub realm: UserRealm,
    /// Of a user whom the cluster knows; empty otherwise.
    pub uid: String,
    /// The same; null otherwise.
    pub extra: Value,
}

/// The group of full administrators, as in older versions of kubeadm's `admin.conf`.
pub(crate) const MASTERS: &str = "system:masters";
/// The group with read-only access.
pub(crate) const VIEWERS: &str = "agent:viewers";
/// The group of all users but anonymous ones.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
/// The user of requests without credentials.
pub(in crate::serve) const ANONYMOUS: &str = "system:anonymous";
/// The group of requests without credentials.
pub(in crate::serve) const UNAUTHENTICATED: &str = "system:unauthenticated";

impl User {
    #[must_use]
    pub(crate) fn anonymous() -> Self {
        let groups = vec![UNAUTHENTICATED.to_owned()];
        Self { name: ANONYMOUS.to_owned(), groups, ..Self::default() }
    }

    /// A user for whom the node itself vouches.
    #[must_use]
    pub(crate) fn of_node(name: String, groups: Vec<String>) -> Self {
        Self { name, groups, realm: UserRealm::Node, ..Self::default() }
    }

    /// All groups, including [`AUTHENTICATED`].
    #[must_use]
    pub(crate) fn all_groups(&self) -> Vec<String> {
        let mut groups = self.groups.clone();
        let is_one = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
        if self.name != ANONYMOUS && !groups.iter().any(is_one) {
            groups.push(AUTHENTICATED.to_owned());
        }
        groups
    }

    /// The user of a service account: only roles say what it may do.
    #[must_use]
    pub(crate) fn is_account(&self) -> bool {
        self.name.starts_with("system:serviceaccount:")
    }

    /// The user of a token that the cluster knows.
    #[must_use]
    pub(super) fn of_review(user: &ReviewedUser) -> Self {
        let ReviewedUser { name, uid, groups, extra } = user.clone();
        Self { name, groups, realm: UserRealm::Cluster, uid, extra }
    }
}

/// A request as Kubernetes' authorization attributes: always on the node, and on one of these subresources,
/// tried in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeAttributes {
    /// `get`, `create`, ...
    pub verb: &'static str,
    /// The most specific first.
    pub subresources: &'static [&'static str],
}

/// Translates a request, as upstream does with fine-grained authorization on.
#[must_use]
pub(crate) fn attributes(method: &str, path: &str) -> NodeAttributes {
    let verb = match method {
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    };
    let below =
        |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let table: [(&str, &[&str]); 10] = [
        ("/stats", &["stats"]),
        ("/metrics", &["metrics"]),
        ("/logs", &["log"]),
        ("/checkpoint", &["checkpoint"]),
        ("/statusz", &["statusz"]),
        ("/flagz", &["configz"]),
        ("/pods", &["pods", "proxy"]),
        ("/runningpods", &["pods", "proxy"]),
        ("/healthz", &["healthz", "proxy"]),
        ("/configz", &["configz", "proxy"]),
    ];
    let subresources = table.iter().find(|(root, _)| below(root)).map_or(&["proxy"][..], |(_, found)| found);
    NodeAttributes { verb, subresources }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Every authenticated user may do everything, except for service accounts: they are as with [`Self::Local`].
    AlwaysAllow,
    /// [`MASTERS`] may do everything; [`VIEWERS`] may read pods, logs, statistics and health, but neither the
    /// configuration nor the inside of containers.
    Local,
}

impl Policy {
    /// [`Self::AlwaysAllow`] counts for this user.
    #[must_use]
    pub(in crate::serve) fn is_open_to(self, user: &User) -> bool {
        self == Self::AlwaysAllow && !user.is_account()
    }

    #[must_use]
    pub(in crate::serve) fn allows(self, user: &User, method: &str, path: &str) -> bool {
        let is_in = |group: &str| user.groups.iter().any(|found| found == group);
        if self.is_open_to(user) || is_in(MASTERS) {
            return true;
        }
        let asked = attributes(method, path);
        let shown = ["stats", "metrics", "statusz", "pods", "healthz"];
        let looks = asked.subresources.first().is_some_and(|finest| shown.contains(finest))
            || path.starts_with("/containerLogs/");
        is_in(VIEWERS) && asked.verb == "get" && looks
    }
}

/// Upstream's message for a denied request.
#[must_use]
pub(crate) fn forbidden(user: &User, node_name: &str, method: &str, path: &str) -> String {
    let NodeAttributes { verb, subresources } = attributes(method, path);
    let subresources = subresources.join(" ");
    format!(
        "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{subresources}], node={node_name})\n",
        user.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(group: &str) -> User {
        User::of_node("jane".into(), vec!["others".into(), group.into()])
    }

    #[test]
    fn requests_are_translated_as_upstream_does() {
        let of = |method, path| {
            let asked = attributes(method, path);
            (asked.verb, asked.subresources.join(","))
        };
        assert_eq!(of("GET", "/pods"), ("get", "pods,proxy".to_owned()));
        assert_eq!(of("GET", "/pods/"), ("get", "pods,proxy".to_owned()));
        assert_eq!(of("POST", "/stats/summary"), ("create", "stats".to_owned()));
        assert_eq!(of("GET", "/metrics/cadvisor"), ("get", "metrics".to_owned()));
        assert_eq!(of("GET", "/metricsandmore"), ("get", "proxy".to_owned()));
        assert_eq!(of("GET", "/flagz"), ("get", "configz".to_owned()));
        assert_eq!(of("GET", "/exec/a/b/c"), ("get", "proxy".to_owned()));
        assert_eq!(of("DELETE", "/"), ("delete", "proxy".to_owned()));
    }

    #[test]
    fn masters_may_everything_viewers_look_and_others_nothing() {
        let requests = [
            ("GET", "/pods", true),
            ("GET", "/containerLogs/a/b/c", true),
            ("GET", "/metrics", true),
            ("GET", "/stats/summary", true),
            ("GET", "/healthz", true),
            ("GET", "/configz", false),
            ("GET", "/flagz", false),
            ("GET", "/logs/", false),
            ("GET", "/exec/a/b/c", false),
            ("POST", "/exec/a/b/c", false),
            ("GET", "/portForward/a/b", false),
            ("POST", "/run/a/b/c", false),
            ("POST", "/stats/summary", false),
            ("GET", "/nothing", false),
            ("GET", "/agent/v1/status", false),
        ];
        for (method, path, viewer) in requests {
            assert!(Policy::Local.allows(&member(MASTERS), method, path), "{path}");
            assert_eq!(Policy::Local.allows(&member(VIEWERS), method, path), viewer, "{method} {path}");
            assert!(!Policy::Local.allows(&member("system:nodes"), method, path), "{path}");
            assert!(!Policy::Local.allows(&User::anonymous(), method, path), "{path}");
            assert!(Policy::AlwaysAllow.allows(&User::anonymous(), method, path), "{path}");
        }
        let said = forbidden(&member(VIEWERS), "box", "GET", "/configz");
        assert_eq!(
            said,
            "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[configz proxy], node=box)\n"
        );
    }
}
