use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;

fn pod(name: &str, edit: Value) -> Pod {
    let mut value = json!({
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}"), "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {
            "phase": "Running",
            "podIP": "10.86.0.2",
            "podIPs": [{"ip": "10.86.0.2"}, {"ip": "fd00::2"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    merge(&mut value, edit);
    decode::<Pod>(value).unwrap().object
}

fn merge(value: &mut Value, edit: Value) {
    match (value, edit) {
        (Value::Object(members), Value::Object(edit)) => {
            for (name, edit) in edit {
                merge(members.entry(name).or_insert(Value::Null), edit);
            }
        }
        (value, edit) => *value = edit,
    }
}

fn service(ports: Vec<ServicePort>) -> ServiceSpec {
    ServiceSpec {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        selector: Some([("app".to_owned(), "web".to_owned())].into()),
        ports,
        families: vec![Family::Ipv4],
        ..ServiceSpec::default()
    }
}

fn number(port: u16) -> ServicePort {
    ServicePort { port: 80, target: Target::Number(port), ..ServicePort::default() }
}

fn named(name: &str) -> ServicePort {
    ServicePort { port: 80, target: Target::Name(name.to_owned()), ..ServicePort::default() }
}

/// Each slice on a line: its ports, then address, ready, serving, terminating of each endpoint.
fn lines(service: &ServiceSpec, pods: &[Pod]) -> Vec<String> {
    let pods: Vec<(&Pod, &PodStatus)> = pods.iter().map(|pod| (pod, &pod.status)).collect();
    let flag = |is: bool, letter: &'static str| if is { letter } else { "-" };
    let endpoint = |it: &Endpoint| {
        let flags = [flag(it.ready, "r"), flag(it.serving, "s"), flag(it.terminating, "t")].concat();
        format!(
            "{} {flags}{}",
            it.address,
            it.hostname.as_ref().map_or(String::new(), |name| format!(" {name}"))
        )
    };
    let slice = |slice: &Slice| {
        let ports: Vec<String> = slice.ports.iter().map(|port| port.port.to_string()).collect();
        let endpoints: Vec<String> = slice.endpoints.iter().map(endpoint).collect();
        format!("{}: {}", ports.join(","), endpoints.join(", "))
    };
    slices(service, &pods).iter().map(slice).collect()
}

#[test]
fn pods_count_as_upstream_counts_them() {
    let of = |edit: Value| lines(&service(vec![number(8080)]), &[pod("a", edit)]);
    let one = |text: &str| vec![format!("8080: {text}")];
    let none = vec![": ".to_owned()];
    assert_eq!(of(json!({})), one("10.86.0.2 rs-"));
    assert_eq!(
        of(json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})),
        one("10.86.0.2 ---")
    );
    let ending = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert_eq!(of(ending), one("10.86.0.2 -st"));
    assert_eq!(of(json!({"status": {"phase": "Failed"}})), none);
    assert_eq!(of(json!({"status": {"phase": "Succeeded"}})), none);
    assert_eq!(of(json!({"status": {"podIP": "", "podIPs": []}})), none);
    assert_eq!(of(json!({"metadata": {"labels": {"app": "other"}}})), none);
    assert_eq!(of(json!({"metadata": {"namespace": "other"}})), none);
    let early = ServiceSpec { publishes_not_ready: true, ..service(vec![number(8080)]) };
    let unready = pod("a", json!({"status": {"conditions": []}}));
    assert_eq!(lines(&early, &[unready]), one("10.86.0.2 r--"));
}

#[test]
fn named_ports_may_differ_between_pods() {
    let other = json!({"spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 9090}]}]},
        "status": {"podIPs": [{"ip": "10.86.0.3"}]}});
    let sidecar = json!({"spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "s", "restartPolicy": "Always",
        "ports": [{"name": "http", "containerPort": 7070}]}]}, "status": {"podIPs": [{"ip": "10.86.0.4"}]}});
    let without =
        json!({"spec": {"containers": [{"name": "c"}]}, "status": {"podIPs": [{"ip": "10.86.0.5"}]}});
    let udp = json!({"spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 53, "protocol": "UDP"}]}]},
        "status": {"podIPs": [{"ip": "10.86.0.6"}]}});
    let pods = [pod("a", json!({})), pod("b", other), pod("c", sidecar), pod("d", without), pod("e", udp)];
    assert_eq!(
        lines(&service(vec![named("http")]), &pods),
        [
            ": 10.86.0.5 rs-, 10.86.0.6 rs-",
            "7070: 10.86.0.4 rs-",
            "8080: 10.86.0.2 rs-",
            "9090: 10.86.0.3 rs-"
        ]
    );
}

#[test]
fn families_names_and_types_decide_what_there_is() {
    let both = ServiceSpec { families: vec![Family::Ipv4, Family::Ipv6], ..service(vec![number(80)]) };
    let pods = [pod("a", json!({"spec": {"hostname": "one", "subdomain": "web"}}))];
    assert_eq!(lines(&both, &pods), ["80: 10.86.0.2 rs- one", "80: fd00::2 rs- one"]);
    let elsewhere = [pod("a", json!({"spec": {"hostname": "one", "subdomain": "db"}}))];
    assert_eq!(lines(&service(vec![number(80)]), &elsewhere), ["80: 10.86.0.2 rs-"]);
    let name = ServiceSpec { kind: ServiceType::ExternalName, ..both };
    assert_eq!(lines(&name, &pods), [] as [&str; 0]);
    assert_eq!(lines(&service(Vec::new()), &pods), [": 10.86.0.2 rs- one"], "headless without ports");
}

#[test]
fn a_slice_holds_a_hundred_endpoints() {
    let pods: Vec<Pod> = (0..230)
        .map(|number| {
            let ip = format!("10.86.{}.{}", number / 200, number % 200 + 1);
            pod(&format!("p{number:03}"), json!({"status": {"podIPs": [{"ip": ip}]}}))
        })
        .collect();
    let pods: Vec<(&Pod, &PodStatus)> = pods.iter().map(|pod| (pod, &pod.status)).collect();
    let sizes: Vec<usize> =
        slices(&service(vec![number(80)]), &pods).iter().map(|slice| slice.endpoints.len()).collect();
    assert_eq!(sizes, [100, 100, 30]);
}
