//! Reads every table, undecoded.
//!
//! Owns what a pod is as a row, and which rows are left out.

use rusqlite::Connection;

use super::cluster::{ClusterRow, read_cluster};
use super::error::{Doing, StoreError};
use super::objects::{RawObject, read_objects};
use super::records::{EventKey, EventType, StoredEvent};
use super::rollout::{RawRollout, read_rollouts};
use super::rows::{UnreadableRow, collect, collect_readable};
use super::seal::StoreKey;
use crate::model::source::SourceProblem;
use crate::model::types::{PodSource, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodRow {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub origin: String,
    pub json: String,
}

#[derive(Default)]
pub(crate) struct RawLoaded {
    pub sources: Vec<(String, Option<String>)>,
    pub desired: Vec<(String, PodRow)>,
    pub objects: Vec<RawObject>,
    pub rollouts: Vec<RawRollout>,
    pub terminating: Vec<(String, String)>,
    pub container_state: Vec<(String, String, StoredContainerStateRow)>,
    pub statuses: Vec<(String, String)>,
    pub problems: Vec<(String, SourceProblem)>,
    pub meta: Vec<(String, String)>,
    pub cluster: Vec<ClusterRow>,
    pub unreadable: Vec<UnreadableRow>,
}

/// Restart count, back-off in nanoseconds, when it was set.
pub(crate) type StoredContainerStateRow = (i64, Option<i64>, Option<i64>);

/// Reads every table as one snapshot.
pub(crate) fn read_all(connection: &mut Connection, key: &StoreKey) -> Result<RawLoaded, StoreError> {
    let snapshot = connection.transaction().doing("begin reading")?;
    let mut bad = Vec::new();
    let pair = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let mut pairs = |of, statement| collect_readable(&snapshot, (of, 1), statement, [], &mut bad, pair);
    let terminating = pairs("terminating", "SELECT uid, json FROM terminating ORDER BY uid")?;
    let statuses = pairs("status", "SELECT uid, json FROM status")?;
    let meta = pairs("meta", "SELECT key, value FROM meta")?;
    let sources = "SELECT name, validator FROM source";
    Ok(RawLoaded {
        sources: collect_readable(&snapshot, ("source", 1), sources, [], &mut bad, |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?,
        desired: collect_readable(
            &snapshot,
            ("desired", 2),
            "SELECT source, uid, namespace, name, origin, json FROM desired
             ORDER BY source, namespace, name, uid",
            [],
            &mut bad,
            |row| {
                let pod = PodRow {
                    uid: row.get(1)?,
                    namespace: row.get(2)?,
                    name: row.get(3)?,
                    origin: row.get(4)?,
                    json: row.get(5)?,
                };
                Ok((row.get(0)?, pod))
            },
        )?,
        objects: read_objects(&snapshot, key, &mut bad)?,
        rollouts: read_rollouts(&snapshot, key, &mut bad)?,
        terminating,
        container_state: collect_readable(
            &snapshot,
            ("container_state", 2),
            "SELECT uid, container, restart_count, back_off_nanos, back_off_updated FROM container_state",
            [],
            &mut bad,
            |row| Ok((row.get(0)?, row.get(1)?, (row.get(2)?, row.get(3)?, row.get(4)?))),
        )?,
        statuses,
        problems: problems_of(&snapshot, None, &mut bad)?,
        meta,
        cluster: read_cluster(&snapshot, key, &mut bad)?,
        unreadable: bad,
    })
}

/// The problems of a source, or of all.
pub(super) fn problems_of(
    connection: &Connection,
    source: Option<PodSource>,
    unreadable: &mut Vec<UnreadableRow>,
) -> Result<Vec<(String, SourceProblem)>, StoreError> {
    collect_readable(
        connection,
        ("problem", 2),
        "SELECT source, origin, reason, message, since FROM problem
         WHERE ?1 IS NULL OR source = ?1 ORDER BY source, position",
        [source.map(PodSource::as_str)],
        unreadable,
        |row| {
            let problem = SourceProblem {
                origin: row.get(1)?,
                reason: row.get(2)?,
                message: row.get(3)?,
                since: Timestamp::from_nanos(row.get(4)?),
                pod: String::new(),
            };
            Ok((row.get(0)?, problem))
        },
    )
}

/// The ring, without events that cannot be read: they are history.
pub(crate) fn read_events(connection: &Connection) -> Result<Vec<StoredEvent>, StoreError> {
    collect(
        connection,
        "SELECT kind, namespace, name, uid, field_path, type, reason, message, count, first, last
         FROM event ORDER BY id",
        [],
        |row| {
            let event_type: String = row.get(5)?;
            Ok(StoredEvent {
                key: EventKey {
                    kind: row.get(0)?,
                    namespace: row.get(1)?,
                    name: row.get(2)?,
                    uid: row.get(3)?,
                    field_path: row.get(4)?,
                    event_type: EventType::from_name(&event_type),
                    reason: row.get(6)?,
                    message: row.get(7)?,
                },
                count: row.get(8)?,
                first: Timestamp::from_nanos(row.get(9)?),
                last: Timestamp::from_nanos(row.get(10)?),
            })
        },
    )
}
