//! The runtime behind the socket of a Docker Engine, over its HTTP API (version 1.40 or newer). ADR 0061.
//!
//! Expected flow: a sandbox is a container that waits; the pods' network is the agent's own, as on the embedded runtime. All
//! records are the engine's: labels name the pod, so that an agent that is restarted finds everything, and a
//! container that another program removes is gone.
//!
//! | file | what |
//! |---|---|
//! | `ask` | whether a socket is a Docker Engine's |
//! | `client` | requests, time limits, errors |
//! | `request`, `observed`, `pause` | the engine's JSON and the agent's types (pure) |
//! | `sandbox`, `container`, `exec`, `image` | the calls |
//! | `events`, `usage` | hints of changes; disks |

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;

use crate::model::observed::{ObservedContainer, ObservedSandbox};
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{ContainerId, PodUid, SandboxId, Streams};
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::rt::live::Live;
use crate::platform::sys::dir::make_dir;
use crate::platform::sys::node::kernel_version;
use crate::runtime::embedded::network::NetworkConfig;
use crate::runtime::embedded::pod_network::PodNetwork;
use crate::runtime::{
    ContainerConfig, DiskPlaces, ErrorKind, ExecOutput, ImageAuth, ImageStatus, LinuxResources, Runtime,
    RuntimeError, RuntimeHandler, RuntimeImage, RuntimeStatus, RuntimeUse, RuntimeVersion, SandboxConfig,
    labels,
};

pub(crate) mod ask;
mod client;
mod container;
mod events;
mod exec;
mod image;
mod observed;
mod pause;
mod request;
mod sandbox;
#[cfg(test)]
pub(crate) mod testing;
mod usage;

pub(crate) use exec::DockerSession;

use client::Client;
use observed::{ImageNames, image_names, text};
use request::{CONTAINER, EngineFacts, KIND, SANDBOX};

/// The capability without which a process cannot lower an `oom_score_adj`.
const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// What the agent adds to an engine.
#[derive(Clone, Default)]
pub(crate) struct DockerConfig {
    /// The pods' network; `None` when its ranges are not valid: then only pods on the node's network start.
    pub network: Option<NetworkConfig>,
    /// For containers from now on.
    pub log: Live<DockerLogs>,
}

/// `containerLogMaxSize` and `containerLogMaxFiles`, for the engine's rotation; `None` leaves it to the engine.
pub(crate) type DockerLogs = Option<(u64, usize)>;

/// A client of a Docker Engine.
pub(crate) struct DockerRuntime {
    engine: Rc<Engine>,
    follower: RefCell<Option<JoinHandle<()>>>,
}

/// A list, as what is below: each sort of map is code of its own.
type SandboxAddresses = Vec<(SandboxId, Vec<String>)>;

struct Engine {
    client: Client,
    log: Live<DockerLogs>,
    network: Option<PodNetwork>,
    /// The records of the network.
    network_state: Option<PathBuf>,
    /// `None` until the records were read.
    addresses: RefCell<Option<SandboxAddresses>>,
    /// Held while the records are read.
    recovery: Mutex<()>,
    facts: RefCell<Option<EngineFacts>>,
    /// Of images with digests, by id.
    image_names: RefCell<Vec<(String, ImageNames)>>,
    layers: RefCell<Vec<(String, usage::MeasuredLayer)>>,
    /// Holds one hint at most.
    changed: Notify,
}

impl Drop for DockerRuntime {
    fn drop(&mut self) {
        if let Some(task) = self.follower.borrow_mut().take() {
            task.abort();
        }
    }
}

impl DockerRuntime {
    /// For an engine that was found to speak this version.
    pub(crate) fn new(socket: PathBuf, version: u32, limit: Duration, config: DockerConfig) -> Self {
        let engine = Engine {
            client: Client::new(socket, version, limit),
            log: config.log,
            network_state: config.network.as_ref().map(|network| network.state.clone()),
            network: config.network.map(PodNetwork::new),
            addresses: RefCell::default(),
            recovery: Mutex::default(),
            facts: RefCell::default(),
            image_names: RefCell::default(),
            layers: RefCell::default(),
            changed: Notify::new(),
        };
        Self { engine: Rc::new(engine), follower: RefCell::default() }
    }

    /// Reports once what will go wrong later: an engine that takes its containers along when it is restarted.
    pub(crate) async fn warn_of_settings(&self) {
        if self.keeps_containers().await == Some(false) {
            log::warn!(
                socket:% = self.engine.client.socket().display();
                "Docker stops all containers when it is restarted: set live-restore in its daemon.json"
            );
        }
    }

    /// Containers outlive the engine, as those of other runtimes do. `None`: it does not say.
    pub(crate) async fn keeps_containers(&self) -> Option<bool> {
        let keeps = self.engine.info("Status").await.ok()?["LiveRestoreEnabled"].as_bool();
        let version = self.engine.client.get("Version", "/version").await.ok()?;
        // Podman has no daemon that a container could depend on.
        keeps.filter(|_| !is_podman(&version))
    }

    /// Starts a program in a container.
    pub(crate) async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        wanted: Streams,
    ) -> Result<DockerSession, RuntimeError> {
        exec::exec(Rc::clone(&self.engine), "Exec", id, command, wanted).await
    }

    pub(crate) async fn attach(
        &self,
        id: &ContainerId,
        wanted: Streams,
    ) -> Result<DockerSession, RuntimeError> {
        exec::attach(Rc::clone(&self.engine), id, wanted).await
    }

    /// Sets the size of a session's terminal.
    pub(crate) async fn resize(&self, path: &str, width: u16, height: u16) -> Result<(), RuntimeError> {
        exec::resize(&self.engine, path, width, height).await
    }

    pub(crate) async fn port_stream(
        &self,
        id: &SandboxId,
        port: u16,
    ) -> Result<tokio::net::TcpStream, RuntimeError> {
        exec::port_stream(&self.engine, id, port).await
    }

    /// With `disks` the use of disks by images and writable layers; all else is in cgroups.
    pub(crate) async fn usage(&self, disks: bool) -> Result<RuntimeUse, RuntimeError> {
        usage::usage(&self.engine, disks).await
    }
}

impl Engine {
    async fn info(&self, call: &'static str) -> Result<Value, RuntimeError> {
        self.client.get(call, "/info").await
    }

    async fn inspect(&self, call: &'static str, id: &str) -> Result<Value, RuntimeError> {
        self.client.get(call, &format!("/containers/{}/json", client::escaped(id))).await
    }

    /// Sandboxes or containers of pods, those with this label.
    async fn list(
        &self,
        call: &'static str,
        kind: &str,
        label: Option<&str>,
    ) -> Result<Vec<Value>, RuntimeError> {
        let mut wanted = vec![format!("{KIND}={kind}")];
        wanted.extend(label.map(str::to_owned));
        let filters = json!({ "label": wanted }).to_string();
        let path = format!("/containers/json?all=1&filters={}", client::escaped(&filters));
        match self.client.get(call, &path).await? {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    fn network(&self, call: &'static str) -> Result<&PodNetwork, RuntimeError> {
        let message = "there is no pod network: podCIDR is not valid";
        self.network.as_ref().ok_or_else(|| RuntimeError::new(call, ErrorKind::Refused, message))
    }

    fn set_addresses(&self, id: &SandboxId, ips: Option<Vec<String>>) {
        if let Some(known) = self.addresses.borrow_mut().as_mut() {
            known.retain(|(known, _)| known != id);
            known.extend(ips.map(|ips| (id.clone(), ips)));
        }
    }

    fn addresses(&self, id: &SandboxId) -> Option<Vec<String>> {
        let known = self.addresses.borrow();
        known.as_ref()?.iter().find(|(known, _)| known == id).map(|(_, ips)| ips.clone())
    }

    /// Once, as soon as the engine answers: what is left of the network of sandboxes that are gone is removed, and the
    /// others' addresses are read.
    async fn recover(&self) -> Result<(), RuntimeError> {
        if self.addresses.borrow().is_some() {
            return Ok(());
        }
        let _turn = self.recovery.lock().await;
        if self.addresses.borrow().is_some() {
            return Ok(());
        }
        let listed = self.list("ListPodSandbox", SANDBOX, None).await?;
        let running = listed.iter().filter(|item| item["State"] == "running");
        let live: Vec<SandboxId> = running.map(|item| SandboxId::from(text(&item["Id"]))).collect();
        let found = match (&self.network, self.network_state.clone()) {
            (Some(network), Some(state)) => {
                let network = network.current();
                rt::blocking("recover pod network", move || {
                    if let Err(error) = make_dir(&state, 0o700) {
                        log::warn!(err:% = error; "Failed to clean up pod network");
                    }
                    for error in network.recover(&live) {
                        log::warn!(err = chain(&error); "Failed to clean up pod network");
                    }
                    let ips = |id: &SandboxId| {
                        let ips = network.recorded(id)?;
                        Some((id.clone(), ips.iter().map(ToString::to_string).collect()))
                    };
                    live.iter().filter_map(ips).collect()
                })
                .await
            }
            _ => Vec::new(),
        };
        *self.addresses.borrow_mut() = Some(found);
        Ok(())
    }

    /// What requests depend on; the engine is asked once for each version of it.
    async fn facts(&self, call: &'static str) -> Result<EngineFacts, RuntimeError> {
        let log = *self.log.get();
        if let Some(facts) = self.facts.borrow().as_ref() {
            return Ok(EngineFacts { log, ..facts.clone() });
        }
        let info = self.info(call).await?;
        let facts = EngineFacts {
            version: self.client.version(),
            systemd: info["CgroupDriver"] == "systemd",
            lowest_oom_score: self.lowest_oom_score().await,
            log,
        };
        *self.facts.borrow_mut() = Some(facts.clone());
        Ok(facts)
    }

    /// The engine's own score, when it lacks the capability to give its containers a lower one.
    async fn lowest_oom_score(&self) -> Option<i64> {
        let stream = UnixStream::connect(self.client.socket()).await.ok()?;
        let pid = stream.peer_cred().ok()?.pid().filter(|pid| *pid > 1)?;
        rt::blocking("read the engine's capabilities", move || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
            let capabilities = u64::from_str_radix(line.trim(), 16).ok()?;
            let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?;
            let score = score.trim().parse().ok()?;
            (capabilities & CAP_SYS_RESOURCE == 0).then_some(score)
        })
        .await
    }

    /// The names of a container's image.
    async fn image_names(&self, call: &'static str, id: &str) -> ImageNames {
        if let Some((_, known)) = self.image_names.borrow().iter().find(|(known, _)| known == id) {
            return known.clone();
        }
        let by_id = || ImageNames { name: id.to_owned(), reference: id.to_owned() };
        let path = format!("/images/{}/json", client::escaped(id));
        // It may have been removed by force.
        let Ok(image) = self.client.get(call, &path).await else { return by_id() };
        let names = image_names(&image);
        if names.reference != id {
            self.image_names.borrow_mut().push((id.to_owned(), names.clone()));
        }
        names
    }
}

fn is_podman(version: &Value) -> bool {
    version["Components"][0]["Name"] == "Podman Engine"
}

fn of_pod(pod: Option<&PodUid>) -> Option<String> {
    pod.map(|uid| format!("{}={uid}", labels::POD_UID))
}

fn not_of_pod(call: &'static str) -> RuntimeError {
    RuntimeError::new(call, ErrorKind::NotFound, "the container has no labels of a pod")
}

impl Runtime for DockerRuntime {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        let client = &self.engine.client;
        let mut answer = client.get("Version", "/version").await;
        if answer.is_err() {
            // Another engine may answer next.
            self.engine.facts.borrow_mut().take();
        }
        // Or it answers already, and does not speak the version in use.
        if answer.as_ref().is_err_and(|error| error.kind == ErrorKind::Refused)
            && let Some(version) = ask::engine_version(client.socket()).await?
        {
            client.set_version(version);
            answer = client.get("Version", "/version").await;
        }
        let answer = answer?;
        let version = ask::chosen_version(answer["ApiVersion"].as_str().unwrap_or_default())?;
        if version != client.version() {
            client.set_version(version);
            self.engine.facts.borrow_mut().take();
        }
        Ok(RuntimeVersion {
            name: if is_podman(&answer) { "podman" } else { "docker" }.to_owned(),
            version: text(&answer["Version"]),
            api_version: format!("1.{version}"),
        })
    }

    async fn status(&self) -> Result<RuntimeStatus, RuntimeError> {
        let engine = &self.engine;
        let info = engine.info("Status").await?;
        let network_ready = match &engine.network {
            Some(network) => network.status().await,
            None => Err("podCIDR is not valid".to_owned()),
        };
        let is_able = engine.facts("Status").await?.has_recursive_read_only() && kernel_version() >= (5, 12);
        let handler = |name, runtime| RuntimeHandler {
            name,
            recursive_read_only_mounts: is_able && observed::has_recursive_read_only(runtime),
            user_namespaces: false,
        };
        let runtimes = &info["Runtimes"];
        let default = &runtimes[info["DefaultRuntime"].as_str().unwrap_or_default()];
        let named = runtimes.as_object().into_iter().flatten();
        let named = named.map(|(name, runtime)| handler(name.clone(), runtime));
        Ok(RuntimeStatus {
            runtime_ready: Ok(()),
            network_ready: network_ready.map_err(|why| format!("NetworkPluginNotReady: {why}")),
            handlers: std::iter::once(handler(String::new(), default)).chain(named).collect(),
            supplemental_groups_policy: Some(false),
        })
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, RuntimeError> {
        let info = self.engine.info("RuntimeConfig").await?;
        Ok(match info["CgroupDriver"].as_str() {
            Some("systemd") => Some(CgroupDriver::Systemd),
            Some("cgroupfs") => Some(CgroupDriver::Cgroupfs),
            _ => None,
        })
    }

    async fn list_sandboxes(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedSandbox>, RuntimeError> {
        let engine = &self.engine;
        engine.recover().await?;
        // Before the list: what is connected meanwhile must not seem to be gone.
        let mut gone: Vec<SandboxId> = match pod {
            None => engine.addresses.borrow().iter().flatten().map(|(id, _)| id.clone()).collect(),
            Some(_) => Vec::new(),
        };
        let items = engine.list("ListPodSandbox", SANDBOX, of_pod(pod).as_deref()).await?;
        gone.retain(|id| !items.iter().any(|item| item["Id"] == id.as_str()));
        for id in gone {
            // Removed by another program: its addresses and ports are free again.
            if let Err(error) = sandbox::disconnect(engine, "ListPodSandbox", &id).await {
                log::warn!(err:% = error; "Failed to clean up pod network");
            }
        }
        let is_connected = |id: &SandboxId| engine.addresses(id).is_some();
        Ok(items.iter().filter_map(|item| observed::sandbox_from_list(item, is_connected)).collect())
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, RuntimeError> {
        let call = "PodSandboxStatus";
        self.engine.recover().await?;
        let object = self.engine.inspect(call, id.as_str()).await?;
        observed::sandbox_from_inspection(&object, self.engine.addresses(id)).ok_or_else(|| not_of_pod(call))
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId, RuntimeError> {
        sandbox::run(&self.engine, config).await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        sandbox::stop(&self.engine, id).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        sandbox::remove(&self.engine, id).await
    }

    async fn list_containers(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedContainer>, RuntimeError> {
        let items = self.engine.list("ListContainers", CONTAINER, of_pod(pod).as_deref()).await?;
        Ok(items.iter().filter_map(observed::container_from_list).collect())
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ObservedContainer, RuntimeError> {
        let call = "ContainerStatus";
        let object = self.engine.inspect(call, id.as_str()).await?;
        let image = self.engine.image_names(call, &text(&object["Image"])).await;
        observed::container_from_inspection(&object, image).ok_or_else(|| not_of_pod(call))
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError> {
        container::create_container(&self.engine, sandbox, config, sandbox_config).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        container::start(&self.engine, id).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        container::stop(&self.engine, id, grace).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let object = match self.engine.inspect("RemoveContainer", id.as_str()).await {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
            object => object?,
        };
        container::remove(&self.engine, id.as_str(), &observed::labels_of(&object["Config"])).await
    }

    /// The engine rotates by itself.
    async fn reopen_container_log(&self, _: &ContainerId) -> Result<(), RuntimeError> {
        let message = "Docker rotates logs itself";
        Err(RuntimeError::new("ReopenContainerLog", ErrorKind::Unimplemented, message))
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        container::update(&self.engine, id, resources).await
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, RuntimeError> {
        exec::sync(Rc::clone(&self.engine), id, command, timeout).await
    }

    async fn image_status(&self, image: &str) -> Result<Option<ImageStatus>, RuntimeError> {
        image::status(&self.engine, image).await
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&ImageAuth>,
        _: &SandboxConfig,
    ) -> Result<String, RuntimeError> {
        image::pull(&self.engine, image, auth).await
    }

    async fn list_images(&self) -> Result<Vec<RuntimeImage>, RuntimeError> {
        image::list(&self.engine).await
    }

    async fn remove_image(&self, id: &str) -> Result<Option<u64>, RuntimeError> {
        image::remove(&self.engine, id).await.map(|()| None)
    }

    async fn disk_places(&self) -> Result<DiskPlaces, RuntimeError> {
        Ok(DiskPlaces { images: image::place(&self.engine, "ImageFsInfo").await?, layers: None })
    }

    async fn set_pod_cidrs(&self, cidrs: &[String]) -> Result<(), RuntimeError> {
        let call = "UpdateRuntimeConfig";
        let set = self.engine.network(call)?.set_pod_cidrs(cidrs).await;
        set.map_err(|message| RuntimeError::new(call, ErrorKind::Refused, message))
    }

    async fn next_change(&self) -> Result<(), RuntimeError> {
        let is_followed = self.follower.borrow().as_ref().is_some_and(|task| !task.is_finished());
        if !is_followed {
            let task = rt::spawn("docker events", events::follow(Rc::downgrade(&self.engine)));
            *self.follower.borrow_mut() = Some(task);
        }
        self.engine.changed.notified().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn new_containers_get_the_log_limits_of_now() {
        let socket = testing::socket(|_| testing::response("1.43", r#"{"CgroupDriver":"systemd"}"#));
        let config = DockerConfig { log: Live::new(Some((10, 5))), ..DockerConfig::default() };
        let runtime = DockerRuntime::new(socket.clone(), 43, Duration::from_secs(10), config.clone());
        let limits = || async { runtime.engine.facts("Info").await.unwrap().log };
        let test = async {
            assert_eq!(limits().await, Some((10, 5)));
            config.log.set(Some((20, 3)));
            assert_eq!(limits().await, Some((20, 3)));
        };
        tokio::task::LocalSet::new().run_until(test).await;
        std::fs::remove_file(socket).expect("remove the socket");
    }

    #[test]
    fn an_engine_that_was_replaced_is_asked_what_it_speaks() {
        rt::run(async {
            let socket = testing::socket(|request| match request.split(' ').nth(1) {
                Some("/_ping") => testing::response("1.44", "OK"),
                Some("/v1.44/version") => testing::response("1.44", r#"{"ApiVersion":"1.44"}"#),
                _ => testing::refusal(400, "client version 1.41 is too old"),
            });
            let limit = Duration::from_secs(10);
            let runtime = DockerRuntime::new(socket.clone(), 41, limit, DockerConfig::default());
            assert_eq!(runtime.version().await.expect("it answers").api_version, "1.44");
            assert_eq!(runtime.engine.client.version(), 44);
            std::fs::remove_file(socket).expect("remove the socket");
        })
        .expect("run");
    }
}
