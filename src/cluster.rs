//! The apiserver of a cluster that this node belongs to: one more source of pods, and where their statuses, the Node and
//! events go.
//!
//! Owns the tasks of the room and their order. To the other rooms a cluster is a set of handles and closures
//! ([`ClusterParts`]); without a kubeconfig nothing of it runs.

pub(crate) mod accounts;
pub mod client;
pub mod credentials;
pub(crate) mod csi;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod facts;
pub mod fake;
pub mod kubeconfig;
mod leave;
pub(crate) mod link;
pub(crate) mod login;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod objects;
pub(crate) mod patch;
pub(crate) mod pki;
pub(crate) mod pods;
pub mod report;
pub(crate) mod review;
pub(crate) mod tokens;
pub(crate) mod watch;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch as versions};

use crate::cluster::accounts::Accounts;
use crate::cluster::client::h2::H2Transport;
use crate::cluster::client::limits::Limit;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::Transport;
use crate::cluster::client::{Client, ClientConfig};
use crate::cluster::csi::ClusterCsi;
use crate::cluster::events::{EventUploader, UploadProgress};
use crate::cluster::facts::{FactChange, FactRow, Facts};
use crate::cluster::link::{LinkEvent, LinkNews, LinkState, transition};
use crate::cluster::login::{LoginConfig, LoginState};
use crate::cluster::memory::{ClusterIdentity, RestoredCluster};
use crate::cluster::node::register::NodeFromServer;
use crate::cluster::node::{ClusterNode, ClusterNodeConfig, NodeProgress};
use crate::cluster::objects::{Detection, Objects, ObjectsParts, volumes};
use crate::cluster::pods::PodsParts;
use crate::cluster::pods::deliver::{self, DeliveryParts};
use crate::cluster::pods::fence::{self, FenceParts};
use crate::cluster::pods::guard::Guard;
use crate::cluster::pods::identity::NodeCheck;
use crate::cluster::pods::mirrors::NodeIdentity;
use crate::cluster::pods::seen::SeenPods;
use crate::cluster::pods::set::SetConfig;
use crate::cluster::review::Reviews;
use crate::cluster::watch::{WatchOutput, WatchSpec};
use crate::model::api::pod::Pod;
use crate::model::source::{SourceObject, SourcePod, SourceUpdate};
use crate::model::types::Timestamp;
use crate::node::object::NodeState;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::platform::rt::changes::Changes;
use crate::pod::events::EventRecorder;
use crate::pod::status::StatusManager;
use crate::pod::workers::PodPressure;
use crate::store::{ClusterKey, ClusterRow, StoreHandle};

/// Longest time of a request that is not a watch; upstream's informers and clients have none, the server ends a request
/// after this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Repetitions of an event in this time are one request.
const GATHER_EVENTS: Duration = Duration::from_secs(1);
const GATHER_METERED: Duration = Duration::from_secs(60);

/// What the configuration says of the cluster.
pub(crate) struct ClusterConfig {
    pub login: LoginConfig,
    pub node: ClusterNodeConfig,
    /// `kubeAPIQPS`, `kubeAPIBurst`.
    pub limit: Limit,
    /// `eventRecordQPS`, `eventBurst`.
    pub event_limit: Limit,
    /// `--cluster-reset-grace`.
    pub guard_grace: Duration,
    /// `--offline-max-age`; `None` without a limit.
    pub offline_max_age: Option<Duration>,
    /// `configMapAndSecretChangeDetectionStrategy`.
    pub detection: Detection,
    /// `serverTLSBootstrap`: the directory of the serving certificate.
    pub serving: Option<PathBuf>,
    /// `--link-profile=metered`.
    pub is_metered: bool,
}

/// Fewer and later messages for a link that is paid by the byte: about a quarter of the bytes of an idle node. What was
/// configured otherwise than the kubelet's defaults stays. The Node's controller has to wait longer for the lease.
pub(crate) fn metered(mut config: ClusterConfig) -> ClusterConfig {
    config.is_metered = true;
    if config.node.lease_seconds == 40 {
        config.node.lease_seconds = 120;
    }
    if config.node.times.report == Duration::from_secs(300) {
        config.node.times.report = Duration::from_secs(900);
    }
    if config.detection == Detection::Watch {
        config.detection = Detection::Seldom;
    }
    config
}

/// What the other rooms give.
pub(crate) struct ClusterParts {
    pub updates: mpsc::Sender<SourceUpdate>,
    pub statuses: Rc<StatusManager>,
    pub events: EventRecorder,
    pub store: StoreHandle,
    pub clock: Clock,
    pub dice: Dice,
    pub restored: RestoredCluster,
    /// The pods of the source `cluster` in the store.
    pub pods: Vec<SourcePod>,
    /// The facts of the node, now.
    pub node: Rc<dyn Fn() -> NodeState>,
    /// Wake when a fact of the node may have changed.
    pub node_changed: Vec<versions::Receiver<u64>>,
    /// Applies what the cluster says of the Node; it is on the disk then.
    pub on_node: Rc<dyn Fn(&NodeFromServer)>,
    pub pressure: Rc<dyn PodPressure>,
    /// Restored from the store, in use by pods already.
    pub facts: Rc<Facts>,
    /// The objects of the source `cluster` in the store.
    pub objects: Vec<SourceObject>,
    /// Who may use the servers of this node; `None` when the cluster does not decide.
    pub reviews: Option<Rc<Reviews>>,
    /// For credential providers.
    pub accounts: Rc<Accounts>,
    /// The static pods, which get mirror pods.
    pub local_pods: Rc<dyn Fn() -> Vec<Rc<Pod>>>,
    /// An administrator confirms the cluster; the answer says whether there was something to confirm.
    pub accepts: mpsc::Receiver<oneshot::Sender<bool>>,
}

/// The state of the cluster's tasks, for reports and for each other.
pub(crate) struct ClusterState {
    pub(in crate::cluster) node_name: String,
    pub(in crate::cluster) link: RefCell<LinkState>,
    pub(in crate::cluster) login: LoginState,
    pub(in crate::cluster) identity: Rc<RefCell<ClusterIdentity>>,
    pub(in crate::cluster) check: Rc<NodeCheck>,
    pub(in crate::cluster) node: Rc<NodeProgress>,
    /// As the server last showed it.
    pub(in crate::cluster) shown_node: RefCell<Option<NodeFromServer>>,
    /// `spec.podCIDRs` of the Node, remembered or as the server last showed them.
    pod_cidrs: RefCell<Vec<String>>,
    pub(in crate::cluster) uploads: Rc<UploadProgress>,
    pub(in crate::cluster) seen: Rc<SeenPods>,
    /// Pods and mirror pods about which the server is still to hear.
    pub(in crate::cluster) waiting: Rc<Cell<usize>>,
    /// The last time offline, until it is part of the identity.
    regained: Cell<Duration>,
    /// `--link-profile=metered`.
    is_metered: Cell<bool>,
    /// Once the server can be asked.
    pub(in crate::cluster) drain: RefCell<Option<leave::Drain>>,
    /// Changes with any of these but `seen` and `node`.
    pub(in crate::cluster) changed: Rc<versions::Sender<u64>>,
}

impl ClusterState {
    fn new(node_name: &str, restored: &RestoredCluster) -> Self {
        let identity = Rc::new(RefCell::new(restored.identity.clone()));
        let changed = Rc::new(versions::Sender::new(0));
        let (known, change) = (Rc::clone(&identity), Rc::clone(&changed));
        let on_uid = Rc::new(move |uid: &str| {
            uid.clone_into(&mut known.borrow_mut().node_uid);
            change.send_modify(|version| *version += 1);
        });
        let remembered = restored.identity.node_uid.clone();
        Self {
            check: Rc::new(NodeCheck::new(node_name.to_owned(), remembered, on_uid)),
            node_name: node_name.to_owned(),
            link: RefCell::new(LinkState::Never),
            login: LoginState::default(),
            identity,
            node: Rc::default(),
            shown_node: RefCell::default(),
            pod_cidrs: RefCell::new(
                restored.node.as_ref().map_or_else(Vec::new, |node| node.pod_cidrs.clone()),
            ),
            uploads: Rc::default(),
            seen: Rc::new(SeenPods::new()),
            waiting: Rc::default(),
            regained: Cell::default(),
            is_metered: Cell::default(),
            drain: RefCell::default(),
            changed,
        }
    }

    /// Changes with the link, the certificate and what is known of the cluster.
    pub(crate) fn watch(&self) -> versions::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The ranges of pod addresses that the cluster has assigned to this node; empty when it assigns none.
    pub(crate) fn pod_cidrs(&self) -> Vec<String> {
        self.pod_cidrs.borrow().clone()
    }

    pub(crate) fn is_online(&self) -> bool {
        self.link.borrow().is_online()
    }

    /// The client certificate ends at `until`: with another one, the time offline counts from zero.
    fn count_offline_for(&self, until: Timestamp) {
        let mut identity = self.identity.borrow_mut();
        if std::mem::replace(&mut identity.offline_until, until) != until {
            identity.offline = Duration::ZERO;
            self.regained.take();
        }
    }

    /// The time without a link in the life of the client certificate.
    fn offline(self: &Rc<Self>, clock: &Clock) -> Rc<dyn Fn() -> Duration> {
        let (state, clock) = (Rc::clone(self), clock.clone());
        Rc::new(move || {
            let lasting =
                state.last_contact().map_or(Duration::ZERO, |last| clock.now().saturating_since(last));
            state.identity.borrow().offline + state.regained.get() + lasting
        })
    }

    pub(crate) fn server(&self) -> String {
        self.login.server()
    }

    /// When the server last answered, as far as heartbeats show it.
    pub(crate) fn last_answer(&self) -> Option<Timestamp> {
        self.node.renewed.get()
    }

    /// When the server last answered; `None` while it does, and for a node that it has never answered.
    fn last_contact(&self) -> Option<Timestamp> {
        let last = self.identity.borrow().last_contact;
        (!self.is_online() && last != Timestamp::default()).then_some(last)
    }

    pub(in crate::cluster) fn change(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    /// Takes in what a request says about the link. Each change is logged once.
    fn on_link(&self, event: LinkEvent, now: Timestamp) {
        let before = self.link.borrow().clone();
        let was_online = before.is_online();
        let (after, news) = transition(before, event, now);
        let why = after.why().map(ToString::to_string);
        *self.link.borrow_mut() = after;
        let Some(news) = news else { return };
        let mut identity = self.identity.borrow_mut();
        if was_online {
            // Written with the loss: one write for each time offline.
            identity.offline += self.regained.take();
            identity.last_contact = now;
        } else if news == LinkNews::Online && identity.last_contact != Timestamp::default() {
            self.regained.set(self.regained.get() + now.saturating_since(identity.last_contact));
        }
        drop(identity);
        let server = self.login.server();
        match news {
            LinkNews::Online => log::info!(server = server; "The apiserver answers"),
            LinkNews::Offline | LinkNews::Refused => {
                log::warn!(server = server, err = why.unwrap_or_default(); "The apiserver gives no valid answer, \
                     pods keep running");
            }
        }
        self.change();
    }

    /// What the watch of the pods says about the link.
    fn on_output(&self, output: &WatchOutput, now: Timestamp) {
        let event = match output {
            WatchOutput::Set { .. } => {
                self.check.forget();
                LinkEvent::Listed
            }
            // The server shows our pods, whether from the start or from where the watch was.
            WatchOutput::Current => LinkEvent::Listed,
            WatchOutput::Lost(error) => LinkEvent::Failed(error.clone()),
            _ => LinkEvent::Answered,
        };
        self.on_link(event, now);
    }
}

/// CSI on a node of a real cluster.
pub(crate) type JoinedCsi = ClusterCsi<H2Transport>;

/// Starts all tasks of the room; they end with the process. `csi` has been started.
pub(crate) fn start(
    config: ClusterConfig,
    parts: ClusterParts,
    csi: Option<Rc<JoinedCsi>>,
) -> Rc<ClusterState> {
    let state = Rc::new(ClusterState::new(&config.node.name, &parts.restored));
    state.is_metered.set(config.is_metered);
    let shared = Rc::clone(&state);
    rt::spawn("cluster", async move {
        let client = client_config(&config, config.limit);
        let transport = login::open(&config.login, client, &parts, &shared).await;
        run(&config, parts, &transport, &shared, csi);
    });
    state
}

fn client_config(config: &ClusterConfig, limit: Limit) -> ClientConfig {
    let lease = Duration::from_secs(u64::try_from(config.node.lease_seconds).unwrap_or_default());
    ClientConfig { limit, timeout: REQUEST_TIMEOUT, heartbeat_timeout: config.node.times.update.min(lease) }
}

/// Starts the tasks that speak with the server.
fn run<T: Transport>(
    config: &ClusterConfig,
    parts: ClusterParts,
    transport: &Rc<T>,
    state: &Rc<ClusterState>,
    csi: Option<Rc<ClusterCsi<T>>>,
) {
    let (clock, dice) = (&parts.clock.clone(), &parts.dice.clone());
    let client = |limit| {
        let config = client_config(config, limit);
        Rc::new(Client::new(Rc::clone(transport), config, dice.clone()))
    };
    let own = client(config.limit);
    let on_link: Rc<dyn Fn(LinkEvent)> = {
        let (state, clock) = (Rc::clone(state), clock.clone());
        Rc::new(move |event| state.on_link(event, clock.now()))
    };
    *state.drain.borrow_mut() = Some(leave::drain(Rc::clone(&own), &config.node.name));
    let online = Rc::clone(state);
    let is_online: Rc<dyn Fn() -> bool> = Rc::new(move || online.is_online());
    if let Some(csi) = &csi {
        csi.connect(Rc::clone(&own), Rc::clone(&is_online));
    }
    parts.accounts.connect(Rc::clone(&own), is_online);
    let (shown, posted) = (Rc::clone(state), csi.clone());
    node::start(ClusterNode {
        client: Rc::clone(&own),
        config: config.node.clone(),
        clock: clock.clone(),
        dice: dice.clone(),
        events: parts.events.clone(),
        state: Rc::clone(&parts.node),
        changed: parts.node_changed.clone(),
        on_node: Rc::new(move |node| {
            shown.pod_cidrs.borrow_mut().clone_from(&node.pod_cidrs);
            *shown.shown_node.borrow_mut() = Some(node.clone());
            shown.check.shown(&node.uid, shown.seen.is_live());
            shown.change();
        }),
        on_posted: Rc::new(move |state| {
            if let Some(csi) = &posted {
                csi.set_reported(state.volumes_in_use.as_deref().unwrap_or_default());
            }
        }),
        on_link,
        progress: Rc::clone(&state.node),
    });
    let apply = Rc::clone(&parts.on_node);
    let on_node: Rc<dyn Fn(&NodeFromServer)> = Rc::new(move |node| {
        if let Some(csi) = &csi {
            csi.set_node(node);
        }
        apply(node);
    });
    let (store, fence) = (parts.store.clone(), config.offline_max_age);
    let remember = memory::run(Rc::clone(state), store, clock.clone(), fence, on_node);
    rt::spawn("cluster memory", remember);
    let lost = Rc::clone(state);
    rt::spawn(
        "cluster fence",
        fence::run(FenceParts {
            limit: config.offline_max_age,
            statuses: Rc::clone(&parts.statuses),
            pods: Rc::clone(&parts.pressure),
            clock: clock.clone(),
            last_contact: Rc::new(move || lost.last_contact()),
        }),
    );

    let events = client(config.event_limit);
    if let Some(reviews) = &parts.reviews {
        reviews.connect(client(config.limit));
    }
    let uploader = EventUploader {
        client: events,
        recorder: parts.events.clone(),
        clock: clock.clone(),
        dice: dice.clone(),
        gather: if config.is_metered { GATHER_METERED } else { GATHER_EVENTS },
        progress: Rc::clone(&state.uploads),
    };
    rt::spawn("cluster events", uploader.run());
    start_pods(config, parts, own, state);
}

/// Starts the source `cluster`, its objects, and what goes back to the server.
fn start_pods<T: Transport>(
    config: &ClusterConfig,
    parts: ClusterParts,
    own: Rc<Client<T>>,
    state: &Rc<ClusterState>,
) {
    let (clock, dice) = (&parts.clock.clone(), &parts.dice.clone());
    let (sender, watched) = watch::channel();
    let fields = format!("spec.nodeName={}", config.node.name);
    let spec = WatchSpec::list(ResourcePath::whole("", "pods", ""), fields);
    watch::spawn(Rc::clone(&own), spec, sender, clock.clone(), dice.clone());
    let objects = start_objects(config, &parts, &own, state);
    if let Some(directory) = &config.serving {
        keep_serving(directory, &parts, &own, state);
    }
    let (accept, accepted) = mpsc::channel(1);
    rt::spawn("cluster accept", forward_accepts(parts.accepts, accept, Rc::clone(state)));
    let set = SetConfig {
        node: config.node.name.clone(),
        origin: state.login.server(),
        guard_grace: config.guard_grace,
    };
    let guard = state.identity.borrow().guard;
    let (checked, reads) = (Rc::clone(&state.check), Rc::clone(&state.check));
    let (reader, reader_dice) = (Rc::clone(&own), dice.clone());
    let (guarded, listening, now) = (Rc::clone(state), Rc::clone(state), clock.clone());
    rt::spawn(
        "cluster pods",
        pods::run(PodsParts {
            config: set,
            shown: watched,
            updates: parts.updates,
            objects,
            seen: Rc::clone(&state.seen),
            clock: clock.clone(),
            restored: parts.pods,
            guard,
            node: Rc::new(move || checked.seen()),
            node_changed: state.check.watch(),
            accept: accepted,
            on_guard: Rc::new(move |guard| {
                guarded.identity.borrow_mut().guard = guard;
                guarded.change();
            }),
            register: Rc::new(move || reads.read(&reader, &reader_dice)),
            on_output: Rc::new(move |output| listening.on_output(output, now.now())),
        }),
    );
    let identity = Rc::clone(state);
    rt::spawn(
        "cluster delivery",
        deliver::run(DeliveryParts {
            client: own,
            statuses: parts.statuses,
            store: parts.store,
            seen: Rc::clone(&state.seen),
            clock: clock.clone(),
            dice: dice.clone(),
            local_pods: parts.local_pods,
            waiting: Rc::clone(&state.waiting),
            node: Rc::new(move || NodeIdentity {
                name: identity.node_name.clone(),
                uid: identity.node.uid.borrow().clone(),
            }),
        }),
    );
}

/// Starts the watches of objects and the tokens. What is to be stored of them is written by one task, in order.
fn start_objects<T: Transport>(
    config: &ClusterConfig,
    parts: &ClusterParts,
    client: &Rc<Client<T>>,
    state: &Rc<ClusterState>,
) -> Rc<Objects> {
    let (rows, changed_rows) = mpsc::unbounded_channel();
    rt::spawn("cluster rows", store_rows(changed_rows, parts.store.clone()));
    let (name, shown, ttl_of) = (config.node.name.clone(), Rc::clone(state), Rc::clone(state));
    let objects = Objects::start(ObjectsParts {
        client: Rc::clone(client),
        clock: parts.clock.clone(),
        dice: parts.dice.clone(),
        facts: Rc::clone(&parts.facts),
        restored: parts.objects.clone(),
        origin: state.login.server(),
        detection: config.detection,
        node_ttl: Rc::new(move || {
            let node = ttl_of.shown_node.borrow();
            let seconds = node.as_ref()?.annotations.get("node.alpha.kubernetes.io/ttl")?.parse().ok()?;
            Some(Duration::from_secs(seconds))
        }),
        bind: Rc::new(move |claim, volume, pod, spec| {
            let labels = shown.shown_node.borrow().as_ref().map(|node| node.labels.clone());
            let bound = volumes::bind(claim, volume, pod, &name, &labels.unwrap_or_default())?;
            spec.volume = Some(Box::new(bound));
            Ok(())
        }),
        on_row: Rc::new(move |change| {
            // The task lives as long as the process.
            let _ = rows.send(change);
        }),
    });
    let (waked, online) = (Rc::downgrade(&objects), Rc::clone(state));
    rt::spawn("cluster objects wake", async move {
        let mut changes = online.watch();
        let mut was_online = false;
        while changes.changed().await.is_ok() {
            let is_online = online.is_online();
            match waked.upgrade() {
                Some(objects) if is_online && !was_online => objects.retry_now(),
                Some(_) => {}
                None => return,
            }
            was_online = is_online;
        }
    });
    objects
}

async fn store_rows(mut changes: mpsc::UnboundedReceiver<FactChange>, store: StoreHandle) {
    while let Some(change) = changes.recv().await {
        let (rows, gone) = match change {
            FactChange::Put(FactRow { kind, namespace, name, uid, value }) => {
                (vec![ClusterRow { key: ClusterKey { kind, namespace, name }, uid, value }], Vec::new())
            }
            FactChange::Gone { kind, namespace, name } => {
                (Vec::new(), vec![ClusterKey { kind: kind.to_owned(), namespace, name }])
            }
        };
        // Reported by the store; the row is written again with its next change.
        let _ = store.put_cluster(rows, gone).await;
    }
}

/// Keeps the serving certificate; another address of the node is another certificate.
fn keep_serving<T: Transport>(
    directory: &std::path::Path,
    parts: &ClusterParts,
    client: &Rc<Client<T>>,
    state: &Rc<ClusterState>,
) {
    let nudge = Rc::new(Notify::new());
    let clocks = (parts.clock.clone(), parts.dice.clone());
    let offline = state.offline(&parts.clock);
    let node = Rc::clone(&parts.node);
    let kept =
        pki::keep_serving(Rc::clone(client), directory, Rc::clone(&node), clocks, offline, Rc::clone(&nudge));
    if let Err(error) = kept {
        *state.login.problem.borrow_mut() = Some(chain(&error));
        return;
    }
    let mut changes = Changes(parts.node_changed.clone());
    rt::spawn("serving certificate addresses", async move {
        let mut known = node().addresses;
        loop {
            changes.next().await;
            let addresses = node().addresses;
            if addresses != known {
                known = addresses;
                nudge.notify_one();
            }
        }
    });
}

/// Passes confirmations on while answers are not believed, and answers whether they were needed.
async fn forward_accepts(
    mut accepts: mpsc::Receiver<oneshot::Sender<bool>>,
    into: mpsc::Sender<()>,
    state: Rc<ClusterState>,
) {
    while let Some(answer) = accepts.recv().await {
        let is_held = state.identity.borrow().guard != Guard::Open;
        if is_held && into.send(()).await.is_err() {
            return;
        }
        // Without a reader the client is gone.
        let _ = answer.send(is_held);
    }
    // The main loop keeps its sender as long as the process lives; without it there are no confirmations.
    std::future::pending::<()>().await;
    drop(into);
}
