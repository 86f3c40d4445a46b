//! `EmbeddedRuntime`: CRI's calls, carried out by this process and the monitors it starts.
//!
//! Owns records and what follows from them: names in use, stages, who waits for which exit. Monitors own what
//! runs; images, network and cgroups have modules of their own. A call, once begun, continues to its end even
//! when its caller no longer waits for the answer, as with a runtime in a process of its own: what is half
//! done is either finished or undone.
//!
//! | file | what |
//! |---|---|
//! | `record` | the files that describe sandboxes and containers |
//! | `state` | the part of the records kept in memory |
//! | `files` | the content of a sandbox's directory |
//! | `sandbox`, `container` | creating, stopping, removing |
//! | `creation` | from a configuration to a bundle |
//! | `exec` | programs in containers, and streams |
//! | `claim` | exclusive ownership of the directories |
//! | `watch` | exits of containers and of monitors |
//! | `recover` | the start: adopting, undoing, removing |
//! | `view` | one container in full |
//! | `api`, `serve` | the interface beyond the trait, for `agent cri` |

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard, broadcast};

use super::client::ForkServer;
use super::images::ImageStore;
use super::layout::Layout;
use super::network::NetworkConfig;
use super::pod_network::PodNetwork;
use crate::model::observed::{ObservedContainer, ObservedSandbox};
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{ContainerId, PodUid, SandboxId};
use crate::platform::cgroup::{CgroupConfig, Skipped};
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::sys::own_program::read_only_exe;
use crate::runtime::metered::Operation;
use crate::runtime::{
    ContainerConfig, DiskPlaces, ErrorKind, ExecOutput, ImageAuth, ImageStatus, LinuxResources, Runtime,
    RuntimeError, RuntimeHandler, RuntimeImage, RuntimeStatus, RuntimeVersion, SandboxConfig,
};

pub mod api;
mod cgroups;
mod claim;
mod container;
mod creation;
mod exec;
mod facts;
pub mod fault;
mod files;
mod filters;
mod image;
mod monitors;
mod processes;
pub mod record;
mod recover;
mod sandbox;
mod serve;
mod state;
mod usage;
mod view;
mod volumes;
mod watch;

use record::{SandboxRecord, SandboxStage};
use state::RuntimeState;

/// Name in `Version`.
pub(crate) const NAME: &str = "agent";

/// This program, even after its file was replaced or removed.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Pods that start together need monitors within this time.
const FORK_SERVER_IDLE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct EmbeddedConfig {
    /// The two trees.
    pub layout: Layout,
    /// This program, to be run again as fork server and puller: usually [`OWN_PROGRAM`].
    pub program: PathBuf,
    pub network: NetworkConfig,
    /// Where cgroups are and which driver manages them.
    pub cgroup: CgroupConfig,
    /// OCI runtimes by handler.
    pub handlers: BTreeMap<String, String>,
    /// Directories of `<host>/hosts.toml`.
    pub registry_hosts_dirs: Vec<PathBuf>,
    /// The image policy file: which images may be pulled, and which signatures they need; `None` for the
    /// default file, if it exists.
    pub image_policy: Option<PathBuf>,
    /// Free space that pulls keep on the images' disk, written as an eviction threshold.
    pub image_keep_free: String,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("create directory {path:?} of the embedded runtime")]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("open the image store {path:?}")]
    Images {
        path: PathBuf,
        #[source]
        source: super::images::ImageError,
    },
    #[error(
        "another agent uses {0:?}: only one `agent` or `agent cri` can use a --root-dir and \
         --runtime-state-dir, stop the other one first"
    )]
    InUse(PathBuf),
    #[error(transparent)]
    Lock(crate::platform::sys::lock::LockError),
    #[error("read the records of sandboxes in {path:?}")]
    Records {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// The runtime; clones share it.
#[derive(Clone)]
pub(crate) struct EmbeddedRuntime {
    shared: Rc<RuntimeInner>,
}

struct RuntimeInner {
    config: EmbeddedConfig,
    clock: Clock,
    images: ImageStore,
    network: PodNetwork,
    facts: Arc<facts::NodeAbilities>,
    state: RefCell<RuntimeState>,
    /// Notified whenever a container or a monitor has ended.
    ended: Notify,
    /// Holds one hint at most.
    hint: Notify,
    /// Created for the first listener.
    events: RefCell<Option<broadcast::Sender<api::RuntimeEvent>>>,
    /// Numbers the directories that wait for removal.
    discarded: Cell<u64>,
    warned: RefCell<std::collections::BTreeSet<String>>,
    /// This program as a file that cannot be written to; `None` when the kernel does not support that.
    program: Option<OwnedFd>,
    fork_server: Rc<ForkServer>,
    _claim: claim::Claim,
}

/// Why a call failed, before the call's name is added.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    kind: ErrorKind,
    message: String,
}

impl Failure {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    fn refused(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, message)
    }

    /// An error with all its causes.
    fn because(what: &str, error: &dyn std::error::Error) -> Self {
        Self::refused(format!("{what}: {}", crate::platform::logging::chain(error)))
    }

    fn of(self, call: &'static str) -> RuntimeError {
        RuntimeError::new(call, self.kind, self.message)
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::refused(message)
    }
}

/// containerd's message for a missing object.
fn no_sandbox(id: &SandboxId) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("an error occurred when try to find sandbox \"{id}\": not found"),
    )
}

fn no_container(id: &ContainerId) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("an error occurred when try to find container \"{id}\": not found"),
    )
}

impl EmbeddedRuntime {
    /// Recovers everything that an earlier agent left, undoes what is half made, and is then ready. Does not
    /// touch what runs.
    pub(crate) async fn open(config: EmbeddedConfig, clock: Clock) -> Result<Self, OpenError> {
        Box::pin(Self::open_beside(config, clock, Box::new(|| {}))).await
    }

    /// The same; `claimed` is called as soon as this process owns the directories, to begin other work that needs that.
    pub(crate) async fn open_beside(
        config: EmbeddedConfig,
        clock: Clock,
        claimed: Box<dyn FnOnce() + '_>,
    ) -> Result<Self, OpenError> {
        let layout = config.layout.clone();
        rt::blocking("create directories", move || files::make_directories(&layout)).await?;
        let claim = claim::acquire(&config.layout).await?;
        claimed();
        let (layout, network) = (config.layout.clone(), PodNetwork::new(config.network.clone()));
        let cgroup = config.cgroup.clone();
        let own = config.program == Path::new(OWN_PROGRAM);
        let made = rt::blocking("open embedded runtime", move || {
            let program = own.then(read_only_program).flatten();
            let path = layout.images();
            let images = ImageStore::open(&path).map_err(|source| OpenError::Images { path, source })?;
            Ok((images, facts::NodeAbilities::measure(&cgroup), program, recover::look(&layout)?))
        });
        let (images, facts, program, remains) = made.await?;
        let fork_server = ForkServer::new(path_of(program.as_ref(), &config), FORK_SERVER_IDLE);
        let shared = Rc::new(RuntimeInner {
            config,
            clock,
            images,
            network,
            facts: Arc::new(facts),
            state: RefCell::default(),
            ended: Notify::new(),
            hint: Notify::new(),
            events: RefCell::default(),
            discarded: Cell::default(),
            warned: RefCell::default(),
            program,
            fork_server,
            _claim: claim,
        });
        recover::recover(&shared, remains).await;
        Ok(Self { shared })
    }

    /// The configuration that it was opened with.
    #[must_use]
    pub(crate) fn config(&self) -> &EmbeddedConfig {
        &self.shared.config
    }

    #[must_use]
    pub(crate) fn images(&self) -> &ImageStore {
        &self.shared.images
    }

    /// Carries out a call to its end, even when the caller stops waiting for it.
    async fn carry_out<T: 'static>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, Failure>> + 'static,
    ) -> Result<T, RuntimeError> {
        let operation = Operation::begin(call);
        match rt::spawn(call, work).await {
            Ok(result) => {
                operation.end(result.is_err());
                result.map_err(|failure| failure.of(call))
            }
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(RuntimeError::new(call, ErrorKind::Unavailable, "the agent is shutting down")),
        }
    }
}

/// Containers can reach a monitor's program, as far as the kernel's checks allow: it must not be writable.
fn read_only_program() -> Option<OwnedFd> {
    match read_only_exe() {
        Ok(program) => Some(program),
        Err(error) => {
            log::debug!(err:% = error; "Failed to protect the agent's program from being written by its \
                                        monitors");
            None
        }
    }
}

/// The path of the program to run as fork server or puller.
fn path_of(program: Option<&OwnedFd>, config: &EmbeddedConfig) -> PathBuf {
    program.map_or_else(
        || config.program.clone(),
        |program| PathBuf::from(format!("/proc/self/fd/{}", program.as_raw_fd())),
    )
}

impl RuntimeInner {
    /// The path of the program to run as puller.
    fn program(&self) -> PathBuf {
        path_of(self.program.as_ref(), &self.config)
    }

    /// Takes the lock of a sandbox. `None` when there is no such sandbox.
    async fn hold(&self, id: &SandboxId) -> Option<OwnedMutexGuard<()>> {
        let lock = self.state.borrow().sandboxes.get(id).map(|sandbox| Arc::clone(&sandbox.lock))?;
        Some(lock.lock_owned().await)
    }

    /// Sets a sandbox's stage, in memory and in its record.
    fn set_stage(&self, id: &SandboxId, stage: SandboxStage) {
        if let Some(sandbox) = self.state.borrow_mut().sandboxes.get_mut(id) {
            sandbox.stage = stage;
        }
        let dir = self.config.layout.sandbox(id);
        let written = SandboxRecord::read(&dir).and_then(|mut record| {
            record.stage = stage;
            record.write(&dir)
        });
        if let Err(error) = written
            && !error.is_missing()
        {
            log::warn!(sandbox:% = id, err = chain(&error); "Failed to store sandbox record");
        }
    }

    /// Reports a change that a list would show.
    fn hint(&self) {
        self.hint.notify_one();
    }

    fn announce(&self, kind: api::EventKind, sandbox: &SandboxId, container: Option<&ContainerId>) {
        self.announce_with(kind, sandbox, container, None);
    }

    fn is_followed(&self) -> bool {
        self.events.borrow().as_ref().is_some_and(|events| events.receiver_count() > 0)
    }

    fn announce_with(
        &self,
        kind: api::EventKind,
        sandbox: &SandboxId,
        container: Option<&ContainerId>,
        last: Option<api::SandboxView>,
    ) {
        self.hint();
        if let Some(events) = self.events.borrow().as_ref() {
            let event = api::RuntimeEvent {
                kind,
                at: self.clock.now(),
                sandbox: sandbox.clone(),
                container: container.cloned(),
                last: last.map(Rc::new),
            };
            // Without a receiver the event is dropped.
            let _ = events.send(event);
        }
    }

    fn warn_of(&self, skipped: Vec<Skipped>) {
        for left_out in skipped {
            self.warn_once(&left_out.what, &left_out.why);
        }
    }

    /// Warns, once per text, about a feature that pods run without.
    fn warn_once(&self, what: &str, why: &str) {
        if self.warned.borrow_mut().insert(format!("{what}: {why}")) {
            log::warn!(what = what, why = why; "Feature is not available on this machine, continuing without");
        }
    }
}

impl Runtime for EmbeddedRuntime {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        Ok(RuntimeVersion {
            name: NAME.to_owned(),
            version: format!("v{}", env!("CARGO_PKG_VERSION")),
            api_version: "v1".to_owned(),
        })
    }

    async fn status(&self) -> Result<RuntimeStatus, RuntimeError> {
        let network_ready = self.shared.network.status().await;
        Ok(RuntimeStatus {
            runtime_ready: Ok(()),
            network_ready: network_ready.map_err(|why| format!("NetworkPluginNotReady: {why}")),
            handlers: self.handlers(),
            supplemental_groups_policy: Some(true),
        })
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, RuntimeError> {
        Ok(Some(self.shared.config.cgroup.driver))
    }

    async fn list_sandboxes(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedSandbox>, RuntimeError> {
        Ok(self.shared.state.borrow().observed_sandboxes(pod))
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, RuntimeError> {
        let found = self.shared.state.borrow().observed_sandbox(id);
        found.ok_or_else(|| no_sandbox(id).of("PodSandboxStatus"))
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId, RuntimeError> {
        let work = sandbox::run(Rc::clone(&self.shared), config.clone());
        self.carry_out("RunPodSandbox", work).await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let work = sandbox::stop(Rc::clone(&self.shared), id.clone());
        self.carry_out("StopPodSandbox", work).await
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let work = sandbox::remove(Rc::clone(&self.shared), id.clone());
        self.carry_out("RemovePodSandbox", work).await
    }

    async fn list_containers(&self, pod: Option<&PodUid>) -> Result<Vec<ObservedContainer>, RuntimeError> {
        Ok(self.shared.state.borrow().observed_containers(pod))
    }

    async fn container_status(&self, id: &ContainerId) -> Result<ObservedContainer, RuntimeError> {
        view::status(&self.shared, id).map_err(|failure| failure.of("ContainerStatus"))
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, RuntimeError> {
        let work = container::create(
            Rc::clone(&self.shared),
            sandbox.clone(),
            config.clone(),
            sandbox_config.clone(),
        );
        self.carry_out("CreateContainer", work).await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let work = container::start(Rc::clone(&self.shared), id.clone());
        self.carry_out("StartContainer", work).await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), RuntimeError> {
        let work = container::stop(Rc::clone(&self.shared), id.clone(), grace);
        self.carry_out("StopContainer", work).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let work = container::remove(Rc::clone(&self.shared), id.clone());
        self.carry_out("RemoveContainer", work).await
    }

    async fn reopen_container_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.reopen_log(id).await
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        let work = container::update(Rc::clone(&self.shared), id.clone(), resources.clone());
        self.carry_out("UpdateContainerResources", work).await
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, RuntimeError> {
        let operation = Operation::begin("ExecSync");
        let result = exec::sync(&self.shared, id, command, timeout).await;
        operation.end(result.is_err());
        result.map_err(|failure| failure.of("ExecSync"))
    }

    async fn image_status(&self, image: &str) -> Result<Option<ImageStatus>, RuntimeError> {
        image::status(&self.shared, image).await.map_err(|failure| failure.of("ImageStatus"))
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&ImageAuth>,
        _sandbox: &SandboxConfig,
    ) -> Result<String, RuntimeError> {
        let operation = Operation::begin("PullImage");
        let result = image::pull(&self.shared, image, auth).await;
        operation.end(result.is_err());
        result.map_err(|failure| failure.of("PullImage"))
    }

    async fn list_images(&self) -> Result<Vec<RuntimeImage>, RuntimeError> {
        image::list(&self.shared).await.map_err(|failure| failure.of("ListImages"))
    }

    async fn remove_image(&self, id: &str) -> Result<Option<u64>, RuntimeError> {
        let operation = Operation::begin("RemoveImage");
        let used = self.images_in_use();
        let result = image::remove(&self.shared, id, used).await;
        operation.end(result.is_err());
        result.map_err(|failure| failure.of("RemoveImage"))
    }

    async fn disk_places(&self) -> Result<DiskPlaces, RuntimeError> {
        let layout = &self.shared.config.layout;
        Ok(DiskPlaces { images: Some(layout.images()), layers: Some(layout.writable_layers()) })
    }

    async fn set_pod_cidrs(&self, cidrs: &[String]) -> Result<(), RuntimeError> {
        let set = self.shared.network.set_pod_cidrs(cidrs).await;
        set.map_err(|message| Failure::from(message).of("UpdateRuntimeConfig"))
    }

    async fn next_change(&self) -> Result<(), RuntimeError> {
        self.shared.hint.notified().await;
        Ok(())
    }
}

impl EmbeddedRuntime {
    /// The default handler and the configured ones, with what each can do.
    #[must_use]
    pub(crate) fn handlers(&self) -> Vec<RuntimeHandler> {
        let facts = &self.shared.facts;
        let own = RuntimeHandler {
            name: String::new(),
            recursive_read_only_mounts: facts.recursive_read_only_mounts(),
            user_namespaces: facts.user_namespaces(),
        };
        let others = self.shared.config.handlers.keys().map(|name| RuntimeHandler {
            name: name.clone(),
            // The abilities of an external program are unknown, so none are reported.
            recursive_read_only_mounts: false,
            user_namespaces: false,
        });
        std::iter::once(own).chain(others).collect()
    }
}
