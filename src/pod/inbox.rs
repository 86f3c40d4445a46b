//! Pending updates of a pod worker. Newer values replace older ones, so the memory is bounded.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};

use crate::model::api::pod::Pod;
use crate::model::types::ContainerName;
use crate::pod::lifecycle::PodWorkerEvent;

#[derive(Default)]
pub(crate) struct Inbox {
    updates: RefCell<Updates>,
    /// Incremented by every request to check the runtime; wraps around.
    observation_requests: Cell<u64>,
    arrived: Notify,
}

/// Everything that arrived since the worker last took its updates.
#[derive(Default)]
pub(super) struct Updates {
    pub pod: Option<Rc<Pod>>,
    /// In order of arrival; repetitions of the last one are dropped, so the list stays short.
    pub events: Vec<PodWorkerEvent>,
    pub eviction: Option<Eviction>,
    /// Something changed in the runtime: observe the pod again.
    pub observe: bool,
    /// A device that the pod waits for has appeared.
    pub device: bool,
    pub restart: Vec<ContainerName>,
}

/// The order to end a pod because the node is short of a resource, needs the room, or shuts down.
#[derive(Debug)]
pub struct Eviction {
    /// The machine shuts down; the pod is to run again afterwards.
    pub is_shutdown: bool,
    /// The reason of the pod's status and of its event.
    pub reason: &'static str,
    /// The message of the pod's status and of its event.
    pub message: String,
    pub grace_seconds: i64,
    /// Dropped when all that the pod held is free, or when it is not evicted; at a shutdown when nothing of
    /// it runs any more.
    pub done: oneshot::Sender<()>,
}

impl Updates {
    fn has_pod_update(&self) -> bool {
        let Self { pod, eviction, events, restart, .. } = self;
        pod.is_some() || eviction.is_some() || !events.is_empty() || !restart.is_empty()
    }
}

impl Inbox {
    pub(super) fn update_pod(&self, pod: Rc<Pod>) {
        self.updates.borrow_mut().pod = Some(pod);
        self.push_event(PodWorkerEvent::Desired);
    }

    /// Another version of a pod that is being taken down, for example with other labels. Its termination is
    /// unchanged.
    pub(super) fn update_terminating(&self, pod: Rc<Pod>) {
        self.updates.borrow_mut().pod = Some(pod);
        self.arrived.notify_waiters();
    }

    pub(super) fn push_event(&self, event: PodWorkerEvent) {
        {
            let mut updates = self.updates.borrow_mut();
            if updates.events.last() != Some(&event) {
                updates.events.push(event);
            }
        }
        self.arrived.notify_waiters();
    }

    pub(super) fn evict(&self, eviction: Eviction) {
        self.updates.borrow_mut().eviction = Some(eviction);
        self.arrived.notify_waiters();
    }

    pub(super) fn restart(&self, containers: Vec<ContainerName>) {
        self.updates.borrow_mut().restart.extend(containers);
        self.arrived.notify_waiters();
    }

    /// The runtime's state of this pod changed.
    pub(super) fn request_observation(&self) {
        self.updates.borrow_mut().observe = true;
        self.observation_requests.set(self.observation_requests.get().wrapping_add(1));
        self.arrived.notify_waiters();
    }

    /// A device that the pod waits for has appeared: requests a check.
    pub(super) fn device_appeared(&self) {
        self.updates.borrow_mut().device = true;
        self.request_observation();
    }

    pub(super) fn take(&self) -> Updates {
        std::mem::take(&mut *self.updates.borrow_mut())
    }

    /// Takes the updates about the pod itself; a request to check the runtime stays.
    pub(super) fn take_pod_updates(&self) -> Updates {
        let mut updates = self.updates.borrow_mut();
        let (observe, device) = (updates.observe, updates.device);
        let words = std::mem::take(&mut *updates);
        (updates.observe, updates.device) = (observe, device);
        Updates { observe: false, device: false, ..words }
    }

    pub(super) fn has_pod_update(&self) -> bool {
        self.updates.borrow().has_pod_update()
    }

    /// An update that takes the pod down is pending.
    pub(super) fn has_removal(&self) -> bool {
        let is_removal = |event: &PodWorkerEvent| {
            matches!(event, PodWorkerEvent::Removed { .. } | PodWorkerEvent::Finalizing { .. })
        };
        let updates = self.updates.borrow();
        updates.eviction.is_some() || updates.events.iter().any(is_removal)
    }

    /// Returns when any update is pending.
    pub(super) async fn arrived(&self) {
        self.until(|| self.has_pod_update() || self.updates.borrow().observe).await;
    }

    /// Returns when an update about the pod itself is pending.
    pub(super) async fn pod_update(&self) {
        self.until(|| self.has_pod_update()).await;
    }

    /// Returns when an update that takes the pod down is pending: work in progress may be cancelled for it.
    pub(super) async fn removal(&self) {
        self.until(|| self.has_removal()).await;
    }

    /// The number of requests to check the runtime so far; wait for the next one with [`Self::observation_requested`].
    pub(super) fn observation_requests(&self) -> u64 {
        self.observation_requests.get()
    }

    /// Returns when [`Self::observation_requests`] differs from `seen`. Takes no update.
    pub(super) async fn observation_requested(&self, seen: u64) {
        self.until(|| self.observation_requests.get() != seen).await;
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
    async fn each_inbox_waiter_is_woken_by_its_own_event() {
        let inbox = Inbox::default();
        let seen = inbox.observation_requests();
        let waiting =
            async { tokio::join!(inbox.arrived(), inbox.removal(), inbox.observation_requested(seen)) };
        let telling = async {
            tokio::task::yield_now().await;
            inbox.request_observation();
            tokio::task::yield_now().await;
            inbox.push_event(removed());
        };
        tokio::join!(waiting, telling);
        assert!(inbox.has_removal() && inbox.has_pod_update());
    }

    #[test]
    fn look_request_remains_after_taking_events() {
        let inbox = Inbox::default();
        inbox.request_observation();
        inbox.push_event(removed());
        inbox.push_event(removed());
        let words = inbox.take_pod_updates();
        assert_eq!((words.events.len(), words.observe), (1, false));
        assert!(!inbox.has_pod_update() && inbox.take().observe);
    }
}
