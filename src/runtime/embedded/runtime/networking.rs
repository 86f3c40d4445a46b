//! The network's operations as the runtime calls them: in which thread, how many at once, how often.
//!
//! Plugins are foreign programs and may hang until they are killed. Those of one pod must not delay other
//! pods: each chain has its own thread, up to a limit. The built-in network only exchanges a few messages
//! with the kernel; it serves one pod at a time, and waiting for it does not occupy a thread of the pool.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{MutexGuard, oneshot};
use tokio::time::Instant;

use super::super::network::subnet::{Subnet, SubnetError};
use super::super::network::{Attachment, Configured, Network};
use super::{Failure, RuntimeInner};
use crate::model::types::SandboxId;
use crate::platform::rt;
use crate::runtime::SandboxConfig;

/// Chains of plugins that run at once. Each may hang for a minute; this many pods may hang before others
/// wait.
pub(super) const MOST_PLUGINS: usize = 16;
/// How long a status of the network is reused while its configuration is unchanged: checking plugins means
/// running them.
const STATUS_HOLDS: Duration = Duration::from_secs(10);

/// The last status of the network, with its configuration and time.
pub(super) struct ReportedNetwork {
    of: Configured,
    at: Instant,
    ready: Result<(), String>,
}

fn current(shared: &RuntimeInner) -> Arc<Network> {
    Arc::clone(&shared.network.borrow())
}

/// The ranges of new pods, from now on. An operation under way ends with the ranges that it began with.
pub(super) async fn set_pod_cidrs(shared: &RuntimeInner, cidrs: &[String]) -> Result<(), Failure> {
    let subnets: Result<Vec<Subnet>, SubnetError> = cidrs.iter().map(|cidr| cidr.parse()).collect();
    let subnets = subnets.map_err(|error| Failure::refused(error.to_string()))?;
    if subnets.is_empty() || shared.network.borrow().subnets() == subnets {
        return Ok(());
    }
    let mut status = shared.network_status.lock().await;
    let changed = shared.network.borrow().with_subnets(subnets);
    *shared.network.borrow_mut() = Arc::new(changed);
    *status = None;
    log::info!(podCIDR = cidrs.join(","); "Updated Pod CIDR");
    Ok(())
}

/// Runs a job that may run plugins.
async fn run<T: Send + 'static>(
    shared: &RuntimeInner,
    name: &'static str,
    plugins: bool,
    job: impl FnOnce(&Network) -> T + Send + 'static,
) -> Result<T, Failure> {
    let network = current(shared);
    if !plugins {
        return Ok(rt::blocking(name, move || job(&network)).await);
    }
    // The semaphore is never closed, so this only waits.
    let _place = shared.plugins.acquire().await;
    let (answer, answered) = oneshot::channel();
    let thread = rt::spawn_thread("network plugins", move || drop(answer.send(job(&network))));
    thread.map_err(|error| Failure::refused(format!("start the network plugin thread: {error}")))?;
    answered.await.map_err(|_| Failure::refused("the network plugin thread has stopped"))
}

/// Whether attaching or detaching a sandbox runs plugins.
async fn runs_plugins(shared: &RuntimeInner, sandbox: &SandboxId) -> bool {
    let (network, sandbox) = (current(shared), sandbox.clone());
    rt::blocking("read network record", move || network.runs_plugins(&sandbox)).await
}

/// A lock below serializes the making and removal of pods' built-in networks. Waiting for it in the pool
/// would delay jobs that need no network: the first may take seconds on a slow machine, where the kernel
/// loads modules for it.
async fn lock_network(shared: &RuntimeInner, plugins: bool) -> Option<MutexGuard<'_, ()>> {
    if plugins { None } else { Some(shared.network_lock.lock().await) }
}

/// Connects a sandbox whose namespaces `pid` holds; returns its addresses.
pub(super) async fn attach(
    shared: &Rc<RuntimeInner>,
    id: &SandboxId,
    config: &SandboxConfig,
    pid: i32,
) -> Result<Vec<String>, Failure> {
    let attachment = Attachment {
        sandbox: id.clone(),
        pod: config.pod.clone(),
        netns: netns_of(pid),
        ports: config.port_mappings.clone(),
        annotations: config.annotations.clone(),
        dns: config.dns.clone(),
    };
    let plugins = runs_plugins(shared, id).await;
    let _turn = lock_network(shared, plugins).await;
    let attached = run(shared, "attach network", plugins, move |network| network.attach(&attachment)).await?;
    let addresses = attached.map_err(|error| {
        Failure::because(&format!("failed to setup network for sandbox \"{id}\""), &error)
    })?;
    Ok(addresses.iter().map(ToString::to_string).collect())
}

/// Where a process's network namespace is.
pub(super) fn netns_of(pid: i32) -> String {
    format!("/proc/{pid}/ns/net")
}

/// Disconnects a sandbox. Succeeds when it is already disconnected.
pub(super) async fn detach(
    shared: &RuntimeInner,
    id: &SandboxId,
    netns: Option<String>,
) -> Result<(), Failure> {
    let host_network = shared.state.borrow().sandboxes.get(id).is_some_and(|sandbox| sandbox.host_network);
    if host_network {
        return Ok(());
    }
    let (plugins, sandbox) = (runs_plugins(shared, id).await, id.clone());
    let _turn = lock_network(shared, plugins).await;
    let detached =
        run(shared, "detach network", plugins, move |network| network.detach(&sandbox, netns.as_deref()));
    detached
        .await?
        .map_err(|error| Failure::because(&format!("failed to destroy network for sandbox \"{id}\""), &error))
}

/// Whether pods can have a network. Calls during a check of the plugins wait for its result.
pub(super) async fn status(shared: &RuntimeInner) -> Result<(), String> {
    let mut said = shared.network_status.lock().await;
    let network = current(shared);
    let of = rt::blocking("read network configuration", move || network.configured()).await;
    if let Some(said) = said.as_ref().filter(|said| said.of == of && said.at.elapsed() < STATUS_HOLDS) {
        return said.ready.clone();
    }
    let asked = run(shared, "network status", of.is_some(), Network::status).await;
    let ready = asked.map_err(|failure| failure.message).and_then(|ready| ready);
    *said = Some(ReportedNetwork { of, at: Instant::now(), ready: ready.clone() });
    ready
}
