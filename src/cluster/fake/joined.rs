//! The tasks of this room on a fake apiserver, for simulations of a whole node: all of the room that tests outside
//! of the library see.
//!
//! Owns what a node remembers of its cluster over a crash.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

use super::FakeApiserver;
use crate::cluster::client::limits::Limit;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::{Client, ClientConfig};
use crate::cluster::link::{LinkEvent, LinkState, transition};
use crate::cluster::node::register::RegisterConfig;
use crate::cluster::node::report::StatusTimes;
use crate::cluster::node::{self, ClusterNode, ClusterNodeConfig};
use crate::cluster::objects::Objects;
use crate::cluster::pods::deliver::{self, DeliveryParts};
use crate::cluster::pods::fence::{self, FenceParts};
use crate::cluster::pods::guard::Guard;
use crate::cluster::pods::identity::NodeCheck;
use crate::cluster::pods::mirrors::NodeIdentity;
use crate::cluster::pods::seen::SeenPods;
use crate::cluster::pods::set::SetConfig;
use crate::cluster::pods::{self, PodsParts};
use crate::cluster::watch::{self, CHANNEL, WatchOutput, WatchSpec};
use crate::model::source::{SourcePod, SourceUpdate};
use crate::model::types::Timestamp;
use crate::node::object::{Condition, NodeState};
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::pod::events::EventRecorder;
use crate::pod::status::StatusManager;
use crate::pod::workers::PodPressure;
use crate::runtime::RuntimeStatus;
use crate::store::StoreHandle;

/// What a node stores of its cluster beside the pods; clones share it.
#[derive(Clone, Default)]
pub struct ClusterMemory {
    node_uid: Rc<RefCell<String>>,
    guard: Rc<RefCell<Value>>,
    /// When the server last answered, once it does not.
    lost: Rc<Cell<Option<Timestamp>>>,
    /// Since when the last process has had no link.
    accept: Rc<RefCell<Option<mpsc::Sender<()>>>>,
}

impl ClusterMemory {
    /// The guard holds what the server says.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        !self.guard.borrow().is_null()
    }

    /// `agent source accept cluster`.
    pub fn accept(&self) {
        if let Some(accept) = &*self.accept.borrow() {
            let _ = accept.try_send(());
        }
    }
}

/// What the rest of the node gives the room.
pub struct JoinedParts {
    pub server: FakeApiserver,
    pub memory: ClusterMemory,
    pub node_name: String,
    pub updates: mpsc::Sender<SourceUpdate>,
    pub statuses: Rc<StatusManager>,
    pub store: StoreHandle,
    pub events: EventRecorder,
    pub pods: Rc<dyn PodPressure>,
    pub clock: Clock,
    pub seed: u64,
    /// The cluster's pods of the store.
    pub restored: Vec<SourcePod>,
    /// `--cluster-reset-grace`.
    pub guard_grace: Duration,
    /// `--offline-max-age`.
    pub offline_max_age: Option<Duration>,
}

/// Starts the tasks; they end with the `LocalSet` that they run in.
pub fn join(parts: JoinedParts) {
    let JoinedParts { server, memory, node_name, updates, statuses, store, events, clock, seed, .. } = parts;
    let dice = Dice::seeded(seed);
    let limits = ClientConfig {
        limit: Limit { qps: 50, burst: 100 },
        timeout: Duration::from_secs(30),
        heartbeat_timeout: Duration::from_secs(10),
    };
    let transport = Rc::new(server.transport(&format!("system:node:{node_name}")));
    let client = Rc::new(Client::new(transport, limits, dice.clone()));
    let seen = Rc::new(SeenPods::new());
    let uid = Rc::clone(&memory.node_uid);
    let remember = Rc::new(move |new: &str| new.clone_into(&mut uid.borrow_mut()));
    let check = Rc::new(NodeCheck::new(node_name.clone(), memory.node_uid.borrow().clone(), remember));
    let on_link = follow_link(&memory, &clock);

    let (into, shown) = mpsc::channel(CHANNEL);
    let spec = WatchSpec::list(ResourcePath::whole("", "pods", ""), format!("spec.nodeName={node_name}"));
    drop(watch::spawn(Rc::clone(&client), spec, into, clock.clone(), dice.clone()));
    let (accept, accepted) = mpsc::channel(1);
    *memory.accept.borrow_mut() = Some(accept);
    let (guard, stored) = (Guard::of(&memory.guard.borrow()), Rc::clone(&memory.guard));
    let pods = PodsParts {
        config: SetConfig {
            node: node_name.clone(),
            origin: "https://fake".to_owned(),
            guard_grace: parts.guard_grace,
        },
        shown,
        updates,
        objects: Rc::new(Objects::new()),
        seen: Rc::clone(&seen),
        clock: clock.clone(),
        restored: parts.restored,
        guard,
        node: {
            let check = Rc::clone(&check);
            Rc::new(move || check.seen())
        },
        node_changed: check.watch(),
        accept: accepted,
        on_guard: Rc::new(move |guard| *stored.borrow_mut() = guard.to_value()),
        register: {
            let (check, client, dice) = (Rc::clone(&check), Rc::clone(&client), dice.clone());
            Rc::new(move || check.read(&client, &dice))
        },
        on_output: {
            let (check, on_link) = (Rc::clone(&check), Rc::clone(&on_link));
            Rc::new(move |output| match output {
                WatchOutput::Set { .. } => {
                    check.forget();
                    on_link(LinkEvent::Listed);
                }
                WatchOutput::Lost(error) => on_link(LinkEvent::Failed(error.clone())),
                _ => on_link(LinkEvent::Answered),
            })
        },
    };
    drop(rt::spawn("cluster pods", pods::run(pods)));
    let identity = (Rc::clone(&memory.node_uid), node_name.clone());
    let delivery = DeliveryParts {
        client: Rc::clone(&client),
        statuses: Rc::clone(&statuses),
        store,
        seen: Rc::clone(&seen),
        clock: clock.clone(),
        dice: dice.clone(),
        local_pods: Rc::new(Vec::new),
        node: Rc::new(move || NodeIdentity { name: identity.1.clone(), uid: identity.0.borrow().clone() }),
    };
    drop(rt::spawn("cluster delivery", deliver::run(delivery)));
    drop(rt::spawn("cluster identity", {
        let (check, seen) = (Rc::clone(&check), Rc::clone(&seen));
        let mut changes = seen.watch();
        async move {
            while changes.changed().await.is_ok() {
                if seen.is_live() {
                    check.believe();
                }
            }
        }
    }));
    let last_contact = Rc::clone(&memory.lost);
    drop(rt::spawn(
        "cluster fence",
        fence::run(FenceParts {
            limit: parts.offline_max_age,
            statuses,
            pods: parts.pods,
            clock: clock.clone(),
            last_contact: Rc::new(move || last_contact.get()),
        }),
    ));
    let times = StatusTimes { update: Duration::from_secs(10), report: Duration::from_secs(300) };
    let register = RegisterConfig { creates: true, ..RegisterConfig::default() };
    let state = state_of(&node_name, &clock);
    // Its tasks go on without the handle.
    let _ = node::start(ClusterNode {
        client,
        config: ClusterNodeConfig { name: node_name, register, times, lease_seconds: 40 },
        clock,
        dice,
        events,
        state,
        changed: Vec::new(),
        on_node: Rc::new(move |node| check.shown(&node.uid, seen.is_live())),
        on_link,
    });
}

fn state_of(name: &str, clock: &Clock) -> Rc<dyn Fn() -> NodeState> {
    let (name, clock) = (name.to_owned(), clock.clone());
    let features = RuntimeStatus {
        runtime_ready: Ok(()),
        network_ready: Ok(()),
        handlers: Vec::new(),
        supplemental_groups_policy: None,
    };
    Rc::new(move || NodeState {
        name: name.clone(),
        hostname: name.clone(),
        addresses: vec!["10.0.0.1".to_owned()],
        conditions: vec![Condition { kind: "Ready", holds: true, ..Condition::default() }],
        features: Some(features.clone()),
        now: clock.now(),
        ..NodeState::default()
    })
}

/// Keeps when the last contact was.
fn follow_link(memory: &ClusterMemory, clock: &Clock) -> Rc<dyn Fn(LinkEvent)> {
    let (lost, clock) = (Rc::clone(&memory.lost), clock.clone());
    let state = RefCell::new(LinkState::Never);
    Rc::new(move |event| {
        let now = clock.now();
        let (next, _) = transition(state.replace(LinkState::Never), event, now);
        match next.lost_since() {
            None => lost.set(None),
            // A process that starts without a link goes on from the last one's.
            Some(since) => lost.set(lost.get().or(Some(since))),
        }
        *state.borrow_mut() = next;
    })
}
