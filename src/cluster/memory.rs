//! What a node remembers of its cluster beside pods and objects: the Node, and which cluster it is.
//!
//! Owns the two rows and when they are written: the Node with each change of what is used of it, the cluster when its
//! identity, the guard or the last contact changes; the last contact is the end of a time online, so it costs one
//! write for each outage.

use std::rc::Rc;

use serde_json::{Value, json};

use crate::cluster::ClusterState;
use crate::cluster::node::register::NodeFromServer;
use crate::cluster::pods::guard::{Guard, GuardReason};
use crate::cluster::pods::seen::SeenPods;
use crate::model::types::Timestamp;
use crate::platform::rt::changes::Changes;
use crate::store::{ClusterKey, ClusterRow, StoreHandle};

/// Kinds of rows.
const CLUSTER: &str = "Cluster";
const NODE: &str = "Node";
const VERSION_WENT_BACK: &str = "VersionWentBack";

/// Which cluster this node belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterIdentity {
    /// URL of the apiserver.
    pub server: String,
    /// Of the Node in the cluster whose answers are believed; empty before the first one.
    pub node_uid: String,
    pub guard: Guard,
    /// The end of the last time online; default: none yet, or it lasts.
    pub last_contact: Timestamp,
}

/// What the store remembers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RestoredCluster {
    pub identity: ClusterIdentity,
    pub node: Option<NodeFromServer>,
}

impl RestoredCluster {
    /// From the rows of the store; what does not decode counts as unknown.
    #[must_use]
    pub(crate) fn of(rows: &[ClusterRow]) -> Self {
        let value = |kind: &str| {
            let row = rows.iter().find(|row| row.key.kind == kind)?;
            serde_json::from_slice::<Value>(&row.value).ok()
        };
        Self {
            identity: value(CLUSTER).map(|value| identity_of(&value)).unwrap_or_default(),
            node: value(NODE).map(|node| NodeFromServer::of(&node)),
        }
    }
}

fn identity_of(value: &Value) -> ClusterIdentity {
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let time = |value: &Value| value.as_str().and_then(Timestamp::parse_rfc3339);
    let guard = time(&value["guard"]["since"]).map_or(Guard::Open, |since| {
        let why = match value["guard"]["why"].as_str() {
            Some(VERSION_WENT_BACK) => GuardReason::VersionWentBack,
            _ => GuardReason::AnotherNode,
        };
        Guard::Holding { since, why }
    });
    ClusterIdentity {
        server: text("server"),
        node_uid: text("nodeUid"),
        guard,
        last_contact: time(&value["lastContact"]).unwrap_or_default(),
    }
}

fn row(kind: &str, uid: &str, value: &Value) -> ClusterRow {
    ClusterRow {
        key: ClusterKey::new(kind, "", ""),
        uid: uid.to_owned(),
        value: value.to_string().into_bytes(),
    }
}

fn identity_row(identity: &ClusterIdentity) -> ClusterRow {
    let guard = match identity.guard {
        Guard::Open => Value::Null,
        Guard::Holding { since, why } => json!({
            "since": since.to_rfc3339(),
            "why": match why {
                GuardReason::AnotherNode => "AnotherNode",
                GuardReason::VersionWentBack => VERSION_WENT_BACK,
            },
        }),
    };
    let value = json!({
        "server": identity.server,
        "nodeUid": identity.node_uid,
        "guard": guard,
        "lastContact": identity.last_contact.to_rfc3339(),
    });
    row(CLUSTER, "", &value)
}

/// In the form of the Node, with what is used of it.
fn node_row(node: &NodeFromServer) -> ClusterRow {
    let attached: Vec<Value> = node
        .volumes_attached
        .iter()
        .map(|(name, device)| json!({"name": name, "devicePath": device}))
        .collect();
    let value = json!({
        "metadata": {"uid": node.uid, "labels": node.labels, "annotations": node.annotations},
        "spec": {"taints": node.taints, "unschedulable": node.unschedulable, "podCIDRs": node.pod_cidrs},
        "status": {"volumesAttached": attached},
    });
    row(NODE, &node.uid, &value)
}

/// The task `cluster memory`: writes both rows, and hands the Node on once it is on the disk. A disk that takes no
/// writes is reported by the store; the Node is handed on all the same.
pub(super) async fn run(
    state: Rc<ClusterState>,
    seen: Rc<SeenPods>,
    store: StoreHandle,
    on_node: Rc<dyn Fn(&NodeFromServer)>,
) {
    let mut changes = Changes(vec![seen.watch(), state.changed.subscribe(), state.node.shown.subscribe()]);
    let mut stored = state.identity.borrow().clone();
    let mut applied = None;
    loop {
        let node = state.shown_node.borrow().clone();
        if let Some(node) = node.filter(|node| applied.as_ref() != Some(node)) {
            // Reported by the store.
            let _ = store.put_cluster(vec![node_row(&node)], Vec::new()).await;
            on_node(&node);
            applied = Some(node);
        }
        if seen.is_live() && state.node.is_shown.get() {
            let uid = state.node.uid.borrow().clone();
            state.identity.borrow_mut().node_uid = uid;
        }
        let identity = state.identity.borrow().clone();
        if identity != stored && store.put_cluster(vec![identity_row(&identity)], Vec::new()).await.is_ok() {
            stored = identity;
        }
        changes.next().await;
    }
}

#[cfg(test)]
mod tests;
