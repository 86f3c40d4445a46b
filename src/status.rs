//! The latest status of every pod, and who hears of a change (upstream: status manager).
//!
//! Owns the statuses. Sinks: the store (written only when the meaning changed) and whoever watches the version, such as the
//! run-once report and the local API. Must not know how a status is computed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::watch;

use crate::api::pod::{Pod, PodStatus};
use crate::reconcile::status::same_meaning;
use crate::store::StoreHandle;
use crate::types::PodUid;

struct Entry {
    pod: Rc<Pod>,
    status: PodStatus,
}

/// Latest statuses, shared by workers (who write their own pod's) and readers.
pub struct StatusManager {
    store: StoreHandle,
    entries: RefCell<BTreeMap<PodUid, Entry>>,
    remembered: RefCell<BTreeMap<PodUid, PodStatus>>,
    version: watch::Sender<u64>,
}

impl StatusManager {
    /// Starts from what the store remembers, so that start times, restart counts and transition times live on.
    #[must_use]
    pub fn new(store: StoreHandle, remembered: BTreeMap<PodUid, PodStatus>) -> Self {
        Self {
            store,
            entries: RefCell::default(),
            remembered: RefCell::new(remembered),
            version: watch::Sender::new(0),
        }
    }

    /// The last status of a pod: this run's, else the store's.
    #[must_use]
    pub fn last(&self, uid: &PodUid) -> Option<PodStatus> {
        let current = self.entries.borrow().get(uid).map(|entry| entry.status.clone());
        current.or_else(|| self.remembered.borrow().get(uid).cloned())
    }

    /// Publishes a status. Writes to the store only what means something new.
    pub fn set(&self, pod: &Rc<Pod>, status: PodStatus) {
        let uid = &pod.metadata.uid;
        let news = self.last(uid).is_none_or(|last| !same_meaning(&last, &status));
        let entry = Entry { pod: Rc::clone(pod), status };
        if news {
            self.store.put_status(uid, &entry.status);
        }
        self.remembered.borrow_mut().remove(uid);
        let replaced = self.entries.borrow_mut().insert(uid.clone(), entry);
        if news || replaced.is_none() {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Forgets a pod that is gone.
    pub fn remove(&self, uid: &PodUid) {
        self.remembered.borrow_mut().remove(uid);
        if self.entries.borrow_mut().remove(uid).is_some() {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Every known pod with its status filled in, by namespace and name.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Pod> {
        let entries = self.entries.borrow();
        let mut pods: Vec<Pod> = entries
            .values()
            .map(|entry| Pod { status: entry.status.clone(), ..Pod::clone(&entry.pod) })
            .collect();
        pods.sort_by(|a, b| {
            (&a.metadata.namespace, &a.metadata.name).cmp(&(&b.metadata.namespace, &b.metadata.name))
        });
        pods
    }

    /// Changes whenever any status does.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
