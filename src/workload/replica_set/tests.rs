use std::time::Duration;

use serde_json::json;

use crate::model::objects::ObjectKind::{Job, ReplicaSet};
use crate::workload::testing::{FakeNode, document, template};

fn set(replicas: i64) -> serde_json::Value {
    document(
        "ReplicaSet",
        "web",
        json!({
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("a:1", "Always"),
        }),
    )
}

#[test]
fn pods_that_end_are_replaced_after_pauses_that_double() {
    let mut node = FakeNode::new();
    node.apply(set(1));
    node.pass();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let uid = node.active()[0].uid().clone();
        node.end_pod(&uid, 1);
        let mut seconds = 0;
        node.pass();
        while node.active().is_empty() {
            seconds += 1;
            node.wait(1);
        }
        node.end_deleted();
        pauses.push(seconds);
    }
    assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 160, 160]);
    assert_eq!(node.pods.len(), 7, "the newest six that failed, and the one that runs");
}

#[test]
fn a_pod_whose_labels_change_is_released_and_replaced() {
    let mut node = FakeNode::new();
    node.apply(set(2));
    node.pass();
    node.ready_all();
    node.pass();
    let uid = node.active()[0].uid().clone();
    let view = node.pods.get_mut(&uid).unwrap();
    std::rc::Rc::make_mut(&mut view.pod).metadata.labels.insert("app".into(), "debug".into());
    node.pass();
    assert_eq!(node.pods[&uid].owner(), None);
    assert_eq!(node.pods.len(), 3);
    // With its old label it comes back, and there is one too many: the one that is not ready goes.
    let view = node.pods.get_mut(&uid).unwrap();
    std::rc::Rc::make_mut(&mut view.pod).metadata.labels.insert("app".into(), "web".into());
    node.pass();
    assert_eq!(node.active().len(), 2);
    assert!(node.pods[&uid].owner().is_some());
}

#[test]
fn a_pod_counts_as_available_after_min_ready_seconds() {
    let mut node = FakeNode::new();
    let mut set = set(1);
    set["spec"]["minReadySeconds"] = json!(30);
    node.apply(set);
    node.pass();
    node.ready_all();
    node.wait(1);
    let available = |node: &FakeNode| node.status(ReplicaSet, "web")["availableReplicas"].clone();
    assert_eq!(available(&node), json!(null));
    let wake = node.rests.values().next().unwrap().wake.unwrap();
    assert_eq!(wake, node.now.saturating_add(Duration::from_secs(29)));
    node.wait(29);
    assert_eq!(available(&node), 1);
}

#[test]
fn a_great_number_of_pods_comes_in_parts() {
    let mut node = FakeNode::new();
    node.apply(set(1_200));
    node.pass();
    assert_eq!(node.pods.len(), 500);
    assert_eq!(node.condition(ReplicaSet, "web", "ReplicaFailure")[0], "");
    let wake = |node: &FakeNode| node.rests.values().next().and_then(|rest| rest.wake);
    assert_eq!(wake(&node), Some(node.now.saturating_add(Duration::from_secs(1))));
    // What happens to the first ones does not hurry it.
    node.ready_all();
    node.pass();
    assert_eq!(node.pods.len(), 500);
    node.wait(1);
    assert_eq!(node.pods.len(), 1_000);
    node.wait(1);
    assert_eq!(node.pods.len(), 1_200);
    node.wait(1);
    assert_eq!((node.status(ReplicaSet, "web")["replicas"].as_i64(), wake(&node)), (Some(1_200), None));
}

#[test]
fn controllers_share_the_pods_of_one_pass() {
    let mut node = FakeNode::new();
    node.apply(set(300));
    node.apply(document("Job", "work", json!({"parallelism": 300, "template": template("a:1", "Never")})));
    node.pass();
    assert_eq!(node.pods.len(), 500);
    assert_eq!(node.status(Job, "work")["active"], 200);
    node.wait(1);
    assert_eq!(node.status(Job, "work")["active"], 300);
}
