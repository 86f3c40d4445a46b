//! One statement, with its error named.
//!
//! Owns the forms of all SQL here, and what a row is whose columns cannot be read: reported and left out, as
//! one that does not decode. SQLite checks no text, so a flipped bit can make it invalid UTF-8.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Transaction};

use super::error::{Doing, StoreError};

/// A row that does not decode: written by another release, or hit by a bit flip that SQLite cannot see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    pub table: &'static str,
    pub key: String,
    pub message: String,
}

/// Runs a statement that writes; returns the number of affected rows.
pub(super) fn execute(
    transaction: &Transaction<'_>,
    statement: &str,
    values: impl rusqlite::Params,
) -> Result<usize, StoreError> {
    transaction.execute(statement, values).doing("write a row")
}

/// Runs a statement that reads. Rows that `read` refuses are left out.
pub(super) fn collect<T>(
    connection: &Connection,
    statement: &str,
    values: impl rusqlite::Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    collect_readable(connection, ("", 0), statement, values, &mut Vec::new(), read)
}

/// The same for a table and the number of its columns, the first ones, that name a row: the rows that `read`
/// refuses are added to `unreadable`.
pub(super) fn collect_readable<T>(
    connection: &Connection,
    (table, names): (&'static str, usize),
    statement: &str,
    values: impl rusqlite::Params,
    unreadable: &mut Vec<UnreadableRow>,
    mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare(statement).doing("prepare a read")?;
    let mut rows = statement.query(values).doing("read rows")?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().doing("read rows")? {
        match read(row) {
            Ok(value) => found.push(value),
            Err(error) => {
                let key: Vec<String> = (0..names).map(|column| text(row, column)).collect();
                unreadable.push(UnreadableRow { table, key: key.join(" "), message: error.to_string() });
            }
        }
    }
    Ok(found)
}

/// A column as text for people, whatever it holds.
pub(super) fn text(row: &Row<'_>, column: usize) -> String {
    match row.get_ref(column) {
        Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}
