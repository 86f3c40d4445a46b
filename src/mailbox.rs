//! What a pod worker has been told and has not yet looked at. The latest wins; nothing queues up without bound.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::sync::Notify;

use crate::api::pod::Pod;
use crate::reconcile::lifecycle::PodWorkerEvent;

/// News for one worker.
#[derive(Default)]
pub struct Mailbox {
    letters: RefCell<Letters>,
    arrived: Notify,
}

/// Everything that arrived since the worker looked last.
#[derive(Default)]
pub struct Letters {
    /// The newest version of the pod.
    pub pod: Option<Rc<Pod>>,
    /// In order of arrival; repetitions of the last one are dropped, so the list stays short.
    pub events: Vec<PodWorkerEvent>,
    /// Something changed in the runtime: look again.
    pub look: bool,
}

impl Mailbox {
    /// A new version of the pod, or the first.
    pub fn desire(&self, pod: Rc<Pod>) {
        self.letters.borrow_mut().pod = Some(pod);
        self.tell(PodWorkerEvent::Desired);
    }

    /// A lifecycle event.
    pub fn tell(&self, event: PodWorkerEvent) {
        {
            let mut letters = self.letters.borrow_mut();
            if letters.events.last() != Some(&event) {
                letters.events.push(event);
            }
        }
        self.arrived.notify_one();
    }

    /// Something about this pod changed in the runtime.
    pub fn look(&self) {
        self.letters.borrow_mut().look = true;
        self.arrived.notify_one();
    }

    /// Takes what has arrived.
    pub fn take(&self) -> Letters {
        std::mem::take(&mut *self.letters.borrow_mut())
    }

    /// Somebody has said something about the pod itself that nobody took.
    pub fn has_word(&self) -> bool {
        let letters = self.letters.borrow();
        letters.pod.is_some() || !letters.events.is_empty()
    }

    /// Returns when something has arrived that nobody took.
    pub async fn arrived(&self) {
        loop {
            {
                let letters = self.letters.borrow();
                if letters.pod.is_some() || !letters.events.is_empty() || letters.look {
                    return;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Returns when the pod is to be taken down: what is under way may be given up for that.
    pub async fn removal(&self) {
        loop {
            let removed = |event: &PodWorkerEvent| matches!(event, PodWorkerEvent::Removed { .. });
            if self.letters.borrow().events.iter().any(removed) {
                return;
            }
            self.arrived.notified().await;
        }
    }
}
