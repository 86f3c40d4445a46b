use super::*;
use crate::model::types::Timestamp;

const NODE: &str = "system:node:n1";

fn server() -> FakeApiserver {
    FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1)
}

async fn ask(
    server: &FakeApiserver,
    method: Method,
    path: &str,
    content: Content,
    body: &Value,
) -> (u16, Value) {
    use crate::cluster::client::transport::Chunks;
    let body = (!body.is_null()).then(|| (content, body.to_string().into_bytes()));
    let request = ApiRequest { method, path: path.to_owned(), accept: Accept::Json, body, limit: None };
    let mut answer = server.answer(NODE, &request);
    let text = answer.body.next().await.and_then(Result::ok).unwrap_or_default();
    (answer.status, serde_json::from_slice(&text).unwrap_or_default())
}

async fn code(server: &FakeApiserver, method: Method, path: &str, body: &Value) -> u16 {
    ask(server, method, path, Content::StrategicMerge, body).await.0
}

fn pod(name: &str) -> Value {
    json!({"kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c"}], "terminationGracePeriodSeconds": 5}})
}

#[tokio::test]
async fn a_node_sees_its_own_pods_and_what_they_name() {
    let server = server();
    let mut mine = pod("mine");
    mine["spec"]["serviceAccountName"] = "sa".into();
    mine["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
    mine["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "w", "projected": {"sources": [{"configMap": {"name": "cm"}}]}}]);
    server.bind(mine, "n1");
    server.bind(pod("other"), "n2");
    for (kind, name) in
        [("Secret", "pull"), ("ConfigMap", "cm"), ("ConfigMap", "x"), ("Node", "n1"), ("Node", "n2")]
    {
        server.put(json!({"kind": kind, "metadata": {"name": name}}));
    }
    let namespace = "/api/v1/namespaces/default";
    for (path, expected) in [
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", 200),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2", 403),
        ("/api/v1/pods", 403),
        (format!("{namespace}/pods/mine").as_str(), 200),
        (format!("{namespace}/pods/other").as_str(), 403),
        (format!("{namespace}/secrets/pull").as_str(), 200),
        (format!("{namespace}/secrets").as_str(), 403),
        (format!("{namespace}/configmaps/cm").as_str(), 200),
        (format!("{namespace}/configmaps?fieldSelector=metadata.name%3Dcm").as_str(), 200),
        (format!("{namespace}/configmaps/x").as_str(), 403),
        (format!("{namespace}/persistentvolumeclaims/data").as_str(), 404),
        ("/api/v1/nodes/n1", 200),
        ("/api/v1/nodes/n2", 403),
        ("/api/v1/nodes", 403),
        ("/api/v1/services", 200),
        ("/api/v1/namespaces/default", 403),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", 404),
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases/n1", 403),
        ("/apis/example.com/v1/things", 404),
    ] {
        assert_eq!(code(&server, Method::Get, path, &Value::Null).await, expected, "{path}");
    }
}

#[tokio::test]
async fn a_deletion_waits_for_the_node() {
    let server = server();
    server.bind(pod("p"), "n1");
    let path = "/api/v1/namespaces/default/pods/p";
    server.remove(path, Removal::Graceful(9));
    let shown = server.object(path).unwrap();
    assert_eq!(shown["metadata"]["deletionGracePeriodSeconds"], 9);
    assert_eq!(shown["metadata"]["deletionTimestamp"], "2027-01-15T08:00:09Z");
    server.remove(path, Removal::Graceful(20));
    assert_eq!(server.object(path).unwrap(), shown, "a longer grace is not taken");
    let end = |uid: &Value| json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    assert_eq!(code(&server, Method::Delete, path, &end(&"other".into())).await, 409);
    assert_eq!(code(&server, Method::Delete, path, &end(&shown["metadata"]["uid"])).await, 200);
    assert_eq!(server.object(path), None);
    assert_eq!(server.writes().len(), 2);
    // A finalizer keeps the object.
    let mut held = pod("q");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.bind(held, "n1");
    let path = "/api/v1/namespaces/default/pods/q";
    server.remove(path, Removal::Force);
    assert_eq!(server.object(path).unwrap()["metadata"]["deletionGracePeriodSeconds"], 0);
    server.remove(path, Removal::Finalized);
    assert_eq!(server.object(path), None);
}

#[tokio::test]
async fn statuses_are_merged_and_checked() {
    let server = server();
    server.bind(pod("p"), "n1");
    server.bind(pod("other"), "n2");
    let path = "/api/v1/namespaces/default/pods/p/status";
    let uid = server.object("/api/v1/namespaces/default/pods/p").unwrap()["metadata"]["uid"].clone();
    let send = async |status: Value| {
        let body = json!({"metadata": {"uid": uid}, "status": status});
        ask(&server, Method::Patch, path, Content::StrategicMerge, &body).await
    };
    let running = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": [{"name": "c", "state": {"running": {}}}]});
    assert_eq!(send(running).await.0, 200);
    let more = json!({"conditions": [{"type": "Ready", "status": "False"}, {"type": "Mine", "status": "True"}],
        "podIPs": [{"$patch": "delete", "ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]});
    let (_, object) = send(more).await;
    let conditions = json!([{"type": "Ready", "status": "False"}, {"type": "Mine", "status": "True"}]);
    assert_eq!(object["status"]["conditions"], conditions);
    assert_eq!(object["status"]["podIPs"], json!([{"ip": "10.0.0.2"}]));
    assert_eq!(
        (&object["status"]["phase"], &object["status"]["qosClass"]),
        (&"Running".into(), &"BestEffort".into())
    );
    let version = object["metadata"]["resourceVersion"].clone();
    assert_eq!(
        send(json!({"phase": "Running"})).await.1["metadata"]["resourceVersion"],
        version,
        "nothing changed"
    );
    assert_eq!(send(json!({"qosClass": "Burstable"})).await.0, 422);
    let ended = json!([{"name": "c", "state": {"terminated": {"exitCode": 0}}}]);
    assert_eq!(send(json!({"containerStatuses": ended})).await.0, 200);
    assert_eq!(send(json!({"containerStatuses": [{"name": "c", "state": {"running": {}}}]})).await.0, 422);
    let body = json!({"metadata": {"uid": "older"}, "status": {}});
    assert_eq!(code(&server, Method::Patch, path, &body).await, 409);
    let other = "/api/v1/namespaces/default/pods/other/status";
    assert_eq!(code(&server, Method::Patch, other, &json!({"status": {}})).await, 403);
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(code(&server, Method::Patch, path, &labels).await, 403);
}

#[tokio::test]
async fn a_node_may_not_steer_pods_to_itself() {
    let server = server();
    let node = |labels: Value| json!({"kind": "Node", "metadata": {"name": "n1", "labels": labels}});
    let foreign = json!({"node-role.kubernetes.io/control-plane": ""});
    assert_eq!(code(&server, Method::Post, "/api/v1/nodes", &node(foreign)).await, 403);
    let mut own = node(json!({"kubernetes.io/arch": "arm64", "site": "a", "node.kubernetes.io/x": "1"}));
    own["spec"]["taints"] = json!([{"key": "a", "effect": "NoSchedule"}]);
    let (status, made) = ask(&server, Method::Post, "/api/v1/nodes", Content::Json, &own).await;
    assert_eq!(status, 201);
    assert_eq!(code(&server, Method::Post, "/api/v1/nodes", &own).await, 409);
    let path = "/api/v1/nodes/n1/status";
    let restricted = json!({"metadata": {"labels": {"x.node-restriction.kubernetes.io/y": "1"}}});
    assert_eq!(code(&server, Method::Patch, path, &restricted).await, 403);
    assert_eq!(code(&server, Method::Patch, "/api/v1/nodes/n1", &json!({"spec": {"taints": []}})).await, 403);
    assert_eq!(
        code(&server, Method::Patch, "/api/v1/nodes/n1", &json!({"spec": {"unschedulable": true}})).await,
        200
    );
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "1.1.1.1"}]}});
    assert_eq!(code(&server, Method::Patch, path, &addresses).await, 200);
    let replaced =
        json!({"status": {"addresses": [{"type": "Hostname", "address": "n1"}, {"$patch": "replace"}]}});
    assert_eq!(code(&server, Method::Patch, path, &replaced).await, 200);
    let status = server.object("/api/v1/nodes/n1").unwrap()["status"].clone();
    assert_eq!(status["addresses"], json!([{"type": "Hostname", "address": "n1"}]));
    assert_eq!(code(&server, Method::Delete, "/api/v1/nodes/n1", &Value::Null).await, 403);
    // Pods: mirrors only, and no objects in them.
    let pods = "/api/v1/namespaces/default/pods";
    let mut mirror = pod("m");
    mirror["spec"]["nodeName"] = "n1".into();
    assert_eq!(code(&server, Method::Post, pods, &mirror).await, 403);
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1",
        "controller": true, "uid": "another"}]);
    assert_eq!(code(&server, Method::Post, pods, &mirror).await, 403);
    mirror["metadata"]["ownerReferences"][0]["uid"] = made["metadata"]["uid"].clone();
    let mut with_secret = mirror.clone();
    with_secret["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]);
    assert_eq!(code(&server, Method::Post, pods, &with_secret).await, 403);
    assert_eq!(code(&server, Method::Post, pods, &mirror).await, 201);
}

#[test]
fn another_cluster_has_other_uids_and_a_backup_older_versions() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _inside = runtime.enter();
    let server = server();
    server.bind(pod("p"), "n1");
    let snapshot = server.snapshot();
    let path = "/api/v1/namespaces/default/pods/p";
    let first = server.object(path).unwrap();
    server.bind(pod("q"), "n1");
    server.restore(snapshot);
    assert_eq!(server.object(path), Some(first.clone()));
    assert_eq!(server.object("/api/v1/namespaces/default/pods/q"), None);
    server.replace();
    assert_eq!(server.object(path), None);
    server.bind(pod("p"), "n1");
    assert_ne!(server.object(path).unwrap()["metadata"]["uid"], first["metadata"]["uid"]);
}

#[tokio::test]
async fn tokens_are_bound_to_pods_of_the_node() {
    let server = server();
    server.put(json!({"kind": "ServiceAccount", "metadata": {"name": "sa"}}));
    for (name, node) in [("mine", "n1"), ("other", "n2")] {
        let mut pod = pod(name);
        pod["spec"]["serviceAccountName"] = "sa".into();
        server.bind(pod, node);
    }
    let path = "/api/v1/namespaces/default/serviceaccounts/sa/token";
    let uid = |name: &str| {
        let pod = server.object(&format!("/api/v1/namespaces/default/pods/{name}")).unwrap();
        pod["metadata"]["uid"].clone()
    };
    let request = |name: &str, uid: &Value| {
        json!({"spec": {"audiences": ["a"], "expirationSeconds": 700,
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}}})
    };
    let mine = request("mine", &uid("mine"));
    let (status, answer) = ask(&server, Method::Post, path, Content::Json, &mine).await;
    assert_eq!((status, &answer["status"]["expirationTimestamp"]), (201, &"2027-01-15T08:11:40Z".into()));
    for (request, expected) in [
        (request("mine", &"older".into()), 403),
        (request("other", &uid("other")), 403),
        (request("none", &"x".into()), 404),
        (json!({"spec": {}}), 403),
    ] {
        assert_eq!(code(&server, Method::Post, path, &request).await, expected, "{request}");
    }
}

#[tokio::test]
async fn reviews_come_from_a_table() {
    let server = server();
    server.reviews().tokens.insert("t".to_owned(), ("alice".to_owned(), vec!["dev".to_owned()]));
    server.reviews().allowed.insert(("alice".to_owned(), "get".to_owned(), "nodes/log".to_owned()));
    let review = async |token: &str| {
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let body = json!({"spec": {"token": token}});
        ask(&server, Method::Post, path, Content::Json, &body).await.1["status"].clone()
    };
    assert_eq!(review("t").await["user"]["username"], "alice");
    assert_eq!(review("x").await["authenticated"], false);
    for (part, allowed) in [("log", true), ("proxy", false)] {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let asked = json!({"verb": "get", "resource": "nodes", "subresource": part});
        let body = json!({"spec": {"user": "alice", "resourceAttributes": asked}});
        assert_eq!(
            ask(&server, Method::Post, path, Content::Json, &body).await.1["status"]["allowed"],
            allowed
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_silent_node_are_deleted() {
    let server = server();
    server.evict_after(Duration::from_secs(50));
    server.put(json!({"kind": "Node", "metadata": {"name": "n1"}}));
    server.bind(pod("p"), "n1");
    let lease = |time: &str| {
        json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"name": "n1", "namespace": "kube-node-lease"}, "spec": {"renewTime": time}})
    };
    server.put(lease("2027-01-15T08:00:00.000000Z"));
    let shown = async || {
        let (_, node) = ask(&server, Method::Get, "/api/v1/nodes/n1", Content::Json, &Value::Null).await;
        let pod = server.object("/api/v1/namespaces/default/pods/p").unwrap();
        let taints = node["spec"]["taints"].as_array().map_or(0, Vec::len);
        (taints, pod["metadata"]["deletionTimestamp"].is_string())
    };
    tokio::time::advance(Duration::from_secs(49)).await;
    assert_eq!(shown().await, (0, false));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(shown().await, (1, true));
    server.put(lease("2027-01-15T08:00:59.000000Z"));
    assert_eq!(shown().await, (0, true), "what was deleted stays deleted");
}

#[tokio::test]
async fn a_graph_that_lags_hides_objects() {
    let server = server();
    server.faults().graph_lag = Duration::from_secs(2);
    server.faults().unknown_fields = true;
    server.bind(pod("p"), "n1");
    let path = "/api/v1/namespaces/default/pods/p";
    assert_eq!(code(&server, Method::Get, path, &Value::Null).await, 403);
    server.faults().graph_lag = Duration::ZERO;
    let (status, shown) = ask(&server, Method::Get, path, Content::Json, &Value::Null).await;
    assert_eq!((status, shown["spec"]["fromTheFuture"].is_object()), (200, true));
    assert!(server.object(path).unwrap()["spec"].get("fromTheFuture").is_none());
}
