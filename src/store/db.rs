//! The connection and every write. Runs on the owner thread, or in the caller when the store is inline.
//!
//! Owns transactions and how durable each is.
//!
//! Guarantees: desired state, terminating pods and container state are on the disk (WAL synced,
//! `synchronous=FULL`) when the call returns, because the caller acts on them next: a power cut between
//! starting a container and storing its restart count would turn a crash loop into a busy one. So is the
//! status of a pod that has ended: its work would be repeated otherwise. Other statuses, problems, facts and
//! events use `NORMAL`: a power cut may lose those that the kernel has not written yet (half a minute, or
//! until the next synchronised call), which costs history only, and a sync per event would wear out flash.
//! Neither level can corrupt the file. A call that changes nothing writes nothing.

use std::collections::BTreeSet;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::cluster::{ClusterKey, ClusterRow, forget_cluster, put_cluster};
use super::error::{Doing, StoreError};
use super::load::{PodRow, RawLoaded, problems_of, read_all, read_events};
use super::objects::{ObjectRow, drop_object, has_sealed, put_object, put_objects, seal_rows};
use super::records::{StoredContainerState, StoredEvent};
use super::rollout::{RolloutRow, put_rollout};
use super::rows::{collect, execute};
use super::schema::mark_joined;
use super::seal::StoreKey;
use crate::model::source::SourceProblem;
use crate::model::types::{PodSource, Timestamp};

pub const MAX_EVENTS: u32 = 1000;
/// Events not seen for this long are deleted. The API server keeps them for an hour; a device that is only
/// visited on Mondays needs longer.
pub const MAX_EVENT_AGE: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);

/// Whether a power cut may lose a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// On the disk when the call returns.
    Full,
    /// On the disk at the next checkpoint, or with the next full write.
    Normal,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    pub written: usize,
    /// Pods that moved to the terminating ones.
    pub removed: usize,
}

/// What a commit does to the source's rollout.
pub(crate) enum RolloutChange {
    #[cfg(test)]
    Keep,
    To(Option<RolloutRow>),
}

/// Rows that change, each with its source.
#[derive(Default)]
pub(crate) struct SetRows {
    pub pods: Vec<(PodSource, PodRow)>,
    pub gone_pods: Vec<(PodSource, String)>,
    pub objects: Vec<(PodSource, ObjectRow)>,
    /// Kind, namespace and name.
    pub gone_objects: Vec<(PodSource, &'static str, String, String)>,
}

/// The write-behind data of one transaction.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub statuses: Vec<(String, String)>,
    pub events: Vec<StoredEvent>,
    /// Container states that the disk has refused: pod, container.
    pub container_states: Vec<(String, String, StoredContainerState)>,
    /// A pod has ended: its status must be durable, or its work would be repeated.
    pub ends: bool,
}

pub(crate) struct Db {
    /// `None` after [`Db::close`].
    connection: Option<Connection>,
    durability: Option<Durability>,
    key: StoreKey,
    /// A sync may have failed. The kernel then marks the affected pages as written, and later syncs leave
    /// them out: what can be read from the log may not be on the disk, and all later commits would be lost
    /// with it.
    suspect: bool,
    /// Held as long as the connection; released by the kernel when the process dies.
    lock: Option<std::fs::File>,
}

impl Db {
    pub(crate) fn new(connection: Connection) -> Self {
        let key = StoreKey::None;
        Self { connection: Some(connection), durability: None, key, suspect: false, lock: None }
    }

    /// Keeps the lock as long as the connection.
    pub(super) fn hold(&mut self, lock: std::fs::File) {
        self.lock = Some(lock);
    }

    /// Whether values are sealed.
    pub(super) fn has_key(&self) -> bool {
        matches!(self.key, StoreKey::Sealed(_))
    }

    /// Sets the key, and refuses one that would weaken a store; nothing secret is written then.
    pub(super) fn set_key(&mut self, key: StoreKey, path: &Path, encrypted: bool) -> Result<(), StoreError> {
        let refused = match &key {
            StoreKey::None => encrypted || has_sealed(self.connection()?, None).unwrap_or(true),
            StoreKey::Sealed(key) => {
                key.is_text() && !has_sealed(self.connection()?, Some(key.ids())).unwrap_or(false)
            }
            StoreKey::Off | StoreKey::Unusable { .. } => false,
        };
        let trouble = match &key {
            StoreKey::None if refused => Some(StoreError::NoKey { path: path.to_owned() }),
            StoreKey::Sealed(key) if key.is_text() => Some(StoreError::TextKey),
            _ => None,
        };
        self.key = match &trouble {
            Some(trouble) if refused => StoreKey::Unusable { reason: trouble.to_string() },
            _ => key,
        };
        trouble.map_or(Ok(()), Err)
    }

    /// Encrypts what is stored in the clear; returns how many rows were written. `before` is called before
    /// the first of them is on the disk.
    pub(super) fn seal_values(
        &mut self,
        before: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<usize, StoreError> {
        let key = self.key.clone();
        self.write(Durability::Full, "encrypt values", |transaction| {
            let written = seal_rows(transaction, &key)?;
            if written > 0 {
                before()?;
            }
            Ok(written)
        })
    }

    /// Leaves no old bytes in the file and its log. False when a reader is in the way.
    pub(super) fn rewrite(&mut self) -> Result<bool, StoreError> {
        // Pages that were split or moved may hold old bytes in their gaps, and the log holds old pages.
        self.connection()?.execute_batch("VACUUM").doing("rewrite the store after encrypting values")?;
        self.checkpoint()
    }

    /// Checkpoints and closes. Later calls answer [`StoreError::Closed`].
    pub(crate) fn close(&mut self) -> Result<(), StoreError> {
        let Some(connection) = self.connection.take() else { return Ok(()) };
        let closed = connection.close().map_err(|(_, error)| StoreError::sqlite("close the store", error));
        // After the connection is closed, so that the next owner finds a file that is not in use.
        self.lock = None;
        closed
    }

    #[cfg(test)]
    pub(crate) fn execute_for_test(&mut self, statement: &str) {
        let connection = self.connection().unwrap();
        let mut statement = connection.prepare(statement).unwrap();
        drop(statement.query([]).unwrap().next());
    }

    fn connection(&mut self) -> Result<&mut Connection, StoreError> {
        self.connection.as_mut().ok_or(StoreError::Closed)
    }

    /// A write transaction at the requested durability, on top of durable data only.
    fn write<T>(
        &mut self,
        durability: Durability,
        action: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if self.suspect {
            self.suspect = !self.checkpoint()?;
        }
        let result = self.transact(durability, action, job);
        self.suspect |= matches!(result, Err(StoreError::Io { .. }));
        result
    }

    /// Checkpoints the whole log into the file, syncs it, and truncates the log. False when a reader is in
    /// the way.
    fn checkpoint(&mut self) -> Result<bool, StoreError> {
        self.durability = None;
        let connection = self.connection()?;
        connection.pragma_update(None, "synchronous", "FULL").doing("set the sync level")?;
        let busy: i64 = connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .doing("write the log into the store")?;
        Ok(busy == 0)
    }

    /// `synchronous` is a setting of the connection and costs no write.
    fn transact<T>(
        &mut self,
        durability: Durability,
        action: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let current = self.durability;
        let connection = self.connection()?;
        if current != Some(durability) {
            let level = if durability == Durability::Full { "FULL" } else { "NORMAL" };
            connection.pragma_update(None, "synchronous", level).doing("set the sync level")?;
        }
        // Immediate: a transaction that begins by reading and writes later is refused at once while another
        // process (a person with sqlite3) writes, instead of waiting its turn. It takes a lock, and still
        // writes nothing when nothing changed.
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(action)?;
        let value = job(&transaction)?;
        transaction.commit().doing(action)?;
        self.durability = Some(durability);
        Ok(value)
    }

    pub(crate) fn commit_source(
        &mut self,
        source: PodSource,
        pods: &[PodRow],
        objects: &[ObjectRow],
        validator: Option<&str>,
        rollout: &RolloutChange,
    ) -> Result<Commit, StoreError> {
        let action = "commit desired pods";
        let key = self.key.clone();
        self.write(Durability::Full, action, |transaction| {
            let mut commit = Commit { written: put_source(transaction, source, validator)?, removed: 0 };
            if source == PodSource::Cluster {
                mark_joined(transaction)?;
            }
            commit.written += put_objects(transaction, &key, source, objects)?;
            match rollout {
                #[cfg(test)]
                RolloutChange::Keep => {}
                RolloutChange::To(row) => {
                    commit.written += put_rollout(transaction, &key, source, row.as_ref())?;
                }
            }
            let mut wanted = BTreeSet::new();
            for pod in pods {
                // The first of two pods with one uid is used, as in the merge.
                if wanted.insert(pod.uid.as_str()) {
                    commit.written += put_desired(transaction, source, pod)?;
                }
            }
            for (row, uid) in uids_of(transaction, source)? {
                match uid {
                    Some(uid) if wanted.contains(uid.as_str()) => {}
                    Some(uid) => {
                        drop_desired(transaction, source, &uid)?;
                        commit.removed += 1;
                    }
                    None => {
                        commit.written +=
                            execute(transaction, "DELETE FROM desired WHERE rowid = ?1", [row])?;
                    }
                }
            }
            Ok(commit)
        })
    }

    /// Writes and removes single rows of sources; the others stay. Pods that are removed are terminating from then on.
    /// Returns what [`Self::write_batch`] does of the batch, which is written in the same transaction.
    pub(crate) fn commit_rows(&mut self, rows: &SetRows, batch: &Batch) -> Result<Vec<String>, StoreError> {
        let key = self.key.clone();
        self.write(Durability::Full, "commit a change", |transaction| {
            for (source, pod) in &rows.pods {
                mark_answered(transaction, *source)?;
                put_desired(transaction, *source, pod)?;
            }
            for (source, uid) in &rows.gone_pods {
                drop_desired(transaction, *source, uid)?;
            }
            for (source, object) in &rows.objects {
                mark_answered(transaction, *source)?;
                put_object(transaction, &key, *source, object)?;
            }
            for (source, kind, namespace, name) in &rows.gone_objects {
                drop_object(transaction, &key, *source, [*kind, namespace.as_str(), name.as_str()])?;
            }
            write_batch(transaction, batch)
        })
    }

    /// The rollout alone.
    pub(crate) fn put_rollout(
        &mut self,
        source: PodSource,
        row: Option<&RolloutRow>,
    ) -> Result<(), StoreError> {
        let key = self.key.clone();
        self.write(Durability::Full, "store a trial", |transaction| {
            put_rollout(transaction, &key, source, row).map(drop)
        })
    }

    /// Writes and removes rows of the cluster; the ones that are as they were are not written.
    pub(crate) fn put_cluster(&mut self, rows: &[ClusterRow], gone: &[ClusterKey]) -> Result<(), StoreError> {
        let key = self.key.clone();
        self.write(Durability::Full, "store what the cluster has shown", |transaction| {
            put_cluster(transaction, &key, rows, gone).map(drop)
        })
    }

    pub(crate) fn forget_cluster(&mut self) -> Result<(), StoreError> {
        let key = self.key.clone();
        self.write(Durability::Full, "forget the cluster", |transaction| forget_cluster(transaction, &key))
    }

    /// Updates a terminating pod only: a pod that a source wants again starts over.
    pub(crate) fn put_terminating(&mut self, uid: &str, json: &str) -> Result<(), StoreError> {
        self.write(Durability::Full, "store a terminating pod", |transaction| {
            execute(
                transaction,
                "UPDATE terminating SET json = ?2 WHERE uid = ?1 AND json <> ?2",
                params![uid, json],
            )
            .map(drop)
        })
    }

    pub(crate) fn forget_pod(&mut self, uid: &str) -> Result<(), StoreError> {
        self.write(Durability::Full, "delete a pod", |transaction| {
            // The desired rows stay: they belong to the sources, and a pod may be wanted again under the same
            // uid.
            for statement in [
                "DELETE FROM terminating WHERE uid = ?1",
                "DELETE FROM container_state WHERE uid = ?1",
                "DELETE FROM status WHERE uid = ?1",
            ] {
                execute(transaction, statement, [uid])?;
            }
            Ok(())
        })
    }

    pub(crate) fn put_container_state(
        &mut self,
        uid: &str,
        container: &str,
        state: StoredContainerState,
    ) -> Result<(), StoreError> {
        self.write(Durability::Full, "write container state", |transaction| {
            write_container_state(transaction, uid, container, state)
        })
    }

    pub(crate) fn put_problems(
        &mut self,
        source: PodSource,
        problems: &[SourceProblem],
    ) -> Result<(), StoreError> {
        self.write(Durability::Normal, "write source problems", |transaction| {
            let stored = problems_of(transaction, Some(source), &mut Vec::new())?;
            if stored.iter().map(|(_, problem)| problem).eq(problems) {
                return Ok(());
            }
            execute(transaction, "DELETE FROM problem WHERE source = ?1", [source.as_str()])?;
            for (position, problem) in problems.iter().enumerate() {
                execute(
                    transaction,
                    "INSERT INTO problem (source, position, origin, reason, message, since)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![
                        source.as_str(),
                        i64::try_from(position).unwrap_or(i64::MAX),
                        problem.origin,
                        problem.reason,
                        problem.message,
                        problem.since.as_nanos()
                    ],
                )?;
            }
            Ok(())
        })
    }

    pub(crate) fn put_meta(&mut self, key: &str, value: Option<&str>) -> Result<(), StoreError> {
        self.write(Durability::Normal, "write a fact", |transaction| {
            match value {
                Some(value) => execute(
                    transaction,
                    "INSERT INTO meta VALUES (?1, ?2)
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE value <> excluded.value",
                    [key, value],
                ),
                None => execute(transaction, "DELETE FROM meta WHERE key = ?1", [key]),
            }
            .map(drop)
        })
    }

    /// Returns the uids of statuses that were not stored because the pod is neither desired nor terminating:
    /// such rows would never be deleted.
    pub(crate) fn write_batch(&mut self, batch: &Batch) -> Result<Vec<String>, StoreError> {
        let is_kept = batch.ends || !batch.container_states.is_empty();
        let durability = if is_kept { Durability::Full } else { Durability::Normal };
        self.write(durability, "write statuses and events", |transaction| write_batch(transaction, batch))
    }

    pub(crate) fn events(&mut self) -> Result<Vec<StoredEvent>, StoreError> {
        read_events(self.connection()?)
    }

    pub(crate) fn load(&mut self) -> Result<RawLoaded, StoreError> {
        let key = self.key.clone();
        read_all(self.connection()?, &key)
    }
}

fn write_container_state(
    transaction: &Transaction<'_>,
    uid: &str,
    container: &str,
    state: StoredContainerState,
) -> Result<(), StoreError> {
    let delay = state.back_off.map(|back_off| i64::try_from(back_off.delay.as_nanos()).unwrap_or(i64::MAX));
    let updated = state.back_off.map(|back_off| back_off.updated.as_nanos());
    execute(
        transaction,
        "INSERT INTO container_state VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (uid, container) DO UPDATE SET restart_count = excluded.restart_count,
            back_off_nanos = excluded.back_off_nanos, back_off_updated = excluded.back_off_updated
         WHERE restart_count IS NOT excluded.restart_count
            OR back_off_nanos IS NOT excluded.back_off_nanos
            OR back_off_updated IS NOT excluded.back_off_updated",
        params![uid, container, state.restart_count, delay, updated],
    )
    .map(drop)
}

fn put_source(
    transaction: &Transaction<'_>,
    source: PodSource,
    validator: Option<&str>,
) -> Result<usize, StoreError> {
    execute(
        transaction,
        "INSERT INTO source (name, validator) VALUES (?1, ?2)
         ON CONFLICT (name) DO UPDATE SET validator = excluded.validator
         WHERE validator IS NOT excluded.validator",
        params![source.as_str(), validator],
    )
}

fn write_batch(transaction: &Transaction<'_>, batch: &Batch) -> Result<Vec<String>, StoreError> {
    let mut strangers = Vec::new();
    for (uid, container, state) in &batch.container_states {
        // A later one may have been written meanwhile, and counts only grow.
        let is_old = transaction
            .query_row(
                "SELECT restart_count > ?3 FROM container_state WHERE uid = ?1 AND container = ?2",
                params![uid, container, state.restart_count],
                |row| row.get(0),
            )
            .optional()
            .doing("look up container state")?;
        if is_old != Some(true) && is_known(transaction, uid)? {
            write_container_state(transaction, uid, container, *state)?;
        }
    }
    for (uid, json) in &batch.statuses {
        if is_known(transaction, uid)? {
            execute(
                transaction,
                "INSERT INTO status (uid, json) VALUES (?1, ?2)
                 ON CONFLICT (uid) DO UPDATE SET json = excluded.json WHERE json <> excluded.json",
                [uid, json],
            )?;
        } else {
            strangers.push(uid.clone());
        }
    }
    for event in &batch.events {
        put_event(transaction, event)?;
    }
    if let Some(now) = batch.events.iter().map(|event| event.last).max() {
        trim_events(transaction, now)?;
    }
    Ok(strangers)
}

/// The source has given a valid answer; what it said to continue from stays.
fn mark_answered(transaction: &Transaction<'_>, source: PodSource) -> Result<(), StoreError> {
    execute(transaction, "INSERT OR IGNORE INTO source (name) VALUES (?1)", [source.as_str()]).map(drop)
}

fn put_desired(transaction: &Transaction<'_>, source: PodSource, pod: &PodRow) -> Result<usize, StoreError> {
    execute(
        transaction,
        "INSERT INTO desired (source, uid, namespace, name, origin, json) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (source, uid) DO UPDATE SET namespace = excluded.namespace, name = excluded.name,
            origin = excluded.origin, json = excluded.json
         WHERE namespace <> excluded.namespace OR name <> excluded.name
            OR origin <> excluded.origin OR json <> excluded.json",
        params![source.as_str(), pod.uid, pod.namespace, pod.name, pod.origin, pod.json],
    )
}

/// Rows and their uids, if they can be read.
fn uids_of(
    transaction: &Transaction<'_>,
    source: PodSource,
) -> Result<Vec<(i64, Option<String>)>, StoreError> {
    let statement = "SELECT rowid, uid FROM desired WHERE source = ?1";
    collect(transaction, statement, [source.as_str()], |row| Ok((row.get(0)?, row.get(1).ok())))
}

/// Moves a pod to the terminating ones, unless another source still wants it.
fn drop_desired(transaction: &Transaction<'_>, source: PodSource, uid: &str) -> Result<(), StoreError> {
    let json: Option<String> = transaction
        .query_row(
            "DELETE FROM desired WHERE source = ?1 AND uid = ?2 RETURNING json",
            [source.as_str(), uid],
            |row| Ok(row.get(0).unwrap_or_default()),
        )
        .optional()
        .doing("remove a desired pod")?;
    execute(
        transaction,
        "INSERT INTO terminating (uid, json) SELECT ?1, ?2
            WHERE NOT EXISTS (SELECT 1 FROM desired WHERE uid = ?1)
         ON CONFLICT (uid) DO UPDATE SET json = excluded.json",
        params![uid, json.unwrap_or_default()],
    )
    .map(drop)
}

fn is_known(transaction: &Transaction<'_>, uid: &str) -> Result<bool, StoreError> {
    transaction
        .query_row(
            "SELECT EXISTS (SELECT 1 FROM desired WHERE uid = ?1)
                 OR EXISTS (SELECT 1 FROM terminating WHERE uid = ?1)",
            [uid],
            |row| row.get(0),
        )
        .doing("find a pod")
}

fn put_event(transaction: &Transaction<'_>, event: &StoredEvent) -> Result<(), StoreError> {
    let key = &event.key;
    execute(
        transaction,
        "INSERT INTO event (kind, namespace, name, uid, field_path, type, reason, message, count, first, last)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT (uid, reason, field_path, kind, namespace, name, type, message)
         DO UPDATE SET id = (SELECT max(id) + 1 FROM event), last = max(last, excluded.last),
            count = min(count + excluded.count, 4294967295)",
        params![
            key.kind,
            key.namespace,
            key.name,
            key.uid,
            key.field_path,
            key.event_type.as_str(),
            key.reason,
            key.message,
            event.count,
            event.first.as_nanos(),
            event.last.as_nanos()
        ],
    )
    .map(drop)
}

/// Bounds the ring by age and by count; the least recently recorded are deleted first, whatever the clock was
/// then: a device without a battery-backed clock runs in 1970 or 2099 for a while.
fn trim_events(transaction: &Transaction<'_>, now: Timestamp) -> Result<(), StoreError> {
    let age = i64::try_from(MAX_EVENT_AGE.as_nanos()).unwrap_or(i64::MAX);
    execute(transaction, "DELETE FROM event WHERE last < ?1", [now.as_nanos().saturating_sub(age)])?;
    execute(
        transaction,
        "DELETE FROM event WHERE id <= (SELECT id FROM event ORDER BY id DESC LIMIT 1 OFFSET ?1)",
        [MAX_EVENTS],
    )
    .map(drop)
}
