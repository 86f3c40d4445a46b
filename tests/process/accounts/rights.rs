//! What an account may not give itself, and what ends its tokens.

use serde_json::{Value, json};

use super::{ACCOUNTS, GROUP, RBAC, account, binding, role};
use crate::process::api_writes::{APPLY, JSON, MERGE, Served};

#[test]
fn a_label_that_gives_rights_needs_them() {
    let served = Served::new();
    let cluster_roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    served.create(ACCOUNTS, &account("robot"));
    let rules = json!([
        {"apiGroups": [GROUP], "resources": ["clusterroles"], "verbs": ["create", "get", "patch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
    ]);
    let mut deputy = role("deputy", &rules);
    deputy["kind"] = json!("ClusterRole");
    served.create(cluster_roles, &deputy);
    let mut bound = binding("deputy", ("ClusterRole", "deputy"), "robot");
    bound["kind"] = json!("ClusterRoleBinding");
    served.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &bound);
    let token = served.token("robot", &json!({}));
    let patch = |name: &str, change: &Value| {
        served.with_token_of_type(&token, "PATCH", &format!("{cluster_roles}/{name}"), MERGE, change)
    };
    let part = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}});
    let (code, refused) = patch("cluster-admin", &part);
    assert_eq!(code, 403, "{refused}");
    let said = "is attempting to grant RBAC permissions not currently held";
    assert!(refused["message"].as_str().is_some_and(|message| message.contains(said)), "{refused}");
    let (_, view) = served.get(&format!("{cluster_roles}/view"));
    assert!(!view["rules"].to_string().contains("\"*\""), "{view}");
    let (code, refused) = patch("view", &json!({"aggregationRule": null}));
    assert_eq!(code, 403, "{refused}");
    assert_eq!(patch("deputy", &part).0, 200, "it holds that role");
}

#[test]
fn applying_a_new_object_needs_create() {
    let served = Served::new();
    served.create(ACCOUNTS, &account("robot"));
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}]);
    served.create(&format!("{RBAC}/roles"), &role("patcher", &rules));
    served.create(&format!("{RBAC}/rolebindings"), &binding("patcher", ("Role", "patcher"), "robot"));
    let token = served.token("robot", &json!({}));
    let apply = |name: &str| {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}});
        let path = format!("/api/v1/namespaces/default/configmaps/{name}?fieldManager=me");
        served.with_token_of_type(&token, "PATCH", &path, APPLY, &map)
    };
    let (code, refused) = apply("new");
    let said = "configmaps \"new\" is forbidden: User \"system:serviceaccount:default:robot\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"default\"";
    assert_eq!((code, &refused["message"]), (403, &json!(said)));
    let known = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "known"}});
    served.create("/api/v1/namespaces/default/configmaps", &known);
    assert_eq!(apply("known").0, 200);
    let creates = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]);
    served.create(&format!("{RBAC}/roles"), &role("creator", &creates));
    served.create(&format!("{RBAC}/rolebindings"), &binding("creator", ("Role", "creator"), "robot"));
    assert_eq!(apply("new").0, 201);
}

#[test]
fn every_deletion_of_default_ends_its_tokens() {
    let served = Served::new();
    let path = format!("{ACCOUNTS}/default");
    let secrets = "/api/v1/namespaces/default/secrets";
    // A label of the namespace stores it, and the account stays what it is.
    let token = served.token("default", &json!({}));
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(served.ask("PATCH", "/api/v1/namespaces/default", MERGE, &label).0, 200);
    assert_eq!(served.who_am_i(&token).0, 201);
    // Not stored before the first round, and stored in the others.
    for (round, target) in [(1, path.as_str()), (2, path.as_str()), (3, ACCOUNTS)] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": "kept", "annotations": {"kubernetes.io/service-account.name": "default"}}});
        served.create(secrets, &secret);
        let token = served.token("default", &json!({}));
        let (_, before) = served.get(&path);
        let (code, deleted) = served.ask("DELETE", target, JSON, &Value::Null);
        assert_eq!(code, 200, "{round}: {deleted}");
        let (code, after) = served.get(&path);
        assert_eq!(code, 200, "{round}: {after}");
        assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"], "{round}");
        assert_eq!(served.get(&format!("{secrets}/kept")).0, 404, "{round}");
        assert_eq!(served.who_am_i(&token).0, 401, "{round}");
    }
    // One that was never stored.
    let elsewhere = "/api/v1/namespaces/kube-system/serviceaccounts";
    let uid = || served.get(&format!("{elsewhere}/default")).1["metadata"]["uid"].clone();
    let before = uid();
    assert_eq!(served.ask("DELETE", elsewhere, JSON, &Value::Null).0, 200);
    assert_ne!(uid(), before);
}
