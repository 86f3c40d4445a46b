//! Events: what happened to a pod or to the node, for users. Logged, kept in a short list in memory and, in
//! batches, in the store's ring.
//!
//! Owns rate limits and the memory list.

pub mod object;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;

use crate::model::objects::ObjectKey;
use crate::model::types::{PodRef, Timestamp};
use crate::platform::clock::Clock;
use crate::store::{EventKey, StoreHandle, StoredEvent};

pub(crate) use crate::store::EventType;

/// Events that `recent` shows; the store's ring holds more.
const MAX_RECENT: usize = 100;
/// Pairs of object and reason whose rate is tracked. Beyond this, the one that was quiet longest is dropped.
const MAX_WATCHED: usize = 1024;
/// Most characters of a message; a runtime's error may carry a whole log. The API's own bound.
const MAX_MESSAGE_CHARS: usize = 1024;
/// Burst of events of one object and reason, as in client-go's spam filter (there per object; here per reason
/// too, so that a crash loop does not silence a failing mount).
const RING_BURST: u32 = 25;
/// The burst for the log, which users read and which wears the same flash: fewer lines.
const LOG_BURST: u32 = 5;
/// Different messages of one object and reason that are recorded separately; further ones are combined into
/// one event, as in client-go.
const MAX_SIMILAR: usize = 10;
/// After this long without an event of its kind, messages are again recorded one by one.
const SIMILAR_FOR: Duration = Duration::from_secs(600);
/// How a combined event begins (upstream).
const COMBINED: &str = "(combined from similar events): ";
/// One event per this time after the burst; client-go's rate.
const REFILL: Duration = Duration::from_secs(300);

/// Records events. Clones share limits and list.
#[derive(Clone)]
pub struct EventRecorder {
    shared: Rc<RecorderInner>,
    logs: bool,
}

struct RecorderInner {
    node_name: String,
    clock: Clock,
    store: StoreHandle,
    state: RefCell<RecorderState>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct RecorderState {
    recent: VecDeque<StoredEvent>,
    /// By the hash of object and reason: the names would take ten times the memory, also of pods that are gone.
    watched: BTreeMap<u64, Watched>,
}

struct Watched {
    ring: Bucket,
    log: Bucket,
    /// Log lines withheld since the last one.
    suppressed: u32,
    /// Hashes of the messages that are recorded separately.
    similar: Vec<u64>,
    /// The message of the combined event. It does not change with each further message: that would be a new
    /// event in the ring.
    combined: Option<String>,
    last: Timestamp,
}

impl Watched {
    fn new(now: Timestamp) -> Self {
        Self {
            ring: Bucket::full(RING_BURST, now),
            log: Bucket::full(LOG_BURST, now),
            suppressed: 0,
            similar: Vec::new(),
            combined: None,
            last: now,
        }
    }

    /// The message to record: its own, or that of the combined event.
    fn combine(&mut self, message: &str, now: Timestamp) -> Option<String> {
        if now.saturating_since(self.last) > SIMILAR_FOR {
            self.similar.clear();
            self.combined = None;
        }
        let message_hash = hash_of(&message);
        if self.similar.len() < MAX_SIMILAR && !self.similar.contains(&message_hash) {
            self.similar.push(message_hash);
        }
        if self.similar.len() < MAX_SIMILAR {
            return None;
        }
        let first = || shortened(&format!("{COMBINED}{message}"));
        Some(self.combined.get_or_insert_with(first).clone())
    }
}

impl EventRecorder {
    /// `earlier` is the store's ring at start, oldest first.
    #[must_use]
    pub fn new(node_name: String, clock: Clock, store: StoreHandle, earlier: Vec<StoredEvent>) -> Self {
        let skip = earlier.len().saturating_sub(MAX_RECENT);
        let state =
            RecorderState { recent: earlier.into_iter().skip(skip).collect(), watched: BTreeMap::new() };
        let (state, version) = (RefCell::new(state), watch::Sender::new(0));
        Self { shared: Rc::new(RecorderInner { node_name, clock, store, state, version }), logs: true }
    }

    /// For callers that log in words of their own: the same list, no line in the log.
    #[must_use]
    pub(crate) fn without_log(self) -> Self {
        Self { logs: false, ..self }
    }

    /// Something happened to a pod, or to the part of it that `field_path` names (see [`container_path`]).
    pub(crate) fn event(
        &self,
        pod: &PodRef,
        field_path: Option<String>,
        event_type: EventType,
        reason: &str,
        message: &str,
    ) {
        self.record(EventKey {
            kind: "Pod".to_owned(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
            field_path: field_path.unwrap_or_default(),
            event_type,
            reason: reason.to_owned(),
            message: shortened(message),
        });
    }

    /// Something happened to an object of this node.
    pub(crate) fn object_event(
        &self,
        key: &ObjectKey,
        uid: &str,
        event_type: EventType,
        reason: &str,
        message: &str,
    ) {
        self.record(EventKey {
            kind: key.kind.as_str().to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: uid.to_owned(),
            field_path: String::new(),
            event_type,
            reason: reason.to_owned(),
            message: shortened(message),
        });
    }

    #[must_use]
    pub(crate) fn node_name(&self) -> &str {
        &self.shared.node_name
    }

    pub(crate) fn node_event(&self, event_type: EventType, reason: &str, message: &str) {
        let name = self.shared.node_name.clone();
        self.record(EventKey {
            kind: "Node".to_owned(),
            namespace: String::new(),
            // The kubelet names the node as its uid as well; clients find node events by that.
            uid: name.clone(),
            name,
            field_path: String::new(),
            event_type,
            reason: reason.to_owned(),
            message: shortened(message),
        });
    }

    /// The last events, oldest first, repetitions counted.
    #[must_use]
    pub fn recent(&self) -> Vec<StoredEvent> {
        self.shared.state.borrow().recent.iter().cloned().collect()
    }

    /// Changes whenever the list does.
    #[must_use]
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.shared.version.subscribe()
    }

    fn record(&self, key: EventKey) {
        let now = self.shared.clock.now();
        let mut event = StoredEvent { key, count: 1, first: now, last: now };
        let verdict = self.shared.state.borrow_mut().admit(&event.key, now);
        if let Some(suppressed) = verdict.log.filter(|_| self.logs) {
            log_event(&event.key, suppressed);
        }
        if verdict.ring {
            if let Some(combined) = verdict.combined {
                event.key.message = combined;
            }
            self.shared.state.borrow_mut().remember(&event);
            self.shared.version.send_modify(|version| *version += 1);
            self.shared.store.put_event(event);
        }
    }
}

/// `spec.containers{web}`: the part of a pod an event is about. `list` is `containers`, `initContainers` or
/// `ephemeralContainers`.
#[must_use]
pub(crate) fn container_path(list: &str, container: &str) -> String {
    format!("spec.{list}{{{container}}}")
}

struct EventVerdict {
    ring: bool,
    /// How many lines were withheld before this one.
    log: Option<u32>,
    /// Kept under this message instead of its own.
    combined: Option<String>,
}

impl RecorderState {
    fn admit(&mut self, key: &EventKey, now: Timestamp) -> EventVerdict {
        let watch = hash_of(&(&key.kind, &key.namespace, &key.name, &key.uid, &key.reason));
        if self.watched.len() >= MAX_WATCHED && !self.watched.contains_key(&watch) {
            let silent = self.watched.iter().min_by_key(|(_, watched)| watched.last);
            if let Some(silent) = silent.map(|(key, _)| *key) {
                self.watched.remove(&silent);
            }
        }
        let watched = self.watched.entry(watch).or_insert_with(|| Watched::new(now));
        let combined = watched.combine(&key.message, now);
        watched.last = now;
        let log = if watched.log.take(LOG_BURST, now) {
            Some(std::mem::take(&mut watched.suppressed))
        } else {
            watched.suppressed = watched.suppressed.saturating_add(1);
            None
        };
        EventVerdict { ring: watched.ring.take(RING_BURST, now), log, combined }
    }

    fn remember(&mut self, event: &StoredEvent) {
        let mut event = event.clone();
        if let Some(position) = self.recent.iter().position(|known| known.key == event.key)
            && let Some(known) = self.recent.remove(position)
        {
            event.count = event.count.saturating_add(known.count);
            event.first = known.first;
        }
        while self.recent.len() >= MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(event);
    }
}

fn hash_of(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Tokens that come back one per [`REFILL`].
struct Bucket {
    tokens: u32,
    /// When the refill of the next token began.
    since: Timestamp,
}

impl Bucket {
    fn full(burst: u32, now: Timestamp) -> Self {
        Self { tokens: burst, since: now }
    }

    fn take(&mut self, burst: u32, now: Timestamp) -> bool {
        let earned = now.saturating_since(self.since).as_secs() / REFILL.as_secs();
        if earned > 0 || self.tokens == burst || now < self.since {
            self.since = now;
        }
        self.tokens = self.tokens.saturating_add(u32::try_from(earned).unwrap_or(u32::MAX)).min(burst);
        match self.tokens.checked_sub(1) {
            Some(rest) => {
                self.tokens = rest;
                true
            }
            None => false,
        }
    }
}

/// The keys are those of the kubelet's log of events.
fn log_event(key: &EventKey, suppressed: u32) {
    let object =
        if key.namespace.is_empty() { key.name.clone() } else { format!("{}/{}", key.namespace, key.name) };
    let level = match key.event_type {
        EventType::Normal => log::Level::Info,
        EventType::Warning => log::Level::Warn,
    };
    if suppressed > 0 {
        log::log!(level, object:% = object, reason:% = key.reason, count = suppressed; "Events were dropped \
             from the log");
    }
    log::log!(
        level,
        object:% = object,
        fieldPath:% = key.field_path,
        kind:% = key.kind,
        "type":% = key.event_type.as_str(),
        reason:% = key.reason,
        message:% = key.message;
        "Event occurred"
    );
}

fn shortened(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::PodUid;
    use crate::store::{Mode, OpenOptions};

    fn pod(name: &str) -> PodRef {
        PodRef { namespace: "default".into(), name: name.into(), uid: PodUid::from(format!("uid-{name}")) }
    }

    fn key(message: &str, reason: &str) -> EventKey {
        EventKey { kind: "Pod".into(), reason: reason.into(), message: message.into(), ..EventKey::default() }
    }

    fn in_runtime(job: impl AsyncFnOnce(StoreHandle)) {
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..Default::default() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(job(store.unwrap()));
    }

    #[test]
    fn events_reach_the_list_and_the_store_with_repetitions_counted() {
        in_runtime(async |store| {
            let start = Timestamp::from_secs(1000);
            let recorder = EventRecorder::new("n1".into(), Clock::manual(start), store.clone(), vec![]);
            let path = container_path("containers", "main");
            assert_eq!(path, "spec.containers{main}");
            recorder.event(&pod("web"), Some(path.clone()), EventType::Normal, "Pulled", "Pulled it");
            recorder.node_event(EventType::Normal, "Starting", "Starting kubelet.");
            recorder.event(&pod("web"), Some(path.clone()), EventType::Normal, "Pulled", "Pulled it");
            let recent = recorder.recent();
            let short: Vec<_> =
                recent.iter().map(|e| (e.key.reason.as_str(), e.key.uid.as_str(), e.count)).collect();
            assert_eq!(short, [("Starting", "n1", 1), ("Pulled", "uid-web", 2)]);
            assert_eq!(recent[1].key.field_path, path);
            store.flush().await.unwrap();
            assert_eq!(store.events().await.unwrap().iter().map(|e| e.count).sum::<u32>(), 3);
        });
    }

    #[test]
    fn noisy_event_reason_is_rate_limited_alone() {
        let mut state = RecorderState::default();
        let at = |seconds: i64| Timestamp::from_secs(1_000_000 + seconds);
        let (mut logged, mut kept) = (0, 0);
        for number in 0..100 {
            let verdict = state.admit(&key(&format!("{number}"), "BackOff"), at(0));
            logged += u32::from(verdict.log.is_some());
            kept += u32::from(verdict.ring);
        }
        assert_eq!((logged, kept), (LOG_BURST, RING_BURST));
        let other = state.admit(&key("m", "FailedMount"), at(0));
        assert!(other.ring && other.log == Some(0));
        assert_eq!(state.admit(&key("x", "BackOff"), at(299)).log, None);
        let later = state.admit(&key("x", "BackOff"), at(301));
        assert_eq!(later.log, Some(96), "tells how many were withheld");
        assert_eq!(state.admit(&key("x", "BackOff"), at(302)).log, None, "one token came back, not more");
    }

    #[test]
    fn similar_events_are_combined_until_a_quiet_period() {
        let mut state = RecorderState::default();
        let at = |seconds: i64| Timestamp::from_secs(1_000_000 + seconds);
        let mut kept = |message: &str, seconds: i64| {
            let key = key(message, "Unhealthy");
            state.admit(&key, at(seconds)).combined.unwrap_or(key.message)
        };
        for number in 0..9 {
            assert_eq!(kept(&format!("probe {number} failed"), number), format!("probe {number} failed"));
        }
        let combined = "(combined from similar events): probe 9 failed";
        assert_eq!(kept("probe 9 failed", 9), combined);
        assert_eq!(kept("probe 10 failed", 10), combined, "one event that is counted");
        assert_eq!(kept("probe 0 failed", 600), combined);
        assert_eq!(kept("probe 0 failed", 1201), "probe 0 failed");
    }

    #[test]
    fn memory_is_bounded_whatever_is_recorded() {
        let mut state = RecorderState::default();
        for number in 0..3 * MAX_WATCHED {
            let now = Timestamp::from_secs(i64::try_from(number).unwrap());
            let key = key("m", &format!("Reason{number}"));
            state.admit(&key, now);
            state.remember(&StoredEvent { key, count: 1, first: now, last: now });
        }
        assert_eq!((state.watched.len(), state.recent.len()), (MAX_WATCHED, MAX_RECENT));
        let message = shortened(&"é".repeat(5000));
        assert_eq!(message.chars().count(), MAX_MESSAGE_CHARS + 3);
    }

    #[test]
    fn a_clock_set_back_neither_blocks_nor_floods() {
        let mut bucket = Bucket::full(2, Timestamp::from_secs(10_000));
        assert!(bucket.take(2, Timestamp::from_secs(10_000)));
        assert!(bucket.take(2, Timestamp::from_secs(100)));
        assert!(!bucket.take(2, Timestamp::from_secs(150)));
        assert!(bucket.take(2, Timestamp::from_secs(401)), "counts from the new time");
    }
}
