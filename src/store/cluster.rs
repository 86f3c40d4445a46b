//! What a cluster has shown beside pods and objects: the Node, Services, tokens, the link. One row each.
//!
//! Owns their table. Tokens are sealed as the values of Secrets are.

use std::fmt;

use rusqlite::{Connection, Transaction, params};

use super::error::StoreError;
use super::rows::{UnreadableRow, collect, collect_readable, execute};
use super::seal::{PLAIN, SealContext, StoreKey};

/// Its `Debug` does not show the value: tokens are among them.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterRow {
    pub key: ClusterKey,
    /// What it belongs to, or its own; part of the row, not of its key.
    pub uid: String,
    /// Of a sealed kind, it is not written while the key cannot be used.
    pub value: Vec<u8>,
}

/// The kinds of rows whose values are sealed.
pub(crate) const TOKEN: &str = "Token";
/// What the server said of a CSI driver, or of a volume with its Secrets.
pub(crate) const CSI: &str = "CSI";
/// The kind of the one row of a node that has left its cluster: the pods that it had there are not wanted any more.
pub(crate) const LEFT: &str = "Left";

impl fmt::Debug for ClusterRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("ClusterRow").field(&self.key).field(&self.uid).finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterKey {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl ClusterKey {
    #[must_use]
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn place(&self) -> SealContext<'_> {
        SealContext { source: "cluster", namespace: &self.namespace, name: &self.name, key: &self.kind }
    }
}

/// Writes the rows that differ, and removes others; returns how many rows were written or removed.
pub(super) fn put_cluster(
    transaction: &Transaction<'_>,
    key: &StoreKey,
    rows: &[ClusterRow],
    gone: &[ClusterKey],
) -> Result<usize, StoreError> {
    let mut written = 0;
    for row in rows {
        written += put_row(transaction, key, row)?;
    }
    for ClusterKey { kind, namespace, name } in gone {
        written += execute(
            transaction,
            "DELETE FROM cluster_object WHERE kind = ?1 AND namespace = ?2 AND name = ?3",
            params![kind, namespace, name],
        )?;
    }
    Ok(written)
}

/// Removes every row, and writes that the node has left.
pub(super) fn forget_cluster(transaction: &Transaction<'_>, key: &StoreKey) -> Result<(), StoreError> {
    execute(transaction, "DELETE FROM cluster_object", [])?;
    let left = ClusterRow { key: ClusterKey::new(LEFT, "", ""), uid: String::new(), value: Vec::new() };
    put_row(transaction, key, &left).map(drop)
}

fn put_row(transaction: &Transaction<'_>, key: &StoreKey, row: &ClusterRow) -> Result<usize, StoreError> {
    let ClusterKey { kind, namespace, name } = &row.key;
    let stored: Vec<(String, String, Vec<u8>)> = collect(
        transaction,
        "SELECT uid, key_id, value FROM cluster_object WHERE kind = ?1 AND namespace = ?2 AND name = ?3",
        params![kind, namespace, name],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    let is_sealed = [TOKEN, CSI].contains(&row.key.kind.as_str());
    let key_id = if is_sealed { key.id() } else { PLAIN };
    let place = row.key.place();
    let is_same = stored.iter().any(|(uid, id, value)| {
        uid == &row.uid && id == key_id && key.open(place, id, value).is_ok_and(|known| known == row.value)
    });
    if is_same {
        return Ok(0);
    }
    let value = if is_sealed {
        let Some(sealed) = key.seal(place, &row.value)? else { return Ok(0) };
        sealed
    } else {
        row.value.clone()
    };
    execute(
        transaction,
        "INSERT INTO cluster_object (kind, namespace, name, uid, key_id, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (kind, namespace, name) DO UPDATE SET uid = excluded.uid, key_id = excluded.key_id,
            value = excluded.value",
        params![kind, namespace, name, row.uid, key_id, value],
    )
}

/// Every row that can be read.
pub(super) fn read_cluster(
    connection: &Connection,
    key: &StoreKey,
    unreadable: &mut Vec<UnreadableRow>,
) -> Result<Vec<ClusterRow>, StoreError> {
    let rows = collect_readable(
        connection,
        ("cluster_object", 3),
        "SELECT kind, namespace, name, uid, key_id, value FROM cluster_object ORDER BY kind, namespace, name",
        [],
        unreadable,
        |row| {
            let place = ClusterKey { kind: row.get(0)?, namespace: row.get(1)?, name: row.get(2)? };
            Ok((place, row.get::<_, String>(3)?, row.get::<_, String>(4)?, row.get::<_, Vec<u8>>(5)?))
        },
    )?;
    let mut readable = Vec::new();
    for (place, uid, key_id, value) in rows {
        match key.open(place.place(), &key_id, &value) {
            Ok(value) => readable.push(ClusterRow { key: place, uid, value }),
            Err(message) => unreadable.push(UnreadableRow {
                table: "cluster_object",
                key: format!("{} {}/{}", place.kind, place.namespace, place.name),
                message,
            }),
        }
    }
    Ok(readable)
}
