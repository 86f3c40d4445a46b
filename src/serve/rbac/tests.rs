#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use std::collections::BTreeMap;

use super::*;

/// `VERB RESOURCE[/PART][.GROUP] [NAMESPACE [NAME]]`.
fn asked(line: &str) -> ObjectAttributes {
    let mut words = line.split(' ').map(str::to_owned);
    let (verb, what) = (words.next().unwrap(), words.next().unwrap());
    let (what, group) = what.split_once('.').unwrap_or((&what, ""));
    let (resource, subresource) = what.split_once('/').unwrap_or((what, ""));
    ObjectAttributes {
        verb,
        group: group.to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: words.next().unwrap_or_default(),
        name: words.next().unwrap_or_default(),
    }
}

fn rule(rule: Value) -> PolicyRule {
    PolicyRule::from_value(&rule)
}

fn role(namespace: &str, name: &str, rules: Value) -> RbacRole {
    RbacRole::of((namespace, name), &StringMap::new(), &json!({"rules": rules}))
}

fn binding(namespace: &str, role: (&str, &str), subjects: Value) -> Binding {
    let body = json!({"roleRef": {"apiGroup": GROUP, "kind": role.0, "name": role.1}, "subjects": subjects});
    Binding::of(namespace, &body).unwrap()
}

fn may(rbac: &Rbac, user: &str, groups: &[&str], line: &str) -> bool {
    let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
    rbac.allows(Subject { name: user, groups: &groups }, &asked(line))
}

#[test]
fn rules_allow_what_upstream_documents() {
    let reads_pods = json!({"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]});
    let one_map = json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["my-map"], "verbs": ["update", "get"]});
    let scales = json!({"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["update"]});
    let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let apps = json!({"apiGroups": ["apps"], "resources": ["*"], "verbs": ["*"]});
    for (given, line, allowed) in [
        (&reads_pods, "get pods default web", true),
        (&reads_pods, "list pods default", true),
        (&reads_pods, "list pods", true),
        (&reads_pods, "watch pods default", false),
        (&reads_pods, "get pods/log default web", true),
        (&reads_pods, "get pods/exec default web", false),
        (&reads_pods, "get pods.metrics.k8s.io default web", false),
        (&one_map, "update configmaps default my-map", true),
        (&one_map, "update configmaps default other", false),
        (&one_map, "get configmaps default", false),
        (&scales, "update deployments/scale.apps default web", true),
        (&scales, "update scale default web", false),
        (&scales, "update deployments.apps default web", false),
        (&all, "delete nodes/proxy", true),
        (&all, "impersonate users", true),
        (&apps, "delete deployments/status.apps a b", true),
        (&apps, "delete pods a b", false),
        (&json!({"apiGroups": [""], "resources": ["pods"]}), "get pods default web", false),
        (&json!({"resources": ["pods"], "verbs": ["*"]}), "get pods default web", false),
        (&json!({"apiGroups": [""], "verbs": ["*"]}), "get pods default web", false),
        (&json!({"apiGroups": [""], "resources": "pods", "verbs": ["get"]}), "get pods default web", false),
        (
            &json!({"apiGroups": [""], "resources": ["pods/*"], "verbs": ["get"]}),
            "get pods/log default web",
            false,
        ),
        (&json!({"nonResourceURLs": ["*"], "verbs": ["*"]}), "get pods default web", false),
        (&json!("*"), "get pods default web", false),
    ] {
        assert_eq!(rule(given.clone()).allows(&asked(line)), allowed, "{given} {line}");
    }
    for (paths, verb, path, allowed) in [
        (json!(["/healthz"]), "get", "/healthz", true),
        (json!(["/healthz"]), "post", "/healthz", false),
        (json!(["/healthz"]), "get", "/healthz/", false),
        (json!(["/healthz/*"]), "get", "/healthz/ping", true),
        (json!(["/healthz/*"]), "get", "/healthz", false),
        (json!(["*"]), "get", "/metrics", true),
        (json!(["/a*b"]), "get", "/axb", false),
    ] {
        let given = rule(json!({"nonResourceURLs": paths, "verbs": ["get", "head"]}));
        assert_eq!(given.allows_path(verb, path), allowed, "{paths} {path}");
    }
}

#[test]
fn bindings_say_for_whom_and_where() {
    let pods = || json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let account = |namespace: Value| {
        let mut subject = json!({"kind": "ServiceAccount", "name": "robot"});
        if !namespace.is_null() {
            subject["namespace"] = namespace;
        }
        json!([subject])
    };
    let user = |name: &str| json!([{"apiGroup": GROUP, "kind": "User", "name": name}]);
    let here = "system:serviceaccount:a:robot";
    let cases = [
        // A RbacRole counts in its namespace, and a ClusterRole in that of its RoleBinding.
        (binding("a", ("Role", "own"), account(json!("a"))), here, true, false, false),
        (binding("a", ("ClusterRole", "wide"), account(json!("a"))), here, true, false, false),
        (binding("a", ("Role", "own"), account(Value::Null)), here, true, false, false),
        (binding("a", ("Role", "own"), account(json!("b"))), here, false, false, false),
        (
            binding("a", ("Role", "own"), account(json!("b"))),
            "system:serviceaccount:b:robot",
            true,
            false,
            false,
        ),
        (binding("", ("ClusterRole", "wide"), account(json!("a"))), here, true, true, true),
        (binding("", ("ClusterRole", "wide"), account(Value::Null)), here, false, false, false),
        (binding("", ("ClusterRole", "wide"), user("jane")), "jane", true, true, true),
        (binding("", ("ClusterRole", "wide"), user("jane")), "Jane", false, false, false),
        (binding("a", ("ClusterRole", "wide"), user(here)), here, true, false, false),
        // There is no such role, or not there.
        (binding("", ("ClusterRole", "none"), user("jane")), "jane", false, false, false),
        (binding("b", ("Role", "own"), user("jane")), "jane", false, false, false),
    ];
    for (binding, user, in_a, in_b, everywhere) in cases {
        let said = format!("{binding:?}");
        let rbac = Rbac::new([role("a", "own", pods()), role("", "wide", pods())], vec![binding]);
        let found = ["get pods a x", "get pods b x", "get pods"].map(|line| may(&rbac, user, &[], line));
        assert_eq!(found, [in_a, in_b, everywhere], "{said}");
    }
    let group = json!([{"kind": "Group", "name": "system:serviceaccounts:a"}]);
    let rbac = Rbac::new([role("", "wide", pods())], vec![binding("", ("ClusterRole", "wide"), group)]);
    assert!(may(&rbac, here, &["system:serviceaccounts:a"], "get pods b"));
    assert!(!may(&rbac, here, &["system:serviceaccounts:b"], "get pods b"));
}

#[test]
fn what_cannot_be_read_grants_nothing() {
    for body in [
        json!({}),
        json!({"roleRef": {"kind": "ClusterRole"}, "subjects": []}),
        json!({"roleRef": {"kind": "Robot", "name": "wide"}, "subjects": []}),
        json!({"roleRef": {"apiGroup": "other.example", "kind": "ClusterRole", "name": "wide"}}),
        // A ClusterRoleBinding of a RbacRole.
        json!({"roleRef": {"kind": "Role", "name": "own"}, "subjects": []}),
    ] {
        assert_eq!(Binding::of("", &body), None, "{body}");
    }
    let odd = json!([{"kind": "Users", "name": "jane"}, {"kind": "User"}, "jane", {"name": "jane"}]);
    let rbac = Rbac::new(
        [role("", "wide", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]))],
        vec![binding("", ("ClusterRole", "wide"), odd)],
    );
    assert!(!may(&rbac, "jane", &["jane"], "get pods a") && !may(&rbac, "", &[], "get pods a"));
}

#[test]
fn an_aggregated_role_has_the_rules_of_those_it_selects() {
    let labelled = |name: &str, label: &str, resource: &str| {
        let labels = BTreeMap::from([(label.to_owned(), "true".to_owned())]);
        let body = json!({"rules": [{"apiGroups": ["x"], "resources": [resource], "verbs": ["get"]}]});
        RbacRole::of(("", name), &labels, &body)
    };
    let aggregated = |name: &str, selects: &str, label: &str| {
        let labels = BTreeMap::from([(label.to_owned(), "true".to_owned())]);
        let body = json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {selects: "true"}}]},
            // What a controller would overwrite.
            "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
        RbacRole::of(("", name), &labels, &body)
    };
    let roles = [
        aggregated("whole", "to-whole", "to-part"),
        aggregated("part", "to-part", "to-whole"),
        labelled("one", "to-whole", "ones"),
        labelled("two", "to-part", "twos"),
        labelled("other", "to-nothing", "others"),
    ];
    let rbac = Rbac::new(roles, Vec::new());
    let found = |name: &str| {
        let reference = RoleReference { is_cluster_role: true, name: name.to_owned() };
        let granted = rbac.role(&reference, "").unwrap();
        granted
            .iter()
            .flat_map(|rule| rule.resources.clone())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    };
    // Each is a part of the other.
    assert_eq!(
        (found("whole"), found("part")),
        (vec!["ones".into(), "twos".into()], vec!["ones".into(), "twos".into()])
    );
    assert_eq!(found("one"), ["ones"]);
}

fn built_in_for(name: &str) -> Rbac {
    let roles = built_in::roles();
    let mut bindings: Vec<Binding> =
        roles.iter().filter_map(|role| Binding::of("", &built_in::binding_body(role))).collect();
    bindings.push(binding("a", ("ClusterRole", name), json!([{"kind": "User", "name": "jane"}])));
    Rbac::new(roles.into_iter().map(|role| role.role), bindings)
}

#[test]
fn built_in_roles_allow_what_upstreams_do() {
    for (line, of_view, of_edit, of_admin) in [
        ("get pods a web", true, true, true),
        ("watch deployments.apps a", true, true, true),
        ("get pods/log a web", true, true, true),
        ("get secrets a s", false, true, true),
        ("create pods a", false, true, true),
        ("create pods/exec a web", false, true, true),
        ("create pods/eviction a web", false, true, true),
        ("patch deployments/scale.apps a web", false, true, true),
        ("update leases.coordination.k8s.io a l", false, true, true),
        ("impersonate serviceaccounts a robot", false, true, true),
        ("create serviceaccounts/token a robot", false, true, true),
        ("create rolebindings.rbac.authorization.k8s.io a", false, false, true),
        ("get roles.rbac.authorization.k8s.io a r", false, false, true),
        ("create localsubjectaccessreviews.authorization.k8s.io a", false, false, true),
        ("escalate roles.rbac.authorization.k8s.io a r", false, false, false),
        ("create resourcequotas a", false, false, false),
        ("get nodes", false, false, false),
        ("get pods b web", false, false, false),
    ] {
        let found = ["view", "edit", "admin"].map(|name| may(&built_in_for(name), "jane", &[], line));
        assert_eq!(found, [of_view, of_edit, of_admin], "{line}");
    }
    let rbac = built_in_for("view");
    assert!(may(&rbac, "root", &["system:masters"], "delete nodes/proxy"));
    assert!(may(
        &rbac,
        "x",
        &["system:authenticated"],
        "create selfsubjectaccessreviews.authorization.k8s.io"
    ));
    assert!(!may(&rbac, "x", &["system:authenticated"], "list pods a"));
    let path = |group: &str, path: &str| {
        rbac.allows_path(Subject { name: "x", groups: &[group.to_owned()] }, "get", path)
    };
    assert!(path("system:authenticated", "/apis/apps") && path("system:unauthenticated", "/version"));
    assert!(!path("system:unauthenticated", "/apis") && !path("system:authenticated", "/metrics"));
    assert!(path("system:serviceaccounts", "/openid/v1/jwks"));
}

#[test]
fn only_what_one_holds_may_be_given() {
    let held = [
        json!({"apiGroups": ["", "apps"], "resources": ["pods", "deployments", "*/scale"], "verbs": ["get", "list"]}),
        json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one", "two"], "verbs": ["*"]}),
        json!({"nonResourceURLs": ["/metrics/*"], "verbs": ["get"]}),
    ];
    let held: Vec<PolicyRule> = held.into_iter().map(rule).collect();
    let held: Vec<&PolicyRule> = held.iter().collect();
    for (wanted, lacking) in [
        (json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}), 0),
        (json!({"apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"], "verbs": ["get"]}), 0),
        (json!({"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["list"]}), 0),
        (json!({"apiGroups": ["apps"], "resources": ["deployments/status"], "verbs": ["list"]}), 1),
        (json!({"apiGroups": ["", "batch"], "resources": ["pods"], "verbs": ["get", "delete"]}), 3),
        (json!({"apiGroups": ["*"], "resources": ["pods"], "verbs": ["get"]}), 1),
        (json!({"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}), 1),
        (json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}), 1),
        (
            json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["two"], "verbs": ["delete"]}),
            0,
        ),
        (
            json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["two", "three"], "verbs": ["delete"]}),
            1,
        ),
        (json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["delete"]}), 1),
        (json!({"nonResourceURLs": ["/metrics/cadvisor", "/metrics/*"], "verbs": ["get"]}), 0),
        (json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}), 1),
        (json!({"verbs": ["get"]}), 0),
    ] {
        let found = escalation::missing(&held, &[rule(wanted.clone())]);
        assert_eq!(found.len(), lacking, "{wanted} {found:?}");
    }
    let all = [rule(json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}))];
    let words = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
    let huge = rule(json!({"apiGroups": words(1000), "resources": words(1000), "verbs": words(1000)}));
    assert_eq!(escalation::missing(&[&all[0]], std::slice::from_ref(&huge)), []);
    assert_eq!(
        escalation::missing(&held, std::slice::from_ref(&huge)),
        [huge],
        "it is not compared part by part"
    );
}

#[test]
fn a_refused_grant_lists_what_is_lacking() {
    let wanted = [
        rule(json!({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "delete"]})),
        rule(json!({"nonResourceURLs": ["/x"], "verbs": ["get"]})),
    ];
    let groups = ["system:serviceaccounts".to_owned(), "system:authenticated".to_owned()];
    let who = Subject { name: "system:serviceaccount:a:robot", groups: &groups };
    assert_eq!(
        escalation::message(who, &escalation::missing(&[], &wanted)),
        "user \"system:serviceaccount:a:robot\" (groups=[\"system:serviceaccounts\" \"system:authenticated\"]) is \
         attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"apps\"], Resources:[\"deployments\"], Verbs:[\"get\" \"delete\"]}\n\
         {NonResourceURLs:[\"/x\"], Verbs:[\"get\"]}"
    );
}
