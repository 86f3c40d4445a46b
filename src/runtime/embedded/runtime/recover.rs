//! Recovery at the start: what an earlier agent left is adopted, undone or removed.
//!
//! Expected flow: read every sandbox's record. Remove a sandbox that was being made. If a sandbox's monitor
//! answers, watch it: its containers have the state in their files, and later changes arrive by the watch. If
//! a sandbox's monitor is gone, the sandbox is not ready and its containers have ended. Then remove
//! everything without a record: monitors, networks, writable layers.
//!
//! Guarantees: nothing that runs and has a record is touched. What cannot be removed stays listed as not
//! ready, so that its removal is requested and retried.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::super::layout::{Layout, SandboxDir};
use super::processes::{self, Process};
use super::record::{self, ContainerRecord, SandboxRecord, SandboxStage};
use super::state::{Container, ContainerPhase, Sandbox};
use super::{OpenError, RuntimeInner, container, files, monitors, sandbox, watch};
use crate::model::ordered::Ordered as _;
use crate::model::types::{ContainerId, SandboxId};
use crate::platform::logging::chain;
use crate::platform::rt;

/// A sandbox's directory as it was found.
struct RecoveredSandbox {
    id: SandboxId,
    /// `None` when its record cannot be read.
    record: Option<SandboxRecord>,
    containers: Vec<FoundContainer>,
    monitor: Option<Process>,
}

struct FoundContainer {
    id: ContainerId,
    /// `None` when its record cannot be read.
    record: Option<ContainerRecord>,
    phase: ContainerPhase,
}

/// What an earlier agent left, as it was found.
pub(super) struct Remains {
    sandboxes: Vec<RecoveredSandbox>,
    /// The directory's name and the process.
    monitors: Vec<(String, Process)>,
}

/// Reads all records, and looks for monitors. Blocks.
pub(super) fn look(layout: &Layout) -> Result<Remains, OpenError> {
    let sandboxes = scan(layout)?;
    Ok(Remains { sandboxes, monitors: processes::monitors_below(&layout.sandboxes()) })
}

/// Recovers all sandboxes and containers.
pub(super) async fn recover(shared: &Rc<RuntimeInner>, remains: Remains) {
    let Remains { sandboxes: mut found, monitors } = remains;
    assign_monitors(monitors, &mut found);
    for found in found {
        recover_sandbox(shared, found).await;
    }
    remove_unrecorded(shared).await;
}

fn scan(layout: &Layout) -> Result<Vec<RecoveredSandbox>, OpenError> {
    let path = layout.sandboxes();
    let failed = |source| OpenError::Records { path: path.clone(), source };
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str() else { continue };
        let id = SandboxId::from(name);
        let dir = layout.sandbox(&id);
        files::close_to_others(&dir);
        let record = readable(SandboxRecord::read(&dir), &dir);
        let monitor = Process::monitor_of(&dir).filter(|monitor| monitor.is_alive());
        all.push(RecoveredSandbox { containers: scan_containers(&dir), id, record, monitor });
    }
    Ok(all)
}

fn readable<T>(record: Result<T, record::RecordError>, dir: &SandboxDir) -> Option<T> {
    match record {
        Ok(record) => Some(record),
        Err(error) => {
            if !error.is_missing() {
                log::warn!(path:% = dir.0.display(), err = chain(&error); "Record is damaged, removing the \
                     object it describes");
            }
            None
        }
    }
}

fn scan_containers(dir: &SandboxDir) -> Vec<FoundContainer> {
    let entries = std::fs::read_dir(dir.containers()).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str().map(str::to_owned));
    names
        .map(|name| {
            let container = dir.container(&name);
            let record = readable(ContainerRecord::read(&container), dir);
            let phase = match &record {
                None => ContainerPhase::Making,
                Some(record) if !record.is_made => ContainerPhase::Making,
                Some(record) if record.end.is_some() => ContainerPhase::Exited,
                // How it ended is recorded when the container is added.
                Some(_) => {
                    record::started(&container).map_or(ContainerPhase::Created, ContainerPhase::Running)
                }
            };
            FoundContainer { id: ContainerId::from(name), record, phase }
        })
        .collect()
}

/// Finds monitors that have not written their process id yet, and kills those whose directory no longer
/// exists.
fn assign_monitors(running: Vec<(String, Process)>, found: &mut [RecoveredSandbox]) {
    for (name, process) in running {
        if let Some(found) = found.iter_mut().find(|found| found.id.as_str() == name) {
            found.monitor.get_or_insert(process);
        } else {
            log::warn!(sandbox = name, pid = process.pid; "Killing orphaned monitor");
            process.kill();
        }
    }
}

async fn recover_sandbox(shared: &Rc<RuntimeInner>, found: RecoveredSandbox) {
    let RecoveredSandbox { id, record, containers, monitor } = found;
    let stage = record.as_ref().map_or(SandboxStage::Making, |record| record.stage);
    let mut sandbox = record.as_ref().map_or_else(
        || Sandbox::new(&crate::runtime::SandboxConfig::default(), shared.clock.now()),
        Sandbox::from_record,
    );
    sandbox.monitor = monitor.map(|monitor| monitor.pid);
    let is_undecided = containers.iter().any(|container| container.phase == ContainerPhase::Created);
    shared.state.borrow_mut().sandboxes.insert(id.clone(), sandbox);
    for container in containers {
        adopt_container(shared, &id, container).await;
    }
    if stage == SandboxStage::Making {
        undo(shared, &id).await;
        return;
    }
    record_exits(shared, &id);
    let dir = shared.config.layout.sandbox(&id);
    let Some(process) = monitor else {
        watch::monitor_gone(shared, &id);
        return;
    };
    // Without a common protocol version the pod could neither be stopped nor watched: the agent recreates it.
    // `agent upgrade` refuses upgrades that would lead here.
    let failure = if record.is_some_and(|record| !record.is_understood()) {
        "unsupported protocol version".to_owned()
    } else {
        match monitors::watch(&dir).await {
            Ok(mut listening) => {
                if is_undecided {
                    watch::catch_up(shared, &mut listening).await;
                }
                return watch::begin(shared, id, listening);
            }
            Err(failure) => failure.message,
        }
    };
    log::warn!(sandbox:% = id, pid = process.pid, err = failure; "Pod monitor does not respond, killing it");
    process.kill();
    let _ = monitors::until_gone(process, super::sandbox::KILL_PATIENCE).await;
    watch::monitor_gone(shared, &id);
}

async fn adopt_container(shared: &Rc<RuntimeInner>, sandbox: &SandboxId, found: FoundContainer) {
    let FoundContainer { id, record, phase } = found;
    let container = record.as_ref().map_or_else(
        || Container::new(sandbox, &crate::runtime::ContainerConfig::default(), shared.clock.now()),
        |record| Container::from_record(record, phase),
    );
    shared.state.borrow_mut().containers.insert(id.clone(), container);
    if phase != ContainerPhase::Making {
        return;
    }
    match container::dismantle(shared, sandbox, &id).await {
        Ok(()) => drop(shared.state.borrow_mut().containers.remove(&id)),
        Err(failure) => {
            log::warn!(container:% = id, err = failure.message; "Failed to clean up container left \
                 incomplete by a previous agent");
        }
    }
}

/// Records the exits of containers that ended while no agent ran.
fn record_exits(shared: &RuntimeInner, id: &SandboxId) {
    let containers = shared.state.borrow().containers_of(id);
    for container in containers {
        let dir = shared.config.layout.sandbox(id).container(container.as_str());
        if let Some(exited) = record::exited(&dir) {
            watch::container_ended(shared, &container, exited);
        }
    }
}

async fn undo(shared: &Rc<RuntimeInner>, id: &SandboxId) {
    let containers = shared.state.borrow().containers_of(id);
    let undone = async {
        for container in &containers {
            container::remove_locked(shared, container).await?;
        }
        sandbox::dismantle(shared, id).await
    };
    match undone.await {
        Ok(()) => drop(shared.state.borrow_mut().sandboxes.remove(id)),
        Err(failure) => {
            log::warn!(sandbox:% = id, err = failure.message; "Failed to clean up sandbox left incomplete \
                 by a previous agent");
            shared.set_stage(id, SandboxStage::NotReady);
        }
    }
}

/// Removes everything without a record: after a reboot that is all that remains on disk.
async fn remove_unrecorded(shared: &Rc<RuntimeInner>) {
    let (live, containers): (Vec<SandboxId>, BTreeSet<String>) = {
        let state = shared.state.borrow();
        (
            state.sandboxes.keys().cloned().collect(),
            state.containers.keys().map(ToString::to_string).into_set(),
        )
    };
    let (network, layout) = (shared.network.current(), shared.config.layout.clone());
    let (errors, orphans) = rt::blocking("delete stale records", move || {
        (network.recover(&live), files::orphaned_layers(&layout, |name| containers.contains(name)))
    })
    .await;
    for error in errors {
        log::warn!(err = chain(&error); "Failed to clean up pod network");
    }
    if !orphans.is_empty() {
        log::info!(count = orphans.len(); "Removing files of deleted containers");
        // In a task of its own: it may take long, and nothing depends on it.
        rt::spawn("remove orphaned layers", async move {
            for path in orphans {
                rt::blocking("remove writable layer", move || files::remove_discarded(&path)).await;
            }
        });
    }
}
