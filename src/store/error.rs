//! Errors of the store, distinguished by the caller's options.
//!
//! Owns the translation of SQLite's codes.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// An operation on the store failed. The agent continues with its state in memory.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No space left; worth trying again later.
    #[error("{action}: the disk is full")]
    Full {
        /// What was being done.
        action: &'static str,
        source: rusqlite::Error,
    },
    /// The file system or the file cannot be written.
    #[error("{action}: the store is read-only")]
    ReadOnly {
        /// What was being done.
        action: &'static str,
        source: rusqlite::Error,
    },
    /// The file is not a database, or no longer one.
    #[error("{action}: the store is damaged; it will be moved aside at the next start")]
    Damaged {
        /// What was being done.
        action: &'static str,
        source: rusqlite::Error,
    },
    #[error("{action}: input/output error")]
    Io {
        /// What was being done.
        action: &'static str,
        source: rusqlite::Error,
    },
    /// Another process holds the file for longer than the agent waits.
    #[error("{action}: the store is busy")]
    Busy {
        /// What was being done.
        action: &'static str,
        source: rusqlite::Error,
    },
    /// Any other SQLite error: a defect of the agent, or a damaged schema.
    #[error("{action}")]
    Sqlite {
        /// What was being done.
        action: &'static str,
        source: rusqlite::Error,
    },
    #[error(
        "another agent is using {}: stop it, or use another --root-dir", path.display()
    )]
    InUse {
        /// The database file.
        path: PathBuf,
    },
    #[error(
        "{} was written by a newer agent (schema {found}, this version supports up to {known}): run the \
         newer agent, or move the file away to start without history", path.display()
    )]
    TooNew {
        path: PathBuf,
        /// Its `user_version`.
        found: i64,
        known: i64,
    },
    /// A file operation around the database failed.
    #[error("{action} {}", path.display())]
    File {
        action: &'static str,
        /// To which file.
        path: PathBuf,
        source: io::Error,
    },
    #[error("no store found at {}: the agent has not run with this --root-dir", path.display())]
    Missing {
        /// The database file.
        path: PathBuf,
    },
    #[error("start the store thread")]
    Thread { source: io::Error },
    #[error("the store is closed")]
    Closed,
    /// A value of a Secret could not be encrypted: the kernel gives no random numbers.
    #[error("encrypt a value of a Secret")]
    Seal,
    #[error(
        "Secrets in {} are encrypted and no key is configured: none is stored until the key is back; set \
         --store-key-file or the credential agent-store-key, or --store-key-file=/dev/null to store them in \
         plain text from now on", path.display()
    )]
    NoKey {
        /// The database file.
        path: PathBuf,
    },
    #[error(
        "the store key is text, not base64 or hex of 32 random bytes: make one with \"openssl rand -base64 \
         32\"; Secrets are encrypted with this one only where they have been before"
    )]
    TextKey,
    #[error("plain text may be left in {}-wal while another process reads the store: end it, and restart the agent", path.display())]
    LogInUse {
        /// The database file.
        path: PathBuf,
    },
    #[error("encode {what}")]
    Encode { what: String, source: serde_json::Error },
}

impl StoreError {
    /// Adds the operation, and sorts SQLite's code by the caller's options.
    pub(crate) fn sqlite(action: &'static str, source: rusqlite::Error) -> Self {
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full { action, source },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Self::ReadOnly { action, source },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged { action, source },
            Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => Self::Io { action, source },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { action, source },
            _ => Self::Sqlite { action, source },
        }
    }

    /// Whether the file's content is to blame, and not the disk, its room or another process.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            // What SQLite says of a schema or a row that makes no sense; conversions have no code.
            Self::Sqlite { source, .. } => matches!(
                source.sqlite_error_code(),
                None | Some(
                    ErrorCode::Unknown
                        | ErrorCode::TooBig
                        | ErrorCode::TypeMismatch
                        | ErrorCode::ConstraintViolation
                )
            ),
            _ => false,
        }
    }

    pub(crate) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }
}

/// `map_err` for SQLite calls: `.doing("read desired pods")`.
pub(crate) trait Doing<T> {
    /// Names the operation.
    fn doing(self, action: &'static str) -> Result<T, StoreError>;
}

impl<T> Doing<T> for rusqlite::Result<T> {
    fn doing(self, action: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::sqlite(action, source))
    }
}
