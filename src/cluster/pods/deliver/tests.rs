//! The source and the delivery against the fake apiserver; the tests play the workers.

use serde_json::{Value, json};

use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::limits::Limit;
use crate::cluster::client::transport::Method;
use crate::cluster::fake::{FakeApiserver, Removal};
use crate::cluster::objects::Objects;
use crate::cluster::pods::guard::{Guard, NodeSeen};
use crate::cluster::pods::set::SetConfig;
use crate::cluster::pods::{self, PodsParts};
use crate::cluster::watch::{self, WatchSpec};
use crate::model::api::decode::decode;
use crate::model::api::pod::PodStatus;
use crate::model::revisions::Revisions;
use crate::model::source::{SourceAnswer, SourcePod, SourceUpdate};
use crate::model::types::{PodSource, Timestamp};
use crate::store::{Mode, OpenOptions};

const POD: &str = "/api/v1/namespaces/default/pods/p";
const MIRROR: &str = "/api/v1/namespaces/default/pods/s-n1";

/// What ends when it is dropped: the senders that the tasks wait for.
struct Joined {
    server: FakeApiserver,
    statuses: Rc<StatusManager>,
    updates: mpsc::Receiver<SourceUpdate>,
    store: StoreHandle,
    _node: tokio::sync::watch::Sender<u64>,
    _accept: mpsc::Sender<()>,
}

fn join(statics: Vec<Rc<Pod>>) -> Joined {
    let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
    let server = FakeApiserver::new(clock.clone(), 1);
    server.put(json!({"kind": "Node", "metadata": {"name": "n1"}}));
    let uid = server.object("/api/v1/nodes/n1").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let identity = NodeIdentity { name: "n1".to_owned(), uid };
    let timeout = Duration::from_secs(30);
    let limit = Limit { qps: 50, burst: 100 };
    let config = ClientConfig { limit, timeout, heartbeat_timeout: timeout };
    let transport = Rc::new(server.transport("system:node:n1"));
    let client = Rc::new(Client::new(transport, config, Dice::seeded(1)));
    let store =
        StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() }).unwrap();
    let revisions = Revisions::since(Timestamp::from_secs(1));
    let statuses = Rc::new(StatusManager::new(store.clone(), BTreeMap::new(), revisions));
    let seen = Rc::new(SeenPods::new());
    let (into, shown) = mpsc::channel(8);
    let spec = WatchSpec::list(ResourcePath::whole("", "pods", ""), "spec.nodeName=n1".to_owned());
    drop(watch::spawn(Rc::clone(&client), spec, into, clock.clone(), Dice::seeded(2)));
    let (updates, received) = mpsc::channel(4);
    let (node, node_changed) = tokio::sync::watch::channel(0);
    let (accept, accepted) = mpsc::channel(1);
    drop(tokio::task::spawn_local(pods::run(PodsParts {
        config: SetConfig { node: "n1".to_owned(), origin: String::new(), guard_grace: Duration::ZERO },
        shown,
        updates,
        objects: Rc::new(Objects::new()),
        seen: Rc::clone(&seen),
        clock: clock.clone(),
        restored: Vec::new(),
        guard: Guard::Open,
        node: Rc::new(|| NodeSeen::Same),
        node_changed,
        accept: accepted,
        on_guard: Rc::new(|_| {}),
        register: Rc::new(|| {}),
        on_output: Rc::new(|_| {}),
    })));
    drop(tokio::task::spawn_local(run(DeliveryParts {
        client,
        statuses: Rc::clone(&statuses),
        store: store.clone(),
        seen,
        clock,
        dice: Dice::seeded(3),
        local_pods: Rc::new(move || statics.clone()),
        node: Rc::new(move || identity.clone()),
        waiting: Rc::default(),
    })));
    Joined { server, statuses, updates: received, store, _node: node, _accept: accept }
}

impl Joined {
    async fn pods(&mut self) -> Vec<Rc<Pod>> {
        let SourceAnswer::Pods(pods) = self.updates.recv().await.unwrap().answer else { panic!() };
        pods.into_iter().map(|pod| pod.pod).collect()
    }

    fn methods(&self) -> Vec<Method> {
        self.server.writes().iter().map(|call| call.method).collect()
    }
}

fn status(phase: &str) -> PodStatus {
    let state = match phase {
        "Running" => json!({"running": {"startedAt": "2026-11-20T16:00:00Z"}}),
        _ => json!({"terminated": {"exitCode": 0, "finishedAt": "2026-11-20T16:00:00Z"}}),
    };
    let container =
        json!({"name": "c", "state": state, "ready": phase == "Running", "image": "i", "imageID": "i"});
    let status = json!({
        "phase": phase, "startTime": "2026-11-20T16:00:00Z", "containerStatuses": [container],
        "conditions": [{"type": "PodScheduled", "status": "True"}], "podIPs": [{"ip": "10.0.0.9"}], "podIP": "10.0.0.9",
    });
    decode(status).unwrap().object
}

fn bound(server: &FakeApiserver) {
    let spec =
        json!({"restartPolicy": "Never", "containers": [{"name": "c"}], "terminationGracePeriodSeconds": 5});
    server
        .bind(json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "spec": spec}), "n1");
}

fn phase(server: &FakeApiserver, path: &str) -> Value {
    server.object(path).map_or(Value::Null, |pod| pod["status"]["phase"].clone())
}

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_ends_at_the_server() {
    let test = async {
        let mut joined = join(Vec::new());
        assert_eq!(joined.pods().await, []);
        bound(&joined.server);
        let pod = joined.pods().await.remove(0);
        assert!(crate::model::provenance::is_of_cluster(&pod));
        wait(60).await;
        assert_eq!(joined.methods(), [], "no worker has reported yet");
        joined.statuses.set(&pod, status("Running"));
        wait(1).await;
        assert_eq!(phase(&joined.server, POD), "Running");
        wait(120).await;
        assert_eq!(joined.methods(), [Method::Patch], "its echo sends nothing");

        joined.server.remove(POD, Removal::Graceful(5));
        let mut ending = joined.pods().await.remove(0);
        assert!(ending.metadata.deletion_timestamp.is_some());
        wait(1).await;
        assert_eq!(phase(&joined.server, POD), "Running", "its containers run");
        Rc::make_mut(&mut ending).metadata.deletion_grace_period_seconds = Some(0);
        joined.statuses.set(&ending, status("Succeeded"));
        wait(5).await;
        assert_eq!(joined.server.object(POD), None);
        assert_eq!(joined.methods(), [Method::Patch, Method::Patch, Method::Delete]);
        let mut left = joined.pods().await;
        while !left.is_empty() {
            // The echo of the end, which is stored with the pod.
            left = joined.pods().await;
        }
    };
    tokio::task::LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_terminal_phase_is_stored_before_it_is_sent() {
    let test = async {
        let mut joined = join(Vec::new());
        joined.pods().await;
        bound(&joined.server);
        let pod = joined.pods().await.remove(0);
        let desired = [SourcePod { pod: Rc::clone(&pod), origin: String::new() }];
        joined.store.commit_source(PodSource::Cluster, &desired, &[], None).await.unwrap();
        joined.statuses.set(&pod, status("Running"));
        wait(1).await;
        assert!(joined.store.load().await.unwrap().statuses.is_empty(), "a status is not waited for");
        joined.statuses.set(&pod, status("Succeeded"));
        while phase(&joined.server, POD) != "Succeeded" {
            assert_eq!(joined.methods().len(), 1);
            tokio::task::yield_now().await;
        }
        let stored = joined.store.load().await.unwrap().statuses;
        assert_eq!(stored[&pod.metadata.uid].phase, "Succeeded");
    };
    tokio::task::LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_sends_one_more_patch() {
    let test = async {
        let mut joined = join(Vec::new());
        joined.pods().await;
        bound(&joined.server);
        let pod = joined.pods().await.remove(0);
        joined.server.faults().lose_answers = true;
        joined.statuses.set(&pod, status("Running"));
        while joined.methods().is_empty() {
            tokio::task::yield_now().await;
        }
        joined.server.faults().lose_answers = false;
        wait(120).await;
        let shown = joined.server.object(POD).unwrap();
        assert_eq!(shown["status"]["phase"], "Running");
        assert!(joined.methods().len() <= 2, "{:?}", joined.methods());
        joined.statuses.set(&pod, status("Succeeded"));
        wait(120).await;
        assert_eq!(phase(&joined.server, POD), "Succeeded");
        assert!(joined.methods().len() <= 3, "{:?}", joined.methods());
    };
    tokio::task::LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn status_patches_keep_their_order() {
    let test = async {
        let mut joined = join(Vec::new());
        joined.pods().await;
        bound(&joined.server);
        let pod = joined.pods().await.remove(0);
        for restarts in 1..=20 {
            let mut running = status("Running");
            running.container_statuses[0].restart_count = restarts;
            joined.statuses.set(&pod, running);
            tokio::task::yield_now().await;
        }
        wait(5).await;
        let counts = joined.server.writes().into_iter().map(|call| {
            let counted = &call.body["status"]["containerStatuses"][0]["restartCount"];
            counted.as_i64().unwrap()
        });
        let counts: Vec<i64> = counts.collect();
        assert!(counts.is_sorted() && counts.last() == Some(&20), "{counts:?}");
        let shown = joined.server.object(POD).unwrap();
        assert_eq!(shown["status"]["containerStatuses"][0]["restartCount"], 20);
    };
    tokio::task::LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_mirror_is_made_shows_the_status_and_comes_back() {
    let annotations = json!({"kubernetes.io/config.hash": "h", "kubernetes.io/config.source": "file"});
    let metadata = json!({"name": "s-n1", "namespace": "default", "uid": "h", "annotations": annotations});
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]});
    let pod: Pod = decode(json!({"metadata": metadata, "spec": spec})).unwrap().object;
    let pod = Rc::new(pod);
    let test = async move {
        let mut joined = join(vec![Rc::clone(&pod)]);
        assert_eq!(joined.pods().await, [], "a mirror is not run");
        wait(1).await;
        let first = joined.server.object(MIRROR).unwrap();
        joined.statuses.set(&pod, status("Running"));
        wait(1).await;
        assert_eq!(phase(&joined.server, MIRROR), "Running");
        joined.server.remove(MIRROR, Removal::Force);
        wait(1).await;
        let second = joined.server.object(MIRROR).unwrap();
        assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
        wait(1).await;
        assert_eq!(phase(&joined.server, MIRROR), "Running");
        assert_eq!(joined.methods(), [Method::Post, Method::Patch, Method::Post, Method::Patch]);
    };
    tokio::task::LocalSet::new().run_until(test).await;
}
