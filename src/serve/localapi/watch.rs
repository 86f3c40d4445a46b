//! Watches.
//!
//! Owns the watches and what each of them is sent. Without watches there is no task and nothing is computed;
//! a change of the node wakes one task per store, which reads the store once for all of its watches.
//!
//! # Guarantees
//! What a client has yet to read costs references to texts that all watches share. A slow client is the only
//! one that keeps a superseded text, or a line of its own form, in memory: those are counted together, and
//! the slowest watches end when they are too many. The client resumes at the version it has.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::path::{QueryOptions, RequestInfo};
use super::resource::Store;
use super::selector::Selector;
use super::shape::{View, own};
use super::status::{self, Failure};
use super::versions::{Change, ObjectChange, parse_version};
use super::written::{Retained, Written};
use super::{LocalApi, read};
use crate::platform::clock::Clock;
use crate::platform::rt::changes::Changes;
use crate::platform::rt::turns::Turns;
use crate::serve::server::body::{self, Body, Pieces};

/// The most changes that wait for a slow client. Beyond that its watch ends, and the client resumes where it
/// was.
const MAX_WAITING: usize = 512;
/// Changes arrive in bursts; one read of the store covers them all.
const CROWD: Duration = Duration::from_millis(50);
/// The last observation is reused for new watches while the node reports no change, and no longer than this.
const FRESH: Duration = Duration::from_secs(1);
/// The most watches of one user. A client library has one for each kind that it follows; half of all streams
/// remain for other users.
const MAX_OF_A_USER: usize = 1000;
/// The most bytes that slow clients may keep in memory, over all clients.
const MAX_RETAINED: usize = 8 * 1024 * 1024;
/// A line is sent in pieces of this size. A client that does not read holds three of them.
const PIECE: usize = 4096;

pub(super) struct Watchers {
    state: RefCell<WatchState>,
    retained: Retained,
    turns: Turns,
}

#[derive(Default)]
struct WatchState {
    next: u64,
    stores: BTreeMap<Store, Watched>,
}

#[derive(Default)]
struct Watched {
    clients: BTreeMap<u64, Rc<WatchClient>>,
    /// Reads the store when something has changed.
    task: Option<JoinHandle<()>>,
    /// The changes since the last read of all objects, and the time of that read.
    last_read: Option<(Changes, Instant)>,
}

/// The sender's side of a watch.
struct WatchClient {
    user: String,
    queue: RefCell<VecDeque<Rc<Change>>>,
    /// The current limit of the queue.
    most: Cell<usize>,
    /// The line that is being sent. It is here and not in the task, so that it is freed when the watch ends.
    line: RefCell<Option<Line>>,
    /// When the client last read something.
    took: Cell<Instant>,
    has_ended: Cell<bool>,
    /// Notified on a change and at the end.
    wakes: Notify,
}

impl WatchClient {
    fn new(user: &str) -> Self {
        Self {
            user: user.to_owned(),
            queue: RefCell::default(),
            most: Cell::new(MAX_WAITING),
            line: RefCell::default(),
            took: Cell::new(Instant::now()),
            has_ended: Cell::new(false),
            wakes: Notify::new(),
        }
    }

    /// Queues the first events, however many there are.
    fn begin(&self, first: Vec<Change>) {
        self.most.set(first.len() + MAX_WAITING);
        self.queue.replace(first.into_iter().map(Rc::new).collect());
    }

    fn notify(&self, change: &Rc<Change>) {
        if self.queue.borrow().len() >= self.most.get() {
            return self.end();
        }
        if !self.has_ended.get() {
            self.queue.borrow_mut().push_back(Rc::clone(change));
            self.wakes.notify_one();
        }
    }

    fn next(&self) -> Option<Rc<Change>> {
        self.queue.borrow_mut().pop_front()
    }

    fn has_pending(&self) -> bool {
        self.line.borrow().is_some() || !self.queue.borrow().is_empty()
    }

    /// Ends the watch and frees what waits for its client.
    fn end(&self) {
        self.has_ended.set(true);
        self.queue.take();
        self.line.take();
        self.wakes.notify_one();
    }

    /// Waits for [`end`](Self::end). It may consume one notification of a change; the change stays in the
    /// queue.
    async fn ended(&self) {
        while !self.has_ended.get() {
            self.wakes.notified().await;
        }
    }

    /// The piece of the line at this offset; `None` at its end, and when the watch has ended.
    fn piece(&self, from: usize) -> Option<Bytes> {
        self.line.borrow().as_ref().and_then(|line| line.piece(from))
    }
}

struct Line {
    head: String,
    text: Rc<Written>,
    tail: &'static str,
}

impl Line {
    /// The next [`PIECE`] bytes, copied: an unread piece must not keep the whole line alive.
    fn piece(&self, mut from: usize) -> Option<Bytes> {
        let mut piece = Vec::new();
        for part in [self.head.as_bytes(), self.text.json(), self.tail.as_bytes()] {
            let rest = part.get(from..).unwrap_or_default();
            piece.extend_from_slice(rest.get(..PIECE - piece.len()).unwrap_or(rest));
            from = from.saturating_sub(part.len());
        }
        (!piece.is_empty()).then(|| Bytes::from(piece))
    }
}

impl Watchers {
    pub(super) fn new(retained: Retained) -> Self {
        Self { state: RefCell::default(), retained, turns: Turns::default() }
    }

    pub(super) fn has(&self, store: Store) -> bool {
        self.state.borrow().stores.contains_key(&store)
    }

    /// Sends a change to all watches of the store. Those that are too slow end.
    pub(super) fn notify(&self, store: Store, change: Change) {
        if let Some(watched) = self.state.borrow().stores.get(&store) {
            let change = Rc::new(change);
            watched.clients.values().for_each(|client| client.notify(&change));
        }
        self.end_slowest();
    }

    /// Records that the store was read now; `changes` reports what happens from here on.
    pub(super) fn mark_read(&self, store: Store, changes: impl FnOnce() -> Changes) {
        if let Some(watched) = self.state.borrow_mut().stores.get_mut(&store) {
            watched.last_read = Some((changes(), Instant::now()));
        }
    }

    /// Whether nothing has changed since the last read.
    fn is_fresh(&self, store: Store) -> bool {
        let state = self.state.borrow();
        let last_read = state.stores.get(&store).and_then(|watched| watched.last_read.as_ref());
        last_read.is_some_and(|(changes, at)| at.elapsed() < FRESH && !changes.has_changed())
    }

    /// Ends the slowest watches until the retained bytes are within the limit.
    fn end_slowest(&self) {
        while self.retained.bytes() > MAX_RETAINED {
            let state = self.state.borrow();
            let clients = state.stores.values().flat_map(|watched| watched.clients.values());
            let slowest =
                clients.filter(|client| client.has_pending()).min_by_key(|client| client.took.get());
            let Some(slowest) = slowest else { return };
            log::debug!(user = slowest.user.as_str(); "Too many pending watch events, closing the slowest \
                 watch");
            slowest.end();
        }
    }
}

/// Membership of a watch; dropping it removes the watch.
struct Membership {
    api: Rc<LocalApi>,
    store: Store,
    number: u64,
    client: Rc<WatchClient>,
}

impl Membership {
    fn join(api: &Rc<LocalApi>, store: Store, user: &str) -> Result<Self, Failure> {
        let client = Rc::new(WatchClient::new(user));
        let mut state = api.watchers.state.borrow_mut();
        let all = state.stores.values().flat_map(|watched| watched.clients.values());
        if all.filter(|client| client.user == user).count() >= MAX_OF_A_USER {
            let message = format!("user {user:?} has {MAX_OF_A_USER} open watches, the maximum per user");
            return Err(status::too_many_requests(message));
        }
        let number = state.next;
        state.next += 1;
        let watched = state.stores.entry(store).or_default();
        watched.clients.insert(number, Rc::clone(&client));
        // Subscribes here, not when the task is first polled.
        watched.task.get_or_insert_with(|| {
            crate::platform::rt::spawn("watch", follow_changes(Rc::clone(api), store, api.changes(store)))
        });
        drop(state);
        Ok(Self { api: Rc::clone(api), store, number, client })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.api.watchers.state.borrow_mut();
        let Some(watched) = state.stores.get_mut(&self.store) else { return };
        watched.clients.remove(&self.number);
        if watched.clients.is_empty() {
            if let Some(task) = watched.task.take() {
                task.abort();
            }
            state.stores.remove(&self.store);
            self.api.forget_states(self.store);
        }
    }
}

async fn follow_changes(api: Rc<LocalApi>, store: Store, mut changes: Changes) {
    loop {
        changes.next().await;
        tokio::time::sleep(CROWD).await;
        api.look(store);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// All existing objects; with `true` a bookmark follows them.
    Everything(bool),
    /// The changes since this version.
    Since(u64),
}

fn beginning(options: &QueryOptions) -> Result<Beginning, Failure> {
    let asked = parse_version(&options.resource_version)?;
    let matching = options.resource_version_match.as_str();
    let bad = |message: &str| Err(status::bad_request(message));
    match options.initial_events {
        None if !matching.is_empty() => {
            return bad(
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        Some(_) if matching != "NotOlderThan" => {
            return bad(
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
        }
        Some(true) => return Ok(Beginning::Everything(true)),
        Some(false) | None => {}
    }
    Ok(match asked {
        None | Some(0) if options.initial_events.is_none() => Beginning::Everything(false),
        // None of the existing objects.
        None | Some(0) => Beginning::Since(u64::MAX),
        Some(version) => Beginning::Since(version),
    })
}

pub(super) fn watch(
    api: &Rc<LocalApi>,
    wanted: RequestInfo,
    view: View,
    user: &str,
) -> Result<Response<Body>, Failure> {
    let selector = read::selector(&wanted)?;
    let beginning = beginning(&wanted.options)?;
    let store = wanted.resource.store;
    // There is no await between them: no change is missed and none is sent twice.
    let membership = Membership::join(api, store, user)?;
    if !api.watchers.is_fresh(store) {
        api.look(store);
    }
    let first = match beginning {
        Beginning::Everything(_) => Ok(api.all(store)),
        Beginning::Since(u64::MAX) => Ok(Vec::new()),
        Beginning::Since(version) => api.since(store, version),
    };
    let (first, failure) = match first {
        Ok(changes) => {
            let count = changes.len();
            membership.client.begin(changes);
            (count, None)
        }
        Err(failure) => (0, Some(failure)),
    };
    let (pieces, body) = Body::in_pieces();
    let watch = Watch {
        bookmarks: wanted.options.bookmarks,
        replays: matches!(beginning, Beginning::Since(_)),
        initial: matches!(beginning, Beginning::Everything(true)).then(|| api.looked(store)),
        clock: api.clock.clone(),
        headed: true,
        wanted,
        selector,
        view,
        first,
        pieces,
        membership,
    };
    crate::platform::rt::spawn("watch of a client", async move {
        // Fails when the client has disconnected, which ends the watch.
        let _ = watch.send(failure).await;
    });
    Ok(body::response(StatusCode::OK, "application/json", body))
}

/// The client has disconnected, or is too slow.
struct IsOver;

struct Watch {
    wanted: RequestInfo,
    selector: Selector,
    view: View,
    clock: Clock,
    /// The table's column definitions have not been sent yet.
    headed: bool,
    /// The watch began with the changes since a version.
    replays: bool,
    /// How many of the first events are still in the queue.
    first: usize,
    /// The version of the bookmark after them.
    initial: Option<u64>,
    bookmarks: bool,
    pieces: Pieces,
    membership: Membership,
}

impl Watch {
    async fn send(mut self, failure: Option<Failure>) -> Result<(), IsOver> {
        if let Some(failure) = failure {
            // As an event: the response has already begun.
            return self.send_event("ERROR", &failure.to_value()).await;
        }
        let seconds = self.wanted.options.timeout_seconds.filter(|seconds| *seconds > 0);
        let end = seconds.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
        let client = Rc::clone(&self.membership.client);
        loop {
            if self.first == 0
                && let Some(version) = self.initial.take()
            {
                self.send_event("BOOKMARK", &self.view.bookmark(version, true)).await?;
            }
            if let Some(change) = client.next() {
                let replayed = self.replays && self.first > 0;
                self.first = self.first.saturating_sub(1);
                self.notify(&client, &change, replayed).await?;
                continue;
            }
            if client.has_ended.get() {
                return Err(IsOver);
            }
            client.most.set(MAX_WAITING);
            let ended = async {
                match end {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.pieces.closed() => return Err(IsOver),
                // The reason is examined in the next iteration.
                () = client.wakes.notified() => {}
                () = ended => {
                    if self.bookmarks {
                        let version = self.membership.api.looked(self.membership.store);
                        self.send_event("BOOKMARK", &self.view.bookmark(version, false)).await?;
                    }
                    return Ok(());
                }
            }
        }
    }

    async fn notify(&mut self, client: &WatchClient, change: &Change, replayed: bool) -> Result<(), IsOver> {
        if self.wanted.namespace.as_ref().is_some_and(|namespace| *namespace != change.name.0) {
            return Ok(());
        }
        let as_kept = self.view.shows_unchanged();
        if !(as_kept && self.selector.is_empty()) {
            self.membership.api.watchers.turns.next().await;
        }
        let Some(step) = self.step(change, replayed) else { return Ok(()) };
        let line = if as_kept {
            let head = format!("{{\"type\":\"{}\",\"object\":", step.as_str());
            Line { head, text: Rc::clone(&change.state), tail: "}\n" }
        } else {
            self.view.now = self.clock.now();
            let object = self.view.one(&change.state.parse(), self.headed);
            let retained = &self.membership.api.watchers.retained;
            let text = Written::unsent(line(step.as_str(), &object).into(), retained);
            Line { head: String::new(), text, tail: "" }
        };
        self.headed = false;
        client.line.replace(Some(line));
        self.membership.api.watchers.end_slowest();
        let mut sent = 0;
        while let Some(piece) = client.piece(sent) {
            sent += piece.len();
            // Dropping an arm is safe: a piece is lost only when the watch is over.
            tokio::select! {
                biased;
                () = client.ended() => return Err(IsOver),
                taken = self.pieces.send(Ok(piece)) => taken.map_err(|_| IsOver)?,
            }
            client.took.set(Instant::now());
        }
        client.line.take();
        Ok(())
    }

    /// What a change means to this client; `None`: nothing.
    fn step(&self, change: &Change, replayed: bool) -> Option<ObjectChange> {
        let is_chosen = |state: &Rc<Written>| {
            self.selector.is_empty() || self.selector.matches(&own(self.wanted.resource, &state.parse()))
        };
        match change.step {
            ObjectChange::Added => is_chosen(&change.state).then_some(ObjectChange::Added),
            ObjectChange::Deleted => {
                is_chosen(change.before.as_ref().unwrap_or(&change.state)).then_some(ObjectChange::Deleted)
            }
            ObjectChange::Modified => match (change.before.as_ref().map(is_chosen), is_chosen(&change.state))
            {
                (Some(false), true) => Some(ObjectChange::Added),
                (Some(true), false) => Some(ObjectChange::Deleted),
                (_, true) => Some(ObjectChange::Modified),
                // The previous state is unknown; a client that did not have the object ignores its deletion.
                (None, false) if replayed => Some(ObjectChange::Deleted),
                (_, false) => None,
            },
        }
    }

    async fn send_event(&self, kind: &str, object: &Value) -> Result<(), IsOver> {
        self.pieces.send(Ok(line(kind, object).into())).await.map_err(|_| IsOver)
    }
}

fn line(kind: &str, object: &Value) -> Vec<u8> {
    let mut line = json!({"type": kind, "object": object}).to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
