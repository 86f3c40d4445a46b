//! Exits: of containers, as monitors report them, and of monitors themselves.
//!
//! Owns one task per monitor, which only waits for its messages. What a monitor's end means for its pod is
//! decided here; applying the pod's restart policy is the caller's job.

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

/// How long a monitor may take from closing its socket to its exit.
const ENDING: Duration = Duration::from_secs(1);
/// How long a starting agent waits for containers that are being started.
const CATCH_UP: Duration = Duration::from_secs(5);
/// Exit code of a killed process.
const KILLED: i32 = 128 + 9;

/// Watches a sandbox's monitor until it has ended.
pub(super) fn begin(shared: &Rc<RuntimeInner>, id: SandboxId, mut watch: Watch) {
    let shared = Rc::clone(shared);
    rt::spawn("monitor watch", async move {
        let dir = shared.config.layout.sandbox(&id);
        loop {
            listen(&shared, &mut watch).await;
            // The monitor drops a watch that reads too slowly.
            if !Process::monitor_of(&dir).is_some_and(Process::is_alive) {
                break;
            }
            // Boxed, as the next one: a task that only listens has no room for a request.
            match Box::pin(monitors::watch(&dir)).await {
                Ok(again) => watch = again,
                Err(failure) => {
                    // A monitor that is ending does not answer either, which is expected.
                    if !Box::pin(until_ended(&dir)).await {
                        log::warn!(sandbox:% = id, err = failure.message; "Watched monitor does not respond");
                    }
                    break;
                }
            }
        }
        monitor_gone(&shared, &id);
    });
}

/// Waits a moment for a monitor to end.
async fn until_ended(dir: &SandboxDir) -> bool {
    match Process::monitor_of(dir) {
        Some(process) => monitors::until_gone(process, ENDING).await,
        None => true,
    }
}

async fn listen(shared: &RuntimeInner, watch: &mut Watch) {
    while let Some(reply) = watch.next().await {
        take(shared, reply);
    }
}

/// Takes the state of all containers from a new watch. An earlier agent may have asked for a start and died before the
/// answer: such a container must not be taken for one that was never started, or it would run twice.
pub(super) async fn catch_up(shared: &RuntimeInner, watch: &mut Watch) {
    let told = async {
        while let Some(reply) = watch.next().await {
            if reply == Reply::Done {
                break;
            }
            take(shared, reply);
        }
    };
    // A start that takes longer is of a container that hangs: other pods do not wait for it.
    let _ = tokio::time::timeout(CATCH_UP, told).await;
}

fn take(shared: &RuntimeInner, reply: Reply) {
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

fn container_runs(shared: &RuntimeInner, id: &ContainerId, started: Started) {
    let mut state = shared.state.borrow_mut();
    let Some(container) = state.containers.get_mut(id) else { return };
    // The task that starts it reports the start, unless an earlier agent started it.
    if container.phase == ContainerPhase::Created {
        container.phase = ContainerPhase::Running(started);
        drop(state);
        shared.hint();
    }
}

/// Handles the end of a container's first process.
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

/// Records a container's end, once. The argument of `how` is true when the kernel killed one of its processes
/// for lack of memory.
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
            // Processes that it left behind in shared namespaces are killed, too.
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

/// A monitor has ended, for whatever reason: none of its containers' processes may continue.
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
