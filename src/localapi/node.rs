//! The `Node` object: what is known of this machine, as Kubernetes shows it.
//!
//! Owns the object's shape and its conditions. Pure: facts in, JSON out. Must not know how a fact was found.

use serde_json::{Value, json};

use crate::api::pod::{ResourceList, StringMap};
use crate::types::Timestamp;

/// How often upstream reports a node that does not change; heartbeats are shown in these steps, so that looking at a node does
/// not change it.
const HEARTBEAT: i64 = 300;

/// Something the node is or is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// `Ready`, `MemoryPressure`, ...
    pub kind: &'static str,
    /// Whether it is so.
    pub holds: bool,
    /// One word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}

/// An image the runtime has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Tags and digests.
    pub names: Vec<String>,
    /// Bytes.
    pub size: u64,
}

/// Facts about the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: StringMap,
    /// `--register-with-taints`.
    pub taints: Vec<Value>,
    /// The pods' networks.
    pub pod_cidrs: Vec<String>,
    /// When it joined: when this agent's memory begins, or its process.
    pub created: Timestamp,
    /// What it has.
    pub capacity: ResourceList,
    /// What pods may have of it.
    pub allocatable: ResourceList,
    /// `InternalIP`s.
    pub addresses: Vec<String>,
    /// `Hostname`.
    pub hostname: String,
    /// The server's port.
    pub port: u16,
    /// `nodeInfo`, by its field names.
    pub info: Vec<(&'static str, String)>,
    /// In the order in which they are shown.
    pub conditions: Vec<Condition>,
    /// The largest first.
    pub images: Vec<Image>,
    /// Pods may not be placed here (`kubectl cordon`).
    pub unschedulable: bool,
    /// Now.
    pub now: Timestamp,
}

/// The uid of an object that has no life of its own: the same for the same words.
#[must_use]
pub fn uid(words: &str) -> String {
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

/// The uid of the node of this name.
#[must_use]
pub fn node_uid(name: &str) -> String {
    uid(&format!("Node\0{name}"))
}

/// The object.
#[must_use]
pub fn object(state: &NodeState) -> Value {
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
    json!({
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
    })
}
