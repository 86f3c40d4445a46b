#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use super::*;
use crate::model::objects::ObjectKind::{PersistentVolume, PersistentVolumeClaim};
use crate::model::objects::wire::{self, Values};
use crate::workload::testing::{FakeNode, START, document};

fn volume(name: &str, size: &str, more: Value) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
        "storageClassName": "fast", "csi": {"driver": "d", "volumeHandle": name}});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
}

fn claim(name: &str, more: Value) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}}});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    document("PersistentVolumeClaim", name, spec)
}

fn key(kind: ObjectKind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() }
}

/// Phase, and the claim.
fn bound(node: &FakeNode, name: &str) -> (String, String) {
    let object = &node.objects[&key(PersistentVolume, "", name)];
    let value = wire::to_value(object, Values::Shown);
    let text = |at: &str| value.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/status/phase"), text("/spec/claimRef/name"))
}

fn is(phase: &str, claim: &str) -> (String, String) {
    (phase.to_owned(), claim.to_owned())
}

#[test]
fn the_smallest_volume_that_suits_goes_to_the_oldest_claim() {
    let mut node = FakeNode::new();
    node.apply(volume("big", "5Gi", json!({})));
    node.apply(volume("small", "2Gi", json!({})));
    node.apply(volume("tiny", "1Mi", json!({})));
    node.apply(volume("other", "2Gi", json!({"storageClassName": "slow"})));
    node.apply(claim("b-first", json!({})));
    node.wait(1);
    assert_eq!(bound(&node, "small"), is("Bound", "b-first"));
    for free in ["big", "tiny", "other"] {
        assert_eq!(bound(&node, free), is("Available", ""));
    }
    let shown = node.get(PersistentVolumeClaim, "b-first");
    assert_eq!(shown["spec"]["volumeName"], "small");
    assert_eq!(shown["metadata"]["annotations"][BIND_COMPLETED], "yes");
    node.apply(volume("better", "1Gi", json!({})));
    node.apply(claim("a-second", json!({})));
    node.wait(1);
    assert_eq!(bound(&node, "small"), is("Bound", "b-first"), "a claim keeps its volume");
    assert_eq!(bound(&node, "better"), is("Bound", "a-second"));
    node.apply(claim("c-third", json!({})));
    node.wait(1);
    assert_eq!(bound(&node, "big"), is("Bound", "c-third"));
}

#[test]
fn two_claims_at_once_get_two_volumes() {
    let mut node = FakeNode::new();
    for name in ["v1", "v2"] {
        node.apply(volume(name, "1Gi", json!({})));
    }
    for name in ["c1", "c2", "c3"] {
        node.apply(claim(name, json!({})));
    }
    node.pass();
    assert_eq!(bound(&node, "v1"), is("Bound", "c1"));
    assert_eq!(bound(&node, "v2"), is("Bound", "c2"));
}

#[test]
fn a_volume_without_its_claim_is_released_and_not_given_away() {
    let mut node = FakeNode::new();
    node.apply(volume("v", "1Gi", json!({})));
    node.apply(claim("c", json!({})));
    node.pass();
    node.delete(PersistentVolumeClaim, "c");
    node.apply(claim("c", json!({})));
    node.pass();
    assert_eq!(bound(&node, "v"), is("Released", "c"), "another claim of that name");
    node.apply(volume("v", "1Gi", json!({})));
    node.pass();
    assert_eq!(bound(&node, "v"), is("Bound", "c"), "its administrator has removed the reference");
}

#[test]
fn a_volume_is_released_when_the_pods_of_its_claim_are_gone() {
    let mut node = FakeNode::new();
    node.apply(volume("v", "1Gi", json!({})));
    node.apply(claim("c", json!({})));
    node.pass();
    let c = key(PersistentVolumeClaim, "default", "c");
    node.environment.used.insert(c.clone(), START);
    node.wait(1);
    node.delete(PersistentVolumeClaim, "c");
    node.pass();
    assert_eq!(bound(&node, "v"), is("Bound", "c"), "a pod may still write to it");
    node.apply(claim("c", json!({})));
    node.pass();
    assert_eq!(bound(&node, "v"), is("Bound", "c"), "the pod is older than the next claim");
    node.environment.used.insert(c, START.saturating_add(std::time::Duration::from_secs(3600)));
    node.apply(claim("other", json!({})));
    node.pass();
    assert_eq!(bound(&node, "v"), is("Released", "c"));
}

#[test]
fn what_names_each_other_is_bound() {
    let mut node = FakeNode::new();
    node.apply(volume("by-claim", "1Gi", json!({})));
    node.apply(claim("names", json!({"volumeName": "by-claim"})));
    node.apply(volume("by-volume", "1Gi", json!({"claimRef": {"name": "named", "namespace": "default"}})));
    node.apply(claim("named", json!({})));
    node.apply(volume("kept", "1Gi", json!({"claimRef": {"name": "absent", "namespace": "default"}})));
    node.apply(claim("large", json!({"volumeName": "kept", "resources": {"requests": {"storage": "9Gi"}}})));
    node.pass();
    assert_eq!(bound(&node, "by-claim"), is("Bound", "names"));
    assert_eq!(bound(&node, "by-volume"), is("Bound", "named"));
    assert_eq!(bound(&node, "kept"), is("Available", "absent"));
}

#[test]
fn a_choice_needs_one_that_may_be_written() {
    let mut node = FakeNode::new();
    node.apply(volume("v", "1Gi", json!({})));
    node.apply(claim("c", json!({})));
    node.read_only.insert(key(PersistentVolume, "", "v"));
    node.read_only.insert(key(PersistentVolumeClaim, "default", "c"));
    node.pass();
    assert_eq!(bound(&node, "v"), is("Available", ""));
    node.read_only.remove(&key(PersistentVolumeClaim, "default", "c"));
    node.pass();
    assert_eq!(bound(&node, "v"), is("Bound", ""));
    assert_eq!(node.get(PersistentVolumeClaim, "c")["spec"]["volumeName"], "v");
}

#[test]
fn a_claim_that_has_used_its_directory_keeps_it() {
    let mut node = FakeNode::new();
    node.environment.directories.insert(key(PersistentVolumeClaim, "default", "c"));
    node.apply(claim("c", json!({})));
    node.apply(volume("v", "1Gi", json!({})));
    node.apply(volume("named", "1Gi", json!({"claimRef": {"name": "c", "namespace": "default"}})));
    node.pass();
    assert_eq!(bound(&node, "v"), is("Available", ""));
    assert_eq!(bound(&node, "named"), is("Available", "c"));
    assert!(node.get(PersistentVolumeClaim, "c")["spec"]["volumeName"].as_str().unwrap().starts_with("pvc-"));
}
