use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(name: &str, cluster_ip: &str) -> ServiceSpec {
    ServiceSpec {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        cluster_ips: vec![ip(cluster_ip)],
        families: vec![family_of(ip(cluster_ip))],
        ports: vec![port(80, 0)],
        ..ServiceSpec::default()
    }
}

fn port(number: u16, node_port: u16) -> ServicePort {
    ServicePort { port: number, node_port, ..ServicePort::default() }
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint::ready(ip(address), true)
}

fn entry(service: ServiceSpec, endpoints: Vec<Endpoint>) -> Rc<Entry> {
    let ports = service.ports.iter().map(|port| super::super::spec::SlicePort {
        name: port.name.clone(),
        protocol: port.protocol,
        port: 8080,
        app_protocol: None,
    });
    let family = service.families[0];
    let slices = vec![Slice { family, ports: ports.collect(), endpoints }];
    Rc::new(Entry { service: Rc::new(service), slices })
}

fn node() -> NodeNetwork {
    NodeNetwork {
        table: "agent0-services".to_owned(),
        link: "svc-agent0".to_owned(),
        ranges: vec!["10.96.0.0/16".parse().unwrap(), "fd00:96::/112".parse().unwrap()],
        routes_loopback: true,
        ..NodeNetwork::default()
    }
}

/// The places of a family with their targets, one a line.
fn places(entries: &[Rc<Entry>], node: &NodeNetwork) -> Vec<String> {
    let shown = |(place, frontend): (&Place, &Frontend)| {
        let place = match place {
            Place::Address(ip, protocol, port) => format!("{ip} {} {port}", protocol.as_str()),
            Place::Node(protocol, port) => format!("node {} {port}", protocol.as_str()),
        };
        let targets: Vec<String> = frontend.targets.iter().map(|(ip, port)| format!("{ip}:{port}")).collect();
        format!("{place} -> {}", targets.join(" "))
    };
    frontends(Family::Ipv4, entries, node).places.iter().map(shown).collect()
}

/// A value of the kernel's in figures: addresses and ports as they are written.
fn value(bytes: &[u8], types: &[DataType]) -> String {
    let (mut at, mut parts) = (0, Vec::new());
    for kind in types {
        let part = match kind {
            DataType::Ipv4Address => {
                <[u8; 4]>::try_from(&bytes[at..at + 4]).map(|it| IpAddr::from(it).to_string()).unwrap()
            }
            DataType::Ipv6Address => {
                <[u8; 16]>::try_from(&bytes[at..at + 16]).map(|it| IpAddr::from(it).to_string()).unwrap()
            }
            DataType::Protocol => bytes[at].to_string(),
            DataType::Port => u16::from_be_bytes([bytes[at], bytes[at + 1]]).to_string(),
            DataType::Number => format!("#{}", u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())),
        };
        at += if *kind == DataType::Ipv6Address { 16 } else { 4 };
        parts.push(part);
    }
    assert_eq!(at, bytes.len());
    parts.join(" ")
}

fn maps(table: &Table) -> Vec<String> {
    let mut lines = Vec::new();
    for map in &table.maps {
        let dynamic = if map.is_dynamic { " dynamic" } else { "" };
        lines.push(format!("{}{dynamic}", map.name));
        for (key, data) in &map.elements {
            let data =
                if data.is_empty() { String::new() } else { format!(" -> {}", value(data, &map.data)) };
            lines.push(format!("  {}{data}", value(key, &map.key)));
        }
    }
    lines
}

fn tables(entries: &[Rc<Entry>], node: &NodeNetwork) -> [Table; 2] {
    [Family::Ipv4, Family::Ipv6].map(|family| table(family, &frontends(family, entries, node), node))
}

fn rules(table: &Table, chain: &str) -> usize {
    table.chains.iter().find(|it| it.name == chain).unwrap().rules.len()
}

#[test]
fn frontends_of_all_types_lead_to_their_endpoints() {
    let mut web = service("web", "10.96.1.1");
    web.kind = ServiceType::LoadBalancer;
    web.ports = vec![port(80, 30_080)];
    web.external_ips = vec![ip("203.0.113.7"), ip("2001:db8::7")];
    let headless = ServiceSpec { cluster_ips: Vec::new(), ..service("db", "10.96.1.2") };
    let none = entry(service("none", "10.96.1.3"), Vec::new());
    let entries = [
        entry(web, vec![endpoint("10.86.0.3"), endpoint("10.86.0.2")]),
        entry(headless, vec![endpoint("10.86.0.4")]),
        none,
    ];
    let both = "10.86.0.2:8080 10.86.0.3:8080";
    assert_eq!(
        places(&entries, &node()),
        [
            format!("10.96.1.1 TCP 80 -> {both}"),
            "10.96.1.3 TCP 80 -> ".to_owned(),
            format!("203.0.113.7 TCP 80 -> {both}"),
            format!("node TCP 80 -> {both}"),
            format!("node TCP 30080 -> {both}"),
        ]
    );
    let [four, six] = tables(&entries, &node());
    assert_eq!(
        maps(&four),
        [
            "refused-at",
            "  10.96.1.3 6 80",
            "at-2",
            "  10.96.1.1 6 80 #0 -> 10.86.0.2 8080",
            "  10.96.1.1 6 80 #1 -> 10.86.0.3 8080",
            "  203.0.113.7 6 80 #0 -> 10.86.0.2 8080",
            "  203.0.113.7 6 80 #1 -> 10.86.0.3 8080",
            "on-node-2",
            "  6 80 #0 -> 10.86.0.2 8080",
            "  6 80 #1 -> 10.86.0.3 8080",
            "  6 30080 #0 -> 10.86.0.2 8080",
            "  6 30080 #1 -> 10.86.0.3 8080",
        ]
    );
    assert_eq!(maps(&six), [] as [&str; 0], "it is of one family");
}

#[test]
fn one_target_needs_no_number_and_ipv6_has_its_own_table() {
    let entries = [entry(service("six", "fd00:96::15"), vec![endpoint("fd00::2")])];
    let [four, six] = tables(&entries, &node());
    assert_eq!(maps(&six), ["at-1", "  fd00:96::15 6 80 -> fd00::2 8080"]);
    assert!(four.maps.is_empty());
    let output = &six.chains.iter().find(|chain| chain.name == "services-out").unwrap().rules[0];
    assert_eq!(
        output[4..],
        [Expression::Lookup("at-1".into(), 12, Some(18)), Expression::DestinationNat(Family::Ipv6, 18, 22),]
    );
}

#[test]
fn ready_endpoints_come_first_then_those_that_end() {
    let unready = Endpoint { ready: false, serving: false, ..endpoint("10.86.0.9") };
    let ending = Endpoint { ready: false, terminating: true, ..endpoint("10.86.0.8") };
    let all = vec![endpoint("10.86.0.2"), unready.clone(), ending.clone()];
    let found = |endpoints| places(&[entry(service("web", "10.96.1.1"), endpoints)], &node());
    assert_eq!(found(all), ["10.96.1.1 TCP 80 -> 10.86.0.2:8080"]);
    assert_eq!(found(vec![unready.clone(), ending]), ["10.96.1.1 TCP 80 -> 10.86.0.8:8080"]);
    assert_eq!(found(vec![unready]), ["10.96.1.1 TCP 80 -> "]);
}

#[test]
fn local_policies_leave_other_machines_out() {
    let remote = Endpoint::ready(ip("10.0.0.5"), false);
    let mut web = service("web", "10.96.1.1");
    web.kind = ServiceType::NodePort;
    web.ports = vec![port(80, 30_080)];
    let found = |service: &ServiceSpec| {
        places(&[entry(service.clone(), vec![endpoint("10.86.0.2"), remote.clone()])], &node())
    };
    let (both, own) = ("10.0.0.5:8080 10.86.0.2:8080", "10.86.0.2:8080");
    assert_eq!(found(&web), [format!("10.96.1.1 TCP 80 -> {both}"), format!("node TCP 30080 -> {both}")]);
    web.is_external_local = true;
    assert_eq!(found(&web), [format!("10.96.1.1 TCP 80 -> {both}"), format!("node TCP 30080 -> {own}")]);
    web.is_internal_local = true;
    assert_eq!(found(&web), [format!("10.96.1.1 TCP 80 -> {own}"), format!("node TCP 30080 -> {own}")]);
}

#[test]
fn targets_elsewhere_and_pods_of_other_networks_are_masqueraded() {
    let remote = Endpoint::ready(ip("10.0.0.5"), false);
    let entries = [entry(service("plc", "10.96.1.1"), vec![remote])];
    let [table, _] = tables(&entries, &node());
    assert_eq!(maps(&table)[2..], ["remote", "  10.0.0.5 6 8080"]);
    assert_eq!(rules(&table, "masquerade"), 1);
    let foreign = NodeNetwork { foreign_pods: [ip("10.244.0.3"), ip("fd01::3")].into(), ..node() };
    let [table, six] = tables(&entries, &foreign);
    assert_eq!(maps(&table)[4..], ["pods", "  10.244.0.3"]);
    assert_eq!((rules(&table, "masquerade"), rules(&six, "masquerade")), (2, 1));
}

#[test]
fn affinity_has_a_map_per_timeout_that_outlives_its_rules() {
    let sticky = ServiceSpec { affinity: Some(10_800), ..service("web", "10.96.1.1") };
    let short = ServiceSpec { affinity: Some(60), ..service("short", "10.96.1.2") };
    let endpoints = || vec![endpoint("10.86.0.2"), endpoint("10.86.0.3")];
    let entries = [entry(sticky, endpoints()), entry(short, endpoints())];
    let [table, _] = tables(&entries, &node());
    let dynamic: Vec<&str> =
        table.maps.iter().filter(|map| map.is_dynamic).map(|map| map.name.as_ref()).collect();
    assert_eq!(dynamic, ["affinity-60", "affinity-10800"]);
    let chain = table.chains.iter().find(|chain| chain.name == "services-in").unwrap();
    // One for known clients of each timeout; for others one that remembers, and one for when the map is full.
    assert_eq!(chain.rules.len(), 6);
    assert!(chain.rules[0].contains(&Expression::Remember("affinity-60".into(), 8, 12, 60)));

    let frontends = frontends(Family::Ipv4, &entries, &node());
    let element = |client: u8, service: [u8; 4], target: u8| {
        let key = [&[10, 86, 0, client][..], &service, &[6, 0, 0, 0, 0, 80, 0, 0]].concat();
        (key, vec![10, 86, 0, target, 0x1f, 0x90, 0, 0])
    };
    let elements =
        [element(9, [10, 96, 1, 1], 2), element(9, [10, 96, 1, 1], 7), element(9, [10, 96, 1, 2], 2)];
    assert_eq!(stale(Family::Ipv4, &frontends, 10_800, elements.iter()), elements[1..]);
    assert_eq!(stale(Family::Ipv4, &frontends, 60, elements.iter()), elements[..2]);
}

#[test]
fn affinity_of_node_ports_holds_at_every_address() {
    let mut web =
        ServiceSpec { affinity: Some(60), kind: ServiceType::NodePort, ..service("web", "10.96.1.1") };
    web.ports = vec![port(80, 30_080)];
    let frontends = frontends(Family::Ipv4, &[entry(web, vec![endpoint("10.86.0.2")])], &node());
    let port = 30_080_u16.to_be_bytes();
    let key = [&[192, 0, 2, 1, 192, 0, 2, 200][..], &[6, 0, 0, 0], &port, &[0, 0]].concat();
    let good = (key.clone(), vec![10, 86, 0, 2, 0x1f, 0x90, 0, 0]);
    let bad = (key, vec![10, 86, 0, 3, 0x1f, 0x90, 0, 0]);
    assert_eq!(stale(Family::Ipv4, &frontends, 60, [&good, &bad].into_iter()), std::slice::from_ref(&bad));
}

#[test]
fn a_load_balancer_gets_a_port_that_is_free() {
    let balancer = |name: &str, cluster_ip: &str, number: u16, node_port: u16| {
        let mut service = ServiceSpec { kind: ServiceType::LoadBalancer, ..service(name, cluster_ip) };
        service.ports = vec![port(number, node_port)];
        entry(service, vec![endpoint("10.86.0.2")])
    };
    // The second wants the first's node port, the third the first's port, the last one that a pod has.
    let entries = [
        balancer("a", "10.96.1.1", 80, 30_080),
        balancer("b", "10.96.1.2", 30_080, 0),
        balancer("c", "10.96.1.3", 80, 0),
        balancer("d", "10.96.1.4", 443, 0),
    ];
    let node = NodeNetwork { claimed: [("uid-d".to_owned(), Protocol::Tcp, 443)].into(), ..node() };
    let found = frontends(Family::Ipv4, &entries, &node);
    let lost: Vec<(&str, u16)> = found.conflicts.iter().map(|it| (it.service.as_str(), it.port)).collect();
    assert_eq!(lost, [("b", 30_080), ("c", 80), ("d", 443)]);
    let on_node: Vec<&Place> = found.places.keys().filter(|place| matches!(place, Place::Node(..))).collect();
    assert_eq!(on_node, [&Place::Node(Protocol::Tcp, 80), &Place::Node(Protocol::Tcp, 30_080)]);
}

#[test]
fn clients_beyond_the_source_ranges_are_dropped_from_outside() {
    let mut web = ServiceSpec { kind: ServiceType::LoadBalancer, ..service("web", "10.96.1.1") };
    web.source_ranges = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
    let [table, _] = tables(&[entry(web, vec![endpoint("10.86.0.2")])], &node());
    let of = |name: &str| table.chains.iter().find(|chain| chain.name == name).unwrap().rules.clone();
    let (inward, outward) = (of("services-in"), of("services-out"));
    assert_eq!(inward[0].last(), Some(&Expression::Drop));
    assert!(inward[0].contains(&Expression::NotEqual(vec![192, 0, 2, 0])));
    assert!(!inward[0].iter().any(|it| matches!(it, Expression::NotEqual(value) if value.len() == 16)));
    assert_eq!(inward.len(), outward.len() + 1);
}

#[test]
fn loopback_is_left_alone_where_pods_cannot_answer_it() {
    let mut web = ServiceSpec { kind: ServiceType::NodePort, ..service("web", "10.96.1.1") };
    web.ports = vec![port(80, 30_080)];
    let entries = [entry(web, vec![endpoint("10.86.0.2")])];
    let spares = |node: &NodeNetwork| {
        let [table, _] = tables(&entries, node);
        let chain = table.chains.iter().find(|chain| chain.name == "services-out").unwrap();
        chain.rules.iter().flatten().any(|it| *it == Expression::NotEqual(vec![127, 0, 0, 0]))
    };
    assert!(!spares(&node()) && spares(&NodeNetwork { routes_loopback: false, ..node() }));
}

#[test]
fn two_hundred_services_are_few_rules_and_made_in_no_time() {
    let entries: Vec<Rc<Entry>> = (0..200_u8)
        .map(|number| {
            let service = service(&format!("s{number}"), &format!("10.96.2.{number}"));
            entry(
                service,
                vec![endpoint(&format!("10.86.0.{number}")), endpoint(&format!("10.86.1.{number}"))],
            )
        })
        .collect();
    let started = std::time::Instant::now();
    let [table, _] = tables(&entries, &node());
    let took = started.elapsed();
    assert_eq!((rules(&table, "services-in"), table.maps[0].elements.len()), (1, 400));
    assert!(took < std::time::Duration::from_millis(100), "{took:?}, of a build that is not optimised");
}

prop_compose! {
    fn any_entry()(
        number in 0_u8..20,
        kind in 0..3_usize,
        node_port in prop_oneof![Just(0_u16), 30_000_u16..30_004],
        affinity in prop_oneof![Just(None), Just(Some(60)), Just(Some(10_800))],
        endpoints in proptest::collection::vec((2_u8..9, any::<bool>(), any::<bool>(), any::<bool>()), 0..5),
    ) -> Rc<Entry> {
        let mut service = service(&format!("s{number}"), &format!("10.96.2.{number}"));
        service.kind = [ServiceType::ClusterIp, ServiceType::NodePort, ServiceType::LoadBalancer][kind];
        service.affinity = affinity;
        service.ports = vec![port(80, node_port)];
        let endpoints = endpoints.into_iter().map(|(last, ready, terminating, is_local)| Endpoint {
            ready,
            terminating,
            ..Endpoint::ready(ip(&format!("10.86.0.{last}")), is_local)
        });
        let endpoints = endpoints.collect();
        entry(service, endpoints)
    }
}

proptest! {
    #[test]
    fn every_rule_finds_its_map_and_every_key_is_there_once(entries in proptest::collection::vec(any_entry(), 0..12)) {
        let found = frontends(Family::Ipv4, &entries, &node());
        let table = table(Family::Ipv4, &found, &node());
        let mut keys: std::collections::BTreeSet<(bool, Vec<u8>)> = std::collections::BTreeSet::new();
        for map in table.maps.iter().filter(|map| map.name.starts_with("at-") || map.name.starts_with("on-node-")) {
            for (key, _) in &map.elements {
                prop_assert!(keys.insert((map.name.starts_with("at-"), key.clone())));
            }
        }
        let targets: usize = found.places.values().map(|frontend| frontend.targets.len()).sum();
        prop_assert_eq!(keys.len(), targets);
        for expression in table.chains.iter().flat_map(|chain| &chain.rules).flatten() {
            if let Expression::Lookup(name, ..) | Expression::Remember(name, ..) = expression {
                prop_assert!(table.maps.iter().any(|map| map.name == *name), "{}", name);
            }
        }
        prop_assert_eq!(&table, &super::table(Family::Ipv4, &frontends(Family::Ipv4, &entries, &node()), &node()));
    }
}
