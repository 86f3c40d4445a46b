//! Pending writes: the latest status per pod, events added up, container states that the disk refused.
//!
//! Owns the queue and its bounds.

use crate::model::ordered::Sortable as _;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::db::{Batch, MAX_EVENTS};
use super::records::{EventKey, StoredContainerState, StoredEvent};
use crate::model::api::pod::PodStatus;
use crate::model::containers::is_terminal;
use crate::model::types::{ContainerName, PodUid, Timestamp};

#[derive(Default)]
pub(crate) struct Pending {
    statuses: BTreeMap<PodUid, String>,
    events: BTreeMap<EventKey, StoredEvent>,
    /// Fingerprint of the last status queued per pod, so that an unchanged one does not even wake the writer.
    seen: BTreeMap<PodUid, u64>,
    refused: BTreeMap<(PodUid, ContainerName), StoredContainerState>,
    /// One of the statuses is of a pod that has ended.
    ends: bool,
}

impl Pending {
    /// True when the status means something new.
    pub(crate) fn put_status(&mut self, uid: &PodUid, status: &PodStatus) -> bool {
        let Some(json) = meaning(status) else { return false };
        let mut hasher = DefaultHasher::new();
        json.hash(&mut hasher);
        let fingerprint = hasher.finish();
        if self.seen.insert(uid.clone(), fingerprint) == Some(fingerprint) {
            return false;
        }
        self.statuses.insert(uid.clone(), json);
        self.ends |= is_terminal(status);
        true
    }

    /// Queues a state that the disk has refused; the latest one is kept.
    pub(crate) fn put_refused(&mut self, uid: PodUid, name: ContainerName, state: StoredContainerState) {
        self.refused.insert((uid, name), state);
    }

    /// A later one is on the disk.
    pub(crate) fn forget_refused(&mut self, uid: &PodUid, name: &ContainerName) {
        if !self.refused.is_empty() {
            self.refused.remove(&(uid.clone(), name.clone()));
        }
    }

    /// At the bound the oldest pending event is dropped.
    pub(crate) fn put_event(&mut self, event: StoredEvent) {
        if let Some(known) = self.events.get_mut(&event.key) {
            known.count = known.count.saturating_add(event.count);
            known.first = known.first.min(event.first);
            known.last = known.last.max(event.last);
            return;
        }
        if self.events.len() >= MAX_EVENTS as usize {
            let oldest: Option<(Timestamp, EventKey)> =
                self.events.values().map(|event| (event.last, &event.key)).min().map(|(t, k)| (t, k.clone()));
            if let Some((_, key)) = oldest {
                self.events.remove(&key);
            }
        }
        self.events.insert(event.key.clone(), event);
    }

    /// The pod has ended: nothing of it is written any more, and a new pod of that uid starts afresh.
    pub(crate) fn forget(&mut self, uid: &PodUid) {
        self.statuses.remove(uid);
        self.seen.remove(uid);
        self.refused.retain(|(owner, _), _| owner != uid);
    }

    /// The store did not keep the status; if the pod becomes known, the same status is written again.
    pub(crate) fn was_dropped(&mut self, uid: &PodUid) {
        if !self.statuses.contains_key(uid) {
            self.seen.remove(uid);
        }
    }

    /// All pending writes, oldest event first; `None` when there are none.
    pub(crate) fn take(&mut self) -> Option<Batch> {
        if self.statuses.is_empty() && self.events.is_empty() && self.refused.is_empty() {
            return None;
        }
        let statuses = std::mem::take(&mut self.statuses);
        let mut events: Vec<_> = std::mem::take(&mut self.events).into_values().collect();
        events.order_by_key(|event| event.last);
        Some(Batch {
            statuses: statuses.into_iter().map(|(uid, json)| (uid.to_string(), json)).collect(),
            events,
            container_states: std::mem::take(&mut self.refused)
                .into_iter()
                .map(|((uid, name), state)| (uid.to_string(), name.to_string(), state))
                .collect(),
            ends: std::mem::take(&mut self.ends),
        })
    }

    /// Queues a failed batch again; newer statuses win.
    pub(crate) fn requeue(&mut self, batch: Batch) {
        self.ends |= batch.ends;
        for (uid, json) in batch.statuses {
            let uid = PodUid::from(uid);
            // Forgotten meanwhile.
            if self.seen.contains_key(&uid) {
                self.statuses.entry(uid).or_insert(json);
            }
        }
        for event in batch.events {
            self.put_event(event);
        }
        for (uid, name, state) in batch.container_states {
            let key = (PodUid::from(uid), ContainerName::from(name));
            self.refused.entry(key).or_insert(state);
        }
    }
}

/// The status as stored: without the time of the last probe, which changes without a change of state.
fn meaning(status: &PodStatus) -> Option<String> {
    let mut status = status.clone();
    for condition in &mut status.conditions {
        condition.last_probe_time = None;
    }
    serde_json::to_string(&status).ok()
}
