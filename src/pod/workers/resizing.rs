//! The resources that a pod's containers were given and the room that there is for them, between two syncs.
//!
//! Owns that memory; after a restart it is restored from statuses and annotations. Decisions are in
//! `plan::resize`.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::model::api::pod::{Pod, PodStatus, ResourceRequirements};
use crate::model::observed::ObservedPod;
use crate::model::types::{ContainerId, PodUid, Timestamp};
use crate::pod::admission::Admission;
use crate::pod::plan::Actuated;
use crate::pod::plan::resize::{self, PendingResize, ResizeView};

/// Of one pod.
#[derive(Default)]
pub(super) struct Resizing {
    /// What containers were given.
    pub(super) actuated: Actuated,
    /// The pod there is room for, when that is not the one that is wanted.
    smaller: Option<Rc<Pod>>,
    pending: Option<PendingResize>,
}

impl Resizing {
    /// Takes in containers that are new, and forgets those that are gone.
    pub(super) fn learn(&mut self, observed: &ObservedPod, last: Option<&PodStatus>) {
        self.actuated.retain(|id, _| observed.containers.iter().any(|record| record.id == *id));
        for record in &observed.containers {
            if !self.actuated.contains_key(&record.id)
                && let Some(given) = resize::remembered(record, last)
            {
                self.actuated.insert(record.id.clone(), given);
            }
        }
    }

    /// A running pod takes the room it needs, or keeps what it has. Returns those that waited and should look again.
    pub(super) fn allocate(
        &mut self,
        pod: &Rc<Pod>,
        observed: &ObservedPod,
        admission: &Admission,
    ) -> BTreeSet<PodUid> {
        let current = resize::as_actuated(pod, observed, &self.actuated);
        self.allocate_all();
        if current.spec == pod.spec {
            return admission.reserve(pod);
        }
        let current = Rc::new(current);
        let (verdict, news) = admission.resize(&current, pod);
        if let Err(pending) = verdict {
            self.pending = Some(pending);
            self.smaller = Some(current);
        }
        news
    }

    /// A pod that does not run is as it is wanted or not at all.
    pub(super) fn allocate_all(&mut self) {
        self.smaller = None;
        self.pending = None;
    }

    /// The pod as far as there is room for it.
    pub(super) fn allocated(&self, pod: &Rc<Pod>) -> Rc<Pod> {
        Rc::clone(self.smaller.as_ref().unwrap_or(pod))
    }

    /// Remembers what has been done.
    pub(super) fn note(&mut self, resized: Vec<(ContainerId, ResourceRequirements)>) {
        self.actuated.extend(resized);
    }

    /// Writes all of it into a status. `context`: why the last try failed, the status before, now.
    pub(super) fn show(
        &self,
        status: &mut PodStatus,
        pod: &Rc<Pod>,
        observed: &ObservedPod,
        context: (Option<&str>, Option<&PodStatus>, Timestamp),
    ) {
        let (error, previous, now) = context;
        let allocated = self.allocated(pod);
        let pending = self.pending.as_ref();
        let view =
            ResizeView { allocated: &allocated, actuated: &self.actuated, pending, error, previous, now };
        resize::show(status, observed, &view);
    }
}
