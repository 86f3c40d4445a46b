//! Rollouts of sources (see `desired::rollout`): one record each, written in the transaction of the desired
//! set they belong to.
//!
//! Owns the record's format and its table. A record holds the values of Secrets, so it is sealed as they are;
//! with a key that cannot be used it is not written.

use std::rc::Rc;

use rusqlite::{Connection, Transaction, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::StoreError;
use super::rows::{UnreadableRow, collect, collect_readable, execute};
use super::seal::{SealContext, StoreKey};
use crate::model::api::pod::Pod;
use crate::model::objects::{ObjectKind, wire};
use crate::model::source::{SourceObject, SourcePod, SourceSet};
use crate::model::types::{PodSource, Timestamp};

#[derive(Clone, Debug, Default, PartialEq)]
pub enum RolloutPhase {
    /// The desired set is good: it started as a whole, or existed before rollouts were enabled.
    #[default]
    Good,
    /// The source's first set: there is no earlier one for a rollback.
    Unproven,
    /// A new set is being started; `last_good` was good before.
    Progressing {
        /// The set that is restored if it fails.
        last_good: SourceSet,
        /// Identifies the source's new answer.
        digest: String,
        /// Parts of the time; at zero it is over.
        parts_left: u8,
    },
    /// The last good set runs again, instead of the source's current one.
    RolledBack {
        /// Identifies the source's answer that failed.
        digest: String,
        /// Which pods did not start, and why.
        why: String,
        /// When the rollout was abandoned.
        since: Timestamp,
    },
}

/// A phase as a row; [`RolloutPhase::Good`] has none. No `Debug`: it holds values of Secrets.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RolloutRow {
    /// A separate column: it changes often, and the record may be long.
    parts_left: u8,
    record: Vec<u8>,
}

/// A row as read; the record opened.
pub(crate) struct RawRollout {
    pub source: String,
    parts_left: i64,
    record: Result<Vec<u8>, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum RolloutRecord {
    Unproven,
    #[serde(rename = "trial")]
    Progressing {
        digest: String,
        pods: Vec<Item>,
        objects: Vec<ObjectItem>,
    },
    RolledBack {
        digest: String,
        why: String,
        since_nanos: i64,
    },
}

#[derive(Serialize, Deserialize)]
struct Item {
    origin: String,
    pod: Value,
}

#[derive(Serialize, Deserialize)]
struct ObjectItem {
    origin: String,
    kind: String,
    object: Value,
}

/// The row of a phase.
pub(super) fn encode(source: PodSource, phase: &RolloutPhase) -> Result<Option<RolloutRow>, StoreError> {
    let failed = |error| StoreError::Encode { what: format!("the trial of source {source}"), source: error };
    let mut left = 0;
    let record = match phase {
        RolloutPhase::Good => return Ok(None),
        RolloutPhase::Unproven => RolloutRecord::Unproven,
        RolloutPhase::Progressing { last_good, digest, parts_left } => {
            left = *parts_left;
            let pods = last_good.pods.iter().map(|pod| {
                Ok(Item { origin: pod.origin.clone(), pod: serde_json::to_value(&*pod.pod).map_err(failed)? })
            });
            let objects = last_good.objects.iter().map(|object| ObjectItem {
                origin: object.origin.clone(),
                kind: object.object.key.kind.as_str().to_owned(),
                object: wire::to_value(&object.object, wire::Values::Shown),
            });
            RolloutRecord::Progressing {
                digest: digest.clone(),
                pods: pods.collect::<Result<_, StoreError>>()?,
                objects: objects.collect(),
            }
        }
        RolloutPhase::RolledBack { digest, why, since } => RolloutRecord::RolledBack {
            digest: digest.clone(),
            why: why.clone(),
            since_nanos: since.as_nanos(),
        },
    };
    Ok(Some(RolloutRow { parts_left: left, record: serde_json::to_vec(&record).map_err(failed)? }))
}

pub(super) fn decode_row(
    row: RawRollout,
    mut read: impl FnMut(Value) -> Result<Pod, String>,
) -> Result<RolloutPhase, String> {
    let record = serde_json::from_slice(&row.record?).map_err(|error| error.to_string())?;
    Ok(match record {
        RolloutRecord::Unproven => RolloutPhase::Unproven,
        RolloutRecord::Progressing { digest, pods, objects } => RolloutPhase::Progressing {
            last_good: SourceSet {
                pods: pods.into_iter().map(|item| pod(item, &mut read)).collect::<Result<_, _>>()?,
                objects: objects.into_iter().map(object).collect::<Result<_, _>>()?,
            },
            digest,
            parts_left: u8::try_from(row.parts_left).unwrap_or_default(),
        },
        RolloutRecord::RolledBack { digest, why, since_nanos } => {
            RolloutPhase::RolledBack { digest, why, since: Timestamp::from_nanos(since_nanos) }
        }
    })
}

fn pod(item: Item, read: &mut impl FnMut(Value) -> Result<Pod, String>) -> Result<SourcePod, String> {
    Ok(SourcePod { pod: Rc::new(read(item.pod)?), origin: item.origin })
}

fn object(item: ObjectItem) -> Result<SourceObject, String> {
    let kind = ObjectKind::from_stored(&item.kind).ok_or("unknown kind")?;
    Ok(SourceObject { object: Rc::new(wire::from_value(kind, item.object)?), origin: item.origin })
}

fn place(source: &str) -> SealContext<'_> {
    // No Secret is in a namespace without a name.
    SealContext { source, namespace: "", name: source, key: "trial" }
}

/// Makes `row` the phase of a source, if it changed; how many rows were written or removed.
pub(super) fn put_rollout(
    transaction: &Transaction<'_>,
    key: &StoreKey,
    source: PodSource,
    row: Option<&RolloutRow>,
) -> Result<usize, StoreError> {
    let source = source.as_str();
    let remove = || execute(transaction, "DELETE FROM trial WHERE source = ?1", [source]);
    let Some(row) = row else { return remove() };
    let stored: Vec<(String, Vec<u8>)> =
        collect(transaction, "SELECT key_id, record FROM trial WHERE source = ?1", [source], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let is_same = stored.iter().any(|(key_id, stored)| {
        key_id == key.id() && key.open(place(source), key_id, stored).is_ok_and(|known| known == row.record)
    });
    if is_same {
        return execute(
            transaction,
            "UPDATE trial SET parts_left = ?2 WHERE source = ?1 AND parts_left <> ?2",
            params![source, row.parts_left],
        );
    }
    // Better lost than wrong: a rollout that is not stored counts as complete after a restart.
    let Some(sealed) = key.seal(place(source), &row.record)? else { return remove() };
    execute(
        transaction,
        "INSERT INTO trial (source, parts_left, key_id, record) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (source) DO UPDATE SET parts_left = excluded.parts_left, key_id = excluded.key_id,
            record = excluded.record",
        params![source, row.parts_left, key.id(), sealed],
    )
}

/// Every phase that is not [`RolloutPhase::Good`].
pub(super) fn read_rollouts(
    connection: &Connection,
    key: &StoreKey,
    unreadable: &mut Vec<UnreadableRow>,
) -> Result<Vec<RawRollout>, StoreError> {
    let rows: Vec<(String, i64, String, Vec<u8>)> = collect_readable(
        connection,
        ("trial", 1),
        "SELECT source, parts_left, key_id, record FROM trial ORDER BY source",
        [],
        unreadable,
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
    )?;
    let opened = |(source, parts_left, key_id, record): (String, i64, String, Vec<u8>)| {
        let record = key.open(place(&source), &key_id, &record);
        RawRollout { source, parts_left, record }
    };
    Ok(rows.into_iter().map(opened).collect())
}

#[cfg(test)]
mod tests;
