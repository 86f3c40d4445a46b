//! What this API asks of the node, beside what the server asks.
//!
//! Owns the questions.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;
use tokio::sync::watch;

use super::node::NodeState;
use super::resource::Store;
use crate::desired::pod_config::notes::Mirror;
use crate::model::node_changes::NodeBase;
use crate::model::source::SourceObject;
use crate::model::types::{PodUid, Timestamp};
use crate::store::StoredEvent;

/// Wakes when something may have changed. Several sources, each a counter.
pub struct Changes(pub Vec<watch::Receiver<u64>>);

impl Changes {
    /// Something may have changed since the last call of [`next`](Self::next), or since these were made.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.0.iter().any(|source| source.has_changed().unwrap_or(false))
    }

    /// Waits for the next change since the last call. A source that has ended says nothing more.
    pub async fn next(&mut self) {
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
pub trait Cluster {
    /// ConfigMaps, Secrets and claims that count, with where each is written.
    fn objects(&self) -> Vec<SourceObject>;
    /// What happened, oldest first.
    fn events(&self) -> Vec<StoredEvent>;
    /// Namespaces that were made on purpose, whole; those in use need not be among them.
    fn namespaces(&self) -> Vec<Value>;
    /// Where a claim has its data.
    fn claim_directory(&self, namespace: &str, name: &str) -> String;
    /// The node itself.
    fn node(&self) -> NodeState;
    /// What the configuration says of the node, before clients change it.
    fn node_base(&self) -> NodeBase;
    /// The mirror of a pod of a manifest, when an earlier one was deleted.
    fn mirror(&self, uid: &PodUid) -> Option<Mirror>;
    /// Namespaces in use that were deleted, and when.
    fn deleted_namespaces(&self) -> BTreeMap<String, Timestamp>;
    /// Wakes when objects of this store may have changed.
    fn changes(&self, store: Store) -> Changes;
}

/// Shared with the watchers.
pub type SharedCluster = Rc<dyn Cluster>;
