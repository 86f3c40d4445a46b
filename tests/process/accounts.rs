//! Service accounts, their tokens and roles; leases and events of programs in pods.

mod rights;

use std::fs;
use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::{Value, json};

use super::api_writes::{JSON, MERGE, PODS, STRATEGIC, Served, pod};
use super::node::IMAGE;
use crate::support::agent::PATIENCE;
use crate::support::kubectl::Kubectl;
use crate::support::wait::wait_for;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
const GROUP: &str = "rbac.authorization.k8s.io";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const EVENTS: &str = "/api/v1/namespaces/default/events";

fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
}

fn role(name: &str, rules: &Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Role", "metadata": {"name": name}, "rules": rules})
}

fn binding(name: &str, role: (&str, &str), account: &str) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": role.0, "name": role.1},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}]})
}

impl Served {
    /// A request with a token instead of a certificate.
    fn with_token(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.with_token_of_type(token, method, path, JSON, body)
    }

    fn with_token_of_type(
        &self,
        token: &str,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> (u16, Value) {
        let header = format!("Authorization: Bearer {token}");
        let kind = format!("Content-Type: {kind}");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let more = ["-X", method, "-H", &header, "-H", &kind, "--data-binary", &body];
        let (code, text) = self.api.curl(None, path, &more);
        (code, serde_json::from_str(&text).unwrap_or_else(|_| json!(text)))
    }

    /// A token by `kubectl create token`'s request.
    fn token(&self, account: &str, spec: &Value) -> String {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let made = self.create(&format!("{ACCOUNTS}/{account}/token"), &request);
        made["status"]["token"].as_str().expect("a token").to_owned()
    }

    /// Where the agent has put the credentials of a pod.
    fn credentials(&self, pod: &Value) -> PathBuf {
        let uid = pod["metadata"]["uid"].as_str().expect("a uid");
        let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
        let name = volumes
            .iter()
            .find_map(|volume| volume["name"].as_str().filter(|name| name.starts_with("kube-api-access-")));
        let root = self.node.agent.root_dir();
        root.join("pods").join(uid).join("volumes/kubernetes.io~projected").join(name.expect("a volume"))
    }

    fn who_am_i(&self, token: &str) -> (u16, Value) {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        self.with_token(token, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", &review)
    }
}

#[test]
fn a_pods_token_lets_it_do_what_its_roles_allow() {
    let mut served = Served::new();
    let unknown = served.refused(403, "POST", PODS, JSON, &{
        let mut pod = pod("stray");
        pod["spec"]["serviceAccountName"] = json!("robot");
        pod
    });
    let said = "pods \"stray\" is forbidden: error looking up service account default/robot: serviceaccount \"robot\" not found";
    assert_eq!(unknown, said);
    served.create(ACCOUNTS, &account("robot"));
    let reads = json!([{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}]);
    served.create(&format!("{RBAC}/roles"), &role("reader", &reads));
    served.create(&format!("{RBAC}/rolebindings"), &binding("reader", ("Role", "reader"), "robot"));
    let mut wanted = pod("client");
    wanted["spec"]["serviceAccountName"] = json!("robot");
    let made = served.create(PODS, &wanted);
    assert_eq!(
        (&made["spec"]["serviceAccount"], &made["spec"]["serviceAccountName"]),
        (&json!("robot"), &json!("robot"))
    );
    let mount = &made["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    served.wait_for_phase("client", "Running");

    let directory = served.credentials(&made);
    let read = |file: &str| fs::read_to_string(directory.join(file)).expect(file);
    assert_eq!(read("namespace"), "default");
    assert_eq!(read("ca.crt"), fs::read_to_string(served.api.authority()).expect("read"));
    let token = read("token");
    let (code, me) = served.who_am_i(&token);
    let user = &me["status"]["userInfo"];
    assert_eq!((code, &user["username"]), (201, &json!("system:serviceaccount:default:robot")), "{me}");
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    assert_eq!(user["groups"], json!(groups));
    assert_eq!(user["extra"]["authentication.kubernetes.io/pod-name"], json!(["client"]));

    for (method, path, code) in [
        ("GET", PODS, 200),
        ("GET", "/api/v1/namespaces/default/pods/client", 200),
        ("GET", "/api/v1/pods", 403),
        ("GET", "/api/v1/namespaces/kube-system/pods", 403),
        ("GET", "/api/v1/namespaces/default/secrets", 403),
        ("DELETE", "/api/v1/namespaces/default/pods/client", 403),
        ("GET", "/api/v1/namespaces/default/pods/client/exec?command=id", 403),
        ("GET", "/apis", 200),
        ("GET", "/configz", 403),
        ("GET", "/metrics", 403),
        ("GET", "/api/v1/nodes/edge/proxy/metrics", 403),
    ] {
        assert_eq!(served.with_token(&token, method, path, &Value::Null).0, code, "{method} {path}");
    }
    let (_, denied) = served.with_token(&token, "GET", "/api/v1/namespaces/default/secrets", &Value::Null);
    assert_eq!(
        denied["message"],
        "secrets is forbidden: User \"system:serviceaccount:default:robot\" cannot list resource \"secrets\" in API group \"\" in the namespace \"default\""
    );
    // The kubelet's own paths are the node's subresources.
    let metrics = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": "scraper"},
        "rules": [{"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}]});
    served.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &metrics);
    let mut bound = binding("scraper", ("ClusterRole", "scraper"), "robot");
    bound["kind"] = json!("ClusterRoleBinding");
    served.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &bound);
    assert_eq!(served.with_token(&token, "GET", "/metrics", &Value::Null).0, 200);
    assert_eq!(served.with_token(&token, "GET", "/stats/summary", &Value::Null).0, 403);

    // Another agent, the same key: what the pod has is still good, and it gets a token of this one.
    served.restart(true);
    assert_eq!(served.who_am_i(&token).0, 201);
    wait_for("another token", PATIENCE, || {
        let now = fs::read_to_string(directory.join("token")).unwrap_or_default();
        if now == token { Err(served.node.agent.log_tail()) } else { Ok(()) }
    });
    let token = fs::read_to_string(directory.join("token")).expect("read");
    assert_eq!(served.who_am_i(&token).0, 201);
    // Without the pod its token is nothing.
    assert_eq!(
        served.ask("DELETE", &format!("{PODS}/client?gracePeriodSeconds=0"), JSON, &Value::Null).0,
        200
    );
    served.wait_gone(&format!("{PODS}/client"));
    assert_eq!(served.who_am_i(&token).0, 401);
    assert!(!directory.exists());
}

#[test]
fn credentials_are_mounted_only_where_they_are_wanted() {
    let served = Served::new();
    let key = served.api.authority().with_file_name("agent-sa.key");
    let mut plain = pod("plain");
    plain["spec"]["automountServiceAccountToken"] = json!(false);
    let made = served.create(PODS, &plain);
    assert!(made["spec"].get("volumes").is_none(), "{made}");
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    served.wait_for_phase("plain", "Running");
    let (_, neighbour) = served.get(&format!("{PODS}/neighbour-edge"));
    assert!(neighbour["spec"].get("volumes").is_none(), "a static pod has none: {neighbour}");
    assert!(!key.exists(), "no token was needed");
    let mut quiet = account("quiet");
    quiet["automountServiceAccountToken"] = json!(false);
    quiet["imagePullSecrets"] = json!([{"name": "pull"}]);
    served.create(ACCOUNTS, &quiet);
    let mut of_quiet = pod("of-quiet");
    of_quiet["spec"]["serviceAccountName"] = json!("quiet");
    let made = served.create(PODS, &of_quiet);
    assert!(made["spec"].get("volumes").is_none(), "{made}");
    assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
}

#[test]
fn tokens_are_made_on_request_and_reviewed() {
    let served = Served::new();
    served.create(ACCOUNTS, &account("robot"));
    let request = |spec: &Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let path = format!("{ACCOUNTS}/robot/token");
    for (spec, code, said) in [
        (json!({"expirationSeconds": 599}), 422, "may not specify a duration less than 10 minutes"),
        (
            json!({"expirationSeconds": 5_000_000_000_i64}),
            422,
            "may not specify a duration larger than 2^32 seconds",
        ),
        (
            json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "none"}}),
            404,
            "pods \"none\" not found",
        ),
        (
            json!({"boundObjectRef": {"kind": "Deployment", "apiVersion": "apps/v1", "name": "x"}}),
            400,
            "cannot bind token to object of type apps/v1, Kind=Deployment",
        ),
    ] {
        let message = served.refused(code, "POST", &path, JSON, &request(&spec));
        assert!(message.contains(said), "{message}");
    }
    let missing = served.refused(404, "POST", &format!("{ACCOUNTS}/none/token"), JSON, &request(&json!({})));
    assert_eq!(missing, "serviceaccounts \"none\" not found");
    let of_default = served.token("default", &json!({}));
    assert_eq!(
        served.who_am_i(&of_default).1["status"]["userInfo"]["username"],
        "system:serviceaccount:default:default"
    );

    let vault = served.token("robot", &json!({"audiences": ["vault"], "expirationSeconds": 600}));
    assert_eq!(served.who_am_i(&vault).0, 401, "it is not for this API");
    let review = |token: &str, audiences: Value| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token, "audiences": audiences}});
        served.create("/apis/authentication.k8s.io/v1/tokenreviews", &body)["status"].clone()
    };
    let good = review(&vault, json!(["vault", "other"]));
    assert_eq!((&good["authenticated"], &good["audiences"]), (&json!(true), &json!(["vault"])));
    assert_eq!(good["user"]["username"], "system:serviceaccount:default:robot");
    let bad = review(&vault, json!(["other"]));
    assert!(
        bad.get("authenticated").is_none()
            && bad["error"].as_str().is_some_and(|why| why.starts_with("token audiences")),
        "{bad}"
    );
    assert_eq!(review("rubbish", Value::Null)["error"], "invalid bearer token");

    // The token of a Secret ends with it, all tokens of an account with the account.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "kept", "annotations": {"kubernetes.io/service-account.name": "robot"}}});
    let made = served.create("/api/v1/namespaces/default/secrets", &secret);
    let kept =
        edge_agent::codec::base64::decode(made["data"]["token"].as_str().expect("a token")).expect("base64");
    let kept = String::from_utf8(kept).expect("text");
    assert!(
        made["data"]["ca.crt"].is_string()
            && made["metadata"]["annotations"]["kubernetes.io/service-account.uid"].is_string()
    );
    assert_eq!(served.who_am_i(&kept).0, 201);
    let plain = served.token("robot", &json!({}));
    assert_eq!(served.who_am_i(&plain).0, 201);
    assert_eq!(served.ask("DELETE", &format!("{ACCOUNTS}/robot"), JSON, &Value::Null).0, 200);
    assert_eq!((served.who_am_i(&kept).0, served.who_am_i(&plain).0), (401, 401));
    assert_eq!(served.get("/api/v1/namespaces/default/secrets/kept").0, 404);
    served.create(ACCOUNTS, &account("robot"));
    assert_eq!(served.who_am_i(&plain).0, 401, "a later account of that name");
    let (code, keys) = served.get("/openid/v1/jwks");
    assert_eq!((code, &keys["keys"][0]["alg"]), (200, &json!("ES256")));
    let (_, issuer) = served.get("/.well-known/openid-configuration");
    assert_eq!(issuer["issuer"], "https://kubernetes.default.svc.cluster.local");
}

#[test]
fn an_account_gives_no_more_than_it_holds() {
    let served = Served::new();
    served.create(ACCOUNTS, &account("robot"));
    let rules = json!([
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": [GROUP], "resources": ["roles", "rolebindings"], "verbs": ["create", "update", "get", "patch"]},
    ]);
    served.create(&format!("{RBAC}/roles"), &role("deputy", &rules));
    served.create(&format!("{RBAC}/rolebindings"), &binding("deputy", ("Role", "deputy"), "robot"));
    let token = served.token("robot", &json!({}));
    let ask = |method: &str, path: &str, body: &Value| served.with_token(&token, method, path, body);
    let own =
        json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"], "verbs": ["get"]}]);
    let more = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    assert_eq!(ask("POST", &format!("{RBAC}/roles"), &role("own", &own)).0, 201);
    let (code, refused) = ask("POST", &format!("{RBAC}/roles"), &role("more", &more));
    assert_eq!(code, 403, "{refused}");
    assert_eq!(
        refused["message"],
        "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"system:serviceaccount:default:robot\" \
         (groups=[\"system:serviceaccounts\" \"system:serviceaccounts:default\" \"system:authenticated\"]) is \
         attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}"
    );
    assert_eq!(ask("PUT", &format!("{RBAC}/roles/own"), &role("own", &more)).0, 403);
    assert_eq!(
        ask(
            "POST",
            &format!("{RBAC}/rolebindings"),
            &binding("up", ("ClusterRole", "cluster-admin"), "robot")
        )
        .0,
        403
    );
    let (code, missing) =
        ask("POST", &format!("{RBAC}/rolebindings"), &binding("up", ("Role", "none"), "robot"));
    assert_eq!(
        (code, &missing["message"]),
        (404, &json!("roles.rbac.authorization.k8s.io \"none\" not found"))
    );
    assert_eq!(
        ask("POST", &format!("{RBAC}/rolebindings"), &binding("own", ("Role", "own"), "robot")).0,
        201
    );
    // `bind` lets it give one role that it does not hold.
    let bind = json!([{"apiGroups": [GROUP], "resources": ["clusterroles"], "resourceNames": ["view"], "verbs": ["bind"]}]);
    served.create(&format!("{RBAC}/roles"), &role("binder", &bind));
    served.create(&format!("{RBAC}/rolebindings"), &binding("binder", ("Role", "binder"), "robot"));
    assert_eq!(
        ask("POST", &format!("{RBAC}/rolebindings"), &binding("edits", ("ClusterRole", "edit"), "robot")).0,
        403
    );
    assert_eq!(
        ask("POST", &format!("{RBAC}/rolebindings"), &binding("views", ("ClusterRole", "view"), "robot")).0,
        201
    );
    assert_eq!(ask("GET", PODS, &Value::Null).0, 200, "it has it now");
    // The reference of a binding cannot be changed, by anyone.
    let path = format!("{RBAC}/rolebindings/views");
    let other = json!({"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "edit"}});
    assert!(served.refused(422, "PATCH", &path, MERGE, &other).contains("cannot change roleRef"));
}

#[test]
fn what_every_cluster_has_is_shown_and_not_stored() {
    let mut served = Served::new();
    let stored = |served: &Served| -> i64 {
        let store = Connection::open(served.node.agent.root_dir().join("agent.db")).expect("open the store");
        store.query_row("SELECT count(*) FROM object", [], |row| row.get(0)).expect("count")
    };
    let (_, accounts) = served.get("/api/v1/serviceaccounts");
    let names: Vec<_> = accounts["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["namespace"].clone())
        .collect();
    assert_eq!(names, ["default", "kube-node-lease", "kube-system"]);
    let (_, ca) = served.get("/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt");
    assert_eq!(ca["data"]["ca.crt"], fs::read_to_string(served.api.authority()).unwrap());
    let (_, view) = served.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view");
    assert!(view["rules"].as_array().is_some_and(|rules| rules.len() > 3), "{view}");
    assert_eq!(served.get("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cluster-admin").0, 200);
    assert_eq!(stored(&served), 0);

    // A chart's role becomes a part of `view`.
    let part = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole",
        "metadata": {"name": "part", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["edge.example"], "resources": ["gauges"], "verbs": ["get"]}]});
    served.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &part);
    let (_, view) = served.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/view");
    assert!(view["rules"].to_string().contains("edge.example"), "{view}");

    // The first change stores it; a deletion makes another one.
    let path = format!("{ACCOUNTS}/default");
    let (_, before) = served.get(&path);
    let pull = json!({"imagePullSecrets": [{"name": "pull"}]});
    let (code, changed) = served.ask("PATCH", &path, STRATEGIC, &pull);
    assert_eq!((code, &changed["metadata"]["uid"]), (200, &before["metadata"]["uid"]), "{changed}");
    let made = served.create(PODS, &pod("pulls"));
    assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    served.restart(true);
    assert_eq!(served.get(&path).1["imagePullSecrets"], json!([{"name": "pull"}]));
    let token = served.token("default", &json!({}));
    for path in [path.as_str(), "/api/v1/namespaces/default/configmaps/kube-root-ca.crt"] {
        let (_, before) = served.get(path);
        assert_eq!(served.ask("DELETE", path, JSON, &Value::Null).0, 200, "{path}");
        let (code, after) = served.get(path);
        assert_eq!(code, 200, "{path}");
        assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"], "{path}");
        assert!(after.get("imagePullSecrets").is_none());
    }
    let (_, ca) = served.get("/api/v1/namespaces/default/configmaps/kube-root-ca.crt");
    assert!(ca["data"]["ca.crt"].as_str().is_some_and(|pem| pem.starts_with("-----BEGIN")), "{ca}");
    assert_eq!(served.who_am_i(&token).0, 401, "of the account before");
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/view";
    assert!(served.refused(403, "DELETE", role, JSON, &Value::Null).contains("cannot be deleted"));
}

#[test]
fn a_watch_reports_new_accounts_and_not_that_default_is_gone() {
    let served = Served::new();
    let (_, list) = served.get(ACCOUNTS);
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
    let path = format!("{ACCOUNTS}?watch=1&timeoutSeconds=2&resourceVersion={version}");
    let (events, made) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| served.api.curl(Some(&served.admin), &path, &[]).1);
        let mut made = 0;
        while !watch.is_finished() {
            served.create(ACCOUNTS, &account(&format!("robot-{made}")));
            made += 1;
        }
        (watch.join().expect("a watch"), made)
    });
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(made > 1 && events.len() > 1, "{made}: {events:?}");
    for event in events {
        let name = event["object"]["metadata"]["name"].as_str().expect("a name");
        assert!(event["type"] == "ADDED" && name.starts_with("robot-"), "{event}");
    }
}

#[test]
fn leases_are_renewed_in_memory_and_taken_over_on_the_disk() {
    let mut served = Served::new();
    let lease = |holder: &str, renewed: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "leader"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}})
    };
    served.create(LEASES, &lease("a", "2026-11-26T12:00:00.000000Z"));
    let path = format!("{LEASES}/leader");
    let stored = |served: &Served| -> String {
        let store = Connection::open(served.node.agent.root_dir().join("agent.db")).expect("open the store");
        let lease = "SELECT json FROM object WHERE kind = 'Lease'";
        store.query_row(lease, [], |row| row.get(0)).expect("a lease")
    };
    let mut version = String::new();
    for second in 2..12 {
        let (code, renewed) =
            served.ask("PUT", &path, JSON, &lease("a", &format!("2026-11-26T12:00:{second:02}.000000Z")));
        assert_eq!(code, 200, "{renewed}");
        let newer = renewed["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        assert!(newer > version);
        version = newer;
    }
    let kept = stored(&served);
    assert!(kept.contains("2026-11-26T12:00:00.000000Z"), "renewals are not written: {kept}");
    assert_eq!(served.get(&path).1["spec"]["renewTime"], "2026-11-26T12:00:11.000000Z");
    served.restart(true);
    let (_, found) = served.get(&path);
    assert_eq!(
        (&found["spec"]["holderIdentity"], &found["spec"]["renewTime"]),
        (&json!("a"), &json!("2026-11-26T12:00:00.000000Z"))
    );
    assert_eq!(served.ask("PUT", &path, JSON, &lease("b", "2026-11-26T12:01:00.000000Z")).0, 200);
    assert!(stored(&served).contains("2026-11-26T12:01:00.000000Z"), "another holder is");
    served.restart(true);
    assert_eq!(served.get(&path).1["spec"]["holderIdentity"], "b");
    // A writer that has not seen the newest version has to look again.
    let mut stale = lease("c", "2026-11-26T12:02:00.000000Z");
    stale["metadata"]["resourceVersion"] = json!("1");
    served.refused(409, "PUT", &path, JSON, &stale);
    let own = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge";
    assert_eq!(served.get(own).1["spec"]["holderIdentity"], "edge");
    assert!(served.refused(403, "DELETE", own, JSON, &Value::Null).contains("this node's own"));
}

#[test]
fn events_of_clients_are_shown_and_counted() {
    let served = Served::new();
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1"},
        "involvedObject": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "default"},
        "reason": "Synced", "message": "all is well", "type": "Normal", "count": 1,
        "source": {"component": "robot"}, "firstTimestamp": "2026-11-26T12:00:00Z", "lastTimestamp": "2026-11-26T12:00:00Z"});
    let made = served.create(EVENTS, &event);
    assert!(made["metadata"]["uid"].is_string() && made["metadata"]["resourceVersion"].is_string(), "{made}");
    assert_eq!(served.ask("POST", EVENTS, JSON, &event).0, 409);
    let path = format!("{EVENTS}/web.1");
    let again = json!({"count": 2, "lastTimestamp": "2026-11-26T12:01:00Z"});
    let (code, counted) = served.ask("PATCH", &path, STRATEGIC, &again);
    assert_eq!((code, &counted["count"], &counted["message"]), (200, &json!(2), &json!("all is well")));
    let new = "/apis/events.k8s.io/v1/namespaces/default/events";
    let (_, shown) = served.get(&format!("{new}/web.1"));
    assert_eq!(
        (&shown["note"], &shown["regarding"]["kind"], &shown["deprecatedCount"]),
        (&json!("all is well"), &json!("Deployment"), &json!(2))
    );
    let reported = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"generateName": "web."},
        "eventTime": "2026-11-26T12:00:00.000000Z", "reportingController": "example.com/robot", "reportingInstance": "robot-1",
        "action": "Scaling", "reason": "Scaled", "note": "to three", "type": "Normal",
        "regarding": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "default"}});
    let made = served.create(new, &reported);
    assert_eq!(
        (&made["apiVersion"], &made["action"], &made["note"]),
        (&json!("events.k8s.io/v1"), &json!("Scaling"), &json!("to three"))
    );
    let (_, list) = served.get(&format!("{EVENTS}?fieldSelector=involvedObject.name%3Dweb"));
    let reasons: Vec<_> =
        list["items"].as_array().unwrap().iter().map(|item| item["reason"].clone()).collect();
    assert_eq!(reasons, ["Synced", "Scaled"]);
    assert_eq!(served.ask("DELETE", &path, JSON, &Value::Null).0, 200);
    assert_eq!(served.get(&path).0, 404);
    assert_eq!(served.ask("PATCH", &path, STRATEGIC, &again).0, 404, "the client reports it again");
    // The agent's own stay as they are.
    let (_, list) = served.get(&format!("{EVENTS}?fieldSelector=involvedObject.kind%3DPod"));
    let own = list["items"][0]["metadata"]["name"].as_str().expect("an event").to_owned();
    served.refused(403, "PATCH", &format!("{EVENTS}/{own}"), MERGE, &json!({"message": "x"}));
    let huge = json!({"metadata": {"name": "huge"}, "involvedObject": {"namespace": "default"}, "message": "x".repeat(10_000)});
    served.refused(413, "POST", EVENTS, JSON, &huge);
}

#[test]
fn kubectl_asks_and_acts_for_accounts() {
    let served = Served::new();
    for admin in
        Kubectl::of(&served.api, &served.node.agent, served.node.scratch.path(), "admin", &[]).with_each()
    {
        let _ = admin.run(&["delete", "sa,rolebinding", "robot"]);
        admin.out(&["create", "serviceaccount", "robot"]);
        let robot = "--as=system:serviceaccount:default:robot";
        let can = |arguments: &[&str]| {
            let mut all = vec!["auth", "can-i"];
            all.extend(arguments);
            let said = admin.run(&all);
            (said.ok, said.out.trim().to_owned())
        };
        assert_eq!(can(&["list", "pods", robot]), (false, "no".to_owned()));
        assert_eq!(can(&["create", "selfsubjectaccessreviews.authorization.k8s.io", robot]).1, "yes");
        admin.out(&[
            "create",
            "rolebinding",
            "robot",
            "--clusterrole=view",
            "--serviceaccount=default:robot",
        ]);
        assert_eq!(can(&["list", "pods", robot]), (true, "yes".to_owned()));
        assert_eq!(can(&["get", "pods", "--subresource=log", robot]).1, "yes");
        assert_eq!(can(&["list", "secrets", robot]).1, "no");
        assert_eq!(can(&["list", "pods", "-n", "kube-system", robot]).1, "no");
        assert_eq!(can(&["*", "*"]).1, "yes");
        let listed = admin.out(&["auth", "can-i", "--list", robot]);
        assert!(listed.contains("pods/log") && listed.contains("selfsubjectaccessreviews"), "{listed}");
        assert!(admin.out(&["get", "pods", robot]).contains("neighbour-edge"));
        let denied = admin.run(&["get", "secrets", robot]);
        assert!(!denied.ok && denied.err.contains("cannot list resource \"secrets\""), "{denied:?}");
        let shown = admin.out(&["get", "sa"]);
        assert!(shown.contains("default") && shown.contains("robot"), "{shown}");
        let described = admin.out(&["describe", "clusterrole", "view"]);
        assert!(described.contains("pods/log"), "{described}");
    }
    // A viewer may not act as others.
    let viewer =
        Kubectl::of(&served.api, &served.node.agent, served.node.scratch.path(), "jane", &["--view"]);
    // kubectl learns the kinds as itself, and keeps them.
    viewer.out(&["get", "pods"]);
    let said = viewer.run(&["get", "pods", "--as=admin"]);
    assert!(!said.ok && said.err.contains("cannot impersonate resource \"users\""), "{said:?}");
}

#[test]
fn odd_tokens_and_objects_open_nothing() {
    let served = Served::new();
    served.create(ACCOUNTS, &account("robot"));
    let token = served.token("robot", &json!({}));
    let parts: Vec<&str> = token.split('.').collect();
    let encoded =
        |text: &str| edge_agent::codec::base64::encode(text.as_bytes()).trim_end_matches('=').to_owned();
    let none = encoded("{\"alg\":\"none\"}");
    for odd in [
        format!("{none}.{}.", parts[1]),
        format!("{none}.{}.{}", parts[1], parts[2]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{}.{}.{}", parts[0], parts[1], "A".repeat(86)),
        "x".repeat(20_000),
        "..".to_owned(),
    ] {
        assert_eq!(served.who_am_i(&odd).0, 401, "{odd:.40}");
    }
    for (kind, body, said) in [
        ("roles", role("bad", &json!([{"verbs": ["get"]}])), "rules[0].apiGroups: Required value"),
        (
            "rolebindings",
            binding("bad", ("Robot", "x"), "robot"),
            "roleRef.kind: Unsupported value: \"Robot\"",
        ),
    ] {
        let message = served.refused(422, "POST", &format!("{RBAC}/{kind}"), JSON, &body);
        assert!(message.contains(said), "{message}");
    }
    // A projection for others is granted as it is asked for; one of a time that is too short is not.
    let mut projects = pod("projects");
    let volume = |seconds: i64| json!([{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": seconds}}]}}]);
    projects["spec"]["containers"] =
        json!([{"name": "main", "image": IMAGE, "volumeMounts": [{"name": "t", "mountPath": "/t"}]}]);
    projects["spec"]["volumes"] = volume(10);
    let message = served.refused(422, "POST", PODS, JSON, &projects);
    assert!(message.contains("may not specify a duration less than 10 minutes"), "{message}");
    projects["spec"]["volumes"] = volume(600);
    served.create(PODS, &projects);
    served.wait_for_phase("projects", "Running");
}
