//! Objects as Kubernetes writes them, and back.
//!
//! Owns the translation: base64, `stringData`, a claim's status.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::plain::decode_plain;
use super::{
    AnyObject, ClaimSpec, ClaimedSource, ClaimedVolume, ClassScheduling, ConfigMapData, LocalObject, OPAQUE,
    ObjectContent, ObjectData, ObjectKey, ObjectKind, OwnerReference, PlainBody, PlainObject,
    RuntimeClassSpec,
};
use crate::codec::base64;
use crate::model::api::decode::{DecodeError, decode};
use crate::model::api::object::{
    ConfigMap, Encoded, Namespace, Overhead, PersistentVolumeClaim, RuntimeClass, Scheduling, Secret,
};
use crate::model::api::pod::{ObjectMeta, StringMap};
use crate::model::ordered::Ordered as _;

/// `resources.requests` of a claim.
pub(crate) const STORAGE: &str = "storage";

/// In the stored status of a claim of the cluster: the volume it is bound to.
const BOUND: &str = "boundVolume";

/// kubectl's copy of the whole manifest, values included.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Fields and keys whose values are not base64.
pub(crate) type BadKeys = Vec<(&'static str, String)>;

/// How the values of a Secret are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Base64, as in a manifest.
    Shown,
    /// Only their lengths: for display, not valid in a manifest.
    Hidden,
    /// Neither values nor keys.
    LeftOut,
}

/// A ConfigMap, and the keys that could not be decoded.
#[must_use]
pub(crate) fn config_map(wire: ConfigMap) -> (LocalObject, BadKeys) {
    let data = wire.data.into_iter().map(|(key, value)| (key, value.into_bytes())).into_map();
    let (binary_data, bad) = decoded(wire.binary_data, "binaryData");
    let immutable = wire.immutable == Some(true);
    let content = ObjectContent::ConfigMap { data: ConfigMapData { data, binary_data }, immutable };
    (object(ObjectKind::ConfigMap, wire.metadata, content), bad)
}

/// A Secret, and the keys that could not be decoded. `stringData` wins over `data`, as upstream.
#[must_use]
pub(crate) fn secret(wire: Secret) -> (LocalObject, BadKeys) {
    let (mut data, bad) = decoded(wire.data, "data");
    data.extend(wire.string_data.into_iter().map(|(key, value)| (key, value.0.into_bytes())));
    let secret_type = if wire.secret_type.is_empty() { OPAQUE.to_owned() } else { wire.secret_type };
    let content = ObjectContent::Secret { secret_type, data, immutable: wire.immutable == Some(true) };
    (object(ObjectKind::Secret, wire.metadata, content), bad)
}

/// A claim; its other fields are dropped.
#[must_use]
pub(crate) fn claim(wire: PersistentVolumeClaim) -> LocalObject {
    let spec = wire.spec;
    let mut object = object(ObjectKind::PersistentVolumeClaim, wire.metadata, ObjectContent::Namespace);
    let own = volume_name(&object.key);
    object.content = ObjectContent::Claim(ClaimSpec {
        access_modes: spec.access_modes,
        storage: spec.resources.requests.get(STORAGE).copied().unwrap_or_default(),
        storage_class: spec.storage_class_name,
        volume_name: Some(spec.volume_name).filter(|name| *name != own).unwrap_or_default(),
        volume: None,
    });
    object
}

#[must_use]
pub(crate) fn namespace(wire: Namespace) -> LocalObject {
    object(ObjectKind::Namespace, wire.metadata, ObjectContent::Namespace)
}

#[must_use]
pub(crate) fn runtime_class(wire: RuntimeClass) -> LocalObject {
    let scheduling =
        |Scheduling { node_selector, tolerations }| ClassScheduling { node_selector, tolerations };
    let content = ObjectContent::RuntimeClass(RuntimeClassSpec {
        handler: wire.handler,
        overhead: wire.overhead.map(|overhead| overhead.pod_fixed),
        scheduling: wire.scheduling.map(scheduling),
    });
    object(ObjectKind::RuntimeClass, wire.metadata, content)
}

fn plain(PlainObject { kind, metadata, body }: PlainObject) -> LocalObject {
    object(kind, metadata, ObjectContent::Plain(PlainBody::new(&body)))
}

/// An object of the agent's own.
#[must_use]
pub(crate) fn plain_object(key: ObjectKey, body: PlainBody) -> LocalObject {
    let uid = derived_uid(&key);
    let ObjectKey { kind, namespace, name } = key;
    let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
    LocalObject { uid, ..object(kind, metadata, ObjectContent::Plain(body)) }
}

/// The local form of a decoded object, and the keys that could not be decoded.
#[must_use]
pub(crate) fn local(wire: AnyObject) -> (LocalObject, BadKeys) {
    match wire {
        AnyObject::ConfigMap(map) => config_map(map),
        AnyObject::Secret(wire) => secret(wire),
        AnyObject::Claim(wire) => (claim(*wire), BadKeys::new()),
        AnyObject::Namespace(wire) => (namespace(wire), BadKeys::new()),
        AnyObject::RuntimeClass(wire) => (runtime_class(*wire), BadKeys::new()),
        AnyObject::Plain(wire) => (plain(*wire), BadKeys::new()),
    }
}

/// The object and the fields its type does not have.
pub(crate) fn decode_object(kind: ObjectKind, value: Value) -> Result<(AnyObject, Vec<String>), DecodeError> {
    Ok(match kind {
        ObjectKind::ConfigMap => {
            let decoded = decode(value)?;
            (AnyObject::ConfigMap(decoded.object), decoded.unknown_fields)
        }
        ObjectKind::Secret => {
            let decoded = decode(value)?;
            (AnyObject::Secret(decoded.object), decoded.unknown_fields)
        }
        ObjectKind::PersistentVolumeClaim => {
            let decoded = decode(value)?;
            (AnyObject::Claim(Box::new(decoded.object)), decoded.unknown_fields)
        }
        ObjectKind::Namespace => {
            let decoded = decode(value)?;
            (AnyObject::Namespace(decoded.object), decoded.unknown_fields)
        }
        ObjectKind::RuntimeClass => {
            let decoded = decode(value)?;
            (AnyObject::RuntimeClass(Box::new(decoded.object)), decoded.unknown_fields)
        }
        kind => {
            let (object, unknown) = decode_plain(kind, value)?;
            (AnyObject::Plain(Box::new(object)), unknown)
        }
    })
}

/// An object from its own JSON, as [`to_value`] writes it.
///
/// # Errors
/// What is wrong with it; no value of a Secret is in the message.
pub fn from_value(kind: ObjectKind, value: Value) -> Result<LocalObject, String> {
    let bound = claimed_volume(&value["status"][BOUND]).map(Box::new);
    let (wire, _) = decode_object(kind, value).map_err(|error| {
        if kind == ObjectKind::Secret { without_values(&error.path) } else { error.to_string() }
    })?;
    let (mut object, bad) = local(wire);
    if let ObjectContent::Claim(claim) = &mut object.content {
        claim.volume = bound;
    }
    match bad.first() {
        None if object.uid.is_empty() => Ok(LocalObject { uid: derived_uid(&object.key), ..object }),
        None => Ok(object),
        Some((field, key)) => Err(format!("{field}[{key}]: not base64")),
    }
}

fn without_values(path: &str) -> String {
    format!("{path}: invalid value")
}

/// The object as JSON, with uid and time of creation.
#[must_use]
pub(crate) fn to_value(object: &LocalObject, values: Values) -> Value {
    let key = &object.key;
    let mut value = json!({
        "apiVersion": key.kind.api_version(),
        "kind": key.kind.as_str(),
        "metadata": {
            "name": key.name,
            "uid": object.uid,
            "creationTimestamp": object.created.to_rfc3339(),
        },
    });
    let metadata = &mut value["metadata"];
    if !key.namespace.is_empty() {
        metadata["namespace"] = json!(key.namespace);
    }
    for (field, map) in [("labels", &object.labels), ("annotations", &object.annotations)] {
        // The annotation repeats the values.
        let is_hidden =
            |name: &str| key.kind == ObjectKind::Secret && values != Values::Shown && name == LAST_APPLIED;
        let map: StringMap = map.clone().into_iter().filter(|(name, _)| !is_hidden(name)).into_map();
        if !map.is_empty() {
            metadata[field] = json!(map);
        }
    }
    if !object.managed_fields.is_empty() {
        metadata["managedFields"] = json!(object.managed_fields);
    }
    if !object.finalizers.is_empty() {
        metadata["finalizers"] = json!(object.finalizers);
    }
    if !object.owner_references.is_empty() {
        metadata["ownerReferences"] = object.owner_references.iter().map(OwnerReference::to_value).collect();
    }
    if object.generation > 0 {
        metadata["generation"] = json!(object.generation);
    }
    if let Some(deleted) = object.deleted {
        metadata["deletionTimestamp"] = json!(deleted.to_rfc3339());
        metadata["deletionGracePeriodSeconds"] = json!(0);
    }
    match &object.content {
        ObjectContent::ConfigMap { data, immutable } => {
            let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
            let plain: BTreeMap<_, _> = data.data.iter().map(|(key, bytes)| (key, text(bytes))).into_map();
            set_non_empty(&mut value, "data", json!(plain));
            set_non_empty(&mut value, "binaryData", json!(encoded(&data.binary_data)));
            set_non_empty(&mut value, "immutable", immutable.then_some(true).into());
        }
        ObjectContent::Secret { secret_type, data, immutable } => {
            value["type"] = json!(secret_type);
            let data = match values {
                Values::Shown => encoded(data),
                Values::Hidden => {
                    let hidden = |bytes: &Vec<u8>| format!("<{} bytes, hidden>", bytes.len());
                    data.iter().map(|(key, bytes)| (key.clone(), hidden(bytes))).into_map()
                }
                Values::LeftOut => BTreeMap::new(),
            };
            set_non_empty(&mut value, "data", json!(data));
            set_non_empty(&mut value, "immutable", immutable.then_some(true).into());
        }
        ObjectContent::Claim(claim) => {
            put_claim(&mut value, key, claim);
            if let Some(volume) = &claim.volume {
                value["spec"]["volumeName"] = json!(volume.name);
                value["status"][BOUND] = volume_value(volume);
            }
        }
        ObjectContent::Namespace => {
            value["spec"] = json!({"finalizers": ["kubernetes"]});
            let phase = if object.deleted.is_some() { "Terminating" } else { "Active" };
            value["status"] = json!({"phase": phase});
        }
        ObjectContent::RuntimeClass(class) => {
            value["handler"] = json!(class.handler);
            if let Some(overhead) = &class.overhead {
                value["overhead"] = json!(Overhead { pod_fixed: overhead.clone() });
            }
            if let Some(ClassScheduling { node_selector, tolerations }) = class.scheduling.clone() {
                value["scheduling"] = json!(Scheduling { node_selector, tolerations });
            }
        }
        ObjectContent::Plain(body) => {
            if let (Some(value), Value::Object(members)) = (value.as_object_mut(), body.parse()) {
                value.extend(members);
            }
        }
    }
    value
}

/// A reference to a claim, as in the `claimRef` of a volume.
#[must_use]
pub(crate) fn claim_reference(claim: &LocalObject) -> Value {
    let key = &claim.key;
    json!({"apiVersion": "v1", "kind": key.kind.as_str(), "namespace": key.namespace, "name": key.name, "uid": claim.uid})
}

fn put_claim(value: &mut Value, key: &ObjectKey, claim: &ClaimSpec) {
    value["spec"] = json!({
        "accessModes": claim.access_modes,
        "resources": {"requests": {STORAGE: claim.storage}},
        "volumeMode": "Filesystem",
        "volumeName": Some(&claim.volume_name).filter(|name| !name.is_empty()).unwrap_or(&volume_name(key)),
    });
    if let Some(class) = &claim.storage_class {
        value["spec"]["storageClassName"] = json!(class);
    }
    value["status"] = json!({
        "phase": "Bound",
        "accessModes": claim.access_modes,
        "capacity": {STORAGE: claim.storage},
    });
}

/// The volume of a claim of the cluster, in the form of a PersistentVolume's spec.
fn volume_value(volume: &ClaimedVolume) -> Value {
    let source = match &volume.source {
        ClaimedSource::Directory { path, .. } => json!({"directory": {"path": path}}),
        ClaimedSource::Local { path, fs_type } => json!({"local": {"path": path, "fsType": fs_type}}),
        ClaimedSource::HostPath { path, type_ } => json!({"hostPath": {"path": path, "type": type_}}),
        ClaimedSource::Nfs { server, path } => json!({"nfs": {"server": server, "path": path}}),
        ClaimedSource::Disk { kind, source } => json!({*kind: source}),
        ClaimedSource::Csi { source, access_modes } => {
            json!({"csi": {"source": source, "accessModes": access_modes}})
        }
    };
    json!({
        "name": volume.name,
        "source": source,
        "mountOptions": volume.mount_options,
        "supplementalGroup": volume.supplemental_group,
        "readOnly": volume.read_only,
        "singlePod": volume.single_pod,
        "owner": volume.owner,
    })
}

fn claimed_volume(value: &Value) -> Option<ClaimedVolume> {
    let (kind, source) = value["source"].as_object()?.iter().next()?;
    let texts = |value: &Value| {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(|item| item.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let text = |field: &str| source[field].as_str().unwrap_or_default().to_owned();
    let path = text("path");
    let source = match kind.as_str() {
        "csi" => ClaimedSource::Csi {
            source: source["source"].clone(),
            access_modes: texts(&source["accessModes"]),
        },
        "iscsi" => ClaimedSource::Disk { kind: "iscsi", source: source.clone() },
        "fc" => ClaimedSource::Disk { kind: "fc", source: source.clone() },
        _ if path.is_empty() => return None,
        "directory" => ClaimedSource::Directory { path, bytes: 0, uid: String::new() },
        "local" => ClaimedSource::Local { path, fs_type: text("fsType") },
        "hostPath" => ClaimedSource::HostPath { path, type_: text("type") },
        "nfs" => ClaimedSource::Nfs { server: source["server"].as_str()?.to_owned(), path },
        _ => return None,
    };
    Some(ClaimedVolume {
        name: value["name"].as_str()?.to_owned(),
        source,
        mount_options: texts(&value["mountOptions"]),
        supplemental_group: value["supplementalGroup"].as_i64(),
        read_only: value["readOnly"] == true,
        single_pod: value["singlePod"] == true,
        owner: value["owner"].as_str().unwrap_or_default().to_owned(),
    })
}

/// Absent rather than empty.
fn set_non_empty(value: &mut Value, field: &str, part: Value) {
    let is_empty = part.is_null() || part.as_object().is_some_and(serde_json::Map::is_empty);
    if !is_empty {
        value[field] = part;
    }
}

/// The volume that a claim is bound to; its name is that of the directory on which a pod mounts it.
#[must_use]
pub(crate) fn volume_name(claim: &ObjectKey) -> String {
    format!("pvc-{}", derived_uid(claim))
}

/// The uid of an object that a manifest defines: the same for one kind, namespace and name, on every start.
/// Objects that an older release accepted through the API have such a uid, too.
#[must_use]
pub(crate) fn derived_uid(key: &ObjectKey) -> String {
    let digest = Sha256::digest(format!("{}\0{}\0{}", key.kind.stored_name(), key.namespace, key.name));
    let mut uid = String::with_capacity(36);
    for (position, byte) in digest[..16].iter().enumerate() {
        let dash = if matches!(position, 4 | 6 | 8 | 10) { "-" } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(uid, "{dash}{byte:02x}");
    }
    uid
}

fn object(kind: ObjectKind, metadata: ObjectMeta, content: ObjectContent) -> LocalObject {
    let namespace = match metadata.namespace {
        _ if !kind.is_namespaced() => String::new(),
        namespace if namespace.is_empty() => "default".to_owned(),
        namespace => namespace,
    };
    LocalObject {
        key: ObjectKey { kind, namespace, name: metadata.name },
        uid: metadata.uid.to_string(),
        labels: metadata.labels,
        annotations: metadata.annotations,
        created: metadata.creation_timestamp.unwrap_or_default(),
        managed_fields: metadata.managed_fields,
        finalizers: metadata.finalizers,
        owner_references: metadata.owner_references.iter().map(OwnerReference::from_value).collect(),
        generation: if kind.has_generation() { metadata.generation.max(1) } else { 0 },
        deleted: metadata.deletion_timestamp,
        content,
    }
}

fn decoded(values: BTreeMap<String, Encoded>, field: &'static str) -> (ObjectData, BadKeys) {
    let mut data = ObjectData::new();
    let mut bad = BadKeys::new();
    for (key, value) in values {
        match base64::decode(&value.0) {
            Some(bytes) => drop(data.insert(key, bytes)),
            None => bad.push((field, key)),
        }
    }
    (data, bad)
}

fn encoded(data: &ObjectData) -> BTreeMap<String, String> {
    data.iter().map(|(key, bytes)| (key.clone(), base64::encode(bytes))).into_map()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: ObjectKind, value: Value) -> LocalObject {
        from_value(kind, value).unwrap()
    }

    #[test]
    fn string_data_wins_and_what_is_written_reads_back_the_same() {
        let secret = read(
            ObjectKind::Secret,
            json!({"metadata": {"name": "s", "namespace": "ns", "labels": {"a": "b"}, "annotations": {LAST_APPLIED: "{}"},
                    "creationTimestamp": "2026-11-20T16:00:00Z", "finalizers": ["edge.example/a"],
                    "deletionTimestamp": "2026-11-20T17:00:00Z"},
                "data": {"a": "b2xk", "b": "a2VlcA=="}, "stringData": {"a": "new"}, "immutable": true}),
        );
        let ObjectContent::Secret { secret_type, data, .. } = &secret.content else { panic!("{secret:?}") };
        assert_eq!(
            (secret_type.as_str(), data["a"].as_slice(), data["b"].as_slice()),
            (OPAQUE, &b"new"[..], &b"keep"[..])
        );
        assert!(secret.annotations.contains_key(LAST_APPLIED));
        assert_eq!((secret.finalizers.len(), secret.deleted.is_some()), (1, true));
        assert_eq!(read(ObjectKind::Secret, to_value(&secret, Values::Shown)), secret);
        let map = json!({"metadata": {"name": "m"}, "data": {"a": "x\n"}, "binaryData": {"b": "AP8="}});
        let map = read(ObjectKind::ConfigMap, map);
        assert_eq!(map.key.namespace, "default");
        assert_eq!(read(ObjectKind::ConfigMap, to_value(&map, Values::Shown)), map);
        let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}});
        let claim = read(ObjectKind::PersistentVolumeClaim, claim);
        let written = to_value(&claim, Values::Shown);
        assert_eq!(
            (&written["status"]["phase"], &written["status"]["capacity"]["storage"]),
            (&json!("Bound"), &json!("1Gi"))
        );
        assert_eq!(read(ObjectKind::PersistentVolumeClaim, written), claim);
    }

    #[test]
    fn a_claim_keeps_its_volume_in_the_store_only() {
        let wire = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        let path = || "/srv/data".to_owned();
        for source in [
            ClaimedSource::HostPath { path: path(), type_: "File".to_owned() },
            ClaimedSource::Local { path: path(), fs_type: "xfs".to_owned() },
            ClaimedSource::Nfs { server: "nas".to_owned(), path: path() },
            ClaimedSource::Directory { path: path(), bytes: 0, uid: String::new() },
            ClaimedSource::Disk { kind: "iscsi", source: json!({"iqn": "i", "lun": 1}) },
            ClaimedSource::Disk { kind: "fc", source: json!({"wwids": ["3"]}) },
        ] {
            let mut object = read(ObjectKind::PersistentVolumeClaim, wire.clone());
            let ObjectContent::Claim(claim) = &mut object.content else { panic!("{object:?}") };
            claim.volume_name = "pv-1".to_owned();
            claim.volume = Some(Box::new(ClaimedVolume {
                name: "pv-1".to_owned(),
                source,
                mount_options: vec!["nolock".to_owned()],
                supplemental_group: Some(5),
                read_only: true,
                single_pod: true,
                owner: "u".to_owned(),
            }));
            let written = to_value(&object, Values::LeftOut);
            assert_eq!(written["spec"]["volumeName"], "pv-1");
            assert_eq!(read(ObjectKind::PersistentVolumeClaim, written.clone()), object);
            // A manifest may say so too: it means nothing there.
            let (decoded, _) = decode_object(ObjectKind::PersistentVolumeClaim, written).unwrap();
            let (of_manifest, _) = local(decoded);
            assert!(matches!(of_manifest.content, ObjectContent::Claim(claim) if claim.volume.is_none()));
        }
    }

    #[test]
    fn hidden_values_show_their_length_and_cannot_be_read_back() {
        let secret =
            read(ObjectKind::Secret, json!({"metadata": {"name": "s"}, "stringData": {"k": "hunter2"}}));
        let hidden = to_value(&secret, Values::Hidden);
        assert_eq!(hidden["data"]["k"], "<7 bytes, hidden>");
        assert_eq!(from_value(ObjectKind::Secret, hidden).unwrap_err(), "data[k]: not base64");
        let secret = read(
            ObjectKind::Secret,
            json!({"metadata": {"name": "s", "annotations": {LAST_APPLIED: "hunter2", "a": "b"}}}),
        );
        for values in [Values::Hidden, Values::LeftOut] {
            let written = to_value(&secret, values);
            assert_eq!(
                (written.get("data"), &written["metadata"]["annotations"]),
                (None, &json!({"a": "b"}))
            );
        }
    }

    #[test]
    fn a_secret_of_the_wrong_shape_is_named_without_its_value() {
        let error = from_value(ObjectKind::Secret, json!({"data": {"pin": 1234}})).unwrap_err();
        assert_eq!(error, "data.pin: invalid value");
    }
}
