//! This process: the lock that makes it the only one, and its own limits.

use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use crate::agent::config::Resolved;
use crate::agent::kubelet::setup::SetupError;
use crate::platform::rt;
use crate::platform::rt::shutdown::{self, Shutdown};
use crate::platform::sys::{clone, lock, memory, node};

/// Waits for the lock file, if one is configured. `None` when shutdown was requested first.
pub(super) async fn acquire_lock(
    resolved: &Resolved,
    trigger: &shutdown::ShutdownTrigger,
    shutdown: &Shutdown,
) -> Result<Option<Option<lock::FileLock>>, SetupError> {
    let path = resolved.flags.lock_file.as_str();
    if path.is_empty() {
        return Ok(Some(None));
    }
    log::info!(path = path; "Acquiring file lock");
    // The wait may be long, and signals have to be handled meanwhile.
    let (taken, waiting) = oneshot::channel();
    let owned = PathBuf::from(path);
    rt::spawn_thread("lock file", move || drop(taken.send(lock::acquire(&owned))))
        .map_err(SetupError::Thread)?;
    let held = tokio::select! {
        biased;
        // The waiting thread ends with the process.
        () = shutdown.requested() => return Ok(None),
        Ok(held) = waiting => held?,
        else => return Ok(None),
    };
    if resolved.flags.exit_on_lock_contention {
        let contended = lock::contention(Path::new(path)).map_err(SetupError::Contention)?;
        let trigger = trigger.clone();
        rt::spawn("lock contention", async move {
            contended.await;
            log::info!("Lock file contention detected, exiting; pods keep running");
            trigger.request();
        });
    }
    Ok(Some(Some(held)))
}

/// The main thread's, which decodes the store at a start, and that of all others, which read records meanwhile.
const ARENAS: u8 = 2;

/// Sets limits of this process. None of them is essential for the start.
pub(super) fn limit_process(resolved: &Resolved) {
    memory::limit_arenas(ARENAS);
    if !node::is_root() {
        log::error!("Agent is not running as root");
    }
    // Secrets are in this process's memory, so it is excluded from core dumps. Child processes are not
    // affected.
    if let Err(error) = clone::hide() {
        log::warn!(err:% = error; "Failed to exclude memory from core dumps, continuing");
    }
    if let Err(error) = node::set_oom_score_adj(resolved.kubelet.oom_score_adj) {
        log::warn!(value = resolved.kubelet.oom_score_adj, err:% = error; "Failed to set own oom_score_adj, \
             continuing");
    }
    let wanted = u64::try_from(resolved.kubelet.max_open_files).unwrap_or(0);
    match node::raise_open_files(wanted) {
        Ok(granted) if granted < wanted => {
            log::info!(wanted = wanted, granted = granted; "Limited maxOpenFiles to the hard limit");
        }
        Ok(_) => {}
        Err(error) => log::warn!(err:% = error; "Failed to set open file limit"),
    }
}

/// Makes one of the agent's own directories.
pub(super) fn make_dir(path: &Path, mode: u32) -> Result<(), SetupError> {
    crate::platform::sys::dir::make_dir(path, mode)
        .map_err(|source| SetupError::Directory { path: path.to_owned(), source })
}
