//! What is decided about CSI drivers and their volumes: versions, names, access modes, who applies `fsGroup`.
//!
//! Pure: drivers, their CSIDriver objects and a volume in, names and answers out. Names and texts are upstream's.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::codec::hex;
use crate::model::api::pod::StringMap;
use crate::model::objects::ClaimedSource;
use crate::pod::volume::csi::CsiVolume;

/// `NodeServiceCapability.RPC.Type`.
pub(crate) const STAGE_UNSTAGE: i32 = 1;
pub(crate) const VOLUME_STATS: i32 = 2;
pub(crate) const EXPAND_VOLUME: i32 = 3;
pub(crate) const MULTI_WRITER: i32 = 5;
pub(crate) const MOUNT_GROUP: i32 = 6;

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

/// Plugins of Kubernetes itself: the agent attaches their volumes.
const IN_TREE: &str = "kubernetes.io/";

/// A volume in `volumesInUse` and `volumesAttached` of a Node.
#[must_use]
pub(crate) fn unique_name(driver: &str, handle: &str) -> String {
    if driver.starts_with(IN_TREE) {
        format!("{driver}/{handle}")
    } else {
        format!("{IN_TREE}csi/{driver}^{handle}")
    }
}

/// The driver of a volume's unique name; another name is a driver's already.
#[must_use]
pub(crate) fn driver_of(name: &str) -> &str {
    let Some((plugin, rest)) = name.strip_prefix(IN_TREE).and_then(|rest| rest.split_once('/')) else {
        return name;
    };
    if plugin != "csi" {
        return &name[..IN_TREE.len() + plugin.len()];
    }
    rest.split_once('^').map_or(name, |(driver, _)| driver)
}

/// Where a volume is staged, below `plugins/kubernetes.io/csi`.
#[must_use]
pub(crate) fn staging_place(driver: &str, handle: &str) -> String {
    format!("{driver}/{}/globalmount", hash(&[handle]))
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
            ClaimedSource::Csi { access_modes, .. } => access_modes.clone(),
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

/// Namespace and name of the Secret that a member of the volume's source names; `None` without one.
#[must_use]
pub(crate) fn secret_of<'a>(volume: &'a CsiVolume, member: &str) -> Option<(&'a str, &'a str)> {
    let reference = &volume.source[member];
    let name = reference["name"].as_str().filter(|name| !name.is_empty())?;
    // An inline volume has the Secrets of its pod's namespace only.
    let namespace = match &volume.claimed {
        Some(_) => reference["namespace"].as_str().unwrap_or_default(),
        None => &volume.pod.namespace,
    };
    Some((namespace, name))
}

#[must_use]
pub(crate) fn no_secret((namespace, name): (&str, &str), why: &str) -> String {
    format!("failed to find the secret {name} in the namespace {namespace} with error: {why}")
}

#[must_use]
pub(crate) fn string_map(value: &Value) -> StringMap {
    let members = value.as_object().into_iter().flatten();
    members.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

#[cfg(test)]
mod tests;
