//! What of the node's status is posted, and when.
//!
//! Pure: the node's facts and what was posted last in, a patch and a time out. Owns which change is urgent. Times are
//! those since the boot, so that a clock that is set changes nothing.
//!
//! The patch names only what is this node's, so that it needs no copy of the Node: conditions are merged by type,
//! resources by name.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::register::is_extended;
use crate::model::disruption::Pressure;
use crate::model::types::Timestamp;
use crate::node::object::{NodeState, status};

/// How often the status is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatusTimes {
    /// `nodeStatusUpdateFrequency`: between posts of changes.
    pub update: Duration,
    /// `nodeStatusReportFrequency`: of a status that does not change.
    pub report: Duration,
}

/// What the apiserver has of us.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Posted {
    pub at: Duration,
    /// The time after which an equal status is posted.
    pub period: Duration,
    /// Of all but the conditions.
    digest: u64,
    /// Our conditions, without heartbeats.
    conditions: Vec<Value>,
    /// `volumesInUse`.
    volumes: Value,
    /// Names of our resources.
    resources: BTreeSet<String>,
}

/// How a status differs from the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusChange {
    None,
    /// Images, resources, addresses and such.
    Facts,
    /// A condition: pods may have to go elsewhere, or may come. Or the volumes in use: a pod waits for the post.
    Urgent,
}

/// The network counts for the readiness of a node that a scheduler sends pods to.
pub(crate) fn require_network(state: &mut NodeState) {
    let Some(why) = state.features.as_ref().and_then(|features| features.network_ready.as_ref().err()) else {
        return;
    };
    let (reason, message) = why.split_once(": ").unwrap_or(("NetworkPluginNotReady", why));
    let why =
        format!("container runtime network not ready: NetworkReady=false reason:{reason} message:{message}");
    for ready in state.conditions.iter_mut().filter(|condition| condition.kind == "Ready" && condition.holds)
    {
        ready.holds = false;
        "KubeletNotReady".clone_into(&mut ready.reason);
        ready.message.clone_from(&why);
    }
}

/// The status to post. A condition keeps the time of its last transition as long as its status is the one that was
/// posted, also over a restart of the agent.
#[must_use]
pub(crate) fn own_status(state: &NodeState, last: &Posted) -> Value {
    let mut status = status(state, state.now);
    for (condition, known) in status["conditions"].as_array_mut().into_iter().flatten().zip(&state.conditions)
    {
        let Some(before) = last.conditions.iter().find(|before| before["type"] == condition["type"]) else {
            continue;
        };
        let then =
            before["lastTransitionTime"].as_str().and_then(Timestamp::parse_rfc3339).unwrap_or_default();
        if before["status"] == condition["status"] {
            condition["lastTransitionTime"] = before["lastTransitionTime"].clone();
        } else if known.since <= then {
            condition["lastTransitionTime"] = json!(state.now.to_rfc3339());
        }
    }
    status
}

/// Reasons of the node's events for conditions that the server did not have so. A pressure that begins or ends here is
/// an event of the eviction manager; here is what the server did not know, or still had of an earlier process
/// (`is_first`).
#[must_use]
pub(crate) fn condition_events(before: &[Value], status: &Value, is_first: bool) -> Vec<&'static str> {
    let before = |kind: &str| {
        let known = before.iter().find(|condition| condition["type"] == kind);
        known.and_then(|condition| condition["status"].as_str()).unwrap_or_default().to_owned()
    };
    let now = |kind: &str| {
        let conditions = status["conditions"].as_array()?;
        conditions.iter().find(|condition| condition["type"] == kind)?["status"].as_str()
    };
    let mut reasons = Vec::new();
    for pressure in Pressure::ALL {
        let is_news = match before(pressure.condition()).as_str() {
            "False" => false,
            "True" => is_first,
            _ => true,
        };
        if is_news && now(pressure.condition()) == Some("False") {
            reasons.push(pressure.event(false));
        }
    }
    match (before("Ready").as_str(), now("Ready")) {
        (before, Some("True")) if before != "True" => reasons.push("NodeReady"),
        ("True" | "Unknown", Some("False")) => reasons.push("NodeNotReady"),
        _ => {}
    }
    reasons
}

impl Posted {
    /// From a Node that an earlier process, or another kubelet, has posted. A post is due at once.
    #[must_use]
    pub(crate) fn of_server(node: &Value, at: Duration) -> Self {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Self { at, conditions: without_heartbeats(conditions), ..Self::default() }
    }

    /// Of a status that was accepted. After a change, the next report of an equal status is due at a random time, so
    /// that nodes that changed together do not report together.
    #[must_use]
    pub(crate) fn of(
        status: &Value,
        at: Duration,
        change: StatusChange,
        times: &StatusTimes,
        unit: f64,
    ) -> Self {
        let part = if change == StatusChange::None { 1.0 } else { 0.5 + unit.clamp(0.0, 1.0) };
        let resources = ["capacity", "allocatable"].into_iter().flat_map(|field| keys(&status[field]));
        Self {
            at,
            period: times.report.mul_f64(part),
            digest: digest(status),
            conditions: conditions(status),
            volumes: status["volumesInUse"].clone(),
            resources: resources.map(str::to_owned).collect(),
        }
    }

    #[must_use]
    pub(crate) fn change(&self, status: &Value) -> StatusChange {
        if self.conditions != conditions(status) || self.volumes != status["volumesInUse"] {
            StatusChange::Urgent
        } else if self.digest != digest(status) {
            StatusChange::Facts
        } else {
            StatusChange::None
        }
    }

    /// Another writer has changed one of our conditions: the node controller sets them to Unknown when the lease was
    /// late.
    #[must_use]
    pub(crate) fn was_overwritten(&self, node: &Value) -> bool {
        let shown = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.conditions.iter().any(|ours| {
            let seen = shown.iter().find(|seen| seen["type"] == ours["type"]);
            seen.is_none_or(|seen| seen["status"] != ours["status"])
        })
    }
}

/// When the status is posted next.
#[must_use]
pub(crate) fn when(posted: &Posted, change: StatusChange, times: &StatusTimes) -> Duration {
    let wait = match change {
        StatusChange::Urgent => Duration::ZERO,
        StatusChange::Facts => times.update.min(posted.period),
        StatusChange::None => posted.period,
    };
    posted.at.saturating_add(wait)
}

/// The body of the patch. With a cloud controller, the addresses are its own.
#[must_use]
pub(crate) fn status_patch(mut status: Value, last: &Posted, has_cloud: bool) -> Value {
    for field in ["capacity", "allocatable"] {
        let Some(resources) = status[field].as_object_mut() else { continue };
        for lost in last.resources.iter().filter(|name| !resources.contains_key(*name)).collect::<Vec<_>>() {
            // Upstream: 0 tells a resource of a device plugin that is gone from one that the node never had.
            let value = if is_extended(lost) { json!("0") } else { Value::Null };
            resources.insert(lost.clone(), value);
        }
    }
    if has_cloud {
        if let Some(members) = status.as_object_mut() {
            members.remove("addresses");
        }
    } else if let Some(addresses) = status["addresses"].as_array_mut() {
        // Merged by type otherwise, which keeps addresses that are gone (upstream's wrong merge key).
        addresses.push(json!({"$patch": "replace"}));
    }
    json!({"status": status})
}

fn keys(value: &Value) -> impl Iterator<Item = &str> {
    value.as_object().into_iter().flat_map(Map::keys).map(String::as_str)
}

pub(crate) fn conditions(status: &Value) -> Vec<Value> {
    without_heartbeats(status["conditions"].as_array().cloned().unwrap_or_default())
}

fn without_heartbeats(mut conditions: Vec<Value>) -> Vec<Value> {
    for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
        condition.remove("lastHeartbeatTime");
    }
    conditions
}

/// Of the members of the status except the conditions. The same in one process only.
fn digest(status: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (name, value) in status.as_object().into_iter().flatten().filter(|(name, _)| *name != "conditions") {
        (name, value.to_string()).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
