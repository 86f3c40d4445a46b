//! What classes make of pods.

use std::rc::Rc;

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::wire::from_value;
use crate::model::objects::{FixedFacts, LocalObjects, NodeObjects, ObjectContent, SourceObject};
use serde_json::{Value, json};

fn pod(spec: &Value) -> Pod {
    decode(json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec})).unwrap().object
}

fn class(fields: &Value) -> RuntimeClassSpec {
    let mut object = json!({"metadata": {"name": "sandboxed"}, "handler": "kata"});
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    match from_value(ObjectKind::RuntimeClass, object).unwrap().content {
        ObjectContent::RuntimeClass(class) => class,
        other => panic!("{other:?}"),
    }
}

fn named(name: &str) -> RuntimeHandler {
    RuntimeHandler { name: name.to_owned(), ..RuntimeHandler::default() }
}

/// The spec that is admitted, or the refusal.
fn admitted(spec: &Value, class: Option<&RuntimeClassSpec>, handlers: &[&str]) -> Result<Value, String> {
    let mut pod = pod(spec);
    admit(&mut pod, class, handlers.iter().copied()).map(|()| json!(pod.spec))
}

#[test]
fn a_class_gives_pods_its_overhead_and_refuses_another_one() {
    let heavy = class(&json!({"overhead": {"podFixed": {"cpu": "250m", "memory": "64Mi"}}}));
    let light = class(&json!({}));
    let asks = |overhead: Value| json!({"runtimeClassName": "sandboxed", "overhead": overhead});
    let taken = json!({"runtimeClassName": "sandboxed", "overhead": {"cpu": "250m", "memory": "64Mi"}});
    for spec in [asks(json!({})), asks(json!({"cpu": "0.25", "memory": "67108864"})), taken.clone()] {
        let found = admitted(&spec, Some(&heavy), &[]).unwrap();
        assert_eq!(found, taken, "{spec}");
    }
    let other = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
    assert_eq!(admitted(&asks(json!({"cpu": "1"})), Some(&heavy), &[]).unwrap_err(), other);
    let none = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
    assert_eq!(admitted(&asks(json!({"cpu": "1"})), Some(&light), &[]).unwrap_err(), none);
    assert_eq!(admitted(&json!({"overhead": {"cpu": "1"}}), None, &["", "kata"]).unwrap_err(), none);
}

#[test]
fn a_class_is_the_handlers_name_only_without_an_object() {
    let spec = json!({"runtimeClassName": "sandboxed", "overhead": {"cpu": "1"}});
    assert_eq!(
        admitted(&spec, None, &["", "kata"]).unwrap_err(),
        "pod rejected: RuntimeClass \"sandboxed\" not found"
    );
    for handlers in [&["", "sandboxed"][..], &[]] {
        assert_eq!(admitted(&spec, None, handlers).unwrap(), spec, "{handlers:?}");
    }
    let (pod, class) = (pod(&spec), class(&json!({})));
    assert_eq!((handler(&pod, Some(&class)), handler(&pod, None)), ("kata", "sandboxed"));
    assert_eq!(handler(&Pod::default(), None), "");
}

#[test]
fn a_class_adds_node_selector_and_tolerations() {
    let toleration = |key: &str, more: Value| {
        let mut toleration = json!({"key": key, "operator": "Exists"});
        toleration.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        toleration
    };
    let class = class(&json!({"scheduling": {"nodeSelector": {"disk": "ssd"}, "tolerations": [
        toleration("a", json!({})),
        toleration("b", json!({"effect": "NoExecute", "tolerationSeconds": 60})),
    ]}}));
    let spec = json!({"runtimeClassName": "sandboxed", "nodeSelector": {"zone": "x"}, "tolerations": [
        toleration("a", json!({"effect": "NoSchedule"})),
        toleration("b", json!({"effect": "NoExecute"})),
        toleration("b", json!({"effect": "NoExecute", "tolerationSeconds": 30})),
    ]});
    let found = admitted(&spec, Some(&class), &[]).unwrap();
    assert_eq!(found["nodeSelector"], json!({"disk": "ssd", "zone": "x"}));
    assert_eq!(
        found["tolerations"],
        json!([toleration("b", json!({"effect": "NoExecute"})), toleration("a", json!({}))]),
        "what another one includes is left out"
    );
    let conflict = json!({"runtimeClassName": "sandboxed", "nodeSelector": {"disk": "hdd"}});
    assert_eq!(
        admitted(&conflict, Some(&class), &[]).unwrap_err(),
        "conflict: runtimeClass.scheduling.nodeSelector[disk] = ssd; pod.spec.nodeSelector[disk] = hdd"
    );
}

#[test]
fn a_pod_of_a_manifest_keeps_what_its_class_said_first() {
    let overhead = |cpu: &str| class(&json!({"overhead": {"podFixed": {"cpu": cpu}}}));
    let written = pod(&json!({"runtimeClassName": "sandboxed"}));
    assert_eq!(resolved(&written, None, None), None);
    let first = resolved(&written, None, Some(&overhead("1"))).unwrap().unwrap();
    assert_eq!(json!(first.overhead), json!({"cpu": "1"}));
    let known = Pod { spec: first.clone(), ..written.clone() };
    for class in [Some(overhead("2")), None] {
        let again = resolved(&written, Some(&known), class.as_ref());
        assert_eq!(again, Some(Ok(first.clone())), "the class changed or went: {class:?}");
    }
    let late = resolved(&written, Some(&written), Some(&overhead("2"))).unwrap().unwrap();
    assert_eq!(json!(late.overhead), json!({"cpu": "2"}), "the class came after the pod");
    let otherwise = pod(&json!({"runtimeClassName": "sandboxed", "overhead": {"cpu": "3"}}));
    assert!(resolved(&otherwise, None, Some(&overhead("1"))).unwrap().is_err());
}

#[test]
fn a_class_stands_before_a_handler_of_its_name() {
    let able = RuntimeHandler { user_namespaces: true, ..named("kata") };
    let handlers = [named(""), able.clone(), named("sandboxed")];
    let found = by_class_name(&handlers, vec![("sandboxed".to_owned(), class(&json!({})))]);
    let expected = RuntimeHandler { name: "sandboxed".to_owned(), ..able.clone() };
    assert_eq!(found, [named(""), able, expected]);
    let lost = RuntimeClassSpec { handler: "gone".to_owned(), ..class(&json!({})) };
    let found = by_class_name(&[named(""), named("sandboxed")], vec![("sandboxed".to_owned(), lost)]);
    assert_eq!(found, [named("")]);
    assert!(by_class_name(&[], vec![("sandboxed".to_owned(), class(&json!({})))]).is_empty());
}

#[test]
fn a_class_of_the_cluster_must_be_there() {
    let (node, cluster) = (LocalObjects::default(), LocalObjects::default());
    let set = |objects: &LocalObjects, name: &str, handler: &str| {
        let wire = json!({"metadata": {"name": name}, "handler": handler});
        let object = from_value(ObjectKind::RuntimeClass, wire).unwrap();
        let object = SourceObject { object: Rc::new(object), origin: String::new() };
        objects.set(&object.object.key, Some(&object));
    };
    set(&node, "of-node", "runc");
    set(&cluster, "sandboxed", "kata");
    let objects = NodeObjects::joined(node, cluster, FixedFacts::default());
    let found = |class: &str, source: &str| {
        let mut pod = pod(&json!({"runtimeClassName": class}));
        let source = ("kubernetes.io/config.source".to_owned(), source.to_owned());
        pod.metadata.annotations.extend([source]);
        find_class(&pod, &objects).map(|class| handler(&pod, class.as_ref()).to_owned())
    };
    assert_eq!(found("sandboxed", "cluster").as_deref(), Ok("kata"));
    assert_eq!(found("of-node", "cluster").unwrap_err(), "runtimeclass.node.k8s.io \"of-node\" not found");
    assert_eq!(found("", "cluster").as_deref(), Ok(""));
    assert_eq!(found("of-node", "file").as_deref(), Ok("runc"));
    assert_eq!(found("sandboxed", "file").as_deref(), Ok("sandboxed"), "the name of a handler");
}
