//! What is decided about CSI drivers: versions, names, access modes, the CSINode object, who applies `fsGroup`.
//!
//! Pure: drivers, objects of the API server and a volume in, names and bodies out. Names and texts are upstream's.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::codec::hex;
use crate::model::api::pod::StringMap;
use crate::model::types::Timestamp;
use crate::pod::volume::csi::CsiVolume;

/// Annotation of the Node: JSON of the drivers' names for it.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

/// `NodeServiceCapability.RPC.Type`.
pub(crate) const STAGE_UNSTAGE: i32 = 1;
pub(crate) const VOLUME_STATS: i32 = 2;
pub(crate) const EXPAND_VOLUME: i32 = 3;
pub(crate) const MULTI_WRITER: i32 = 5;
pub(crate) const MOUNT_GROUP: i32 = 6;

/// Of a claim, while its volume grows.
const RESIZE_CONDITIONS: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// What a driver says about this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverInfo {
    pub node_id: String,
    /// 0: no limit is known.
    pub max_volumes: i64,
    pub topology: StringMap,
}

/// The highest of a plugin's versions that the node can use: any 1.x.
#[must_use]
pub(crate) fn highest_version(versions: &[String]) -> Option<Vec<u32>> {
    let parse = |version: &String| {
        let parts = version.strip_prefix('v').unwrap_or(version).split('.');
        let numbers: Option<Vec<u32>> = parts.map(|part| part.parse().ok()).collect();
        numbers.filter(|numbers| numbers.first() == Some(&1))
    };
    versions.iter().filter_map(parse).max()
}

/// The operation has failed, and is not in progress: after the other codes of gRPC the driver may have mounted, or may
/// still be mounting (upstream's `isFinalError`).
#[must_use]
pub(crate) fn is_final(code: i32) -> bool {
    // Canceled, DeadlineExceeded, ResourceExhausted, Aborted, Unavailable.
    !matches!(code, 1 | 4 | 8 | 10 | 14)
}

/// `VolumeCapability.AccessMode.Mode`.
#[must_use]
pub(crate) fn access_mode(mode: &str, is_multi_writer: bool) -> i32 {
    match (mode, is_multi_writer) {
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => 1,
        ("ReadOnlyMany", _) => 3,
        ("ReadWriteMany", _) => 5,
        ("ReadWriteOncePod", true) => 6,
        ("ReadWriteOnce", true) => 7,
        _ => 0,
    }
}

fn hash(parts: &[&str]) -> String {
    hex::encode(&Sha256::digest(parts.concat()))
}

/// The name of a VolumeAttachment.
#[must_use]
pub(crate) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hash(&[handle, driver, node]))
}

/// The handle of an inline volume.
#[must_use]
pub(crate) fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", hash(&[pod_uid, volume]))
}

/// A volume in `volumesInUse` and `volumesAttached` of a Node.
#[must_use]
pub(crate) fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The driver of a volume's unique name; another name is a driver's already.
#[must_use]
pub(crate) fn driver_of(name: &str) -> &str {
    let volume = name.strip_prefix("kubernetes.io/csi/").and_then(|rest| rest.split_once('^'));
    volume.map_or(name, |(driver, _)| driver)
}

/// Where a volume is staged, below `plugins/kubernetes.io/csi`.
#[must_use]
pub(crate) fn staging_place(driver: &str, handle: &str) -> String {
    format!("{driver}/{}/globalmount", hash(&[handle]))
}

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

/// The driver's object says that its volumes are not attached. Without an object they are.
#[must_use]
pub(crate) fn needs_attach(driver: &Value) -> bool {
    driver["spec"]["attachRequired"] != false
}

/// The kind of a volume is one that the driver supports.
///
/// # Errors
/// It is not: why.
pub(crate) fn check_lifecycle(driver: &str, object: &Value, is_ephemeral: bool) -> Result<(), String> {
    let mode = if is_ephemeral { "Ephemeral" } else { "Persistent" };
    let modes = &object["spec"]["volumeLifecycleModes"];
    match modes.as_array() {
        // The server's default.
        None if !is_ephemeral => Ok(()),
        None => Err(format!("volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)")),
        Some(known) if known.iter().any(|known| known == mode) => Ok(()),
        Some(_) => {
            Err(format!("volume mode {mode:?} not supported by driver {driver} (only supports {modes})"))
        }
    }
}

/// The node sets the group of the files, as the driver's `fsGroupPolicy` says.
#[must_use]
pub(crate) fn applies_group(driver: &Value, volume: &CsiVolume) -> bool {
    let policy = driver["spec"]["fsGroupPolicy"].as_str().unwrap_or_default();
    match policy {
        _ if volume.read_only || volume.fs_group.is_none() || policy == "None" => false,
        "File" => true,
        _ if fs_type(volume).is_empty() => false,
        _ => modes(volume).iter().any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod"),
    }
}

#[must_use]
pub(crate) fn fs_type(volume: &CsiVolume) -> &str {
    volume.source["fsType"].as_str().unwrap_or_default()
}

/// Access modes of the PersistentVolume; an inline volume is ReadWriteOnce.
#[must_use]
pub(crate) fn modes(volume: &CsiVolume) -> Vec<String> {
    match &volume.claimed {
        Some(claimed) => match &claimed.source {
            crate::model::objects::ClaimedSource::Csi { access_modes, .. } => access_modes.clone(),
            _ => Vec::new(),
        },
        None => vec!["ReadWriteOnce".to_owned()],
    }
}

/// `volumeAttributes`, and what `podInfoOnMount` adds.
#[must_use]
pub(crate) fn volume_context(driver: &Value, volume: &CsiVolume) -> StringMap {
    let mut context = string_map(&volume.source["volumeAttributes"]);
    if driver["spec"]["podInfoOnMount"] == true {
        let is_ephemeral = volume.claimed.is_none().to_string();
        let facts = [
            ("pod.name", &volume.pod.name),
            ("pod.namespace", &volume.pod.namespace),
            ("pod.uid", &volume.pod.uid.as_str().to_owned()),
            ("serviceAccount.name", &volume.account),
            ("ephemeral", &is_ephemeral),
        ];
        for (name, value) in facts {
            context.insert(format!("csi.storage.k8s.io/{name}"), value.clone());
        }
    }
    context
}

#[must_use]
pub(crate) fn string_map(value: &Value) -> StringMap {
    let members = value.as_object().into_iter().flatten();
    members.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
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
