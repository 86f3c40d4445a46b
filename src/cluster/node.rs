//! This node as an object of the cluster: its registration, its status and its lease.
//!
//! Owns the two tasks that write them, and the Node as the apiserver showed it last. The lease has a task of its own:
//! it is renewed whatever becomes of the status, also while the node shuts down. Both use the connection of heartbeats.
//! What is written and when is decided in `register`, `report` and `lease`.

pub(crate) mod lease;
pub(crate) mod register;
pub(crate) mod report;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Content, Lane, Transport};
use crate::cluster::link::LinkEvent;
use crate::cluster::node::lease::{lease, renew_after};
use crate::cluster::node::register::{NodeFromServer, RegisterConfig, initial_node, rebooted, reconcile};
use crate::cluster::node::report::{
    Posted, StatusTimes, condition_events, conditions, own_status, require_network, status_patch, when,
};
use crate::cluster::watch::{Outputs, WatchOutput, WatchSpec, channel, spawn};
use crate::model::back_off::Retry;
use crate::model::types::Timestamp;
use crate::node::object::{DECLARED_FEATURES, LEASES, NodeState};
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::platform::rt::changes::Changes;
use crate::pod::events::{EventRecorder, EventType};

/// Upstream's delays of registering, and of making a lease.
const FIRST_TRY: Duration = Duration::from_millis(100);
const FIRST_LEASE: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(7);
/// The status is computed at most once in this time, however much happens.
const GATHER: Duration = Duration::from_secs(1);

/// What the configuration says of the node as an object.
#[derive(Clone, Debug)]
pub(crate) struct ClusterNodeConfig {
    pub name: String,
    pub register: RegisterConfig,
    pub times: StatusTimes,
    /// `nodeLeaseDurationSeconds`.
    pub lease_seconds: i32,
}

/// What the tasks are given.
pub(crate) struct ClusterNode<T> {
    pub client: Rc<Client<T>>,
    pub config: ClusterNodeConfig,
    pub clock: Clock,
    pub dice: Dice,
    pub events: EventRecorder,
    /// The facts of the node, now.
    pub state: Rc<dyn Fn() -> NodeState>,
    /// Wake when a fact may have changed.
    pub changed: Vec<watch::Receiver<u64>>,
    /// Stores the Node and applies it; called when it differs from the last one.
    pub on_node: Rc<dyn Fn(&NodeFromServer)>,
    /// The server has taken a status.
    pub on_posted: Rc<dyn Fn(&NodeState)>,
    pub on_link: Rc<dyn Fn(LinkEvent)>,
    pub progress: Rc<NodeProgress>,
}

/// How far the tasks are.
#[derive(Debug, Default)]
pub(crate) struct NodeProgress {
    /// Of the Node; empty until it is known.
    pub uid: RefCell<String>,
    pub is_registered: Cell<bool>,
    /// The last accepted status and lease.
    pub posted: Cell<Option<Timestamp>>,
    pub renewed: Cell<Option<Timestamp>>,
    /// Why the Node or its status was not accepted.
    pub problem: RefCell<Option<ApiError>>,
}

/// Starts both tasks.
pub(crate) fn start<T: Transport>(node: ClusterNode<T>) -> [JoinHandle<()>; 2] {
    let progress = Rc::clone(&node.progress);
    let leases = Leases {
        client: Rc::clone(&node.client),
        config: node.config.clone(),
        clock: node.clock.clone(),
        dice: node.dice.clone(),
        on_link: Rc::clone(&node.on_link),
        progress: Rc::clone(&progress),
    };
    let task = NodeTask {
        changes: Changes(node.changed.clone()),
        posted: Posted::default(),
        conditions: Vec::new(),
        is_first: true,
        known: None,
        is_overwritten: false,
        began: Instant::now(),
        progress: Rc::clone(&progress),
        node,
    };
    [rt::spawn("cluster lease", leases.run()), rt::spawn("cluster node", task.run())]
}

struct NodeTask<T> {
    node: ClusterNode<T>,
    changes: Changes,
    posted: Posted,
    /// Conditions that the server has.
    conditions: Vec<Value>,
    /// This process has not posted a status yet.
    is_first: bool,
    known: Option<NodeFromServer>,
    /// Another writer has changed our conditions since the last post.
    is_overwritten: bool,
    /// Times of posts count from here: the wall clock may be set.
    began: Instant,
    progress: Rc<NodeProgress>,
}

impl<T: Transport> NodeTask<T> {
    async fn run(mut self) {
        let (sender, mut updates) = channel();
        let nodes = ResourcePath::whole("", "nodes", "");
        let spec = WatchSpec::list(nodes, format!("metadata.name={}", self.node.config.name));
        let (clock, dice) = (self.node.clock.clone(), self.node.dice.clone());
        let _watch = spawn(Rc::clone(&self.node.client), spec, sender, clock, dice);
        self.node.events.node_event(EventType::Normal, "Starting", "Starting kubelet.");
        loop {
            let registered = self.register().await;
            self.posted = Posted::of_server(&registered, self.began.elapsed());
            self.show(&registered);
            self.progress.is_registered.set(true);
            log::info!(node = self.node.config.name; "Registered at the cluster");
            self.report(&mut updates).await;
            self.progress.is_registered.set(false);
            self.node.events.node_event(
                EventType::Warning,
                "NodeDeleted",
                "The Node object was deleted in the cluster and is created again. To remove the node, run agent reset.",
            );
        }
    }

    fn path(&self) -> ResourcePath {
        ResourcePath::whole("", "nodes", &self.node.config.name)
    }

    fn facts(&self) -> NodeState {
        let mut state = (self.node.state)();
        require_network(&mut state);
        state.declared_features = DECLARED_FEATURES;
        state
    }

    /// Creates the Node, or finds the one that is there. Waits for the runtime, so that the first status that others
    /// see is Ready.
    async fn register(&mut self) -> Value {
        let mut retry = Retry::new(FIRST_TRY, LONGEST_DELAY);
        loop {
            let state = self.facts();
            if state.features.is_none() {
                self.changes.next().await;
                continue;
            }
            match self.try_register(&state).await {
                Ok(node) => {
                    self.note(None);
                    return node;
                }
                Err(error) => self.note(Some(error)),
            }
            let delay = retry.delay_with(self.node.dice.unit());
            let is_for_others = !self.node.config.register.creates;
            sleep(if is_for_others { self.node.config.times.update } else { delay }).await;
        }
    }

    async fn try_register(&mut self, state: &NodeState) -> Result<Value, ApiError> {
        let client = Rc::clone(&self.node.client);
        let register = self.node.config.register.clone();
        let mut refused = None;
        if register.creates {
            let nodes = ResourcePath::whole("", "nodes", "");
            match client.create(Lane::Heartbeat, &nodes, &initial_node(state, &register)).await {
                // A node that may not create its Node may still have one (upstream).
                Err(error) if matches!(error.kind, ApiErrorKind::AlreadyExists | ApiErrorKind::Forbidden) => {
                    refused = Some(error);
                }
                Ok(node) => {
                    self.conditions.clear();
                    self.tell_conditions(&node["status"]);
                    return Ok(node);
                }
                answer => return answer,
            }
        }
        let node = match client.get(Lane::Heartbeat, &self.path(), Accept::Json).await {
            Err(error) if error.kind == ApiErrorKind::NotFound => return Err(refused.unwrap_or(error)),
            answer => answer?,
        };
        if let Some(patch) = reconcile(&node, state, &register) {
            let (path, kind) = (self.path().with_part("status"), Content::StrategicMerge);
            client.patch(Lane::Heartbeat, &path, kind, &patch, Accept::Metadata).await?;
        }
        if let Some(message) = rebooted(&node, state) {
            self.node.events.node_event(EventType::Warning, "Rebooted", &message);
        }
        self.conditions = conditions(&node["status"]);
        Ok(node)
    }

    /// The server has taken this status: events for what it did not have so before.
    fn tell_conditions(&mut self, status: &Value) {
        for reason in condition_events(&self.conditions, status, std::mem::take(&mut self.is_first)) {
            self.tell(reason);
        }
        self.conditions = conditions(status);
    }

    fn tell(&self, reason: &str) {
        let message = format!("Node {} status is now: {reason}", self.node.config.name);
        self.node.events.node_event(EventType::Normal, reason, &message);
    }

    /// Posts the status whenever it is due. Returns when the Node is gone.
    async fn report(&mut self, updates: &mut Outputs) {
        let mut not_before = Duration::ZERO;
        loop {
            let state = self.facts();
            let status = own_status(&state, &self.posted);
            let times = self.node.config.times;
            let change = self.posted.change(&status);
            let mut due = when(&self.posted, change, &times).max(not_before);
            if self.is_overwritten {
                // Not at once: what is shown may be older than our last post.
                due = due.min((self.posted.at + times.update).max(not_before));
            }
            if due <= self.began.elapsed() {
                let body = status_patch(status.clone(), &self.posted, self.node.config.register.has_cloud);
                let (path, kind) = (self.path().with_part("status"), Content::StrategicMerge);
                let answer =
                    self.node.client.patch(Lane::Heartbeat, &path, kind, &body, Accept::Metadata).await;
                let now = self.began.elapsed();
                match answer {
                    Ok(_) => {
                        self.posted = Posted::of(&status, now, change, &times, self.node.dice.unit());
                        self.is_overwritten = false;
                        self.tell_conditions(&status);
                        self.progress.posted.set(Some(self.node.clock.now()));
                        (self.node.on_posted)(&state);
                        self.note(None);
                    }
                    Err(error) if error.kind == ApiErrorKind::NotFound => return,
                    Err(error) => {
                        self.note(Some(error));
                        not_before = now + times.update;
                    }
                }
                continue;
            }
            let gather = self.began + self.began.elapsed() + GATHER;
            tokio::select! {
                biased;
                // Cancel safe: an update is received or still in the channel.
                Some(update) = updates.recv() => if self.is_gone(*update).await { return },
                // What has changed is read at the top of the loop.
                () = self.changes.next() => sleep_until(gather).await,
                // The time is computed again.
                () = sleep_until(self.began + due) => {}
            }
        }
    }

    /// Takes over what the watch shows. True when there is no Node any more.
    async fn is_gone(&mut self, update: WatchOutput) -> bool {
        let (shown, is_current) = match update {
            WatchOutput::Lost(error) => {
                (self.node.on_link)(LinkEvent::Failed(error));
                return false;
            }
            WatchOutput::Set { items, .. } => (items.into_iter().next(), false),
            WatchOutput::Put(item) => (Some(item), false),
            WatchOutput::Gone(_) => (None, false),
            _ => (None, true),
        };
        (self.node.on_link)(LinkEvent::Answered);
        if is_current {
            return false;
        }
        if let Some(item) = shown {
            self.show(&item.value);
            return false;
        }
        // It may be news from before the registration.
        match self.node.client.get(Lane::Heartbeat, &self.path(), Accept::Json).await {
            Ok(node) => {
                self.show(&node);
                false
            }
            Err(error) => error.kind == ApiErrorKind::NotFound,
        }
    }

    fn show(&mut self, node: &Value) {
        self.is_overwritten = self.posted.was_overwritten(node);
        if self.is_overwritten {
            self.conditions = conditions(&node["status"]);
        }
        let shown = NodeFromServer::of(node);
        if self.known.as_ref().is_some_and(|known| known.unschedulable != shown.unschedulable) {
            self.tell(if shown.unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" });
        }
        if self.known.as_ref() != Some(&shown) {
            self.progress.uid.borrow_mut().clone_from(&shown.uid);
            (self.node.on_node)(&shown);
            self.known = Some(shown);
        }
    }

    /// Keeps what is wrong, and logs it once. A server that cannot be reached has many ways of not answering, one after
    /// the other.
    fn note(&self, problem: Option<ApiError>) {
        let mut known = self.progress.problem.borrow_mut();
        let is_news = |error: &&ApiError| match known.as_ref() {
            Some(known) if known.kind == ApiErrorKind::Unreachable => known.kind != error.kind,
            known => known != Some(*error),
        };
        if let Some(error) = problem.as_ref().filter(is_news) {
            log::warn!(node = self.node.config.name, err:% = error; "Unable to post the node to the cluster");
        }
        *known = problem;
    }
}

struct Leases<T> {
    client: Rc<Client<T>>,
    config: ClusterNodeConfig,
    clock: Clock,
    dice: Dice,
    on_link: Rc<dyn Fn(LinkEvent)>,
    progress: Rc<NodeProgress>,
}

impl<T: Transport> Leases<T> {
    async fn run(self) {
        let mut retry = Retry::new(FIRST_LEASE, LONGEST_DELAY);
        let mut last: Option<Value> = None;
        loop {
            let interval = renew_after(self.config.lease_seconds, self.dice.unit());
            match self.renew(last.as_ref()).await {
                Ok(renewed) => {
                    last = Some(renewed);
                    retry.reset();
                    self.progress.renewed.set(Some(self.clock.now()));
                    (self.on_link)(LinkEvent::Answered);
                    rt::rest(interval).await;
                }
                Err(error) => {
                    if !error.is_offline() {
                        // Changed or deleted by another writer: read again.
                        last = None;
                    }
                    (self.on_link)(LinkEvent::Failed(error));
                    sleep(retry.delay_with(self.dice.unit()).min(interval)).await;
                }
            }
        }
    }

    /// Renews the last copy without reading it before, or the one at the server, or creates it.
    async fn renew(&self, last: Option<&Value>) -> Result<Value, ApiError> {
        let name = self.config.name.as_str();
        let path = ResourcePath::namespaced("coordination.k8s.io", "leases", LEASES, name);
        let read = match last {
            Some(_) => None,
            None => match self.client.get(Lane::Heartbeat, &path, Accept::Json).await {
                Ok(read) => Some(read),
                Err(error) if error.kind == ApiErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        };
        let previous = last.or(read.as_ref());
        let uid = self.progress.uid.borrow().clone();
        let renewed = lease(previous, (name, &uid), self.clock.now(), self.config.lease_seconds);
        if previous.is_some() {
            return self.client.replace(Lane::Heartbeat, &path, &renewed).await;
        }
        let leases = ResourcePath::namespaced("coordination.k8s.io", "leases", LEASES, "");
        self.client.create(Lane::Heartbeat, &leases, &renewed).await
    }
}

#[cfg(test)]
mod tests;
