//! The tasks of this room on a fake apiserver, for simulations of a whole node: all of the room that tests outside
//! of the library see.
//!
//! Owns what a node remembers of its cluster over a crash.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::FakeApiserver;
use crate::cluster::accounts::Accounts;
use crate::cluster::client::limits::Limit;
use crate::cluster::facts::{Facts, fact_rows};
use crate::cluster::login::LoginConfig;
use crate::cluster::memory::RestoredCluster;
use crate::cluster::node::ClusterNodeConfig;
use crate::cluster::node::register::RegisterConfig;
use crate::cluster::node::report::StatusTimes;
use crate::cluster::objects::Detection;
use crate::cluster::pods::guard::Guard;
use crate::cluster::{ClusterConfig, ClusterParts, ClusterState, run};
use crate::model::source::SourceUpdate;
use crate::model::types::PodSource;
use crate::node::object::{Condition, NodeState};
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::pod::events::EventRecorder;
use crate::pod::status::StatusManager;
use crate::pod::workers::PodPressure;
use crate::runtime::RuntimeStatus;
use crate::store::{Loaded, StoreHandle};

/// A joined node of the last start; clones share it. What it remembers is in its store.
#[derive(Clone, Default)]
pub struct ClusterMemory {
    state: Rc<RefCell<Option<Rc<ClusterState>>>>,
    accept: Rc<RefCell<Option<mpsc::Sender<oneshot::Sender<bool>>>>>,
}

impl ClusterMemory {
    /// The guard holds what the server says.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.state.borrow().as_ref().is_some_and(|state| state.identity.borrow().guard != Guard::Open)
    }

    /// `agent source accept cluster`.
    pub fn accept(&self) {
        if let Some(accept) = &*self.accept.borrow() {
            let _ = accept.try_send(oneshot::channel().0);
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
    /// What the store remembers.
    pub loaded: Loaded,
    /// `--cluster-reset-grace`.
    pub guard_grace: Duration,
    /// `--offline-max-age`.
    pub offline_max_age: Option<Duration>,
}

/// Starts the tasks; they end with the `LocalSet` that they run in.
pub fn join(parts: JoinedParts) {
    let JoinedParts { server, memory, node_name, clock, loaded, .. } = parts;
    let times = StatusTimes { update: Duration::from_secs(10), report: Duration::from_secs(300) };
    let register = RegisterConfig { creates: true, ..RegisterConfig::default() };
    let config = ClusterConfig {
        login: LoginConfig::default(),
        node: ClusterNodeConfig { name: node_name.clone(), register, times, lease_seconds: 40 },
        limit: Limit { qps: 50, burst: 100 },
        event_limit: Limit { qps: 50, burst: 100 },
        guard_grace: parts.guard_grace,
        offline_max_age: parts.offline_max_age,
        detection: Detection::of("Watch"),
        serving: None,
        is_metered: false,
    };
    let restored = RestoredCluster::of(&loaded.cluster);
    let stored = loaded.desired.into_iter().find(|stored| stored.source == PodSource::Cluster);
    let (pods, objects) = stored.map(|stored| (stored.pods, stored.objects)).unwrap_or_default();
    let state = Rc::new(ClusterState::new(&node_name, &restored));
    let (accept, accepts) = mpsc::channel(1);
    *memory.accept.borrow_mut() = Some(accept);
    *memory.state.borrow_mut() = Some(Rc::clone(&state));
    let transport = Rc::new(server.transport(&format!("system:node:{node_name}")));
    let accounts = Accounts::new(clock.clone());
    let parts = ClusterParts {
        updates: parts.updates,
        statuses: parts.statuses,
        events: parts.events,
        store: parts.store,
        node: state_of(&node_name, &clock),
        clock,
        dice: Dice::seeded(parts.seed),
        restored,
        pods,
        node_changed: Vec::new(),
        on_node: Rc::new(|_| {}),
        pressure: parts.pods,
        facts: Facts::restored(&fact_rows(&loaded.cluster)),
        objects,
        accounts,
        reviews: None,
        local_pods: Rc::new(Vec::new),
        accepts,
    };
    run(&config, parts, &transport, &state, None);
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
