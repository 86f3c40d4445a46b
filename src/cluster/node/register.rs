//! How a Node is created, what is corrected of one that exists, and what of it this node needs to know.
//!
//! Pure: facts in, bodies of requests out. Owns what is written at registration only (kubelet 1.36,
//! `tryRegisterWithAPIServer`).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::model::api::pod::StringMap;
use crate::model::node_changes::Taint;
use crate::model::ordered::Ordered as _;
use crate::node::object::{NodeState, status};

/// The volume controller attaches volumes for this node.
const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// `--node-ip`, for the cloud controller.
const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Removed by the cloud controller once it knows the node.
const CLOUD_UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Labels that are corrected on a Node that exists. A kubelet may also set these, out of all of `kubernetes.io` and
/// `k8s.io`.
const DEFAULT_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// What the configuration says of registering.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RegisterConfig {
    /// `registerNode`.
    pub creates: bool,
    /// `registerWithTaints`.
    pub taints: Vec<Taint>,
    /// `--cloud-provider=external`.
    pub has_cloud: bool,
    /// `--node-ip`; empty without it. An unspecified one asks for an address of its family.
    pub node_ip: String,
    /// `enableControllerAttachDetach`.
    pub controller_attaches: bool,
}

/// What the apiserver knows of this node, as far as other parts need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeFromServer {
    pub uid: String,
    pub labels: StringMap,
    pub annotations: StringMap,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub pod_cidrs: Vec<String>,
    /// Name and device path.
    pub volumes_attached: Vec<(String, String)>,
}

impl NodeFromServer {
    #[must_use]
    pub(crate) fn of<'a>(node: &'a Value) -> Self {
        let (metadata, spec) = (&node["metadata"], &node["spec"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let array = |value: &'a Value| value.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut pod_cidrs: Vec<String> = array(&spec["podCIDRs"]).iter().map(text).collect();
        if let (true, Some(one)) = (pod_cidrs.is_empty(), spec["podCIDR"].as_str()) {
            pod_cidrs.push(one.to_owned());
        }
        let taint = |taint: &Value| Taint {
            key: text(&taint["key"]),
            value: text(&taint["value"]),
            effect: text(&taint["effect"]),
            time_added: taint["timeAdded"].as_str().map(str::to_owned),
        };
        let attached = array(&node["status"]["volumesAttached"]);
        Self {
            uid: text(&metadata["uid"]),
            labels: map(&metadata["labels"]),
            annotations: map(&metadata["annotations"]),
            taints: array(&spec["taints"]).iter().map(taint).collect(),
            unschedulable: spec["unschedulable"].as_bool().unwrap_or_default(),
            pod_cidrs,
            volumes_attached: attached
                .iter()
                .map(|volume| (text(&volume["name"]), text(&volume["devicePath"])))
                .collect(),
        }
    }
}

fn map(value: &Value) -> StringMap {
    let mut map = StringMap::default();
    for (name, value) in value.as_object().into_iter().flatten() {
        map.insert(name.clone(), value.as_str().unwrap_or_default().to_owned());
    }
    map
}

/// The Node as it is created. Taints are sent here and never again: they belong to the cluster from then on, and it
/// refuses changes of them by the node.
#[must_use]
pub(crate) fn initial_node(state: &NodeState, config: &RegisterConfig) -> Value {
    let mut labels = state.labels.clone();
    // Added by a client of the box's own API: with them, every registration would be refused.
    for refused in refused_labels(&state.labels) {
        labels.remove(&refused);
    }
    let mut taints = config.taints.clone();
    if config.has_cloud {
        taints.push(Taint {
            key: CLOUD_UNINITIALIZED.to_owned(),
            value: "true".to_owned(),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let mut spec = Map::new();
    if !taints.is_empty() {
        spec.insert("taints".to_owned(), json!(taints));
    }
    if !state.provider_id.is_empty() {
        spec.insert("providerID".to_owned(), json!(state.provider_id));
    }
    let mut status = status(state, state.now);
    if config.has_cloud && config.node_ip.is_empty() {
        // The cloud controller knows the others.
        status["addresses"] = json!([{"type": "Hostname", "address": state.hostname}]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": state.name, "labels": labels, "annotations": annotations(&Value::Null, config)},
        "spec": spec,
        "status": status,
    })
}

/// Labels that the apiserver lets no node set on itself (NodeRestriction).
#[must_use]
pub(crate) fn refused_labels(labels: &StringMap) -> Vec<String> {
    let is_below = |namespace: &str, of: &str| {
        namespace.strip_suffix(of).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let is_refused = |key: &&String| {
        let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
        let is_kubernetes = is_below(namespace, "kubernetes.io") || is_below(namespace, "k8s.io");
        let is_allowed = DEFAULT_LABELS.contains(&key.as_str())
            || is_below(namespace, "kubelet.kubernetes.io")
            || is_below(namespace, "node.kubernetes.io");
        is_kubernetes && !is_allowed
    };
    labels.keys().filter(is_refused).cloned().collect()
}

/// The patch of the status of a Node that exists already; `None` when it is right. Only defaults are corrected: other
/// labels, taints and annotations are the cluster's.
#[must_use]
pub(crate) fn reconcile(node: &Value, state: &NodeState, config: &RegisterConfig) -> Option<Value> {
    let mut labels = Map::new();
    for name in DEFAULT_LABELS {
        if let Some(value) = state.labels.get(name).filter(|value| !value.is_empty())
            && node["metadata"]["labels"][name] != **value
        {
            labels.insert(name.to_owned(), json!(value));
        }
    }
    let annotations = annotations(&node["metadata"]["annotations"], config);
    let mut status = Map::new();
    for field in ["capacity", "allocatable"] {
        let ours = if field == "capacity" { &state.capacity } else { &state.allocatable };
        let known: BTreeSet<&str> = ours.keys().map(String::as_str).into_set();
        let lost = outdated(&node["status"][field], &known, state.has_new_devices);
        if !lost.is_empty() {
            status.insert(field.to_owned(), Value::Object(lost));
        }
    }
    let mut metadata = Map::new();
    for (name, part) in [("labels", labels), ("annotations", annotations)] {
        if !part.is_empty() {
            metadata.insert(name.to_owned(), Value::Object(part));
        }
    }
    let mut patch = Map::new();
    for (name, part) in [("metadata", metadata), ("status", status)] {
        if !part.is_empty() {
            patch.insert(name.to_owned(), Value::Object(part));
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The annotations of the configuration that are not as they should be; null for one that must go.
fn annotations(known: &Value, config: &RegisterConfig) -> Map<String, Value> {
    let is_address = !matches!(config.node_ip.as_str(), "" | "0.0.0.0" | "::");
    let node_ip = (config.has_cloud && is_address).then_some(config.node_ip.as_str());
    let attaches = config.controller_attaches.then_some("true");
    let mut wrong = Map::new();
    for (name, value) in [(CONTROLLER_ATTACHES, attaches), (PROVIDED_NODE_IP, node_ip)] {
        if known[name].as_str() != value {
            wrong.insert(name.to_owned(), json!(value));
        }
    }
    wrong
}

/// Resources that this node had and does not have any more. Those of other owners stay, unless all records of device
/// plugins are gone: then every extended resource is zero until its plugin registers.
fn outdated(resources: &Value, ours: &BTreeSet<&str>, has_new_devices: bool) -> Map<String, Value> {
    let mut lost = Map::new();
    for (name, amount) in resources.as_object().into_iter().flatten() {
        if ours.contains(name.as_str()) {
            continue;
        }
        if name.starts_with("hugepages-") {
            lost.insert(name.clone(), Value::Null);
        } else if has_new_devices && is_extended(name) && *amount != "0" {
            lost.insert(name.clone(), json!("0"));
        }
    }
    lost
}

/// A resource outside of Kubernetes' own: of a device plugin, or set by an administrator.
pub(super) fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(namespace, _)| !namespace.ends_with("kubernetes.io"))
}

/// The message of the event that says so, when the machine has been booted since the Node was last reported.
#[must_use]
pub(crate) fn rebooted(node: &Value, state: &NodeState) -> Option<String> {
    let before = node["status"]["nodeInfo"]["bootID"].as_str().filter(|id| !id.is_empty())?;
    let (_, now) = state.info.iter().find(|(field, _)| *field == "bootID")?;
    (before != now).then(|| format!("Node {} has been rebooted, boot id: {now}", state.name))
}

#[cfg(test)]
mod tests;
