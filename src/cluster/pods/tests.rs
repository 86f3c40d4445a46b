//! The rules of the source and of its deliveries, in tables.

use std::time::Duration;

use serde_json::{Value, json};

use super::convert::{Converted, from_server};
use super::fence::expired;
use super::guard::{FirstAnswer, GuardReason, Verdict, judge};
use super::hold::{Hold, ready};
use super::mirrors::{Mirror, NodeIdentity, REDUCED_ANNOTATION, mirror_of, mirrors};
use super::outbox::{Delivery, SeenPod, Sent, accepted, next_delivery};
use super::*;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::patch::{digest, outgoing};
use crate::cluster::watch::frames::WatchItem;
use crate::model::api::decode::decode;
use crate::model::source::SourceAnswer;
use crate::model::types::{PodSource, PodUid, Timestamp};

const CREATED: &str = "2026-11-20T16:00:00Z";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn raw(name: &str, uid: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": uid, "resourceVersion": "7", "generation": 1,
            "creationTimestamp": CREATED,
        },
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    })
}

fn with(mut value: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, change) in changes {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap()[field] = change.clone();
    }
    value
}

fn converted(value: Value, known: Option<&Rc<Pod>>) -> Converted {
    from_server(value, "n", known, at(100)).unwrap()
}

fn pod(value: Value) -> Rc<Pod> {
    converted(value, None).pod.unwrap()
}

/// A status as a worker computes it.
fn status(phase: &str) -> Value {
    let state = match phase {
        "Running" => json!({"running": {"startedAt": CREATED}}),
        _ => json!({"terminated": {"exitCode": 0, "finishedAt": CREATED}}),
    };
    json!({
        "phase": phase, "startTime": CREATED, "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "c", "state": state, "ready": phase == "Running"}],
    })
}

fn local(phase: &str) -> Pod {
    decode(with(raw("p", "u"), &[("/status", status(phase))])).unwrap().object
}

/// A pod that was deleted and of which only the object is left.
fn ended() -> Pod {
    let mut pod = local("Succeeded");
    pod.metadata.deletion_timestamp = Some(at(50));
    pod.metadata.deletion_grace_period_seconds = Some(0);
    pod
}

#[test]
fn a_status_heartbeat_writes_nothing() {
    let first = pod(raw("p", "u"));
    assert_eq!(crate::model::provenance::first_seen(&first), Some(at(100)));
    let beat =
        with(raw("p", "u"), &[("/status", status("Running")), ("/metadata/resourceVersion", json!("8"))]);
    let second = from_server(beat, "n", Some(&first), at(200)).unwrap();
    assert!(Rc::ptr_eq(second.pod.as_ref().unwrap(), &first));
    assert_ne!(second.seen.shown, converted(raw("p", "u"), None).seen.shown, "and it is seen");
    let changed = with(raw("p", "u"), &[("/metadata/labels", json!({"a": "b"}))]);
    assert!(!Rc::ptr_eq(converted(changed, Some(&first)).pod.as_ref().unwrap(), &first));
}

#[test]
fn readiness_gates_of_others_count() {
    let gate = json!([{"type": "example.com/gate", "status": "True"}, {"type": "Ready", "status": "True"}]);
    let pod = pod(with(raw("p", "u"), &[("/status/conditions", gate)]));
    let types: Vec<&str> = pod.status.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!((types, pod.status.phase.as_str()), (vec!["example.com/gate"], "Pending"));
}

#[test]
fn a_pod_that_the_server_calls_ended_keeps_its_status() {
    let pod = pod(with(raw("p", "u"), &[("/status", status("Succeeded"))]));
    assert_eq!((pod.status.phase.as_str(), pod.status.container_statuses.len()), ("Succeeded", 1));
}

#[test]
fn a_pod_of_another_node_is_refused() {
    for (change, said) in [
        (("/spec/nodeName", json!("other")), "spec.nodeName: the pod is bound to node \"other\""),
        (("/metadata/uid", json!("../../etc")), "metadata.uid"),
        (("/metadata/name", json!("a/b")), "metadata: "),
        (("/metadata/namespace", json!("..")), "metadata: "),
        (("/spec/containers", json!("none")), "spec.containers"),
    ] {
        let why = from_server(with(raw("p", "u"), &[change]), "n", None, at(1)).unwrap_err();
        assert!(why.starts_with(said), "{why}");
    }
}

#[test]
fn a_pod_cannot_claim_another_source() {
    let claim = json!({"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "h"});
    let pod = pod(with(raw("p", "u"), &[("/metadata/annotations", claim)]));
    assert!(crate::model::provenance::is_of_cluster(&pod) && !crate::pod::resources::is_critical(&pod));
    assert_eq!(pod.metadata.annotations.len(), 2, "{:?}", pod.metadata.annotations);
}

#[test]
fn a_forced_end_with_finalizers_still_kills() {
    let deleted = |grace: i64| {
        let end = "1970-01-01T00:01:40Z";
        let changes = [
            ("/metadata/deletionTimestamp", json!(end)),
            ("/metadata/deletionGracePeriodSeconds", json!(grace)),
        ];
        let pod = pod(with(raw("p", "u"), &changes));
        (pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds)
    };
    assert_eq!(deleted(30), (Some(at(70)), Some(30)), "the start of the grace period");
    assert_eq!(deleted(0), (Some(at(99)), Some(1)), "zero would mean that nothing runs any more");
}

#[test]
fn a_new_pod_waits_a_second_for_its_objects() {
    let new = pod(raw("p", "u"));
    let ending = pod(with(raw("p", "u"), &[("/metadata/deletionTimestamp", json!(CREATED))]));
    for (pod, is_known, lacks, now, expected) in [
        (&new, false, false, 100, Hold::Ready),
        (&new, false, true, 100, Hold::Until(at(101))),
        (&new, false, true, 101, Hold::Ready),
        (&new, false, true, 20, Hold::Ready),
        (&new, true, true, 100, Hold::Ready),
        (&ending, false, true, 100, Hold::Ready),
    ] {
        assert_eq!(ready(pod, is_known, lacks, at(now), at(100)), expected, "{is_known} {lacks} {now}");
    }
}

fn seen_of(value: Value) -> SeenPod {
    converted(value, None).seen
}

fn digest_of(delivery: &Delivery) -> u64 {
    let Delivery::Patch { digest, .. } = delivery else { panic!("{delivery:?}") };
    *digest
}

#[test]
fn deletion_is_a_handshake_of_three_steps() {
    let pod = ended();
    let deleting = [("/metadata/deletionTimestamp", json!(CREATED))];
    let running = with(with(raw("p", "u"), &deleting), &[("/status", status("Running"))]);
    let first = next_delivery(&pod, Some(&seen_of(running)), None, at(100));
    assert!(matches!(&first, Delivery::Patch { is_end: true, .. }), "{first:?}");
    let sent = accepted(None, &first, at(100));
    let mut seen = seen_of(with(with(raw("p", "u"), &deleting), &[("/status", status("Succeeded"))]));
    assert_eq!(seen.shown, digest_of(&first), "the echo");
    let second = next_delivery(&pod, Some(&seen), Some(&sent), at(101));
    assert_eq!(second, Delivery::Delete { to: seen.reference.clone(), grace: 0 });
    let mut still_held = pod.clone();
    still_held.metadata.deletion_grace_period_seconds = Some(30);
    assert_eq!(next_delivery(&still_held, Some(&seen), Some(&sent), at(101)), Delivery::Nothing);
    assert_eq!(next_delivery(&pod, None, Some(&sent), at(102)), Delivery::Nothing, "gone at the server");
    seen.mirror_of = Some("s".into());
    assert_eq!(next_delivery(&pod, Some(&seen), Some(&sent), at(101)), Delivery::Nothing, "a mirror");
}

#[test]
fn finalizers_keep_the_object_and_no_process() {
    let deleting = [("/metadata/deletionTimestamp", json!(CREATED)), ("/status", status("Succeeded"))];
    let seen = seen_of(with(raw("p", "u"), &deleting));
    let delete = next_delivery(&ended(), Some(&seen), None, at(100));
    assert!(matches!(delete, Delivery::Delete { grace: 0, .. }), "{delete:?}");
    let sent = accepted(None, &delete, at(100));
    assert_eq!(next_delivery(&ended(), Some(&seen), Some(&sent), at(500)), Delivery::Nothing);
}

#[test]
fn an_echo_of_our_status_sends_nothing() {
    let running = local("Running");
    let pending = seen_of(raw("p", "u"));
    let first = next_delivery(&running, Some(&pending), None, at(100));
    let sent = accepted(None, &first, at(100));
    assert_eq!(next_delivery(&running, Some(&pending), Some(&sent), at(101)), Delivery::After(at(110)));
    let echo = seen_of(with(raw("p", "u"), &[("/status", status("Running"))]));
    assert_eq!(next_delivery(&running, Some(&echo), Some(&sent), at(101)), Delivery::Nothing);
}

#[test]
fn a_restart_sends_no_equal_status() {
    let echo = seen_of(with(raw("p", "u"), &[("/status", status("Running"))]));
    assert_eq!(next_delivery(&local("Running"), Some(&echo), None, at(1)), Delivery::Nothing);
    let unsynced: Pod = decode(raw("p", "u")).unwrap().object;
    assert_eq!(
        next_delivery(&unsynced, Some(&echo), None, at(1)),
        Delivery::Nothing,
        "its worker has not looked"
    );
    let over = seen_of(with(raw("p", "u"), &[("/status", status("Succeeded"))]));
    assert_eq!(next_delivery(&local("Running"), Some(&over), None, at(1)), Delivery::Nothing, "an end stays");
}

#[test]
fn a_server_that_drops_fields_is_not_asked_forever() {
    let running = local("Running");
    let odd = seen_of(raw("p", "u"));
    let mut sent: Option<Sent> = None;
    let mut patches = 0;
    let mut now = 100;
    for _ in 0..20 {
        match next_delivery(&running, Some(&odd), sent.as_ref(), at(now)) {
            Delivery::After(until) => now = until.as_nanos() / 1_000_000_000,
            delivery @ Delivery::Patch { .. } => {
                patches += 1;
                sent = Some(accepted(sent.as_ref(), &delivery, at(now)));
            }
            _ => break,
        }
    }
    assert_eq!((patches, now), (2, 120));
    let changed = next_delivery(&local("Succeeded"), Some(&odd), sent.as_ref(), at(121));
    assert_eq!(digest_of(&changed), digest(&outgoing(&local("Succeeded"))), "another status is sent");
}

#[test]
fn a_clock_that_is_set_back_delays_no_status() {
    let (running, odd) = (local("Running"), seen_of(raw("p", "u")));
    let first = next_delivery(&running, Some(&odd), None, at(100_000));
    let sent = accepted(None, &first, at(100_000));
    let again = next_delivery(&running, Some(&odd), Some(&sent), at(5));
    assert!(matches!(again, Delivery::Patch { .. }), "{again:?}");
}

fn node() -> NodeIdentity {
    NodeIdentity { name: "n".to_owned(), uid: "node-uid".to_owned() }
}

fn static_pod(spec: &Value, hash: &str) -> Rc<Pod> {
    let annotations = json!({"kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file"});
    let metadata = json!({"name": "s-n", "namespace": "default", "uid": hash, "annotations": annotations});
    Rc::new(decode(json!({"metadata": metadata, "spec": spec})).unwrap().object)
}

fn plain(hash: &str) -> Rc<Pod> {
    static_pod(&json!({"nodeName": "n", "containers": [{"name": "c"}]}), hash)
}

/// The mirror as the server shows it after its creation.
fn shown(mirror: Mirror, uid: &str) -> SeenPod {
    let Mirror::Whole(body) = mirror else { panic!("{mirror:?}") };
    seen_of(with(body, &[("/metadata/uid", json!(uid))]))
}

#[test]
fn a_static_pod_gets_one_mirror() {
    let pod = plain("h");
    let Mirror::Whole(body) = mirror_of(&pod, &node()) else { panic!() };
    assert_eq!(body["metadata"]["annotations"]["kubernetes.io/config.mirror"], "h");
    let owner =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid", "controller": true}]);
    assert_eq!(body["metadata"]["ownerReferences"], owner);
    assert!(body["metadata"].get("uid").is_none() && body.get("status").is_none());
    let statics = [Rc::clone(&pod)];
    assert_eq!(mirrors(&statics, &[], &node()), [Delivery::CreateMirror { body }]);
    let seen = shown(mirror_of(&pod, &node()), "m");
    assert_eq!((seen.mirror_of.clone(), seen.hash.as_str()), (Some(PodUid::from("h")), "h"));
    assert_eq!(mirrors(&statics, &[&seen], &node()), []);
    let unregistered = NodeIdentity { uid: String::new(), ..node() };
    assert_eq!(mirrors(&statics, &[], &unregistered), []);
}

#[test]
fn a_changed_hash_replaces_the_mirror() {
    let old = shown(mirror_of(&plain("h"), &node()), "m");
    let statics = [plain("h2")];
    let delete = Delivery::Delete { to: old.reference.clone(), grace: 0 };
    assert_eq!(mirrors(&statics, &[&old], &node()), std::slice::from_ref(&delete), "first the old one goes");
    assert!(matches!(mirrors(&statics, &[], &node())[..], [Delivery::CreateMirror { .. }]));
    assert_eq!(mirrors(&[], &[&old], &node()), [delete], "an orphan");
}

#[test]
fn a_deleted_mirror_comes_back() {
    let seen = SeenPod { is_deleting: true, ..shown(mirror_of(&plain("h"), &node()), "m") };
    let delete = Delivery::Delete { to: seen.reference.clone(), grace: 0 };
    assert_eq!(mirrors(&[plain("h")], &[&seen], &node()), [delete]);
    assert_eq!(mirrors(&[plain("h")], &[], &node()).len(), 1);
}

#[test]
fn a_mirror_without_local_objects_is_marked() {
    let token = json!({"serviceAccountToken": {"path": "t"}});
    let labels = json!({"downwardAPI": {"items": []}});
    let pod = static_pod(
        &json!({
            "nodeName": "n", "serviceAccountName": "default", "imagePullSecrets": [{"name": "r"}],
            "volumes": [
                {"name": "settings", "configMap": {"name": "a"}},
                {"name": "both", "projected": {"sources": [labels, token]}},
                {"name": "token", "projected": {"sources": [token]}},
                {"name": "disk", "hostPath": {"path": "/data"}},
            ],
            "containers": [{
                "name": "c",
                "volumeMounts": [
                    {"name": "settings", "mountPath": "/a"}, {"name": "disk", "mountPath": "/b"},
                    {"name": "both", "mountPath": "/c"}, {"name": "token", "mountPath": "/d"},
                ],
                "envFrom": [{"configMapRef": {"name": "a"}}],
                "env": [
                    {"name": "PLAIN", "value": "1"},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
            }],
        }),
        "h",
    );
    let Mirror::Reduced(body, left_out) = mirror_of(&pod, &node()) else { panic!() };
    assert_eq!(body["metadata"]["annotations"][REDUCED_ANNOTATION], "true");
    let names = |list: &Value| {
        let items = list.as_array().into_iter().flatten();
        items.map(|item| item["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let container = &body["spec"]["containers"][0];
    assert_eq!(names(&body["spec"]["volumes"]), ["both", "disk"]);
    assert_eq!(names(&container["volumeMounts"]), ["disk", "both"]);
    assert_eq!(names(&container["env"]), ["PLAIN", "NODE"]);
    assert_eq!(container["envFrom"], json!([]));
    assert_eq!(left_out.len(), 8, "{left_out:?}");
    let text = body["spec"].to_string();
    assert!(!text.contains("serviceAccount") && !text.contains("imagePullSecrets"), "{text}");
}

#[test]
fn the_guard_judges_the_first_list() {
    let answer =
        |missing, node, version_went_back| FirstAnswer { known: 5, missing, node, version_went_back };
    let held = Guard::Holding { since: at(100), why: GuardReason::AnotherNode };
    let restored = Guard::Holding { since: at(100), why: GuardReason::VersionWentBack };
    for (guard, answer, is_accepted, now, expected) in [
        (Guard::Open, answer(5, NodeSeen::Same, false), false, 100, (Guard::Open, Verdict::Believe)),
        (Guard::Open, answer(0, NodeSeen::Other, false), false, 100, (Guard::Open, Verdict::Believe)),
        (Guard::Open, answer(1, NodeSeen::Other, false), false, 100, (held, Verdict::Hold)),
        (Guard::Open, answer(1, NodeSeen::Absent, false), false, 100, (Guard::Open, Verdict::RegisterFirst)),
        (Guard::Open, answer(1, NodeSeen::Same, true), false, 100, (restored, Verdict::Hold)),
        (held, answer(1, NodeSeen::Other, false), false, 699, (held, Verdict::Hold)),
        (held, answer(1, NodeSeen::Absent, false), false, 200, (held, Verdict::Hold)),
        (held, answer(1, NodeSeen::Other, false), false, 700, (Guard::Open, Verdict::Believe)),
        (held, answer(1, NodeSeen::Other, false), true, 200, (Guard::Open, Verdict::Believe)),
        (held, answer(1, NodeSeen::Same, false), false, 200, (Guard::Open, Verdict::Believe)),
        // A backup has the earlier Node; a restart forgets its version, and the guard is stored.
        (restored, answer(1, NodeSeen::Same, false), false, 200, (restored, Verdict::Hold)),
        (restored, answer(0, NodeSeen::Same, false), false, 200, (Guard::Open, Verdict::Believe)),
        (restored, answer(1, NodeSeen::Same, false), false, 700, (Guard::Open, Verdict::Believe)),
    ] {
        let found = judge(&guard, &answer, is_accepted, at(now), Duration::from_secs(600));
        assert_eq!(found, expected, "{guard:?} {answer:?} {is_accepted} {now}");
    }
    let found = judge(&Guard::Open, &answer(5, NodeSeen::Absent, false), false, at(1), Duration::ZERO);
    assert_eq!(found.1, Verdict::Believe, "no guard");
}

#[test]
fn a_guard_survives_its_storage() {
    let held = |why| Guard::Holding { since: at(100), why };
    for guard in [Guard::Open, held(GuardReason::AnotherNode), held(GuardReason::VersionWentBack)] {
        assert_eq!(Guard::of(&guard.to_value()), guard);
    }
    assert_eq!(Guard::of(&json!({"since": "never", "reason": "AnotherNode"})), Guard::Open);
}

#[test]
fn the_fence_ends_stateful_pods_only() {
    let owned = |kind: &str| ("/metadata/ownerReferences", json!([{"kind": kind, "name": "o"}]));
    let marked =
        |value: &str| ("/metadata/annotations", json!({"cluster.agent.edge/offline-max-age": value}));
    let hour = Some(Duration::from_secs(3600));
    for (change, limit, offline_since_boot, now, ends) in [
        (owned("StatefulSet"), hour, 0, 100 + 3601, true),
        (owned("StatefulSet"), hour, 0, 100 + 3600, false),
        (owned("StatefulSet"), None, 0, 99_999, false),
        (owned("StatefulSet"), hour, 3601, 5, true),
        (owned("ReplicaSet"), hour, 0, 99_999, false),
        (marked("10m"), None, 0, 100 + 601, true),
        (marked("true"), hour, 0, 100 + 3601, true),
        (marked("true"), None, 0, 99_999, false),
        (marked("false"), hour, 0, 99_999, false),
        (("/status", status("Succeeded")), hour, 0, 99_999, false),
    ] {
        let pod = pod(with(raw("p", "u"), std::slice::from_ref(&change)));
        let age = Duration::from_secs(offline_since_boot);
        let found = expired(std::iter::once(&*pod), at(100), at(now), age, limit);
        assert_eq!(!found.is_empty(), ends, "{change:?} {limit:?} {now}");
    }
}

fn item(value: Value) -> WatchItem {
    WatchItem::of(value).unwrap()
}

fn list(pods: &[(&str, &str)]) -> WatchOutput {
    let items = pods.iter().map(|(name, uid)| item(raw(name, uid))).collect();
    WatchOutput::Set { items, went_back: false }
}

fn lost() -> WatchOutput {
    WatchOutput::Lost(ApiError::new(ApiErrorKind::Unreachable, "no route to host"))
}

fn pod_set(restored: &[(&str, &str)]) -> (PodSet, Rc<SeenPods>) {
    let seen = Rc::new(SeenPods::new());
    let config = SetConfig {
        node: "n".to_owned(),
        origin: "https://c".to_owned(),
        guard_grace: Duration::from_secs(600),
    };
    let restored =
        restored.iter().map(|(name, uid)| SourcePod { pod: pod(raw(name, uid)), origin: String::new() });
    (PodSet::new(config, Rc::clone(&seen), restored.collect(), Guard::Open), seen)
}

fn update(set: &mut PodSet, node: NodeSeen, now: i64) -> NextUpdate {
    set.update(Vec::new(), |_| false, node, false, at(now))
}

fn uids(next: &NextUpdate) -> Option<Vec<String>> {
    match &next.update.as_ref()?.answer {
        SourceAnswer::Pods(pods) => Some(pods.iter().map(|pod| pod.pod.metadata.uid.to_string()).collect()),
        SourceAnswer::Unknown => None,
    }
}

#[test]
fn a_lost_link_says_unknown_once_and_keeps_every_pod() {
    let (mut set, seen) = pod_set(&[("p", "u")]);
    assert!(update(&mut set, NodeSeen::Same, 1).update.is_none(), "nothing was listed");
    set.apply(lost(), at(2));
    let said = update(&mut set, NodeSeen::Same, 2).update.unwrap();
    assert_eq!((said.source, said.answer), (PodSource::Cluster, SourceAnswer::Unknown));
    assert_eq!(said.problems[0].reason, "ClusterUnreachable");
    set.apply(lost(), at(3));
    assert!(update(&mut set, NodeSeen::Same, 3).update.is_none() && !seen.is_live());
    set.apply(list(&[("p", "u")]), at(4));
    let next = update(&mut set, NodeSeen::Same, 4);
    assert_eq!(uids(&next), Some(vec!["u".to_owned()]));
    assert!(next.update.unwrap().problems.is_empty() && seen.is_live());
    set.apply(lost(), at(5));
    assert!(update(&mut set, NodeSeen::Same, 5).update.is_some());
    set.apply(WatchOutput::Current, at(6));
    assert_eq!(uids(&update(&mut set, NodeSeen::Same, 6)), Some(vec!["u".to_owned()]));
    assert!(seen.is_live());
}

#[test]
fn one_odd_pod_keeps_its_last_version() {
    let (mut set, _) = pod_set(&[]);
    set.apply(list(&[("p", "u"), ("q", "v")]), at(1));
    assert_eq!(uids(&update(&mut set, NodeSeen::Same, 1)).unwrap().len(), 2);
    set.apply(WatchOutput::Put(item(with(raw("p", "u"), &[("/spec/containers", json!(1))]))), at(2));
    let next = update(&mut set, NodeSeen::Same, 2);
    assert_eq!(uids(&next).unwrap(), ["u", "v"]);
    let problems = next.update.unwrap().problems;
    assert!(
        problems[0].message.contains("default/p cannot be read, keeping its last version: spec.containers")
    );
    set.apply(WatchOutput::Put(item(raw("p", "u"))), at(3));
    assert!(update(&mut set, NodeSeen::Same, 3).update.unwrap().problems.is_empty());
}

#[test]
fn a_replaced_cluster_waits_for_its_grace() {
    let (mut set, seen) = pod_set(&[("p", "u")]);
    set.apply(list(&[("q", "v")]), at(100));
    let next = update(&mut set, NodeSeen::Absent, 100);
    assert!(next.registers && next.update.is_none());
    let next = update(&mut set, NodeSeen::Other, 101);
    assert_eq!(next.due, Some(at(701)));
    let said = next.update.unwrap();
    assert_eq!((&said.answer, said.problems[0].reason.as_str()), (&SourceAnswer::Unknown, "ClusterReplaced"));
    assert!(!seen.is_live(), "nothing is written to another cluster");
    assert!(update(&mut set, NodeSeen::Other, 102).update.is_none());
    assert_eq!(uids(&update(&mut set, NodeSeen::Other, 701)), Some(vec!["v".to_owned()]));
}

#[test]
fn an_etcd_backup_removes_nothing_at_once() {
    let (mut set, _) = pod_set(&[]);
    set.apply(list(&[("p", "u"), ("q", "v")]), at(1));
    update(&mut set, NodeSeen::Same, 1);
    let WatchOutput::Set { items, .. } = list(&[("p", "u")]) else { panic!() };
    set.apply(WatchOutput::Set { items, went_back: true }, at(2));
    let next = update(&mut set, NodeSeen::Same, 2);
    assert_eq!((uids(&next), set.pods().count()), (None, 2), "what both need is kept");
    // The link breaks, and the backup is listed again.
    set.apply(lost(), at(3));
    set.apply(list(&[("p", "u")]), at(3));
    assert_eq!(uids(&update(&mut set, NodeSeen::Same, 3)), None);
    let next = set.update(Vec::new(), |_| false, NodeSeen::Same, true, at(3));
    assert_eq!(uids(&next), Some(vec!["u".to_owned()]), "accepting ends the guard");
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_100_pods_is_one_commit() {
    let (shown, from_watch) = mpsc::channel(8);
    let (updates, mut sent) = mpsc::channel(4);
    let (_node, node_changed) = watch::channel(0);
    let (_accept, accept) = mpsc::channel(1);
    let config = SetConfig { node: "n".to_owned(), origin: String::new(), guard_grace: Duration::ZERO };
    let parts = PodsParts {
        config,
        shown: from_watch,
        updates,
        objects: Rc::new(Objects::new()),
        seen: Rc::new(SeenPods::new()),
        clock: Clock::manual(at(1)),
        restored: Vec::new(),
        guard: Guard::Open,
        node: Rc::new(|| NodeSeen::Same),
        node_changed,
        accept,
        on_guard: Rc::new(|_| {}),
        register: Rc::new(|| {}),
        on_output: Rc::new(|_| {}),
    };
    let test = async move {
        let task = tokio::task::spawn_local(run(parts));
        shown.send(Box::new(list(&[]))).await.unwrap();
        assert_eq!(sent.recv().await.unwrap().answer, SourceAnswer::Pods(Vec::new()));
        let names: Vec<String> = (0..100).map(|number| format!("p{number}")).collect();
        for name in &names {
            shown.send(Box::new(WatchOutput::Put(item(raw(name, name))))).await.unwrap();
        }
        let update = sent.recv().await.unwrap();
        let SourceAnswer::Pods(pods) = update.answer else { panic!() };
        assert_eq!(pods.len(), 100);
        drop(shown);
        task.await.unwrap();
        assert!(sent.recv().await.is_none());
    };
    tokio::task::LocalSet::new().run_until(test).await;
}
