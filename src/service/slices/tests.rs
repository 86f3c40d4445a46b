use super::*;
use crate::model::types::Timestamp;
use crate::platform::sys::netlink::nftables::Family;

fn service() -> ServiceSpec {
    ServiceSpec {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "uid-web".to_owned(),
        created: Timestamp::from_secs(60),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        cluster_ips: vec!["10.96.1.1".parse().unwrap()],
        families: vec![Family::Ipv4],
        ..ServiceSpec::default()
    }
}

fn endpoint(address: &str, pod: &str, ready: bool, terminating: bool) -> Endpoint {
    Endpoint {
        ready,
        terminating,
        pod: Some((pod.to_owned(), format!("uid-{pod}"))),
        ..Endpoint::ready(address.parse().unwrap(), true)
    }
}

fn slice(port: u16, endpoints: Vec<Endpoint>) -> Slice {
    let ports = vec![SlicePort { name: "http".to_owned(), port, ..SlicePort::default() }];
    Slice { family: Family::Ipv4, ports, endpoints }
}

fn shown(objects: &BTreeMap<ObjectKey, Rc<LocalObject>>) -> Vec<Value> {
    objects.values().map(|object| wire::to_value(object, wire::Values::Shown)).collect()
}

#[test]
fn a_slice_is_as_the_controller_writes_it() {
    let slices = [slice(8080, vec![endpoint("10.86.0.2", "a", true, false)])];
    let objects = slice_objects(&service(), &slices, Writer::Selector, "box");
    let mut found = shown(&objects).remove(0);
    let name = found["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    found["metadata"].as_object_mut().unwrap().retain(|field, _| !matches!(field.as_str(), "name" | "uid"));
    assert_eq!(
        found,
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "shop",
                "creationTimestamp": "1970-01-01T00:01:00Z",
                "generation": 1,
                "labels": {
                    "team": "a",
                    "kubernetes.io/service-name": "web",
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
                "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "uid-web",
                    "controller": true, "blockOwnerDeletion": true}],
            },
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": ["10.86.0.2"],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": "box",
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": "a", "uid": "uid-a"},
            }],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        })
    );
}

#[test]
fn names_stay_while_endpoints_change() {
    let name = |slices: &[Slice]| {
        let objects = slice_objects(&service(), slices, Writer::Selector, "box");
        objects.keys().map(|key| key.name.clone()).collect::<Vec<_>>()
    };
    let one = name(&[slice(80, Vec::new())]);
    assert_eq!(name(&[slice(80, vec![endpoint("10.86.0.2", "a", true, false)])]), one);
    assert_ne!(name(&[slice(81, Vec::new())]), one);
    assert_eq!(name(&[slice(80, Vec::new()), slice(80, Vec::new())]).len(), 2, "two with the same ports");
}

#[test]
fn endpoints_are_grouped_by_ports_and_readiness() {
    let slices = [
        slice(80, vec![endpoint("10.86.0.2", "a", true, false), endpoint("10.86.0.3", "b", false, false)]),
        slice(81, vec![endpoint("10.86.0.4", "c", false, true)]),
        Slice { family: Family::Ipv6, ..slice(80, vec![endpoint("fd00::2", "a", true, false)]) },
    ];
    let (key, object) = endpoints_object(&service(), &slices, "box");
    assert_eq!((key.kind, key.name.as_str()), (ObjectKind::Endpoints, "web"));
    let target =
        |name: &str| json!({"kind": "Pod", "namespace": "shop", "name": name, "uid": format!("uid-{name}")});
    assert_eq!(
        object.content.body()["subsets"],
        json!([{
            "addresses": [{"ip": "10.86.0.2", "nodeName": "box", "targetRef": target("a")}],
            "notReadyAddresses": [{"ip": "10.86.0.3", "nodeName": "box", "targetRef": target("b")}],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        }])
    );
    assert_eq!(object.labels["endpoints.kubernetes.io/managed-by"], "endpoint-controller");
    let (_, none) = endpoints_object(&service(), &[], "box");
    assert_eq!(none.content.body(), json!({}));
}

#[test]
fn a_load_balancer_is_at_the_nodes_addresses() {
    let ips = ["192.0.2.1".to_owned(), "2001:db8::1".to_owned()];
    let shown = |spec: Value| {
        let mut service = json!({"spec": spec});
        show_status(&mut service, &ips);
        service["status"]["loadBalancer"].clone()
    };
    assert_eq!(
        shown(json!({"type": "LoadBalancer", "ipFamilies": ["IPv4"]})),
        json!({"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]})
    );
    assert_eq!(
        shown(json!({"type": "LoadBalancer", "ipFamilies": ["IPv4"], "loadBalancerClass": "a.b/c"})),
        json!({})
    );
    assert_eq!(shown(json!({"type": "NodePort", "ipFamilies": ["IPv4"]})), json!({}));
}
