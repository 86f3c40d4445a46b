//! Containers: creating, starting, stopping and removing them.
//!
//! Owns the order of effects. Guarantees: one container of a sandbox has a name at a time; a container whose
//! creation failed is removed; a container runs at most once.

use std::rc::Rc;
use std::time::Duration;

use super::super::layout::ContainerDir;
use super::api::EventKind;
use super::record::{ContainerEnd, ContainerRecord, SandboxRecord, SandboxStage};
use super::state::{Container, ContainerPhase};
use super::{
    Failure, RuntimeInner, cgroups, creation, fault, files, monitors, no_container, no_sandbox, usage, watch,
};
use crate::model::types::{ContainerId, SandboxId};
use crate::platform::cgroup::container as cgroup;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::runtime::{
    ContainerConfig, ContainerFigures, ErrorKind, LinuxResources, NamespaceMode, SandboxConfig,
};

const SIGKILL: i32 = 9;
/// How long a killed container may take to end: a process in the middle of a slow write takes long.
const KILL_PATIENCE: Duration = Duration::from_secs(120);
/// How long a container that is being removed may take to end after it was killed.
const REMOVE_PATIENCE: Duration = Duration::from_secs(10);
/// How often the removal of a cgroup is tried before it counts as stuck, and the pause in between.
const CLEAR_ATTEMPTS: usize = 50;
const CLEAR_PAUSE: Duration = Duration::from_millis(20);
/// containerd's exit code of a container that could not be started.
const START_FAILED: i32 = 128;

pub(super) async fn create(
    shared: Rc<RuntimeInner>,
    sandbox: SandboxId,
    config: ContainerConfig,
    sandbox_config: SandboxConfig,
) -> Result<ContainerId, Failure> {
    let _held = shared.hold(&sandbox).await.ok_or_else(|| no_sandbox(&sandbox))?;
    let id = ContainerId::from(files::new_id()?);
    let created_at = shared.clock.now();
    let monitor = {
        let mut state = shared.state.borrow_mut();
        let found = state.sandboxes.get(&sandbox).ok_or_else(|| no_sandbox(&sandbox))?;
        let monitor = found.monitor.filter(|_| found.stage == SandboxStage::Ready);
        let monitor = monitor
            .ok_or_else(|| Failure::refused(format!("sandbox container \"{sandbox}\" is not running")))?;
        if let Some(other) = state.same_container(&sandbox, &config) {
            let pod = &sandbox_config.pod;
            let name =
                format!("{}_{}_{}_{}_{}", config.name, pod.name, pod.namespace, pod.uid, config.attempt);
            return Err(Failure::new(
                ErrorKind::AlreadyExists,
                format!(
                    "failed to reserve container name {name:?}: name {name:?} is reserved for {:?}",
                    other.as_str()
                ),
            ));
        }
        state.containers.insert(id.clone(), Container::new(&sandbox, &config, created_at));
        monitor
    };
    let shared_pids = share_pids(&shared, &sandbox, &config).await;
    let creation = creation::Creation::new(&shared, &sandbox, &id, config, created_at, monitor);
    match rt::blocking("create container", move || shared_pids.and_then(|()| creation.carry_out())).await {
        Ok((record, skipped)) => {
            shared.warn_of(skipped);
            let container = Container::from_record(&record, ContainerPhase::Created);
            shared.state.borrow_mut().containers.insert(id.clone(), container);
            shared.announce(EventKind::Created, &sandbox, Some(&id));
            Ok(id)
        }
        Err(failure) => {
            match dismantle(&shared, &sandbox, &id).await {
                Ok(()) => drop(shared.state.borrow_mut().containers.remove(&id)),
                Err(left) => {
                    log::warn!(container:% = id, err = left.message; "Failed to clean up after failed \
                         container creation");
                    // Listed, so that its removal is requested.
                    if let Some(container) = shared.state.borrow_mut().containers.get_mut(&id) {
                        container.phase = ContainerPhase::Created;
                    }
                }
            }
            Err(failure)
        }
    }
}

/// A container that shares process ids in a sandbox made without a shared PID namespace: the sandbox gets one
/// now. With containerd its pause container has one from the beginning.
async fn share_pids(
    shared: &Rc<RuntimeInner>,
    sandbox: &SandboxId,
    config: &ContainerConfig,
) -> Result<(), Failure> {
    if config.security.namespaces.pid != NamespaceMode::Pod || config.security.target.is_some() {
        return Ok(());
    }
    let dir = shared.config.layout.sandbox(sandbox);
    let of_record = dir.clone();
    let read = rt::blocking("read sandbox", move || SandboxRecord::read(&of_record)).await;
    let mut record = read.map_err(|error| Failure::because("failed to load sandbox", &error))?;
    if record.config.namespaces.pid != NamespaceMode::Container || record.pod_init > 0 {
        return Ok(());
    }
    let init = monitors::handle(&dir).share_pids().await;
    record.pod_init = init.map_err(|error| {
        Failure::because("failed to make a PID namespace for the pod's containers", &error)
    })?;
    rt::blocking("remember sandbox", move || record.write(&dir))
        .await
        .map_err(|error| Failure::because("remember sandbox", &error))
}

/// Where a container is, and its directory.
fn find(
    shared: &RuntimeInner,
    id: &ContainerId,
) -> Result<(SandboxId, ContainerPhase, ContainerDir), Failure> {
    let state = shared.state.borrow();
    let container = state.containers.get(id).ok_or_else(|| no_container(id))?;
    let dir = shared.config.layout.sandbox(&container.sandbox).container(id.as_str());
    Ok((container.sandbox.clone(), container.phase, dir))
}

pub(super) fn running(shared: &RuntimeInner, id: &ContainerId) -> Result<(SandboxId, ContainerDir), Failure> {
    let (sandbox, phase, dir) = find(shared, id)?;
    match phase {
        ContainerPhase::Running(_) => Ok((sandbox, dir)),
        _ => Err(Failure::refused(format!("container \"{id}\" is not running"))),
    }
}

fn set_phase(shared: &RuntimeInner, id: &ContainerId, from: ContainerPhase, to: ContainerPhase) {
    if let Some(container) = shared.state.borrow_mut().containers.get_mut(id)
        && container.phase == from
    {
        container.phase = to;
    }
}

pub(super) async fn start(shared: Rc<RuntimeInner>, id: ContainerId) -> Result<(), Failure> {
    let (sandbox, ..) = find(&shared, &id)?;
    let _held = shared.hold(&sandbox).await.ok_or_else(|| no_sandbox(&sandbox))?;
    let (_, phase, container_dir) = find(&shared, &id)?;
    if phase != ContainerPhase::Created {
        let state = shared.state.borrow().containers.get(&id).map(Container::kind).unwrap_or_default();
        return Err(Failure::refused(format!("container \"{id}\" is in {state:?} state, not Created")));
    }
    set_phase(&shared, &id, ContainerPhase::Created, ContainerPhase::Starting);
    fault::point("start:before")?;
    let dir = shared.config.layout.sandbox(&sandbox);
    match monitors::handle(&dir).start(id.as_str()).await {
        Ok(started) => {
            fault::point("start:after")?;
            // It may have ended already, and the watch task may have recorded that.
            set_phase(&shared, &id, ContainerPhase::Starting, ContainerPhase::Running(started));
            shared.announce(EventKind::Started, &sandbox, Some(&id));
            Ok(())
        }
        Err(error) => {
            let message = chain(&error);
            let record = ContainerRecord::read(&container_dir);
            let short =
                record.is_ok_and(|record| crate::platform::cgroup::usage::oom_kills(&record.cgroups) > 0);
            let hint = if short { ": the kernel killed it, memory_limit_in_bytes is too small" } else { "" };
            let message = format!("failed to start container \"{id}\": {message}{hint}");
            watch::end(&shared, &id, |_| ContainerEnd {
                code: START_FAILED,
                at: shared.clock.now().as_nanos(),
                reason: "StartError".to_owned(),
                message: message.clone(),
            });
            Err(Failure::refused(message))
        }
    }
}

/// Asks a container to stop, and kills it when it takes longer than `grace`.
pub(super) async fn stop(shared: Rc<RuntimeInner>, id: ContainerId, grace: Duration) -> Result<(), Failure> {
    let Ok((sandbox, phase, dir)) = find(&shared, &id) else { return Ok(()) };
    if !matches!(phase, ContainerPhase::Running(_) | ContainerPhase::Starting) {
        return Ok(());
    }
    let monitor = monitors::handle(&shared.config.layout.sandbox(&sandbox));
    if !grace.is_zero() {
        let signal = ContainerRecord::read(&dir).map_or(SIGTERM, |record| record.stop_signal);
        if let Err(error) = monitor.signal(id.as_str(), signal, false).await {
            log::debug!(container:% = id, err = chain(&error); "Failed to signal container through its \
                 monitor");
        }
        if has_ended(&shared, &id, grace).await {
            return Ok(());
        }
    }
    kill(&shared, &sandbox, &id, &dir).await;
    if has_ended(&shared, &id, KILL_PATIENCE).await {
        return Ok(());
    }
    Err(Failure::new(
        ErrorKind::Timeout,
        format!("an error occurs during waiting for container \"{id}\" to be killed"),
    ))
}

const SIGTERM: i32 = 15;

/// Kills everything in a container, with or without its monitor.
async fn kill(shared: &RuntimeInner, sandbox: &SandboxId, id: &ContainerId, dir: &ContainerDir) {
    let monitor = monitors::handle(&shared.config.layout.sandbox(sandbox));
    if let Err(error) = monitor.signal(id.as_str(), SIGKILL, true).await {
        log::debug!(container:% = id, err = chain(&error); "Failed to kill container through its monitor, \
             killing its cgroup");
        if let Ok(record) = ContainerRecord::read(dir) {
            let _ = cgroup::kill_all(&record.cgroups);
        }
    }
}

/// Waits for a container's end.
async fn has_ended(shared: &RuntimeInner, id: &ContainerId, patience: Duration) -> bool {
    let ended = async {
        loop {
            let next = shared.ended.notified();
            tokio::pin!(next);
            // From here on an end wakes this task, also one between the check and the wait.
            next.as_mut().enable();
            match find(shared, id) {
                Ok((_, ContainerPhase::Running(_) | ContainerPhase::Starting, _)) => next.await,
                _ => return,
            }
        }
    };
    tokio::time::timeout(patience, ended).await.is_ok()
}

/// Removes a container, killing it if it runs.
pub(super) async fn remove(shared: Rc<RuntimeInner>, id: ContainerId) -> Result<(), Failure> {
    let Ok((sandbox, ..)) = find(&shared, &id) else { return Ok(()) };
    let _held = shared.hold(&sandbox).await;
    remove_locked(&shared, &id).await
}

/// The same for a caller that already holds the sandbox's lock.
pub(super) async fn remove_locked(shared: &Rc<RuntimeInner>, id: &ContainerId) -> Result<(), Failure> {
    let Ok((sandbox, phase, dir)) = find(shared, id) else { return Ok(()) };
    if matches!(phase, ContainerPhase::Running(_) | ContainerPhase::Starting) {
        kill(shared, &sandbox, id, &dir).await;
        if !has_ended(shared, id, REMOVE_PATIENCE).await {
            return Err(Failure::refused(format!("failed to kill container \"{id}\"")));
        }
    }
    dismantle(shared, &sandbox, id).await?;
    shared.state.borrow_mut().containers.remove(id);
    shared.announce(EventKind::Deleted, &sandbox, Some(id));
    Ok(())
}

/// Removes all parts of a container that exist; its record last.
pub(super) async fn dismantle(
    shared: &Rc<RuntimeInner>,
    sandbox: &SandboxId,
    id: &ContainerId,
) -> Result<(), Failure> {
    let dir = shared.config.layout.sandbox(sandbox);
    let has_monitor =
        shared.state.borrow().sandboxes.get(sandbox).is_some_and(|sandbox| sandbox.monitor.is_some());
    if has_monitor && let Err(error) = monitors::handle(&dir).forget(id.as_str()).await {
        log::debug!(container:% = id, err = chain(&error); "Failed to remove container from its monitor");
    }
    fault::point("forget")?;
    let record = dir.container(id.as_str());
    let parent = super::record::SandboxRecord::read(&dir).map(|found| found.cgroup).unwrap_or_default();
    let dirs = cgroup::find(&shared.config.cgroup, &parent, id.as_str()).unwrap_or_default();
    clear_cgroup(dirs).await?;
    fault::point("remove:cgroup")?;
    let layout = shared.config.layout.clone();
    let number = shared.discarded.replace(shared.discarded.get() + 1);
    let layer = layout.writable_layer(id);
    let discarded = rt::blocking("remove container", move || {
        let discarded = files::discard(&layout, &layer, number)?;
        fault::point("remove:layer")?;
        files::remove_container_dir(&record.0, &record.record())?;
        Ok::<_, Failure>(discarded)
    })
    .await?;
    if let Some(path) = discarded {
        rt::spawn("remove writable layer", async move {
            rt::blocking("remove writable layer", move || files::remove_discarded(&path)).await;
        });
    }
    Ok(())
}

async fn clear_cgroup(dirs: Vec<std::path::PathBuf>) -> Result<(), Failure> {
    if dirs.is_empty() {
        return Ok(());
    }
    let mut attempt = 0;
    loop {
        let these = dirs.clone();
        let cleared = rt::blocking("remove container cgroup", move || cgroups::clear(&these)).await;
        attempt += 1;
        if cleared.is_ok() || attempt == CLEAR_ATTEMPTS {
            return cleared;
        }
        tokio::time::sleep(CLEAR_PAUSE).await;
    }
}

/// Changes cgroup values of a container.
pub(super) async fn update(
    shared: Rc<RuntimeInner>,
    id: ContainerId,
    resources: LinuxResources,
) -> Result<(), Failure> {
    let (sandbox, phase, dir) = find(&shared, &id)?;
    if !matches!(phase, ContainerPhase::Running(_) | ContainerPhase::Created) {
        return Err(Failure::refused(format!("container \"{id}\" is not running or created")));
    }
    let _held = shared.hold(&sandbox).await;
    let updated = rt::blocking("update container", move || {
        let failed = |error: &dyn std::error::Error| Failure::because("failed to update resources", error);
        let mut record = ContainerRecord::read(&dir).map_err(|error| failed(&error))?;
        let skipped = cgroup::update(&record.cgroups, &resources).map_err(|error| failed(&error))?;
        merge(&mut record.config.resources, resources);
        record.write(&dir).map_err(|error| failed(&error))?;
        Ok::<_, Failure>(skipped)
    });
    shared.warn_of(updated.await?);
    Ok(())
}

/// Zero and empty values are left as they are.
fn merge(known: &mut LinuxResources, new: LinuxResources) {
    let number = |known: &mut i64, new: i64| {
        if new != 0 {
            *known = new;
        }
    };
    number(&mut known.cpu_period, new.cpu_period);
    number(&mut known.cpu_quota, new.cpu_quota);
    number(&mut known.cpu_shares, new.cpu_shares);
    number(&mut known.memory_limit_bytes, new.memory_limit_bytes);
    number(&mut known.memory_swap_limit_bytes, new.memory_swap_limit_bytes);
    number(&mut known.oom_score_adj, new.oom_score_adj);
    known.unified.extend(new.unified);
    if !new.hugepage_limits.is_empty() {
        known.hugepage_limits = new.hugepage_limits;
    }
    if !new.cpuset_cpus.is_empty() {
        known.cpuset_cpus = new.cpuset_cpus;
    }
    if !new.cpuset_mems.is_empty() {
        known.cpuset_mems = new.cpuset_mems;
    }
}

pub(super) async fn stats(shared: &Rc<RuntimeInner>, id: &ContainerId) -> Result<ContainerFigures, Failure> {
    let (_, _, dir) = find(shared, id)?;
    let layer = shared.config.layout.writable_layer(id);
    let at = shared.clock.now();
    rt::blocking("container stats", move || {
        let record =
            ContainerRecord::read(&dir).map_err(|error| Failure::because("read container", &error))?;
        Ok(usage::figures(at, &record, Some(layer)))
    })
    .await
}

/// Usage of these containers; missing ones are left out.
pub(super) async fn figures(
    shared: &Rc<RuntimeInner>,
    ids: &[ContainerId],
) -> Vec<(ContainerId, ContainerFigures)> {
    let found = ids.iter().filter_map(|id| Some((id.clone(), find(shared, id).ok()?.2)));
    let (dirs, at): (Vec<_>, _) = (found.collect(), shared.clock.now());
    rt::blocking("container stats", move || {
        let read = dirs
            .into_iter()
            .filter_map(|(id, dir)| Some((id, usage::figures(at, &ContainerRecord::read(&dir).ok()?, None))));
        read.collect()
    })
    .await
}
