//! The pods of this node as the server last showed them, shared by the source, which writes, and the delivery, which
//! reads.
//!
//! Owns them. Nothing of it is stored: after a restart the first list says what the server has.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::cluster::pods::outbox::SeenPod;
use crate::model::types::PodUid;

pub(crate) struct SeenPods {
    /// By the uid at the server, with a number that grows with each change.
    pods: RefCell<BTreeMap<PodUid, (u64, SeenPod)>>,
    /// The server answers, and is believed: it may be written to.
    is_live: Cell<bool>,
    version: watch::Sender<u64>,
}

impl SeenPods {
    pub(crate) fn new() -> Self {
        Self { pods: RefCell::default(), is_live: Cell::new(false), version: watch::Sender::new(0) }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.is_live.get()
    }

    pub(crate) fn set_live(&self, is_live: bool) {
        if self.is_live.replace(is_live) != is_live {
            self.version.send_modify(|version| *version += 1);
        }
    }

    pub(crate) fn put(&self, seen: SeenPod) {
        let mut pods = self.pods.borrow_mut();
        if pods.get(&seen.reference.uid).is_some_and(|(_, known)| *known == seen) {
            return;
        }
        self.version.send_modify(|version| *version += 1);
        pods.insert(seen.reference.uid.clone(), (*self.version.borrow(), seen));
    }

    /// Removes the pods that are not to stay.
    pub(crate) fn retain(&self, stays: impl Fn(&SeenPod) -> bool) {
        let mut pods = self.pods.borrow_mut();
        let before = pods.len();
        pods.retain(|_, (_, seen)| stays(seen));
        if pods.len() != before {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// All pods, each with the number of its last change.
    pub(crate) fn all(&self) -> Vec<(u64, SeenPod)> {
        self.pods.borrow().values().cloned().collect()
    }

    /// Changes whenever a pod does, or whether the server may be written to.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
