//! The lock file (`--lock-file`), as the kubelet takes it: an exclusive flock, held until the process ends.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use nix::libc;

use crate::platform::sys::inotify::{InotifyError, Interest, Watcher};

#[derive(Debug, thiserror::Error)]
#[error("unable to acquire file lock on {path:?}")]
pub struct LockError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

/// Holds the lock while it lives.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: Flock<File>,
}

/// Holds the lock of a byte while it lives.
#[derive(Debug)]
pub(crate) struct ByteLock {
    _file: File,
}

/// Waits for and takes the lock. Blocks the thread, as upstream does before anything else has started.
pub(crate) fn acquire(path: &Path) -> Result<FileLock, LockError> {
    let file = open(path)?;
    let locked =
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| error(path, errno.into()))?;
    Ok(FileLock { _file: locked })
}

/// Waits for the lock and takes it shared.
pub(crate) fn acquire_shared(path: &Path) -> Result<FileLock, LockError> {
    let file = open(path)?;
    let locked = Flock::lock(file, FlockArg::LockShared).map_err(|(_, errno)| error(path, errno.into()))?;
    Ok(FileLock { _file: locked })
}

/// Takes the lock exclusively if it is free.
pub(crate) fn try_acquire(path: &Path) -> Result<Option<FileLock>, LockError> {
    try_lock(path, open(path)?)
}

/// Takes the lock of an existing file or directory, if it is free.
pub(crate) fn try_acquire_existing(path: &Path) -> Result<Option<FileLock>, LockError> {
    try_lock(path, File::open(path).map_err(|source| error(path, source))?)
}

/// Takes the lock of one byte (not negative) of a file exclusively if it is free; other bytes are
/// independent. The byte need not exist.
#[expect(clippy::cast_possible_truncation, reason = "the kernel's small constants, which libc types as int")]
pub(crate) fn try_acquire_byte(path: &Path, byte: i32) -> Result<Option<ByteLock>, LockError> {
    let file = open(path)?;
    // Of the open file, not of the process: threads exclude each other, too.
    let range = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(byte),
        l_len: 1,
        l_pid: 0,
    };
    match fcntl(&file, FcntlArg::F_OFD_SETLK(&range)) {
        Ok(_) => Ok(Some(ByteLock { _file: file })),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
        Err(errno) => Err(error(path, errno.into())),
    }
}

fn try_lock(path: &Path, file: File) -> Result<Option<FileLock>, LockError> {
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(locked) => Ok(Some(FileLock { _file: locked })),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(error(path, errno.into())),
    }
}

fn error(path: &Path, source: std::io::Error) -> LockError {
    LockError { path: path.to_owned(), source }
}

fn open(path: &Path) -> Result<File, LockError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|source| error(path, source))
}

/// Resolves when another process opens or deletes the lock file. Call it after [`acquire`], so that the
/// agent's own opening does not count.
///
/// # Errors
/// When the kernel has no more inotify watches.
pub(crate) fn contention(path: &Path) -> Result<impl Future<Output = ()> + use<>, InotifyError> {
    let watcher = Watcher::new()?;
    watcher.watch(path, Interest::Opening)?;
    // A failed wait can only mean that the process is going down; contention is not reported then.
    Ok(async move {
        if watcher.read(&mut Vec::new()).await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_held_by_one_and_another_byte_by_another() {
        let path = std::env::temp_dir().join(format!("edge-agent-byte-lock-{}", std::process::id()));
        let held = try_acquire_byte(&path, 7).unwrap();
        assert!(held.is_some() && try_acquire_byte(&path, 7).unwrap().is_none());
        assert!(try_acquire_byte(&path, i32::MAX).unwrap().is_some());
        drop(held);
        assert!(try_acquire_byte(&path, 7).unwrap().is_some());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_lock_is_exclusive_and_a_second_opener_is_noticed() {
        let path = std::env::temp_dir().join(format!("edge-agent-lock-{}", std::process::id()));
        let held = acquire(&path).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let contended = contention(&path).unwrap();
            let other = File::open(&path).unwrap();
            contended.await;
            assert!(Flock::lock(other, FlockArg::LockExclusiveNonblock).is_err());
        });
        drop(held);
        std::fs::remove_file(path).unwrap();
    }
}
