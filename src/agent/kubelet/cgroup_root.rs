//! The cgroup root of this agent's pods, claimed before any scan for orphaned cgroups.
//!
//! Owns how long the start waits for an agent that is still exiting. `cgroup::claim` decides who owns the
//! root.

use std::time::Duration;

use crate::platform::cgroup::claim::{HeldError, claim};
use crate::platform::sys::lock::ByteLock;
use crate::pod::executor::ExecutorConfig;

/// An exiting agent still holds it, and so does, briefly, a process that it was just starting when it was
/// killed.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Claims it, if pod cgroups are created at all (`cgroupsPerQOS`).
pub(super) async fn acquire(executor: Option<&ExecutorConfig>) -> Result<Option<ByteLock>, HeldError> {
    let Some(executor) = executor.filter(|executor| executor.layout.per_qos) else { return Ok(None) };
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        // In this thread: it opens one file, and nothing else runs yet.
        match claim(&executor.cgroup, &executor.layout.root) {
            Err(_) if tokio::time::Instant::now() < deadline => tokio::time::sleep(LOOK_AGAIN).await,
            settled => return settled,
        }
    }
}
