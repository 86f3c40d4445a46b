#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use serde_json::json;

use super::*;
use crate::model::objects::ObjectKind::{ControllerRevision, DaemonSet};
use crate::workload::testing::{FakeNode, document, template};

fn set(image: &str, more: Value) -> Value {
    let mut spec =
        json!({"selector": {"matchLabels": {"app": "web"}}, "template": template(image, "Always")});
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    document("DaemonSet", "agent", spec)
}

fn images(node: &FakeNode) -> Vec<&str> {
    node.active().into_iter().map(|pod| pod.pod.spec.containers[0].image.as_str()).collect()
}

#[test]
fn a_node_of_the_set_has_one_pod_that_is_pinned_to_it() {
    let mut node = FakeNode::new();
    node.apply(set("a:1", json!({})));
    node.pass();
    let pod = node.active()[0].clone();
    assert!(pod.name().starts_with("agent-") && pod.name().len() == 11, "{}", pod.name());
    let affinity = pod.pod.spec.affinity.clone().unwrap();
    let term =
        &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0];
    assert_eq!(
        *term,
        json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]})
    );
    let keys: Vec<&str> = pod.pod.spec.tolerations.iter().map(|toleration| toleration.key.as_str()).collect();
    assert_eq!(keys.len(), 6);
    assert!(keys.contains(&"node.kubernetes.io/unschedulable"), "{keys:?}");
    let revision = &node.names(ControllerRevision)[0];
    assert_eq!(*revision, format!("agent-{}", pod.label(HASH)));
    let counts = |node: &FakeNode| {
        let status = node.status(DaemonSet, "agent");
        [
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "numberReady",
            "numberAvailable",
            "numberUnavailable",
            "updatedNumberScheduled",
            "numberMisscheduled",
        ]
        .map(|field| status[field].as_i64().unwrap_or_default())
    };
    assert_eq!(counts(&node), [1, 1, 0, 0, 1, 1, 0]);
    node.ready_all();
    node.wait(1);
    assert_eq!(counts(&node), [1, 1, 1, 1, 0, 1, 0]);
    // Cordoned with a taint that it does not tolerate: the pod that runs stays.
    node.environment.daemon_fits = (false, true);
    node.wait(1);
    assert_eq!(counts(&node), [0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(node.active().len(), 1);
    node.environment.daemon_fits = (false, false);
    node.wait(1);
    node.end_deleted();
    node.wait(1);
    assert!(node.pods.is_empty());
    assert_eq!(counts(&node), [0; 7]);
}

#[test]
fn an_update_stops_the_old_pod_first_unless_it_surges() {
    let mut node = FakeNode::new();
    node.apply(set("a:1", json!({})));
    node.pass();
    node.ready_all();
    node.wait(1);
    node.apply(set("a:2", json!({})));
    node.wait(1);
    assert_eq!(images(&node), Vec::<&str>::new());
    node.wait(10);
    assert_eq!(images(&node).len(), 0, "it still ends");
    node.end_deleted();
    node.wait(1);
    assert_eq!(images(&node), ["a:2"]);

    let surge = json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}});
    let mut node = FakeNode::new();
    node.apply(set("a:1", surge.clone()));
    node.pass();
    node.ready_all();
    node.wait(1);
    node.apply(set("a:2", surge));
    node.wait(1);
    assert_eq!(images(&node).len(), 2);
    node.wait(60);
    assert_eq!(images(&node).len(), 2, "the new one is not ready");
    node.ready_all();
    node.wait(1);
    assert_eq!(images(&node), ["a:2"]);
}

#[test]
fn on_delete_waits_for_the_user() {
    let mut node = FakeNode::new();
    let strategy = json!({"updateStrategy": {"type": "OnDelete"}});
    node.apply(set("a:1", strategy.clone()));
    node.pass();
    node.apply(set("a:2", strategy));
    node.wait(60);
    assert_eq!(images(&node), ["a:1"]);
    assert_eq!(node.status(DaemonSet, "agent").get("updatedNumberScheduled"), None);
    let uid = node.active()[0].uid().clone();
    node.delete_pod(&uid);
    node.end_deleted();
    node.wait(1);
    assert_eq!(images(&node), ["a:2"]);
}

#[test]
fn a_failed_pod_is_replaced_after_a_pause_that_doubles() {
    let mut node = FakeNode::new();
    node.apply(set("a:1", json!({})));
    node.pass();
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let uid = node.active()[0].uid().clone();
        node.end_pod(&uid, 1);
        let mut seconds = 0;
        node.pass();
        while !node.pods[&uid].is_deleted {
            seconds += 1;
            node.wait(1);
        }
        node.end_deleted();
        node.pass();
        pauses.push(seconds);
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16]);
    let events = node.take_events();
    assert!(
        events.iter().any(|event| event.contains("FailedDaemonPod: Found failed daemon pod default/agent-")
            && event.ends_with("on node node1, will try to kill it")),
        "{events:?}"
    );
}
