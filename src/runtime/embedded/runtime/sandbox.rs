//! Sandboxes: made step by step with a record from the first step on, and undone from any step.
//!
//! Owns the order of effects. Guarantees: one sandbox has a name at a time; when making one fails, everything
//! made before is removed again; stopping and removing may be repeated and may start from any state.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::super::layout::SandboxDir;
use super::super::pod_network::netns_of;
use super::super::{oci, protocol};
use super::api::EventKind;
use super::processes::{self, Process};
use super::record::{SandboxRecord, SandboxStage, write_json};
use super::state::Sandbox;
use super::{Failure, RuntimeInner, cgroups, container, fault, files, monitors, view, watch};
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::SandboxId;
use crate::platform::cgroup::{CgroupConfig, Skipped};
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::runtime::{ErrorKind, NamespaceMode, SandboxConfig};

/// How long a monitor may take to kill its containers and end, before it is killed itself.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(10);
/// How long a killed process may take to end.
pub(super) const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Makes and starts a sandbox.
pub(super) async fn run(shared: Rc<RuntimeInner>, config: SandboxConfig) -> Result<SandboxId, Failure> {
    if !config.runtime_handler.is_empty() && !shared.config.handlers.contains_key(&config.runtime_handler) {
        let name = &config.runtime_handler;
        return Err(Failure::refused(format!(
            "failed to get sandbox runtime: no runtime for {name:?} is configured: set --runtime-handlers \
             {name}=<program>"
        )));
    }
    let id = SandboxId::from(files::new_id()?);
    let lock = reserve(&shared, &id, &config)?;
    let _held = lock.lock().await;
    match make(&shared, &id, &config).await {
        Ok(()) => {
            log::debug!(sandbox:% = id, pod:% = config.pod; "Sandbox started");
            shared.announce(EventKind::Created, &id, None);
            shared.announce(EventKind::Started, &id, None);
            Ok(id)
        }
        Err(failure) => {
            match dismantle(&shared, &id).await {
                Ok(()) => drop(shared.state.borrow_mut().sandboxes.remove(&id)),
                // It is listed as not ready, so that the caller requests its removal.
                Err(left) => {
                    log::warn!(sandbox:% = id, err = left.message; "Failed to clean up after failed sandbox \
                         creation");
                    shared.set_stage(&id, SandboxStage::NotReady);
                }
            }
            shared.hint();
            Err(failure)
        }
    }
}

fn reserve(shared: &RuntimeInner, id: &SandboxId, config: &SandboxConfig) -> Result<Arc<Mutex<()>>, Failure> {
    let mut state = shared.state.borrow_mut();
    if let Some(other) = state.same_sandbox(config) {
        let pod = &config.pod;
        let name = format!("{}_{}_{}_{}", pod.name, pod.namespace, pod.uid, config.attempt);
        return Err(Failure::new(
            ErrorKind::AlreadyExists,
            format!(
                "failed to reserve sandbox name {name:?}: name {name:?} is reserved for {:?}",
                other.as_str()
            ),
        ));
    }
    let sandbox = Sandbox::new(config, shared.clock.now());
    let lock = Arc::clone(&sandbox.lock);
    state.sandboxes.insert(id.clone(), sandbox);
    Ok(lock)
}

async fn make(shared: &Rc<RuntimeInner>, id: &SandboxId, config: &SandboxConfig) -> Result<(), Failure> {
    let dir = shared.config.layout.sandbox(id);
    let mut record = SandboxRecord {
        id: id.clone(),
        created_at: shared.state.borrow().sandboxes.get(id).map_or(0, |made| made.created_at.as_nanos()),
        config: config.clone(),
        monitor_protocol: protocol::VERSION,
        ..SandboxRecord::default()
    };
    monitors::prepare(shared, &dir);
    let (mut record, skipped) = {
        let (dir, cgroup) = (dir.clone(), shared.config.cgroup.clone());
        let prepared = move || prepare(&dir, &cgroup, &mut record).map(|skipped| (record, skipped));
        rt::blocking("prepare sandbox", prepared).await?
    };
    shared.warn_of(skipped);
    let pid = monitors::spawn(shared, &dir, &record.cgroups).await?;
    if let Some(sandbox) = shared.state.borrow_mut().sandboxes.get_mut(id) {
        sandbox.monitor = Some(pid);
    }
    fault::point("sandbox:monitor")?;
    if config.namespaces.pid == NamespaceMode::Pod {
        record.pod_init = processes::first_child(pid).unwrap_or(0);
    }
    if shared.config.cgroup.driver == CgroupDriver::Systemd {
        let (dir, cgroup) = (dir.clone(), shared.config.cgroup.clone());
        let (placed, skipped) = rt::blocking("move monitor to its cgroup", move || {
            let skipped = cgroups::place(&cgroup, &mut record, pid, |record| store(record, &dir))?;
            Ok::<_, Failure>((record, skipped))
        })
        .await?;
        record = placed;
        shared.warn_of(skipped);
    }
    fault::point("sandbox:cgroup")?;
    if config.namespaces.network != NamespaceMode::Node {
        record.ips = shared.network.attach(id, config, pid).await?;
    }
    fault::point("sandbox:network")?;
    record.stage = SandboxStage::Ready;
    store(&record, &dir)?;
    fault::point("sandbox:ready")?;
    let watch = monitors::watch(&dir).await?;
    if let Some(sandbox) = shared.state.borrow_mut().sandboxes.get_mut(id) {
        sandbox.ips = record.ips.iter().filter_map(|ip| ip.parse().ok()).collect();
        sandbox.stage = SandboxStage::Ready;
    }
    watch::begin(shared, id.clone(), watch);
    Ok(())
}

/// Disconnects a sandbox from the pods' network, if it was on it.
async fn detach(shared: &RuntimeInner, id: &SandboxId, netns: Option<String>) -> Result<(), Failure> {
    let host_network = shared.state.borrow().sandboxes.get(id).is_some_and(|sandbox| sandbox.host_network);
    if host_network { Ok(()) } else { Ok(shared.network.detach(id, netns).await?) }
}

/// Makes everything that needs no process.
fn prepare(
    dir: &SandboxDir,
    cgroup: &CgroupConfig,
    record: &mut SandboxRecord,
) -> Result<Vec<Skipped>, Failure> {
    files::make_new_dir(&dir.0, 0o711)?;
    cgroups::choose(cgroup, record);
    store(record, dir)?;
    fault::point("sandbox:record")?;
    files::make_new_dir(&dir.containers(), 0o711)?;
    files::mount_shm(dir, &record.config)?;
    fault::point("sandbox:shm")?;
    files::write_etc(dir, &record.config)?;
    let skipped = cgroups::prepare(cgroup, record)?;
    fault::point("sandbox:leaf")?;
    write_json(&dir.pod_spec(), &oci::pod_spec(&record.config, &record.cgroups))
        .map_err(|error| Failure::because("write the pod's specification", &error))?;
    fault::point("sandbox:files")?;
    Ok(skipped)
}

fn store(record: &SandboxRecord, dir: &SandboxDir) -> Result<(), Failure> {
    record.write(dir).map_err(|error| Failure::because("store sandbox record", &error))
}

pub(super) async fn stop(shared: Rc<RuntimeInner>, id: SandboxId) -> Result<(), Failure> {
    let Some(_held) = shared.hold(&id).await else { return Ok(()) };
    stop_locked(&shared, &id).await
}

async fn stop_locked(shared: &Rc<RuntimeInner>, id: &SandboxId) -> Result<(), Failure> {
    if !shared.state.borrow().sandboxes.contains_key(id) {
        return Ok(());
    }
    let containers = shared.state.borrow().containers_of(id);
    for container in containers {
        container::stop(Rc::clone(shared), container, Duration::ZERO).await?;
    }
    let dir = shared.config.layout.sandbox(id);
    let netns = Process::monitor_of(&dir).filter(|monitor| monitor.is_alive());
    // While the namespace still exists, as CNI's plugins prefer.
    detach(shared, id, netns.map(|monitor| netns_of(monitor.pid))).await?;
    fault::point("stop:network")?;
    halt_monitor(shared, id).await?;
    fault::point("stop:monitor")?;
    watch::monitor_gone(shared, id);
    Ok(())
}

/// Ends the monitor with everything it runs: by a request, else by SIGKILL. Returns when it has ended.
async fn halt_monitor(shared: &Rc<RuntimeInner>, id: &SandboxId) -> Result<(), Failure> {
    let dir = shared.config.layout.sandbox(id);
    let known = shared.state.borrow().sandboxes.get(id).and_then(|sandbox| sandbox.monitor);
    let monitor = Process::monitor_of(&dir).or_else(|| known.and_then(Process::of_pid));
    let Some(monitor) = monitor.filter(|monitor| monitor.is_alive()) else { return Ok(()) };
    match tokio::time::timeout(SHUTDOWN_PATIENCE, monitors::handle(&dir).shutdown()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            log::debug!(sandbox:% = id, err = chain(&error); "Failed to stop monitor, killing it");
            monitor.kill();
        }
        Err(_) => monitor.kill(),
    }
    let gone = monitors::until_gone(monitor, KILL_PATIENCE);
    if !gone.await {
        monitor.kill();
        if !monitors::until_gone(monitor, KILL_PATIENCE).await {
            let pid = monitor.pid;
            return Err(Failure::refused(format!("the pod's monitor (process {pid}) does not exit")));
        }
    }
    Ok(())
}

/// Removes a sandbox with everything in it, stopping it first if necessary.
pub(super) async fn remove(shared: Rc<RuntimeInner>, id: SandboxId) -> Result<(), Failure> {
    let Some(_held) = shared.hold(&id).await else { return Ok(()) };
    stop_locked(&shared, &id).await?;
    let containers = shared.state.borrow().containers_of(&id);
    for container in containers {
        container::remove_locked(&shared, &container).await?;
    }
    fault::point("remove:containers")?;
    let last = if shared.is_followed() { view::sandbox(&shared, &id).ok() } else { None };
    dismantle(&shared, &id).await?;
    shared.state.borrow_mut().sandboxes.remove(&id);
    shared.announce_with(EventKind::Deleted, &id, None, last);
    Ok(())
}

/// Removes all parts that exist of a sandbox without containers; its record last.
pub(super) async fn dismantle(shared: &Rc<RuntimeInner>, id: &SandboxId) -> Result<(), Failure> {
    let dir = shared.config.layout.sandbox(id);
    halt_monitor(shared, id).await?;
    detach(shared, id, None).await?;
    let (cgroup, id) = (shared.config.cgroup.clone(), id.clone());
    rt::blocking("remove sandbox", move || {
        match SandboxRecord::read(&dir) {
            Ok(record) => cgroups::remove_sandbox(&cgroup, &record)?,
            Err(error) if error.is_missing() => {}
            Err(error) => log::warn!(sandbox:% = id, err = chain(&error); "Sandbox record is damaged"),
        }
        fault::point("remove:cgroups")?;
        files::remove_sandbox_dir(&dir)
    })
    .await
}
