//! The tables that kubectl prints: columns and rows of each kind, as an API server computes them.
//!
//! Owns the columns. Matches the table printers of Kubernetes 1.36. Pure.

mod cell;
mod custom;
mod kinds;
mod services;
mod workloads;

pub(crate) use custom::{CustomColumn, cells as custom_cells, definitions as custom_definitions};

use serde_json::{Map, Value, json};

use super::resource::{Resource, Store};
use super::{age, text};
use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;
use crate::model::api::quantity::Quantity;
use crate::model::objects::ObjectKind;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;
use crate::serve::localapi::pod_printer;

/// A column: its name, its description, and whether it is for `-o wide`.
pub(super) type Column = (&'static str, &'static str, bool);

const NAME: Column = ("Name", "Name, unique within a namespace.", false);
const AGE: Column = ("Age", "Time since the object was created.", false);

const PODS: &[Column] = &[
    NAME,
    ("Ready", "Ready containers of all.", false),
    ("Status", "Status of the pod.", false),
    ("Restarts", "Number of container restarts, and time of the last one.", false),
    AGE,
    ("IP", "IP address of the pod.", true),
    ("Node", "Node the pod runs on.", true),
    ("Nominated Node", "Node nominated to run the pod.", true),
    ("Readiness Gates", "Readiness gates of the pod.", true),
];
const DATA: Column = ("Data", "Number of data items.", false);
const CONFIG_MAPS: &[Column] = &[NAME, DATA, AGE];
const SECRETS: &[Column] = &[NAME, ("Type", "Type of the secret.", false), DATA, AGE];
const CLASS: Column = ("StorageClass", "As requested by the claim.", false);
const ATTRIBUTES: Column = ("VolumeAttributesClass", "As requested by the claim.", false);
const CAPACITY: Column = ("Capacity", "Capacity of the volume.", false);
const MODES: Column = ("Access Modes", "Access modes of the volume.", false);
const MODE: Column = ("VolumeMode", "Filesystem or Block.", true);
const STATUS: Column = ("Status", "Status of the object.", false);
const CLAIMS: &[Column] = &[
    NAME,
    STATUS,
    ("Volume", "Name of the bound volume.", false),
    CAPACITY,
    MODES,
    CLASS,
    ATTRIBUTES,
    AGE,
    MODE,
];
const VOLUMES: &[Column] = &[
    NAME,
    CAPACITY,
    MODES,
    ("Reclaim Policy", "Reclaim policy of the volume.", false),
    STATUS,
    ("Claim", "Claim bound to the volume.", false),
    CLASS,
    ATTRIBUTES,
    ("Reason", "Reason for the current status.", false),
    AGE,
    MODE,
];
const EVENTS: &[Column] = &[
    ("Last Seen", "Time of the last occurrence.", false),
    ("Type", "Normal or Warning.", false),
    ("Reason", "Reason for the event.", false),
    ("Object", "Object the event is about.", false),
    ("Subobject", "Part of the object.", true),
    ("Source", "Reporting component.", true),
    ("Message", "Description of the event.", false),
    ("First Seen", "Time of the first occurrence.", true),
    ("Count", "Number of occurrences.", true),
    ("Name", "Name of the event.", true),
];
const NAMESPACES: &[Column] = &[NAME, STATUS, AGE];
const NODES: &[Column] = &[
    NAME,
    STATUS,
    ("Roles", "Roles of the node.", false),
    AGE,
    ("Version", "Kubelet version.", false),
    ("Internal-IP", "Internal IP of the node.", true),
    ("External-IP", "External IP of the node.", true),
    ("OS-Image", "Operating system of the node.", true),
    ("Kernel-Version", "Kernel version of the node.", true),
    ("Container-Runtime", "Container runtime and its version.", true),
];
const RUNTIME_CLASSES: &[Column] =
    &[NAME, ("Handler", "Handler of the container runtime that runs the pods.", false), AGE];
const METRICS: &[Column] = &[
    NAME,
    ("cpu", "Current usage.", false),
    ("memory", "Current usage.", false),
    ("Window", "Time window of the measurement.", false),
];

fn columns(store: Store) -> Vec<Column> {
    let columns = match store {
        Store::Pods => PODS,
        Store::Objects(kind) => match kind {
            ObjectKind::ConfigMap => CONFIG_MAPS,
            ObjectKind::Secret => SECRETS,
            ObjectKind::PersistentVolumeClaim => CLAIMS,
            ObjectKind::PersistentVolume => VOLUMES,
            ObjectKind::Namespace => NAMESPACES,
            ObjectKind::RuntimeClass => RUNTIME_CLASSES,
            kind => return kinds::table(kind).iter().map(|(column, _)| *column).collect(),
        },
        Store::Events => EVENTS,
        Store::Namespaces => NAMESPACES,
        Store::Nodes => NODES,
        Store::Leases => return columns(Store::Objects(ObjectKind::Lease)),
        Store::Definitions => return columns(Store::Objects(ObjectKind::CustomResourceDefinition)),
        Store::PodMetrics | Store::NodeMetrics => METRICS,
        Store::Review => &[NAME],
    };
    columns.to_vec()
}

/// Columns of numbers.
const INTEGERS: [&str; 13] = [
    "Count",
    "Data",
    "Webhooks",
    "Validations",
    "Allowed Disruptions",
    "MaxPods",
    "Replicas",
    "Value",
    "MatchingPrecedence",
    "Desired",
    "Current",
    "Up-to-date",
    "Active",
];

/// `columnDefinitions`.
#[must_use]
pub(in crate::serve) fn definitions(resource: &Resource) -> Vec<Value> {
    let shape = |(name, about, wide): &Column| {
        let format = if *name == "Name" { "name" } else { "" };
        let kind = if INTEGERS.contains(name) { "integer" } else { "string" };
        json!({"name": name, "type": kind, "format": format, "description": about, "priority": i32::from(*wide)})
    };
    columns(resource.store).iter().map(shape).collect()
}

#[must_use]
pub(crate) fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    let at = |pointer: &str| text(object, pointer).to_owned();
    let or_none = |pointer: &str| match text(object, pointer) {
        "" => "<none>".to_owned(),
        found => found.to_owned(),
    };
    let unset = |pointer: &str| match text(object, pointer) {
        "" => "<unset>".to_owned(),
        found => found.to_owned(),
    };
    let since = |pointer: &str| age::since_or_unknown(Timestamp::parse_rfc3339(text(object, pointer)), now);
    let name = json!(at("/metadata/name"));
    let old = json!(since("/metadata/creationTimestamp"));
    let count = |field: &str| object.get(field).and_then(Value::as_object).map_or(0, Map::len);
    match resource.store {
        Store::Pods => pod_cells(object, now),
        Store::Objects(ObjectKind::ConfigMap) => {
            vec![name, json!(count("data") + count("binaryData")), old]
        }
        Store::Objects(ObjectKind::Secret) => vec![name, json!(at("/type")), json!(count("data")), old],
        Store::Objects(ObjectKind::RuntimeClass) => vec![name, json!(at("/handler")), old],
        Store::Objects(ObjectKind::PersistentVolumeClaim) => vec![
            name,
            json!(at("/status/phase")),
            json!(at("/spec/volumeName")),
            json!(at("/status/capacity/storage")),
            json!(access_modes(object)),
            json!(at("/spec/storageClassName")),
            json!(unset("/spec/volumeAttributesClassName")),
            old,
            json!(at("/spec/volumeMode")),
        ],
        Store::Objects(ObjectKind::PersistentVolume) => vec![
            name,
            json!(at("/spec/capacity/storage")),
            json!(access_modes(object)),
            json!(at("/spec/persistentVolumeReclaimPolicy")),
            json!(at("/status/phase")),
            json!(claim_name(object)),
            json!(at("/spec/storageClassName")),
            json!(unset("/spec/volumeAttributesClassName")),
            json!(at("/status/reason")),
            old,
            json!(at("/spec/volumeMode")),
        ],
        Store::Events => event_cells(object, now),
        Store::Namespaces | Store::Objects(ObjectKind::Namespace) => {
            vec![name, json!(at("/status/phase")), old]
        }
        Store::Objects(kind) => kinds::cells(kinds::table(kind), object, now),
        Store::Nodes => vec![
            name,
            json!(node_status(object)),
            json!(roles(object)),
            old,
            json!(at("/status/nodeInfo/kubeletVersion")),
            json!(address(object, "InternalIP")),
            json!(address(object, "ExternalIP")),
            json!(or_none("/status/nodeInfo/osImage")),
            json!(or_none("/status/nodeInfo/kernelVersion")),
            json!(or_none("/status/nodeInfo/containerRuntimeVersion")),
        ],
        Store::Leases => kinds::cells(kinds::table(ObjectKind::Lease), object, now),
        Store::Definitions => kinds::cells(kinds::table(ObjectKind::CustomResourceDefinition), object, now),
        Store::PodMetrics | Store::NodeMetrics => {
            let [cpu, memory] = ["cpu", "memory"].map(|what| json!(usage(object, what)));
            vec![name, cpu, memory, json!(at("/window"))]
        }
        Store::Review => vec![name],
    }
}

/// `conditions` of an object's row.
#[must_use]
pub(crate) fn conditions(resource: &Resource, object: &Value) -> Option<Value> {
    let reason = match (resource.store, text(object, "/status/phase")) {
        (Store::Pods, "Succeeded") => "Succeeded",
        (Store::Pods, "Failed") => "Failed",
        _ => return None,
    };
    let message =
        if reason == "Succeeded" { "The pod has completed successfully." } else { "The pod failed." };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

fn pod_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let pod: Pod = decode(object.clone()).map(|decoded| decoded.object).unwrap_or_default();
    let row = pod_printer::columns(&pod, now);
    let nominated = match text(object, "/status/nominatedNodeName") {
        "" => "<none>",
        found => found,
    };
    vec![
        json!(pod.metadata.name),
        json!(row.ready),
        json!(row.status),
        json!(row.restarts),
        json!(row.age),
        json!(row.ip),
        json!(row.node),
        json!(nominated),
        json!(readiness_gates(object)),
    ]
}

fn readiness_gates(object: &Value) -> String {
    let list = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let gates = list("/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let conditions = list("/status/conditions");
    let is_true = |gate: &&Value| {
        conditions.iter().any(|found| found["type"] == gate["conditionType"] && found["status"] == "True")
    };
    format!("{}/{}", gates.iter().filter(is_true).count(), gates.len())
}

fn event_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let at = |pointers: [&str; 2]| {
        let found = pointers.iter().map(|pointer| text(object, pointer)).find(|found| !found.is_empty());
        found.unwrap_or_default().to_owned()
    };
    let since = |pointers| age::since_or_unknown(Timestamp::parse_rfc3339(&at(pointers)), now);
    let source = [
        at(["/source/component", "/deprecatedSource/component"]),
        at(["/source/host", "/deprecatedSource/host"]),
    ];
    let source = source.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(", ");
    let count = object.get("count").or_else(|| object.get("deprecatedCount")).cloned().unwrap_or_default();
    let about = [
        at(["/involvedObject/kind", "/regarding/kind"]).to_lowercase(),
        at(["/involvedObject/name", "/regarding/name"]),
    ];
    vec![
        json!(since(["/lastTimestamp", "/deprecatedLastTimestamp"])),
        json!(at(["/type", "/type"])),
        json!(at(["/reason", "/reason"])),
        json!(about.join("/")),
        json!(at(["/involvedObject/fieldPath", "/regarding/fieldPath"])),
        json!(source),
        json!(at(["/message", "/note"]).trim()),
        json!(since(["/firstTimestamp", "/deprecatedFirstTimestamp"])),
        count,
        json!(at(["/metadata/name", "/metadata/name"])),
    ]
}

/// In kubectl's abbreviations.
#[must_use]
pub(crate) fn access_modes(object: &Value) -> String {
    let modes = object.pointer("/spec/accessModes").and_then(Value::as_array).into_iter().flatten();
    let short = modes.filter_map(Value::as_str).map(|mode| match mode {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        other => other,
    });
    short.collect::<Vec<_>>().join(",")
}

/// The claim of a PersistentVolume as NAMESPACE/NAME, empty if it has none.
fn claim_name(object: &Value) -> String {
    match text(object, "/spec/claimRef/name") {
        "" => String::new(),
        name => format!("{}/{name}", text(object, "/spec/claimRef/namespace")),
    }
}

fn node_status(object: &Value) -> String {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|found| found["type"] == "Ready");
    let mut status = match ready.map(|found| text(found, "/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status += ",SchedulingDisabled";
    }
    status
}

fn roles(object: &Value) -> String {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None => (key == "kubernetes.io/role").then_some(value.as_str()?),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.order_by(Ord::cmp);
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn address(object: &Value, kind: &str) -> String {
    let addresses = object.pointer("/status/addresses").and_then(Value::as_array);
    let found = addresses.into_iter().flatten().find(|found| found["type"] == kind);
    found.map_or("<none>", |found| text(found, "/address")).to_owned()
}

/// The usage of a node, or the sum over a pod's containers.
fn usage(object: &Value, what: &str) -> String {
    let of = |usage: &Value| Quantity::parse(usage.get(what)?.as_str()?).ok();
    let containers = object.get("containers").and_then(Value::as_array).into_iter().flatten();
    let parts = containers.filter_map(|container| of(&container["usage"])).chain(of(&object["usage"]));
    json!(parts.fold(Quantity::default(), Quantity::saturating_add)).as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::localapi::resource::{Catalog, find};

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn row(plural: &str, object: &Value) -> Vec<String> {
        let cells = cells(find("", "v1", plural).unwrap(), object, NOW);
        cells.iter().map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned)).collect()
    }

    #[test]
    fn every_row_has_a_cell_for_every_column() {
        for resource in Catalog::default().all() {
            let cells = cells(resource, &json!({"metadata": {"name": "x"}}), NOW);
            assert_eq!(cells.len(), definitions(resource).len(), "{}", resource.qualified());
        }
    }

    #[test]
    fn rows_read_as_an_apiservers() {
        let node = json!({
            "metadata": {"name": "box", "creationTimestamp": "2023-11-14T22:08:20Z", "labels": {"node-role.kubernetes.io/edge": ""}},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1", "osImage": "Debian", "kernelVersion": "6.1", "containerRuntimeVersion": "embedded://1"}},
        });
        assert_eq!(
            row("nodes", &node),
            [
                "box",
                "Ready,SchedulingDisabled",
                "edge",
                "5m",
                "v1",
                "10.0.0.1",
                "<none>",
                "Debian",
                "6.1",
                "embedded://1"
            ]
        );
        let event = json!({
            "metadata": {"name": "web.1"}, "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{a}"},
            "type": "Normal", "reason": "Pulled", "message": "Pulled it\n", "source": {"component": "kubelet", "host": "box"},
            "firstTimestamp": "2023-11-14T22:08:20Z", "lastTimestamp": "2023-11-14T22:13:00Z", "count": 3,
        });
        assert_eq!(
            row("events", &event),
            [
                "20s",
                "Normal",
                "Pulled",
                "pod/web",
                "spec.containers{a}",
                "kubelet, box",
                "Pulled it",
                "5m",
                "3",
                "web.1"
            ]
        );
        let claim = json!({
            "metadata": {"name": "c"},
            "spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "volumeName": "pvc-1", "volumeMode": "Filesystem"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        });
        assert_eq!(
            row("persistentvolumeclaims", &claim),
            ["c", "Bound", "pvc-1", "1Gi", "RWO,ROX", "", "<unset>", "<unknown>", "Filesystem"]
        );
        assert_eq!(
            row(
                "configmaps",
                &json!({"metadata": {"name": "m"}, "data": {"a": "1"}, "binaryData": {"b": ""}})
            ),
            ["m", "2", "<unknown>"]
        );
        let gates = json!({"metadata": {"name": "p"}, "spec": {"readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
            "status": {"conditions": [{"type": "a", "status": "True"}]}});
        assert_eq!(row("pods", &gates)[8], "1/2");
    }
}
