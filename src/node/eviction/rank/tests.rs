//! Upstream's order and messages, and which pods are never evicted.

use super::super::Observation;
use super::super::limits::{exceeded, has_limits};
use super::*;
use crate::model::amount::Amount;
use crate::model::api::decode::decode;
use crate::node::usage::{ContainerUse, Usage, VolumeUse};
use crate::platform::cgroup::usage::ContainerStats;
use serde_json::{Value, json};
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn pod(name: &str, spec: &Value) -> Pod {
    let raw = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name,
            "annotations": {"kubernetes.io/config.source": "api"}},
        "spec": spec,
    });
    decode(raw).unwrap().object
}

fn asking(name: &str, memory: &str, priority: i32) -> Pod {
    let container = json!({"name": "c", "resources": {"requests": {"memory": memory}}});
    pod(name, &json!({"priority": priority, "containers": [container]}))
}

fn memory(mib: u64) -> Usage {
    let counted = ContainerStats { working_set: Some(mib * MIB), ..ContainerStats::default() };
    Usage { counted, ..Usage::default() }
}

fn using(memory_mib: u64) -> PodUse {
    PodUse { usage: memory(memory_mib), ..PodUse::default() }
}

fn disk(mib: u64) -> FileSystem {
    FileSystem { used: Some(mib * MIB), inodes_used: Some(mib), ..FileSystem::default() }
}

fn volume(name: &str, mib: u64, is_ephemeral: bool) -> VolumeUse {
    VolumeUse { name: name.into(), fs: disk(mib), is_ephemeral, ..VolumeUse::default() }
}

fn order(signal: Signal, pods: &[(Pod, Option<PodUse>)], disks: Disks) -> Vec<String> {
    let ranked = rank(signal, pods.iter().map(|(pod, usage)| (pod, usage.as_ref())), disks);
    ranked.into_iter().map(|pod| pod.metadata.name.clone()).collect()
}

fn threshold(signal: Signal, value: Amount, is_hard: bool) -> Threshold {
    Threshold { signal, value, grace: Duration::ZERO, is_hard, minimum_reclaim: None }
}

#[test]
fn memory_eviction_ranks_by_excess_usage_then_priority() {
    let pods = vec![
        (asking("within", "100Mi", -5), Some(using(90))),
        (asking("much-over", "10Mi", 0), Some(using(90))),
        (asking("important", "10Mi", 7), Some(using(500))),
        (asking("little-over", "50Mi", 0), Some(using(60))),
        (asking("unknown", "50Mi", 9), None),
        (asking("more-within", "100Mi", -5), Some(using(99))),
    ];
    assert_eq!(
        order(Signal::MemoryAvailable, &pods, Disks::default()),
        ["unknown", "much-over", "little-over", "important", "more-within", "within"]
    );
}

#[test]
fn pid_eviction_ranks_by_priority_then_process_count() {
    let having = |count| {
        let counted = ContainerStats { pids: Some(count), ..ContainerStats::default() };
        Some(PodUse { usage: Usage { counted, ..Usage::default() }, ..PodUse::default() })
    };
    let pods = [
        (asking("few", "1Mi", 0), having(3)),
        (asking("important", "1Mi", 1), having(900)),
        (asking("many", "1Mi", 0), having(30)),
    ];
    assert_eq!(order(Signal::PidAvailable, &pods, Disks::default()), ["many", "few", "important"]);
}

#[test]
fn a_disk_is_freed_of_what_is_on_it() {
    let used = |rootfs: u64, logs: u64, volume: u64| {
        Some(PodUse {
            containers: vec![ContainerUse {
                name: "c".to_owned(),
                rootfs: Some(disk(rootfs)),
                logs: Some(disk(logs)),
                ..ContainerUse::default()
            }],
            volumes: vec![self::volume("v", volume, true), self::volume("claim", 5000, false)],
            ..PodUse::default()
        })
    };
    let pods = [
        (asking("layers", "1Mi", 0), used(50, 0, 0)),
        (asking("volumes", "1Mi", 0), used(0, 0, 40)),
        (asking("logs", "1Mi", 0), used(0, 30, 0)),
    ];
    let first = |signal, disks| order(signal, &pods, disks).remove(0);
    let together = Disks::default();
    let apart = Disks { has_imagefs: true, layers_with_images: true };
    let images_apart = Disks { has_imagefs: true, layers_with_images: false };
    assert_eq!(order(Signal::NodefsAvailable, &pods, together), ["layers", "volumes", "logs"]);
    assert_eq!(first(Signal::NodefsInodesFree, together), "layers");
    assert_eq!(first(Signal::NodefsAvailable, apart), "volumes");
    assert_eq!(first(Signal::ImagefsAvailable, apart), "layers");
    assert_eq!(first(Signal::NodefsAvailable, images_apart), "layers");
}

#[test]
fn static_critical_ended_and_deleted_pods_are_never_ranked() {
    let spec = || json!({"containers": [{"name": "c"}]});
    let mut from_file = pod("file", &spec());
    from_file.metadata.annotations.insert("kubernetes.io/config.source".to_owned(), "file".to_owned());
    let mut ended = pod("ended", &spec());
    "Failed".clone_into(&mut ended.status.phase);
    let going =
        decode(json!({"metadata": {"name": "going", "deletionTimestamp": "2026-01-01T00:00:00Z"}})).unwrap();
    let named = |class: &str| pod(class, &json!({"priorityClassName": class, "containers": []}));
    let pods = [
        from_file,
        ended,
        going.object,
        named("system-node-critical"),
        named("system-cluster-critical"),
        pod("by-number", &json!({"priority": 2_000_000_000, "containers": []})),
        pod("may-go", &spec()),
    ];
    let pods = pods.map(|pod| (pod, None));
    assert_eq!(order(Signal::MemoryAvailable, &pods, Disks::default()), ["may-go"]);
}

#[test]
fn eviction_message_matches_upstream() {
    let usage = PodUse {
        containers: vec![
            ContainerUse { name: "c".to_owned(), usage: memory(512), ..ContainerUse::default() },
            ContainerUse { name: "stranger".to_owned(), usage: memory(9), ..ContainerUse::default() },
        ],
        ..PodUse::default()
    };
    let threshold = threshold(Signal::MemoryAvailable, Amount::Fixed(100 * MIB), true);
    let observed = Observation { capacity: 1 << 30, available: 40 * MIB };
    let seen = [(Signal::MemoryAvailable, observed)].into();
    let said = message(&asking("p", "256Mi", 0), Some(&usage), &threshold, &seen);
    let expected = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi. Container c was using \
                    512Mi, request is 256Mi, has larger consumption of memory. ";
    assert_eq!(said, expected);
    assert_eq!(
        message(&asking("p", "1Gi", 0), Some(&usage), &threshold, &Observations::new()),
        "The node was low on resource: memory. "
    );
    let nothing_asked = pod("p", &json!({"containers": [{"name": "c"}]}));
    let said = message(&nothing_asked, Some(&usage), &threshold, &Observations::new());
    assert!(said.ends_with("using 512Mi, request is 0, has larger consumption of memory. "), "{said}");
}

#[test]
fn a_soft_threshold_gives_the_pod_what_it_may_have() {
    let with = |grace: Value| pod("p", &json!({"terminationGracePeriodSeconds": grace, "containers": []}));
    let soft = threshold(Signal::MemoryAvailable, Amount::Fixed(1), false);
    assert_eq!(grace_seconds(&with(json!(30)), &soft, 20), 20);
    assert_eq!(grace_seconds(&with(json!(5)), &soft, 20), 5);
    assert_eq!(grace_seconds(&with(json!(5)), &soft, 0), 1);
    assert_eq!(grace_seconds(&with(json!(30)), &Threshold { is_hard: true, ..soft }, 20), 1);
}

#[test]
fn exceeded_ephemeral_storage_limit_is_named_in_the_message() {
    let spec = json!({
        "containers": [
            {"name": "a", "resources": {"limits": {"ephemeral-storage": "10Mi"}}},
            {"name": "b", "resources": {"limits": {"ephemeral-storage": "20Mi"}}}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "4Mi"}}, {"name": "free", "emptyDir": {}}],
    });
    let subject = pod("p", &spec);
    assert!(has_limits(&subject) && !has_limits(&pod("q", &json!({"containers": []}))));
    let usage = |rootfs, logs, volume| PodUse {
        containers: vec![ContainerUse {
            name: "a".to_owned(),
            rootfs: Some(disk(rootfs)),
            logs: Some(disk(logs)),
            ..ContainerUse::default()
        }],
        volumes: vec![self::volume("v", volume, true)],
        ..PodUse::default()
    };
    let why = |usage: &PodUse| exceeded(&subject, usage, Disks::default()).map(|(_, message)| message);
    assert_eq!(why(&usage(6, 4, 4)), None, "as much as allowed");
    let container = "Container a exceeded its local ephemeral storage limit \"10Mi\". ";
    assert_eq!(why(&usage(7, 4, 4)).unwrap(), container);
    assert_eq!(why(&usage(0, 0, 5)).unwrap(), "Usage of EmptyDir volume \"v\" exceeds the limit \"4Mi\". ");
    let total = "Pod ephemeral local storage usage exceeds the total limit of containers 30Mi. ";
    assert_eq!(why(&usage(30, 1, 0)).unwrap(), total);
    let apart = Disks { has_imagefs: true, layers_with_images: true };
    assert_eq!(exceeded(&subject, &usage(7, 4, 4), apart), None, "the layer is not on the node's disk");
    let mut of_file = pod("p", &spec);
    of_file.metadata.annotations.insert("kubernetes.io/config.source".to_owned(), "file".to_owned());
    assert!(!has_limits(&of_file) && exceeded(&of_file, &usage(99, 99, 99), Disks::default()).is_none());
}
