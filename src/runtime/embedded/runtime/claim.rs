//! Ownership of the runtime's directories: one process at a time, `agent` or `agent cri`.
//!
//! Owns the lock files. Two owners would each treat the other's pods as their own, and undo what the other is
//! making.

use std::path::PathBuf;
use std::time::Duration;

use super::super::layout::Layout;
use super::OpenError;
use crate::platform::rt;
use crate::platform::sys::lock::{self, FileLock, LockError};

/// A process that is ending still holds the locks, and so does, for a moment, a child that it was starting
/// when it was killed.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// This process owns the directories while the value lives. The kernel releases the locks when the process
/// ends.
pub(super) struct Claim {
    _locks: Vec<FileLock>,
}

/// Takes the locks of both trees.
///
/// # Errors
/// [`OpenError::InUse`] when another process holds one of them and does not end.
pub(super) async fn acquire(layout: &Layout) -> Result<Claim, OpenError> {
    let mut locks = Vec::new();
    for path in layout.locks() {
        locks.push(wait_for(path).await?);
    }
    Ok(Claim { _locks: locks })
}

async fn wait_for(path: PathBuf) -> Result<FileLock, OpenError> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let wanted = path.clone();
        let tried: Result<Option<FileLock>, LockError> =
            rt::blocking("lock runtime", move || lock::try_acquire(&wanted)).await;
        match tried.map_err(OpenError::Lock)? {
            Some(lock) => return Ok(lock),
            None if tokio::time::Instant::now() >= deadline => return Err(OpenError::InUse(path)),
            None => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}
