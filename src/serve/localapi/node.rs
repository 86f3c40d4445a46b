//! The `Node` object.
//!
//! Owns the object's shape and its conditions. Pure: facts in, JSON out.

use serde_json::{Value, json};

use crate::model::api::pod::{ResourceList, StringMap};
use crate::model::node_changes::Taint;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;
use crate::runtime::{RuntimeHandler, RuntimeStatus};

/// Upstream's interval, in seconds, of reporting an unchanged node. Heartbeats are shown in these steps, so
/// that reading a node does not change it.
const HEARTBEAT: i64 = 300;

pub(in crate::serve) const LEASES: &str = "kube-node-lease";

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

#[must_use]
pub(crate) fn node_uid(name: &str) -> String {
    uid(&format!("Node\0{name}"))
}

#[must_use]
pub(crate) fn object(state: &NodeState) -> Value {
    let heartbeat = Timestamp::from_secs(state.now.as_nanos() / 1_000_000_000 / HEARTBEAT * HEARTBEAT);
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
    let mut addresses: Vec<Value> =
        state.addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    addresses.push(json!({"type": "Hostname", "address": state.hostname}));
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
    let images: Vec<Value> =
        state.images.iter().map(|image| json!({"names": image.names, "sizeBytes": image.size})).collect();
    let info: serde_json::Map<String, Value> =
        state.info.iter().map(|(field, value)| ((*field).to_owned(), json!(value))).collect();
    let mut node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": state.name,
            "uid": node_uid(&state.name),
            "creationTimestamp": state.created.to_rfc3339(),
            "labels": state.labels,
        },
        "spec": spec,
        "status": {
            "addresses": addresses,
            "allocatable": state.allocatable,
            "capacity": state.capacity,
            "conditions": conditions,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": state.port}},
            "images": images,
            "nodeInfo": info,
        },
    });
    if !state.annotations.is_empty() {
        node["metadata"]["annotations"] = json!(state.annotations);
    }
    if let Some(features) = &state.features {
        put_features(&mut node["status"], features);
    }
    node
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
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": state.name, "uid": node_uid(&state.name)}],
        },
        "spec": {
            "holderIdentity": state.name,
            "leaseDurationSeconds": seconds,
            "renewTime": micro_time(renewed),
        },
    })
}

/// `v1.MicroTime`: always with six digits.
fn micro_time(time: Timestamp) -> String {
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
        let shown = object(&NodeState { features: Some(told), ..NodeState::default() });
        assert_eq!(
            shown["status"]["runtimeHandlers"],
            json!([{"name": "", "features": {"recursiveReadOnlyMounts": true, "userNamespaces": true}},
                {"name": "z", "features": {"recursiveReadOnlyMounts": true, "userNamespaces": false}}])
        );
        assert_eq!(shown["status"]["features"]["supplementalGroupsPolicy"], true);
        assert_eq!(object(&NodeState::default())["status"].get("runtimeHandlers"), None);
    }
}
