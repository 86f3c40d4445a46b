//! What is decided about CSI drivers in a cluster: the CSINode object, annotation and labels of the Node, attachments,
//! claims that grow.
//!
//! Pure: drivers and objects of the API server in, names and bodies out. Names and texts are upstream's.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::model::api::pod::StringMap;
use crate::model::types::Timestamp;
use crate::pod::csi::rules::{DriverInfo, string_map};

/// Annotation of the Node: JSON of the drivers' names for it.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

/// Of a claim, while its volume grows.
const RESIZE_CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

fn driver_entry(name: &str, info: &DriverInfo) -> Value {
    let keys: Vec<&String> = info.topology.keys().collect();
    let mut entry = json!({"name": name, "nodeID": info.node_id, "topologyKeys": keys});
    if info.max_volumes > 0 {
        entry["allocatable"] = json!({"count": info.max_volumes.min(i64::from(i32::MAX))});
    }
    entry
}

/// The CSINode with these drivers and without those that are gone; `None` when the server's is right. Entries of other
/// drivers stay: their plugin may register later.
#[must_use]
pub(crate) fn csi_node(
    current: Option<&Value>,
    node: (&str, &str),
    drivers: &BTreeMap<String, DriverInfo>,
    gone: &BTreeSet<String>,
) -> Option<Value> {
    let known = current.and_then(|object| object["spec"]["drivers"].as_array());
    let known: Vec<&Value> = known.into_iter().flatten().collect();
    let mut entries = Vec::new();
    for entry in &known {
        let name = entry["name"].as_str().unwrap_or_default();
        if !drivers.contains_key(name) && !gone.contains(name) {
            entries.push((*entry).clone());
        }
    }
    let mut is_same = entries.len() + drivers.len() == known.len();
    for (name, info) in drivers {
        let entry = driver_entry(name, info);
        let old = known.iter().find(|old| old["name"] == name.as_str());
        is_same &= old.is_some_and(|old| is_equal(old, &entry));
        entries.push(entry);
    }
    match current {
        Some(_) if is_same => None,
        Some(object) => {
            let mut object = object.clone();
            object["spec"]["drivers"] = entries.into();
            Some(object)
        }
        None if drivers.is_empty() => None,
        None => Some(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": node.0, "ownerReferences":
                [{"apiVersion": "v1", "kind": "Node", "name": node.0, "uid": node.1}]},
            "spec": {"drivers": entries},
        })),
    }
}

/// Members that are empty or null may be missing.
fn is_equal(old: &Value, new: &Value) -> bool {
    let keys = |entry: &Value| -> BTreeSet<String> {
        let keys = entry["topologyKeys"].as_array().into_iter().flatten();
        keys.filter_map(|key| key.as_str().map(str::to_owned)).collect()
    };
    old["nodeID"] == new["nodeID"]
        && keys(old) == keys(new)
        && old["allocatable"]["count"] == new["allocatable"]["count"]
}

/// This CSINode belongs to an earlier Node of the same name.
#[must_use]
pub(crate) fn is_of_other_node(object: &Value, node: (&str, &str)) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    !owners
        .into_iter()
        .any(|owner| owner["kind"] == "Node" && owner["name"] == node.0 && owner["uid"] == node.1)
}

/// A patch of the Node: annotation and topology labels. `None` when they are right.
///
/// # Errors
/// What a driver reports and the Node contradicts, by driver: such drivers are left out.
pub(crate) fn node_patch(
    node: &Value,
    drivers: &BTreeMap<String, DriverInfo>,
    gone: &BTreeSet<String>,
) -> (Option<Value>, BTreeMap<String, String>) {
    let (labels, annotations) = (&node["metadata"]["labels"], &node["metadata"]["annotations"]);
    let annotation = annotations[NODE_ID].as_str().unwrap_or_default();
    let old: StringMap = serde_json::from_str(annotation).unwrap_or_default();
    let (mut ids, mut new_labels, mut refused) = (old.clone(), StringMap::new(), BTreeMap::new());
    ids.retain(|name, _| !gone.contains(name));
    for (name, info) in drivers {
        let collision = info.topology.iter().find_map(|(key, value)| {
            let known = labels[key.as_str()].as_str().or(new_labels.get(key).map(String::as_str))?;
            (known != value).then(|| {
                format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but existing label is \
                     {key:?}:{known:?}"
                )
            })
        });
        if let Some(why) = collision {
            refused.insert(name.clone(), why);
            continue;
        }
        let missing = info.topology.iter().filter(|(key, _)| labels[key.as_str()].is_null());
        new_labels.extend(missing.map(|(key, value)| (key.clone(), value.clone())));
        ids.insert(name.clone(), info.node_id.clone());
    }
    let mut metadata = json!({});
    if ids != old {
        let value = if ids.is_empty() { Value::Null } else { json!(ids).to_string().into() };
        metadata["annotations"] = json!({NODE_ID: value});
    }
    if !new_labels.is_empty() {
        metadata["labels"] = json!(new_labels);
    }
    let is_same = metadata.as_object().is_none_or(serde_json::Map::is_empty);
    ((!is_same).then(|| json!({"metadata": metadata})), refused)
}

/// The publish context of a volume that is attached to this node.
///
/// # Errors
/// It is not, or not yet.
pub(crate) fn publish_context(attachment: &Value, volume: &str) -> Result<StringMap, String> {
    let status = &attachment["status"];
    if !attachment["metadata"]["deletionTimestamp"].is_null() {
        return Err("volume attachment is being deleted".to_owned());
    }
    if status["attached"] == true {
        return Ok(string_map(&status["attachmentMetadata"]));
    }
    match status["attachError"]["message"].as_str() {
        Some(message) => Err(message.to_owned()),
        None => Err(not_attached(volume)),
    }
}

/// A patch of a claim whose volume has this size now on the node that uses it.
#[must_use]
pub(crate) fn resized(claim: &Value, size: &str) -> Value {
    let all = claim["status"]["conditions"].as_array().into_iter().flatten();
    let ended = all.filter(|condition| RESIZE_CONDITIONS.iter().any(|kind| condition["type"] == *kind));
    let ended: Vec<Value> =
        ended.map(|condition| json!({"type": condition["type"], "$patch": "delete"})).collect();
    json!({"status": {
        "capacity": {"storage": size},
        "allocatedResourceStatuses": {"storage": null},
        "conditions": ended,
    }})
}

/// A patch of a claim that could not be resized; with some codes of gRPC it never can.
#[must_use]
pub(crate) fn not_resized(code: i32, why: &str, now: Timestamp) -> Value {
    let condition = json!({"type": "NodeResizeError", "status": "True", "message": why,
        "lastTransitionTime": now.to_rfc3339()});
    let mut status = json!({"conditions": [condition]});
    // InvalidArgument, NotFound, OutOfRange.
    if matches!(code, 3 | 5 | 11) {
        status["allocatedResourceStatuses"] = json!({"storage": "NodeResizeInfeasible"});
    }
    json!({"status": status})
}

#[must_use]
pub(crate) fn not_attached(volume: &str) -> String {
    format!("Volume not attached according to node status for volume {volume:?}")
}

#[cfg(test)]
mod tests;
