//! The tables of ConfigMaps, Secrets and claims.
//!
//! Owns their SQL, and the rule when a value is rewritten: an unchanged value is not, whatever its sealed form.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::error::{Doing, StoreError};
use super::rows::{collect, execute};
use super::seal::{PLAIN, SealContext, StoreKey};
use crate::model::types::PodSource;

/// An object as a row. `Debug` is left out: values of Secrets are in here.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ObjectRow {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub origin: String,
    /// Without the values of a Secret.
    pub json: String,
    /// Of a Secret.
    pub values: BTreeMap<String, Vec<u8>>,
}

/// An object as read, undecoded.
pub(crate) struct RawObject {
    pub source: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub origin: String,
    pub json: String,
    /// Of a Secret, opened.
    pub values: BTreeMap<String, Result<Vec<u8>, String>>,
}

/// Makes `objects` the complete set of a source; returns how many rows were written or removed.
pub(super) fn put_objects(
    transaction: &Transaction<'_>,
    key: &StoreKey,
    source: PodSource,
    objects: &[ObjectRow],
) -> Result<usize, StoreError> {
    let mut written = 0;
    let mut wanted = BTreeSet::new();
    for object in objects {
        if !wanted.insert((object.kind.to_owned(), object.namespace.clone(), object.name.clone())) {
            continue;
        }
        written += execute(
            transaction,
            "INSERT INTO object (source, kind, namespace, name, origin, json) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (source, kind, namespace, name) DO UPDATE SET origin = excluded.origin, json = excluded.json
             WHERE origin <> excluded.origin OR json <> excluded.json",
            params![source.as_str(), object.kind, object.namespace, object.name, object.origin, object.json],
        )?;
        if object.kind == SECRET {
            written += put_values(transaction, key, source, object)?;
        }
    }
    let known: Vec<(String, String, String)> = collect(
        transaction,
        "SELECT kind, namespace, name FROM object WHERE source = ?1",
        [source.as_str()],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    for gone in known.into_iter().filter(|known| !wanted.contains(known)) {
        let (kind, namespace, name) = gone;
        written += execute(
            transaction,
            "DELETE FROM object WHERE source = ?1 AND kind = ?2 AND namespace = ?3 AND name = ?4",
            params![source.as_str(), kind, namespace, name],
        )?;
        if kind == SECRET {
            written += execute(
                transaction,
                "DELETE FROM secret_value WHERE source = ?1 AND namespace = ?2 AND name = ?3",
                params![source.as_str(), namespace, name],
            )?;
        }
    }
    Ok(written)
}

/// The name of kubectl's last-applied copy of a Secret among its values: the copy repeats them. No key of a
/// Secret can have this name.
pub(crate) const LAST_APPLIED: &str = "/last-applied";

/// The kind whose values are stored separately.
pub(crate) const SECRET: &str = "Secret";

fn put_values(
    transaction: &Transaction<'_>,
    key: &StoreKey,
    source: PodSource,
    object: &ObjectRow,
) -> Result<usize, StoreError> {
    let mut written = 0;
    for (name, value) in &object.values {
        let place = SealContext { namespace: &object.namespace, name: &object.name, key: name };
        let stored: Option<(String, Vec<u8>)> = transaction
            .query_row(
                "SELECT key_id, value FROM secret_value
                 WHERE source = ?1 AND namespace = ?2 AND name = ?3 AND key = ?4",
                params![source.as_str(), object.namespace, object.name, name],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()
            .doing("read a value")?;
        let is_same = stored.is_some_and(|(key_id, stored)| {
            key_id == key.id() && key.open(place, &key_id, &stored).is_ok_and(|known| known == *value)
        });
        if is_same {
            continue;
        }
        if let Some(sealed) = key.seal(place, value)? {
            written += execute(
                transaction,
                "INSERT INTO secret_value (source, namespace, name, key, key_id, value)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (source, namespace, name, key)
                 DO UPDATE SET key_id = excluded.key_id, value = excluded.value",
                params![source.as_str(), object.namespace, object.name, name, key.id(), sealed],
            )?;
        }
    }
    let known: Vec<String> = collect(
        transaction,
        "SELECT key FROM secret_value WHERE source = ?1 AND namespace = ?2 AND name = ?3",
        params![source.as_str(), object.namespace, object.name],
        |row| row.get(0),
    )?;
    for gone in known.iter().filter(|known| !object.values.contains_key(*known)) {
        written += execute(
            transaction,
            "DELETE FROM secret_value WHERE source = ?1 AND namespace = ?2 AND name = ?3 AND key = ?4",
            params![source.as_str(), object.namespace, object.name, gone],
        )?;
    }
    Ok(written)
}

/// Every object, with the values of Secrets where `key` opens them.
pub(super) fn read_objects(connection: &Connection, key: &StoreKey) -> Result<Vec<RawObject>, StoreError> {
    let mut objects = collect(
        connection,
        "SELECT source, kind, namespace, name, origin, json FROM object ORDER BY source, kind, namespace, name",
        [],
        |row| {
            Ok(RawObject {
                source: row.get(0)?,
                kind: row.get(1)?,
                namespace: row.get(2)?,
                name: row.get(3)?,
                origin: row.get(4)?,
                json: row.get(5)?,
                values: BTreeMap::new(),
            })
        },
    )?;
    for object in objects.iter_mut().filter(|object| object.kind == SECRET) {
        let rows: Vec<(String, String, Vec<u8>)> = collect(
            connection,
            "SELECT key, key_id, value FROM secret_value WHERE source = ?1 AND namespace = ?2 AND name = ?3",
            [&object.source, &object.namespace, &object.name],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )?;
        for (name, key_id, stored) in rows {
            let place = SealContext { namespace: &object.namespace, name: &object.name, key: &name };
            let value = key.open(place, &key_id, &stored);
            object.values.insert(name, value);
        }
    }
    Ok(objects)
}

/// Seals values that are stored in the clear; returns how many.
pub(super) fn seal_plain(transaction: &Transaction<'_>, key: &StoreKey) -> Result<usize, StoreError> {
    let plain: Vec<(i64, [String; 3], Vec<u8>)> = collect(
        transaction,
        "SELECT rowid, namespace, name, key, value FROM secret_value WHERE key_id = ?1",
        [PLAIN],
        |row| Ok((row.get(0)?, [row.get(1)?, row.get(2)?, row.get(3)?], row.get(4)?)),
    )?;
    for (row, [namespace, name, of], value) in &plain {
        if let Some(sealed) = key.seal(SealContext { namespace, name, key: of }, value)? {
            execute(
                transaction,
                "UPDATE secret_value SET key_id = ?2, value = ?3 WHERE rowid = ?1",
                params![row, key.id(), sealed],
            )?;
        }
    }
    Ok(plain.len())
}

#[cfg(test)]
mod tests;
