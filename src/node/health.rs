//! The node's state for other modules: its pressure conditions and its images.
//!
//! Owns that state, and the notification of changes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::{Notify, watch};

use crate::model::disruption::Pressure;
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;
use crate::runtime::RuntimeImage;

#[derive(Default)]
pub struct Health {
    state: RefCell<HealthState>,
    version: watch::Sender<u64>,
    images_requested: Notify,
}

#[derive(Default)]
struct HealthState {
    pressure: BTreeSet<Pressure>,
    /// The times of the last transitions, for conditions that have changed.
    since: BTreeMap<Pressure, Timestamp>,
    images: Vec<RuntimeImage>,
    /// Whether the machine is shutting down, or the shutdown was cancelled; since when.
    shutting_down: Option<(bool, Timestamp)>,
}

impl Health {
    /// Whether the node has this condition, and since when; `None`: unchanged since the agent's start.
    #[must_use]
    pub fn pressure(&self, of: Pressure) -> (bool, Option<Timestamp>) {
        let state = self.state.borrow();
        (state.pressure.contains(&of), state.since.get(&of).copied())
    }

    /// Whether the machine is shutting down, and since when; `None` if no shutdown has begun since the
    /// agent's start.
    #[must_use]
    pub(crate) fn shutting_down(&self) -> Option<(bool, Timestamp)> {
        self.state.borrow().shutting_down
    }

    /// The runtime's images as of the last listing. Each call requests a new listing, which later calls
    /// return.
    #[must_use]
    pub(crate) fn images(&self) -> Vec<RuntimeImage> {
        self.images_requested.notify_one();
        self.state.borrow().images.clone()
    }

    /// Changes with every change of this state.
    #[must_use]
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Waits until images have been requested.
    pub(super) async fn images_requested(&self) {
        self.images_requested.notified().await;
    }

    /// Returns what is new.
    pub(super) fn set_pressure(&self, pressure: &BTreeSet<Pressure>, now: Timestamp) -> BTreeSet<Pressure> {
        let mut state = self.state.borrow_mut();
        let news: BTreeSet<Pressure> = state.pressure.symmetric_difference(pressure).copied().into_set();
        if !news.is_empty() {
            state.since.extend(news.iter().map(|of| (*of, now)));
            state.pressure.clone_from(pressure);
            drop(state);
            self.version.send_modify(|version| *version += 1);
        }
        news
    }

    /// Returns whether this is a change.
    pub(super) fn set_shutting_down(&self, is_shutting_down: bool, now: Timestamp) -> bool {
        let was = self.state.borrow().shutting_down.is_some_and(|(was, _)| was);
        if was != is_shutting_down {
            self.state.borrow_mut().shutting_down = Some((is_shutting_down, now));
            self.version.send_modify(|version| *version += 1);
        }
        was != is_shutting_down
    }

    pub(super) fn set_images(&self, images: Vec<RuntimeImage>) {
        if self.state.borrow().images != images {
            self.state.borrow_mut().images = images;
            self.version.send_modify(|version| *version += 1);
        }
    }
}
