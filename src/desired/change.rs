//! A change of what came through the node's own API, by a client or by a controller of this node.
//!
//! Owns the type.

use std::rc::Rc;

use crate::desired::pod_config::notes::Notes;
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObject, ObjectKey};
use crate::model::types::{ContainerName, PodUid};

/// The changes of one edit. Everything else stays.
#[derive(Default)]
pub struct ApiChange {
    /// New pods, and new versions of pods with the same uid.
    pub put_pods: Vec<Rc<Pod>>,
    /// Pods to delete, each with an optional grace period in seconds that replaces its own. A pod may be
    /// terminating already, and of any source.
    pub remove_pods: Vec<(Rc<Pod>, Option<i64>)>,
    /// New objects, and new versions of objects with the same key. Of an object that a manifest defines only what
    /// this node observes may differ, its status above all.
    pub put_objects: Vec<Rc<LocalObject>>,
    pub remove_objects: Vec<ObjectKey>,
    /// Containers to restart, of a pod of any source. Nothing is stored for it.
    pub restart: Option<(PodUid, Vec<ContainerName>)>,
    /// New versions of pods that are no longer desired and still terminating.
    pub update_terminating: Vec<Rc<Pod>>,
    /// The API's other state, if it changes.
    pub notes: Option<Notes>,
}

impl ApiChange {
    /// Whether it changes desired pods or objects.
    pub(super) fn changes_set(&self) -> bool {
        !(self.put_pods.is_empty()
            && self.remove_pods.is_empty()
            && self.put_objects.is_empty()
            && self.remove_objects.is_empty())
    }

    /// Adds the pods and objects of another change.
    pub(crate) fn join(&mut self, more: Self) {
        self.remove_pods.extend(more.remove_pods);
        self.remove_objects.extend(more.remove_objects);
        self.put_pods.extend(more.put_pods);
        self.put_objects.extend(more.put_objects);
    }
}
