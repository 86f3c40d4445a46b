//! Ends: of containers, as monitors tell them, and of monitors themselves.
//!
//! Owns one task per monitor, which waits and does nothing else. What a monitor's end means for its pod is
//! decided here; what the pod's restart policy makes of it is not ours.

use std::rc::Rc;
use std::time::Duration;

use super::super::client::Watch;
use super::super::layout::SandboxDir;
use super::super::protocol::{Exited, Reply, Started};
use super::api::EventKind;
use super::processes::Process;
use super::record::{self, ContainerEnd, ContainerRecord, SandboxStage};
use super::state::ContainerPhase;
use super::{RuntimeInner, monitors};
use crate::model::types::{ContainerId, SandboxId};
use crate::platform::cgroup::container as cgroup;
use crate::platform::logging::chain;
use crate::platform::rt;

/// How long a monitor may take from closing its socket to its end.
const ENDING: Duration = Duration::from_secs(1);
/// What a killed process's exit code is.
const KILLED: i32 = 128 + 9;

/// Listens to a sandbox's monitor until it is gone.
pub(super) fn begin(shared: &Rc<RuntimeInner>, id: SandboxId, mut watch: Watch) {
    let shared = Rc::clone(shared);
    rt::spawn("monitor watch", async move {
        let dir = shared.config.layout.sandbox(&id);
        loop {
            listen(&shared, &mut watch).await;
            // It may have grown tired of a listener that was too slow.
            if !Process::monitor_of(&dir).is_some_and(Process::is_alive) {
                break;
            }
            match monitors::watch(&dir).await {
                Ok(again) => watch = again,
                Err(failure) => {
                    // One that is ending does not answer either, and that is as it should be.
                    if !until_ended(&dir).await {
                        log::warn!(sandbox:% = id, err = failure.message; "Watched monitor does not respond");
                    }
                    break;
                }
            }
        }
        monitor_gone(&shared, &id);
    });
}

/// Gives a monitor a moment to be gone.
async fn until_ended(dir: &SandboxDir) -> bool {
    match Process::monitor_of(dir) {
        Some(process) => monitors::until_gone(process, ENDING).await,
        None => true,
    }
}

async fn listen(shared: &RuntimeInner, watch: &mut Watch) {
    while let Some(reply) = watch.next().await {
        match reply {
            Reply::Running { container, started } => {
                container_runs(shared, &ContainerId::from(container), started);
            }
            Reply::Exited { container, exited } => {
                container_ended(shared, &ContainerId::from(container), exited);
            }
            Reply::Done | Reply::Failed { .. } => {}
        }
    }
}

fn container_runs(shared: &RuntimeInner, id: &ContainerId, started: Started) {
    let mut state = shared.state.borrow_mut();
    let Some(container) = state.containers.get_mut(id) else { return };
    // Whoever starts it tells of it, unless that was an agent before us.
    if container.phase == ContainerPhase::Created {
        container.phase = ContainerPhase::Running(started);
        drop(state);
        shared.hint();
    }
}

/// A container's first process has ended.
pub(super) fn container_ended(shared: &RuntimeInner, id: &ContainerId, exited: Exited) {
    end(shared, id, |oom_killed| ContainerEnd {
        code: exited.code,
        at: exited.at.as_nanos(),
        reason: reason(exited.code, oom_killed).to_owned(),
        message: String::new(),
    });
}

fn reason(code: i32, oom_killed: bool) -> &'static str {
    match (oom_killed, code) {
        (true, _) => "OOMKilled",
        (false, 0) => "Completed",
        (false, _) => "Error",
    }
}

/// Notes an end, once. `how` is told whether the kernel killed something of it for want of memory.
pub(super) fn end(shared: &RuntimeInner, id: &ContainerId, how: impl FnOnce(bool) -> ContainerEnd) {
    let sandbox = {
        let state = shared.state.borrow();
        let Some(container) = state.containers.get(id) else { return };
        if matches!(container.phase, ContainerPhase::Exited | ContainerPhase::Making) {
            return;
        }
        container.sandbox.clone()
    };
    let dir = shared.config.layout.sandbox(&sandbox).container(id.as_str());
    match ContainerRecord::read(&dir) {
        Ok(mut record) => {
            // What its first process left behind in namespaces that it shared goes with it.
            let _ = cgroup::kill_all(&record.cgroups);
            record.end = Some(how(crate::platform::cgroup::usage::oom_kills(&record.cgroups) > 0));
            if let Err(error) = record.write(&dir) {
                log::warn!(container:% = id, err = chain(&error); "Failed to store container exit state");
            }
        }
        Err(error) => {
            log::warn!(container:% = id, err = chain(&error); "Failed to read record of exited container");
        }
    }
    if let Some(container) = shared.state.borrow_mut().containers.get_mut(id) {
        container.phase = ContainerPhase::Exited;
    }
    shared.ended.notify_waiters();
    shared.announce(EventKind::Stopped, &sandbox, Some(id));
}

/// A monitor is gone, whatever the reason: nothing of its containers may go on.
pub(super) fn monitor_gone(shared: &RuntimeInner, id: &SandboxId) {
    let (stage, containers) = {
        let mut state = shared.state.borrow_mut();
        let containers = state.containers_of(id);
        let Some(sandbox) = state.sandboxes.get_mut(id) else { return };
        sandbox.monitor = None;
        (sandbox.stage, containers)
    };
    for container in &containers {
        let phase = shared.state.borrow().containers.get(container).map(|container| container.phase);
        if !matches!(phase, Some(ContainerPhase::Running(_) | ContainerPhase::Starting)) {
            continue;
        }
        let dir = shared.config.layout.sandbox(id).container(container.as_str());
        match record::exited(&dir) {
            Some(exited) => container_ended(shared, container, exited),
            None => end(shared, container, |oom_killed| ContainerEnd {
                code: KILLED,
                at: shared.clock.now().as_nanos(),
                reason: reason(KILLED, oom_killed).to_owned(),
                message: "the pod's monitor has died, and the container was killed with it".to_owned(),
            }),
        }
    }
    if stage == SandboxStage::Ready {
        shared.set_stage(id, SandboxStage::NotReady);
        shared.announce(EventKind::Stopped, id, None);
    }
    shared.ended.notify_waiters();
}
