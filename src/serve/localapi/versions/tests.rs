//! Tests of versions.

use super::*;
use crate::model::types::Timestamp;

fn versions(retained: Retained) -> Versions {
    Versions::new(Revisions::since(Timestamp::from_secs(1)), retained)
}

fn pod(name: &str, uid: &str, phase: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": name, "uid": uid},
        "spec": {"nodeName": "box", "containers": []}, "status": {"phase": phase}})
}

fn look(versions: &mut Versions, pods: &[Value], keep: Keep) -> (Vec<u64>, Vec<String>) {
    let mut pods = pods.to_vec();
    let changes = versions.refresh(Store::Pods, &mut pods, keep);
    let version = |pod: &Value| super::super::text(pod, "/metadata/resourceVersion").parse().unwrap();
    (pods.iter().map(version).collect(), shown(&changes))
}

fn shown(changes: &[Change]) -> Vec<String> {
    let show = |change: &Change| format!("{} {} {}", change.step.as_str(), change.name.1, change.version);
    changes.iter().map(show).collect()
}

fn since(versions: &Versions, version: u64) -> Vec<String> {
    shown(&versions.since(Store::Pods, version).unwrap())
}

#[test]
fn a_version_moves_with_its_object_and_only_then() {
    let mut versions = versions(Retained::default());
    let (a, b) = (pod("a", "1", "Pending"), pod("b", "2", "Pending"));
    let both = [a.clone(), b.clone()];
    assert_eq!(look(&mut versions, &both, Keep::Shadow), (vec![1_000_002, 1_000_004], vec![]));
    assert_eq!(look(&mut versions, &both, Keep::Shadow), (vec![1_000_002, 1_000_004], vec![]));
    assert_eq!(versions.current(), 1_000_004);
    let now = [pod("a", "1", "Running"), b];
    let (seen, changes) = look(&mut versions, &now, Keep::Whole);
    assert_eq!((seen, changes), (vec![1_000_006, 1_000_004], vec!["MODIFIED a 1000006".to_owned()]));
    assert_eq!(since(&versions, 1_000_004), ["MODIFIED a 1000006"]);
    assert_eq!(since(&versions, 1_000_002), ["ADDED b 1000004", "MODIFIED a 1000006"]);
    assert_eq!(since(&versions, 1_000_006), [""; 0]);
}

fn stamped_pod(name: &str, uid: &str, version: u64) -> Value {
    let mut pod = pod(name, uid, "Running");
    stamp(&mut pod, version);
    pod
}

#[test]
fn stamped_versions_are_kept_and_told_in_their_order() {
    let revisions = Revisions::since(Timestamp::from_secs(1));
    let mut versions = Versions::new(revisions.clone(), Retained::default());
    let next = |name: &str, uid: &str| stamped_pod(name, uid, revisions.next());
    let (mut a, b) = (next("a", "1"), next("b", "2"));
    assert_eq!(look(&mut versions, &[a.clone(), b.clone()], Keep::Whole).0, [1_000_002, 1_000_004]);
    assert_eq!(look(&mut versions, &[a.clone(), b.clone()], Keep::Whole).1, [""; 0]);
    assert_eq!(versions.looked(Store::Pods), 1_000_004);
    let b = next("b", "3");
    a = next("a", "1");
    let (_, changes) = look(&mut versions, &[a, b.clone(), next("b", "4")], Keep::Whole);
    assert_eq!(changes, ["DELETED b 1000005", "ADDED b 1000006", "MODIFIED a 1000008"], "the second b waits");
    assert_eq!(versions.looked(Store::Pods), 1_000_010);
    assert_eq!(look(&mut versions, &[b], Keep::Whole).1, ["DELETED a 1000012"]);
    assert_eq!(since(&versions, 1_000_005), ["ADDED b 1000006", "DELETED a 1000012"]);
}

#[test]
fn what_a_client_was_shown_alone_is_told_when_it_is_gone() {
    let mut versions = versions(Retained::default());
    versions.revisions.next();
    versions.remember(Store::Pods, &stamped_pod("a", "1", 1_000_002));
    assert_eq!(versions.looked(Store::Pods), 1_000_000);
    assert_eq!(look(&mut versions, &[], Keep::Whole).1, [""; 0], "no watch knew it");
    assert_eq!(since(&versions, 1_000_002), ["DELETED a 1000004"]);
    let again = stamped_pod("a", "2", versions.revisions.next());
    versions.remember(Store::Pods, &again);
    assert_eq!(look(&mut versions, &[again], Keep::Whole).1, ["ADDED a 1000006"]);
}

#[test]
fn deleted_event_carries_the_last_known_object_state() {
    let mut versions = versions(Retained::default());
    let pods = [pod("a", "1", "Running"), pod("b", "2", "Running")];
    look(&mut versions, &pods, Keep::Shadow);
    let left = [pods[1].clone()];
    look(&mut versions, &left, Keep::Shadow);
    let gone = versions.since(Store::Pods, 1_000_004).unwrap();
    assert_eq!(shown(&gone), ["DELETED a 1000006"]);
    assert_eq!(gone[0].state.parse()["spec"], json!({"nodeName": "box"}), "a shadow");
    assert_eq!(gone[0].state.parse()["metadata"]["uid"], "1");
    // While there are watches it is the whole object.
    look(&mut versions, &left, Keep::Whole);
    let mut none: Vec<Value> = Vec::new();
    let changes = versions.refresh(Store::Pods, &mut none, Keep::Whole);
    assert_eq!(changes[0].state.parse()["spec"], json!({"nodeName": "box", "containers": []}));
    assert_eq!(since(&versions, 1_000_004), ["DELETED a 1000006", "DELETED b 1000008"]);
    assert_eq!(since(&versions, 1_000_000), [""; 0], "nobody had seen them");
}

#[test]
fn the_same_name_with_another_uid_is_another_object() {
    let mut versions = versions(Retained::default());
    look(&mut versions, &[pod("a", "1", "Running")], Keep::Whole);
    let now = [pod("a", "2", "Running")];
    let (_, changes) = look(&mut versions, &now, Keep::Whole);
    assert_eq!(changes, ["DELETED a 1000004", "ADDED a 1000006"]);
    assert_eq!(since(&versions, 1_000_002), ["DELETED a 1000004", "ADDED a 1000006"]);
}

#[test]
fn what_is_forgotten_or_still_to_come_is_said() {
    let mut versions = versions(Retained::default());
    look(&mut versions, &[], Keep::Shadow);
    assert_eq!(versions.since(Store::Pods, 999_999).unwrap_err().code, 410);
    let early = versions.since(Store::Pods, 1_000_002).unwrap_err();
    assert_eq!((early.code, &early.details["causes"][0]["reason"]), (504, &json!("ResourceVersionTooLarge")));
    let pods: Vec<Value> = (0..MAX_GONE + 2).map(|number| pod(&number.to_string(), "u", "")).collect();
    look(&mut versions, &pods, Keep::Shadow);
    let known = versions.current();
    look(&mut versions, &[], Keep::Shadow);
    let expired = versions.since(Store::Pods, known).unwrap_err();
    assert_eq!((expired.code, expired.reason), (410, "Expired"));
    assert!(versions.since(Store::Pods, known + 4).is_ok());
    assert!(versions.since(Store::Nodes, known).is_ok(), "another store, nobody has looked at it");
}

#[test]
fn states_shrink_when_there_are_no_watchers() {
    let mut versions = versions(Retained::default());
    look(&mut versions, &[pod("a", "1", "Running")], Keep::Whole);
    let size = |versions: &Versions| {
        versions.stores[&Store::Pods].entries.values().map(|entry| entry.state.json().len()).sum::<usize>()
    };
    let before = size(&versions);
    versions.forget_states(Store::Pods);
    assert!(size(&versions) < before);
    assert_eq!(look(&mut versions, &[pod("a", "1", "Running")], Keep::Shadow).0, [1_000_002]);
}
#[test]
fn states_are_shared_and_count_when_only_changes_hold_them() {
    let retained = Retained::default();
    let mut versions = versions(retained.clone());
    look(&mut versions, &[pod("a", "1", "Pending")], Keep::Whole);
    let (first, second) = (versions.all(Store::Pods), versions.all(Store::Pods));
    assert!(Rc::ptr_eq(&first[0].state, &second[0].state), "one text for all watches");
    assert_eq!(first[0].state.parse()["metadata"]["resourceVersion"], "1000002");
    assert_eq!(retained.bytes(), 0);
    let mut now = [pod("a", "1", "Running")];
    let changes = versions.refresh(Store::Pods, &mut now, Keep::Whole);
    let old = first[0].state.json().len();
    assert_eq!(retained.bytes(), old, "two lists and the change share it");
    drop((first, second));
    assert_eq!(retained.bytes(), old);
    drop(changes);
    assert_eq!(retained.bytes(), 0);
}
