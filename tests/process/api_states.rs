//! What clients of the node's own API change of pods that go, of mirrors, of status, and of namespaces in use.

use serde_json::{Value, json};

use super::api_writes::{APPLY, JSON, MERGE, PODS, STRATEGIC, Served, config_map, pod};
use crate::support::agent::PATIENCE;
use crate::support::wait::{wait_for, wait_until};

/// The pod of a name has a condition of this type and status.
fn has_condition(pod: &Value, wanted: &str, status: &str) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == wanted && condition["status"] == status)
}

#[test]
fn a_deleted_mirror_is_followed_by_another_and_the_pod_runs_on() {
    let mut served = Served::new();
    let path = format!("{PODS}/neighbour-edge");
    let before = served.wait_for_phase("neighbour-edge", "Running");
    assert_eq!(before["metadata"]["generation"], 1);
    let running = served.node.all_running();
    let (code, tried) = served.ask("DELETE", &format!("{path}?dryRun=All"), JSON, &Value::Null);
    assert_eq!((code, &served.get(&path).1["metadata"]["uid"]), (200, &before["metadata"]["uid"]), "{tried}");
    let (code, gone) = served.ask("DELETE", &path, JSON, &Value::Null);
    assert_eq!((code, &gone["metadata"]["uid"]), (200, &before["metadata"]["uid"]), "{gone}");
    let (_, after) = served.get(&path);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let mirror = &after["metadata"]["annotations"]["kubernetes.io/config.mirror"];
    assert_eq!(mirror, &before["metadata"]["annotations"]["kubernetes.io/config.mirror"]);
    let wrong = json!({"preconditions": {"uid": before["metadata"]["uid"]}});
    served.refused(409, "DELETE", &path, JSON, &wrong);
    served.restart(true);
    let again = served.wait_for_phase("neighbour-edge", "Running");
    assert_eq!(
        (&again["metadata"]["uid"], &again["status"]["phase"]),
        (&after["metadata"]["uid"], &json!("Running"))
    );
    assert_eq!(served.node.all_running(), running);
}

#[test]
fn a_pod_that_is_being_taken_down_takes_changes() {
    let mut served = Served::new();
    let path = format!("{PODS}/slow");
    let mut slow = pod("slow");
    slow["spec"]["terminationGracePeriodSeconds"] = json!(60);
    slow["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 50}}});
    served.create(PODS, &slow);
    let running = served.wait_for_phase("slow", "Running");
    let (code, gone) = served.ask("DELETE", &path, JSON, &Value::Null);
    assert_eq!(code, 200, "{gone}");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, labelled) = served.ask("PATCH", &path, MERGE, &label);
    assert_eq!((code, &labelled["metadata"]["labels"]["a"]), (200, &json!("b")), "{labelled}");
    let image = json!({"spec": {"containers": [{"name": "main", "image": "localhost/test:2"}]}});
    let (code, other) = served.ask("PATCH", &path, STRATEGIC, &image);
    assert_eq!((code, &other["metadata"]["generation"]), (200, &json!(2)), "{other}");
    let gate = json!({"status": {"conditions": [{"type": "example.com/gate", "status": "True"}]}});
    let (code, gated) = served.ask("PATCH", &format!("{path}/status"), STRATEGIC, &gate);
    assert!(code == 200 && has_condition(&gated, "example.com/gate", "True"), "{gated}");
    let said = served.refused(422, "PATCH", &path, MERGE, &json!({"metadata": {"finalizers": ["a.b/c"]}}));
    assert!(said.contains("no new finalizers can be added"), "{said}");
    served.restart(true);
    let (_, found) = served.get(&path);
    assert_eq!(
        (&found["metadata"]["uid"], &found["metadata"]["labels"]["a"], &found["metadata"]["generation"]),
        (&running["metadata"]["uid"], &json!("b"), &json!(2)),
        "{found}"
    );
    assert!(has_condition(&found, "example.com/gate", "True"), "{found}");
    assert_eq!(served.ask("DELETE", &path, JSON, &json!({"gracePeriodSeconds": 0})).0, 200);
    served.wait_gone(&path);
}

#[test]
fn a_readiness_gate_is_opened_by_its_controller() {
    let mut served = Served::new();
    let path = format!("{PODS}/gated");
    let mut gated = pod("gated");
    gated["spec"]["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
    served.create(PODS, &gated);
    let running = served.wait_for_phase("gated", "Running");
    assert!(has_condition(&running, "Ready", "False"), "{running}");
    let status = format!("{path}/status");
    let open =
        |status: &str| json!({"status": {"conditions": [{"type": "example.com/gate", "status": status}]}});
    let (code, tried) = served.ask("PATCH", &format!("{status}?dryRun=All"), STRATEGIC, &open("True"));
    assert!(code == 200 && has_condition(&tried, "example.com/gate", "True"), "{tried}");
    assert!(!has_condition(&served.get(&path).1, "example.com/gate", "True"), "it was tried");
    let (code, opened) = served.ask("PATCH", &status, STRATEGIC, &open("True"));
    assert!(code == 200 && has_condition(&opened, "example.com/gate", "True"), "{opened}");
    let ready = |served: &Served, status: &str| {
        wait_for("the gate to count", PATIENCE, || {
            let (_, pod) = served.get(&path);
            if has_condition(&pod, "Ready", status) { Ok(()) } else { Err(pod.to_string()) }
        });
    };
    ready(&served, "True");
    served.restart(true);
    ready(&served, "True");
    let (_, mut whole) = served.get(&path);
    let conditions = whole["status"]["conditions"].as_array_mut().expect("conditions");
    conditions.retain(|condition| condition["type"] != "example.com/gate");
    let (code, closed) = served.ask("PUT", &status, JSON, &whole);
    assert!(code == 200 && !has_condition(&closed, "example.com/gate", "True"), "{closed}");
    ready(&served, "False");
    let said = served.refused(422, "PATCH", &status, STRATEGIC, &open("Perhaps"));
    assert!(said.contains("Unsupported value: \"Perhaps\""), "{said}");
    let bad = json!({"status": {"conditions": [{"type": 5}]}});
    let said = served.refused(400, "PATCH", &status, MERGE, &bad);
    assert!(said.contains("status.conditions[0].type"), "{said}");
}

#[test]
fn a_dry_run_answers_with_what_the_object_has_besides() {
    let served = Served::new();
    served.create(PODS, &pod("web"));
    let running = served.wait_for_phase("web", "Running");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, mut tried) = served.ask("PATCH", &format!("{PODS}/web?dryRun=All"), MERGE, &label);
    assert_eq!(code, 200, "{tried}");
    let (_, mut shown) = served.get(&format!("{PODS}/web"));
    assert_eq!(tried["metadata"]["labels"]["a"], "b");
    for object in [&mut tried, &mut shown] {
        let metadata = object["metadata"].as_object_mut().expect("metadata");
        metadata.remove("labels");
        metadata.remove("managedFields");
    }
    assert_eq!((&tried, &shown["metadata"]["uid"]), (&shown, &running["metadata"]["uid"]));
}

#[test]
fn a_namespace_that_a_manifest_uses_comes_back_as_another() {
    let served = Served::new();
    let (space, path) = ("/api/v1/namespaces/held", "/api/v1/namespaces/held/pods/still-edge");
    let mut still = pod("still");
    still["metadata"]["namespace"] = json!("held");
    served.node.apply(&still);
    wait_until("the namespace", PATIENCE, || served.get(space).0 == 200);
    let before = served.get(space).1;
    served.create("/api/v1/namespaces/held/configmaps", &config_map("conf", &json!({})));
    let (code, gone) = served.ask("DELETE", space, JSON, &Value::Null);
    assert_eq!((code, &gone["status"]["phase"]), (200, &json!("Terminating")), "{gone}");
    let (_, after) = served.get(space);
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["status"]["phase"], "Active");
    assert_eq!(served.get("/api/v1/namespaces/held/configmaps/conf").0, 404);
    assert_eq!(served.get(path).0, 200, "the pod runs on");
}

#[test]
fn namespace_that_was_not_created_takes_labels_and_stays() {
    let served = Served::new();
    let path = "/api/v1/namespaces/default";
    let (_, before) = served.get(path);
    let (code, made) = served.ask("PATCH", path, MERGE, &json!({"metadata": {"labels": {"x": "y"}}}));
    assert_eq!(code, 200, "{made}");
    let labels = json!({"kubernetes.io/metadata.name": "default", "x": "y"});
    assert_eq!(
        (&made["metadata"]["labels"], &made["metadata"]["uid"]),
        (&labels, &before["metadata"]["uid"])
    );
    assert_eq!(made["metadata"]["creationTimestamp"], before["metadata"]["creationTimestamp"]);
    assert_eq!(served.get(path).1["metadata"]["labels"], labels);
    let applied = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "kube-system", "labels": {"a": "b"}}});
    let path = "/api/v1/namespaces/kube-system?fieldManager=one";
    assert_eq!(served.ask("PATCH", path, APPLY, &applied).0, 200);
    let said = served.refused(404, "PATCH", "/api/v1/namespaces/none", MERGE, &json!({}));
    assert_eq!(said, "namespaces \"none\" not found");
}
