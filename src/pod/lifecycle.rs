//! The life of a pod worker, as one transition function.
//!
//! Owns `PodWorkerState`. Invariants: the grace period never grows; a finished pod stays finished; nothing is
//! started once termination began.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use crate::model::api::pod::Pod;
use crate::model::types::{PodFullName, PodUid, Timestamp};

/// No pod gets less: upstream's floor.
pub(super) const MIN_GRACE_SECONDS: i64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodWorkerState {
    /// Another incarnation of the full name is still there.
    WaitingForName,
    /// The pod is kept running by its spec.
    Syncing,
    /// Containers and sandboxes are being stopped.
    Terminating {
        /// The start of the grace period.
        since: Timestamp,
        /// Seconds; only ever decreases.
        grace_seconds: i64,
        /// Decides what happens afterwards.
        cause: EndCause,
    },
    /// Nothing of the pod runs any more; the rest is being cleaned up.
    Terminated {
        /// What is cleaned up.
        cause: EndCause,
    },
    Finished {
        cause: EndCause,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// It has succeeded or failed and is still wanted: its records and status stay, so that nothing runs it
    /// again.
    Completed,
    /// The node was short of a resource: the pod is still wanted but not run again; its status stays, its
    /// resources are freed.
    Evicted,
    /// The machine shuts down: the pod is still wanted, and everything but its processes stays for its next
    /// run.
    Shutdown,
    /// The pod is not wanted any more: nothing of it stays.
    Removed,
    /// Removed, and wanted again under the same uid before the removal was complete: it starts over
    /// afterwards.
    Replaced,
    /// Deleted, with finalizers: its resources are freed, its object and status stay until the finalizers are
    /// removed.
    Finalizing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodWorkerEvent {
    /// A source wants this pod: for the first time, again, or with changes that keep the uid.
    Desired,
    /// No source wants the pod any more, or it is evicted.
    Removed {
        /// Seconds that replace the pod's own grace; `None` leaves it.
        grace_override: Option<i64>,
    },
    /// It was deleted and has finalizers.
    Finalizing {
        /// As of [`Self::Removed`].
        grace_override: Option<i64>,
    },
    /// The full name belongs to this pod now.
    NameFree,
    /// The pod has ended by its plan or status: Succeeded or Failed.
    PodTerminal,
    /// The pod was evicted; its status shows it.
    Evicted {
        grace_seconds: i64,
    },
    Shutdown {
        /// Grace period in seconds; a pod that is terminating already gets no more than it has.
        grace_seconds: i64,
    },
    /// The shutdown of the machine was cancelled.
    Resumed,
    /// The runtime has no live container and no ready sandbox of the pod.
    NoLiveContainers,
    CleanupDone,
}

/// What the worker has to do because of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodWorkerEffect {
    /// Observe and plan now.
    Sync,
    /// Cancel work in progress and plan with this grace period; repeated whenever the grace period shrinks.
    Terminate { grace_seconds: i64 },
    /// Unmount volumes, remove the cgroup; with `records`, also remove runtime records, directories and
    /// stored state.
    CleanUp {
        /// Also remove records, directories and stored state.
        records: bool,
    },
    /// Release the full name: another incarnation may start.
    ReleaseName,
    /// The worker is not needed any more.
    Forget,
    /// Begin a new life under the same uid, through the queue of names.
    StartOver,
}

/// The only way a worker changes state. `spec_grace_seconds` is the pod's own termination grace.
#[must_use]
pub(crate) fn transition(
    state: PodWorkerState,
    event: PodWorkerEvent,
    now: Timestamp,
    spec_grace_seconds: i64,
) -> (PodWorkerState, Vec<PodWorkerEffect>) {
    use PodWorkerEffect as Do;
    use PodWorkerEvent as On;
    use PodWorkerState as In;
    let terminating = |grace: i64, cause| {
        let grace_seconds = grace.max(MIN_GRACE_SECONDS);
        (In::Terminating { since: now, grace_seconds, cause }, vec![Do::Terminate { grace_seconds }])
    };
    match (state, event) {
        (In::WaitingForName, On::NameFree) | (In::Syncing, On::Desired) => (In::Syncing, vec![Do::Sync]),
        // Nothing to stop, but it left records.
        (
            In::Finished { cause: EndCause::Completed | EndCause::Evicted | EndCause::Shutdown },
            On::Removed { .. } | On::Finalizing { .. },
        )
        | (In::Finished { cause: EndCause::Finalizing }, On::Removed { .. }) => {
            (In::Terminated { cause: cause_of(event) }, vec![Do::CleanUp { records: true }])
        }
        // A pod that waits for its name should have nothing to stop, but an earlier agent may have left
        // something.
        (
            In::Syncing | In::WaitingForName,
            On::Removed { grace_override } | On::Finalizing { grace_override },
        ) => terminating(grace_override.unwrap_or(spec_grace_seconds), cause_of(event)),
        (In::Syncing, On::PodTerminal) => terminating(spec_grace_seconds, EndCause::Completed),
        (In::Syncing | In::WaitingForName, On::Evicted { grace_seconds }) => {
            terminating(grace_seconds, EndCause::Evicted)
        }
        (In::Syncing | In::WaitingForName, On::Shutdown { grace_seconds }) => {
            terminating(grace_seconds, EndCause::Shutdown)
        }
        // Its name was never free for another.
        (In::Finished { cause: EndCause::Shutdown }, On::Resumed) => (In::WaitingForName, vec![Do::Sync]),
        // A half-stopped pod is stopped completely, and then starts over.
        (In::Terminating { since, grace_seconds, cause: EndCause::Shutdown }, On::Resumed) => {
            (In::Terminating { since, grace_seconds, cause: EndCause::Replaced }, vec![])
        }
        (
            In::Terminating { since, grace_seconds, cause },
            On::Removed { .. } | On::Finalizing { .. } | On::Shutdown { .. },
        ) => {
            let (wish, cause) = match event {
                On::Removed { grace_override } | On::Finalizing { grace_override } => {
                    (grace_override, cause_of(event))
                }
                On::Shutdown { grace_seconds } => (Some(grace_seconds), cause),
                _ => (None, cause),
            };
            // The requested grace period counts from the request, and never postpones the end.
            let wished = wish.unwrap_or(grace_seconds).max(MIN_GRACE_SECONDS);
            if ends_earlier(now, wished, since, grace_seconds) {
                terminating(wished, cause)
            } else {
                (In::Terminating { since, grace_seconds, cause }, vec![])
            }
        }
        (In::Terminating { since, grace_seconds, cause }, On::Desired) => {
            (In::Terminating { since, grace_seconds, cause: cause_if_still_desired(cause) }, vec![])
        }
        (In::Terminating { cause: EndCause::Shutdown, .. }, On::NoLiveContainers) => {
            (In::Finished { cause: EndCause::Shutdown }, vec![])
        }
        (In::Terminating { cause, .. }, On::NoLiveContainers) => {
            (In::Terminated { cause }, vec![Do::CleanUp { records: cause != EndCause::Completed }])
        }
        (In::Terminated { cause }, On::Desired) => {
            (In::Terminated { cause: cause_if_still_desired(cause) }, vec![])
        }
        (In::Terminated { cause }, On::Removed { .. } | On::Finalizing { .. }) => {
            // The cleanup in progress may be the one without records: request the full one.
            let effects =
                if cause == EndCause::Completed { vec![Do::CleanUp { records: true }] } else { vec![] };
            (In::Terminated { cause: cause_of(event) }, effects)
        }
        (In::Terminated { cause }, On::CleanupDone) => {
            let effects = match cause {
                EndCause::Completed | EndCause::Evicted | EndCause::Shutdown | EndCause::Finalizing => vec![],
                EndCause::Removed => vec![Do::ReleaseName, Do::Forget],
                EndCause::Replaced => vec![Do::ReleaseName, Do::StartOver],
            };
            (In::Finished { cause }, effects)
        }
        (
            In::WaitingForName,
            On::Desired | On::PodTerminal | On::NoLiveContainers | On::CleanupDone | On::Resumed,
        )
        | (In::Syncing, On::NameFree | On::NoLiveContainers | On::CleanupDone | On::Resumed)
        | (
            In::Terminating { .. },
            On::NameFree | On::PodTerminal | On::Evicted { .. } | On::CleanupDone | On::Resumed,
        )
        | (
            In::Terminated { .. },
            On::NameFree
            | On::PodTerminal
            | On::Evicted { .. }
            | On::Shutdown { .. }
            | On::Resumed
            | On::NoLiveContainers,
        )
        | (In::Finished { .. }, _) => (state, vec![]),
    }
}

/// The rest of the grace period of a pod that an earlier agent was taking down; `None` when it had not begun.
#[must_use]
pub(super) fn remembered_grace(pod: &Pod, now: Timestamp) -> Option<i64> {
    let metadata = &pod.metadata;
    Some(seconds_left(metadata.deletion_timestamp?, metadata.deletion_grace_period_seconds?, now))
}

/// Converts the times of a terminating pod to those that an API server shows: there, `deletionTimestamp` is
/// the end of the grace period. Internally it is the start, from which the remaining time is computed.
pub(crate) fn show_end(pod: &mut Pod) {
    pod.metadata.deletion_timestamp = end_of(pod);
}

/// The end of the grace period of a terminating pod.
#[must_use]
pub(crate) fn end_of(pod: &Pod) -> Option<Timestamp> {
    Some(pod.metadata.deletion_timestamp?.saturating_add(grace_of(pod)))
}

/// Merges two versions of one pod: `pod` takes the deletion of `other` if it has none or a later one. A
/// terminating pod never comes back, and its end only moves earlier. Returns whether `pod` changed.
pub(super) fn adopt_earlier_end(pod: &mut Rc<Pod>, other: &Pod) -> bool {
    let (known, told) = (end_of(pod), end_of(other));
    let marks = |pod: &Pod| (pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds);
    // A pod without any grace has ended and only its object is left, whatever the times are.
    let has_left = marks(other).1 == Some(0) && marks(pod).1 != Some(0);
    if told.is_none() || !(has_left || known.is_none_or(|known| told < Some(known))) {
        return false;
    }
    let metadata = &mut Rc::make_mut(pod).metadata;
    (metadata.deletion_timestamp, metadata.deletion_grace_period_seconds) = marks(other);
    true
}

/// The inverse of [`show_end`].
pub(crate) fn restore_start(pod: &mut Pod) {
    let grace = grace_of(pod);
    let metadata = &mut pod.metadata;
    metadata.deletion_timestamp = metadata.deletion_timestamp.map(|end| end.saturating_sub(grace));
}

fn grace_of(pod: &Pod) -> Duration {
    seconds(pod.metadata.deletion_grace_period_seconds.unwrap_or_default())
}

/// The start and the seconds of the grace period for a pod that is asked to end at `now` with the grace
/// `wish` (`None`: the pod's own). A later request can only shorten an earlier one.
#[must_use]
pub(crate) fn requested_termination(pod: &Pod, wish: Option<i64>, now: Timestamp) -> (Timestamp, i64) {
    let wished = wish.unwrap_or_else(|| pod.termination_grace_period_seconds()).max(MIN_GRACE_SECONDS);
    let metadata = &pod.metadata;
    match (metadata.deletion_timestamp, metadata.deletion_grace_period_seconds) {
        (Some(since), Some(grace)) if wish.is_none() || !ends_earlier(now, wished, since, grace) => {
            (since, grace)
        }
        _ => (now, wished),
    }
}

/// The requested grace period counts from the request.
fn ends_earlier(now: Timestamp, wished: i64, since: Timestamp, grace: i64) -> bool {
    wished < grace && now.saturating_add(seconds(wished)) < since.saturating_add(seconds(grace))
}

/// If the clock was set back, no more than the whole grace period is left.
fn seconds_left(since: Timestamp, grace_seconds: i64, now: Timestamp) -> i64 {
    let passed = i64::try_from(now.saturating_since(since).as_secs()).unwrap_or(i64::MAX);
    grace_seconds.saturating_sub(passed).max(MIN_GRACE_SECONDS)
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn cause_of(event: PodWorkerEvent) -> EndCause {
    match event {
        PodWorkerEvent::Finalizing { .. } => EndCause::Finalizing,
        _ => EndCause::Removed,
    }
}

/// A pod that ended by itself stays ended even if it is wanted, and so does one that waits for its
/// finalizers.
fn cause_if_still_desired(cause: EndCause) -> EndCause {
    match cause {
        EndCause::Completed | EndCause::Evicted | EndCause::Shutdown | EndCause::Finalizing => cause,
        EndCause::Removed | EndCause::Replaced => EndCause::Replaced,
    }
}

impl PodWorkerState {
    /// Whole seconds of the grace that are left at `now`, at least one; `None` unless the pod is being taken
    /// down.
    #[must_use]
    pub(super) fn grace_left(&self, now: Timestamp) -> Option<i64> {
        let Self::Terminating { since, grace_seconds, .. } = self else { return None };
        Some(seconds_left(*since, *grace_seconds, now))
    }

    /// The grace to plan with while the pod is being taken down; `None` while it is to run.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn terminating_grace(&self) -> Option<i64> {
        match self {
            Self::Terminating { grace_seconds, .. } => Some(*grace_seconds),
            _ => None,
        }
    }
}

/// Which incarnation of each full name may run: first come, first served, one at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameQueue {
    /// The first of each queue holds the name. No queue is ever empty.
    queues: BTreeMap<PodFullName, VecDeque<PodUid>>,
}

impl NameQueue {
    /// Joins the queue of `name` (once). Returns whether `uid` holds the name.
    pub(super) fn request(&mut self, name: &PodFullName, uid: &PodUid) -> bool {
        let queue = self.queues.entry(name.clone()).or_default();
        if !queue.contains(uid) {
            queue.push_back(uid.clone());
        }
        queue.front() == Some(uid)
    }

    /// Leaves the queue of `name`. Returns the new holder, if that has changed.
    pub(super) fn release(&mut self, name: &PodFullName, uid: &PodUid) -> Option<PodUid> {
        let queue = self.queues.get_mut(name)?;
        let held = queue.front() == Some(uid);
        queue.retain(|waiting| waiting != uid);
        let next = queue.front().cloned();
        if next.is_none() {
            self.queues.remove(name);
        }
        next.filter(|_| held)
    }

    #[cfg(test)]
    pub(crate) fn holder(&self, name: &PodFullName) -> Option<&PodUid> {
        self.queues.get(name)?.front()
    }
}

#[cfg(test)]
mod tests;
