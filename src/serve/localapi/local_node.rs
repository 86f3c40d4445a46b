//! This API's interface to its own node, beside the server's.
//!
//! Owns the methods.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::resource::Store;
use crate::desired::pod_config::notes::Mirror;
use crate::model::node_changes::NodeBase;
use crate::model::objects::volumes::Binding;
use crate::model::objects::{LocalObject, ObjectKey, ObjectKind, VersionedObject};
use crate::model::types::{PodUid, Timestamp};
use crate::node::object::NodeState;
use crate::platform::rt::changes::Changes;
use crate::store::StoredEvent;

/// The node, as its local API sees it. Pods come from [`crate::serve::server::node::Node`].
pub(crate) trait LocalNode {
    /// The effective objects of a kind, by namespace and name.
    fn objects_of(&self, kind: ObjectKind) -> Vec<VersionedObject>;
    fn object(&self, key: &ObjectKey) -> Option<VersionedObject>;
    /// The namespaces that objects are in.
    fn namespaces_in_use(&self) -> BTreeSet<String>;
    /// The events, oldest first.
    fn events(&self) -> Vec<StoredEvent>;
    /// What a claim has.
    fn binding(&self, _claim: &LocalObject) -> Binding {
        Binding::Directory
    }
    fn claim_directory(&self, claim: &LocalObject) -> String;
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
pub(in crate::serve) type SharedLocalNode = Rc<dyn LocalNode>;
