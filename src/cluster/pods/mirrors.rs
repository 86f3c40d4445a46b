//! Mirror pods: how the cluster sees the static pods of this node.
//!
//! Owns what a mirror is made of, and which mirrors are missing or wrong. A mirror may not refer to objects of the
//! API (`NodeRestriction`), and static pods of this node may have objects of their own: these references are left
//! out.
//!
//! Pure: what it returns depends on its arguments alone.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use crate::cluster::pods::outbox::{Delivery, SeenPod};
use crate::model::api::pod::Pod;
use crate::model::provenance::{CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION};

/// Marks a mirror that lacks references of its pod.
pub(crate) const REDUCED_ANNOTATION: &str = "cluster.agent.edge/reduced";
/// Volumes that are objects of the API, or name one.
const REFERRING: [&str; 7] =
    ["configMap", "secret", "persistentVolumeClaim", "csi", "ephemeral", "azureFile", "glusterfs"];
/// The one source of a projected volume without an object of the API.
const OWN_PROJECTION: &str = "downwardAPI";
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// This node at the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    pub name: String,
    /// Empty until it is registered.
    pub uid: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mirror {
    Whole(Value),
    /// With what was left out.
    Reduced(Value, Vec<String>),
    /// Why there is none.
    None(String),
}

/// The mirror of a static pod.
#[must_use]
pub(crate) fn mirror_of(pod: &Pod, node: &NodeIdentity) -> Mirror {
    let metadata = &pod.metadata;
    let Some(hash) = metadata.annotations.get(CONFIG_HASH_ANNOTATION) else {
        return Mirror::None("the pod is not a static pod".to_owned());
    };
    if node.uid.is_empty() {
        return Mirror::None("the node is not registered".to_owned());
    }
    let mut annotations = metadata.annotations.clone();
    annotations.insert(CONFIG_MIRROR_ANNOTATION.to_owned(), hash.clone());
    let mut spec = json!(pod.spec);
    let left_out = spec.as_object_mut().map(reduce).unwrap_or_default();
    if !left_out.is_empty() {
        annotations.insert(REDUCED_ANNOTATION.to_owned(), "true".to_owned());
    }
    let owner =
        json!([{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": true}]);
    let body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": metadata.labels,
            "annotations": annotations,
            "ownerReferences": owner,
        },
        "spec": spec,
    });
    if left_out.is_empty() { Mirror::Whole(body) } else { Mirror::Reduced(body, left_out) }
}

/// What makes the server's mirrors those of `statics`. A name is free for a new mirror once the old one is gone.
#[must_use]
pub(crate) fn mirrors(statics: &[Rc<Pod>], seen: &[&SeenPod], node: &NodeIdentity) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for mirror in seen.iter().filter(|seen| seen.mirror_of.is_some()) {
        if mirror.is_deleting || !statics.iter().any(|pod| is_mirror_of(mirror, pod)) {
            deliveries.push(Delivery::Delete { to: mirror.reference.clone(), grace: 0 });
        }
    }
    for pod in statics {
        let name = pod.pod_ref().full_name();
        if seen.iter().any(|mirror| mirror.reference.full_name() == name) {
            continue;
        }
        match mirror_of(pod, node) {
            Mirror::Whole(body) | Mirror::Reduced(body, _) => {
                deliveries.push(Delivery::CreateMirror { body });
            }
            Mirror::None(_) => {}
        }
    }
    deliveries
}

fn is_mirror_of(mirror: &SeenPod, pod: &Pod) -> bool {
    mirror.mirror_of.as_ref() == Some(&pod.metadata.uid)
        && mirror.reference.full_name() == pod.pod_ref().full_name()
        && pod.metadata.annotations.get(CONFIG_HASH_ANNOTATION) == Some(&mirror.hash)
}

/// Removes references to objects of the API from a spec. Returns what was removed.
fn reduce(spec: &mut Map<String, Value>) -> Vec<String> {
    let mut left_out = Vec::new();
    for field in ["serviceAccountName", "serviceAccount", "imagePullSecrets", "resourceClaims"] {
        if spec.remove(field).is_some() {
            left_out.push(format!("spec.{field}"));
        }
    }
    let mut gone = Vec::new();
    if let Some(Value::Array(volumes)) = spec.get_mut("volumes") {
        volumes.retain_mut(|volume| {
            let name = volume["name"].as_str().unwrap_or_default().to_owned();
            if !trim_volume(volume) {
                return true;
            }
            left_out.push(format!("volume {name}"));
            if volume.is_null() {
                gone.push(name);
            }
            !volume.is_null()
        });
    }
    for list in CONTAINER_LISTS {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            reduce_container(container, &gone, &mut left_out);
        }
    }
    left_out
}

/// Removes what refers to objects from a volume; the whole volume becomes null if nothing is left of it. Returns
/// whether something was removed.
fn trim_volume(volume: &mut Value) -> bool {
    if REFERRING.iter().any(|kind| volume.get(kind).is_some()) || names_a_secret(volume) {
        *volume = Value::Null;
        return true;
    }
    let Some(Value::Array(sources)) = volume.pointer_mut("/projected/sources") else { return false };
    let before = sources.len();
    sources.retain(|source| source.get(OWN_PROJECTION).is_some());
    let (after, is_trimmed) = (sources.len(), sources.len() < before);
    if after == 0 && is_trimmed {
        *volume = Value::Null;
    }
    is_trimmed
}

/// Kinds of volumes that log in somewhere name their Secret in a `secretRef`.
fn names_a_secret(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.iter().any(|(name, member)| name == "secretRef" || names_a_secret(member))
        }
        Value::Array(items) => items.iter().any(names_a_secret),
        _ => false,
    }
}

fn reduce_container(container: &mut Value, gone: &[String], left_out: &mut Vec<String>) {
    let name = container["name"].as_str().unwrap_or_default().to_owned();
    let mut retain = |list: &str, keep: &dyn Fn(&Value) -> bool| {
        let Some(Value::Array(items)) = container.get_mut(list) else { return };
        let before = items.len();
        items.retain(keep);
        if items.len() < before {
            left_out.push(format!("{list} of container {name}"));
        }
    };
    let stays = |entry: &Value| !gone.iter().any(|gone| entry["name"] == gone.as_str());
    retain("volumeMounts", &stays);
    retain("volumeDevices", &stays);
    retain("envFrom", &|_| false);
    retain("env", &|entry| {
        let from = &entry["valueFrom"];
        from.get("configMapKeyRef").is_none() && from.get("secretKeyRef").is_none()
    });
    if let Some(Value::Object(resources)) = container.get_mut("resources") {
        resources.remove("claims");
    }
}
