//! The lease that says that this node is alive.
//!
//! Pure: the last copy in, the next out. Owns the times of renewal (Kubernetes 1.36,
//! `component-helpers/apimachinery/lease`).

use std::time::Duration;

use serde_json::{Value, json};

use crate::model::types::Timestamp;
use crate::node::object::{LEASES, micro_time};

/// The part of the lease's duration between two renewals.
const RENEWED_AFTER: f64 = 0.25;
/// The most by which that time is longer at random.
const JITTER: f64 = 0.04;

/// The lease as it is created or, from the last copy, renewed. `owner` is the Node's name and its uid, which is empty
/// until the Node is there.
#[must_use]
pub(crate) fn lease(
    previous: Option<&Value>,
    (name, uid): (&str, &str),
    now: Timestamp,
    seconds: i32,
) -> Value {
    let mut lease = previous.cloned().unwrap_or_else(|| {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": LEASES},
        })
    });
    let last = lease["spec"]["renewTime"].as_str().and_then(Timestamp::parse_rfc3339);
    // A clock may be set back. The node controller counts only a time that is later than the one before.
    let next = last.map_or(now, |last| now.max(last.saturating_add(Duration::from_micros(1))));
    if let Some(metadata) = lease["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        let has_owner =
            metadata.get("ownerReferences").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if !has_owner && !uid.is_empty() {
            let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]);
            metadata.insert("ownerReferences".to_owned(), owner);
        }
    }
    if !lease["spec"].is_object() {
        lease["spec"] = json!({});
    }
    lease["spec"]["holderIdentity"] = json!(name);
    lease["spec"]["leaseDurationSeconds"] = json!(seconds);
    lease["spec"]["renewTime"] = json!(micro_time(next));
    lease
}

/// The time from the end of one renewal to the next.
#[must_use]
pub(crate) fn renew_after(seconds: i32, unit: f64) -> Duration {
    let seconds = f64::from(seconds.max(1));
    Duration::from_secs_f64(seconds * RENEWED_AFTER * (1.0 + JITTER * unit.clamp(0.0, 1.0)))
}

#[cfg(test)]
mod tests;
