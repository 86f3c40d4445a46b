#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::objects::ObjectKind::{ControllerRevision, PersistentVolumeClaim, StatefulSet};
use crate::workload::testing::{FakeNode, document, template};

fn set(image: &str, replicas: i64, more: Value) -> Value {
    let mut spec = json!({
        "replicas": replicas, "serviceName": "db",
        "selector": {"matchLabels": {"app": "web"}},
        "template": template(image, "Always"),
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    document("StatefulSet", "db", spec)
}

fn claims() -> Value {
    json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]})
}

fn images(node: &FakeNode) -> Vec<String> {
    let shown = |pod: &PodView| format!("{}={}", pod.name(), pod.pod.spec.containers[0].image);
    let mut images: Vec<String> = node.active().into_iter().map(shown).collect();
    images.sort();
    images
}

fn ready(node: &mut FakeNode, name: &str) {
    let uid = node.pod(name).uid().clone();
    node.set_pod(&uid, "Running", true);
    node.wait(1);
}

/// Everything that waits gets ready, everything that is deleted ends, until nothing happens.
fn settle(node: &mut FakeNode) {
    for _ in 0..40 {
        node.end_deleted();
        node.ready_all();
        node.wait(1);
    }
}

#[test]
fn pods_come_one_after_another_with_their_names_and_claims() {
    let mut node = FakeNode::new();
    node.apply(set("a:1", 3, claims()));
    node.pass();
    assert_eq!(node.pod_names(), ["db-0"]);
    let pod = node.pod("db-0").clone();
    let revision = node.status(StatefulSet, "db")["updateRevision"].clone();
    assert_eq!(json!(pod.label(HASH)), revision);
    assert_eq!((pod.pod.spec.hostname.as_str(), pod.pod.spec.subdomain.as_str()), ("db-0", "db"));
    assert_eq!(
        (pod.label("statefulset.kubernetes.io/pod-name"), pod.label("apps.kubernetes.io/pod-index")),
        ("db-0", "0")
    );
    let volume = &pod.pod.spec.volumes[0];
    assert_eq!(
        (volume.name.as_str(), volume.persistent_volume_claim.as_ref().unwrap().claim_name.as_str()),
        ("data", "data-db-0")
    );
    assert_eq!(node.get(PersistentVolumeClaim, "data-db-0")["metadata"]["labels"], json!({"app": "web"}));
    node.wait(60);
    assert_eq!(node.pod_names().len(), 1, "waits for the first");
    ready(&mut node, "db-0");
    ready(&mut node, "db-1");
    assert_eq!(node.pod_names(), ["db-0", "db-1", "db-2"]);
    ready(&mut node, "db-2");
    let status = node.status(StatefulSet, "db");
    for (field, count) in [
        ("replicas", 3),
        ("readyReplicas", 3),
        ("availableReplicas", 3),
        ("currentReplicas", 3),
        ("updatedReplicas", 3),
    ] {
        assert_eq!(status[field], count, "{field}");
    }
    let events = node.take_events();
    assert_eq!(
        events[0],
        "StatefulSet/db SuccessfulCreate: create Claim data-db-0 Pod db-0 in StatefulSet db success"
    );
    assert_eq!(events[1], "StatefulSet/db SuccessfulCreate: create Pod db-0 in StatefulSet db successful");
    // Down from the top, one at a time.
    node.apply(set("a:1", 1, claims()));
    node.wait(1);
    assert_eq!(images(&node).len(), 2);
    node.wait(60);
    assert_eq!(images(&node).len(), 2);
    settle(&mut node);
    assert_eq!(node.pod_names(), ["db-0"]);
    assert_eq!(node.names(PersistentVolumeClaim).len(), 3, "claims stay");
}

#[test]
fn parallel_pods_come_and_go_together() {
    let mut node = FakeNode::new();
    node.apply(set("a:1", 3, json!({"podManagementPolicy": "Parallel", "ordinals": {"start": 5}})));
    node.pass();
    assert_eq!(node.pod_names(), ["db-5", "db-6", "db-7"]);
    node.apply(set("a:1", 0, json!({"podManagementPolicy": "Parallel", "ordinals": {"start": 5}})));
    node.wait(1);
    assert!(node.active().is_empty());
}

#[test]
fn a_great_number_of_parallel_pods_comes_in_parts() {
    let mut node = FakeNode::new();
    node.environment.refuses = Some("pods is forbidden: no room".to_owned());
    node.apply(set("a:1", 600, json!({"podManagementPolicy": "Parallel"})));
    node.pass();
    let refused = node.take_events().iter().filter(|event| event.contains("FailedCreate")).count();
    assert!((1..10).contains(&refused), "{refused} events");
    node.environment.refuses = None;
    node.pass();
    assert_eq!(node.pods.len(), 500);
    node.wait(1);
    assert_eq!(node.pods.len(), 600);
}

#[test]
fn an_update_goes_from_the_top_and_stops_at_the_partition() {
    let mut node = FakeNode::new();
    node.apply(set("a:1", 3, json!({})));
    settle(&mut node);
    let partition = |number: i64| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": number}}});
    node.apply(set("a:2", 3, partition(2)));
    node.wait(1);
    assert_eq!(images(&node), ["db-0=a:1", "db-1=a:1"]);
    settle(&mut node);
    assert_eq!(images(&node), ["db-0=a:1", "db-1=a:1", "db-2=a:2"]);
    let status = node.status(StatefulSet, "db");
    assert_ne!(status["currentRevision"], status["updateRevision"]);
    assert_eq!((&status["currentReplicas"], &status["updatedReplicas"]), (&json!(2), &json!(1)));
    // A pod below the partition comes back as it was.
    let uid = node.pod("db-0").uid().clone();
    node.delete_pod(&uid);
    settle(&mut node);
    assert_eq!(images(&node)[0], "db-0=a:1");
    node.apply(set("a:2", 3, partition(0)));
    node.wait(1);
    node.end_deleted();
    node.wait(1);
    assert_eq!(node.uids(|pod| !pod.is_ready()).len(), 1, "one at a time");
    settle(&mut node);
    assert_eq!(images(&node), ["db-0=a:2", "db-1=a:2", "db-2=a:2"]);
    let status = node.status(StatefulSet, "db");
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    assert_eq!(node.names(ControllerRevision).len(), 2);
}

#[test]
fn on_delete_replaces_only_what_is_deleted() {
    let mut node = FakeNode::new();
    let strategy = json!({"updateStrategy": {"type": "OnDelete"}});
    node.apply(set("a:1", 2, strategy.clone()));
    settle(&mut node);
    node.apply(set("a:2", 2, strategy));
    settle(&mut node);
    assert_eq!(images(&node), ["db-0=a:1", "db-1=a:1"]);
    let uid = node.pod("db-1").uid().clone();
    node.delete_pod(&uid);
    settle(&mut node);
    assert_eq!(images(&node), ["db-0=a:1", "db-1=a:2"]);
}

/// Upstream stays stuck: kubernetes/kubernetes#67250.
#[test]
fn a_stuck_pod_is_replaced_when_the_template_is_corrected() {
    let mut node = FakeNode::new();
    node.apply(set("a:1", 3, json!({})));
    settle(&mut node);
    node.apply(set("a:broken", 3, json!({})));
    node.wait(1);
    node.end_deleted();
    node.wait(1);
    assert_eq!(images(&node), ["db-0=a:1", "db-1=a:1", "db-2=a:broken"]);
    node.wait(600);
    assert_eq!(images(&node)[2], "db-2=a:broken");
    node.apply(set("a:3", 3, json!({})));
    node.wait(1);
    assert_eq!(images(&node), ["db-0=a:1", "db-1=a:1"], "at once");
    settle(&mut node);
    assert_eq!(images(&node), ["db-0=a:3", "db-1=a:3", "db-2=a:3"]);
}

#[test]
fn pods_that_end_come_back_under_their_names_after_a_pause() {
    let mut node = FakeNode::new();
    node.apply(set("a:1", 1, json!({})));
    settle(&mut node);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        let uid = node.pod("db-0").uid().clone();
        node.end_pod(&uid, 1);
        let mut seconds = 0;
        node.pass();
        while !node.pods[&uid].is_deleted {
            seconds += 1;
            node.wait(1);
        }
        pauses.push(seconds);
        node.end_deleted();
        node.pass();
    }
    assert_eq!(pauses, [0, 10, 20, 40]);
    assert!(
        node.take_events().contains(
            &"StatefulSet/db RecreatingFailedPod: StatefulSet default/db is recreating failed Pod db-0"
                .to_owned()
        )
    );
}

#[test]
fn claims_go_as_the_retention_policy_says() {
    let with = |deleted: &str, scaled: &str| {
        let mut more = claims();
        more["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": deleted, "whenScaled": scaled});
        more
    };
    let mut node = FakeNode::new();
    node.apply(set("a:1", 2, with("Delete", "Delete")));
    settle(&mut node);
    assert_eq!(node.get(PersistentVolumeClaim, "data-db-1")["metadata"]["ownerReferences"][0]["name"], "db");
    node.apply(set("a:1", 1, with("Delete", "Delete")));
    node.wait(1);
    assert!(node.has(PersistentVolumeClaim, "data-db-1"), "the pod still uses it");
    settle(&mut node);
    assert_eq!(node.names(PersistentVolumeClaim), ["data-db-0"]);
    node.apply(set("a:1", 1, with("Retain", "Retain")));
    node.wait(1);
    assert!(node.get(PersistentVolumeClaim, "data-db-0")["metadata"].get("ownerReferences").is_none());
    node.delete(StatefulSet, "db");
    settle(&mut node);
    assert_eq!((node.names(PersistentVolumeClaim).len(), node.pods.len()), (1, 0));
}

#[test]
fn old_revisions_are_bounded_and_those_in_use_stay() {
    let mut node = FakeNode::new();
    for version in 1..=6 {
        node.apply(set(&format!("a:{version}"), 1, json!({"revisionHistoryLimit": 2})));
        settle(&mut node);
    }
    assert_eq!(node.names(ControllerRevision).len(), 3);
    // An earlier template is the same revision, with a new number.
    node.apply(set("a:5", 1, json!({"revisionHistoryLimit": 2})));
    settle(&mut node);
    let mut numbers: Vec<i64> = node
        .names(ControllerRevision)
        .iter()
        .map(|name| node.get(ControllerRevision, name)["revision"].as_i64().unwrap())
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [4, 6, 7]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    #[test]
    fn names_are_unique_and_ordered_sets_grow_in_order(
        acts in proptest::collection::vec((0_u8..9, 0_usize..8), 1..60),
    ) {
        let mut node = FakeNode::new();
        let (mut replicas, mut version) = (3_i64, 0_usize);
        node.apply(set("a:0", replicas, json!({})));
        for (act, number) in acts {
            let uids = node.uids(PodView::is_active);
            let pick = uids.get(number % uids.len().max(1)).cloned();
            match (act, pick) {
                (0..=2, Some(uid)) => node.set_pod(&uid, "Running", true),
                (3, Some(uid)) => node.set_pod(&uid, "Running", false),
                (4, Some(uid)) => node.end_pod(&uid, 1),
                (5, Some(uid)) => node.delete_pod(&uid),
                (6, _) => node.end_deleted(),
                (7, _) => replicas = i64::try_from(number).unwrap() / 2,
                _ => version = number % 3,
            }
            node.apply(set(&format!("a:{version}"), replicas, json!({})));
            let before = node.pod_names();
            node.wait(5);
            let after = node.pod_names();
            let mut unique = after.clone();
            unique.dedup();
            prop_assert_eq!(&unique, &after);
            let new: Vec<&String> = after.iter().filter(|name| !before.contains(name)).collect();
            prop_assert!(new.len() <= 1, "{new:?} at once");
            if let Some(name) = new.first() {
                let ordinal: i64 = name[3..].parse().unwrap();
                for lower in 0..ordinal {
                    let pod = node.pod(&format!("db-{lower}"));
                    prop_assert!(pod.is_ready() && !pod.is_deleted, "db-{lower} is not ready");
                }
            }
        }
        for _ in 0..30 {
            settle(&mut node);
            node.wait(300);
        }
        let expected: Vec<String> = (0..replicas).map(|ordinal| format!("db-{ordinal}=a:{version}")).collect();
        prop_assert_eq!(images(&node), expected);
    }
}
