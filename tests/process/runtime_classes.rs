//! RuntimeClasses: objects like others, and what they make of pods.

use serde_json::{Value, json};

use super::api_writes::{APPLY, JSON, MERGE, PODS, Served, pod};
use super::node::Node;
use super::security::with_handlers;
use crate::support::agent::{PATIENCE, pod_name};
use crate::support::wait::wait_for;

const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";

fn class(name: &str, handler: &str) -> Value {
    json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": handler})
}

fn of_class(name: &str, class: &str, more: &Value) -> Value {
    let mut pod = pod(name);
    pod["spec"]["runtimeClassName"] = json!(class);
    let spec = pod["spec"].as_object_mut().expect("a pod has a spec");
    spec.extend(more.as_object().expect("fields").clone());
    pod
}

fn node() -> Node {
    let node = Node::new();
    with_handlers(&node);
    node
}

/// The handler that the runtime was asked for.
fn handler_of(node: &Node, pod: &str) -> String {
    let state = node.cri.state();
    let mut sandboxes = state.world.sandboxes.iter();
    let (id, _) = sandboxes.find(|(_, sandbox)| *sandbox.observed.pod.name == *pod).expect("a sandbox");
    state.runtime_handlers[&id.to_string()].clone()
}

#[test]
fn a_runtime_class_is_written_and_read_as_any_object() {
    let mut served = Served::of(node());
    let (_, found) = served.get("/apis/node.k8s.io/v1");
    assert_eq!(
        (&found["resources"][0]["name"], &found["resources"][0]["namespaced"]),
        (&json!("runtimeclasses"), &json!(false))
    );

    let made = served.create(CLASSES, &class("sandboxed", "kata"));
    assert_eq!((&made["apiVersion"], &made["handler"]), (&json!("node.k8s.io/v1"), &json!("kata")));
    assert_eq!(made["metadata"].get("namespace"), None);
    assert_eq!(made["metadata"]["managedFields"][0]["apiVersion"], "node.k8s.io/v1");
    let said = served.refused(409, "POST", CLASSES, JSON, &class("sandboxed", "kata"));
    assert_eq!(said, "runtimeclasses.node.k8s.io \"sandboxed\" already exists");
    let said = served.refused(422, "POST", CLASSES, JSON, &class("bad", "Kata"));
    assert!(said.starts_with("RuntimeClass.node.k8s.io \"bad\" is invalid: handler: Invalid value: \"Kata\": a lowercase RFC 1123 label"), "{said}");
    let mut legacy = class("old", "kata");
    legacy["apiVersion"] = json!("v1");
    let said = served.refused(400, "POST", CLASSES, JSON, &legacy);
    assert_eq!(
        said,
        "the API version in the data (v1) does not match the expected API version (node.k8s.io/v1)"
    );

    let one = format!("{CLASSES}/sandboxed");
    let said = served.refused(422, "PATCH", &one, MERGE, &json!({"handler": "runc"}));
    assert_eq!(
        said,
        "RuntimeClass.node.k8s.io \"sandboxed\" is invalid: handler: Invalid value: \"runc\": field is immutable"
    );
    let overhead = json!({"overhead": {"podFixed": {"cpu": "0.25", "memory": "64Mi"}}});
    let (code, patched) = served.ask("PATCH", &format!("{one}?dryRun=All"), MERGE, &overhead);
    assert_eq!((code, &patched["overhead"]["podFixed"]["cpu"]), (200, &json!("250m")));
    assert_eq!(served.get(&one).1.get("overhead"), None, "it was only tried");
    assert_eq!(served.ask("PATCH", &one, MERGE, &overhead).0, 200);

    let applied = format!("{CLASSES}/applied?fieldManager=me");
    let (code, _) = served.ask("PATCH", &applied, APPLY, &class("applied", "plain"));
    assert_eq!(code, 201);
    let scheduling = json!({"scheduling": {"nodeSelector": {"a": "b"}}});
    let mut again = class("applied", "plain");
    again.as_object_mut().expect("an object").extend(scheduling.as_object().expect("fields").clone());
    let (code, found) = served.ask("PATCH", &applied, APPLY, &again);
    assert_eq!((code, &found["scheduling"]), (200, &scheduling["scheduling"]));
    let said = served.refused(
        400,
        "PATCH",
        &applied,
        APPLY,
        &json!({"apiVersion": "v1", "kind": "RuntimeClass", "metadata": {"name": "applied"}}),
    );
    assert_eq!(said, "applied objects must have apiVersion node.k8s.io/v1 and kind RuntimeClass");

    served.restart(true);
    let (_, list) = served.get(CLASSES);
    let names: Vec<&Value> =
        list["items"].as_array().into_iter().flatten().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(
        (names, &list["kind"]),
        (vec![&json!("applied"), &json!("sandboxed")], &json!("RuntimeClassList"))
    );
    assert_eq!(list["items"][1]["overhead"], json!({"podFixed": {"cpu": "250m", "memory": "64Mi"}}));
    let table = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io";
    let (_, text) = served.api.curl(Some(&served.admin), CLASSES, &["-H", table]);
    let table: Value = serde_json::from_str(&text).expect("JSON");
    let columns: Vec<&Value> =
        table["columnDefinitions"].as_array().into_iter().flatten().map(|column| &column["name"]).collect();
    assert_eq!(columns, ["Name", "Handler", "Age"]);
    assert_eq!(table["rows"][0]["cells"][1], "plain");
    let (_, spaces) = served.get("/api/v1/namespaces");
    assert!(!spaces.to_string().contains("\"name\":\"\""), "{spaces}");

    assert_eq!(served.ask("DELETE", &one, JSON, &Value::Null).0, 200);
    served.wait_gone(&one);
}

#[test]
fn a_pod_gets_its_classes_handler_and_overhead() {
    let mut served = Served::of(node());
    let mut sandboxed = class("sandboxed", "kata");
    sandboxed["overhead"] = json!({"podFixed": {"cpu": "250m", "memory": "64Mi"}});
    sandboxed["scheduling"] = json!({"nodeSelector": {"kubernetes.io/os": "linux"}});
    served.create(CLASSES, &sandboxed);
    let made = served.create(PODS, &of_class("web", "sandboxed", &json!({})));
    assert_eq!(made["spec"]["overhead"], json!({"cpu": "250m", "memory": "64Mi"}));
    assert_eq!(made["spec"]["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
    served.wait_for_phase("web", "Running");
    assert_eq!(handler_of(&served.node, "web"), "kata");
    // Without an object the name is the handler's.
    served.create(PODS, &of_class("plain", "plain", &json!({})));
    served.wait_for_phase("plain", "Running");
    assert_eq!(handler_of(&served.node, "plain"), "plain");

    let refused = |pod: &Value| served.refused(403, "POST", PODS, JSON, pod);
    let said = refused(&of_class("lost", "moon", &json!({})));
    assert_eq!(said, "pods \"lost\" is forbidden: pod rejected: RuntimeClass \"moon\" not found");
    let said = refused(&of_class("heavy", "sandboxed", &json!({"overhead": {"cpu": "1"}})));
    assert!(
        said.ends_with("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"),
        "{said}"
    );
    let said =
        refused(&of_class("away", "sandboxed", &json!({"nodeSelector": {"kubernetes.io/os": "windows"}})));
    assert!(
        said.contains("conflict: runtimeClass.scheduling.nodeSelector[kubernetes.io/os] = linux; pod.spec"),
        "{said}"
    );

    // A class that goes takes nothing from the pods that run.
    assert_eq!(served.ask("DELETE", &format!("{CLASSES}/sandboxed"), JSON, &Value::Null).0, 200);
    served.restart(false);
    let (_, after) = served.get(&format!("{PODS}/web"));
    assert_eq!(
        (&after["spec"]["overhead"]["cpu"], &after["metadata"]["uid"]),
        (&json!("250m"), &made["metadata"]["uid"])
    );
    let said = served.refused(403, "POST", PODS, JSON, &of_class("late", "sandboxed", &json!({})));
    assert!(said.ends_with("RuntimeClass \"sandboxed\" not found"), "{said}");
}

#[test]
fn a_pod_of_a_manifest_finds_the_class_beside_it() {
    let node = node();
    let mut sandboxed = class("sandboxed", "kata");
    sandboxed["overhead"] = json!({"podFixed": {"cpu": "250m"}});
    node.apply(&sandboxed);
    node.apply(&of_class("web", "sandboxed", &json!({})));
    node.apply(&of_class("heavy", "sandboxed", &json!({"overhead": {"cpu": "1"}})));
    let mut served = Served::of(node);
    served.node.running("web");
    assert_eq!(handler_of(&served.node, &pod_name("web")), "kata");
    let shown = |served: &Served, name: &str| served.get(&format!("{PODS}/{}", pod_name(name))).1;
    let uid = shown(&served, "web")["metadata"]["uid"].clone();
    assert_eq!(shown(&served, "web")["spec"]["overhead"]["cpu"], "250m");
    served.node.problem(&["heavy", "contradicts its RuntimeClass \"sandboxed\"", "doesn't match"]);
    assert_eq!(handler_of(&served.node, &pod_name("heavy")), "kata");
    let said = served.refused(403, "DELETE", &format!("{CLASSES}/sandboxed"), JSON, &Value::Null);
    assert!(said.contains("defined by manifest"), "{said}");

    // The class goes: the pod goes on with what it has.
    let container = served.node.running("web");
    std::fs::remove_file(served.node.manifest("sandboxed.yaml")).expect("remove the class");
    wait_for("the class to be gone", PATIENCE, || match served.get(&format!("{CLASSES}/sandboxed")) {
        (404, _) => Ok(()),
        (_, found) => Err(found.to_string()),
    });
    served.node.keeps_running("web", &container);
    assert_eq!(
        (&shown(&served, "web")["metadata"]["uid"], &shown(&served, "web")["spec"]["overhead"]["cpu"]),
        (&uid, &json!("250m"))
    );
    // A new sandbox does not find it.
    let web = pod_name("web");
    served.node.cri.change(|world, now| {
        let sandbox = world.sandboxes.iter().find(|(_, sandbox)| *sandbox.observed.pod.name == *web);
        let id = sandbox.map(|(id, _)| id.clone()).expect("a sandbox");
        world.kill_sandbox(&id, now);
    });
    served.node.logged(&["web-edge", "FailedCreatePodSandBox", "RuntimeClass", "sandboxed", "not found"]);
}
