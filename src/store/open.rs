//! Opening the file: permissions, handling of damage, and the setup of SQLite.
//!
//! Owns the file, its lock and its side files.
//!
//! Caveats: a write-ahead log whose header is torn is not damage. SQLite writes that header before the first
//! sync of a new log, so a power cut leaves one behind regularly, and everything older is in the main file by
//! then. SQLite ignores such a log, and so does the agent; whether the main file is whole is decided by
//! `integrity_check`.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::db::Db;
use super::error::{Doing, StoreError};
use super::schema;
use super::seal::StoreKey;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;

/// The file belongs to root and may hold secrets.
const FILE_MODE: u32 = 0o600;
/// The database, its log and its shared index.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];
/// How many damaged files are kept for a post-mortem; older ones are removed, so that a failing disk does not
/// fill up.
const MAX_DAMAGED: usize = 3;
/// SQLite's smallest page. It takes anything shorter for a new database and would overwrite it.
const LEAST_BYTES: u64 = 512;
/// Readers (the command line) hold the file for milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The log is checkpointed at this length, and truncated to it: 256 pages of 4 KiB.
const WAL_PAGES: u32 = 256;

#[derive(Debug, Default)]
pub struct OpenReport {
    /// There was no store.
    pub created: bool,
    /// The damaged file, under its new name, and its error.
    pub damaged: Option<DamagedFile>,
    /// An index did not agree with its table and was rebuilt.
    pub reindexed: bool,
    /// What is wrong with the key, or why values could not be encrypted, all of them, without a trace.
    pub unsealed: Option<StoreError>,
    /// Files that were set aside before the store was encrypted, and have been removed.
    pub removed: usize,
}

/// A damaged file that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedFile {
    pub moved_to: PathBuf,
    pub reason: String,
}

/// Opens or creates the store, setting a damaged file aside.
pub(super) fn open(path: &Path, now: Timestamp, key: StoreKey) -> Result<(Db, OpenReport), StoreError> {
    let lock = lock(path)?;
    let mut report = OpenReport::default();
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A log without its database is useless; SQLite would mix it into the new file.
            set_aside(path, now)?;
            report.created = true;
            connect(path)
        }
        Err(error) => return Err(StoreError::file("stat", path, error)),
        Ok(metadata) if metadata.len() < LEAST_BYTES => {
            Err(damaged("open the store", &format!("{} bytes are not a database", metadata.len())))
        }
        Ok(_) => connect(path),
    };
    let connection = match found {
        Err(error) if error.is_damage() => {
            report.damaged = Some(set_aside_because(path, now, &error)?);
            connect(path)?.0
        }
        found => {
            let (connection, reindexed) = found?;
            report.reindexed = reindexed;
            connection
        }
    };
    let mut db = Db::new(connection);
    report.unsealed = encrypt(&mut db, path, key, &lock, &mut report).err();
    db.hold(lock);
    Ok((db, report))
}

/// The content of the lock file while nothing is in the clear, in no file of the store: it outlives a store
/// that is set aside.
const ENCRYPTED: &str = "encrypted\n";

/// Encrypts what is stored in the clear, when there is a key, and leaves no trace of it in the files: not in
/// the log, nor in files that were set aside before. Completes what an earlier run could not.
fn encrypt(
    db: &mut Db,
    path: &Path,
    key: StoreKey,
    mut lock: &File,
    report: &mut OpenReport,
) -> Result<(), StoreError> {
    let failed = |error| StoreError::file("write", &with_suffix(path, ".lock"), error);
    let is_encrypted = !lock.metadata().is_ok_and(|metadata| metadata.len() == 0);
    let unmark = || lock.set_len(0).and_then(|()| lock.sync_all()).map_err(failed);
    let (is_sealed, is_off) = (matches!(key, StoreKey::Sealed(_)), matches!(key, StoreKey::Off));
    let verdict = db.set_key(key, path, is_encrypted);
    if is_off && is_encrypted {
        unmark()?;
    }
    // A key that was refused seals nothing.
    if !is_sealed || !db.has_key() {
        return verdict;
    }
    if db.seal_values(unmark)? == 0 && is_encrypted {
        return verdict;
    }
    if !db.rewrite()? {
        return Err(StoreError::LogInUse { path: path.to_owned() });
    }
    let kept = report.damaged.as_ref().map(|damaged| damaged.moved_to.as_path());
    report.removed = remove_damaged(path, kept)?;
    // One that was set aside at this start may hold plain text: the next start removes it.
    if kept.is_none() {
        lock.write_all(ENCRYPTED.as_bytes()).and_then(|()| lock.sync_all()).map_err(failed)?;
    }
    verdict
}

/// A store without a file, for simulations and for nodes whose disk cannot be written.
#[cfg(test)]
pub(super) fn open_in_memory(key: StoreKey) -> Result<Db, StoreError> {
    let mut connection = Connection::open_in_memory().doing("open a store in memory")?;
    configure(&connection)?;
    schema::migrate(&mut connection)?;
    let mut db = Db::new(connection);
    db.set_key(key, Path::new(""), false)?;
    Ok(db)
}

/// A separate file: closing any descriptor of the database would drop SQLite's own locks on it (POSIX
/// semantics).
fn lock(path: &Path) -> Result<File, StoreError> {
    let lock_path = with_suffix(path, ".lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(FILE_MODE)
        .open(&lock_path)
        .map_err(|error| StoreError::file("open", &lock_path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(StoreError::file("lock", &lock_path, error)),
    }
}

/// Makes the file with its mode before SQLite does; the log and the index inherit it.
fn ensure_file(path: &Path) -> Result<(), StoreError> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .read(true)
        .mode(FILE_MODE)
        .open(path)
        .map_err(|error| StoreError::file("open", path, error))?;
    let metadata = file.metadata().map_err(|error| StoreError::file("stat", path, error))?;
    if metadata.mode() & 0o777 != FILE_MODE {
        file.set_permissions(fs::Permissions::from_mode(FILE_MODE))
            .map_err(|error| StoreError::file("set the mode of", path, error))?;
    }
    Ok(())
}

/// The second value: whether indexes were rebuilt.
fn connect(path: &Path) -> Result<(Connection, bool), StoreError> {
    ensure_file(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).doing("open the store")?;
    schema::check(&connection, path)?;
    let reindexed = check(&connection)?;
    configure(&connection)?;
    schema::migrate(&mut connection)?;
    if !schema::has_our_shape(&connection) {
        return Err(damaged("check the tables", "a table is missing"));
    }
    Ok((connection, reindexed))
}

fn configure(connection: &Connection) -> Result<(), StoreError> {
    connection.busy_timeout(BUSY_TIMEOUT).doing("set the busy timeout")?;
    // 64 kB of cache; temporary tables in memory; no mapping, whose pages would count as the agent's and
    // whose faults would turn a disk error into a signal; zeros over what is deleted, values of Secrets above
    // all.
    connection
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL;
             PRAGMA cache_size = -64;
             PRAGMA temp_store = MEMORY;
             PRAGMA mmap_size = 0;
             PRAGMA secure_delete = ON;
             PRAGMA wal_autocheckpoint = {WAL_PAGES};
             PRAGMA journal_size_limit = {};
             PRAGMA foreign_keys = OFF;
             PRAGMA trusted_schema = OFF;",
            WAL_PAGES * 4096
        ))
        .doing("set up the store")
}

/// Checks pages, rows and indexes. An index that does not agree with its table would fail writes later;
/// everything is in the tables, so it is rebuilt. True then.
fn check(connection: &Connection) -> Result<bool, StoreError> {
    // A format of a version to come, or a flipped bit of the header: the file itself can be written.
    if connection.is_readonly("main").doing("check the store")? {
        return Err(damaged("check the store", "its header permits no writes"));
    }
    let verdict = |check| -> Result<String, StoreError> {
        connection.query_row(check, [], |row| row.get(0)).doing("check the store")
    };
    if verdict("PRAGMA integrity_check(1)")? == "ok" {
        return Ok(false);
    }
    let pages = verdict("PRAGMA quick_check(1)")?;
    if pages != "ok" {
        return Err(damaged("check the store", &pages));
    }
    match connection.execute_batch("REINDEX").doing("rebuild indexes") {
        // A disk without room: the next start tries again.
        Err(error) if !error.is_damage() => return Ok(false),
        result => result?,
    }
    let after = verdict("PRAGMA integrity_check(1)")?;
    if after == "ok" { Ok(true) } else { Err(damaged("check the store", &after)) }
}

fn damaged(action: &'static str, reason: &str) -> StoreError {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    let source = rusqlite::Error::SqliteFailure(code, Some(reason.to_owned()));
    StoreError::Damaged { action, source }
}

pub(super) fn set_aside_because(
    path: &Path,
    now: Timestamp,
    error: &StoreError,
) -> Result<DamagedFile, StoreError> {
    let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    Ok(DamagedFile { moved_to: set_aside(path, now)?, reason })
}

/// Renames the file and its side files, and removes all but the newest damaged ones.
fn set_aside(path: &Path, now: Timestamp) -> Result<PathBuf, StoreError> {
    let stamp: String = now.to_rfc3339().chars().filter(|c| !matches!(c, '-' | ':')).collect();
    let mut moved_to = with_suffix(path, &format!(".damaged-{stamp}"));
    let mut attempt = 1;
    // The clock may stand still or have been set back.
    while moved_to.exists() {
        attempt += 1;
        moved_to = with_suffix(path, &format!(".damaged-{stamp}-{attempt}"));
    }
    for suffix in SUFFIXES {
        let from = with_suffix(path, suffix);
        match fs::rename(&from, with_suffix(&moved_to, suffix)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::file("set aside", &from, error)),
        }
    }
    remove_old_damaged(path);
    Ok(moved_to)
}

/// The files that were set aside, side files among them.
fn damaged_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Ok(Vec::new()) };
    let prefix = format!("{}.damaged-", name.to_string_lossy());
    let entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    let is_damaged = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
    Ok(entries.into_iter().filter(is_damaged).map(|entry| entry.path()).collect())
}

/// Best effort: what cannot be removed costs space only.
fn remove_old_damaged(path: &Path) {
    let is_side = |path: &Path| {
        SUFFIXES[1..].iter().any(|suffix| path.as_os_str().as_encoded_bytes().ends_with(suffix.as_bytes()))
    };
    let mut sets: Vec<(std::time::SystemTime, PathBuf)> = damaged_files(path)
        .unwrap_or_default()
        .into_iter()
        .filter(|file| !is_side(file))
        .filter_map(|file| Some((fs::metadata(&file).ok()?.modified().ok()?, file)))
        .collect();
    sets.order_by(Ord::cmp);
    let excess = sets.len().saturating_sub(MAX_DAMAGED);
    for (_, old) in sets.drain(..excess) {
        for suffix in SUFFIXES {
            let _ = fs::remove_file(with_suffix(&old, suffix));
        }
    }
}

/// Removes, durably, what was set aside, except for `kept`; returns the number of files.
fn remove_damaged(path: &Path, kept: Option<&Path>) -> Result<usize, StoreError> {
    let failed = |path: &Path, error| StoreError::file("remove", path, error);
    let is_kept = |file: &Path| {
        kept.is_some_and(|kept| {
            file.as_os_str().as_encoded_bytes().starts_with(kept.as_os_str().as_encoded_bytes())
        })
    };
    let mut files = damaged_files(path).map_err(|error| failed(path, error))?;
    files.retain(|file| !is_kept(file));
    for file in &files {
        fs::remove_file(file).map_err(|error| failed(file, error))?;
    }
    if let Some(directory) = path.parent().filter(|_| !files.is_empty()) {
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| failed(directory, error))?;
    }
    Ok(files.len())
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
