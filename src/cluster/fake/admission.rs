//! What a node may do: the Node authorizer with its graph, NodeRestriction, and the validation of statuses that a
//! kubelet can fail (Kubernetes 1.36).
//!
//! Owns those rules. All other users may do everything.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::answers::{Refusal, Target};
use super::objects::FakeObjects;
use crate::model::types::Timestamp;

/// Labels of Kubernetes that a node may set on itself.
const NODE_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

const MIRROR: &str = "kubernetes.io/config.mirror";

/// The node that a user is.
pub(super) fn node_of(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:")
}

/// The Node authorizer. Its graph has the pods that were made until `known_by`.
pub(super) fn authorize(
    user: &str,
    target: &Target,
    objects: &FakeObjects,
    known_by: Timestamp,
) -> Result<(), Refusal> {
    let Some(node) = node_of(user) else { return Ok(()) };
    let (plural, verb, part) = (target.place.kind.2, target.verb, target.part.as_str());
    let is_read = matches!(verb, "get" | "list" | "watch");
    let own_name = target.selected_name() == node;
    let related = || is_related(node, target, objects, known_by);
    let allowed = match plural {
        "pods" => match verb {
            "list" | "watch" => target.selected("spec.nodeName") == node,
            "get" => related(),
            "create" => part.is_empty() || part == "eviction",
            "delete" | "patch" | "update" => true,
            _ => false,
        },
        "nodes" => is_read && own_name || verb == "create" || matches!(verb, "update" | "patch"),
        "secrets" | "configmaps" => is_read && related(),
        "persistentvolumeclaims" | "persistentvolumes" | "volumeattachments" => verb == "get" && related(),
        "serviceaccounts" => (verb == "get" || verb == "create" && part == "token") && related(),
        "leases" => {
            target.place.namespace == "kube-node-lease"
                && !matches!(verb, "list" | "watch")
                && (verb == "create" || target.place.name == node)
        }
        "csinodes" => !matches!(verb, "list" | "watch") && (verb == "create" || target.place.name == node),
        "services" | "runtimeclasses" | "csidrivers" | "clustertrustbundles" => is_read,
        "certificatesigningrequests" => is_read || verb == "create",
        "events" => matches!(verb, "create" | "patch" | "update"),
        "tokenreviews" | "subjectaccessreviews" => verb == "create",
        _ => false,
    };
    if allowed {
        return Ok(());
    }
    let name = target.selected_name();
    Err(Refusal::forbidden(format!(
        "{plural} {name:?} is forbidden: User {user:?} cannot {verb} resource {plural:?}: no relationship found \
         between node '{node}' and this object"
    )))
}

/// Whether a pod of the node leads to the object.
fn is_related(node: &str, target: &Target, objects: &FakeObjects, known_by: Timestamp) -> bool {
    let plural = target.place.kind.2;
    let name = target.selected_name();
    let mut pods = objects
        .objects
        .iter()
        .filter(|(place, pod)| place.kind.2 == "pods" && pod["spec"]["nodeName"] == node);
    pods.any(|(place, pod)| {
        let made = pod["metadata"]["creationTimestamp"].as_str().and_then(Timestamp::parse_rfc3339);
        if made.is_some_and(|made| made > known_by) {
            return false;
        }
        if plural == "pods" {
            return place.name == name && place.namespace == target.place.namespace;
        }
        let mut found = BTreeSet::new();
        references("", &pod["spec"], &mut found);
        if plural == "persistentvolumes" || plural == "volumeattachments" {
            // Volumes are bound to claims, which are of the pods' namespaces.
            return found.iter().any(|(kind, _)| *kind == "persistentvolumeclaims");
        }
        place.namespace == target.place.namespace
            && found.iter().any(|(kind, found)| *kind == plural && found == name)
    })
}

/// Objects that a pod's specification names, by the names of the fields that name them.
fn references(field: &str, value: &Value, found: &mut BTreeSet<(&'static str, String)>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| references(field, item, found)),
        Value::Object(members) => {
            let named = match field {
                "secret" | "secretRef" | "secretKeyRef" | "imagePullSecrets" | "nodePublishSecretRef" => {
                    Some("secrets")
                }
                "configMap" | "configMapRef" | "configMapKeyRef" => Some("configmaps"),
                _ => None,
            };
            if let (Some(plural), Some(name)) =
                (named, value["name"].as_str().or(value["secretName"].as_str()))
            {
                found.insert((plural, name.to_owned()));
            }
            for (name, member) in members {
                match (name.as_str(), member.as_str()) {
                    ("claimName", Some(claim)) => found.insert(("persistentvolumeclaims", claim.to_owned())),
                    ("serviceAccountName", Some(account)) => {
                        found.insert(("serviceaccounts", account.to_owned()))
                    }
                    _ => false,
                };
                references(name, member, found);
            }
        }
        _ => {}
    }
}

/// NodeRestriction, for a write of a node. `new` is the state after the write, `old` the one before.
pub(super) fn admit(
    user: &str,
    target: &Target,
    old: Option<&Value>,
    new: Option<&Value>,
    objects: &FakeObjects,
) -> Result<(), Refusal> {
    let Some(node) = node_of(user) else { return Ok(()) };
    let refuse = |message: String| {
        let (plural, name) = (target.place.kind.2, &target.place.name);
        Err(Refusal::forbidden(format!("{plural} {name:?} is forbidden: {message}")))
    };
    let null = Value::Null;
    let (before, after) = (old.unwrap_or(&null), new.unwrap_or(&null));
    match (target.place.kind.2, target.verb, target.part.as_str()) {
        ("pods", "create", "") => mirror(node, after, objects).map_or(Ok(()), refuse),
        ("pods", "delete", _) | ("pods", _, "status" | "eviction") if before["spec"]["nodeName"] != node => {
            refuse(format!("node {node:?} can only change pods with spec.nodeName set to itself"))
        }
        ("pods", _, "status") if before["metadata"]["labels"] != after["metadata"]["labels"] => {
            refuse(format!("node {node:?} cannot update labels through pod status"))
        }
        ("pods", "update" | "patch", "") => {
            refuse(format!("node {node:?} can only create and delete mirror pods"))
        }
        ("nodes", "create" | "update" | "patch", _) if target.place.name != node => {
            refuse(format!("node {node:?} is not allowed to modify node {:?}", target.place.name))
        }
        ("nodes", "update" | "patch", _) if before["spec"]["taints"] != after["spec"]["taints"] => {
            refuse(format!("node {node:?} is not allowed to modify taints"))
        }
        ("nodes", "create" | "update" | "patch", _) => {
            let labels = forbidden_labels(&before["metadata"]["labels"], &after["metadata"]["labels"]);
            if labels.is_empty() {
                return Ok(());
            }
            refuse(format!("is not allowed to modify labels: {}", labels.join(", ")))
        }
        ("leases", "create", _) if target.place.name != node => {
            refuse(format!("node {node:?} may only access its own lease"))
        }
        _ => Ok(()),
    }
}

/// Why a node may not create this pod.
fn mirror(node: &str, pod: &Value, objects: &FakeObjects) -> Option<String> {
    if pod["metadata"]["annotations"][MIRROR].is_null() {
        return Some(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return Some(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    let [owner] = owners else {
        return Some(format!("node {node:?} can only create pods with an owner reference set to itself"));
    };
    let mut own = objects.objects.iter().filter(|(place, _)| place.kind.2 == "nodes" && place.name == node);
    let uid = own.next().map(|(_, object)| &object["metadata"]["uid"]);
    let is_own = owner["apiVersion"] == "v1" && owner["kind"] == "Node" && owner["name"] == node;
    if !is_own
        || owner["controller"] != true
        || owner["blockOwnerDeletion"] == true
        || uid != Some(&owner["uid"])
    {
        return Some(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    let mut found = BTreeSet::new();
    references("", &pod["spec"], &mut found);
    let (plural, _) = found.first()?;
    Some(format!("node {node:?} can not create pods that reference {plural}"))
}

/// Labels that a node may not set, change or remove.
fn forbidden_labels(before: &Value, after: &Value) -> Vec<String> {
    let names = |labels: &Value| {
        labels.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect::<BTreeSet<_>>()
    };
    let mut all = names(before);
    all.extend(names(after));
    all.retain(|name| before[name] != after[name] && is_forbidden_label(name));
    all.into_iter().collect()
}

fn is_forbidden_label(label: &str) -> bool {
    let prefix = label.split_once('/').map_or("", |(prefix, _)| prefix);
    let within = |domain: &str| {
        prefix == domain || prefix.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    };
    if within("node-restriction.kubernetes.io") {
        return true;
    }
    let is_kubernetes = within("kubernetes.io") || within("k8s.io");
    is_kubernetes
        && !NODE_LABELS.contains(&label)
        && !within("kubelet.kubernetes.io")
        && !within("node.kubernetes.io")
}

/// The status of a new pod.
pub(super) fn first_status(pod: &Value) -> Value {
    let lists = ["containers", "initContainers"]
        .map(|name| pod["spec"][name].as_array().cloned().unwrap_or_default());
    let resources: Vec<Value> =
        lists.into_iter().flatten().map(|container| container["resources"].clone()).collect();
    let asks = |resources: &Value| {
        ["requests", "limits"]
            .iter()
            .any(|kind| ["cpu", "memory"].iter().any(|name| !resources[kind][name].is_null()))
    };
    let is_fixed = |resources: &Value| {
        ["cpu", "memory"].iter().all(|name| {
            let (request, limit) = (&resources["requests"][name], &resources["limits"][name]);
            !limit.is_null() && (request.is_null() || request == limit)
        })
    };
    let class = match &resources {
        all if all.iter().all(is_fixed) => "Guaranteed",
        all if all.iter().any(asks) => "Burstable",
        _ => "BestEffort",
    };
    json!({"phase": "Pending", "qosClass": class})
}

/// Why the status of a pod is refused.
pub(super) fn invalid_status(old: &Value, new: &Value) -> Option<String> {
    let (before, after) = (&old["status"], &new["status"]);
    if !before["qosClass"].is_null() && before["qosClass"] != after["qosClass"] {
        return Some("status.qosClass: Invalid value: field is immutable".to_owned());
    }
    if after["observedGeneration"].as_i64().is_some_and(|generation| generation < 0) {
        return Some("status.observedGeneration: Invalid value: must be a non-negative integer".to_owned());
    }
    let policy = old["spec"]["restartPolicy"].as_str().unwrap_or("Always");
    let list = |status: &Value| status["containerStatuses"].as_array().cloned().unwrap_or_default();
    let after = list(after);
    list(before).iter().enumerate().find_map(|(position, container)| {
        let ended = &container["state"]["terminated"];
        let may_restart = policy == "Always" || policy == "OnFailure" && ended["exitCode"] != 0;
        let now = after.iter().find(|now| now["name"] == container["name"])?;
        let is_back = !ended.is_null() && now["state"]["terminated"].is_null();
        (is_back && !may_restart).then(|| {
            format!(
                "status.containerStatuses[{position}].state: Forbidden: may not be transitioned to non-terminated state"
            )
        })
    })
}
