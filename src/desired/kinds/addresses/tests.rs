#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::desired::kinds::rules;
use crate::model::objects::wire;

fn ranges(texts: &[&str]) -> ServiceRanges {
    let cidrs = texts.iter().map(|text| text.parse().unwrap()).collect();
    ServiceRanges { cidrs, node_ports: (30_000, 32_767) }
}

fn both() -> ServiceRanges {
    ranges(&["10.96.0.0/16", "fd00:10:96::/112"])
}

fn single() -> ServiceRanges {
    ranges(&["10.96.0.0/16"])
}

/// A Service with its defaults.
fn service(name: &str, spec: Value) -> LocalObject {
    let key = ObjectKey { kind: ObjectKind::Service, namespace: "shop".to_owned(), name: name.to_owned() };
    let mut body = json!({ "spec": spec });
    (rules(ObjectKind::Service).defaults)(&mut body);
    wire::plain_object(key, PlainBody::new(&body))
}

fn spec(object: &LocalObject) -> Value {
    object.content.body()["spec"].clone()
}

/// The Service with what it is given, or the errors.
fn given(
    object: LocalObject,
    old: Option<&LocalObject>,
    taken: &Taken,
    ranges: &ServiceRanges,
) -> Result<Value, String> {
    let mut object = object;
    let errors = assign(&mut object, old, taken, ranges);
    if errors.is_empty() {
        return Ok(spec(&object));
    }
    Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

fn web() -> Value {
    json!({"ports": [{"port": 80}]})
}

fn with(edit: Value) -> Value {
    let mut spec = web();
    for (name, value) in edit.as_object().unwrap() {
        spec[name] = value.clone();
    }
    spec
}

#[test]
fn ranges_are_read_and_bad_ones_are_named() {
    assert_eq!(cidrs("").unwrap(), []);
    assert_eq!(cidrs("10.96.0.0/16, fd00:10:96::/112").unwrap().len(), 2);
    for (text, why) in [
        ("10.96.0.0", "is not a range"),
        ("10.0.0.0/4", "length must be 8 to 27"),
        ("fd00::/48", "length must be 8 to 27 (IPv4) or 64 to 122"),
        ("10.96.0.0/16,10.97.0.0/16", "at most one range of each"),
    ] {
        let error = cidrs(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert_eq!(port_range("30000-32767"), Ok((30_000, 32_767)));
    for text in ["", "30000", "32767-30000", "0-10", "1-70000", "a-b"] {
        assert!(port_range(text).is_err(), "{text}");
    }
}

#[test]
fn a_service_gets_an_address_that_depends_on_its_name_alone() {
    let taken = Taken::by(std::iter::empty(), &single());
    let one = given(service("web", web()), None, &taken, &single()).unwrap();
    let ip: IpAddr = one["clusterIP"].as_str().unwrap().parse().unwrap();
    assert!(single().cidrs[0].contains(ip));
    assert_eq!(one["clusterIPs"], json!([ip.to_string()]));
    assert_eq!((&one["ipFamilies"], &one["ipFamilyPolicy"]), (&json!(["IPv4"]), &json!("SingleStack")));
    assert_eq!(given(service("web", web()), None, &taken, &single()).unwrap(), one);
    assert_ne!(
        given(service("other", web()), None, &taken, &single()).unwrap()["clusterIP"],
        one["clusterIP"]
    );
    // Where its place is taken, the next one is free.
    let first = service("first", with(json!({"clusterIP": ip.to_string()})));
    let taken = Taken::by([&first].into_iter(), &single());
    let moved = given(service("web", web()), None, &taken, &single()).unwrap();
    assert_ne!(moved["clusterIP"], one["clusterIP"]);
}

#[test]
fn families_are_chosen_as_upstream_chooses_them() {
    let of = |edit: Value, ranges: &ServiceRanges| {
        let taken = Taken::by(std::iter::empty(), ranges);
        given(service("web", with(edit)), None, &taken, ranges).map(|spec| {
            let policy = spec["ipFamilyPolicy"].as_str().unwrap().to_owned();
            let families: Vec<&str> = items(&spec["ipFamilies"]).map(text).collect();
            format!("{policy} {} {}", families.join(","), items(&spec["clusterIPs"]).count())
        })
    };
    assert_eq!(of(json!({}), &both()).unwrap(), "SingleStack IPv4 1");
    assert_eq!(of(json!({"ipFamilies": ["IPv6"]}), &both()).unwrap(), "SingleStack IPv6 1");
    assert_eq!(
        of(json!({"ipFamilyPolicy": "PreferDualStack"}), &both()).unwrap(),
        "PreferDualStack IPv4,IPv6 2"
    );
    assert_eq!(
        of(json!({"ipFamilyPolicy": "PreferDualStack"}), &single()).unwrap(),
        "PreferDualStack IPv4 1"
    );
    let six_first = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]});
    assert_eq!(of(six_first, &both()).unwrap(), "RequireDualStack IPv6,IPv4 2");
    assert_eq!(of(json!({"clusterIP": "fd00:10:96::77"}), &both()).unwrap(), "SingleStack IPv6 1");
    assert_eq!(of(json!({"clusterIP": "None"}), &both()).unwrap(), "RequireDualStack IPv4,IPv6 1");
    assert_eq!(
        of(json!({"clusterIP": "None", "selector": {"a": "b"}}), &both()).unwrap(),
        "SingleStack IPv4 1"
    );
    for (edit, why) in [
        (
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
        ),
        (
            json!({"ipFamilies": ["IPv6"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({"ipFamilies": ["IPv4", "IPv6"]}),
            "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
        ),
    ] {
        let error = of(edit, &single()).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn addresses_that_cannot_be_had_are_refused_in_upstreams_words() {
    let first = service("first", with(json!({"clusterIP": "10.96.7.7"})));
    let taken = Taken::by([&first].into_iter(), &single());
    let of = |ip: &str| given(service("web", with(json!({"clusterIP": ip}))), None, &taken, &single());
    assert!(of("10.96.7.8").is_ok());
    for (ip, why) in [
        ("10.96.7.7", "provided IP is already allocated"),
        ("10.96.0.1", "provided IP is already allocated"),
        ("10.96.0.10", "provided IP is already allocated"),
        (
            "10.97.0.1",
            "the provided IP (10.97.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16",
        ),
    ] {
        let error = of(ip).unwrap_err();
        assert_eq!(
            error,
            format!("spec.clusterIPs: Invalid value: [\"{ip}\"]: failed to allocate IP {ip}: {why}")
        );
    }
}

#[test]
fn node_ports_are_given_kept_and_refused() {
    let taken = Taken::by(std::iter::empty(), &single());
    let node_port = json!({"type": "NodePort", "ports": [
        {"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]});
    let made = given(service("web", node_port.clone()), None, &taken, &single()).unwrap();
    let ports: Vec<u64> = items(&made["ports"]).filter_map(|port| port["nodePort"].as_u64()).collect();
    assert_eq!(ports.len(), 3);
    assert!(
        ports.iter().all(|port| (30_086..=32_767).contains(port)),
        "{ports:?}: the first ones are for those who ask"
    );
    assert_eq!(ports[1], ports[2], "one port, two protocols");
    assert_ne!(ports[0], ports[1]);
    // A client that leaves them out keeps them.
    let old = service("web", made.clone());
    let again =
        given(service("web", node_port), Some(&old), &Taken::by([&old].into_iter(), &single()), &single());
    assert_eq!(again.unwrap(), made);
    // Another Service cannot have them.
    let taken = Taken::by([&old].into_iter(), &single());
    let ask = |port: u64| {
        let spec = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
        given(service("other", spec), None, &taken, &single())
    };
    assert_eq!(ask(30_001).unwrap()["ports"][0]["nodePort"], 30_001);
    for (port, why) in [
        (ports[0], "provided port is already allocated"),
        (80, "provided port is not in the valid range. The range of valid ports is 30000-32767"),
    ] {
        assert_eq!(ask(port).unwrap_err(), format!("spec.ports[0].nodePort: Invalid value: {port}: {why}"));
    }
}

#[test]
fn load_balancers_may_do_without_node_ports() {
    let taken = Taken::by(std::iter::empty(), &single());
    let of = |edit: Value| {
        let mut spec = with(edit);
        spec["type"] = json!("LoadBalancer");
        given(service("web", spec), None, &taken, &single()).unwrap()
    };
    assert!(of(json!({}))["ports"][0]["nodePort"].is_u64());
    assert!(of(json!({"allocateLoadBalancerNodePorts": false}))["ports"][0]["nodePort"].is_null());
    let local = of(json!({"externalTrafficPolicy": "Local"}));
    assert!(
        local["healthCheckNodePort"].is_u64()
            && local["healthCheckNodePort"] != local["ports"][0]["nodePort"]
    );
}

#[test]
fn an_external_name_gives_up_its_addresses() {
    let taken = Taken::by(std::iter::empty(), &single());
    let old = service("web", given(service("web", web()), None, &taken, &single()).unwrap());
    let mut new = spec(&old);
    new["type"] = json!("ExternalName");
    new["externalName"] = json!("example.com");
    let made = given(service("web", new), Some(&old), &taken, &single()).unwrap();
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert!(made[field].is_null(), "{field}");
    }
}

#[test]
fn a_full_range_says_so() {
    let tiny = ranges(&["10.96.0.0/27"]);
    let mut taken = Taken::by(std::iter::empty(), &tiny);
    let mut found = 0;
    let error = loop {
        let mut object = service(&format!("s{found}"), web());
        let errors = assign(&mut object, None, &taken, &tiny);
        if let Some(error) = errors.first() {
            break error.to_string();
        }
        taken.add(&object);
        found += 1;
    };
    assert_eq!(error, "spec.clusterIPs: Invalid value: []: failed to allocate IP: range is full");
    assert_eq!(
        found, 15,
        "half of the range is for Services that name their address; its last address is none"
    );
}

proptest! {
    #[test]
    fn no_two_services_ever_have_the_same(names in proptest::collection::btree_set("[a-z]{1,6}", 1..40)) {
        let ranges = both();
        let mut taken = Taken::by(std::iter::empty(), &ranges);
        let (mut ips, mut ports) = (BTreeSet::new(), BTreeSet::new());
        for name in names {
            let spec = json!({"type": "NodePort", "ipFamilyPolicy": "PreferDualStack", "ports": [{"port": 80}]});
            let mut object = service(&name, spec);
            prop_assert_eq!(assign(&mut object, None, &taken, &ranges), []);
            let made = super::tests::spec(&object);
            for ip in items(&made["clusterIPs"]) {
                prop_assert!(ips.insert(ip.to_string()));
            }
            prop_assert!(ports.insert(made["ports"][0]["nodePort"].as_u64()));
            // It keeps all of it.
            let mut again = object.clone();
            taken.add(&object);
            prop_assert_eq!(assign(&mut again, Some(&object), &taken, &ranges), []);
            prop_assert_eq!(&again, &object);
        }
    }
}
