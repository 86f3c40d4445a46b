//! What a node under pressure requests of its pods' workers.
//!
//! Owns nothing.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::{PodWorkers, WorkersInner};
use crate::model::disruption::Pressure;
use crate::model::types::PodUid;
use crate::pod::inbox::Eviction;
use crate::pod::lifecycle::PodWorkerEvent;
use crate::runtime::Runtime;

/// The interface of the workers for the node's pressure and shutdown handling.
pub trait PodPressure {
    /// Ends a pod. One without a worker is gone already; one that is terminating continues as before.
    fn evict(&self, uid: &PodUid, eviction: Eviction);
    /// Sets the node's pressure: pods that are not critical are rejected meanwhile.
    fn set_pressure(&self, pressure: BTreeSet<Pressure>);
    /// Dead containers are removed as soon as another has replaced them, or when there are too many.
    fn set_short_of_disk(&self, is_short: bool);
    /// The machine shuts down: new pods are rejected. If the shutdown is cancelled, the pods that it ended
    /// run again.
    fn set_shutting_down(&self, is_shutting_down: bool);
}

impl<R: Runtime> PodWorkers<R> {
    /// See [`PodPressure`].
    #[must_use]
    pub fn pressure(&self) -> Rc<dyn PodPressure> {
        Rc::<WorkersInner<R>>::clone(&self.shared)
    }
}

impl<R: Runtime> PodPressure for WorkersInner<R> {
    fn evict(&self, uid: &PodUid, eviction: Eviction) {
        if let Some(worker) = self.workers.borrow().get(uid) {
            worker.inbox.evict(eviction);
        }
    }

    fn set_pressure(&self, pressure: BTreeSet<Pressure>) {
        self.wake(self.deps.admission.set_pressure(pressure));
    }

    fn set_short_of_disk(&self, is_short: bool) {
        if self.short_of_disk.replace(is_short) != is_short && is_short {
            for worker in self.workers.borrow().values() {
                worker.inbox.request_observation();
            }
        }
    }

    fn set_shutting_down(&self, is_shutting_down: bool) {
        self.wake(self.deps.admission.set_shutting_down(is_shutting_down));
        if !is_shutting_down {
            self.resume_all();
        }
    }
}

impl<R> WorkersInner<R> {
    fn resume_all(&self) {
        for worker in self.workers.borrow().values() {
            worker.inbox.push_event(PodWorkerEvent::Resumed);
        }
    }

    /// Records of dead containers to keep beside the newest of each.
    pub(super) fn dead_to_keep(&self) -> usize {
        if self.short_of_disk.get() { 0 } else { self.deps.config.max_dead_per_container }
    }
}
