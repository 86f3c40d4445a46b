//! Pending updates of a pod worker. Newer values replace older ones, so the memory is bounded.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};

use crate::model::api::pod::Pod;
use crate::model::types::ContainerName;
use crate::pod::lifecycle::PodWorkerEvent;

/// Updates for one worker.
#[derive(Default)]
pub struct Inbox {
    letters: RefCell<Updates>,
    /// Incremented by every request to check the runtime; wraps around.
    looks: Cell<u64>,
    arrived: Notify,
}

/// Everything that arrived since the worker last took its updates.
#[derive(Default)]
pub(super) struct Updates {
    /// The newest version of the pod.
    pub pod: Option<Rc<Pod>>,
    /// In order of arrival; repetitions of the last one are dropped, so the list stays short.
    pub events: Vec<PodWorkerEvent>,
    /// The node cannot keep the pod.
    pub eviction: Option<Eviction>,
    /// Something changed in the runtime: observe the pod again.
    pub look: bool,
    /// A device that the pod waits for has appeared.
    pub device: bool,
    /// Containers whose restart was requested.
    pub restart: Vec<ContainerName>,
}

/// The order to end a pod because the node is short of a resource or shuts down.
#[derive(Debug)]
pub struct Eviction {
    /// The machine shuts down; the pod is to run again afterwards.
    pub is_shutdown: bool,
    /// The message of the pod's status and of its event.
    pub message: String,
    /// Seconds the pod gets.
    pub grace_seconds: i64,
    /// Dropped when all that the pod held is free, or when it is not evicted; at a shutdown when nothing of
    /// it runs any more.
    pub done: oneshot::Sender<()>,
}

impl Updates {
    fn has_word(&self) -> bool {
        let Self { pod, eviction, events, restart, .. } = self;
        pod.is_some() || eviction.is_some() || !events.is_empty() || !restart.is_empty()
    }
}

impl Inbox {
    /// A new version of the pod, or the first.
    pub(super) fn desire(&self, pod: Rc<Pod>) {
        self.letters.borrow_mut().pod = Some(pod);
        self.tell(PodWorkerEvent::Desired);
    }

    /// Another version of a pod that is being taken down, for example with other labels. Its termination is
    /// unchanged.
    pub(super) fn describe(&self, pod: Rc<Pod>) {
        self.letters.borrow_mut().pod = Some(pod);
        self.arrived.notify_waiters();
    }

    /// A lifecycle event.
    pub(super) fn tell(&self, event: PodWorkerEvent) {
        {
            let mut letters = self.letters.borrow_mut();
            if letters.events.last() != Some(&event) {
                letters.events.push(event);
            }
        }
        self.arrived.notify_waiters();
    }

    /// The node cannot keep the pod.
    pub(super) fn evict(&self, eviction: Eviction) {
        self.letters.borrow_mut().eviction = Some(eviction);
        self.arrived.notify_waiters();
    }

    /// These containers are to be restarted.
    pub(super) fn restart(&self, containers: Vec<ContainerName>) {
        self.letters.borrow_mut().restart.extend(containers);
        self.arrived.notify_waiters();
    }

    /// The runtime's state of this pod changed.
    pub(super) fn look(&self) {
        self.letters.borrow_mut().look = true;
        self.looks.set(self.looks.get().wrapping_add(1));
        self.arrived.notify_waiters();
    }

    /// A device that the pod waits for has appeared: requests a check.
    pub(super) fn device_appeared(&self) {
        self.letters.borrow_mut().device = true;
        self.look();
    }

    /// Takes what has arrived.
    pub(super) fn take(&self) -> Updates {
        std::mem::take(&mut *self.letters.borrow_mut())
    }

    /// Takes the updates about the pod itself; a request to check the runtime stays.
    pub(super) fn take_words(&self) -> Updates {
        let mut letters = self.letters.borrow_mut();
        let (look, device) = (letters.look, letters.device);
        let words = std::mem::take(&mut *letters);
        (letters.look, letters.device) = (look, device);
        Updates { look: false, device: false, ..words }
    }

    /// An update about the pod itself is pending.
    pub(super) fn has_word(&self) -> bool {
        self.letters.borrow().has_word()
    }

    /// An update that takes the pod down is pending.
    pub(super) fn has_removal(&self) -> bool {
        let is_removal = |event: &PodWorkerEvent| {
            matches!(event, PodWorkerEvent::Removed { .. } | PodWorkerEvent::Finalizing { .. })
        };
        let letters = self.letters.borrow();
        letters.eviction.is_some() || letters.events.iter().any(is_removal)
    }

    /// Returns when any update is pending.
    pub(super) async fn arrived(&self) {
        self.until(|| self.has_word() || self.letters.borrow().look).await;
    }

    /// Returns when an update about the pod itself is pending.
    pub(super) async fn word(&self) {
        self.until(|| self.has_word()).await;
    }

    /// Returns when an update that takes the pod down is pending: work in progress may be cancelled for it.
    pub(super) async fn removal(&self) {
        self.until(|| self.has_removal()).await;
    }

    /// The number of requests to check the runtime so far; wait for the next one with [`Self::look_after`].
    pub(super) fn looks(&self) -> u64 {
        self.looks.get()
    }

    /// Returns when [`Self::looks`] differs from `seen`. Takes no update.
    pub(super) async fn look_after(&self, seen: u64) {
        self.until(|| self.looks.get() != seen).await;
    }

    /// Any number of callers may wait, each for its own condition.
    async fn until(&self, holds: impl Fn() -> bool) {
        loop {
            let mut arrival = pin!(self.arrived.notified());
            // From here on no notification is missed.
            arrival.as_mut().enable();
            if holds() {
                return;
            }
            arrival.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed() -> PodWorkerEvent {
        PodWorkerEvent::Removed { grace_override: None }
    }

    #[tokio::test]
    async fn everyone_who_waits_hears_of_what_he_waits_for() {
        let mailbox = Inbox::default();
        let seen = mailbox.looks();
        let waiting = async { tokio::join!(mailbox.arrived(), mailbox.removal(), mailbox.look_after(seen)) };
        let telling = async {
            tokio::task::yield_now().await;
            mailbox.look();
            tokio::task::yield_now().await;
            mailbox.tell(removed());
        };
        tokio::join!(waiting, telling);
        assert!(mailbox.has_removal() && mailbox.has_word());
    }

    #[test]
    fn a_request_to_look_outlives_the_words() {
        let mailbox = Inbox::default();
        mailbox.look();
        mailbox.tell(removed());
        mailbox.tell(removed());
        let words = mailbox.take_words();
        assert_eq!((words.events.len(), words.look), (1, false));
        assert!(!mailbox.has_word() && mailbox.take().look);
    }
}
