//! Read-only access to the store from another process: the command line, while the agent runs and while it
//! does not.
//!
//! Owns read-only opening. Must not write, lock or create anything.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::decode;
use super::error::{Doing, StoreError};
use super::open::with_suffix;
use super::records::{Loaded, StoredEvent};
use super::seal::StoreKey;
use super::{load, schema};

/// The agent writes in bursts of milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The last stored state of an agent.
pub(crate) struct ReadOnlyStore {
    connection: Connection,
}

impl ReadOnlyStore {
    /// Opens the file for reading.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        match fs::File::open(path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::Missing { path: path.to_owned() });
            }
            Err(error) => return Err(StoreError::file("read", path, error)),
        }
        let wal = fs::metadata(with_suffix(path, "-wal")).map_or(0, |metadata| metadata.len());
        let connection = if wal == 0 {
            // The log is empty, so the file alone is the whole state. SQLite would create the log and its
            // index to read a WAL database; "immutable" keeps it from that.
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
            Connection::open_with_flags(immutable_uri(path), flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        } else {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            Connection::open_with_flags(path, flags)
        }
        .doing("open the store")?;
        connection.busy_timeout(BUSY_TIMEOUT).doing("set the busy timeout")?;
        if schema::check(&connection, path)? == 0 {
            return Err(StoreError::Missing { path: path.to_owned() });
        }
        Ok(Self { connection })
    }

    /// Loads everything. Without the store's key, Secrets whose values are encrypted are among the unreadable
    /// rows.
    pub(crate) fn load(&mut self) -> Result<Loaded, StoreError> {
        let mut raw = load::read_all(&mut self.connection, &StoreKey::None)?;
        // For the agent only, and sealed as a whole where there is a key.
        raw.rollouts.clear();
        Ok(decode::loaded(raw))
    }

    /// The ring of events, oldest first.
    pub(crate) fn events(&self) -> Result<Vec<StoredEvent>, StoreError> {
        load::read_events(&self.connection)
    }
}

fn immutable_uri(path: &Path) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            // Writing to a String cannot fail.
            byte => drop(write!(uri, "%{byte:02X}")),
        }
    }
    uri.push_str("?immutable=1");
    uri
}
