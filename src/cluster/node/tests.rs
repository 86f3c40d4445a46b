use serde_json::json;
use tokio::task::LocalSet;

use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::error::LinkError;
use crate::cluster::client::limits::Limit;
use crate::cluster::client::transport::{ApiRequest, ApiResponse, Method};
use crate::cluster::fake::{FakeApiserver, FakeTransport, Removal};
use crate::node::object::Condition;
use crate::runtime::RuntimeStatus;
use crate::store::{Mode, OpenOptions, StoreHandle};

struct ClusterNodeHandle {
    tasks: [JoinHandle<()>; 2],
    progress: Rc<NodeProgress>,
}

const NODE: &str = "/api/v1/nodes/n1";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";

struct JoinedNode {
    server: FakeApiserver,
    clock: Clock,
    state: Rc<RefCell<NodeState>>,
    changed: watch::Sender<u64>,
    shown: Rc<RefCell<Vec<NodeFromServer>>>,
    link: Rc<RefCell<Vec<LinkEvent>>>,
    events: EventRecorder,
}

fn ready(features: bool) -> NodeState {
    let features = features.then(|| RuntimeStatus {
        runtime_ready: Ok(()),
        network_ready: Ok(()),
        handlers: Vec::new(),
        supplemental_groups_policy: None,
    });
    NodeState {
        name: "n1".to_owned(),
        hostname: "n1".to_owned(),
        addresses: vec!["10.0.0.1".to_owned()],
        conditions: vec![Condition { kind: "Ready", holds: true, ..Condition::default() }],
        features,
        ..NodeState::default()
    }
}

impl JoinedNode {
    fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..Default::default() });
        Self {
            server: FakeApiserver::new(clock.clone(), 1),
            clock: clock.clone(),
            state: Rc::new(RefCell::new(ready(true))),
            changed: watch::Sender::new(0),
            shown: Rc::default(),
            link: Rc::default(),
            events: EventRecorder::new("n1".to_owned(), clock, store.unwrap(), Vec::new()),
        }
    }

    fn start(&self, register: RegisterConfig) -> ClusterNodeHandle {
        self.start_over(self.server.transport("system:node:n1"), register)
    }

    fn start_over<T: Transport>(&self, transport: T, register: RegisterConfig) -> ClusterNodeHandle {
        let limits = ClientConfig {
            limit: Limit { qps: 50, burst: 100 },
            timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(10),
        };
        let dice = Dice::seeded(1);
        let (state, clock) = (Rc::clone(&self.state), self.clock.clone());
        let (shown, link) = (Rc::clone(&self.shown), Rc::clone(&self.link));
        let progress = Rc::<NodeProgress>::default();
        let tasks = start(ClusterNode {
            client: Rc::new(Client::new(Rc::new(transport), limits, dice.clone())),
            config: ClusterNodeConfig {
                name: "n1".to_owned(),
                register,
                times: StatusTimes { update: Duration::from_secs(10), report: Duration::from_secs(300) },
                lease_seconds: 40,
            },
            clock: self.clock.clone(),
            dice,
            events: self.events.clone(),
            state: Rc::new(move || NodeState { now: clock.now(), ..state.borrow().clone() }),
            changed: vec![self.changed.subscribe()],
            on_node: Rc::new(move |node| shown.borrow_mut().push(node.clone())),
            on_posted: Rc::new(|_| {}),
            on_link: Rc::new(move |event| link.borrow_mut().push(event)),
            progress: Rc::clone(&progress),
        });
        ClusterNodeHandle { tasks, progress }
    }

    fn change(&self, change: impl FnOnce(&mut NodeState)) {
        change(&mut self.state.borrow_mut());
        self.changed.send_modify(|version| *version += 1);
    }

    fn node(&self) -> Value {
        self.server.object(NODE).unwrap()
    }

    fn ready(&self) -> Value {
        let conditions = self.node()["status"]["conditions"].clone();
        conditions.as_array().unwrap().iter().find(|one| one["type"] == "Ready").unwrap()["status"].clone()
    }

    /// Of the events, with how often each happened.
    fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::<(String, u32)>::new();
        for event in self.events.recent() {
            match reasons.iter_mut().find(|(reason, _)| *reason == event.key.reason) {
                Some((_, count)) => *count += event.count,
                None => reasons.push((event.key.reason, event.count)),
            }
        }
        reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect()
    }

    /// Accepted writes whose path begins so.
    fn writes(&self, path: &str) -> usize {
        let writes = self.server.writes();
        writes.iter().filter(|call| call.path.starts_with(path) && call.status < 300).count()
    }
}

async fn seconds(number: u64) {
    sleep(Duration::from_secs(number)).await;
}

fn creating() -> RegisterConfig {
    RegisterConfig { creates: true, ..RegisterConfig::default() }
}

async fn in_tasks(test: impl AsyncFnOnce(JoinedNode)) {
    LocalSet::new().run_until(async { test(JoinedNode::new()).await }).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_registers_once_its_runtime_answers() {
    in_tasks(async |world| {
        world.state.replace(ready(false));
        let handle = world.start(creating());
        seconds(30).await;
        assert_eq!((world.writes("/api/v1/nodes"), handle.progress.is_registered.get()), (0, false));
        assert!(world.writes("/apis/coordination.k8s.io") > 2, "the lease does not wait");
        world.change(|state| state.features = ready(true).features);
        seconds(1).await;
        assert_eq!(world.ready(), "True");
        assert!(handle.progress.is_registered.get());
        let uid = world.node()["metadata"]["uid"].clone();
        assert_eq!(world.shown.borrow().last().unwrap().uid, uid);
        seconds(15).await;
        assert_eq!(world.server.object(LEASE).unwrap()["metadata"]["ownerReferences"][0]["uid"], uid);
        handle.tasks.iter().for_each(JoinHandle::abort);
        let writes = world.server.writes().len();
        seconds(600).await;
        assert_eq!(world.server.writes().len(), writes);
    })
    .await;
}

/// Its user may not create nodes.
struct ReadOnly(FakeTransport);

impl Transport for ReadOnly {
    type Body = <FakeTransport as Transport>::Body;

    async fn send(&self, lane: Lane, mut request: ApiRequest) -> Result<ApiResponse<Self::Body>, LinkError> {
        if request.method == Method::Post && request.path == "/api/v1/nodes" {
            "/api/v1/nodes/other".clone_into(&mut request.path);
            request.method = Method::Get;
        }
        self.0.send(lane, request).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_403_on_create_reads_the_node() {
    in_tasks(async |world| {
        let transport = ReadOnly(world.server.transport("system:node:n1"));
        let handle = world.start_over(transport, creating());
        seconds(20).await;
        let problem = handle.progress.problem.borrow().clone().unwrap();
        assert_eq!(problem.kind, ApiErrorKind::Forbidden);
        world.server.put(json!({"kind": "Node", "metadata": {"name": "n1"}}));
        seconds(15).await;
        assert_eq!(world.ready(), "True");
        assert_eq!(*handle.progress.problem.borrow(), None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_must_not_register_waits_for_its_node() {
    in_tasks(async |world| {
        let _handle = world.start(RegisterConfig::default());
        seconds(60).await;
        assert_eq!(world.server.object(NODE), None);
        world.server.put(json!({"kind": "Node", "metadata": {"name": "n1"}}));
        seconds(11).await;
        assert_eq!(world.ready(), "True");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_others_wrote_survives_registration_and_status() {
    in_tasks(async |world| {
        let foreign = json!({"type": "NetworkUnavailable", "status": "False"});
        world.server.put(json!({
            "kind": "Node",
            "metadata": {"name": "n1", "labels": {"node-role.kubernetes.io/edge": ""}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "podCIDRs": ["10.1.0.0/24"]},
            "status": {"conditions": [foreign], "capacity": {"example.org/licence": "3"},
                "addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]},
        }));
        let _handle = world.start(creating());
        seconds(1).await;
        let node = world.node();
        assert_eq!(node["status"]["conditions"][0], foreign);
        assert_eq!(world.ready(), "True");
        assert_eq!(node["status"]["capacity"], json!({"example.org/licence": "3"}));
        assert_eq!(node["metadata"]["labels"], json!({"node-role.kubernetes.io/edge": ""}));
        assert_eq!(node["spec"]["taints"][0]["key"], "k");
        assert_eq!(
            node["status"]["addresses"],
            json!([{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n1"}])
        );
        let shown = world.shown.borrow();
        assert_eq!((shown.len(), shown[0].pod_cidrs.as_slice()), (1, &["10.1.0.0/24".to_owned()][..]));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_sends_its_lease_and_12_statuses_an_hour() {
    in_tasks(async |world| {
        let _handle = world.start(creating());
        seconds(1000).await;
        let (statuses, leases) = (world.writes(NODE), world.writes(LEASE));
        let all = world.server.writes().len();
        for _ in 0..3600 {
            // Wake-ups without a change cost no request.
            world.change(|_| {});
            seconds(1).await;
        }
        let statuses = world.writes(NODE) - statuses;
        let leases = world.writes(LEASE) - leases;
        assert!((11..=13).contains(&statuses), "{statuses}");
        assert!((345..=360).contains(&leases), "{leases}");
        assert_eq!(world.server.writes().len() - all, statuses + leases);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_posted_and_unknown_is_corrected() {
    in_tasks(async |world| {
        let _handle = world.start(creating());
        seconds(60).await;
        world.change(|state| state.conditions[0].holds = false);
        seconds(2).await;
        assert_eq!(world.ready(), "False");
        world.change(|state| state.conditions[0].holds = true);
        seconds(2).await;
        assert_eq!(world.ready(), "True");
        // As the node controller does when the lease is late.
        let mut node = world.node();
        node["status"]["conditions"][0]["status"] = json!("Unknown");
        world.server.put(node);
        seconds(12).await;
        assert_eq!(world.ready(), "True");
        let posts = world.writes(NODE);
        seconds(100).await;
        assert_eq!(world.writes(NODE), posts);
        let mut node = world.node();
        node["spec"]["unschedulable"] = json!(true);
        world.server.put(node);
        seconds(1).await;
        let expected = ["Starting 1", "NodeNotReady 1", "NodeReady 3", "NodeNotSchedulable 1"];
        assert_eq!(world.reasons(), expected);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_registers_again() {
    in_tasks(async |world| {
        let _handle = world.start(creating());
        seconds(30).await;
        let first = world.node()["metadata"]["uid"].clone();
        world.server.remove(NODE, Removal::Force);
        seconds(2).await;
        let second = world.node()["metadata"]["uid"].clone();
        assert_ne!(first, second);
        assert_eq!(world.shown.borrow().last().unwrap().uid, second);
        // One NodeDeleted: none for the empty list before the first registration.
        assert_eq!(world.reasons(), ["Starting 1", "NodeDeleted 1", "NodeReady 2"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_conflict_reads_and_renews() {
    in_tasks(async |world| {
        let _handle = world.start(creating());
        seconds(30).await;
        let mut lease = world.server.object(LEASE).unwrap();
        lease["metadata"]["labels"] = json!({"a": "b"});
        world.server.put(lease);
        seconds(12).await;
        let writes = world.server.writes();
        let statuses = writes.iter().filter(|call| call.path == LEASE).map(|call| call.status);
        assert_eq!(statuses.filter(|status| *status == 409).count(), 1);
        let lease = world.server.object(LEASE).unwrap();
        assert_eq!(lease["metadata"]["labels"], json!({"a": "b"}));
        let renewed = lease["spec"]["renewTime"].as_str().and_then(Timestamp::parse_rfc3339).unwrap();
        assert!(world.clock.now().saturating_since(renewed) < Duration::from_secs(11));
        let reads =
            world.server.calls().into_iter().filter(|call| call.method == Method::Get && call.path == LEASE);
        assert_eq!(reads.count(), 2, "the first time, and after the conflict");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_first_after_an_outage() {
    in_tasks(async |world| {
        let handle = world.start(creating());
        seconds(60).await;
        world.server.faults().refuse = true;
        world.change(|state| state.conditions[0].holds = false);
        seconds(3600).await;
        assert!(matches!(world.link.borrow().last(), Some(LinkEvent::Failed(error)) if error.is_offline()));
        assert!(handle.progress.problem.borrow().is_some());
        let shown = world.shown.borrow().len();
        world.server.faults().refuse = false;
        world.link.borrow_mut().clear();
        seconds(15).await;
        assert!(world.link.borrow().iter().any(|event| matches!(event, LinkEvent::Answered)));
        let renewed = handle.progress.renewed.get().unwrap();
        assert!(world.clock.now().saturating_since(renewed) < Duration::from_secs(15));
        assert_eq!(world.ready(), "False");
        seconds(30).await;
        assert_eq!(*handle.progress.problem.borrow(), None);
        assert_eq!(world.shown.borrow().len(), shown, "an outage changes no Node");
    })
    .await;
}
