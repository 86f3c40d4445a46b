//! File system calls that wait for another machine, each in a thread of its own: an unreachable server must
//! block neither a pod's worker nor the blocking pool.
//!
//! Owns which jobs are running. A thread that hangs in the kernel ends with the process; there is at most one
//! per path.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::platform::rt;

/// Paths whose job has not ended.
pub(crate) type RemoteJobs = Rc<RefCell<BTreeSet<PathBuf>>>;

/// A job gave no answer. The messages end up in the status of the pod that waits for the volume.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    /// This job, or an earlier one for the same path, is still running.
    #[error("waiting for the server to respond")]
    Waiting,
    #[error("start a thread: {0}")]
    Thread(io::Error),
}

/// Runs `job` and waits at most `patience` for its answer. The job continues after that, and no other job
/// starts for `path` before it has ended.
pub(crate) async fn run<T: Send + 'static>(
    jobs: &RemoteJobs,
    path: &Path,
    patience: Duration,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RemoteError> {
    if rt::jobs_run_inline() {
        return Ok(job());
    }
    if !jobs.borrow_mut().insert(path.to_owned()) {
        return Err(RemoteError::Waiting);
    }
    let (answer, mut answered) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let started = rt::spawn_thread("remote volume", move || {
        // The caller may be gone.
        let _ = answer.send(job());
        drop(end);
    });
    let (running, owned) = (Rc::clone(jobs), path.to_owned());
    let forget = move || running.borrow_mut().remove(&owned);
    if let Err(error) = started {
        forget();
        return Err(RemoteError::Thread(error));
    }
    rt::spawn("remote volume", async move {
        // The sender is dropped at the end of the thread, by panic too.
        let _ = ended.await;
        forget();
    });
    match tokio::time::timeout(patience, &mut answered).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(_)) | Err(_) => Err(RemoteError::Waiting),
    }
}

#[cfg(test)]
mod tests {
    use super::super::run as block_on;
    use super::*;

    #[test]
    fn hanging_remote_job_is_waited_for_briefly_and_run_once() {
        let jobs = RemoteJobs::default();
        let path = Path::new("/pods/u/v");
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        block_on(async {
            let brief = Duration::from_millis(20);
            let first = run(&jobs, path, brief, move || hangs.recv()).await;
            assert!(matches!(first, Err(RemoteError::Waiting)));
            let second = run(&jobs, path, brief, || unreachable!("the first one has not ended")).await;
            assert!(matches!(second, Err::<(), _>(RemoteError::Waiting)));
            release.send(()).unwrap();
            let patience = Duration::from_secs(10);
            let other = run(&jobs, Path::new("/other"), patience, || 7).await;
            assert!(matches!(other, Ok(7)));
            let ended = async {
                while !jobs.borrow().is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(patience, ended).await.expect("both have ended");
            assert!(matches!(run(&jobs, path, patience, || 8).await, Ok(8)));
        });
    }
}
