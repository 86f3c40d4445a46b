//! Decodes rows into objects. A row that does not decode is reported and skipped: one bad row must not hide
//! the others.
//!
//! Owns leniency.

use super::load::RawLoaded;
use super::objects::{LAST_APPLIED, RawObject};
use super::records::{Loaded, StoredContainerState, StoredSource};
use super::rollout;
use super::rows::UnreadableRow;
use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;
use crate::model::api::schema::Schema;
use crate::model::api::schema::check::check;
use crate::model::back_off::BackOff;
use crate::model::objects::{LocalObject, ObjectContent, ObjectData, ObjectKind, wire};
use crate::model::ordered::Ordered as _;
use crate::model::ordered::Sortable as _;
use crate::model::source::{SourceObject, SourcePod};
use crate::model::types::{ContainerName, PodSource, PodUid, Timestamp};

use std::time::Duration;

use std::rc::Rc;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) fn loaded(raw: RawLoaded) -> Loaded {
    let mut loaded = Loaded::default();
    let mut unreadable = raw.unreadable;
    let mut pods = Pods { schema: Schema::load(), dropped: Vec::new() };
    for (name, validator) in raw.sources {
        match PodSource::from_name(&name) {
            Some(source) => {
                loaded.desired.push(StoredSource {
                    source,
                    pods: Vec::new(),
                    objects: Vec::new(),
                    validator,
                });
            }
            None => unreadable.push(unknown_source("source", name)),
        }
    }
    loaded.desired.order_by_key(|stored| stored.source);
    for (name, row) in raw.desired {
        let Some(pod) = pods.read("desired", &row.uid, &row.json, &mut unreadable) else { continue };
        let source = PodSource::from_name(&name);
        match loaded.desired.iter_mut().find(|stored| Some(stored.source) == source) {
            Some(stored) => stored.pods.push(SourcePod { pod: Rc::new(pod), origin: row.origin }),
            None => unreadable.push(unknown_source("desired", name)),
        }
    }
    for row in raw.objects {
        let source = PodSource::from_name(&row.source);
        let Some(stored) = loaded.desired.iter_mut().find(|stored| Some(stored.source) == source) else {
            unreadable.push(unknown_source("object", row.source));
            continue;
        };
        let key = format!("{} {}/{}", row.kind, row.namespace, row.name);
        let origin = row.origin.clone();
        match local_object(row) {
            Ok(object) => stored.objects.push(SourceObject { object: Rc::new(object), origin }),
            Err(message) => unreadable.push(UnreadableRow { table: "object", key, message }),
        }
    }
    for row in raw.rollouts {
        let Some(source) = PodSource::from_name(&row.source) else {
            unreadable.push(unknown_source("trial", row.source));
            continue;
        };
        let key = source.to_string();
        match rollout::decode_row(row, |pod| pods.fit("trial", &key, pod)) {
            Ok(phase) => drop(loaded.rollouts.insert(source, phase)),
            Err(message) => {
                unreadable.push(UnreadableRow { table: "trial", key, message });
            }
        }
    }
    for stored in &mut loaded.desired {
        stored.objects.order_by(|left, right| left.object.key.cmp(&right.object.key));
    }
    for (uid, text) in raw.terminating {
        loaded.terminating.extend(pods.read("terminating", &uid, &text, &mut unreadable));
    }
    for (uid, container, (count, delay, updated)) in raw.container_state {
        let back_off = delay.zip(updated).map(|(delay, updated)| BackOff {
            delay: Duration::from_nanos(u64::try_from(delay).unwrap_or_default()),
            updated: Timestamp::from_nanos(updated),
        });
        let restart_count = u32::try_from(count.max(0)).unwrap_or(u32::MAX);
        loaded
            .container_state
            .entry(PodUid::from(uid))
            .or_default()
            .insert(ContainerName::from(container), StoredContainerState { restart_count, back_off });
    }
    for (uid, json) in raw.statuses {
        if let Some(status) = object("status", &uid, &json, &mut unreadable) {
            loaded.statuses.insert(PodUid::from(uid), status);
        }
    }
    for (name, problem) in raw.problems {
        match PodSource::from_name(&name) {
            Some(source) => loaded.problems.entry(source).or_default().push(problem),
            None => unreadable.push(unknown_source("problem", name)),
        }
    }
    loaded.cluster = raw.cluster;
    loaded.meta = raw.meta.into_iter().into_map();
    loaded.unreadable = unreadable;
    loaded.dropped = pods.dropped;
    loaded
}

/// An object with its separately stored values; a Secret is complete or left out.
fn local_object(row: RawObject) -> Result<LocalObject, String> {
    let kind = ObjectKind::from_stored(&row.kind).ok_or("unknown kind")?;
    let value = serde_json::from_str(&row.json).map_err(|error| error.to_string())?;
    let mut object = wire::from_value(kind, value)?;
    if let ObjectContent::Secret { data, .. } = &mut object.content {
        let values: Result<ObjectData, String> =
            row.values.into_iter().map(|(key, value)| Ok((key, value?))).collect();
        *data = values?;
        if let Some(copy) = data.remove(LAST_APPLIED) {
            let copy = String::from_utf8(copy).map_err(|error| error.to_string())?;
            object.annotations.insert(wire::LAST_APPLIED.to_owned(), copy);
        }
    }
    Ok(object)
}

/// Reads pods. Parts that are kept as they were written may have values that their fields cannot hold:
/// earlier releases accepted them, and clients could not read such a pod. Reading continues without them.
struct Pods {
    schema: Schema,
    dropped: Vec<UnreadableRow>,
}

impl Pods {
    fn read(
        &mut self,
        table: &'static str,
        key: &str,
        json: &str,
        unreadable: &mut Vec<UnreadableRow>,
    ) -> Option<Pod> {
        let value = serde_json::from_str::<Value>(json).map_err(|error| error.to_string());
        readable(table, key, value.and_then(|value| self.fit(table, key, value)), unreadable)
    }

    fn fit(&mut self, table: &'static str, key: &str, mut value: Value) -> Result<Pod, String> {
        let read =
            |value| decode::<Pod>(value).map(|decoded| decoded.object).map_err(|error| error.to_string());
        let whole = read(value.clone())?;
        let findings = self.schema.of_kind("v1", "Pod").map(|of| check(&self.schema, of, &mut value));
        let misfits = findings.unwrap_or_default().misfits;
        if misfits.is_empty() {
            return Ok(whole);
        }
        self.dropped.extend(misfits.iter().map(|misfit| UnreadableRow {
            table,
            key: key.to_owned(),
            message: misfit.to_string(),
        }));
        read(value)
    }
}

fn object<T: DeserializeOwned>(
    table: &'static str,
    key: &str,
    json: &str,
    unreadable: &mut Vec<UnreadableRow>,
) -> Option<T> {
    let result = match serde_json::from_str::<Value>(json) {
        Ok(value) => decode::<T>(value).map(|decoded| decoded.object).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    readable(table, key, result, unreadable)
}

fn readable<T>(
    table: &'static str,
    key: &str,
    result: Result<T, String>,
    unreadable: &mut Vec<UnreadableRow>,
) -> Option<T> {
    match result {
        Ok(object) => Some(object),
        Err(message) => {
            unreadable.push(UnreadableRow { table, key: key.to_owned(), message });
            None
        }
    }
}

fn unknown_source(table: &'static str, name: String) -> UnreadableRow {
    UnreadableRow { table, key: name, message: "unknown source".to_owned() }
}
