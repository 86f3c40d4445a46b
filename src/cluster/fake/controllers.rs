//! What the controllers of a cluster do to a node that is not heard of: kcm's node lifecycle, without its pace.
//!
//! Owns that rule. Tolerations are not read: every pod goes at once.

use serde_json::{Value, json};

use super::objects::{FakeObjects, ObjectPlace};
use crate::model::types::Timestamp;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Nodes to store, pods to delete.
#[derive(Default)]
pub(super) struct Eviction {
    pub nodes: Vec<(ObjectPlace, Value)>,
    pub evicted: Vec<ObjectPlace>,
}

/// What has to be done about nodes whose leases were last renewed before `heard`.
pub(super) fn plan(objects: &FakeObjects, heard: Timestamp) -> Eviction {
    let mut plan = Eviction::default();
    for (place, node) in objects.objects.iter().filter(|(place, _)| place.kind.2 == "nodes") {
        let lease =
            objects.objects.iter().find(|(lease, _)| lease.kind.2 == "leases" && lease.name == place.name);
        let renewed =
            lease.and_then(|(_, lease)| Timestamp::parse_rfc3339(lease["spec"]["renewTime"].as_str()?));
        // A node that has never had a lease is not watched.
        let Some(renewed) = renewed else { continue };
        let is_lost = renewed < heard;
        let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let is_tainted = taints.iter().any(|taint| taint["key"] == UNREACHABLE);
        if is_lost != is_tainted {
            taints.retain(|taint| taint["key"] != UNREACHABLE);
            if is_lost {
                taints.push(json!({"key": UNREACHABLE, "effect": "NoExecute"}));
            }
            let mut changed = node.clone();
            changed["spec"]["taints"] = taints.into();
            let conditions = changed.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
            for condition in conditions.into_iter().flatten() {
                if is_lost && condition["type"] == "Ready" {
                    condition["status"] = "Unknown".into();
                }
            }
            plan.nodes.push((place.clone(), changed));
        }
        if is_lost {
            let pods = objects.objects.iter().filter(|(pod, object)| {
                pod.kind.2 == "pods"
                    && object["spec"]["nodeName"] == *place.name
                    && object["metadata"]["deletionTimestamp"].is_null()
                    && object["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null()
                    && !tolerates_for_ever(object)
            });
            plan.evicted.extend(pods.map(|(pod, _)| pod.clone()));
        }
    }
    plan
}

/// As the pods of a DaemonSet do.
fn tolerates_for_ever(pod: &Value) -> bool {
    let tolerations = pod["spec"]["tolerations"].as_array().into_iter().flatten();
    let mut of_taint = tolerations.filter(|toleration| toleration["key"] == UNREACHABLE);
    of_taint.any(|toleration| toleration["tolerationSeconds"].is_null())
}
