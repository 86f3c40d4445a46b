//! The lock file (`--lock-file`), as the kubelet takes it: an exclusive flock, held until the process ends.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

/// The lock could not be taken.
#[derive(Debug, thiserror::Error)]
#[error("unable to acquire file lock on {path:?}")]
pub struct LockError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

/// Holds the lock while it lives.
#[derive(Debug)]
pub struct FileLock {
    _file: Flock<File>,
}

/// Waits for and takes the lock. Blocks the thread, as upstream does before anything else has started.
///
/// # Errors
/// When the file cannot be made or locked.
pub fn acquire(path: &Path) -> Result<FileLock, LockError> {
    let error = |source| LockError { path: path.to_owned(), source };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(error)?;
    let locked = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| error(errno.into()))?;
    Ok(FileLock { _file: locked })
}
