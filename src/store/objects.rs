//! The tables of ConfigMaps, Secrets and claims.
//!
//! Owns their SQL, and the rule when a value is rewritten: an unchanged value is not, whatever its sealed form.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Transaction, params};

use super::error::StoreError;
use super::rows::{UnreadableRow, collect, collect_readable, execute, text};
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
    let known: Vec<(i64, Option<(String, String, String)>)> = collect(
        transaction,
        "SELECT rowid, kind, namespace, name FROM object WHERE source = ?1",
        [source.as_str()],
        |row| {
            let key = || Ok::<_, rusqlite::Error>((row.get(1)?, row.get(2)?, row.get(3)?));
            Ok((row.get(0)?, key().ok()))
        },
    )?;
    for (row, key) in known {
        if key.as_ref().is_some_and(|key| wanted.contains(key)) {
            continue;
        }
        written += execute(transaction, "DELETE FROM object WHERE rowid = ?1", [row])?;
        if let Some((kind, namespace, name)) = key
            && kind == SECRET
        {
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
        let stored: Vec<(String, Vec<u8>)> = collect(
            transaction,
            "SELECT key_id, value FROM secret_value
             WHERE source = ?1 AND namespace = ?2 AND name = ?3 AND key = ?4",
            params![source.as_str(), object.namespace, object.name, name],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let is_same = stored.iter().any(|(key_id, stored)| {
            key_id == key.id() && key.open(place, key_id, stored).is_ok_and(|known| known == *value)
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
    let known: Vec<(i64, Option<String>)> = collect(
        transaction,
        "SELECT rowid, key FROM secret_value WHERE source = ?1 AND namespace = ?2 AND name = ?3",
        params![source.as_str(), object.namespace, object.name],
        |row| Ok((row.get(0)?, row.get(1).ok())),
    )?;
    for (row, name) in known {
        if name.is_none_or(|name| !object.values.contains_key(&name)) {
            written += execute(transaction, "DELETE FROM secret_value WHERE rowid = ?1", [row])?;
        }
    }
    Ok(written)
}

/// Every object, with the values of Secrets where `key` opens them.
pub(super) fn read_objects(
    connection: &Connection,
    key: &StoreKey,
    unreadable: &mut Vec<UnreadableRow>,
) -> Result<Vec<RawObject>, StoreError> {
    let mut objects = collect_readable(
        connection,
        ("object", 4),
        "SELECT source, kind, namespace, name, origin, json FROM object ORDER BY source, kind, namespace, name",
        [],
        unreadable,
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
        let (namespace, name) = (&object.namespace, &object.name);
        let values = collect(
            connection,
            "SELECT key, key_id, value FROM secret_value WHERE source = ?1 AND namespace = ?2 AND name = ?3",
            [&object.source, namespace, name],
            |row| {
                let opened = || {
                    let (of, key_id): (String, String) = (row.get(0)?, row.get(1)?);
                    let place = SealContext { namespace, name, key: &of };
                    Ok(key.open(place, &key_id, &row.get::<_, Vec<u8>>(2)?))
                };
                // A Secret is complete or left out, so a value that cannot be read must not just be missing.
                let value = opened().unwrap_or_else(|error: rusqlite::Error| Err(error.to_string()));
                Ok((text(row, 0), value))
            },
        )?;
        object.values.extend(values);
    }
    Ok(objects)
}

/// Seals values that are stored in the clear; returns how many. A row that cannot be read is removed: it must
/// not stay in the clear.
pub(super) fn seal_plain(transaction: &Transaction<'_>, key: &StoreKey) -> Result<usize, StoreError> {
    type Plain = ([String; 3], Vec<u8>);
    let plain: Vec<(i64, Option<Plain>)> = collect(
        transaction,
        "SELECT rowid, namespace, name, key, value, key_id FROM secret_value
         WHERE key_id = ?1 OR typeof(key_id) <> 'text'",
        [PLAIN],
        |row| {
            let plain = || {
                let _: String = row.get(5)?;
                Ok::<_, rusqlite::Error>(([row.get(1)?, row.get(2)?, row.get(3)?], row.get(4)?))
            };
            Ok((row.get(0)?, plain().ok()))
        },
    )?;
    for (row, value) in &plain {
        let Some(([namespace, name, of], value)) = value else {
            execute(transaction, "DELETE FROM secret_value WHERE rowid = ?1", [row])?;
            continue;
        };
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
