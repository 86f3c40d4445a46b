//! One statement, with its error named.
//!
//! Owns the two forms of all SQL here.

use rusqlite::{Connection, Transaction};

use super::error::{Doing, StoreError};

/// Runs a statement that writes; returns the number of affected rows.
pub(super) fn execute(
    transaction: &Transaction<'_>,
    statement: &str,
    values: impl rusqlite::Params,
) -> Result<usize, StoreError> {
    transaction.execute(statement, values).doing("write a row")
}

/// Runs a statement that reads.
pub(super) fn collect<T>(
    connection: &Connection,
    statement: &str,
    values: impl rusqlite::Params,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare(statement).doing("prepare a read")?;
    let rows = statement.query_map(values, read).doing("read rows")?;
    rows.collect::<rusqlite::Result<Vec<T>>>().doing("read rows")
}
