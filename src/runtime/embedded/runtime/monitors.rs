//! Starts monitors, and waits for processes to end.
//!
//! Owns monitors as children of this process, and reaps them.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::super::client::{Monitor, Watch};
use super::super::facts::unified;
use super::super::layout::SandboxDir;
use super::processes::Process;
use super::{Failure, RuntimeInner};
use crate::platform::logging::chain;
use crate::platform::rt;

/// Poll interval: a killed process ends after a moment, and one that is not a child of this process cannot be
/// waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Starts the monitor of a sandbox and returns its process id when it is ready.
pub(super) async fn spawn(
    shared: &Rc<RuntimeInner>,
    dir: &SandboxDir,
    cgroups: &[PathBuf],
) -> Result<i32, Failure> {
    let cgroup = unified(cgroups).map(Path::to_owned);
    let spawned = shared.fork_server.spawn(dir, cgroup).await;
    let spawned = spawned
        .map_err(|error| Failure::refused(format!("failed to start the pod's monitor: {}", chain(&error))))?;
    let pid = spawned.pid;
    rt::spawn("reap monitor", spawned.reap());
    Ok(pid)
}

/// Does what a monitor's start begins with, beside what has to be done before it.
pub(super) fn prepare(shared: &RuntimeInner, dir: &SandboxDir) {
    rt::spawn("prepare monitor", Rc::clone(&shared.fork_server).prepare(dir.clone()));
}

/// A handle on a sandbox's monitor, whether or not the monitor exists.
pub(super) fn handle(dir: &SandboxDir) -> Monitor {
    Monitor::new(dir)
}

pub(super) async fn watch(dir: &SandboxDir) -> Result<Watch, Failure> {
    let watch = handle(dir).watch().await;
    watch.map_err(|error| Failure::because("failed to watch the pod's monitor", &error))
}

/// Waits until a process has ended. `false` when it is still there after `patience`.
pub(super) async fn until_gone(process: Process, patience: Duration) -> bool {
    let gone = async {
        while process.is_alive() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(patience, gone).await.is_ok()
}
