//! A simulated node: the world that lives on (runtime, files, store, clock) and the agent that comes and goes.
//!
//! Must not know scripts or what is expected.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use edge_agent::agent::kubelet::Kubelet;
use edge_agent::agent::kubelet::report::{Identity, LoopView};
use edge_agent::cluster::fake::{ClusterMemory, FakeApiserver, JoinedParts, join};
use edge_agent::desired::pod_config::PodConfig;
use edge_agent::desired::pod_config::edit::{ApiChange, Editor};
use edge_agent::desired::rollout::RolloutConfig;
use edge_agent::devices::DeviceManager;
use edge_agent::model::api::pod::Pod;
use edge_agent::model::objects::LocalObjects;
use edge_agent::model::revisions::Revisions;
use edge_agent::model::runtime_config::CgroupDriver;
use edge_agent::model::source::{SourceAnswer, SourceObject, SourcePod, SourceUpdate};
use edge_agent::model::types::{PodSource, Timestamp};
use edge_agent::node::stats::{Stats, StatsConfig};
use edge_agent::node::usage::{PodUse, Summary, Usage};
use edge_agent::node::{NodeConfig, NodeManager, NodeParts};
use edge_agent::platform::cgroup::CgroupConfig;
use edge_agent::platform::cgroup::usage::ContainerStats;
use edge_agent::platform::clock::Clock;
use edge_agent::platform::dice::Dice;
use edge_agent::platform::rt;
use edge_agent::platform::rt::live::Live;
use edge_agent::platform::rt::notify::Notifier;
use edge_agent::platform::rt::shutdown::{self, ShutdownTrigger};
use edge_agent::pod::admission::Admission;
use edge_agent::pod::admission::rules::NodeFacts;
use edge_agent::pod::events::EventRecorder;
use edge_agent::pod::executor::{Executor, ExecutorConfig, NodeCgroups};
use edge_agent::pod::image::{ImageConfig, ImagePuller};
use edge_agent::pod::pleg::{self, PlegConfig};
use edge_agent::pod::prober::{Prober, ProberConfig};
use edge_agent::pod::resources::{CgroupLayout, NodeCapacity, ResourceFlags};
use edge_agent::pod::status::StatusManager;
use edge_agent::pod::volume::VolumeConfig;
use edge_agent::pod::workers::{PodWorkerConfig, PodWorkerDeps, PodWorkers};
use edge_agent::runtime::Runtime;
use edge_agent::runtime::fake::FakeRuntime;
use edge_agent::store::{Loaded, Mode, OpenOptions, StoreHandle, WriteMoment};
use edge_agent::workload::{self, WorkloadParts};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};

use super::disk::Disk;

/// More than the program has: while it stores what it has taken, its sources can send on.
const SOURCE_QUEUE: usize = 4;
/// As the program has it.
const PLEG_QUEUE: usize = 4;
/// 20 November 2026, 16:00 UTC.
const START: Timestamp = Timestamp::from_secs(1_795_190_400);

/// A node with its disk.
pub struct Node {
    /// The runtime and what runs in it; the handle of the newest incarnation.
    pub fake: FakeRuntime,
    /// Simulated time.
    pub clock: Clock,
    /// ConfigMaps and Secrets that each source defines whenever it speaks.
    pub defined: BTreeMap<PodSource, Vec<SourceObject>>,
    /// Emptied when dropped.
    disk: Disk,
    /// Writes of the store, and the one that an agent dies of.
    pub writes: Rc<Writes>,
    /// The sources the agent is configured with.
    pub sources: Vec<PodSource>,
    /// Whether new sets are rolled out.
    pub rollout: Option<RolloutConfig>,
    /// What it offers to pods.
    pub facts: NodeFacts,
    /// Whether the node is looked after: how much of its 1000 MiB of memory has to be free, in MiB, and how it is judged.
    pub keeping: Option<Keeping>,
    /// The cluster that it belongs to.
    pub cluster: Option<Cluster>,
    pub registry: super::registry::SimRegistry,
    /// How often the agent was started.
    lives: Cell<u64>,
    /// While it runs.
    pub agent: Option<Agent>,
}

/// A cluster, and what the node remembers of it.
pub struct Cluster {
    /// Its apiserver.
    pub server: FakeApiserver,
    /// Beside the pods.
    pub memory: ClusterMemory,
    /// `--offline-max-age`.
    pub offline_max_age: Option<Duration>,
}

/// A node that is looked after.
#[derive(Clone, Default)]
pub struct Keeping {
    /// Thresholds and images.
    pub config: NodeConfig,
    /// What pods use, by uid: MiB of memory.
    pub usage: Rc<RefCell<BTreeMap<String, u64>>>,
}

/// Counts what the store writes.
#[derive(Default)]
pub struct Writes {
    count: Cell<u64>,
    deadly: Cell<Option<(u64, WriteMoment)>>,
}

impl Writes {
    /// The agent dies of the `number`th write from now on, the first being 1.
    pub fn crash_at(&self, number: u64, moment: WriteMoment) {
        self.deadly.set(Some((self.count.get() + number, moment)));
    }

    /// It does not, after all.
    pub fn spare(&self) {
        self.deadly.set(None);
    }

    fn is_deadly(&self, moment: WriteMoment) -> bool {
        if moment == WriteMoment::Before {
            self.count.set(self.count.get() + 1);
        }
        let is_deadly = self.deadly.get() == Some((self.count.get(), moment));
        if is_deadly {
            self.spare();
        }
        is_deadly
    }
}

/// One life of the agent. Dropping it is a crash: nothing is flushed, no call is answered.
pub struct Agent {
    /// What its API would show.
    pub view: Rc<LoopView>,
    /// What it says of its pods.
    pub statuses: Rc<StatusManager>,
    /// What it recorded.
    pub events: EventRecorder,
    /// Where sources speak.
    pub updates: mpsc::Sender<SourceUpdate>,
    /// Where the API is written through.
    pub editor: Editor,
    store: StoreHandle,
    trigger: ShutdownTrigger,
    kubelet: JoinHandle<()>,
    tasks: LocalSet,
}

/// Runs a simulation: one thread, paused time, everything in the same order every time.
pub fn simulate<F: Future>(simulation: F) -> F::Output {
    watch_for_panics();
    rt::run_jobs_inline();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing but memory");
    runtime.block_on(simulation)
}

thread_local! {
    /// The first panic of a task: tokio keeps it to itself, but a panic ends the real process.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn watch_for_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANIC.with_borrow_mut(|first| {
                first.get_or_insert_with(|| panic.to_string());
            });
            usual(panic);
        }));
    });
    PANIC.take();
}

/// What the cluster's tasks share with the rest of the node.
type OfNode = (mpsc::Sender<SourceUpdate>, Rc<StatusManager>, StoreHandle, EventRecorder, Loaded);

impl Node {
    /// An empty node; `seed` decides the runtime's faults.
    pub fn new(seed: u64, sources: &[PodSource]) -> Self {
        let clock = Clock::manual(START);
        let fake = FakeRuntime::new(clock.clone(), seed);
        let defined = BTreeMap::new();
        let facts = NodeFacts { name: "node1".to_owned(), ..NodeFacts::default() };
        let node = Self {
            fake,
            clock,
            defined,
            disk: Disk::new(),
            writes: Rc::default(),
            sources: sources.to_vec(),
            rollout: None,
            facts,
            keeping: None,
            cluster: None,
            registry: super::registry::SimRegistry::default(),
            lives: Cell::new(1),
            agent: None,
        };
        // A cgroup file system without controllers.
        std::fs::create_dir(node.path("cgroup")).expect("make the node's cgroup file system");
        node
    }

    /// Where a part of the node's files is: `pods`, `logs`, `containers`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.disk.0.join(name)
    }

    /// The store's file.
    pub fn store_path(&self) -> PathBuf {
        self.path("agent.db")
    }

    /// Starts the agent on what is there.
    pub async fn start(&mut self) {
        assert!(self.agent.is_none(), "the agent runs already");
        self.fake = self.fake.reincarnate();
        self.writes.spare();
        let tasks = LocalSet::new();
        let parts = tasks.run_until(self.wire()).await;
        self.agent = Some(Agent {
            view: parts.view,
            statuses: parts.statuses,
            events: parts.events,
            updates: parts.updates,
            editor: parts.editor,
            store: parts.store,
            trigger: parts.trigger,
            kubelet: parts.kubelet,
            tasks,
        });
    }

    /// The agent dies where it stands.
    pub fn crash(&mut self) {
        self.agent = None;
    }

    /// The agent is asked to end and does; its pods keep running.
    pub async fn stop(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        self.writes.spare();
        agent.trigger.request();
        let (kubelet, store) = (agent.kubelet, agent.store);
        agent
            .tasks
            .run_until(async {
                let ended = tokio::time::timeout(Duration::from_secs(300), kubelet).await;
                ended
                    .expect("the agent did not end within five minutes of being asked")
                    .expect("the loop panicked");
                store.shutdown().await.expect("close the store");
            })
            .await;
        check_panics();
    }

    /// Lets simulated time pass. Returns early, with the agent gone, when it meets its scripted death.
    pub async fn wait(&mut self, time: Duration) {
        let sleep = tokio::time::sleep(time);
        match &self.agent {
            None => sleep.await,
            Some(agent) => {
                let fake = self.fake.clone();
                let died = agent.tasks.run_until(async {
                    // Losing either arm is safe: nothing hangs on them.
                    tokio::select! {
                        biased;
                        () = fake.crashed() => true,
                        () = sleep => false,
                    }
                });
                if died.await {
                    self.crash();
                }
            }
        }
        check_panics();
    }

    /// What a source says now reaches the agent's queue; false when that is full or nobody is there.
    pub fn say(&self, source: PodSource, answer: SourceAnswer) -> bool {
        let defined = || self.defined.get(&source).cloned().unwrap_or_default();
        if let (PodSource::Api, SourceAnswer::Pods(pods)) = (source, &answer) {
            let wanted = Whole { pods: pods.clone(), objects: defined() };
            let edit = Box::new(move |config: &PodConfig| wanted.edit(config));
            return self.agent.as_ref().is_some_and(|agent| agent.editor.post(edit));
        }
        if source == PodSource::Api {
            // Nobody asks for anything.
            return true;
        }
        let objects = if answer == SourceAnswer::Unknown { Vec::new() } else { defined() };
        let update =
            SourceUpdate { source, answer, objects, problems: Vec::new(), validator: None, signed: None };
        self.agent.as_ref().is_some_and(|agent| agent.updates.try_send(update).is_ok())
    }

    /// A source's whole set, which must be accepted.
    pub fn want(&self, source: PodSource, pods: &[SourcePod]) {
        assert!(self.say(source, SourceAnswer::Pods(pods.to_vec())), "the agent does not take updates");
    }

    /// What the agent has on disk; it must be down.
    pub async fn stored(&self) -> Loaded {
        let (store, _) = StoreHandle::open(&self.store_path(), self.store_options()).expect("open the store");
        store.load().await.expect("read the store")
    }

    fn store_options(&self) -> OpenOptions {
        OpenOptions { mode: Mode::Inline, now: self.clock.now(), ..OpenOptions::default() }
    }

    async fn wire(&self) -> Parts {
        let clock = self.clock.clone();
        let runtime = Rc::new(self.fake.clone());
        let (store, report) =
            StoreHandle::open(&self.store_path(), self.store_options()).expect("open the store");
        assert!(report.damaged.is_none(), "the store is damaged: {report:?}");
        let (fake, writes) = (self.fake.clone(), Rc::clone(&self.writes));
        store.set_write_gate(Box::new(move |moment| {
            // What is under way in other tasks of the dead leaves no trace either.
            if !fake.is_dead() && writes.is_deadly(moment) {
                fake.die();
            }
            !fake.is_dead()
        }));
        let loaded = store.load().await.expect("read the store");
        assert!(loaded.unreadable.is_empty(), "unreadable rows: {:?}", loaded.unreadable);
        let earlier = store.events().await.expect("read events");
        let events = EventRecorder::new("node1".to_owned(), clock.clone(), store.clone(), earlier);
        let revisions = Revisions::since(clock.now());
        let statuses = Rc::new(StatusManager::new(store.clone(), loaded.statuses.clone(), revisions.clone()));
        let runtime_name = Rc::new(RefCell::default());
        let origins: BTreeMap<_, _> =
            self.sources.iter().map(|source| (*source, source.as_str().to_owned())).collect();
        let identity = Identity { origins, started_at: clock.now(), ..Identity::default() };
        let view = Rc::new(LoopView::new(identity, Rc::clone(&runtime_name)));
        rt::spawn("store write-behind", store.clone().write_behind());
        let images = ImageConfig { records_root: Some(self.path("")), ..ImageConfig::default() };
        let images = ImagePuller::new(Rc::clone(&runtime), clock.clone(), events.clone(), Live::new(images));
        let objects = Rc::new(LocalObjects::new(self.path("volumes"), revisions));
        let config = self.executor_config(&objects);
        let executor = Executor::new(Rc::clone(&runtime), images, events.clone(), clock.clone(), config);
        let admission = Admission::new(self.facts.clone(), events.clone());
        let node_ips = vec!["10.0.0.1".to_owned()];
        let prober = ProberConfig { node_ips: node_ips.clone() };
        let deps = PodWorkerDeps {
            executor,
            runtime: Rc::clone(&runtime),
            store: store.clone(),
            statuses: Rc::clone(&statuses),
            clock: clock.clone(),
            prober: Prober::new(Rc::clone(&runtime), clock.clone(), events.clone(), prober),
            admission: admission.clone(),
            config: Live::new(PodWorkerConfig { node_ips, ..PodWorkerConfig::default() }),
            runtime_name,
        };
        let (pleg_sender, pleg) = mpsc::channel(PLEG_QUEUE);
        rt::spawn("pleg", pleg::run(Rc::clone(&runtime), clock.clone(), PlegConfig::default(), pleg_sender));
        let (updates, update_receiver) = mpsc::channel(SOURCE_QUEUE);
        let for_cluster =
            (updates.clone(), Rc::clone(&statuses), store.clone(), events.clone(), loaded.clone());
        let (editor, edits) = Editor::channel();
        let (trigger, shutdown) = shutdown::channel();
        let kubelet = Kubelet {
            pod_config: PodConfig::new(
                self.sources.clone(),
                loaded.desired,
                Rc::clone(&objects),
                store.clone(),
                events.clone(),
                clock.clone(),
            )
            .with_rollout(self.rollout.clone(), loaded.rollouts),
            workers: PodWorkers::new(deps, loaded.container_state),
            terminating: loaded.terminating,
            updates: update_receiver,
            edits,
            pleg,
            view: Rc::clone(&view),
            clock,
            notifier: Rc::new(Notifier::default()),
            watchdog: None,
        };
        if let Some(keeping) = &self.keeping {
            let keeper = self.keeper(keeping, &runtime, (&kubelet, &statuses, &events));
            rt::spawn("node", keeper.run());
        }
        if let Some(cluster) = &self.cluster {
            self.join(cluster, for_cluster, &kubelet.workers);
        } else {
            let shared = (editor.clone(), Rc::clone(&objects), Rc::clone(&statuses), events.clone());
            self.registry.follow(shared, view.watch());
            let parts = WorkloadParts {
                node_name: "node1".to_owned(),
                clock: self.clock.clone(),
                editor: editor.clone(),
                objects,
                statuses: Rc::clone(&statuses),
                events: events.clone(),
                admission,
                desired: view.watch(),
                handlers: Rc::new(Vec::new),
                dice: Dice::seeded(self.lives.replace(self.lives.get() + 1)),
            };
            rt::spawn("controllers", workload::run(parts));
        }
        let kubelet = rt::spawn("kubelet", kubelet.run(shutdown));
        Parts { view, statuses, events, updates, editor, store, trigger, kubelet }
    }

    fn join(
        &self,
        cluster: &Cluster,
        (updates, statuses, store, events, loaded): OfNode,
        workers: &PodWorkers<impl Runtime>,
    ) {
        join(JoinedParts {
            server: cluster.server.clone(),
            memory: cluster.memory.clone(),
            node_name: self.facts.name.clone(),
            updates,
            statuses,
            store,
            events,
            pods: workers.pressure(),
            clock: self.clock.clone(),
            seed: 1,
            loaded,
            guard_grace: Duration::from_secs(600),
            offline_max_age: cluster.offline_max_age,
        });
    }

    /// All of the node's memory is free but so many MiB.
    pub fn use_memory(&self, mib: u64) {
        let free = (1000 - mib) * 1024;
        let text = format!("MemTotal: 1024000 kB\nMemFree: {free} kB\nInactive(file): 0 kB\n");
        std::fs::create_dir_all(self.path("proc")).expect("make the node's procfs");
        std::fs::write(self.path("proc/meminfo"), text).expect("write the node's procfs");
    }

    fn keeper(
        &self,
        keeping: &Keeping,
        runtime: &Rc<FakeRuntime>,
        (kubelet, statuses, events): (&Kubelet<FakeRuntime>, &Rc<StatusManager>, &EventRecorder),
    ) -> NodeManager {
        let config = self.executor_config(&Rc::new(LocalObjects::new(
            self.path("volumes"),
            Revisions::since(Timestamp::default()),
        )));
        let stats = StatsConfig {
            node_name: "node1".to_owned(),
            cgroup: config.cgroup,
            layout: config.layout,
            proc: self.path("proc"),
            runtime_cgroup: String::new(),
            root_dir: self.disk.0.clone(),
            pod_logs_dir: self.path("logs"),
            walk_period: Some(Duration::from_secs(60)),
        };
        let (usage, shown) = (Rc::clone(&keeping.usage), Rc::clone(statuses));
        NodeManager::new(NodeParts {
            config: Live::new(NodeConfig { root_dir: self.disk.0.clone(), ..keeping.config.clone() }),
            clock: self.clock.clone(),
            events: events.clone(),
            statuses: Rc::clone(statuses),
            health: Rc::clone(kubelet.view.health()),
            pods: kubelet.workers.pressure(),
            runtime: Rc::<FakeRuntime>::clone(runtime),
            stats: Stats::new(stats, config.objects, self.clock.clone()),
            on_checked: Rc::new(|| {}),
            measure: Rc::new(move || {
                let of = |pod: Pod| {
                    let mib = usage.borrow().get(pod.metadata.uid.as_str()).copied();
                    let counted =
                        ContainerStats { working_set: mib.map(|mib| mib << 20), ..ContainerStats::default() };
                    let usage = Usage { counted, ..Usage::default() };
                    PodUse { pod: pod.pod_ref(), usage, ..PodUse::default() }
                };
                let pods = shown.all_pods().into_iter().map(of).collect();
                Box::pin(async move { Ok(Summary { pods, ..Summary::default() }) })
            }),
        })
    }

    fn executor_config(&self, objects: &Rc<LocalObjects>) -> ExecutorConfig {
        ExecutorConfig {
            volumes: VolumeConfig { pods_dir: self.path("pods"), capacity: NodeCapacity::default() },
            pod_logs_dir: self.path("logs"),
            container_logs_dir: self.path("containers"),
            seccomp_dir: self.path("seccomp"),
            node_name: "node1".to_owned(),
            node_ips: vec!["10.0.0.1".to_owned()],
            capacity: NodeCapacity {
                cpu_milli: 2000,
                memory_bytes: 1 << 30,
                cgroup_v2: true,
                ..NodeCapacity::default()
            },
            allocatable: NodeCapacity::default(),
            resources: ResourceFlags::default(),
            layout: CgroupLayout { driver: CgroupDriver::Cgroupfs, root: "/".to_owned(), per_qos: true },
            cgroup: CgroupConfig { mount: self.path("cgroup"), v2: true, driver: CgroupDriver::Cgroupfs },
            node_cgroups: NodeCgroups::default(),
            cluster_domain: String::new(),
            pods: Live::default(),
            user_ids: edge_agent::pod::users::NodeIds::default(),
            objects: Rc::<LocalObjects>::clone(objects),
            devices: DeviceManager::open(&self.path("device-plugins")),
            cdi_directories: Vec::new(),
            managers: edge_agent::managers::ResourceManagers::default(),
        }
    }
}

struct Parts {
    view: Rc<LoopView>,
    statuses: Rc<StatusManager>,
    events: EventRecorder,
    updates: mpsc::Sender<SourceUpdate>,
    editor: Editor,
    store: StoreHandle,
    trigger: ShutdownTrigger,
    kubelet: JoinHandle<()>,
}

fn check_panics() {
    if let Some(panic) = PANIC.take() {
        panic!("a task panicked: {panic}");
    }
}

/// What the users of the API want in the end: each of them asks for his part.
struct Whole {
    pods: Vec<SourcePod>,
    objects: Vec<SourceObject>,
}

impl Whole {
    fn edit(self, config: &PodConfig) -> ApiChange {
        let of_api = |source: PodSource| source == PodSource::Api;
        let is_wanted =
            |pod: &SourcePod| self.pods.iter().any(|wanted| wanted.pod.metadata.uid == pod.pod.metadata.uid);
        let known = config.pods_by_source().filter(|(source, _)| of_api(*source));
        let gone = known.filter(|(_, pod)| !is_wanted(pod)).map(|(_, pod)| (Rc::clone(&pod.pod), None));
        let keys = config.objects_by_source().filter(|(source, _)| of_api(*source));
        let keys = keys.map(|(_, object)| object.object.key.clone());
        ApiChange {
            remove_pods: gone.collect(),
            remove_objects: keys
                .filter(|key| self.objects.iter().all(|wanted| wanted.object.key != *key))
                .collect(),
            put_pods: self.pods.into_iter().map(|pod| pod.pod).collect(),
            put_objects: self.objects.into_iter().map(|object| object.object).collect(),
            ..ApiChange::default()
        }
    }
}
