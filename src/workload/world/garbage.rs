//! The pods that nothing needs any more, after the steps.
//!
//! Pure: what it returns depends on its arguments alone.

use super::World;
use crate::model::ordered::Sortable as _;
use crate::model::types::{PodUid, Timestamp};
use crate::workload::pods::{PodView, TRACKING, is_tracked};

/// Pods of controllers that have ended and are kept.
const MAX_ENDED: usize = 100;

impl World<'_> {
    /// Pods whose Job is gone are counted by none: nothing keeps them any more.
    pub(in crate::workload) fn release_orphans(&mut self) {
        let is_there = |uid: &str| self.items.values().any(|item| item.object.uid == uid);
        let pods = self.pods.values().filter(|pod| is_tracked(pod) && !pod.owner().is_some_and(is_there));
        for uid in pods.map(|pod| pod.uid().clone()).collect::<Vec<_>>() {
            self.strip_finalizer(&uid, TRACKING);
        }
    }

    /// Deletes the oldest pods that have ended, beyond those that a node keeps for their logs (upstream: the pod garbage
    /// collector).
    pub(in crate::workload) fn trim_ended(&mut self) {
        let is_over = |pod: &&PodView| {
            pod.is_terminal()
                && !pod.is_deleted
                && pod.owner().is_some()
                && pod.pod.metadata.finalizers.is_empty()
        };
        let mut ended: Vec<(Timestamp, PodUid)> =
            self.pods.values().filter(is_over).map(|pod| (pod.finished(), pod.uid().clone())).collect();
        let beyond = ended.len().saturating_sub(MAX_ENDED);
        ended.order_by(Ord::cmp);
        for (_, uid) in ended.into_iter().take(beyond) {
            self.delete_pod(&uid);
        }
    }
}
