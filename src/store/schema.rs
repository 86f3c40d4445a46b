//! The schema of the file: an append-only list of migrations, counted in `user_version`.
//!
//! Owns the creation of tables and columns. Never edit a migration that was released, never drop a column
//! that an older release reads.

use std::path::Path;

use rusqlite::{Connection, Transaction};

use super::error::{Doing, StoreError};

/// Each entry takes the file from version `index` to `index + 1`.
pub(crate) const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE meta (
        key TEXT NOT NULL PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID;
    -- A row here means that the source has given a valid answer once; its set may be empty.
    CREATE TABLE source (
        name TEXT NOT NULL PRIMARY KEY,
        validator TEXT
    ) WITHOUT ROWID;
    -- A manifest may set a uid itself, so two sources may carry the same one.
    CREATE TABLE desired (
        source TEXT NOT NULL,
        uid TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        origin TEXT NOT NULL,
        json TEXT NOT NULL,
        PRIMARY KEY (source, uid)
    );
    CREATE TABLE terminating (
        uid TEXT NOT NULL PRIMARY KEY,
        json TEXT NOT NULL
    );
    CREATE TABLE container_state (
        uid TEXT NOT NULL,
        container TEXT NOT NULL,
        restart_count INTEGER NOT NULL,
        back_off_nanos INTEGER,
        back_off_updated INTEGER,
        PRIMARY KEY (uid, container)
    ) WITHOUT ROWID;
    CREATE TABLE status (
        uid TEXT NOT NULL PRIMARY KEY,
        json TEXT NOT NULL
    );
    CREATE TABLE problem (
        source TEXT NOT NULL,
        position INTEGER NOT NULL,
        origin TEXT NOT NULL,
        reason TEXT NOT NULL,
        message TEXT NOT NULL,
        since INTEGER NOT NULL,
        PRIMARY KEY (source, position)
    ) WITHOUT ROWID;
    -- The id is the order of recency: a repetition moves to the end.
    CREATE TABLE event (
        id INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        uid TEXT NOT NULL,
        field_path TEXT NOT NULL,
        type TEXT NOT NULL,
        reason TEXT NOT NULL,
        message TEXT NOT NULL,
        count INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX event_by_object ON event (uid, reason, field_path, kind, namespace, name, type, message);
",
    "
    CREATE TABLE object (
        source TEXT NOT NULL,
        kind TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        origin TEXT NOT NULL,
        json TEXT NOT NULL,
        PRIMARY KEY (source, kind, namespace, name)
    );
    -- Of Secrets, whose row in `object` has none. key_id is empty for a value that is not encrypted.
    CREATE TABLE secret_value (
        source TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        key TEXT NOT NULL,
        key_id TEXT NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (source, namespace, name, key)
    );
    -- Objects of an answer that an older release has taken in were left out: it must be asked for again.
    UPDATE source SET validator = NULL;
",
    "
    -- One row per source whose set is on trial, or was rolled back. key_id as of secret_value.
    CREATE TABLE trial (
        source TEXT NOT NULL PRIMARY KEY,
        parts_left INTEGER NOT NULL,
        key_id TEXT NOT NULL,
        record BLOB NOT NULL
    );
",
    "
    -- key_id as of secret_value, empty for all kinds but tokens.
    CREATE TABLE cluster_object (
        kind TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        uid TEXT NOT NULL,
        key_id TEXT NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (kind, namespace, name)
    );
"];

/// One statement per table that names every column in use: preparing it proves that the file has this schema.
const SHAPE: &[&str] = &[
    "SELECT key, value FROM meta",
    "SELECT name, validator FROM source",
    "SELECT source, uid, namespace, name, origin, json FROM desired",
    "SELECT uid, json FROM terminating",
    "SELECT uid, container, restart_count, back_off_nanos, back_off_updated FROM container_state",
    "SELECT uid, json FROM status",
    "SELECT source, position, origin, reason, message, since FROM problem",
    "SELECT id, kind, namespace, name, uid, field_path, type, reason, message, count, first, last FROM event",
    "SELECT source, kind, namespace, name, origin, json FROM object",
    "SELECT source, namespace, name, key, key_id, value FROM secret_value",
    "SELECT source, parts_left, key_id, record FROM trial",
    "SELECT kind, namespace, name, uid, key_id, value FROM cluster_object",
];

/// The oldest version whose programs can read what this one writes: `PRAGMA application_id`, where that is
/// not 0, holds the same for any file. A migration that only adds tables need not raise it; one that changes
/// an existing table must. `agent upgrade` refuses a program that leaves no way back.
pub(crate) const READABLE_BY: i64 = 3;

/// The same for a file with a set of the source `cluster`, which earlier programs would leave out: its pods would end.
const CLUSTER_READABLE_BY: i64 = 4;

/// Marks a file that has a set of the source `cluster`.
pub(super) fn mark_joined(transaction: &Transaction<'_>) -> Result<(), StoreError> {
    if readable_by(transaction)? < CLUSTER_READABLE_BY {
        transaction
            .execute_batch(&format!("PRAGMA application_id = {CLUSTER_READABLE_BY}"))
            .doing("write the store's compatibility version")?;
    }
    Ok(())
}

fn readable_by(connection: &Connection) -> Result<i64, StoreError> {
    connection
        .query_row("PRAGMA application_id", [], |row| row.get(0))
        .doing("read the store's compatibility version")
}

pub(crate) fn newest_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// The version of a file; zero when it is fresh.
pub(crate) fn version(connection: &Connection) -> Result<i64, StoreError> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0)).doing("read the schema version")
}

/// Whether this program can read a file: a newer file states it.
pub(crate) fn check(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let (found, known) = (version(connection)?, newest_version());
    let readable_by = readable_by(connection)?;
    if found > known && !(1..=known).contains(&readable_by) {
        return Err(StoreError::TooNew { path: path.to_owned(), found, known });
    }
    Ok(found)
}

/// Brings a file up to the newest version, all of it in one transaction. The caller has refused newer files.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let found = usize::try_from(version(connection)?).unwrap_or_default();
    if found >= MIGRATIONS.len() {
        return Ok(());
    }
    let transaction = connection.transaction().doing("begin the migration")?;
    for statement in &MIGRATIONS[found..] {
        transaction.execute_batch(statement).doing("migrate the store")?;
    }
    let readable_by = readable_by(&transaction)?.max(READABLE_BY);
    transaction
        .execute_batch(&format!(
            "PRAGMA application_id = {readable_by}; PRAGMA user_version = {}",
            newest_version()
        ))
        .doing("write the schema version")?;
    transaction.commit().doing("commit the migration")
}

/// True when every table and column exists.
pub(crate) fn has_our_shape(connection: &Connection) -> bool {
    SHAPE.iter().all(|statement| connection.prepare(statement).is_ok())
}
