//! Pods and objects that come through the node's own API.

use serde_json::{Value, json};

use super::node::{IMAGE, Node};
use crate::support::agent::PATIENCE;
use crate::support::api::{Api, Person};
use crate::support::wait::{wait_for, wait_until};

/// A node with its API, and somebody who may do everything.
pub struct Served {
    pub node: Node,
    pub api: Api,
    pub admin: Person,
}

pub const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";

pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": IMAGE}]}})
}

pub fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

impl Served {
    pub fn new() -> Self {
        Self::of(Node::new())
    }

    /// The same on a node that a test has prepared.
    pub fn of(mut node: Node) -> Self {
        let api = Api::of(&mut node.agent, node.scratch.path());
        node.start_with_neighbour();
        api.wait(&mut node.agent);
        let admin = api.person(&node.agent, "admin", &[]);
        Self { node, api, admin }
    }

    pub fn ask(&self, method: &str, path: &str, kind: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let header = format!("Content-Type: {kind}");
        let (code, text) =
            self.api.curl(Some(&self.admin), path, &["-X", method, "-H", &header, "--data-binary", &body]);
        (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{method} {path}: {error}: {text}")))
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        let (code, text) = self.api.curl(Some(&self.admin), path, &[]);
        (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}")))
    }

    pub fn create(&self, path: &str, object: &Value) -> Value {
        let (code, made) = self.ask("POST", path, JSON, object);
        assert_eq!(code, 201, "{made}");
        made
    }

    /// Asks and expects a failure; its message.
    pub fn refused(&self, expected: u16, method: &str, path: &str, kind: &str, body: &Value) -> String {
        let (code, status) = self.ask(method, path, kind, body);
        assert_eq!(
            (code, &status["code"], &status["kind"]),
            (expected, &json!(expected), &json!("Status")),
            "{status}"
        );
        status["message"].as_str().unwrap_or_default().to_owned()
    }

    pub fn wait_for_phase(&self, name: &str, phase: &str) -> Value {
        wait_for(&format!("{name} to be {phase}"), PATIENCE, || {
            let (_, pod) = self.get(&format!("{PODS}/{name}"));
            if pod["status"]["phase"] == phase {
                Ok(pod)
            } else {
                Err(format!("{pod}\n{}", self.node.agent.log_tail()))
            }
        })
    }

    pub fn wait_gone(&self, path: &str) {
        wait_for(&format!("{path} to be gone"), PATIENCE, || match self.get(path) {
            (404, _) => Ok(()),
            (_, object) => Err(object.to_string()),
        });
    }

    pub fn restart(&mut self, hard: bool) {
        if hard {
            self.node.agent.kill9();
        } else {
            self.node.agent.terminate();
        }
        self.node.agent.start();
        self.api.wait(&mut self.node.agent);
    }

    /// Containers of a pod of the API, whose names have no suffix.
    fn running(&self, name: &str) -> usize {
        self.node.all_running().remove(name).unwrap_or_default().len()
    }
}

#[test]
fn an_object_made_again_has_another_uid_that_outlives_the_agent() {
    let mut served = Served::new();
    let uid = |object: &Value| object["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let objects = [
        (MAPS, config_map("again", &json!({"k": "v"}))),
        (SECRETS, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "again"}})),
        (
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "again"}}),
        ),
    ];
    let first = objects.clone().map(|(path, object)| uid(&served.create(path, &object)));
    served.node.agent.kill9();
    served.node.agent.start();
    served.api.wait(&mut served.node.agent);
    for ((path, mut object), first) in objects.into_iter().zip(first) {
        let named = format!("{path}/again");
        let (_, found) = served.get(&named);
        assert_eq!(uid(&found), first, "{path}: of the store");
        let (code, changed) =
            served.ask("PATCH", &named, MERGE, &json!({"metadata": {"labels": {"a": "b"}}}));
        assert_eq!((code, uid(&changed)), (200, first.clone()), "{path}: changed");
        assert_eq!(served.ask("DELETE", &named, JSON, &Value::Null).0, 200, "{path}");
        // What a client writes there does not count.
        object["metadata"]["uid"] = json!(first);
        let second = uid(&served.create(path, &object));
        assert_ne!(second, first, "{path}");
        let old = json!({"preconditions": {"uid": first}});
        let message = served.refused(409, "DELETE", &named, JSON, &old);
        assert!(message.contains(&second), "{path}: {message}");
    }
}

#[test]
fn a_pod_lives_from_its_creation_over_restarts_to_its_deletion() {
    let mut served = Served::new();
    let made = served.create(PODS, &pod("web"));
    let metadata = &made["metadata"];
    assert_eq!(
        (&metadata["name"], &metadata["namespace"], &metadata["generation"]),
        (&json!("web"), &json!("default"), &json!(1))
    );
    assert_eq!(metadata["annotations"]["kubernetes.io/config.source"], "api");
    assert!(metadata["resourceVersion"].is_string() && metadata["creationTimestamp"].is_string(), "{made}");
    assert_eq!(made["spec"]["nodeName"], "edge");
    let uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
    assert_eq!(uid.len(), 36, "{uid}");
    let running = served.wait_for_phase("web", "Running");
    assert_eq!(
        running["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|found| found["type"] == "PodScheduled")
            .map(|found| found["status"].clone()),
        Some(json!("True"))
    );

    let said = served.refused(409, "POST", PODS, JSON, &pod("web"));
    assert_eq!(said, "pods \"web\" already exists");
    let before = served.node.all_running();
    served.restart(false);
    let again = served.wait_for_phase("web", "Running");
    assert_eq!((again["metadata"]["uid"].as_str(), served.node.all_running()), (Some(uid.as_str()), before));

    let (code, gone) = served.ask("DELETE", &format!("{PODS}/web"), JSON, &Value::Null);
    assert_eq!((code, &gone["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(1)), "{gone}");
    assert!(gone["metadata"]["deletionTimestamp"].is_string(), "{gone}");
    served.wait_gone(&format!("{PODS}/web"));
    assert_eq!(served.running("web"), 0);
    served.restart(false);
    assert_eq!(served.get(&format!("{PODS}/web")).0, 404);
    assert_eq!(
        served.refused(404, "DELETE", &format!("{PODS}/web"), JSON, &Value::Null),
        "pods \"web\" not found"
    );
    // The name is free again, for another pod.
    let other = served.create(PODS, &pod("web"));
    assert_ne!(other["metadata"]["uid"], json!(uid));
}

/// What was answered with 201 runs, whatever happened right after.
#[test]
fn accepted_pods_and_deletions_survive_an_agent_kill() {
    let mut served = Served::new();
    served.create(PODS, &pod("web"));
    served.restart(true);
    served.wait_for_phase("web", "Running");
    let (code, _) = served.ask("DELETE", &format!("{PODS}/web"), JSON, &json!({"gracePeriodSeconds": 0}));
    assert_eq!(code, 200);
    served.restart(true);
    served.wait_gone(&format!("{PODS}/web"));
    wait_until("its containers to end", PATIENCE, || served.running("web") == 0);
}

#[test]
fn a_pod_changes_where_upstream_lets_it_and_nowhere_else() {
    let served = Served::new();
    let path = format!("{PODS}/web");
    served.create(PODS, &pod("web"));
    served.wait_for_phase("web", "Running");
    let label = json!({"metadata": {"labels": {"tier": "front"}}});
    let (code, labelled) = served.ask("PATCH", &path, MERGE, &label);
    assert_eq!((code, &labelled["metadata"]["labels"]), (200, &json!({"app": "web", "tier": "front"})));
    assert_eq!(served.get(&path).1["metadata"]["labels"]["tier"], "front");
    let (code, again) = served.ask("PATCH", &path, MERGE, &label);
    assert_eq!((code, &again["metadata"]["generation"]), (200, &json!(1)));

    let command = json!({"spec": {"containers": [{"name": "main", "command": ["other"]}]}});
    let said = served.refused(422, "PATCH", &path, STRATEGIC, &command);
    assert!(said.starts_with("Pod \"web\" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"), "{said}");
    let phase = json!({"status": {"phase": "Failed"}});
    let (code, same) = served.ask("PATCH", &format!("{path}/status"), STRATEGIC, &phase);
    assert_eq!((code, &same["status"]["phase"]), (200, &json!("Running")), "what is observed is the node's");
    let (code, object) = served.get(&path);
    assert_eq!(code, 200);
    let mut stale = object.clone();
    stale["metadata"]["resourceVersion"] = json!("1");
    let said = served.refused(409, "PUT", &path, JSON, &stale);
    assert_eq!(
        said,
        "Operation cannot be fulfilled on pods \"web\": the object has been modified; please apply your changes to the latest version and try again"
    );

    served.node.cri.add_image("localhost/test:2");
    let image = json!([{"op": "test", "path": "/spec/containers/0/image", "value": IMAGE},
        {"op": "replace", "path": "/spec/containers/0/image", "value": "localhost/test:2"}]);
    let (code, patched) = served.ask("PATCH", &path, "application/json-patch+json", &image);
    assert_eq!((code, &patched["metadata"]["generation"]), (200, &json!(2)), "{patched}");
    wait_for("the container of the new image", PATIENCE, || {
        let (_, pod) = served.get(&path);
        let status = &pod["status"]["containerStatuses"][0];
        if status["image"] == "localhost/test:2" && status["ready"] == true {
            Ok(())
        } else {
            Err(pod.to_string())
        }
    });
    let said = served.refused(422, "PATCH", &path, "application/json-patch+json", &image);
    assert!(said.contains("testing value /spec/containers/0/image failed"), "{said}");
    let said = served.refused(415, "PATCH", &path, JSON, &label);
    assert!(said.contains("application/strategic-merge-patch+json"), "{said}");
    let (code, evicted) = served.ask(
        "POST",
        &format!("{path}/eviction"),
        JSON,
        &json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}}),
    );
    assert_eq!((code, &evicted["status"]), (201, &json!("Success")));
    served.wait_gone(&path);
}

#[test]
fn what_a_manifest_defines_is_changed_in_the_manifest() {
    let served = Served::new();
    let path = format!("{PODS}/neighbour-edge");
    for (method, kind, body) in
        [("PATCH", MERGE, json!({"metadata": {"labels": {"a": "b"}}})), ("PUT", JSON, pod("neighbour-edge"))]
    {
        let said = served.refused(403, method, &path, kind, &body);
        assert!(said.contains("neighbour.yaml") && said.contains("is forbidden"), "{said}");
    }
    let said = served.refused(409, "POST", PODS, JSON, &pod("neighbour-edge"));
    assert!(said.contains("already exists") && said.contains("neighbour.yaml"), "{said}");
    served.node.agent.write_manifest("map.yaml", &config_map("ours", &json!({"a": "1"})).to_string());
    wait_until("the ConfigMap", PATIENCE, || served.get(&format!("{MAPS}/ours")).0 == 200);
    let said = served.refused(403, "DELETE", &format!("{MAPS}/ours"), JSON, &Value::Null);
    assert!(said.contains("map.yaml"), "{said}");
    // A manifest that comes later wins, and what the API had is there again when it goes.
    served.create(MAPS, &config_map("both", &json!({"from": "api"})));
    served.node.agent.write_manifest("both.yaml", &config_map("both", &json!({"from": "file"})).to_string());
    let from = || served.get(&format!("{MAPS}/both")).1["data"]["from"].clone();
    wait_until("the manifest's", PATIENCE, || from() == "file");
    served.node.agent.remove_manifest("both.yaml");
    wait_until("the API's", PATIENCE, || from() == "api");
}

#[test]
fn objects_are_created_patched_deleted_and_persisted() {
    let mut served = Served::new();
    let made = served.create(MAPS, &config_map("conf", &json!({"a": "1"})));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db", "annotations":
        {"kubectl.kubernetes.io/last-applied-configuration": "{\"stringData\":{\"k\":\"hunter2\"}}"}}, "stringData": {"k": "hunter2"}});
    let (code, hidden) = served.ask("POST", SECRETS, JSON, &secret);
    assert_eq!((code, &hidden["data"]["k"], hidden.get("stringData")), (201, &json!("aHVudGVyMg=="), None));
    let locked = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "locked"}, "data": {"a": "1"}, "immutable": true});
    served.create(MAPS, &locked);
    served.restart(true);
    let (code, found) = served.get(&format!("{MAPS}/conf"));
    assert_eq!(
        (code, &found["metadata"]["uid"], &found["data"]),
        (200, &made["metadata"]["uid"], &json!({"a": "1"}))
    );
    let (_, found) = served.get(&format!("{SECRETS}/db"));
    assert_eq!(found["metadata"]["annotations"], secret["metadata"]["annotations"]);
    let said = served.refused(422, "PATCH", &format!("{MAPS}/locked"), MERGE, &json!({"data": {"a": "2"}}));
    assert!(said.contains("data: Forbidden: field is immutable when `immutable` is set"), "{said}");
    let (code, dry) =
        served.ask("PATCH", &format!("{MAPS}/conf?dryRun=All"), MERGE, &json!({"data": {"a": "2"}}));
    assert_eq!((code, &dry["data"]["a"]), (200, &json!("2")));
    assert_eq!(served.get(&format!("{MAPS}/conf")).1["data"]["a"], "1");
    let (code, patched) = served.ask("PATCH", &format!("{MAPS}/conf"), MERGE, &json!({"data": {"a": "2"}}));
    assert_eq!((code, &patched["data"]["a"]), (200, &json!("2")));
    assert_ne!(patched["metadata"]["resourceVersion"], found["metadata"]["resourceVersion"]);
    let wrong = json!({"preconditions": {"uid": "0"}});
    let said = served.refused(409, "DELETE", &format!("{MAPS}/conf"), JSON, &wrong);
    assert!(said.contains("Precondition failed: UID in precondition: 0"), "{said}");
    let (code, status) =
        served.ask("DELETE", &format!("{MAPS}/conf"), JSON, &json!({"propagationPolicy": "Background"}));
    assert_eq!(
        (code, &status["status"], &status["details"]["name"]),
        (200, &json!("Success"), &json!("conf"))
    );
    assert_eq!(served.get(&format!("{MAPS}/conf")).0, 404);
}

#[test]
fn invalid_objects_are_refused_with_upstreams_errors() {
    let served = Served::new();
    let mut odd = pod("odd");
    odd["spec"]["nick"] = json!(1);
    let strict = format!("{PODS}?fieldValidation=Strict");
    assert_eq!(
        served.refused(400, "POST", &strict, JSON, &odd),
        "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.nick\""
    );
    let (code, text) = served.api.curl(
        Some(&served.admin),
        &format!("{PODS}?fieldValidation=Warn&dryRun=All"),
        &["-i", "-H", "Content-Type: application/json", "-d", &odd.to_string()],
    );
    assert!(
        code == 201 && text.to_lowercase().contains("warning: 299 - \"unknown field \\\"spec.nick\\\"\""),
        "{text}"
    );
    let mut empty = pod("empty");
    empty["spec"]["containers"] = json!([]);
    assert_eq!(
        served.refused(422, "POST", PODS, JSON, &empty),
        "Pod \"empty\" is invalid: spec.containers: Required value"
    );
    let elsewhere = "/api/v1/namespaces/nowhere/pods";
    assert_eq!(served.refused(404, "POST", elsewhere, JSON, &pod("p")), "namespaces \"nowhere\" not found");
    assert_eq!(
        served.refused(400, "POST", CLAIMS, "application/vnd.kubernetes.protobuf", &pod("p")),
        "error decoding the request body: it is no message of this kind in Kubernetes' binary form"
    );
    assert_eq!(
        served.refused(400, "POST", MAPS, JSON, &pod("p")),
        "Pod in version \"v1\" cannot be handled as a ConfigMap: it is another kind"
    );
    assert!(
        served
            .refused(
                422,
                "POST",
                MAPS,
                JSON,
                &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b_g"}})
            )
            .contains("metadata.name: Invalid value: \"b_g\"")
    );
    let viewer = served.api.person(&served.node.agent, "jane", &["--view"]);
    let (code, text) = served.api.curl(
        Some(&viewer),
        PODS,
        &["-H", "Content-Type: application/json", "-d", &pod("p").to_string()],
    );
    assert_eq!(code, 403, "{text}");
    let generated = served.create(PODS, &json!({"metadata": {"generateName": "job-"}, "spec": {"containers": [{"name": "c", "image": IMAGE}]}}));
    assert!(
        generated["metadata"]["name"]
            .as_str()
            .is_some_and(|name| name.len() == 9 && name.starts_with("job-")),
        "{generated}"
    );
}

#[test]
fn namespaces_are_made_and_take_along_what_is_in_them() {
    let served = Served::new();
    let space = "/api/v1/namespaces";
    served.create(space, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
    assert_eq!(served.get(&format!("{space}/shop")).1["status"]["phase"], "Active");
    served.create(&format!("{space}/shop/pods"), &pod("web"));
    served.create(&format!("{space}/shop/configmaps"), &config_map("conf", &json!({})));
    assert!(
        served
            .refused(403, "DELETE", &format!("{space}/default"), JSON, &Value::Null)
            .contains("may not be deleted")
    );
    assert_eq!(served.ask("DELETE", &format!("{space}/shop"), JSON, &Value::Null).0, 200);
    served.wait_gone(&format!("{space}/shop/pods/web"));
    served.wait_gone(&format!("{space}/shop"));
    assert_eq!(served.get(&format!("{space}/shop/configmaps/conf")).0, 404);
    assert_eq!(
        served.refused(404, "DELETE", &format!("{space}/shop"), JSON, &Value::Null),
        "namespaces \"shop\" not found"
    );
}

#[test]
fn server_side_apply_tracks_managers_conflicts_and_force() {
    let served = Served::new();
    let path = |manager: &str, more: &str| format!("{MAPS}/conf?fieldManager={manager}{more}");
    let conf = |data: Value| config_map("conf", &data);
    let (code, made) = served.ask("PATCH", &path("one", ""), APPLY, &conf(json!({"a": "1", "b": "1"})));
    assert_eq!(code, 201, "{made}");
    let fields = &made["metadata"]["managedFields"][0];
    assert_eq!((&fields["manager"], &fields["operation"]), (&json!("one"), &json!("Apply")));
    assert_eq!(fields["fieldsV1"], json!({"f:data": {"f:a": {}, "f:b": {}}}));
    let (code, same) = served.ask("PATCH", &path("one", ""), APPLY, &conf(json!({"a": "1", "b": "1"})));
    assert_eq!(
        (code, &same["metadata"]["resourceVersion"]),
        (200, &made["metadata"]["resourceVersion"]),
        "nothing has changed"
    );
    let (code, status) = served.ask("PATCH", &path("two", ""), APPLY, &conf(json!({"a": "2"})));
    assert_eq!(
        (code, &status["message"]),
        (409, &json!("Apply failed with 1 conflict: conflict with \"one\": .data.a"))
    );
    assert_eq!(
        status["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".data.a"}])
    );
    let (code, forced) = served.ask("PATCH", &path("two", "&force=true"), APPLY, &conf(json!({"a": "2"})));
    assert_eq!((code, &forced["data"]), (200, &json!({"a": "2", "b": "1"})));
    let (code, less) = served.ask("PATCH", &path("one", ""), APPLY, &conf(json!({})));
    assert_eq!((code, &less["data"]), (200, &json!({"a": "2"})));
    let said = served.refused(422, "PATCH", &format!("{MAPS}/conf"), APPLY, &conf(json!({})));
    assert_eq!(
        said,
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
}

#[test]
fn many_go_at_once_by_their_label() {
    let served = Served::new();
    for (name, app) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut map = config_map(name, &json!({}));
        map["metadata"]["labels"] = json!({"app": app});
        served.create(MAPS, &map);
    }
    let (code, list) = served.ask("DELETE", &format!("{MAPS}?labelSelector=app%3Dx"), JSON, &Value::Null);
    assert_eq!(
        (code, &list["kind"], list["items"].as_array().map(Vec::len)),
        (200, &json!("ConfigMapList"), Some(2))
    );
    let (_, left) = served.get(MAPS);
    let names: Vec<&str> = left["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["c", "kube-root-ca.crt"]);
}

fn times(object: &Value) -> (Option<i64>, &Value) {
    let metadata = &object["metadata"];
    let at = |field: &str| {
        let text = metadata[field].as_str()?;
        edge_agent::model::types::Timestamp::parse_rfc3339(text).map(|at| at.as_nanos() / 1_000_000_000)
    };
    let ahead = at("deletionTimestamp").zip(at("creationTimestamp")).map(|(end, made)| end - made);
    (ahead, &metadata["deletionGracePeriodSeconds"])
}

/// The fake runtime's containers do not mind a signal that asks.
#[test]
fn second_delete_can_only_shorten_a_pods_grace_period() {
    let served = Served::new();
    let mut stubborn = pod("slow");
    stubborn["metadata"]["finalizers"] = json!(["edge.example/a", "edge.example/b"]);
    stubborn["spec"]["terminationGracePeriodSeconds"] = json!(600);
    served.create(PODS, &stubborn);
    served.wait_for_phase("slow", "Running");
    let path = format!("{PODS}/slow");
    let (code, gone) = served.ask("DELETE", &path, JSON, &Value::Null);
    assert_eq!((code, times(&gone).1), (200, &json!(600)), "{gone}");
    assert!(times(&gone).0.is_some_and(|ahead| ahead >= 600), "{gone}");
    let (code, hurried) = served.ask("DELETE", &path, JSON, &json!({"gracePeriodSeconds": 300}));
    assert_eq!(code, 200, "{hurried}");
    // It may have ended meanwhile.
    assert!(times(&hurried).1.as_i64().is_some_and(|grace| grace <= 300), "{hurried}");
    let (code, longer) = served.ask("DELETE", &path, JSON, &json!({"gracePeriodSeconds": 900}));
    assert!(code == 200 && times(&longer).1.as_i64().is_some_and(|grace| grace <= 300), "{longer}");
}

#[test]
fn finalizers_keep_a_deleted_pod_across_an_agent_kill() {
    let mut served = Served::new();
    let mut made = pod("kept");
    made["metadata"]["finalizers"] = json!(["edge.example/a", "edge.example/b"]);
    served.create(PODS, &made);
    served.wait_for_phase("kept", "Running");
    let path = format!("{PODS}/kept");
    let (code, gone) = served.ask("DELETE", &path, JSON, &Value::Null);
    assert_eq!((code, &gone["metadata"]["finalizers"][1]), (200, &json!("edge.example/b")), "{gone}");
    let over = |served: &Served| {
        wait_for("its end", PATIENCE, || match served.get(&path) {
            (200, pod) if times(&pod).1 == 0 => Ok(pod),
            (_, pod) => Err(pod.to_string()),
        })
    };
    let ended = over(&served);
    assert!(
        ["Succeeded", "Failed"].contains(&ended["status"]["phase"].as_str().unwrap_or_default()),
        "{ended}"
    );
    assert_eq!(served.running("kept"), 0);
    let said = served.refused(409, "POST", PODS, JSON, &pod("kept"));
    assert_eq!(said, "object is being deleted: pods \"kept\" already exists");
    let finalizers = |all: Value| json!({"metadata": {"finalizers": all}});
    let more = finalizers(json!(["edge.example/a", "edge.example/c"]));
    let said = served.refused(422, "PATCH", &path, MERGE, &more);
    assert_eq!(
        said,
        "Pod \"kept\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"edge.example/c\"}"
    );
    let (code, one) = served.ask("PATCH", &path, MERGE, &finalizers(json!(["edge.example/b"])));
    assert_eq!((code, &one["metadata"]["finalizers"]), (200, &json!(["edge.example/b"])), "{one}");
    served.restart(true);
    let again = over(&served);
    assert_eq!(again["metadata"]["finalizers"], json!(["edge.example/b"]));
    assert_eq!(again["metadata"]["uid"], ended["metadata"]["uid"]);
    assert_eq!(
        (again["status"]["phase"].clone(), served.running("kept")),
        (ended["status"]["phase"].clone(), 0)
    );
    assert_eq!(served.ask("PATCH", &path, MERGE, &finalizers(Value::Null)).0, 200);
    served.wait_gone(&path);
    served.restart(false);
    assert_eq!(served.get(&path).0, 404);
    served.create(PODS, &pod("kept"));
    served.wait_for_phase("kept", "Running");
}

#[test]
fn finalizers_keep_objects_and_what_they_live_in() {
    let mut served = Served::new();
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    served.create("/api/v1/namespaces", &namespace("team"));
    let maps = "/api/v1/namespaces/team/configmaps";
    let mut kept = config_map("kept", &json!({"a": "b"}));
    kept["metadata"]["finalizers"] = json!(["edge.example/a"]);
    served.create(maps, &kept);
    served.create(maps, &config_map("plain", &json!({})));
    let path = format!("{maps}/kept");
    let (code, gone) = served.ask("DELETE", &path, JSON, &Value::Null);
    assert_eq!((code, times(&gone).1), (200, &json!(0)), "{gone}");
    let first = gone["metadata"]["deletionTimestamp"].clone();
    assert!(first.is_string(), "{gone}");
    let (_, again) = served.ask("DELETE", &path, JSON, &Value::Null);
    assert_eq!(again["metadata"]["deletionTimestamp"], first);

    assert_eq!(served.ask("DELETE", "/api/v1/namespaces/team", JSON, &Value::Null).0, 200);
    assert_eq!(served.get(&format!("{maps}/plain")).0, 404);
    served.restart(true);
    let (_, shown) = served.get("/api/v1/namespaces/team");
    assert_eq!(shown["status"]["phase"], "Terminating", "{shown}");
    let (_, shown) = served.get(&path);
    assert_eq!(
        (&shown["metadata"]["deletionTimestamp"], &shown["data"]["a"]),
        (&first, &json!("b")),
        "{shown}"
    );
    let said = served.refused(403, "POST", maps, JSON, &config_map("new", &json!({})));
    assert_eq!(
        said,
        "configmaps \"new\" is forbidden: unable to create new content in namespace team because it is being terminated"
    );
    let (code, changed) = served.ask("PATCH", &path, MERGE, &json!({"data": {"a": "c"}}));
    assert_eq!((code, &changed["data"]["a"]), (200, &json!("c")), "it may change");
    assert_eq!(served.ask("PATCH", &path, MERGE, &json!({"metadata": {"finalizers": null}})).0, 200);
    assert_eq!((served.get(&path).0, served.get("/api/v1/namespaces/team").0), (404, 404));
}
