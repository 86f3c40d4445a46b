//! The objects of the fake apiserver: keys, versions, selectors, history, strategic merge.
//!
//! Owns the storage. It stores what it is given: who may write what is decided in `admission`.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use crate::model::types::Timestamp;

/// A kind that the server has: kind, apiVersion, plural, whether its objects have namespaces.
pub(super) type KindRow = (&'static str, &'static str, &'static str, bool);

const KINDS: &[KindRow] = &[
    ("Pod", "v1", "pods", true),
    ("Node", "v1", "nodes", false),
    ("Namespace", "v1", "namespaces", false),
    ("ConfigMap", "v1", "configmaps", true),
    ("Secret", "v1", "secrets", true),
    ("Service", "v1", "services", true),
    ("ServiceAccount", "v1", "serviceaccounts", true),
    ("Event", "v1", "events", true),
    ("PersistentVolumeClaim", "v1", "persistentvolumeclaims", true),
    ("PersistentVolume", "v1", "persistentvolumes", false),
    ("Deployment", "apps/v1", "deployments", true),
    ("DaemonSet", "apps/v1", "daemonsets", true),
    ("ClusterRole", "rbac.authorization.k8s.io/v1", "clusterroles", false),
    ("ClusterRoleBinding", "rbac.authorization.k8s.io/v1", "clusterrolebindings", false),
    ("Role", "rbac.authorization.k8s.io/v1", "roles", true),
    ("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings", true),
    ("Lease", "coordination.k8s.io/v1", "leases", true),
    ("RuntimeClass", "node.k8s.io/v1", "runtimeclasses", false),
    ("CSIDriver", "storage.k8s.io/v1", "csidrivers", false),
    ("CSINode", "storage.k8s.io/v1", "csinodes", false),
    ("VolumeAttachment", "storage.k8s.io/v1", "volumeattachments", false),
    ("CertificateSigningRequest", "certificates.k8s.io/v1", "certificatesigningrequests", false),
    ("ClusterTrustBundle", "certificates.k8s.io/v1beta1", "clustertrustbundles", false),
    ("TokenReview", "authentication.k8s.io/v1", "tokenreviews", false),
    ("SubjectAccessReview", "authorization.k8s.io/v1", "subjectaccessreviews", false),
];

/// Lists of objects that a strategic merge patch merges: path below the object, merge key.
const MERGE_KEYS: &[(&str, &str)] = &[
    (".metadata.ownerReferences", "uid"),
    (".spec.containers", "name"),
    (".spec.volumes", "name"),
    (".status.addresses", "type"),
    (".status.conditions", "type"),
    (".status.hostIPs", "ip"),
    (".status.podIPs", "ip"),
    (".status.resourceClaimStatuses", "name"),
];

/// Changes that watches may still ask for.
const HISTORY: usize = 10_000;

/// Which object, in the order of etcd's keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectPlace {
    pub kind: KindRow,
    pub namespace: String,
    pub name: String,
}

/// One change, as watches see it.
#[derive(Clone, Debug)]
pub(super) struct StoredChange {
    pub version: u64,
    pub place: ObjectPlace,
    pub old: Option<Value>,
    /// `None` for a deletion.
    pub new: Option<Value>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FakeObjects {
    pub(super) objects: BTreeMap<ObjectPlace, Value>,
    pub(super) version: u64,
    /// Versions below this one are no longer kept.
    pub(super) compacted: u64,
    pub(super) history: VecDeque<StoredChange>,
    pub(super) uids: u64,
    /// Distinguishes the uids of two clusters.
    pub(super) cluster: u64,
}

impl FakeObjects {
    /// Stores a new object, or a new state of one; returns it as it is stored. An equal state is no change.
    pub(super) fn store(&mut self, place: &ObjectPlace, mut object: Value, now: Timestamp) -> Value {
        let old = self.objects.get(place).cloned();
        let (kind, api_version, _, _) = place.kind;
        object["kind"] = kind.into();
        object["apiVersion"] = api_version.into();
        let metadata = &mut object["metadata"];
        metadata["name"] = place.name.clone().into();
        if place.kind.3 {
            metadata["namespace"] = place.namespace.clone().into();
        }
        for (name, new) in [
            ("uid", Value::Null),
            ("creationTimestamp", now.to_rfc3339().into()),
            ("generation", Value::Null),
            ("resourceVersion", Value::Null),
        ] {
            metadata[name] = old.as_ref().map_or(new, |old| old["metadata"][name].clone());
        }
        if old.is_none() {
            self.uids += 1;
            metadata["uid"] = format!("{:08x}-0000-4000-8000-{:012x}", self.cluster, self.uids).into();
            metadata["generation"] = 1.into();
        }
        if old.as_ref() == Some(&object) {
            return object;
        }
        if old.as_ref().is_some_and(|old| old["spec"] != object["spec"]) {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
            object["metadata"]["generation"] = (generation + 1).into();
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(place.clone(), object.clone());
        self.record(place, old, Some(object.clone()));
        object
    }

    /// Removes an object and returns its last state, which has the version of the deletion.
    pub(super) fn remove(&mut self, place: &ObjectPlace) -> Option<Value> {
        let mut old = self.objects.remove(place)?;
        self.version += 1;
        old["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.record(place, Some(old.clone()), None);
        Some(old)
    }

    fn record(&mut self, place: &ObjectPlace, old: Option<Value>, new: Option<Value>) {
        self.history.push_back(StoredChange { version: self.version, place: place.clone(), old, new });
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.compacted = oldest.version;
        }
    }

    /// Objects of a kind, of one namespace or of all, that a selector selects.
    pub(super) fn select<'a>(
        &'a self,
        kind: KindRow,
        namespace: &'a str,
        selector: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.objects
            .iter()
            .filter(move |(place, _)| {
                place.kind == kind && (namespace.is_empty() || place.namespace == namespace)
            })
            .map(|(_, object)| object)
            .filter(move |object| selects(selector, object))
    }

    /// Forgets all changes so far: watches from them fail.
    pub(super) fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.version;
    }
}

/// The row of a plural; `group` is `v1` or `GROUP/VERSION`.
pub(super) fn kind_of_plural(group: &str, plural: &str) -> Option<KindRow> {
    KINDS.iter().copied().find(|(_, version, name, _)| *version == group && *name == plural)
}

/// Where an object is stored; `None` for a kind that the server does not have.
pub(super) fn place_of(object: &Value) -> Option<ObjectPlace> {
    let kind = KINDS.iter().copied().find(|(kind, version, _, _)| {
        object["kind"] == *kind && (object["apiVersion"] == *version || object["apiVersion"].is_null())
    })?;
    let name = object["metadata"]["name"].as_str()?.to_owned();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let namespace = if kind.3 { namespace.to_owned() } else { String::new() };
    Some(ObjectPlace { kind, namespace, name })
}

/// Whether a field selector (`a.b=c,d!=e`) selects an object.
pub(super) fn selects(selector: &str, object: &Value) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        let (path, value, wanted) = if let Some((path, value)) = term.split_once("!=") {
            (path, value, false)
        } else {
            let (path, value) = term.split_once('=').unwrap_or((term, ""));
            (path, value.trim_start_matches('='), true)
        };
        let found = path.split('.').fold(object, |place, step| &place[step]);
        (found.as_str().unwrap_or_default() == value) == wanted
    })
}

/// RFC 7386.
pub(super) fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, member) in members {
        if member.is_null() {
            target.as_object_mut().map(|target| target.remove(name));
        } else {
            merge_patch(&mut target[name], member);
        }
    }
}

/// A strategic merge patch of an object, with the lists of [`MERGE_KEYS`].
pub(super) fn strategic_merge(target: &mut Value, patch: &Value) {
    merge_at("", target, patch);
}

fn merge_at(at: &str, target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if patch["$patch"] == "replace" {
        *target = without_directives(patch);
        return;
    }
    if !target.is_object() {
        *target = json!({});
    }
    for (name, member) in members.iter().filter(|(name, _)| !name.starts_with('$')) {
        let below = format!("{at}.{name}");
        let key = MERGE_KEYS.iter().find(|(at, _)| *at == below).map(|(_, key)| *key);
        match (member, key) {
            (Value::Null, _) => {
                target.as_object_mut().map(|target| target.remove(name));
            }
            (Value::Array(items), Some(key)) => merge_list(&below, &mut target[name], items, key),
            (Value::Object(_), _) => merge_at(&below, &mut target[name], member),
            _ => target[name] = member.clone(),
        }
    }
    for (name, order) in members {
        if let (Some(list), Value::Array(order)) = (name.strip_prefix("$setElementOrder/"), order) {
            let below = format!("{at}.{list}");
            let key = MERGE_KEYS.iter().find(|(at, _)| *at == below).map(|(_, key)| *key);
            sort_by_order(&mut target[list], order, key);
        }
    }
}

fn merge_list(path: &str, target: &mut Value, patches: &[Value], key: &str) {
    let mut items = match target.take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    if patches
        .iter()
        .any(|patch| patch["$patch"] == "replace" && patch.as_object().is_some_and(|all| all.len() == 1))
    {
        items.clear();
    }
    for patch in patches {
        let position = items.iter().position(|item| item[key] == patch[key]);
        match (patch["$patch"].as_str(), position) {
            (Some("delete"), Some(position)) => {
                items.remove(position);
            }
            (Some("delete"), None) => {}
            (Some("replace"), _) if patch[key].is_null() => {}
            (_, Some(position)) => merge_at(path, &mut items[position], patch),
            (_, None) => items.push(without_directives(patch)),
        }
    }
    *target = Value::Array(items);
}

fn sort_by_order(list: &mut Value, order: &[Value], key: Option<&str>) {
    let (Value::Array(items), Some(key)) = (list, key) else { return };
    items.sort_by_key(|item| order.iter().position(|wanted| wanted[key] == item[key]).unwrap_or(usize::MAX));
}

fn without_directives(patch: &Value) -> Value {
    match patch {
        Value::Object(members) => members
            .iter()
            .filter(|(name, member)| !name.starts_with('$') && !member.is_null())
            .map(|(name, member)| (name.clone(), without_directives(member)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}
