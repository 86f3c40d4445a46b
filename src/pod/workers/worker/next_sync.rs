//! When a worker with nothing to do syncs again.

use std::time::Duration;

use super::{Next, Worker};
use crate::pod::status::rules::deadline_left;
use crate::runtime::Runtime;

impl<R: Runtime> Worker<R> {
    /// Nothing to do now: the next sync is by the plan's requeue time or the pod's own deadline, whichever is
    /// first.
    pub(super) fn next_sync(&self, requeue_after: Option<Duration>) -> Next {
        let deps = &self.shared.deps;
        let started = deps.statuses.last(&self.uid).and_then(|status| status.start_time);
        let deadline = started
            .and_then(|started| deadline_left(&self.pod, started, deps.clock.now(), deps.clock.since_boot()));
        match (requeue_after, deadline) {
            (Some(after), Some(deadline)) => Next::After(after.min(deadline)),
            (Some(after), None) | (None, Some(after)) => Next::After(after),
            (None, None) => Next::OnUpdate,
        }
    }
}
