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
    /// The resources that containers were given.
    pub(super) actuated: Actuated,
    /// The pod that there is room for, if it differs from the wanted one.
    smaller: Option<Rc<Pod>>,
    pending: Option<PendingResize>,
}

impl Resizing {
    /// Adds new containers, and removes those without a record.
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

    /// Reserves the room that a running pod needs, or keeps what it has. Returns the waiting pods to check
    /// again.
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

    /// A pod that does not run gets all its requests or none.
    pub(super) fn allocate_all(&mut self) {
        self.smaller = None;
        self.pending = None;
    }

    /// The pod with the resources that there is room for.
    pub(super) fn allocated(&self, pod: &Rc<Pod>) -> Rc<Pod> {
        Rc::clone(self.smaller.as_ref().unwrap_or(pod))
    }

    pub(super) fn note(&mut self, resized: Vec<(ContainerId, ResourceRequirements)>) {
        self.actuated.extend(resized);
    }

    /// Writes the resize fields into a status. `context`: the last error, the previous status, now.
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
