//! The answers of the fake apiserver as they arrive: whole bodies, and watches that follow the history.
//!
//! Owns where a watch stands.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::answers::{Refusal, Target};
use super::objects::{KindRow, selects};
use super::world::World;
use crate::cluster::client::error::{LinkError, LinkErrorKind};
use crate::cluster::client::transport::{Bytes, Chunks};

const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
const DEFAULT_TIMEOUT: u64 = 1800;

/// The body of an answer.
pub struct FakeBody(BodyState);

enum BodyState {
    Whole(Option<Bytes>),
    Watch(Box<FakeWatch>),
}

pub(super) struct FakeWatch {
    world: Rc<World>,
    kind: KindRow,
    namespace: String,
    selector: String,
    /// The newest change that was considered.
    cursor: u64,
    queue: VecDeque<Value>,
    sent: u32,
    has_bookmarks: bool,
    next_bookmark: Instant,
    ends: Instant,
    epoch: u64,
    /// After the queue, nothing follows.
    is_done: bool,
}

impl FakeBody {
    pub(super) fn whole(text: &str) -> Self {
        Self(BodyState::Whole(Some(Bytes::copy_from_slice(text.as_bytes()))))
    }

    pub(super) fn watch(watch: FakeWatch) -> Self {
        Self(BodyState::Watch(Box::new(watch)))
    }
}

impl Chunks for FakeBody {
    async fn next(&mut self) -> Option<Result<Bytes, LinkError>> {
        match &mut self.0 {
            BodyState::Whole(bytes) => bytes.take().map(Ok),
            BodyState::Watch(watch) => watch.next().await,
        }
    }
}

impl FakeWatch {
    /// # Errors
    /// When the server does not understand the request. A version that is too old is an event.
    pub(super) fn open(world: &Rc<World>, target: &Target) -> Result<Self, Refusal> {
        let faults = world.faults.borrow().clone();
        let is_initial = target.query("sendInitialEvents") == "true";
        if is_initial && (faults.no_watch_list || target.query("resourceVersionMatch") != "NotOlderThan") {
            let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList \
                           feature gate is enabled";
            return Err(Refusal::invalid(target, message));
        }
        let now = Instant::now();
        let objects = world.objects.borrow();
        let wanted = target.query("resourceVersion");
        let (kind, namespace) = (target.place.kind, target.place.namespace.clone());
        let selector = target.query("fieldSelector").to_owned();
        let seconds = target.query("timeoutSeconds").parse().unwrap_or(DEFAULT_TIMEOUT);
        let mut watch = Self {
            world: Rc::clone(world),
            kind,
            namespace: namespace.clone(),
            selector: selector.clone(),
            cursor: objects.version,
            queue: VecDeque::new(),
            sent: 0,
            has_bookmarks: target.query("allowWatchBookmarks") == "true" && !faults.no_bookmarks,
            next_bookmark: now + BOOKMARK_EVERY,
            ends: now + Duration::from_secs(seconds),
            epoch: world.epoch.get(),
            is_done: false,
        };
        if is_initial || wanted.is_empty() || wanted == "0" {
            let shown = objects.select(kind, &namespace, &selector).filter(|_| !faults.empty_lists);
            let event = |object: &Value| json!({"type": "ADDED", "object": faults.shown(object.clone())});
            watch.queue.extend(shown.map(event));
            if is_initial {
                watch.queue.push_back(bookmark(kind, watch.cursor, true));
            }
        } else {
            watch.cursor = wanted.parse().unwrap_or_default();
            if faults.gone {
                watch.expire();
            }
        }
        Ok(watch)
    }

    fn expire(&mut self) {
        let message = format!("too old resource version: {}", self.cursor);
        self.queue.push_back(json!({"type": "ERROR", "object": Refusal(410, "Expired", message).status()}));
        self.is_done = true;
    }

    /// Queues the changes that have happened.
    fn follow(&mut self) {
        let world = Rc::clone(&self.world);
        let objects = world.objects.borrow();
        if self.cursor < objects.compacted {
            return self.expire();
        }
        let first = objects.history.partition_point(|change| change.version <= self.cursor);
        for change in objects.history.range(first..) {
            self.cursor = change.version;
            let is_ours = change.place.kind == self.kind
                && (self.namespace.is_empty() || self.namespace == change.place.namespace);
            if !is_ours {
                continue;
            }
            let shown =
                |object: &Option<Value>| object.clone().filter(|object| selects(&self.selector, object));
            let (kind, object) = match (shown(&change.old), shown(&change.new)) {
                (None, Some(new)) => ("ADDED", new),
                (Some(_), Some(new)) => ("MODIFIED", new),
                (Some(mut old), None) => {
                    old["metadata"]["resourceVersion"] = change.version.to_string().into();
                    ("DELETED", old)
                }
                (None, None) => continue,
            };
            let faults = world.faults.borrow();
            let event = json!({"type": kind, "object": faults.shown(object)});
            if faults.repeat_events {
                self.queue.push_back(event.clone());
            }
            self.queue.push_back(event);
        }
    }

    async fn next(&mut self) -> Option<Result<Bytes, LinkError>> {
        loop {
            let world = Rc::clone(&self.world);
            let changed = world.changed.notified();
            let faults = world.faults.borrow().clone();
            if faults.refuse || self.epoch != world.epoch.get() {
                let message = "the connection was reset".to_owned();
                return Some(Err(LinkError { kind: LinkErrorKind::Lost, message }));
            }
            if faults.hang {
                changed.await;
                continue;
            }
            if self.queue.is_empty() && !self.is_done {
                self.follow();
            }
            if let Some(event) = self.queue.front().cloned() {
                sleep(faults.chunk_delay).await;
                return self.chunk(&event, faults.cut_after, faults.cut_inside_a_line).map(Ok);
            }
            if self.is_done || Instant::now() >= self.ends {
                return None;
            }
            if self.has_bookmarks && Instant::now() >= self.next_bookmark {
                self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                self.queue.push_back(bookmark(self.kind, self.cursor, false));
                continue;
            }
            let due = if self.has_bookmarks { self.ends.min(self.next_bookmark) } else { self.ends };
            // Either is a reason to check again.
            let _ = timeout_at(due, changed).await;
        }
    }

    /// The line of the first event of the queue, unless the watch ends before it.
    fn chunk(&mut self, event: &Value, cut_after: Option<u32>, inside: bool) -> Option<Bytes> {
        self.queue.pop_front();
        let mut line = event.to_string();
        line.push('\n');
        if cut_after.is_some_and(|most| self.sent >= most) {
            self.is_done = true;
            self.queue.clear();
            line.truncate(line.len() / 2);
            return inside.then(|| Bytes::from(line));
        }
        self.sent += 1;
        Some(Bytes::from(line))
    }
}

fn bookmark(kind: KindRow, version: u64, is_initial_end: bool) -> Value {
    let mut object = json!({"kind": kind.0, "apiVersion": kind.1,
        "metadata": {"creationTimestamp": null, "resourceVersion": version.to_string()}});
    if is_initial_end {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    json!({"type": "BOOKMARK", "object": object})
}
