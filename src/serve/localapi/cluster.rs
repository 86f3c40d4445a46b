//! This API's interface to the node, beside the server's.
//!
//! Owns the methods.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;
use tokio::sync::watch;

use super::node::NodeState;
use super::resource::Store;
use crate::desired::pod_config::notes::Mirror;
use crate::model::node_changes::NodeBase;
use crate::model::objects::VersionedObject;
use crate::model::types::{PodUid, Timestamp};
use crate::store::StoredEvent;

/// Wakes when something may have changed. Combines several sources, each a counter.
pub(crate) struct Changes(pub Vec<watch::Receiver<u64>>);

impl Changes {
    /// Whether something may have changed since the last call of [`next`](Self::next), or since creation.
    #[must_use]
    pub(crate) fn has_changed(&self) -> bool {
        self.0.iter().any(|source| source.has_changed().unwrap_or(false))
    }

    /// Waits for the next change since the last call. A closed source causes no further wake-ups.
    pub(crate) async fn next(&mut self) {
        let mut waits: Vec<_> = self.0.iter_mut().map(|source| Box::pin(source.changed())).collect();
        std::future::poll_fn(|context| {
            let woken = waits
                .iter_mut()
                .any(|wait| matches!(wait.as_mut().poll(context), std::task::Poll::Ready(Ok(()))));
            if woken { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
}

/// The node, as its local API sees it. Pods come from [`crate::serve::server::node::Node`].
pub(crate) trait Cluster {
    /// The effective ConfigMaps, Secrets and claims.
    fn objects(&self) -> Vec<VersionedObject>;
    /// The events, oldest first.
    fn events(&self) -> Vec<StoredEvent>;
    /// Namespaces that were created explicitly, as whole objects; those in use need not be among them.
    fn namespaces(&self) -> Vec<Value>;
    fn claim_directory(&self, namespace: &str, name: &str) -> String;
    fn node(&self) -> NodeState;
    /// The node as configured, before changes by clients.
    fn node_base(&self) -> NodeBase;
    /// The mirror pod of a static pod, if an earlier one was deleted.
    fn mirror(&self, uid: &PodUid) -> Option<Mirror>;
    fn pod_version(&self, uid: &PodUid) -> u64;
    /// Namespaces in use that were deleted, and the time of the deletion.
    fn deleted_namespaces(&self) -> BTreeMap<String, Timestamp>;
    /// Wakes when objects of this store may have changed.
    fn changes(&self, store: Store) -> Changes;
}

/// Shared with the watchers.
pub(in crate::serve) type SharedCluster = Rc<dyn Cluster>;
