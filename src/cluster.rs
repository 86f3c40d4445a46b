//! The apiserver of a cluster that this node belongs to: one more source of pods, and where their statuses, the Node and
//! events go.
//!
//! Owns the tasks of the room and their order. To the other rooms a cluster is a set of handles and closures
//! ([`ClusterParts`]); without a kubeconfig nothing of it runs.

pub mod client;
pub mod credentials;
pub(crate) mod csi;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod facts;
pub mod fake;
pub mod kubeconfig;
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
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch as versions};

use crate::cluster::client::limits::Limit;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::Transport;
use crate::cluster::client::{Client, ClientConfig};
use crate::cluster::events::{EventUploader, UploadProgress};
use crate::cluster::link::{LinkEvent, LinkNews, LinkState, transition};
use crate::cluster::login::{LoginConfig, LoginState};
use crate::cluster::memory::{ClusterIdentity, RestoredCluster};
use crate::cluster::node::register::NodeFromServer;
use crate::cluster::node::{ClusterNode, ClusterNodeConfig, NodeProgress};
use crate::cluster::objects::Objects;
use crate::cluster::pods::PodsParts;
use crate::cluster::pods::deliver::{self, DeliveryParts};
use crate::cluster::pods::guard::{Guard, NodeSeen};
use crate::cluster::pods::mirrors::NodeIdentity;
use crate::cluster::pods::seen::SeenPods;
use crate::cluster::pods::set::SetConfig;
use crate::cluster::watch::{CHANNEL, WatchOutput, WatchSpec};
use crate::model::api::pod::Pod;
use crate::model::source::{SourcePod, SourceUpdate};
use crate::model::types::Timestamp;
use crate::node::object::NodeState;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::pod::events::EventRecorder;
use crate::pod::status::StatusManager;
use crate::store::StoreHandle;

/// Longest time of a request that is not a watch; upstream's informers and clients have none, the server ends a request
/// after this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Repetitions of an event in this time are one request.
const GATHER_EVENTS: Duration = Duration::from_secs(1);

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
    pub(in crate::cluster) identity: RefCell<ClusterIdentity>,
    pub(in crate::cluster) node: Rc<NodeProgress>,
    /// As the server last showed it.
    pub(in crate::cluster) shown_node: RefCell<Option<NodeFromServer>>,
    pub(in crate::cluster) uploads: Rc<UploadProgress>,
    pub(in crate::cluster) seen: Rc<SeenPods>,
    /// Pods and mirror pods about which the server is still to hear.
    pub(in crate::cluster) waiting: Rc<Cell<usize>>,
    /// Changes with any of these but `seen` and `node`.
    pub(in crate::cluster) changed: versions::Sender<u64>,
}

impl ClusterState {
    fn new(node_name: &str, restored: &RestoredCluster) -> Self {
        Self {
            node_name: node_name.to_owned(),
            link: RefCell::new(LinkState::Never),
            login: LoginState::default(),
            identity: RefCell::new(restored.identity.clone()),
            node: Rc::default(),
            shown_node: RefCell::default(),
            uploads: Rc::default(),
            seen: Rc::new(SeenPods::new()),
            waiting: Rc::default(),
            changed: versions::Sender::new(0),
        }
    }

    /// Changes with the link, the certificate and what is known of the cluster.
    pub(crate) fn watch(&self) -> versions::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn is_online(&self) -> bool {
        self.link.borrow().is_online()
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
        let is_online = after.is_online();
        *self.link.borrow_mut() = after;
        if !is_online {
            // Another cluster may answer next.
            self.node.is_shown.set(false);
        }
        let Some(news) = news else { return };
        if was_online {
            self.identity.borrow_mut().last_contact = now;
        }
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
            WatchOutput::Set { .. } => LinkEvent::Listed,
            WatchOutput::Lost(error) => LinkEvent::Failed(error.clone()),
            _ => LinkEvent::Answered,
        };
        self.on_link(event, now);
    }

    /// The Node that the server shows, beside the remembered one.
    fn node_seen(&self) -> NodeSeen {
        let identity = self.identity.borrow();
        match self.node.is_shown.get() {
            false => NodeSeen::Absent,
            true if identity.node_uid.is_empty() || identity.node_uid == *self.node.uid.borrow() => {
                NodeSeen::Same
            }
            true => NodeSeen::Other,
        }
    }
}

/// Starts all tasks of the room; they end with the process.
pub(crate) fn start(config: ClusterConfig, parts: ClusterParts) -> Rc<ClusterState> {
    let state = Rc::new(ClusterState::new(&config.node.name, &parts.restored));
    let shared = Rc::clone(&state);
    rt::spawn("cluster", async move {
        let client = client_config(&config, config.limit);
        let transport = login::open(&config.login, client, &parts, &shared).await;
        run(&config, parts, &transport, &shared);
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
    let shown = Rc::clone(state);
    node::start(ClusterNode {
        client: Rc::clone(&own),
        config: config.node.clone(),
        clock: clock.clone(),
        dice: dice.clone(),
        events: parts.events.clone(),
        state: parts.node,
        changed: parts.node_changed,
        on_node: Rc::new(move |node| {
            *shown.shown_node.borrow_mut() = Some(node.clone());
            shown.change();
        }),
        on_link,
        progress: Rc::clone(&state.node),
    });
    let remember = memory::run(Rc::clone(state), Rc::clone(&state.seen), parts.store.clone(), parts.on_node);
    rt::spawn("cluster memory", remember);

    let (sender, watched) = mpsc::channel(CHANNEL);
    let fields = format!("spec.nodeName={}", config.node.name);
    let spec = WatchSpec::list(ResourcePath::whole("", "pods", ""), fields);
    watch::spawn(Rc::clone(&own), spec, sender, clock.clone(), dice.clone());
    let (accept, accepted) = mpsc::channel(1);
    rt::spawn("cluster accept", forward_accepts(parts.accepts, accept, Rc::clone(state)));
    let set = SetConfig {
        node: config.node.name.clone(),
        origin: state.login.server(),
        guard_grace: config.guard_grace,
    };
    let guard = state.identity.borrow().guard;
    let (node_seen, registers) = (Rc::clone(state), Rc::clone(&state.node));
    let (guarded, listening, now) = (Rc::clone(state), Rc::clone(state), clock.clone());
    rt::spawn(
        "cluster pods",
        pods::run(PodsParts {
            config: set,
            shown: watched,
            updates: parts.updates,
            objects: Rc::new(Objects::new()),
            seen: Rc::clone(&state.seen),
            clock: clock.clone(),
            restored: parts.pods,
            guard,
            node: Rc::new(move || node_seen.node_seen()),
            node_changed: state.node.shown.subscribe(),
            accept: accepted,
            on_guard: Rc::new(move |guard| {
                guarded.identity.borrow_mut().guard = guard;
                guarded.change();
            }),
            register: Rc::new(move || registers.check.notify_one()),
            on_output: Rc::new(move |output| listening.on_output(output, now.now())),
        }),
    );
    let identity = Rc::clone(state);
    rt::spawn(
        "cluster delivery",
        deliver::run(DeliveryParts {
            client: Rc::clone(&own),
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
    let uploader = EventUploader {
        client: client(config.event_limit),
        recorder: parts.events,
        clock: parts.clock,
        dice: parts.dice,
        gather: GATHER_EVENTS,
        progress: Rc::clone(&state.uploads),
    };
    rt::spawn("cluster events", uploader.run());
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
