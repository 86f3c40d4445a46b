//! Events that clients report: controllers in pods, `kubectl events` of others' tools.
//!
//! Owns them, in memory: the newest few, for an hour (upstream's default).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::model::types::Timestamp;

/// Some hundred bytes each.
const MOST: usize = 200;
/// A larger one is refused: its message has at most 1024 characters.
pub(super) const MAX_BYTES: usize = 8 * 1024;
const KEPT_FOR: Duration = Duration::from_secs(3600);

struct ClientEvent {
    namespace: String,
    name: String,
    /// Of the last write.
    at: Timestamp,
    /// As `v1` has it.
    json: Box<str>,
}

impl ClientEvent {
    fn is_at(&self, namespace: &str, name: &str) -> bool {
        self.namespace == namespace && self.name == name
    }
}

pub(super) struct ClientEvents {
    events: RefCell<VecDeque<ClientEvent>>,
    version: watch::Sender<u64>,
}

impl ClientEvents {
    pub(super) fn new() -> Self {
        Self { events: RefCell::default(), version: watch::Sender::new(0) }
    }

    /// Changes whenever the list does.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(super) fn all(&self, now: Timestamp) -> Vec<Value> {
        let events = self.events.borrow();
        let current = events.iter().filter(|event| now.saturating_since(event.at) < KEPT_FOR);
        current.filter_map(|event| serde_json::from_str(&event.json).ok()).collect()
    }

    pub(super) fn find(&self, namespace: &str, name: &str, now: Timestamp) -> Option<Value> {
        let events = self.events.borrow();
        let found = events.iter().find(|event| event.is_at(namespace, name))?;
        if now.saturating_since(found.at) >= KEPT_FOR {
            return None;
        }
        serde_json::from_str(&found.json).ok()
    }

    /// Puts an event in place of one of the same name, or of the oldest.
    pub(super) fn put(&self, (namespace, name): (&str, &str), event: &Value, now: Timestamp) {
        let mut events = self.events.borrow_mut();
        events.retain(|known| !known.is_at(namespace, name) && now.saturating_since(known.at) < KEPT_FOR);
        while events.len() >= MOST {
            events.pop_front();
        }
        events.push_back(ClientEvent {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            at: now,
            json: event.to_string().into(),
        });
        self.version.send_modify(|version| *version += 1);
    }

    pub(super) fn remove(&self, namespace: &str, name: &str) {
        self.events.borrow_mut().retain(|known| !known.is_at(namespace, name));
        self.version.send_modify(|version| *version += 1);
    }
}

/// The members of an event in `v1` and in `events.k8s.io/v1`, where they have other names.
pub(super) const NAMES: [(&str, &str); 8] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

/// An event of `events.k8s.io/v1` as `v1` has it.
pub(super) fn to_core(mut event: Value) -> Value {
    if let Some(members) = event.as_object_mut() {
        for (core, new) in NAMES {
            if let Some(member) = members.remove(new) {
                members.insert(core.to_owned(), member);
            }
        }
        members.insert("apiVersion".to_owned(), json!("v1"));
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(events: &ClientEvents, now: i64) -> Vec<String> {
        let name = |event: &Value| event["metadata"]["name"].as_str().unwrap().to_owned();
        events.all(Timestamp::from_secs(now)).iter().map(name).collect()
    }

    fn put(events: &ClientEvents, name: &str, now: i64) {
        let event = json!({"metadata": {"name": name, "namespace": "a"}, "count": now});
        events.put(("a", name), &event, Timestamp::from_secs(now));
    }

    #[test]
    fn the_newest_events_are_kept_for_an_hour() {
        let events = ClientEvents::new();
        for number in 0..=200 {
            put(&events, &number.to_string(), 1000 + number);
        }
        let found = names(&events, 1200);
        assert_eq!((found.len(), found[0].as_str()), (MOST, "1"), "the oldest went");
        put(&events, "1", 1300);
        let found = names(&events, 1300);
        assert_eq!((found.len(), found[0].as_str(), found[MOST - 1].as_str()), (MOST, "2", "1"));
        let at =
            |now: i64| events.find("a", "1", Timestamp::from_secs(now)).map(|event| event["count"].clone());
        assert_eq!((at(4899), at(4900)), (Some(json!(1300)), None));
        assert_eq!(names(&events, 4850), ["1"]);
        events.remove("a", "1");
        assert_eq!(at(1300), None);
        assert_eq!(*events.watch().borrow(), 203);
    }

    #[test]
    fn an_event_of_the_new_group_is_the_same_in_the_old_one() {
        let new = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "n"}, "note": "m",
            "regarding": {"kind": "Pod"}, "reportingController": "c", "reason": "r", "type": "Normal", "series": {"count": 2}});
        let core = to_core(new.clone());
        assert_eq!((&core["message"], &core["involvedObject"]["kind"]), (&json!("m"), &json!("Pod")));
        assert_eq!((&core["reportingComponent"], &core["apiVersion"]), (&json!("c"), &json!("v1")));
        assert_eq!(crate::serve::localapi::objects::new_event(&core), new);
    }
}
