//! Starting monitors, and waiting for processes to be gone.
//!
//! Owns monitors as children of this process, so that none stays a zombie.

use std::rc::Rc;
use std::time::Duration;

use super::super::client::{self, Monitor, Watch};
use super::super::layout::SandboxDir;
use super::processes::Process;
use super::{Failure, Shared};
use crate::logging::chain;
use crate::rt;

/// A process that was killed is gone after a moment; there is nothing to wait on for one that is not our child.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Starts the monitor of a sandbox and returns its process id when it is ready.
pub(super) async fn spawn(shared: &Rc<Shared>, dir: &SandboxDir) -> Result<i32, Failure> {
    let spawned = client::spawn_monitor(&shared.config.program, dir).await;
    let spawned = spawned.map_err(|error| {
        Failure::refused(format!("failed to start the pod's monitor: {}", chain(&error)))
    })?;
    let pid = spawned.pid;
    rt::spawn("reap monitor", spawned.reap());
    Ok(pid)
}

/// A way to talk to a sandbox's monitor, whether or not there is one.
pub(super) fn handle(dir: &SandboxDir) -> Monitor {
    Monitor::new(dir)
}

/// Listens to a monitor.
pub(super) async fn watch(dir: &SandboxDir) -> Result<Watch, Failure> {
    let watch = handle(dir).watch().await;
    watch.map_err(|error| Failure::because("failed to listen to the pod's monitor", &error))
}

/// Waits for a process to be gone. `false` when it is still there after `patience`.
pub(super) async fn until_gone(process: Process, patience: Duration) -> bool {
    let gone = async {
        while process.is_alive() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(patience, gone).await.is_ok()
}
