//! The network's operations as runtimes call them: in which thread, how many at once, how often.
//!
//! Plugins are foreign programs and may hang until they are killed. Those of one pod must not delay other
//! pods: each chain has its own thread, up to a limit. The built-in network only exchanges a few messages
//! with the kernel; it serves one pod at a time, and waiting for it does not occupy a thread of the pool.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, Semaphore, oneshot};
use tokio::time::Instant;

use super::network::subnet::{Subnet, SubnetError};
use super::network::{Attachment, Configured, Network, NetworkConfig};
use crate::model::types::SandboxId;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::netlink::namespace;
use crate::runtime::SandboxConfig;

/// Chains of plugins that run at once. Each may hang for a minute; this many pods may hang before others
/// wait.
const MOST_PLUGINS: usize = 16;
/// How long a status of the network is reused while its configuration is unchanged: checking plugins means
/// running them.
const STATUS_HOLDS: Duration = Duration::from_secs(10);
/// How long a program in a pod may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// The last status of the network, with its configuration and time.
struct ReportedNetwork {
    of: Configured,
    at: Instant,
    ready: Result<(), String>,
}

/// The network of a runtime's pods. Errors are messages for the user.
pub(in crate::runtime) struct PodNetwork {
    /// Replaced when the pods' ranges change.
    network: RefCell<Arc<Network>>,
    /// Bounds the chains of network plugins that run at once.
    plugins: Semaphore,
    /// Held while a pod's built-in network is made or removed.
    one_pod: Mutex<()>,
    /// Held while the network's status is read.
    status: Mutex<Option<ReportedNetwork>>,
}

impl PodNetwork {
    pub(in crate::runtime) fn new(config: NetworkConfig) -> Self {
        Self {
            network: RefCell::new(Arc::new(Network::new(config))),
            plugins: Semaphore::new(MOST_PLUGINS),
            one_pod: Mutex::default(),
            status: Mutex::default(),
        }
    }

    /// As it is now; an operation under way ends with the ranges that it began with.
    pub(in crate::runtime) fn current(&self) -> Arc<Network> {
        Arc::clone(&self.network.borrow())
    }

    /// The ranges of new pods, from now on.
    pub(in crate::runtime) async fn set_pod_cidrs(&self, cidrs: &[String]) -> Result<(), String> {
        let subnets: Result<Vec<Subnet>, SubnetError> = cidrs.iter().map(|cidr| cidr.parse()).collect();
        let subnets = subnets.map_err(|error| error.to_string())?;
        if subnets.is_empty() || self.network.borrow().subnets() == subnets {
            return Ok(());
        }
        let mut status = self.status.lock().await;
        let changed = self.network.borrow().with_subnets(subnets);
        *self.network.borrow_mut() = Arc::new(changed);
        *status = None;
        log::info!(podCIDR = cidrs.join(","); "Updated Pod CIDR");
        Ok(())
    }

    /// Runs a job that may run plugins.
    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        plugins: bool,
        job: impl FnOnce(&Network) -> T + Send + 'static,
    ) -> Result<T, String> {
        let network = self.current();
        if !plugins {
            return Ok(rt::blocking(name, move || job(&network)).await);
        }
        // The semaphore is never closed, so this only waits.
        let _place = self.plugins.acquire().await;
        let (answer, answered) = oneshot::channel();
        let thread = rt::spawn_thread("network plugins", move || drop(answer.send(job(&network))));
        thread.map_err(|error| format!("start the network plugin thread: {error}"))?;
        answered.await.map_err(|_| "the network plugin thread has stopped".to_owned())
    }

    /// Whether attaching or detaching a sandbox runs plugins.
    async fn runs_plugins(&self, sandbox: &SandboxId) -> bool {
        let (network, sandbox) = (self.current(), sandbox.clone());
        rt::blocking("read network record", move || network.runs_plugins(&sandbox)).await
    }

    /// A lock below serializes the making and removal of pods' built-in networks. Waiting for it in the pool
    /// would delay jobs that need no network: the first may take seconds on a slow machine, where the kernel
    /// loads modules for it.
    async fn lock_network(&self, plugins: bool) -> Option<MutexGuard<'_, ()>> {
        if plugins { None } else { Some(self.one_pod.lock().await) }
    }

    /// Connects a sandbox whose namespaces `pid` holds; returns its addresses.
    pub(in crate::runtime) async fn attach(
        &self,
        id: &SandboxId,
        config: &SandboxConfig,
        pid: i32,
    ) -> Result<Vec<String>, String> {
        let attachment = Attachment {
            sandbox: id.clone(),
            pod: config.pod.clone(),
            netns: netns_of(pid),
            ports: config.port_mappings.clone(),
            annotations: config.annotations.clone(),
            dns: config.dns.clone(),
        };
        let plugins = self.runs_plugins(id).await;
        let _turn = self.lock_network(plugins).await;
        let attached =
            self.run("attach network", plugins, move |network| network.attach(&attachment)).await?;
        let addresses = attached
            .map_err(|error| format!("failed to setup network for sandbox \"{id}\": {}", chain(&error)))?;
        Ok(addresses.iter().map(ToString::to_string).collect())
    }

    /// Disconnects a sandbox. Succeeds when it is already disconnected.
    pub(in crate::runtime) async fn detach(
        &self,
        id: &SandboxId,
        netns: Option<String>,
    ) -> Result<(), String> {
        let (plugins, sandbox) = (self.runs_plugins(id).await, id.clone());
        let _turn = self.lock_network(plugins).await;
        let detached =
            self.run("detach network", plugins, move |network| network.detach(&sandbox, netns.as_deref()));
        detached
            .await?
            .map_err(|error| format!("failed to destroy network for sandbox \"{id}\": {}", chain(&error)))
    }

    /// Whether pods can have a network. Calls during a check of the plugins wait for its result.
    pub(in crate::runtime) async fn status(&self) -> Result<(), String> {
        let mut said = self.status.lock().await;
        let network = self.current();
        let of = rt::blocking("read network configuration", move || network.configured()).await;
        if let Some(said) = said.as_ref().filter(|said| said.of == of && said.at.elapsed() < STATUS_HOLDS) {
            return said.ready.clone();
        }
        let ready = self.run("network status", of.is_some(), Network::status).await.and_then(|ready| ready);
        *said = Some(ReportedNetwork { of, at: Instant::now(), ready: ready.clone() });
        ready
    }
}

/// Where a process's network namespace is.
pub(in crate::runtime) fn netns_of(pid: i32) -> String {
    format!("/proc/{pid}/ns/net")
}

/// A connection to a port of a pod, to `127.0.0.1`, else to `::1`, made from inside the network namespace of a process
/// (`None`: the node's). The error is a message for the user.
pub(in crate::runtime) async fn port_stream(
    pid: Option<i32>,
    port: u16,
) -> Result<tokio::net::TcpStream, String> {
    let connect = move || {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            match TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_PATIENCE) {
                Ok(stream) => {
                    stream.set_nonblocking(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    let inside = move || match pid {
        None => connect(),
        Some(pid) => namespace::inside(&namespace::open(Path::new(&netns_of(pid)))?, connect)?,
    };
    let connected = rt::blocking("connect to a pod's port", inside).await;
    let stream = connected.and_then(tokio::net::TcpStream::from_std);
    stream.map_err(|error| format!("failed to connect to localhost:{port} inside the pod: {error}"))
}
