//! Events as Kubernetes writes them.
//!
//! Pure: a recorded event in, JSON out. Owns their names.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use crate::model::objects::ObjectKind;
use crate::model::types::Timestamp;
use crate::store::{EventKey, StoredEvent};

/// Object and time, as upstream names events. Events of the same moment get different names.
fn name(key: &EventKey, first: Timestamp) -> String {
    let mut hasher = DefaultHasher::new();
    (&key.reason, &key.message, &key.field_path).hash(&mut hasher);
    let apart = i64::try_from(hasher.finish() & 0xfff).unwrap_or_default();
    format!("{}.{:016x}", key.name, first.as_nanos() & !0xfff | apart)
}

/// Where the event is.
#[must_use]
pub(crate) fn namespace_and_name(event: &StoredEvent) -> (&str, String) {
    // Events of cluster-scoped objects are in the default namespace (upstream).
    let namespace = if event.key.namespace.is_empty() { "default" } else { &event.key.namespace };
    (namespace, name(&event.key, event.first))
}

/// What upstream calls the part that acts on objects of a kind.
fn component(kind: Option<ObjectKind>) -> &'static str {
    match kind {
        Some(ObjectKind::Deployment) => "deployment-controller",
        Some(ObjectKind::ReplicaSet) => "replicaset-controller",
        Some(ObjectKind::DaemonSet) => "daemonset-controller",
        Some(ObjectKind::StatefulSet) => "statefulset-controller",
        Some(ObjectKind::Job) => "job-controller",
        Some(ObjectKind::CronJob) => "cronjob-controller",
        _ => "kubelet",
    }
}

/// The event without what its server adds to it.
#[must_use]
pub(crate) fn event(event: &StoredEvent, host: &str) -> Value {
    let key = &event.key;
    let (namespace, name) = namespace_and_name(event);
    let kind = ObjectKind::from_name(&key.kind);
    let version = kind.map_or_else(|| "v1".to_owned(), ObjectKind::api_version);
    let mut involved = json!({"kind": key.kind, "name": key.name, "uid": key.uid, "apiVersion": version});
    let component = component(kind);
    for (field, value) in [("namespace", &key.namespace), ("fieldPath", &key.field_path)] {
        if !value.is_empty() {
            involved[field] = json!(value);
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": involved,
        "reason": key.reason,
        "message": key.message,
        "source": {"component": component, "host": host},
        "firstTimestamp": event.first.to_rfc3339(),
        "lastTimestamp": event.last.to_rfc3339(),
        "count": event.count,
        "type": key.event_type.as_str(),
        "eventTime": null,
        "reportingComponent": component,
        "reportingInstance": host,
    })
}
