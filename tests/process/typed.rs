//! Types, strictness and scheduling fields of what comes through the API and from manifests.

use std::fs;

use serde_json::{Value, json};

use super::api_writes::{APPLY, JSON, MERGE, PODS, STRATEGIC, Served, pod};
use super::node::IMAGE;
use crate::support::agent::PATIENCE;
use crate::support::kubectl::Kubectl;
use crate::support::wait::wait_for;

const JSON_PATCH: &str = "application/json-patch+json";

/// A pod with these fields in its spec.
fn pod_with(name: &str, fields: &Value) -> Value {
    let mut pod = pod(name);
    let spec = pod["spec"].as_object_mut().expect("a spec");
    spec.extend(fields.as_object().expect("fields").clone());
    pod
}

fn kubectl(served: &Served) -> Kubectl {
    Kubectl::of(&served.api, &served.node.agent, served.node.scratch.path(), "kubectl", &[])
}

/// Creates something; the warnings of the answer.
fn warnings(served: &Served, path: &str, object: &Value) -> Vec<String> {
    let headers = served.node.scratch.path().join("headers");
    let dump = headers.to_str().expect("a path");
    let body = object.to_string();
    let arguments =
        ["-X", "POST", "-H", "Content-Type: application/json", "-D", dump, "--data-binary", &body];
    let (code, text) = served.api.curl(Some(&served.admin), path, &arguments);
    assert_eq!(code, 201, "{text}");
    let headers = fs::read_to_string(&headers).expect("read");
    let lines = headers.lines().filter_map(|line| line.split_once(": 299 - "));
    lines.map(|(_, words)| words.trim().replace("\\\"", "\"")).collect()
}

#[test]
fn nested_wrong_types_are_refused_in_every_way_of_writing() {
    let served = Served::new();
    let wrong = pod_with("a", &json!({"affinity": {"podAffinity": 5}}));
    let decoder = "json: cannot unmarshal number into Go struct field Affinity.spec.affinity.podAffinity of type v1.PodAffinity";
    for validation in ["Strict", "Warn", "Ignore"] {
        let path = format!("{PODS}?fieldValidation={validation}");
        let said = served.refused(400, "POST", &path, JSON, &wrong);
        assert_eq!(said, format!("Pod in version \"v1\" cannot be handled as a Pod: {decoder}"));
    }
    let a = format!("{PODS}/a");
    let apply = format!("{a}?fieldManager=me");
    let said = served.refused(400, "PATCH", &apply, APPLY, &wrong);
    let typed = "failed to create typed patch object (default/a; /v1, Kind=Pod): .spec.affinity.podAffinity: expected a map, got integer `5`";
    assert_eq!(said, typed);

    served.create(PODS, &pod("a"));
    for (kind, patch) in [
        (MERGE, json!({"metadata": {"ownerReferences": [{"controller": "yes"}]}})),
        (STRATEGIC, json!({"spec": {"affinity": {"podAffinity": 5}}})),
        (
            JSON_PATCH,
            json!([{"op": "add", "path": "/spec/topologySpreadConstraints", "value": [{"maxSkew": "x"}]}]),
        ),
        (MERGE, json!({"metadata": 5})),
    ] {
        let said = served.refused(422, "PATCH", &a, kind, &patch);
        assert!(said.starts_with(" \"\" is invalid: patch: Invalid value: "), "{said}");
        assert!(said.contains("json: cannot unmarshal "), "{said}");
    }
    assert_eq!(served.refused(400, "PATCH", &apply, APPLY, &wrong), typed);
    let mut twice = pod("a");
    twice["metadata"]["finalizers"] = json!(["example.com/x", "example.com/x"]);
    let said = served.refused(400, "PATCH", &apply, APPLY, &twice);
    assert!(said.ends_with(".metadata.finalizers: duplicate entries for key [=\"example.com/x\"]"), "{said}");
    let (_, mut shown) = served.get(&a);
    shown["status"]["conditions"] = json!("all");
    let said = served.refused(400, "PUT", &a, JSON, &shown);
    assert!(
        said.ends_with("Go struct field PodStatus.status.conditions of type []v1.PodCondition"),
        "{said}"
    );
    let said = served.refused(400, "DELETE", &a, JSON, &json!({"gracePeriodSeconds": "soon"}));
    assert!(said.contains("Go struct field DeleteOptions.gracePeriodSeconds of type int64"), "{said}");
    assert!(served.get(&a).1["spec"].get("affinity").is_none());
    let described = kubectl(&served).out(&["describe", "pod", "a"]);
    assert!(described.contains("main:"), "{described}");
}

#[test]
fn field_validation_covers_nested_and_duplicate_fields() {
    let served = Served::new();
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabel": {"a": "b"}}});
    let preferred = json!([{"weight": 1, "podAffinityTerm": term}]);
    let spec = json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}});
    let path = "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector.matchLabel";
    let strict = format!("{PODS}?fieldValidation=Strict");
    let said = served.refused(400, "POST", &strict, JSON, &pod_with("a", &spec));
    assert!(said.ends_with(&format!("strict decoding error: unknown field \"{path}\"")), "{said}");
    let warned = warnings(&served, PODS, &pod_with("a", &spec));
    assert_eq!(warned, [format!("\"unknown field \"{path}\"\"")]);
    let (_, shown) = served.get(&format!("{PODS}/a"));
    let pointer =
        "/spec/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm";
    assert_eq!(shown.pointer(pointer), Some(&json!({"topologyKey": "zone", "labelSelector": {}})));
    let ignored = warnings(&served, &format!("{PODS}?fieldValidation=Ignore"), &pod_with("b", &spec));
    assert!(ignored.is_empty(), "{ignored:?}");
    let apply = format!("{PODS}/c?fieldManager=me&fieldValidation=Ignore");
    let said = served.refused(400, "PATCH", &apply, APPLY, &pod_with("c", &spec));
    assert!(said.ends_with(&format!(".{path}: field not declared in schema")), "{said}");

    let twice = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"d"}},"spec":{{"containers":[{{"name":"main","image":"x","image":"{IMAGE}"}}]}}}}"#
    );
    let header = "Content-Type: application/json";
    let arguments = ["-X", "POST", "-H", header, "--data-binary", &twice];
    let (code, text) = served.api.curl(Some(&served.admin), &strict, &arguments);
    assert_eq!(code, 400, "{text}");
    let failure: Value = serde_json::from_str(&text).expect("JSON");
    let said = failure["message"].as_str().unwrap_or_default();
    assert!(said.ends_with("strict decoding error: duplicate field \"spec.containers[0].image\""), "{said}");
}

#[test]
fn gated_pod_waits_until_its_gates_are_gone() {
    let served = Served::new();
    let kubectl = kubectl(&served);
    served.create(PODS, &pod_with("a", &json!({"schedulingGates": [{"name": "example.com/wait"}]})));
    let row = kubectl.out(&["get", "pod", "a", "--no-headers"]);
    assert!(row.contains("SchedulingGated"), "{row}");
    let a = format!("{PODS}/a");
    let (_, shown) = served.get(&a);
    assert_eq!((shown["spec"].get("nodeName"), &shown["status"]["phase"]), (None, &json!("Pending")));
    let condition = &shown["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["message"]),
        (
            &json!("PodScheduled"),
            &json!("False"),
            &json!("Scheduling is blocked due to non-empty scheduling gates")
        )
    );
    let free = json!([{"op": "remove", "path": "/spec/schedulingGates"}]);
    let (code, freed) = served.ask("PATCH", &a, JSON_PATCH, &free);
    assert_eq!((code, &freed["spec"]["nodeName"]), (200, &json!("edge")), "{freed}");
    let running = served.wait_for_phase("a", "Running");
    let scheduled = running["status"]["conditions"].as_array().into_iter().flatten();
    let scheduled: Vec<&Value> = scheduled.filter(|condition| condition["type"] == "PodScheduled").collect();
    assert_eq!((scheduled.len(), &scheduled[0]["status"]), (1, &json!("True")), "{running}");

    served.node.apply(&pod_with("filed", &json!({"schedulingGates": [{"name": "g"}]})));
    wait_for("the pod of the file to be shown", PATIENCE, || {
        let said = kubectl.run(&["get", "pod", "filed-edge", "--no-headers"]);
        if said.out.contains("SchedulingGated") { Ok(()) } else { Err(format!("{said:?}")) }
    });
    served.node.stopped("filed");
}

#[test]
fn what_only_a_scheduler_does_is_a_warning() {
    let served = Served::new();
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}});
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let said =
        warnings(&served, PODS, &pod_with("a", &json!({"schedulerName": "mine", "affinity": affinity})));
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("spec.schedulerName: \"mine\" has no effect"), "{said:?}");
    assert!(said[1].contains("spec.affinity.podAntiAffinity: required terms have no effect"), "{said:?}");
    served.wait_for_phase("a", "Running");
}

#[test]
fn kubectl_explain_describes_every_field() {
    let served = Served::new();
    let kubectl = kubectl(&served);
    for (path, words) in [
        ("pod.spec.affinity.podAntiAffinity", "Pod anti-affinity rules"),
        ("pod.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution", "No effect"),
        ("pod.spec.topologySpreadConstraints.maxSkew", "Maximum difference in matching pods"),
        ("pod.spec.ephemeralContainers.image", "Image name"),
    ] {
        let said = kubectl.out(&["explain", path]);
        assert!(said.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{said}");
    }
    let all = kubectl.out(&["explain", "pod.spec.containers"]);
    assert!(!all.contains("<no description>"), "{all}");
}
