//! Which events are uploaded, and how.
//!
//! Pure: the recorder's list and what was sent in, uploads out. Owns what stays on this node.
//!
//! The recorder has combined and limited the events already, so the list is all there is to decide about.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::model::types::Timestamp;
use crate::pod::events::object::{event, namespace_and_name};
use crate::store::StoredEvent;

/// Older events stay here: the apiserver keeps events for an hour after it got them, and would show them as new.
const OLDEST: Duration = Duration::from_secs(3600);
/// Events of one object that are uploaded, the newest. After a long time offline, older ones say nothing new.
const MOST_OF_OBJECT: usize = 20;

/// A request for one event. An event has the same name each time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Upload {
    Create(EventUpload),
    /// A repetition of an event that the apiserver has.
    Patch(EventUpload),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EventUpload {
    pub namespace: String,
    pub name: String,
    pub count: u32,
    /// The event itself; of a repetition what has changed.
    pub body: Value,
}

/// What was sent, by namespace and name, with the number of repetitions: at most what the list has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UploadedEvents(BTreeMap<(String, String), u32>);

impl UploadedEvents {
    /// After a restart: what had not happened after `cursor` was sent then. Without a cursor everything is sent once
    /// more, which changes nothing at the apiserver but the count.
    #[must_use]
    pub(crate) fn restored(ring: &[StoredEvent], cursor: Timestamp) -> Self {
        let mut sent = Self::default();
        for known in ring.iter().filter(|known| known.last <= cursor) {
            sent.0.insert(key(known), known.count);
        }
        sent
    }

    /// This event was accepted with so many repetitions, or will never be.
    pub(crate) fn mark(&mut self, event: &EventUpload, count: u32) {
        self.0.insert((event.namespace.clone(), event.name.clone()), count);
    }

    /// The apiserver does not have this event any more.
    pub(crate) fn forget(&mut self, event: &EventUpload) {
        self.0.remove(&(event.namespace.clone(), event.name.clone()));
    }

    /// Forgets what the recorder has forgotten.
    pub(crate) fn retain(&mut self, ring: &[StoredEvent]) {
        let mut known = BTreeSet::new();
        known.extend(ring.iter().map(key));
        self.0.retain(|name, _| known.contains(name));
    }

    fn count(&self, name: &(String, String)) -> Option<u32> {
        self.0.get(name).copied()
    }
}

fn key(known: &StoredEvent) -> (String, String) {
    let (namespace, name) = namespace_and_name(known);
    (namespace.to_owned(), name)
}

/// What is to be uploaded, oldest first. `ring` is the recorder's list, oldest first.
#[must_use]
pub(crate) fn uploads(
    ring: &[StoredEvent],
    sent: &UploadedEvents,
    host: &str,
    now: Timestamp,
) -> Vec<Upload> {
    let mut of_object: BTreeMap<(&str, &str, &str, &str), usize> = BTreeMap::new();
    let mut uploads = Vec::new();
    for known in ring.iter().rev() {
        let of = &known.key;
        let seen = of_object.entry((&of.kind, &of.namespace, &of.name, &of.uid)).or_default();
        *seen += 1;
        if *seen > MOST_OF_OBJECT || now.saturating_since(known.last) > OLDEST {
            continue;
        }
        let name = key(known);
        match sent.count(&name) {
            Some(count) if count >= known.count => {}
            Some(_) => {
                let (count, last) = (known.count, known.last.to_rfc3339());
                let body = json!({"count": count, "lastTimestamp": last, "message": of.message});
                uploads.push(Upload::Patch(upload(name, count, body)));
            }
            None => uploads.push(Upload::Create(upload(name, known.count, event(known, host)))),
        }
    }
    uploads.reverse();
    uploads
}

fn upload((namespace, name): (String, String), count: u32, body: Value) -> EventUpload {
    EventUpload { namespace, name, count, body }
}

#[cfg(test)]
mod tests;
