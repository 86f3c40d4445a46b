//! What readers see. The kernel is tested beside `kernel`, all of it together in `tests/pods`.

use std::cell::Cell;

use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::{ObjectContent, ObjectLookup as _, PlainBody, wire};
use crate::model::revisions::Revisions;
use crate::model::source::SourceObject;
use crate::model::types::Timestamp;
use crate::store::{Mode, OpenOptions, StoreHandle};

struct Fixture {
    driver: Driver,
    objects: Rc<LocalObjects>,
    statuses: Rc<StatusManager>,
    notified: Rc<Cell<usize>>,
}

fn fixture() -> Fixture {
    let store =
        StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() }).unwrap();
    let objects: Rc<LocalObjects> = Rc::default();
    let statuses =
        Rc::new(StatusManager::new(store.clone(), BTreeMap::new(), Revisions::since(Timestamp::default())));
    let notified = Rc::new(Cell::new(0));
    let counter = Rc::clone(&notified);
    let parts = ServiceParts {
        objects: Rc::clone(&objects),
        statuses: Rc::clone(&statuses),
        events: EventRecorder::new("box".to_owned(), Clock::System, store, Vec::new()),
        clock: Clock::System,
        changed: watch::Sender::new(0).subscribe(),
        notify: Rc::new(move || counter.set(counter.get() + 1)),
        report: Rc::new(|_| false),
    };
    let config = ServiceConfig {
        names: KernelNames::of("agent0"),
        ranges: vec!["10.96.0.0/16".parse().unwrap()],
        domain: "cluster.local".to_owned(),
        node_name: "box".to_owned(),
        api: Some("10.86.0.1:10250".parse().unwrap()),
        pod_ranges: vec!["10.86.0.0/24".parse().unwrap()],
        pods: Live::default(),
        own_ports: vec![10_250],
    };
    Fixture { driver: Driver::new(config, parts), objects, statuses, notified }
}

impl Fixture {
    fn put(&self, kind: ObjectKind, name: &str, labels: &[(&str, &str)], body: &Value) {
        self.put_in("shop", kind, name, labels, body);
    }

    fn put_in(&self, namespace: &str, kind: ObjectKind, name: &str, labels: &[(&str, &str)], body: &Value) {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let mut object = wire::plain_object(key.clone(), PlainBody::new(body));
        object.labels =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let object = SourceObject { object: Rc::new(object), origin: "the API".to_owned() };
        self.objects.set(&key, Some(&object));
    }

    fn put_service(&self, spec: &Value) {
        self.put(ObjectKind::Service, "web", &[], &json!({ "spec": spec }));
    }

    fn run_pod(&self, ready: bool) {
        let pod = web_pod("uid-a", ready);
        let status = pod.status.clone();
        self.statuses.set(&pod, status);
    }

    /// What the driver finds; readers see it.
    fn look(&mut self) -> Wanted {
        let wanted = self.driver.wanted();
        self.driver.publish(&wanted);
        wanted
    }

    /// `NAME: ADDRESS/READY...` of each slice.
    fn slices(&self) -> Vec<String> {
        let shown = |found: &VersionedObject| {
            let body = found.object.content.body();
            let endpoints = body["endpoints"].as_array().cloned().unwrap_or_default();
            let endpoint = |it: &Value| {
                let address = it["addresses"][0].as_str().unwrap_or_default().to_owned();
                format!(" {address}/{}", it["conditions"]["ready"])
            };
            let name = found.object.labels.get(super::super::spec::SERVICE_NAME).cloned().unwrap_or_default();
            format!("{name}:{}", endpoints.iter().map(endpoint).collect::<String>())
        };
        self.objects.of_kind(ObjectKind::EndpointSlice).iter().map(shown).collect()
    }
}

fn web_pod(uid: &str, ready: bool) -> Rc<Pod> {
    let pod = json!({
        "metadata": {"namespace": "shop", "name": "a", "uid": uid, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "ports": [{"hostPort": 443, "containerPort": 443}]}]},
        "status": {
            "phase": "Running",
            "podIP": "10.86.0.2",
            "podIPs": [{"ip": "10.86.0.2"}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        },
    });
    Rc::new(decode(pod).unwrap().object)
}

fn web() -> Value {
    json!({"type": "ClusterIP", "clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1"], "ipFamilies": ["IPv4"],
        "selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}]})
}

const OWN: [&str; 2] = ["kubernetes: 10.86.0.1/true", "kube-dns: 10.96.0.10/true"];

fn with_own(more: &[&str]) -> Vec<String> {
    OWN.iter().chain(more).map(|line| (*line).to_owned()).collect()
}

#[test]
fn an_idle_node_shows_its_own_services_and_needs_nothing() {
    let mut fixture = fixture();
    assert!(!fixture.look().is_used);
    assert_eq!(fixture.slices(), with_own(&[]));
    let services = fixture.objects.of_kind(ObjectKind::Service);
    let addresses: Vec<Value> =
        services.iter().map(|found| found.object.content.body()["spec"]["clusterIP"].clone()).collect();
    assert_eq!(addresses, ["10.96.0.1", "10.96.0.10"]);
    assert!(services.iter().all(|found| !found.object.created.is_zero()), "kubectl shows an age");
    let variables = fixture.objects.service_variables("shop", true).unwrap();
    assert!(variables.contains(&("KUBERNETES_SERVICE_HOST".to_owned(), "10.96.0.1".to_owned())));
    assert!(!variables.iter().any(|(name, _)| name.starts_with("KUBE_DNS")));
}

#[test]
fn slices_follow_pods_and_only_changes_are_news() {
    let mut fixture = fixture();
    fixture.put_service(&web());
    assert!(fixture.look().is_used);
    assert_eq!(fixture.slices(), with_own(&["web:"]));
    fixture.run_pod(false);
    fixture.look();
    assert_eq!(fixture.slices(), with_own(&["web: 10.86.0.2/false"]));
    let before = (fixture.notified.get(), fixture.objects.of_kind(ObjectKind::EndpointSlice));
    fixture.look();
    let after = fixture.objects.of_kind(ObjectKind::EndpointSlice);
    assert_eq!(fixture.notified.get(), before.0, "nothing is new");
    assert!(before.1.iter().zip(&after).all(|(one, other)| one.version == other.version));
    fixture.run_pod(true);
    fixture.look();
    assert_eq!(fixture.slices(), with_own(&["web: 10.86.0.2/true"]));
    let versions = |found: &[VersionedObject]| found.iter().map(|it| it.version).collect::<Vec<_>>();
    let now = versions(&fixture.objects.of_kind(ObjectKind::EndpointSlice));
    assert_eq!(now[..2], versions(&after)[..2], "of the others nothing changes");
    assert!(now[2] > after[2].version);
    assert!(fixture.objects.written(ObjectKind::EndpointSlice).is_empty(), "none is stored");
}

#[test]
fn the_agents_own_services_win_and_are_no_news() {
    let mut fixture = fixture();
    for (namespace, name) in [("default", "kubernetes"), ("kube-system", "kube-dns")] {
        fixture.put_in(namespace, ObjectKind::Service, name, &[], &json!({ "spec": web() }));
    }
    let wanted = fixture.look();
    assert!(!wanted.is_used && wanted.entries.len() == 2);
    assert_eq!(fixture.slices(), with_own(&[]));
    let notified = fixture.notified.get();
    fixture.look();
    assert_eq!(fixture.notified.get(), notified, "nothing is new");
    // The same for any other name that comes twice.
    let mut twice = fixture.driver.wanted();
    twice.entries.extend(twice.entries.clone());
    fixture.driver.publish(&twice);
    assert_eq!(fixture.notified.get(), notified);
}

#[test]
fn users_write_the_endpoints_of_a_service_without_a_selector() {
    let mut fixture = fixture();
    let mut spec = web();
    spec.as_object_mut().unwrap().remove("selector");
    fixture.put_service(&spec);
    let endpoints = json!({"subsets": [{"addresses": [{"ip": "10.0.0.5"}], "ports": [{"port": 502, "protocol": "TCP"}]}]});
    fixture.put(ObjectKind::Endpoints, "web", &[], &endpoints);
    let targets = |fixture: &mut Fixture| {
        let entries: Vec<Rc<Entry>> = fixture.look().entries.into_iter().map(|(entry, _)| entry).collect();
        let found = frontends(Family::Ipv4, &entries, &NodeNetwork::default());
        let place = Place::Address("10.96.1.1".parse().unwrap(), Protocol::Tcp, 80);
        found.places[&place].targets.iter().map(|(ip, port)| format!("{ip}:{port}")).collect::<Vec<_>>()
    };
    assert_eq!(targets(&mut fixture), ["10.0.0.5:502"]);
    assert_eq!(fixture.slices(), with_own(&["web: 10.0.0.5/true"]), "mirrored, as upstream does");
    let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.6"]}],
        "ports": [{"name": "", "port": 503, "protocol": "TCP"}]});
    fixture.put(ObjectKind::EndpointSlice, "web-1", &[("kubernetes.io/service-name", "web")], &slice);
    assert_eq!(targets(&mut fixture), ["10.0.0.6:503"]);
}

#[test]
fn a_port_that_a_pod_had_before_is_claimed() {
    let mut fixture = fixture();
    fixture.run_pod(true);
    let mut spec = web();
    spec["type"] = json!("LoadBalancer");
    spec["ports"] = json!([{"port": 443, "protocol": "TCP", "name": "a"}, {"port": 10_250, "protocol": "TCP", "name": "b"},
        {"port": 80, "protocol": "TCP", "name": "c"}]);
    fixture.put_service(&spec);
    // The pod has no time of creation, so it was there first or at the same time: the Service came second only if later.
    let claimed: Vec<u16> = fixture.look().node.claimed.into_iter().map(|(_, _, port)| port).collect();
    assert_eq!(claimed, [10_250], "the agent's own");
    let key = ObjectKey { kind: ObjectKind::Service, namespace: "shop".to_owned(), name: "web".to_owned() };
    let found = fixture.objects.find(&key).unwrap().object;
    let later = LocalObject { created: Timestamp::from_secs(60), ..LocalObject::clone(&found) };
    assert!(matches!(later.content, ObjectContent::Plain(_)));
    let later = SourceObject { object: Rc::new(later), origin: "the API".to_owned() };
    fixture.objects.set(&key, Some(&later));
    let claimed: Vec<u16> = fixture.look().node.claimed.into_iter().map(|(_, _, port)| port).collect();
    assert_eq!(claimed, [443, 10_250]);
}

#[test]
fn only_pods_that_ask_for_it_use_the_dns_server() {
    let uses = |policy: &str, host_network: bool| {
        let mut pod = Pod::default();
        policy.clone_into(&mut pod.spec.dns_policy);
        pod.spec.host_network = host_network;
        uses_dns(&pod)
    };
    assert!(uses("ClusterFirst", false) && uses("", false) && uses("ClusterFirstWithHostNet", true));
    assert!(!uses("ClusterFirst", true) && !uses("Default", false) && !uses("None", false));
}

#[test]
fn udp_places_that_change_are_found() {
    let place = Place::Node(Protocol::Udp, 53);
    let of = |targets: &[&str]| {
        let targets = targets.iter().map(|ip| (ip.parse().unwrap(), 53)).collect();
        let mut frontends = Frontends::default();
        frontends.places.insert(place, Frontend { targets, ..Frontend::default() });
        frontends.places.insert(Place::Node(Protocol::Tcp, 53), Frontend::default());
        InForce { frontends: vec![(Family::Ipv4, frontends)], node: NodeNetwork::default() }
    };
    let none = InForce { frontends: Vec::new(), node: NodeNetwork::default() };
    let one = of(&["10.86.0.2"]);
    assert_eq!(changed_places(None, &one).keys().collect::<Vec<_>>(), [&place], "of an earlier process");
    assert!(changed_places(Some(&one), &one).is_empty());
    assert_eq!(changed_places(Some(&one), &of(&["10.86.0.3"])).len(), 1);
    assert_eq!(changed_places(Some(&one), &of(&[])).len(), 1);
    assert_eq!(changed_places(Some(&one), &none)[&place], Frontend::default());
}

#[tokio::test(start_paused = true)]
async fn rules_of_an_earlier_process_wait_for_its_pods() {
    let fixture = fixture();
    let mut changes = Changes(vec![fixture.statuses.watch()]);
    let begun = Instant::now();
    fixture.driver.settle(&mut changes).await;
    assert_eq!(begun.elapsed(), Duration::ZERO, "there is no pod");

    fixture.statuses.expect(&web_pod("uid-a", true));
    let seen = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fixture.run_pod(true);
    };
    tokio::join!(fixture.driver.settle(&mut changes), seen);
    assert_eq!(begun.elapsed(), Duration::from_secs(1));

    fixture.statuses.expect(&web_pod("uid-b", true));
    fixture.driver.settle(&mut changes).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(1) + INHERITED, "it may never come");
}
