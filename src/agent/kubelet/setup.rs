//! From the resolved configuration to a running kubelet: creates every part, passes each its own
//! configuration, starts them, and stops them.
//!
//! Owns the order of start and stop (reference 1.8). Must not decide anything about pods.

pub mod configs;
mod controllers;
pub mod cri;
mod host;
pub(super) mod node_facts;
mod process;
mod reloading;
mod servers;
mod sources;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::agent::config::{Resolved, RunOnceWait};
use crate::agent::kubelet::joined::{self, Joined, JoinedParts};
use crate::agent::kubelet::node_service::SandboxStreams;
use crate::agent::kubelet::open_store::{
    OpeningStore, object_trouble, open_with_runtime, remember_node, report_upgrade, store_key,
};
use crate::agent::kubelet::reload;
use crate::agent::kubelet::report::{Identity, LoopView};
use crate::agent::kubelet::run_once::{self, RunOnceConfig, RunOnceOutcome};
use crate::agent::kubelet::setup::process::{acquire_lock, limit_process, make_dir};
use crate::agent::kubelet::{
    Kubelet, cgroup_root, embedded, managers, node_manager, plugins, resources, services,
};
use crate::cluster::review::Reviews;
use crate::desired::kinds::addresses::ServiceRanges;
use crate::desired::pod_config::PodConfig;
use crate::desired::pod_config::edit::{Edit, Editor};
use crate::desired::rollout::RolloutConfig;
use crate::desired::source::Accept;
use crate::model::objects::{ClusterFacts, LocalObjects, NodeFacts, NodeObjects, VOLUMES_DIR};
use crate::model::revisions::Revisions;
use crate::model::source::SourceUpdate;
use crate::model::types::PodSource;
use crate::node::NodeConfig;
use crate::node::object::NodeState;
use crate::node::shutdown::InitSystem;
use crate::node::stats::Stats;
use crate::platform::cgroup::claim::HeldError;
use crate::platform::clock::Clock;
use crate::platform::http::HttpError;
use crate::platform::rt;
use crate::platform::rt::live::Live;
use crate::platform::rt::notify::{Notifier, NotifyError, watchdog_interval};
use crate::platform::rt::shutdown::{self, Shutdown};
use crate::platform::sys::inotify::InotifyError;
use crate::platform::sys::lock;
use crate::pod::admission::Admission;
use crate::pod::container_logs::{self, LogConfig};
use crate::pod::csi::{CsiNode, drivers::CsiDrivers};
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::executor::{Executor, ExecutorConfig, PodSettings, ShareError};
use crate::pod::image::{ImageConfig, ImagePuller};
use crate::pod::pleg::{self, PlegConfig};
use crate::pod::prober::{Prober, ProberConfig};
use crate::pod::status::StatusManager;
use crate::pod::volume::share_mounts_below;
use crate::pod::workers::{PodWorkerConfig, PodWorkerDeps, PodWorkers};
use crate::runtime::Runtime;
use crate::runtime::chosen::NodeRuntime;
use crate::runtime::cri::{CriConfig, EndpointError};
use crate::runtime::docker::DockerLogs;
use crate::runtime::embedded::network::subnet::SubnetError;
use crate::runtime::embedded::registry::policy_file;
use crate::runtime::embedded::runtime::OpenError;
use crate::runtime::socket::{FoundRuntime, SocketRuntime};
use crate::serve::accounts::Accounts;
use crate::serve::server::{self, node::SharedNode};
use crate::store::{Loaded, StoreError, StoreHandle};

/// Whole sets are large and rare: one may wait while another is applied.
const SOURCE_QUEUE: usize = 2;
/// PLEG snapshots that the loop has not processed yet.
const PLEG_QUEUE: usize = 4;

#[derive(Clone, Debug, Default)]
pub struct DaemonEnvironment {
    pub notify_socket: Option<String>,
    pub watchdog_usec: Option<String>,
    pub watchdog_pid: Option<String>,
    /// `DBUS_SYSTEM_BUS_ADDRESS`.
    pub system_bus_address: Option<String>,
    /// `RC_SVCDIR`.
    pub openrc_state: Option<String>,
    pub credentials_directory: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    Embedded(#[from] OpenError),
    #[error("podCIDR")]
    PodCidr(#[source] SubnetError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// More is reserved than the node has. Upstream's message.
    #[error("invalid Node Allocatable configuration. {0}")]
    Reservations(String),
    /// A policy needs what this machine has not. The message is upstream's.
    #[error("the CPU, memory and topology manager policies do not suit this machine: {0}")]
    Managers(String),
    /// The machine is not as the configuration demands.
    #[error("{0}")]
    Host(String),
    #[error(transparent)]
    CgroupRoot(#[from] HeldError),
    #[error(transparent)]
    Lock(#[from] lock::LockError),
    #[error("start the thread that waits for the lock file")]
    Thread(#[source] std::io::Error),
    #[error("create directory {path:?}")]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("open the store {path:?}")]
    Store {
        path: PathBuf,
        #[source]
        source: StoreError,
    },
    /// The id ranges for pods with user namespaces.
    #[error("kubelet mappings")]
    UserNamespaces(#[source] ShareError),
    #[error(transparent)]
    Notify(#[from] NotifyError),
    #[error("start the HTTP client")]
    Http(#[source] HttpError),
    /// Signal handlers or the runtime.
    #[error("install signal handlers")]
    Signals(#[source] std::io::Error),
    #[error("listen on the agent socket")]
    Listen(#[source] server::BindError),
    #[error("watch the lock file")]
    Contention(#[source] InotifyError),
}

/// The reason for an end without an error.
#[derive(Debug)]
pub enum Finished {
    Stopped,
    RunOnce(RunOnceOutcome),
}

/// Runs the kubelet until it is asked to stop, or until run-once has finished.
///
/// # Errors
/// The reason it cannot start; once it runs, there is none.
pub async fn run(resolved: &Resolved, environment: &DaemonEnvironment) -> Result<Finished, SetupError> {
    let (trigger, shutdown) = shutdown::channel();
    rt::spawn("signals", shutdown::watch_signals(trigger.clone()).map_err(SetupError::Signals)?);
    let notifier = Rc::new(Notifier::connect(environment.notify_socket.as_deref())?);
    let watchdog = watchdog_interval(
        environment.watchdog_usec.as_deref(),
        environment.watchdog_pid.as_deref(),
        std::process::id(),
    )?;
    let Some(_lock) = acquire_lock(resolved, &trigger, &shutdown).await? else {
        return Ok(Finished::Stopped);
    };
    limit_process(resolved);
    host::prepare(resolved)?;
    let endpoint = resolved.kubelet.container_runtime_endpoint.as_str();
    let key_file = resolved.flags.store_key_file.as_deref();
    let key = store_key(key_file, environment.credentials_directory.as_deref());
    let ruler = InitSystem {
        bus_address: environment.system_bus_address.clone(),
        openrc_state: environment.openrc_state.clone(),
    };
    let image_problems = embedded::ImageProblems::default();
    let docker_logs = Live::new(configs::docker_logs(resolved));
    let watched = Watched { docker_logs, image_problems, notifier, watchdog, shutdown, ruler };
    let root = &resolved.flags.root_dir;
    make_dir(root, 0o750)?;
    if endpoint == embedded::ENDPOINT {
        let config = configs::embedded(resolved).map_err(SetupError::PodCidr)?;
        let (runtime, store) = open_with_runtime(config, root, key).await?;
        let directory = resolved.flags.images_dir.clone();
        let images = embedded::import_images(directory, &runtime, Rc::clone(&watched.image_problems)).await;
        let socket = cri::serve_beside(resolved, &runtime).await;
        let runtime = NodeRuntime::Embedded(Rc::new(runtime));
        let finished = Box::pin(run_with(resolved, Rc::new(runtime), store, watched)).await;
        for task in socket.into_iter().chain([images]) {
            task.abort();
        }
        return finished;
    }
    watched.image_problems.borrow_mut().extend(embedded::policy_without_effect(policy_file(None)));
    let config = CriConfig {
        endpoint: endpoint.to_owned(),
        image_endpoint: resolved.kubelet.image_service_endpoint.clone(),
        request_timeout: resolved.kubelet.runtime_request_timeout.to_std(),
    };
    let runtime = SocketRuntime::new(config, configs::docker(resolved, watched.docker_logs.clone()))?;
    let is_docker = match runtime.found().await {
        Ok(found) => matches!(found, FoundRuntime::Docker(_)),
        Err(_) => runtime.assume(),
    };
    resolved.found_runtime(is_docker);
    let runtime = NodeRuntime::Socket(Rc::new(runtime));
    let store = OpeningStore::begin(root, key);
    Box::pin(run_with(resolved, Rc::new(runtime), store, watched)).await
}

/// Where progress is reported, where the request to stop comes from, what is wrong with images, and Docker's logs.
struct Watched {
    docker_logs: Live<DockerLogs>,
    image_problems: embedded::ImageProblems,
    notifier: Rc<Notifier>,
    watchdog: Option<Duration>,
    shutdown: Shutdown,
    ruler: InitSystem,
}

async fn run_with<R: SandboxStreams>(
    resolved: &Resolved,
    runtime: Rc<R>,
    store: OpeningStore,
    watched: Watched,
) -> Result<Finished, SetupError> {
    let mut house = AgentParts::open(resolved, runtime, store).await?;
    house.view.set_image_problems(watched.image_problems);
    let _cgroups = cgroup_root::acquire(house.executor.as_ref()).await?;
    let (update_sender, updates) = mpsc::channel(SOURCE_QUEUE);
    let sources = house.start_sources(resolved, &update_sender)?;
    let (servers, served) = house.start_servers(resolved).await?;
    let rotating =
        container_logs::rotate_logs(Rc::clone(&house.runtime), house.logs.clone(), house.clock.clone());
    let logs = rt::spawn("container logs", rotating);
    let has_pods = house.loaded.desired.iter().any(|stored| !stored.pods.is_empty());
    let (kubelet, view, statuses) = house.kubelet(updates, Rc::clone(&watched.notifier), watched.watchdog);
    let services = house.start_services(resolved, has_pods).await;
    let mut shutdown = watched.shutdown;
    let updates = house.start_image_updates(resolved, &view, &statuses);
    let controllers = house.start_controllers(&view, &statuses).into_iter().chain(updates);
    let mut is_online: Rc<dyn Fn() -> bool> = Rc::new(|| false);
    let csi = plugins::start_csi(&house.csi, &kubelet.workers);
    if let Some(accounts) = &house.accounts {
        kubelet.workers.follow_volumes(accounts.changes());
        rt::spawn("service account tokens", Rc::clone(accounts).run());
    }
    if let (Some(joined), Some(served)) = (house.joined.take(), &served) {
        let parts = JoinedParts {
            updates: update_sender,
            statuses: &statuses,
            events: &house.events,
            store: &house.store,
            clock: &house.clock,
            view: &view,
            node: Rc::clone(&served.facts),
            reviews: served.reviews.clone(),
            pressure: kubelet.workers.pressure(),
            set_node: kubelet.workers.node_setter(),
            runtime: Rc::clone(&house.runtime),
        };
        joined::keep_control_plane(resolved, &parts, &served.node);
        let cluster = joined::start(joined, parts);
        is_online = Rc::new(move || cluster.is_online());
    } else {
        drop(update_sender);
        if !resolved.kubelet.run_once {
            house.events.node_event(EventType::Normal, "Starting", "Starting kubelet.");
        }
    }
    let keeping = served.map(|Served { node, .. }| {
        let needs = node_manager::NodeManagerParts {
            is_online: &is_online,
            runtime: &house.runtime,
            node: &node,
            view: &view,
            statuses: &statuses,
            events: &house.events,
            clock: &house.clock,
        };
        let pods = kubelet.workers.pressure();
        let ends = (watched.notifier, shutdown.clone(), watched.ruler);
        let ending;
        let periods = configs::grace_periods(resolved);
        (ending, shutdown) = node_manager::start_node_shutdown(periods, Rc::clone(&pods), &needs, ends);
        let config = (house.node.clone(), house.stats(resolved));
        node_manager::start(config, pods, &needs).into_iter().chain(ending)
    });
    let cpus = kubelet.workers.follow_cpus(resolved.kubelet.cpu_manager_reconcile_period.to_std());
    let plugins = if resolved.kubelet.run_once {
        Vec::new()
    } else {
        plugins::start(&resolved.flags.root_dir, &kubelet.workers, &view, &statuses, csi).await
    };
    let following = reload::follow(house.reloading(resolved, &kubelet.workers, watched.docker_logs))
        .map_err(SetupError::Signals)?;
    let following = rt::spawn("configuration", following);
    let clearing = kubelet.workers.final_cleanup();
    let finished = run_until_finished(resolved, kubelet, &view, &statuses, &house.admission, shutdown).await;
    let keeping = keeping.into_iter().flatten().chain(plugins).chain(cpus).chain(services).chain(controllers);
    for task in sources.into_iter().chain(servers).chain([logs, following]).chain(keeping) {
        task.abort();
    }
    if let Finished::RunOnce(outcome) = &finished {
        Box::pin(outcome.clear(&*house.runtime, clearing, &resolved.flags.root_dir)).await;
    }
    house.close().await;
    Ok(finished)
}

async fn run_until_finished<R: Runtime>(
    resolved: &Resolved,
    kubelet: Kubelet<R>,
    view: &Rc<LoopView>,
    statuses: &Rc<StatusManager>,
    admission: &Admission,
    shutdown: Shutdown,
) -> Finished {
    if !resolved.kubelet.run_once {
        kubelet.run(shutdown).await;
        return Finished::Stopped;
    }
    let config = RunOnceConfig {
        timeout: resolved.flags.run_once_timeout.to_std(),
        wait_for_completion: resolved.flags.run_once_wait == RunOnceWait::Completed,
    };
    tokio::select! {
        biased;
        // Either arm ends the run; the next start resumes what the other was doing.
        () = kubelet.run(shutdown) => Finished::Stopped,
        outcome = run_once::wait(config, Rc::clone(view), Rc::clone(statuses), admission.clone()) => Finished::RunOnce(outcome),
    }
}

/// The parts of the servers that others use.
struct Served {
    node: SharedNode,
    /// Of the node, now.
    facts: Rc<dyn Fn() -> NodeState>,
    /// Questions to the cluster about clients.
    reviews: Option<Rc<Reviews>>,
}

/// The parts that live as long as the process.
struct AgentParts<R> {
    runtime: Rc<R>,
    store: StoreHandle,
    loaded: Loaded,
    objects: Rc<LocalObjects>,
    cluster_objects: Rc<LocalObjects>,
    lookup: Rc<NodeObjects>,
    accounts: Option<Rc<Accounts>>,
    revisions: Revisions,
    events: EventRecorder,
    statuses: Rc<StatusManager>,
    view: Rc<LoopView>,
    clock: Clock,
    admission: Admission,
    executor: Option<ExecutorConfig>,
    node_ips: Vec<String>,
    /// What Services may have; `None` where they are not this node's.
    services: Option<ServiceRanges>,
    images: Live<ImageConfig>,
    workers: Live<PodWorkerConfig>,
    node: Live<NodeConfig>,
    logs: Live<LogConfig>,
    pods: Live<PodSettings>,
    /// What `/configz` shows.
    configuration: Live<Value>,
    runtime_name: Rc<RefCell<String>>,
    registered: Vec<PodSource>,
    joined: Option<Joined>,
    csi: Rc<CsiNode>,
    rollout: Option<RolloutConfig>,
    editor: Editor,
    edits: Option<mpsc::Receiver<Edit>>,
    accepts: BTreeMap<PodSource, mpsc::Sender<Accept>>,
    write_behind: JoinHandle<()>,
    /// `syncFrequency`.
    sync_frequency: Duration,
}

impl<R: Runtime> AgentParts<R> {
    #[expect(clippy::too_many_lines, reason = "one list of the parts")]
    async fn open(
        resolved: &Resolved,
        runtime: Rc<R>,
        mut opening: OpeningStore,
    ) -> Result<Self, SetupError> {
        let clock = Clock::System;
        let root = &resolved.flags.root_dir;
        let revisions = Revisions::since(clock.now());
        let objects = Rc::new(LocalObjects::new(root.join(VOLUMES_DIR), revisions.clone()));
        let cluster_objects = Rc::new(LocalObjects::new(PathBuf::new(), revisions.clone()));
        let opened = opening.opened().await;
        let OpeningStore { path, key, .. } = opening;
        let (store, mut loaded, unsealed) =
            opened.map_err(|source| SetupError::Store { path: path.clone(), source })?;
        joined::settle(resolved, &mut loaded, &store).await;
        let facts = joined::facts(resolved, &loaded);
        let shown = facts.clone().map(|facts| facts as Rc<dyn ClusterFacts>);
        let statuses = Rc::new(StatusManager::new(store.clone(), loaded.statuses.clone(), revisions.clone()));
        let accounts = (!joined::is_joined(resolved)).then(|| {
            Accounts::new(
                configs::accounts(resolved),
                Rc::clone(&objects),
                Rc::clone(&statuses),
                clock.clone(),
            )
        });
        let lookup = Rc::new(NodeObjects::new(
            (Rc::clone(&objects), accounts.clone().map(|accounts| accounts as Rc<dyn NodeFacts>)),
            (Rc::clone(&cluster_objects), shown),
        ));
        let services = services::ranges(resolved, &loaded);
        let mut executor = {
            let (ids, pods) = (resolved.kubelet.user_namespaces_ids_per_pod, resolved.kubelet.max_pods);
            let user_ids = resources::user_ids(ids, pods).await.map_err(SetupError::UserNamespaces)?;
            configs::executor(resolved, user_ids, &lookup, services.as_ref())
                .map_err(SetupError::Reservations)?
        };
        let changes = managers::open(resolved, &mut executor, &loaded, &store).await;
        let changes = changes.map_err(SetupError::Managers)?;
        share_mounts_below(root).await;
        make_dir(&executor.pod_logs_dir, 0o750)?;
        if let Some(bytes) = resolved.flags.container_log_ram {
            container_logs::keep_in_memory(&executor.pod_logs_dir, bytes);
        }
        make_dir(&executor.volumes.pods_dir, 0o750)?;
        make_dir(&executor.container_logs_dir, 0o755)?;
        remember_node(&configs::runtimes(resolved), &resolved.node_name, &store, &loaded).await;
        let earlier = store.events().await.unwrap_or_default();
        let events = EventRecorder::new(resolved.node_name.clone(), clock.clone(), store.clone(), earlier);
        report_upgrade(root, &events);
        managers::report(&changes, &loaded, &events);
        let runtime_name = Rc::new(RefCell::default());
        let identity = Identity {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_name: resolved.node_name.clone(),
            started_at: clock.now(),
            endpoint: resolved.kubelet.container_runtime_endpoint.clone(),
            store_path: path.display().to_string(),
            origins: {
                let mut origins = configs::origins(&resolved.kubelet);
                if joined::is_joined(resolved) {
                    origins.insert(PodSource::Cluster, resolved.flags.kubeconfig.clone());
                }
                origins
            },
            volumes_dir: root.join(VOLUMES_DIR),
            object_trouble: object_trouble(&key, unsealed, &loaded),
            api: configs::api_report(resolved),
        };
        // Objects that came through the API stay, whether the API is served now or not.
        let registered: Vec<PodSource> = identity.origins.keys().copied().chain([PodSource::Api]).collect();
        if identity.origins.is_empty() {
            log::warn!("No pod source is configured: set --manifest-dir or --manifest-url");
        }
        let (editor, edits) = Editor::channel();
        let admission = Admission::new(node_facts::node_facts(resolved, &executor), events.clone());
        let seen = (facts, Rc::<NodeObjects>::clone(&lookup));
        let view = Rc::new(LoopView::new(identity, Rc::clone(&runtime_name)));
        view.show_objects(&objects);
        view.show_managers(&executor.managers);
        let drivers = CsiDrivers::new(root.clone(), resolved.node_name.clone());
        let stored = (&store, &events, &clock);
        let joined =
            joined::restore(resolved, &loaded, (&admission, &*runtime), seen, stored, &drivers).await;
        Ok(Self {
            csi: joined::csi(joined.as_ref(), &drivers, (&objects, &lookup)),
            joined,
            revisions,
            view,
            workers: Live::new(configs::workers(resolved, executor.node_ips.clone())),
            images: Live::new(configs::images(resolved)),
            node: Live::new(configs::node_manager(resolved)),
            logs: Live::new(configs::log_rotation(resolved)),
            pods: executor.pods.clone(),
            configuration: Live::new(resolved.to_json()),
            admission,
            node_ips: executor.node_ips.clone(),
            executor: Some(executor),
            services,
            write_behind: rt::spawn("store write-behind", store.clone().write_behind()),
            runtime,
            store,
            loaded,
            objects,
            cluster_objects,
            lookup,
            accounts,
            events,
            statuses,
            clock,
            runtime_name,
            registered,
            rollout: configs::rollout(resolved),
            editor,
            edits: Some(edits),
            accepts: BTreeMap::new(),
            sync_frequency: resolved.kubelet.sync_frequency.to_std(),
        })
    }

    fn stats(&self, resolved: &Resolved) -> Rc<Stats> {
        let lookup = Rc::<NodeObjects>::clone(&self.lookup);
        let stats = Stats::new(configs::stats(resolved), lookup, self.clock.clone());
        stats.set_csi(Rc::<CsiNode>::clone(&self.csi));
        stats
    }

    fn kubelet(
        &mut self,
        updates: mpsc::Receiver<SourceUpdate>,
        notifier: Rc<Notifier>,
        watchdog: Option<Duration>,
    ) -> (Kubelet<R>, Rc<LoopView>, Rc<StatusManager>) {
        let loaded = std::mem::take(&mut self.loaded);
        let has_joined = joined::has_rows(&loaded);
        let images = ImagePuller::new(
            Rc::clone(&self.runtime),
            self.clock.clone(),
            self.events.clone(),
            self.images.clone(),
        )
        .with_accounts(self.joined.as_ref().map(Joined::accounts));
        let executor = Executor::new(
            Rc::clone(&self.runtime),
            images,
            self.events.clone(),
            self.clock.clone(),
            self.executor.take().expect("made once in open, used once here"),
        );
        let deps = PodWorkerDeps {
            executor,
            runtime: Rc::clone(&self.runtime),
            store: self.store.clone(),
            statuses: Rc::clone(&self.statuses),
            clock: self.clock.clone(),
            prober: Prober::new(
                Rc::clone(&self.runtime),
                self.clock.clone(),
                self.events.clone(),
                ProberConfig { node_ips: self.node_ips.clone() },
            ),
            admission: self.admission.clone(),
            config: self.workers.clone(),
            runtime_name: Rc::clone(&self.runtime_name),
        };
        let (pleg_sender, pleg) = mpsc::channel(PLEG_QUEUE);
        let runtime = Rc::clone(&self.runtime);
        let pleg_config = PlegConfig { period_with_hints: self.sync_frequency, ..PlegConfig::default() };
        rt::spawn("pleg", pleg::run(runtime, self.clock.clone(), pleg_config, pleg_sender));
        let mut pod_config = PodConfig::new(
            self.registered.clone(),
            loaded.desired,
            Rc::clone(&self.objects),
            self.store.clone(),
            self.events.clone(),
            self.clock.clone(),
        )
        .with_cluster_objects(Rc::clone(&self.cluster_objects))
        .with_services(self.services.clone())
        .with_notes(&loaded.meta)
        .with_rollout(self.rollout.take(), loaded.rollouts)
        .with_garbage_collection(loaded.unreadable.is_empty(), &loaded.terminating);
        if has_joined {
            pod_config = pod_config.of_joined_node();
        }
        let kubelet = Kubelet {
            pod_config,
            workers: PodWorkers::new(deps, loaded.container_state),
            terminating: loaded.terminating,
            updates,
            edits: self.edits.take().expect("made once in open, used once here"),
            pleg,
            view: Rc::clone(&self.view),
            clock: self.clock.clone(),
            notifier,
            watchdog,
        };
        (kubelet, Rc::clone(&self.view), Rc::clone(&self.statuses))
    }

    async fn close(self) {
        self.write_behind.abort();
        if let Err(error) = self.store.shutdown().await {
            log::warn!(err:% = error; "Failed to close the store");
        }
    }
}
