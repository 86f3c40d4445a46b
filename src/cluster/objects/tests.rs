use std::future::Future;

use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::references::references;
use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::limits::Limit;
use crate::cluster::facts::FactRow;
use crate::cluster::fake::{FakeApiserver, FakeTransport, Removal};
use crate::cluster::pods::PodsParts;
use crate::cluster::pods::guard::{Guard, NodeSeen};
use crate::cluster::pods::seen::SeenPods;
use crate::cluster::pods::set::SetConfig;
use crate::cluster::watch::{WatchSpec, spawn};
use crate::model::api::decode::decode;
use crate::model::objects::{ConfigMapData, ObjectContent};
use crate::model::source::SourceAnswer;
use crate::model::types::Timestamp;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A node with the tasks, and what they would store.
pub(crate) struct WatchedNode {
    pub server: FakeApiserver,
    pub clock: Clock,
    pub objects: Rc<Objects>,
    pub facts: Rc<Facts>,
    pub rows: Rc<RefCell<Vec<FactChange>>>,
}

impl WatchedNode {
    pub(crate) fn start() -> Self {
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        let server = FakeApiserver::new(clock.clone(), 1);
        server.put(service("default", "kubernetes", "10.0.0.1"));
        Self::with(server, clock, Detection::Watch, Vec::new(), &[])
    }

    pub(crate) fn with(
        server: FakeApiserver,
        clock: Clock,
        detection: Detection,
        restored: Vec<SourceObject>,
        rows: &[FactRow],
    ) -> Self {
        let client = client(&server);
        let facts = Facts::restored(rows);
        let rows: Rc<RefCell<Vec<FactChange>>> = Rc::default();
        let written = Rc::clone(&rows);
        let objects = Objects::start(ObjectsParts {
            client,
            clock: clock.clone(),
            dice: Dice::seeded(2),
            facts: Rc::clone(&facts),
            restored,
            origin: "https://server".to_owned(),
            detection,
            node_ttl: Rc::new(|| Some(SECOND * 300)),
            bind: Rc::new(bind),
            on_row: Rc::new(move |change| written.borrow_mut().push(change)),
        });
        Self { server, clock, objects, facts, rows }
    }

    fn client(&self) -> Rc<Client<FakeTransport>> {
        client(&self.server)
    }

    /// Binds a pod to this node; returns it as the server has it.
    pub(crate) fn bind(&self, name: &str, spec: &Value) -> Pod {
        let metadata = json!({"namespace": "shop", "name": name});
        self.server.bind(json!({"kind": "Pod", "metadata": metadata, "spec": spec}), "n1");
        let pod = self.server.object(&format!("/api/v1/namespaces/shop/pods/{name}")).unwrap();
        decode(pod).unwrap().object
    }

    /// These pods and no others are on the node.
    pub(crate) fn retain(&self, pods: &[&Pod]) {
        let needs = pods.iter().map(|pod| (pod.metadata.uid.clone(), references(pod))).into_map();
        self.objects.retain(needs);
    }

    /// The value of `data.a` of a ConfigMap.
    fn value(&self, name: &str) -> Option<String> {
        let objects = self.objects.current();
        let object = objects.iter().find(|object| object.object.key.name == name)?;
        match &object.object.content {
            ObjectContent::ConfigMap { data: ConfigMapData { data, .. }, .. } => {
                Some(String::from_utf8_lossy(data.get("a")?).into_owned())
            }
            _ => None,
        }
    }

    fn put(&self, name: &str, value: &str) {
        self.server.put(config_map(name, value));
    }

    fn calls(&self, of: &str) -> usize {
        self.server.calls().iter().filter(|call| call.path.contains(of)).count()
    }

    fn absence(&self, kind: ObjectKind, name: &str) -> Absence {
        self.facts.absence(&ObjectKey { kind, namespace: "shop".to_owned(), name: name.to_owned() })
    }
}

fn client(server: &FakeApiserver) -> Rc<Client<FakeTransport>> {
    let limit = Limit { qps: 0, burst: 0 };
    let config = ClientConfig { limit, timeout: SECOND * 30, heartbeat_timeout: SECOND * 10 };
    Rc::new(Client::new(Rc::new(server.transport("system:node:n1")), config, Dice::seeded(1)))
}

/// Bound when the claim names a volume that is there.
fn bind(claim: &Value, volume: &Value, pod: &Pod, spec: &mut ClaimSpec) -> Result<(), String> {
    if volume.is_null() {
        return Err(format!("PVC {} of {} is not bound", claim["metadata"]["name"], pod.metadata.name));
    }
    spec.storage_class = volume["metadata"]["name"].as_str().map(str::to_owned);
    Ok(())
}

pub(crate) async fn local<F: Future<Output = ()>>(test: F) {
    LocalSet::new().run_until(test).await;
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"kind": "ConfigMap", "metadata": {"namespace": "shop", "name": name}, "data": {"a": value}})
}

fn service(namespace: &str, name: &str, ip: &str) -> Value {
    json!({"kind": "Service", "metadata": {"namespace": namespace, "name": name},
        "spec": {"clusterIP": ip, "ports": [{"port": 443, "protocol": "TCP"}]}})
}

/// A pod that reads these ConfigMaps.
fn reads(names: &[&str]) -> Value {
    let volume = |name: &&str| json!({"name": name, "configMap": {"name": name}});
    json!({"containers": [{"name": "c"}], "volumes": names.iter().map(volume).collect::<Vec<_>>()})
}

fn restored(name: &str, value: &str) -> SourceObject {
    let object =
        crate::model::objects::wire::from_value(ObjectKind::ConfigMap, config_map(name, value)).unwrap();
    SourceObject { object: Rc::new(object), origin: "https://server".to_owned() }
}

#[tokio::test(start_paused = true)]
async fn a_config_map_change_arrives_in_a_second() {
    local(async {
        let node = WatchedNode::start();
        node.put("c", "1");
        let pod = node.bind("p", &reads(&["c", "none"]));
        node.retain(&[&pod]);
        assert!(node.objects.missing(&references(&pod)));
        let mut changed = node.objects.changed();
        sleep(SECOND).await;
        assert!(changed.has_changed().unwrap() && !node.objects.missing(&references(&pod)));
        assert_eq!(node.absence(ObjectKind::ConfigMap, "none"), Absence::NotFound);
        let uid =
            node.server.object("/api/v1/namespaces/shop/configmaps/c").unwrap()["metadata"]["uid"].clone();
        assert_eq!((node.objects.current().len(), node.value("c").as_deref()), (1, Some("1")));
        assert_eq!(node.objects.current()[0].object.uid, uid.as_str().unwrap());
        changed.mark_unchanged();
        node.put("c", "2");
        node.put("none", "3");
        sleep(SECOND).await;
        assert_eq!((node.value("c").as_deref(), node.value("none").as_deref()), (Some("2"), Some("3")));
        assert!(changed.has_changed().unwrap());
        assert!(
            !node.server.calls().iter().any(|call| {
                call.path.contains("configmaps") && call.path.contains("allowWatchBookmarks")
            })
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn graph_lag_is_no_failure() {
    local(async {
        let node = WatchedNode::start();
        node.put("c", "1");
        node.server.faults().graph_lag = SECOND * 3;
        let mut spec = reads(&["c"]);
        spec["volumes"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "d", "persistentVolumeClaim": {"claimName": "d"}}));
        let pod = node.bind("p", &spec);
        node.retain(&[&pod]);
        sleep(SECOND).await;
        assert!(node.objects.missing(&references(&pod)));
        for kind in [ObjectKind::ConfigMap, ObjectKind::PersistentVolumeClaim] {
            assert_eq!(node.absence(kind, "c"), Absence::NotSynced);
        }
        sleep(SECOND * 8).await;
        assert_eq!(node.value("c").as_deref(), Some("1"));
        assert_eq!(node.absence(ObjectKind::PersistentVolumeClaim, "d"), Absence::NotFound);
        // One that lasts is a failure.
        node.server.faults().graph_lag = HOUR * 100;
        let late = node.bind("late", &reads(&["other"]));
        node.retain(&[&pod, &late]);
        sleep(SECOND * 5).await;
        assert_eq!(node.absence(ObjectKind::ConfigMap, "other"), Absence::NotSynced);
        sleep(SECOND * 60).await;
        let absence = node.absence(ObjectKind::ConfigMap, "other");
        assert!(
            matches!(&absence, Absence::Refused(why) if why.contains("no relationship found")),
            "{absence:?}"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_immutable_object_closes_its_watch() {
    local(async {
        let node = WatchedNode::start();
        let mut fixed = config_map("c", "1");
        fixed["immutable"] = true.into();
        node.server.put(fixed);
        let pod = node.bind("p", &reads(&["c"]));
        node.retain(&[&pod]);
        sleep(SECOND).await;
        assert_eq!(node.value("c").as_deref(), Some("1"));
        let calls = node.calls("configmaps");
        node.put("c", "2");
        sleep(HOUR * 5).await;
        assert_eq!((node.value("c").as_deref(), node.calls("configmaps")), (Some("1"), calls));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_stays_while_a_pod_needs_it() {
    local(async {
        let node = WatchedNode::start();
        node.put("c", "1");
        let pod = node.bind("p", &reads(&["c"]));
        node.retain(&[&pod]);
        sleep(SECOND).await;
        node.server.remove("/api/v1/namespaces/shop/configmaps/c", Removal::Force);
        sleep(HOUR * 3).await;
        assert_eq!(node.value("c").as_deref(), Some("1"));
        node.put("c", "2");
        sleep(SECOND).await;
        assert_eq!(node.value("c").as_deref(), Some("2"), "another one of that name");
        node.retain(&[]);
        assert_eq!(node.objects.current(), []);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn restored_objects_serve_until_the_server_answers() {
    local(async {
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        let server = FakeApiserver::new(clock.clone(), 1);
        server.put(config_map("c", "2"));
        server.faults().refuse = true;
        let known = vec![restored("c", "1"), restored("gone", "1"), restored("unused", "1")];
        let node = WatchedNode::with(server, clock, Detection::Watch, known, &[]);
        let pod = node.bind("p", &reads(&["c", "gone", "new"]));
        node.retain(&[&pod]);
        sleep(HOUR).await;
        assert_eq!((node.value("c").as_deref(), node.value("gone").as_deref()), (Some("1"), Some("1")));
        assert_eq!(
            (node.value("unused"), node.absence(ObjectKind::ConfigMap, "new")),
            (None, Absence::NotSynced)
        );
        node.server.faults().refuse = false;
        node.objects.retry_now();
        sleep(SECOND).await;
        assert_eq!((node.value("c").as_deref(), node.value("gone").as_deref()), (Some("2"), Some("1")));
        assert_eq!(node.absence(ObjectKind::ConfigMap, "new"), Absence::NotFound);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn references_that_end_close_their_watches() {
    local(async {
        let node = WatchedNode::start();
        node.put("a", "1");
        node.put("b", "1");
        let (one, two) = (node.bind("one", &reads(&["a", "b"])), node.bind("two", &reads(&["b"])));
        node.retain(&[&one, &two]);
        sleep(SECOND).await;
        node.retain(&[&two]);
        assert_eq!((node.value("a"), node.value("b").as_deref()), (None, Some("1")));
        sleep(SECOND).await;
        let calls = node.calls("metadata.name%3Da");
        sleep(HOUR * 5).await;
        assert_eq!(node.calls("metadata.name%3Da"), calls);
        node.put("b", "2");
        sleep(SECOND).await;
        assert_eq!(node.value("b").as_deref(), Some("2"));
        node.retain(&[]);
        sleep(SECOND).await;
        let calls = node.server.calls().len();
        sleep(HOUR * 5).await;
        assert_eq!(node.server.calls().len(), calls, "a node without pods asks for nothing");
        let Some(FactChange::Gone { kind, namespace, .. }) = node.rows.borrow().last().cloned() else {
            panic!("Services of no pod stay in the store")
        };
        assert_eq!((kind, namespace.as_str()), (crate::cluster::facts::SERVICES, "shop"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_watched_objects_ask_for_nothing() {
    local(async {
        let node = WatchedNode::start();
        let names: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for name in &names {
            node.put(name, "1");
        }
        let pod = node.bind("p", &reads(&names));
        node.retain(&[&pod]);
        sleep(SECOND).await;
        assert_eq!(
            (node.objects.current().len(), node.calls("configmaps")),
            (100, 200),
            "a GET and a watch each"
        );
        let (version, calls) = (*node.objects.changed().borrow(), node.calls("configmaps"));
        sleep(SECOND * 1790).await;
        assert_eq!((*node.objects.changed().borrow(), node.calls("configmaps")), (version, calls));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn other_strategies_read_for_each_new_pod() {
    for (detection, seconds) in
        [(Detection::of("Get"), 60), (Detection::of("Cache"), 300), (Detection::Seldom, 300)]
    {
        local(async move {
            let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
            let server = FakeApiserver::new(clock.clone(), 1);
            let node = WatchedNode::with(server, clock, detection, Vec::new(), &[]);
            node.put("c", "1");
            let one = node.bind("one", &reads(&["c"]));
            node.retain(&[&one]);
            sleep(SECOND).await;
            assert_eq!((node.value("c").as_deref(), node.calls("configmaps")), (Some("1"), 1));
            node.put("c", "2");
            let two = node.bind("two", &reads(&["c"]));
            node.retain(&[&one, &two]);
            assert!(node.objects.missing(&references(&two)));
            sleep(SECOND).await;
            assert!(node.value("c").as_deref() == Some("2") && node.calls("configmaps") == 2);
            node.put("c", "3");
            sleep(SECOND * (seconds - 5)).await;
            assert_eq!(node.value("c").as_deref(), Some("2"));
            sleep(SECOND * 6).await;
            assert_eq!((node.value("c").as_deref(), node.calls("configmaps?")), (Some("3"), 0));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_read_until_it_is_bound() {
    local(async {
        let node = WatchedNode::start();
        let claim = |volume: &str| {
            json!({"kind": "PersistentVolumeClaim", "metadata": {"namespace": "shop", "name": "d"},
                "spec": {"volumeName": volume}, "status": {"phase": if volume.is_empty() { "Pending" } else { "Bound" }}})
        };
        node.server.put(claim(""));
        let spec = json!({"containers": [], "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]});
        let pod = node.bind("p", &spec);
        node.retain(&[&pod]);
        sleep(SECOND).await;
        let unbound = Absence::Refused("PVC \"d\" of p is not bound".to_owned());
        assert_eq!(node.absence(ObjectKind::PersistentVolumeClaim, "d"), unbound);
        node.server.put(json!({"kind": "PersistentVolume", "metadata": {"name": "v"}}));
        node.server.put(claim("v"));
        sleep(SECOND * 290).await;
        assert_eq!((node.objects.current().len(), node.calls("persistentvolumeclaims")), (0, 1));
        sleep(SECOND * 20).await;
        let objects = node.objects.current();
        let ObjectContent::Claim(claim) = &objects[0].object.content else { panic!("{objects:?}") };
        assert_eq!(claim.storage_class.as_deref(), Some("v"));
        sleep(HOUR * 5).await;
        assert_eq!(node.calls("persistentvolume"), 3, "a bound claim is not read again");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_object_keeps_its_last_version() {
    local(async {
        let node = WatchedNode::start();
        node.put("c", "1");
        let bad =
            json!({"kind": "Secret", "metadata": {"namespace": "shop", "name": "s"}, "data": {"pin": 12345}});
        node.server.put(bad);
        let mut spec = reads(&["c"]);
        spec["imagePullSecrets"] = json!([{"name": "s"}]);
        let pod = node.bind("p", &spec);
        node.retain(&[&pod]);
        sleep(SECOND).await;
        let message = "Secret shop/s cannot be read: data.pin: invalid value".to_owned();
        assert_eq!(node.absence(ObjectKind::Secret, "s"), Absence::Refused(message.clone()));
        assert_eq!(node.objects.problems().into_iter().map(|it| it.message).collect::<Vec<_>>(), [message]);
        let mut broken = config_map("c", "2");
        broken["data"] = json!({"a": {}});
        node.server.put(broken);
        sleep(SECOND).await;
        assert_eq!((node.value("c").as_deref(), node.objects.problems().len()), (Some("1"), 2));
        node.put("c", "3");
        sleep(SECOND).await;
        assert_eq!((node.value("c").as_deref(), node.objects.problems().len()), (Some("3"), 1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_and_its_objects_are_one_update() {
    local(async {
        let node = WatchedNode::start();
        let (shown, from_watch) = mpsc::channel(8);
        let (updates, mut sent) = mpsc::channel(4);
        let (_node_changes, node_changed) = watch::channel(0);
        let (_accept, accept) = mpsc::channel(1);
        let path = crate::cluster::client::request::ResourcePath::whole("", "pods", "");
        let spec = WatchSpec::list(path, "spec.nodeName=n1".to_owned());
        drop(spawn(node.client(), spec, shown, node.clock.clone(), Dice::seeded(3)));
        let origin = "https://server".to_owned();
        let config = SetConfig { node: "n1".to_owned(), origin, guard_grace: Duration::ZERO };
        let parts = PodsParts {
            config,
            shown: from_watch,
            updates,
            objects: Rc::clone(&node.objects),
            seen: Rc::new(SeenPods::new()),
            clock: node.clock.clone(),
            restored: Vec::new(),
            guard: Guard::Open,
            node: Rc::new(|| NodeSeen::Same),
            node_changed,
            accept,
            on_guard: Rc::new(|_| {}),
            register: Rc::new(|| {}),
            on_output: Rc::new(|_| {}),
        };
        drop(rt::spawn("cluster pods", crate::cluster::pods::run(parts)));
        assert_eq!(sent.recv().await.unwrap().answer, SourceAnswer::Pods(Vec::new()));
        node.put("a", "1");
        node.put("b", "1");
        node.bind("p", &reads(&["a", "b"]));
        let mut last = sent.recv().await.unwrap();
        while last.answer == SourceAnswer::Pods(Vec::new()) {
            last = sent.recv().await.unwrap();
        }
        assert_eq!(last.objects.len(), 2, "no mount fails for the order of answers");
        node.server.put(
            json!({"kind": "ConfigMap", "metadata": {"namespace": "shop", "name": "a"}, "data": {"a": {}}}),
        );
        let update = sent.recv().await.unwrap();
        assert_eq!((update.objects.len(), update.problems.len()), (2, 1), "{:?}", update.problems);
        sleep(HOUR).await;
        assert!(sent.try_recv().is_err(), "nothing changes, nothing is handed on");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn services_are_followed_and_stored() {
    local(async {
        let node = WatchedNode::start();
        let pod = node.bind("p", &reads(&[]));
        assert_eq!(node.facts.service_variables("shop", true), Err(Absence::NotSynced));
        node.server.put(service("shop", "db", "10.0.0.7"));
        node.server.put(service("shop", "headless", "None"));
        node.server.put(service("other", "far", "10.0.0.9"));
        node.retain(&[&pod]);
        sleep(SECOND).await;
        let hosts = |facts: &Facts| {
            let variables = facts.service_variables("shop", true).unwrap();
            let hosts = variables.into_iter().filter(|(name, _)| name.ends_with("_HOST"));
            hosts.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let both = ["DB_SERVICE_HOST=10.0.0.7", "KUBERNETES_SERVICE_HOST=10.0.0.1"];
        assert_eq!(hosts(&node.facts), both);
        let generation = node.facts.generation();
        node.server.put(service("shop", "db", "10.0.0.8"));
        sleep(SECOND).await;
        assert!(node.facts.generation() > generation && hosts(&node.facts)[0].ends_with("10.0.0.8"));
        let rows = stored(&node.rows.borrow());
        let again = Facts::restored(&rows);
        assert_eq!(hosts(&again), hosts(&node.facts), "a node that boots offline has them");
        node.server.remove("/api/v1/namespaces/shop/services/db", Removal::Force);
        sleep(SECOND).await;
        assert_eq!(hosts(&node.facts), both[1..]);
        let written = node.rows.borrow().len();
        sleep(HOUR).await;
        assert_eq!(node.rows.borrow().len(), written, "nothing changes, nothing is written");
    })
    .await;
}

/// The rows of the store after these changes.
pub(crate) fn stored(changes: &[FactChange]) -> Vec<FactRow> {
    let mut rows: Vec<FactRow> = Vec::new();
    for change in changes {
        match change {
            FactChange::Put(row) => {
                rows.retain(|old| {
                    (&old.kind, &old.namespace, &old.name) != (&row.kind, &row.namespace, &row.name)
                });
                rows.push(row.clone());
            }
            FactChange::Gone { kind, namespace, name } => {
                rows.retain(|old| (&*old.kind, &old.namespace, &old.name) != (kind, namespace, name));
            }
        }
    }
    rows
}

#[tokio::test(start_paused = true)]
async fn trust_bundles_are_read_when_a_pod_names_one() {
    local(async {
        let node = WatchedNode::start();
        let source = json!({"name": "trust", "path": "ca.pem"});
        let bundle = |pem: &str| {
            json!({"kind": "ClusterTrustBundle", "metadata": {"name": "trust"}, "spec": {"trustBundle": pem}})
        };
        let pem = |byte: &str| format!("-----BEGIN CERTIFICATE-----\n{byte}\n-----END CERTIFICATE-----\n");
        node.server.put(bundle(&pem("AAAA")));
        node.server.faults().no_trust_bundles = true;
        let plain = node.bind("plain", &reads(&[]));
        node.retain(&[&plain]);
        sleep(SECOND).await;
        assert_eq!(node.calls("clustertrustbundles"), 0);
        let spec = json!({"containers": [], "volumes":
            [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": source}]}}]});
        let pod = node.bind("p", &spec);
        node.retain(&[&plain, &pod]);
        assert!(node.objects.missing(&references(&pod)));
        sleep(SECOND * 5).await;
        let refused = node.facts.trust_bundle(&source);
        assert!(matches!(&refused, Err(Absence::Refused(why)) if why.contains("not supported")), "{refused:?}");
        node.server.faults().no_trust_bundles = false;
        sleep(SECOND * 601).await;
        let text = |facts: &Facts| facts.trust_bundle(&source).map(|pem| String::from_utf8(pem).unwrap());
        assert_eq!(text(&node.facts), Ok(pem("AAAA")));
        node.server.put(bundle(&(pem("BBBB") + &pem("AAAA") + &pem("BBBB"))));
        sleep(SECOND).await;
        assert_eq!(text(&node.facts), Ok(pem("AAAA") + &pem("BBBB")));
        let again = Facts::restored(&stored(&node.rows.borrow()));
        assert_eq!(text(&again), text(&node.facts));
    })
    .await;
}
