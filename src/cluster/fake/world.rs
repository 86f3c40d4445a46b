//! What all users of a fake apiserver share: objects, fault switches, tables of users, the record of calls.
//!
//! Owns the wake-up of watches.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;

use super::faults::ApiFaults;
use super::objects::FakeObjects;
use crate::cluster::client::transport::Method;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;

/// Who has which token, and who may do what.
#[derive(Clone, Debug, Default)]
pub struct ReviewTable {
    /// By token: user and groups.
    pub tokens: BTreeMap<String, (String, Vec<String>)>,
    /// User, verb, resource with subresource: `("alice", "get", "nodes/proxy")`.
    pub allowed: BTreeSet<(String, String, String)>,
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
    pub objects: RefCell<FakeObjects>,
    pub faults: RefCell<ApiFaults>,
    pub reviews: RefCell<ReviewTable>,
    /// After this time without a heartbeat, pods of a node are deleted.
    pub evict_after: Cell<Option<Duration>>,
    pub calls: RefCell<Vec<ApiCall>>,
    /// What is left of lists that were not read to their ends, by token.
    pub pages: RefCell<BTreeMap<String, (u64, Vec<Value>)>>,
    /// Another one ends all watches.
    pub epoch: Cell<u64>,
    pub changed: Notify,
}

impl World {
    pub(super) fn new(clock: Clock, seed: u64) -> Self {
        let objects = FakeObjects { cluster: seed, version: 100, compacted: 0, ..FakeObjects::default() };
        Self {
            clock,
            objects: RefCell::new(objects),
            faults: RefCell::default(),
            reviews: RefCell::default(),
            evict_after: Cell::new(None),
            calls: RefCell::default(),
            pages: RefCell::default(),
            epoch: Cell::new(0),
            changed: Notify::new(),
        }
    }

    /// Replaces everything; all connections end.
    pub(super) fn become_other(&self, objects: FakeObjects) {
        self.objects.replace(objects);
        self.pages.borrow_mut().clear();
        self.epoch.set(self.epoch.get() + 1);
        self.changed.notify_waiters();
    }
}
