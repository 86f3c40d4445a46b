//! The tables of ConfigMaps, Secrets and claims, and the sealing of what is stored in the clear.
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

/// Makes `objects` the complete set of a source; returns how many rows were written or removed. With a key that
/// cannot be used Secrets stay as they are: those that are stored cannot be read, and would be removed.
pub(super) fn put_objects(
    transaction: &Transaction<'_>,
    key: &StoreKey,
    source: PodSource,
    objects: &[ObjectRow],
) -> Result<usize, StoreError> {
    let mut written = 0;
    let mut wanted = BTreeSet::new();
    for object in objects {
        if wanted.insert([object.kind.to_owned(), object.namespace.clone(), object.name.clone()]) {
            written += put_object(transaction, key, source, object)?;
        }
    }
    let known: Vec<(i64, Option<[String; 3]>)> = collect(
        transaction,
        "SELECT rowid, kind, namespace, name FROM object WHERE source = ?1",
        [source.as_str()],
        |row| {
            let key = || Ok::<_, rusqlite::Error>([row.get(1)?, row.get(2)?, row.get(3)?]);
            Ok((row.get(0)?, key().ok()))
        },
    )?;
    for (row, known) in known {
        if known.as_ref().is_some_and(|known| wanted.contains(known) || is_fixed(key, &known[0])) {
            continue;
        }
        written += execute(transaction, "DELETE FROM object WHERE rowid = ?1", [row])?;
        if let Some([kind, namespace, name]) = known
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

/// Writes one object, if it changed; returns how many rows were written. A Secret is not with a key that cannot be used.
pub(super) fn put_object(
    transaction: &Transaction<'_>,
    key: &StoreKey,
    source: PodSource,
    object: &ObjectRow,
) -> Result<usize, StoreError> {
    if is_fixed(key, object.kind) {
        return Ok(0);
    }
    let mut written = execute(
        transaction,
        "INSERT INTO object (source, kind, namespace, name, origin, json) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (source, kind, namespace, name) DO UPDATE SET origin = excluded.origin, json = excluded.json
         WHERE origin <> excluded.origin OR json <> excluded.json",
        params![source.as_str(), object.kind, object.namespace, object.name, object.origin, object.json],
    )?;
    if object.kind == SECRET {
        written += put_values(transaction, key, source, object)?;
    }
    Ok(written)
}

/// Removes one object: its kind, namespace and name. A Secret stays with a key that cannot be used.
pub(super) fn drop_object(
    transaction: &Transaction<'_>,
    key: &StoreKey,
    source: PodSource,
    [kind, namespace, name]: [&str; 3],
) -> Result<(), StoreError> {
    if is_fixed(key, kind) {
        return Ok(());
    }
    execute(
        transaction,
        "DELETE FROM object WHERE source = ?1 AND kind = ?2 AND namespace = ?3 AND name = ?4",
        params![source.as_str(), kind, namespace, name],
    )?;
    if kind == SECRET {
        execute(
            transaction,
            "DELETE FROM secret_value WHERE source = ?1 AND namespace = ?2 AND name = ?3",
            params![source.as_str(), namespace, name],
        )?;
    }
    Ok(())
}

fn is_fixed(key: &StoreKey, kind: &str) -> bool {
    kind == SECRET && matches!(key, StoreKey::Unusable { .. })
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
        let (namespace, of) = (&object.namespace, &object.name);
        let place = SealContext { source: source.as_str(), namespace, name: of, key: name };
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
        let (source, namespace, name) = (&object.source, &object.namespace, &object.name);
        let values = collect(
            connection,
            "SELECT key, key_id, value FROM secret_value WHERE source = ?1 AND namespace = ?2 AND name = ?3",
            [source, namespace, name],
            |row| {
                let opened = || {
                    let (of, key_id): (String, String) = (row.get(0)?, row.get(1)?);
                    let place = SealContext { source, namespace, name, key: &of };
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

/// Where sealed bytes are, Secrets' values and rollouts: the statements that list, write and remove them.
const SEALED: [[&str; 3]; 3] = [
    [
        "SELECT rowid, source, namespace, name, key, key_id, value FROM secret_value
         WHERE key_id IN (?1, ?2) OR typeof(key_id) <> 'text'",
        "UPDATE secret_value SET key_id = ?2, value = ?3 WHERE rowid = ?1",
        "DELETE FROM secret_value WHERE rowid = ?1",
    ],
    [
        "SELECT rowid, source, '', source, 'trial', key_id, record FROM trial
         WHERE key_id IN (?1, ?2) OR typeof(key_id) <> 'text'",
        "UPDATE trial SET key_id = ?2, record = ?3 WHERE rowid = ?1",
        "DELETE FROM trial WHERE rowid = ?1",
    ],
    [
        "SELECT rowid, 'cluster', namespace, name, kind, key_id, value FROM cluster_object
         WHERE kind = 'Token' AND (key_id IN (?1, ?2) OR typeof(key_id) <> 'text')",
        "UPDATE cluster_object SET key_id = ?2, value = ?3 WHERE rowid = ?1",
        "DELETE FROM cluster_object WHERE rowid = ?1",
    ],
];

/// Seals what is stored in the clear, and what earlier programs sealed without its source; returns how many
/// rows were written. A row that cannot be read is removed: it must not stay in the clear.
pub(super) fn seal_rows(transaction: &Transaction<'_>, key: &StoreKey) -> Result<usize, StoreError> {
    type Found = (i64, Option<([String; 5], Vec<u8>)>);
    let StoreKey::Sealed(sealing) = key else { return Ok(0) };
    let mut written = 0;
    for [list, update, remove] in SEALED {
        let found: Vec<Found> = collect(transaction, list, [PLAIN, sealing.ids()[1]], |row| {
            let texts = || Ok([row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?]);
            let readable: rusqlite::Result<_> = texts().and_then(|texts| Ok((texts, row.get(6)?)));
            Ok((row.get(0)?, readable.ok()))
        })?;
        for (row, readable) in found {
            let Some(([source, namespace, name, of, key_id], stored)) = readable else {
                written += execute(transaction, remove, [row])?;
                continue;
            };
            let place = SealContext { source: &source, namespace: &namespace, name: &name, key: &of };
            // What does not open is damaged, and reported when the rows are read.
            let Ok(value) = key.open(place, &key_id, &stored) else { continue };
            let sealed = key.seal(place, &value)?;
            written += execute(transaction, update, params![row, key.id(), sealed])?;
        }
    }
    Ok(written)
}

/// Whether a value is sealed, with one of `ids` if there are any.
pub(super) fn has_sealed(connection: &Connection, ids: Option<[&str; 2]>) -> Result<bool, StoreError> {
    let key_ids = "SELECT key_id FROM secret_value UNION SELECT key_id FROM trial
        UNION SELECT key_id FROM cluster_object";
    let found: Vec<String> = collect(connection, key_ids, [], |row| row.get(0))?;
    Ok(found.iter().any(|id| id != PLAIN && ids.is_none_or(|ids| ids.contains(&id.as_str()))))
}

#[cfg(test)]
mod tests;
