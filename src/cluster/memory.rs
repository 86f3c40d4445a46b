//! What a node remembers of its cluster beside pods and objects: the Node, and which cluster it is.
//!
//! Owns the two rows and when they are written: the Node with each change of what is used of it, the cluster when its
//! identity, the guard or the last contact changes; the last contact is the end of a time online, so it costs one
//! write for each outage.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cluster::ClusterState;
use crate::cluster::node::register::NodeFromServer;
use crate::cluster::pods::guard::Guard;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;
use crate::platform::rt::changes::Changes;
use crate::store::{ClusterKey, ClusterRow, StoreHandle};

/// Kinds of rows.
const CLUSTER: &str = "Cluster";
const NODE: &str = "Node";

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
    /// Time without a link in the life of the client certificate that ends then.
    pub offline: Duration,
    pub offline_until: Timestamp,
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
    ClusterIdentity {
        server: text("server"),
        node_uid: text("nodeUid"),
        guard: Guard::of(&value["guard"]),
        last_contact: time(&value["lastContact"]).unwrap_or_default(),
        offline: Duration::from_secs(value["offlineSeconds"].as_u64().unwrap_or_default()),
        offline_until: time(&value["certificateEnds"]).unwrap_or_default(),
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
    let value = json!({
        "server": identity.server,
        "nodeUid": identity.node_uid,
        "guard": identity.guard.to_value(),
        "lastContact": identity.last_contact.to_rfc3339(),
        "offlineSeconds": identity.offline.as_secs(),
        "certificateEnds": identity.offline_until.to_rfc3339(),
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

/// Between writes of the last contact while it lasts, if pods end without one: as rare as the fence allows.
const SHORTEST_PERIOD: Duration = Duration::from_secs(3600);

/// The task `cluster memory`: writes both rows, and hands the Node on once it is on the disk. A disk that takes no
/// writes is reported by the store; the Node is handed on all the same. `fence` is `--offline-max-age`: with one, the
/// last contact is also written while it lasts.
pub(super) async fn run(
    state: Rc<ClusterState>,
    store: StoreHandle,
    clock: Clock,
    fence: Option<Duration>,
    on_node: Rc<dyn Fn(&NodeFromServer)>,
) {
    let mut changes = Changes(vec![state.seen.watch(), state.watch()]);
    let mut stored = state.identity.borrow().clone();
    let mut applied = None;
    let period = fence.map(|fence| (fence / 4).max(SHORTEST_PERIOD));
    loop {
        let node = state.shown_node.borrow().clone();
        if let Some(node) = node.filter(|node| applied.as_ref() != Some(node)) {
            // Reported by the store.
            let _ = store.put_cluster(vec![node_row(&node)], Vec::new()).await;
            on_node(&node);
            applied = Some(node);
        }
        if state.seen.is_live() {
            state.check.believe();
        }
        if period.is_some() && state.is_online() {
            let last = state.identity.borrow().last_contact;
            let now = clock.now();
            if period.is_some_and(|period| now < last || now.saturating_since(last) >= period) {
                state.identity.borrow_mut().last_contact = now;
            }
        }
        let identity = state.identity.borrow().clone();
        if identity != stored && store.put_cluster(vec![identity_row(&identity)], Vec::new()).await.is_ok() {
            stored = identity;
        }
        let pause = period.unwrap_or_default();
        tokio::select! {
            biased;
            // Cancel safe, both: the next round computes everything again.
            () = changes.next() => {}
            () = sleep(pause), if period.is_some() => {}
        }
    }
}

#[cfg(test)]
mod tests;
