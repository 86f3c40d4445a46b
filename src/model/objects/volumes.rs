//! PersistentVolumes: which claim of this node has one, and what it is to a pod.
//!
//! Pure: objects in, names, volumes and upstream's messages out.

use serde_json::{Value, json};

use super::retired::{self, Retired};
use super::{ClaimSpec, ClaimedSource, ClaimedVolume, LocalObject, ObjectContent};
use crate::model::api::pod::StringMap;
use crate::model::api::quantity::Quantity;

/// Of volumes and of claims.
pub(crate) const ACCESS_MODES: [&str; 4] =
    ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];
/// The provisioner of a StorageClass whose claims are directories of the node.
pub(crate) const DIRECTORY_PROVISIONER: &str = "agent.edge/directory";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Annotations of a claim: who creates a volume for it, and where it is needed.
const PROVISIONER_ASKED: [&str; 2] =
    ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// An annotation of a claim: it has a PersistentVolume.
pub(crate) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotations of a volume.
pub(crate) const GROUP: &str = "pv.beta.kubernetes.io/gid";
pub(crate) const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// Sources of volumes that are disks of the network.
pub(crate) const DISKS: [&str; 2] = ["iscsi", "fc"];

/// What a claim of this node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// A directory of its own.
    Directory,
    /// The PersistentVolume of this name.
    Volume(String),
    /// Nothing yet, and why.
    Pending(String),
    /// Nothing until this provisioner creates a PersistentVolume for it.
    Awaited(String),
}

impl Binding {
    /// Why the claim has nothing, in upstream's words.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Directory | Self::Volume(_) => None,
            Self::Pending(why) => Some(why.clone()),
            Self::Awaited(provisioner) => Some(format!(
                "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by \
                 the system administrator. If volume creation is delayed, please verify that the provisioner is \
                 running and correctly registered."
            )),
        }
    }
}

/// A PersistentVolume: its name and its spec.
pub(crate) type NamedVolume = (String, Value);

/// What a claim has. `claims` are all, from the oldest; `provisioner` is that of its StorageClass, if there is one, and
/// `is_used` whether it has had its directory already: that stays.
pub(crate) fn binding(
    claim: &LocalObject,
    (volumes, claims): (&[NamedVolume], &[&LocalObject]),
    provisioner: Option<&str>,
    is_used: impl Fn() -> bool,
) -> Binding {
    let Some(own) = claim_spec(claim) else { return Binding::Directory };
    let has = |(name, spec): &&NamedVolume| {
        claimant(name, spec, claims).is_some_and(|found| found.key == claim.key)
    };
    let name = &own.volume_name;
    if !name.is_empty() {
        let Some(volume) = volumes.iter().find(|(known, _)| known == name) else {
            return Binding::Pending(format!("PersistentVolume {name:?} not found"));
        };
        return match mismatch(&volume.1, own) {
            _ if has(&volume) => Binding::Volume(name.clone()),
            Some(why) => Binding::Pending(format!("Cannot bind to requested volume {name:?}: {why}")),
            None => Binding::Pending(format!("volume {name:?} already bound to a different claim.")),
        };
    }
    if let Some((name, spec)) = volumes.iter().find(has) {
        let hides = !is_bound(spec) && is_used();
        return if hides { Binding::Directory } else { Binding::Volume(name.clone()) };
    }
    let Some(class) = &own.storage_class else { return Binding::Directory };
    let external = provisioner.filter(|name| *name != DIRECTORY_PROVISIONER);
    let has_class = volumes.iter().any(|(_, spec)| class_of(spec) == class);
    if external.is_none() && !has_class || is_used() {
        return Binding::Directory;
    }
    match external.filter(|name| *name != NO_PROVISIONER) {
        Some(name) => Binding::Awaited(name.to_owned()),
        None => Binding::Pending(
            "no persistent volumes available for this claim and no storage class is set".to_owned(),
        ),
    }
}

/// The claim that has a volume by its `claimRef` or by the claim's `volumeName`; `claims` from the oldest.
pub(crate) fn claimant<'c>(name: &str, spec: &Value, claims: &[&'c LocalObject]) -> Option<&'c LocalObject> {
    let reference = &spec["claimRef"];
    let fits = |claim: &LocalObject| claim_spec(claim).is_some_and(|own| mismatch(spec, own).is_none());
    let is_it = |claim: &&LocalObject| {
        if !reference.is_object() {
            return claim_spec(claim).is_some_and(|own| own.volume_name == name) && fits(claim);
        }
        let uid = text(&reference["uid"]);
        reference["name"] == claim.key.name.as_str()
            && reference["namespace"] == claim.key.namespace.as_str()
            // Once it is bound, its size and class do not matter.
            && if uid.is_empty() { fits(claim) } else { uid == claim.uid }
    };
    claims.iter().copied().find(is_it)
}

/// Its `claimRef` is of one claim, not of any with that name.
pub(crate) fn is_bound(volume: &Value) -> bool {
    !text(&volume["claimRef"]["uid"]).is_empty()
}

/// Why a volume does not suit a claim, in upstream's words; `None` when it does.
pub(crate) fn mismatch(volume: &Value, claim: &ClaimSpec) -> Option<&'static str> {
    let modes = &volume["accessModes"];
    if size_of(volume) < claim.storage {
        Some("requested PV is too small")
    } else if class_of(volume) != claim.storage_class.as_deref().unwrap_or_default() {
        Some("storageClassName does not match")
    } else if volume["volumeMode"].as_str().is_some_and(|mode| mode != "Filesystem") {
        Some("incompatible volumeMode")
    } else if !claim.access_modes.iter().all(|wanted| texts(modes).any(|mode| mode == wanted)) {
        Some("incompatible accessMode")
    } else {
        None
    }
}

#[must_use]
pub(crate) fn claim_spec(claim: &LocalObject) -> Option<&ClaimSpec> {
    match &claim.content {
        ObjectContent::Claim(spec) => Some(spec),
        _ => None,
    }
}

#[must_use]
pub(crate) fn class_of(volume: &Value) -> &str {
    text(&volume["storageClassName"])
}

#[must_use]
pub(crate) fn size_of(volume: &Value) -> Quantity {
    Quantity::parse(text(&volume["capacity"]["storage"])).unwrap_or_default()
}

/// A PersistentVolume as a pod uses it; its place and its owner are not checked.
///
/// # Errors
/// It is of a kind that this node does not mount.
pub(crate) fn volume_of(name: &str, annotations: &StringMap, spec: &Value) -> Result<ClaimedVolume, String> {
    let annotation = |key: &str| annotations.get(key).map(String::as_str);
    let mount_options = annotation(MOUNT_OPTIONS).map_or_else(
        || texts(&spec["mountOptions"]).map(str::to_owned).collect(),
        |options| options.split(',').map(str::to_owned).collect(),
    );
    Ok(ClaimedVolume {
        name: name.to_owned(),
        source: source_of(name, spec)?,
        mount_options,
        supplemental_group: annotation(GROUP).and_then(|group| group.parse().ok()),
        read_only: ["nfs", "iscsi", "fc"].into_iter().any(|kind| spec[kind]["readOnly"] == true),
        single_pod: texts(&spec["accessModes"]).eq(["ReadWriteOncePod"]),
        owner: String::new(),
    })
}

fn source_of(name: &str, spec: &Value) -> Result<ClaimedSource, String> {
    let path = |of: &Value| text(&of["path"]).to_owned();
    if let Some(source) = spec.get("hostPath") {
        return Ok(ClaimedSource::HostPath { path: path(source), type_: text(&source["type"]).to_owned() });
    }
    if let Some(source) = spec.get("csi") {
        let access_modes = texts(&spec["accessModes"]).map(str::to_owned).collect();
        return Ok(ClaimedSource::Csi { source: source.clone(), access_modes });
    }
    if let Some(source) = spec.get("local") {
        return Ok(ClaimedSource::Local { path: path(source), fs_type: text(&source["fsType"]).to_owned() });
    }
    if let Some(source) = spec.get("nfs") {
        return Ok(ClaimedSource::Nfs { server: text(&source["server"]).to_owned(), path: path(source) });
    }
    for kind in DISKS {
        if let Some(source) = spec.get(kind) {
            return Ok(ClaimedSource::Disk { kind, source: source.clone() });
        }
    }
    Err(match retired_kind(spec) {
        Some(kind) => kind.problem(name),
        None => format!(
            "PV {name} is of an unknown kind; this node mounts csi, fc, hostPath, iscsi, local and nfs"
        ),
    })
}

fn retired_kind(spec: &Value) -> Option<&'static Retired> {
    spec.as_object()?.keys().find_map(|field| retired::by_field(field))
}

/// A source of Kubernetes that this node does not mount.
#[must_use]
pub(crate) fn other_kind(spec: &Value) -> Option<&'static str> {
    Some(retired_kind(spec)?.field)
}

/// Puts into the JSON of a claim by which a provisioner learns that it is asked, and for which node.
pub(crate) fn ask_provisioner(claim: &mut Value, binding: &Binding, node: &str) {
    let Binding::Awaited(provisioner) = binding else { return };
    let annotations = &mut claim["metadata"]["annotations"];
    for key in PROVISIONER_ASKED {
        annotations[key] = json!(provisioner);
    }
    annotations[SELECTED_NODE] = json!(node);
}

/// Puts into the JSON of a claim what it has.
pub(crate) fn show_binding(claim: &mut Value, binding: &Binding) {
    match binding {
        Binding::Directory => {}
        Binding::Volume(name) => {
            claim["spec"]["volumeName"] = json!(name);
            claim["metadata"]["annotations"][BIND_COMPLETED] = json!("yes");
        }
        Binding::Pending(_) | Binding::Awaited(_) => {
            claim["status"] = json!({"phase": "Pending"});
            if let Some(spec) = claim["spec"].as_object_mut() {
                spec.retain(|field, value| field != "volumeName" || !text(value).starts_with("pvc-"));
            }
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests;
