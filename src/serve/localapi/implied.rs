//! Objects that exist without having been created: namespaces that are in use, the account `default` and the ConfigMap `kube-root-ca.crt` of each
//! namespace, the roles that every API server has, with their bindings, and the directories of claims as volumes.
//!
//! Owns which they are. Nothing of them is stored until a client changes one.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{LocalApi, text};
use crate::desired::service_account::DEFAULT;
use crate::model::api::pod::StringMap;
use crate::model::objects::volumes::{Binding, claim_spec};
use crate::model::objects::wire::{self, Values};
use crate::model::objects::{ObjectKind, ROOT_CA, VersionedObject};
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;
use crate::node::object::{LEASES, namespace_uid, uid};
use crate::serve::accounts::Accounts;
use crate::serve::localapi::resource::Store;
use crate::serve::rbac::built_in::{self, BuiltInRole};
use crate::serve::rbac::{PolicyRule, RoleReference};

/// Namespaces that exist without being used, and cannot be removed.
pub(super) const ALWAYS: [&str; 3] = ["default", LEASES, "kube-system"];

/// Why clients find the certificates in every namespace (upstream).
const ROOT_CA_NOTE: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.",
);
const AUTOUPDATE: (&str, &str) = ("rbac.authorization.kubernetes.io/autoupdate", "true");

/// Whether this object exists without having been created, in every namespace or in none.
pub(super) fn is_implied(kind: ObjectKind, name: &str) -> bool {
    match kind {
        ObjectKind::ServiceAccount => name == DEFAULT,
        ObjectKind::ConfigMap => name == ROOT_CA,
        ObjectKind::ClusterRole => built_in::roles().iter().any(|known| known.role.name == name),
        ObjectKind::ClusterRoleBinding => {
            built_in::roles().iter().any(|known| known.role.name == name && !known.groups.is_empty())
        }
        _ => false,
    }
}

/// Adds the objects that none of those in `objects` replaces, at this place or at all; and completes these with what
/// is computed.
pub(super) fn add(api: &LocalApi, kind: ObjectKind, place: Option<(&str, &str)>, objects: &mut Vec<Value>) {
    if kind == ObjectKind::PersistentVolume {
        return add_directories(api, place, objects);
    }
    let Some(accounts) = &api.accounts else { return };
    match kind {
        ObjectKind::ServiceAccount => add_to_namespaces(api, (kind, DEFAULT), place, objects, |_| json!({})),
        ObjectKind::ConfigMap => {
            let data = |accounts: &Accounts| {
                let data = accounts.root_ca_data().unwrap_or_default().data;
                let text = |(key, value): (String, Vec<u8>)| (key, json!(String::from_utf8_lossy(&value)));
                json!(data.into_iter().map(text).collect::<serde_json::Map<_, _>>())
            };
            for object in objects.iter_mut().filter(|object| text(object, "/metadata/name") == ROOT_CA) {
                object["data"] = data(accounts);
            }
            add_to_namespaces(
                api,
                (kind, ROOT_CA),
                place,
                objects,
                |accounts| json!({"metadata": {"annotations": {ROOT_CA_NOTE.0: ROOT_CA_NOTE.1}}, "data": data(accounts)}),
            );
        }
        ObjectKind::ClusterRole => {
            let rbac = (api.roles)();
            let rules =
                |name: &str| rbac.role(&RoleReference { is_cluster_role: true, name: name.to_owned() }, "");
            for object in objects.iter_mut().filter(|object| object["aggregationRule"].is_object()) {
                let rules = rules(text(object, "/metadata/name")).unwrap_or_default();
                object["rules"] = rules.iter().map(PolicyRule::to_value).collect();
            }
            add_roles(api, kind, place, objects, |built_in| {
                let rules = rules(&built_in.role.name).unwrap_or_default();
                (built_in::role_body(&built_in.role, rules), built_in.role.labels.clone())
            });
        }
        ObjectKind::ClusterRoleBinding => add_roles(api, kind, place, objects, |built_in| {
            (built_in::binding_body(built_in), built_in::binding_labels())
        }),
        _ => {}
    }
}

/// Those that none of the stored objects of this kind replaces.
pub(super) fn beside(api: &LocalApi, kind: ObjectKind, stored: &[VersionedObject]) -> Vec<Value> {
    use ObjectKind::{ClusterRole, ClusterRoleBinding, ConfigMap, PersistentVolume, ServiceAccount};
    if !matches!(kind, ClusterRole | ClusterRoleBinding | ConfigMap | PersistentVolume | ServiceAccount) {
        return Vec::new();
    }
    let place = |known: &VersionedObject| {
        let key = &known.object.key;
        json!({"metadata": {"namespace": key.namespace, "name": key.name}})
    };
    let mut objects: Vec<Value> = stored.iter().map(place).collect();
    add(api, kind, None, &mut objects);
    objects.split_off(stored.len())
}

/// The directory of each claim that has one, as the volume that it represents.
fn add_directories(api: &LocalApi, place: Option<(&str, &str)>, objects: &mut Vec<Value>) {
    for found in api.cluster.objects_of(ObjectKind::PersistentVolumeClaim) {
        let (object, key) = (&found.object, &found.object.key);
        let name = wire::volume_name(key);
        let is_asked = place.is_none_or(|(_, asked)| asked == name) && !has(objects, "", &name);
        let Some(claim) = claim_spec(object).filter(|_| is_asked) else { continue };
        if api.cluster.binding(object) != Binding::Directory {
            continue;
        }
        let mut volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": name,
                "uid": uid(&format!("PersistentVolume\0pvc-{}", object.uid)),
                "creationTimestamp": object.created.to_rfc3339(),
            },
            "spec": {
                "accessModes": claim.access_modes,
                "capacity": {wire::STORAGE: claim.storage},
                "claimRef": wire::claim_reference(object),
                "local": {"path": api.cluster.claim_directory(object)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [api.node.name()]}]}]}},
                "persistentVolumeReclaimPolicy": if object.is_ephemeral_claim() { "Delete" } else { "Retain" },
                "volumeMode": "Filesystem",
            },
            "status": {"phase": "Bound"},
        });
        if let Some(class) = &claim.storage_class {
            volume["spec"]["storageClassName"] = json!(class);
        }
        objects.push(volume);
    }
}

fn has(objects: &[Value], namespace: &str, name: &str) -> bool {
    let is_it = |object: &Value| {
        text(object, "/metadata/namespace") == namespace && text(object, "/metadata/name") == name
    };
    objects.iter().any(is_it)
}

fn add_to_namespaces(
    api: &LocalApi,
    (kind, name): (ObjectKind, &str),
    place: Option<(&str, &str)>,
    objects: &mut Vec<Value>,
    members: impl Fn(&Accounts) -> Value,
) {
    let is_asked = place.is_none_or(|(namespace, asked)| asked == name && !has(objects, namespace, name));
    let Some(accounts) = api.accounts.as_ref().filter(|_| is_asked) else { return };
    for within in namespaces(api) {
        let namespace = text(&within, "/metadata/name");
        let is_asked = place.is_none_or(|(asked, _)| asked == namespace);
        let ends = !text(&within, "/metadata/deletionTimestamp").is_empty();
        if !is_asked || ends || has(objects, namespace, name) {
            continue;
        }
        let mut object = members(accounts);
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.as_str());
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(name);
        metadata["namespace"] = json!(namespace);
        metadata["uid"] = json!(accounts.implied_uid(kind.as_str(), namespace));
        metadata["creationTimestamp"] = within["metadata"]["creationTimestamp"].clone();
        objects.push(object);
    }
}

fn add_roles(
    api: &LocalApi,
    kind: ObjectKind,
    place: Option<(&str, &str)>,
    objects: &mut Vec<Value>,
    body: impl Fn(&BuiltInRole) -> (Value, StringMap),
) {
    let since = api.cluster.node().created.to_rfc3339();
    for built_in in built_in::roles() {
        let name = built_in.role.name.as_str();
        let is_asked = place.is_none_or(|(_, asked)| asked == name);
        let is_one = kind == ObjectKind::ClusterRole || !built_in.groups.is_empty();
        if !is_asked || !is_one || has(objects, "", name) {
            continue;
        }
        let (mut object, labels) = body(&built_in);
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.as_str());
        object["metadata"] = json!({
            "name": name,
            "uid": uid(&[kind.as_str(), "\0", name].concat()),
            "creationTimestamp": since,
            "labels": labels,
            "annotations": {AUTOUPDATE.0: AUTOUPDATE.1},
        });
        objects.push(object);
    }
}

pub(super) fn namespaces(api: &LocalApi) -> Vec<Value> {
    let made = api.cluster.objects_of(ObjectKind::Namespace);
    let mut made: Vec<Value> =
        made.iter().map(|found| wire::to_value(&found.object, Values::Shown)).collect();
    let known: BTreeSet<String> =
        made.iter().map(|found| text(found, "/metadata/name").to_owned()).into_set();
    let mut used: BTreeSet<String> = ALWAYS.map(str::to_owned).into();
    used.extend(api.node.pods().into_iter().map(|pod| pod.metadata.namespace));
    used.extend(api.cluster.namespaces_in_use());
    let since = api.cluster.node().created;
    let mut again = api.cluster.deleted_namespaces();
    made.extend(used.difference(&known).map(|name| match again.remove(name) {
        Some(since) => {
            let mut shown = namespace(name, since);
            shown["metadata"]["uid"] = json!(uid(&format!("Namespace\0{name}\0{}", since.as_nanos())));
            shown
        }
        None => namespace(name, since),
    }));
    made
}

/// A namespace that was not created explicitly.
#[must_use]
pub(crate) fn namespace(name: &str, since: Timestamp) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "uid": namespace_uid(name),
            "creationTimestamp": since.to_rfc3339(),
            "labels": {"kubernetes.io/metadata.name": name},
        },
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    })
}

/// Whether the object of this store and name is one of these.
pub(super) fn is_implied_in(store: Store, name: &str) -> bool {
    matches!(store, Store::Objects(kind) if is_implied(kind, name))
}
