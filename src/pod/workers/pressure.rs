//! What a node under pressure requests of its pods' workers.
//!
//! Owns nothing.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::{PodWorkers, WorkersInner};
use crate::model::disruption::Pressure;
use crate::model::observed::{ContainerStateKind, ObservedPod};
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

    /// Notes the pod's dead containers, and returns how many records are kept beside the newest of each.
    pub(super) fn dead_to_keep(&self, uid: &PodUid, observed: &ObservedPod) -> usize {
        let dead = observed.containers.iter().filter(|record| record.state == ContainerStateKind::Exited);
        let (mut names, mut records) = (BTreeSet::new(), 0);
        for record in dead {
            names.insert(record.name.as_str());
            records += 1;
        }
        let mut all = self.dead.borrow_mut();
        all.insert(uid.clone(), (names.len(), records));
        if self.short_of_disk.get() {
            return 0;
        }
        let limits = self.deps.config.get().dead;
        let (containers, records) =
            all.values().fold((0, 0), |sum, (containers, records)| (sum.0 + containers, sum.1 + records));
        match limits.of_node {
            // As upstream: the same share for each container.
            Some(most) if records > most => limits.per_container.min(most / containers.max(1)),
            _ => limits.per_container,
        }
    }
}
