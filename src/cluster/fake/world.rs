//! What all users of a fake apiserver share: objects, fault switches, the record of calls.
//!
//! Owns the wake-up of watches.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;

use super::objects::Objects;
use crate::cluster::client::transport::Method;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;

/// Fault switches; all off by default.
#[derive(Clone, Debug, Default)]
pub struct ApiFaults {
    /// No connection, and those that there are end.
    pub refuse: bool,
    /// Nothing answers, and nothing ends.
    pub hang: bool,
    /// Before each part of a watch.
    pub chunk_delay: Duration,
    /// Each watch ends after so many events.
    pub cut_after: Option<u32>,
    /// It ends in the middle of the next event.
    pub cut_inside_a_line: bool,
    /// No version is kept: 410 for watches from a version and for later pages.
    pub gone: bool,
    /// 429 with this `Retry-After`; none when it is zero.
    pub too_many: Option<Duration>,
    /// Every answer has this status.
    pub status: Option<u16>,
    /// Lists are empty, as those of a server that has lost its storage.
    pub empty_lists: bool,
    /// A web page, with status 200.
    pub html: bool,
    /// 422 for streaming lists.
    pub no_watch_list: bool,
    pub no_bookmarks: bool,
    /// Requests take effect, and their answers are lost.
    pub lose_answers: bool,
    /// Events arrive twice.
    pub repeat_events: bool,
}

/// One request, as the server has seen it.
#[derive(Clone, Debug)]
pub struct ApiCall {
    pub at: Timestamp,
    pub user: String,
    pub method: Method,
    /// With its query.
    pub path: String,
    pub body: Value,
    /// Bytes of the body.
    pub bytes: usize,
    pub status: u16,
}

pub(super) struct World {
    pub clock: Clock,
    pub objects: RefCell<Objects>,
    pub faults: RefCell<ApiFaults>,
    pub calls: RefCell<Vec<ApiCall>>,
    /// What is left of lists that were not read to their ends, by token.
    pub pages: RefCell<BTreeMap<String, (u64, Vec<Value>)>>,
    /// Another one ends all watches.
    pub epoch: Cell<u64>,
    pub changed: Notify,
}

impl World {
    pub(super) fn new(clock: Clock, seed: u64) -> Self {
        let objects = Objects { cluster: seed, version: 100, compacted: 0, ..Objects::default() };
        Self {
            clock,
            objects: RefCell::new(objects),
            faults: RefCell::default(),
            calls: RefCell::default(),
            pages: RefCell::default(),
            epoch: Cell::new(0),
            changed: Notify::new(),
        }
    }

    /// Replaces everything; all connections end.
    pub(super) fn become_other(&self, objects: Objects) {
        self.objects.replace(objects);
        self.pages.borrow_mut().clear();
        self.epoch.set(self.epoch.get() + 1);
        self.changed.notify_waiters();
    }
}
