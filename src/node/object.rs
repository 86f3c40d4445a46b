//! The `Node` object and its lease, as Kubernetes writes them: for the API of this node, and for the apiserver of a
//! cluster.
//!
//! Pure: facts in, JSON out. Owns the object's shape and its conditions.

use serde_json::{Value, json};

use crate::model::api::pod::{ResourceList, StringMap};
use crate::model::node_changes::Taint;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;
use crate::runtime::{RuntimeHandler, RuntimeStatus};

/// Upstream's interval, in seconds, of reporting an unchanged node. Heartbeats are shown in these steps, so
/// that reading a node does not change it.
const HEARTBEAT: i64 = 300;

/// The namespace of leases of nodes.
pub(crate) const LEASES: &str = "kube-node-lease";

/// What a scheduler may count on, by the names of upstream's feature gates, sorted. A 1.36 scheduler keeps pods that
/// need an undeclared one away. Each is proved by a test of `tests/pods`.
pub(crate) const DECLARED_FEATURES: &[&str] = &[
    // programs_and_ports_are_reached_over_spdy_and_websocket
    "ExtendWebSocketsToKubelet",
    // restart_all_containers_rule_keeps_the_sandbox
    "RestartAllContainersOnContainerExits",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    /// `Ready`, `MemoryPressure`, ...
    pub kind: &'static str,
    /// Whether the status is `True`.
    pub holds: bool,
    pub reason: String,
    pub message: String,
    pub since: Timestamp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    /// Tags and digests.
    pub names: Vec<String>,
    pub size: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeState {
    pub name: String,
    /// The cluster's, or [`node_uid`] of a node without one.
    pub uid: String,
    pub labels: StringMap,
    /// The configured taints, or those that clients have set.
    pub taints: Vec<Taint>,
    pub pod_cidrs: Vec<String>,
    /// When the node joined: the creation of the store, or the start of the process without one.
    pub created: Timestamp,
    pub capacity: ResourceList,
    pub allocatable: ResourceList,
    /// `InternalIP`s.
    pub addresses: Vec<String>,
    pub hostname: String,
    pub port: u16,
    /// `nodeInfo`, by its field names.
    pub info: Vec<(&'static str, String)>,
    /// In the order of the status.
    pub conditions: Vec<Condition>,
    /// The largest first.
    pub images: Vec<Image>,
    /// Annotations that clients have set.
    pub annotations: StringMap,
    /// Pods may not be scheduled here (`kubectl cordon`).
    pub unschedulable: bool,
    /// The runtime's features, once it has reported them.
    pub features: Option<RuntimeStatus>,
    /// `nodeLeaseDurationSeconds`.
    pub lease_seconds: i32,
    /// `providerID`; empty without one.
    pub provider_id: String,
    /// Attachable volumes; `None` until the mounts of an earlier process are known again: a controller detaches what is
    /// not listed.
    pub volumes_in_use: Option<Vec<String>>,
    /// [`DECLARED_FEATURES`] of a node that has a scheduler.
    pub declared_features: &'static [&'static str],
    /// 0 without swap, or when it is not shown.
    pub swap_bytes: u64,
    /// The records of device plugins are gone with an earlier installation: what the cluster knows of their devices is
    /// out of date.
    pub has_new_devices: bool,
    pub now: Timestamp,
}

/// The uid of an object that is not stored: the same for the same text.
#[must_use]
pub(crate) fn uid(words: &str) -> String {
    use sha2::{Digest, Sha256};
    use std::fmt::Write;
    let digest = Sha256::digest(words);
    let mut uid = String::with_capacity(36);
    for (position, byte) in digest[..16].iter().enumerate() {
        let dash = if matches!(position, 4 | 6 | 8 | 10) { "-" } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(uid, "{dash}{byte:02x}");
    }
    uid
}

/// Of a namespace that was not created explicitly.
#[must_use]
pub(crate) fn namespace_uid(name: &str) -> String {
    uid(&format!("Namespace\0{name}"))
}

#[must_use]
pub(crate) fn node_uid(name: &str) -> String {
    uid(&format!("Node\0{name}"))
}

/// With heartbeats in upstream's interval of reporting.
#[must_use]
pub(crate) fn node(state: &NodeState) -> Value {
    let heartbeat = Timestamp::from_secs(state.now.as_nanos() / 1_000_000_000 / HEARTBEAT * HEARTBEAT);
    let mut spec = json!({});
    if let Some(first) = state.pod_cidrs.first() {
        spec["podCIDR"] = json!(first);
        spec["podCIDRs"] = json!(state.pod_cidrs);
    }
    if !state.taints.is_empty() {
        spec["taints"] = json!(state.taints);
    }
    if state.unschedulable {
        spec["unschedulable"] = json!(true);
    }
    if !state.provider_id.is_empty() {
        spec["providerID"] = json!(state.provider_id);
    }
    let mut node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": state.name,
            "uid": state.uid,
            "creationTimestamp": state.created.to_rfc3339(),
            "labels": state.labels,
        },
        "spec": spec,
        "status": status(state, heartbeat),
    });
    if !state.annotations.is_empty() {
        node["metadata"]["annotations"] = json!(state.annotations);
    }
    node
}

/// The status; `heartbeat` is shown in each condition.
#[must_use]
pub(crate) fn status(state: &NodeState, heartbeat: Timestamp) -> Value {
    let conditions: Vec<Value> = state
        .conditions
        .iter()
        .map(|condition| {
            json!({
                "type": condition.kind,
                "status": if condition.holds { "True" } else { "False" },
                "lastHeartbeatTime": heartbeat.max(condition.since).to_rfc3339(),
                "lastTransitionTime": condition.since.to_rfc3339(),
                "reason": condition.reason,
                "message": condition.message,
            })
        })
        .collect();
    let images: Vec<Value> =
        state.images.iter().map(|image| json!({"names": image.names, "sizeBytes": image.size})).collect();
    let mut info: serde_json::Map<String, Value> =
        state.info.iter().map(|(field, value)| ((*field).to_owned(), json!(value))).collect();
    if state.swap_bytes > 0 {
        info.insert("swap".to_owned(), json!({"capacity": state.swap_bytes}));
    }
    let mut status = json!({
        "addresses": addresses(state),
        "allocatable": state.allocatable,
        "capacity": state.capacity,
        "conditions": conditions,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": state.port}},
        "images": images,
        "nodeInfo": info,
    });
    if let Some(features) = &state.features {
        put_features(&mut status, features);
    }
    if let Some(volumes) = &state.volumes_in_use {
        status["volumesInUse"] = json!(volumes);
    }
    if !state.declared_features.is_empty() {
        status["declaredFeatures"] = json!(state.declared_features);
    }
    status
}

fn addresses(state: &NodeState) -> Vec<Value> {
    let shown = |kind: &str, address: &str| json!({"type": kind, "address": address});
    let mut addresses: Vec<Value> =
        state.addresses.iter().map(|address| shown("InternalIP", address)).collect();
    addresses.push(shown("Hostname", &state.hostname));
    addresses
}

/// The features of the runtime and its handlers; nothing if the runtime does not report them.
fn put_features(status: &mut Value, runtime: &RuntimeStatus) {
    let mut handlers: Vec<_> = runtime.handlers.iter().collect();
    handlers.order_by(|one, other| one.name.cmp(&other.name));
    let shape = |handler: &&RuntimeHandler| {
        json!({"name": handler.name, "features": {
            "recursiveReadOnlyMounts": handler.recursive_read_only_mounts,
            "userNamespaces": handler.user_namespaces,
        }})
    };
    if !handlers.is_empty() {
        status["runtimeHandlers"] = handlers.iter().map(shape).collect();
    }
    if let Some(policy) = runtime.supplemental_groups_policy {
        status["features"] = json!({"supplementalGroupsPolicy": policy});
    }
}

/// The lease by which the node signals that it is alive. It is not renewed but computed on request, in
/// upstream's renewal interval.
#[must_use]
pub(crate) fn lease(state: &NodeState) -> Value {
    let seconds = i64::from(state.lease_seconds.max(1));
    let step = (seconds / 4).max(1);
    let now = state.now.as_nanos() / 1_000_000_000 / step * step;
    let renewed = Timestamp::from_secs(now).max(state.created);
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": state.name,
            "namespace": LEASES,
            "uid": uid(&format!("Lease\0{}", state.name)),
            "creationTimestamp": state.created.to_rfc3339(),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": state.name, "uid": state.uid}],
        },
        "spec": {
            "holderIdentity": state.name,
            "leaseDurationSeconds": seconds,
            "renewTime": micro_time(renewed),
        },
    })
}

/// `v1.MicroTime`: always with six digits.
pub(crate) fn micro_time(time: Timestamp) -> String {
    let micros = time.as_nanos().rem_euclid(1_000_000_000) / 1000;
    let whole = Timestamp::from_secs(time.as_nanos().div_euclid(1_000_000_000)).to_rfc3339();
    format!("{}.{micros:06}Z", whole.trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_in_steps_and_never_before_it_was_made() {
        let at = |now, created| NodeState {
            name: "box".to_owned(),
            lease_seconds: 40,
            now: Timestamp::from_secs(now),
            created: Timestamp::from_secs(created),
            ..NodeState::default()
        };
        let renewed = |state: &NodeState| lease(state)["spec"]["renewTime"].clone();
        assert_eq!(renewed(&at(1000, 0)), "1970-01-01T00:16:40.000000Z");
        assert_eq!(renewed(&at(1009, 0)), renewed(&at(1000, 0)));
        assert_eq!(renewed(&at(1010, 0)), "1970-01-01T00:16:50.000000Z");
        assert_eq!(renewed(&at(1009, 1005)), "1970-01-01T00:16:45.000000Z");
        let lease = lease(&at(1000, 0));
        assert_eq!(
            (&lease["spec"]["holderIdentity"], &lease["metadata"]["namespace"]),
            (&json!("box"), &json!(LEASES))
        );
    }

    #[test]
    fn node_status_shows_runtime_handlers_once_reported() {
        let handler = |name: &str, user_namespaces| RuntimeHandler {
            name: name.to_owned(),
            recursive_read_only_mounts: true,
            user_namespaces,
        };
        let told = RuntimeStatus {
            runtime_ready: Ok(()),
            network_ready: Ok(()),
            handlers: vec![handler("z", false), handler("", true)],
            supplemental_groups_policy: Some(true),
        };
        let shown = node(&NodeState { features: Some(told), ..NodeState::default() });
        assert_eq!(
            shown["status"]["runtimeHandlers"],
            json!([{"name": "", "features": {"recursiveReadOnlyMounts": true, "userNamespaces": true}},
                {"name": "z", "features": {"recursiveReadOnlyMounts": true, "userNamespaces": false}}])
        );
        assert_eq!(shown["status"]["features"]["supplementalGroupsPolicy"], true);
        assert_eq!(node(&NodeState::default())["status"].get("runtimeHandlers"), None);
    }
}
