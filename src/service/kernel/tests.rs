//! Nodes and pods are network namespaces of their own; no node has a default route.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::*;
use crate::runtime::embedded::network::tests::{Host, Pod, at, cable, call, listen, sh};
use crate::service::spec::{
    Endpoint, Protocol, ServicePort, ServiceSpec, ServiceType, Slice, SlicePort, family_of,
};
use crate::service::table::{Entry, NodeNetwork, frontends, table};

const VIP: &str = "10.96.1.1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node() -> NodeNetwork {
    NodeNetwork {
        table: names().table,
        link: names().link,
        ranges: vec!["10.96.0.0/16".parse().unwrap(), "fd00:96::/112".parse().unwrap()],
        routes_loopback: true,
        ..NodeNetwork::default()
    }
}

fn service(ips: &[&str]) -> ServiceSpec {
    ServiceSpec {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "u".to_owned(),
        cluster_ips: ips.iter().map(|text| ip(text)).collect(),
        families: ips.iter().map(|text| family_of(ip(text))).collect(),
        ports: vec![ServicePort { port: 80, ..ServicePort::default() }],
        ..ServiceSpec::default()
    }
}

/// The Service with these addresses behind it, at port 8080.
fn entry(service: ServiceSpec, targets: &[(IpAddr, bool)]) -> Rc<Entry> {
    let ports = |port: &ServicePort| SlicePort {
        name: port.name.clone(),
        protocol: port.protocol,
        port: 8080,
        app_protocol: None,
    };
    let slice = |family: &Family| Slice {
        family: *family,
        ports: service.ports.iter().map(ports).collect(),
        endpoints: targets
            .iter()
            .filter(|(ip, _)| family_of(*ip) == *family)
            .map(|(ip, is_local)| Endpoint::ready(*ip, *is_local))
            .collect(),
    };
    Rc::new(Entry { slices: service.families.iter().map(slice).collect(), service: Rc::new(service) })
}

fn rules(entries: &[Rc<Entry>], node: &NodeNetwork) -> Vec<Rules> {
    let of = |family| {
        let frontends = frontends(family, entries, node);
        Rules { family, table: table(family, &frontends, node), frontends }
    };
    [Family::Ipv4, Family::Ipv6].map(of).into()
}

fn names() -> KernelNames {
    KernelNames::of("agent0")
}

fn link() -> LinkConfig {
    LinkConfig {
        name: names().link,
        ranges: node().ranges,
        addresses: vec![ip("10.96.0.10"), ip("fd00:96::a")],
    }
}

/// Puts the Services into force on a node; true if anything has changed.
fn enforce_on(host: &Host, entries: &[Rc<Entry>], node: &NodeNetwork) -> bool {
    let rules = rules(entries, node);
    host.run(|| {
        ensure_link(&link()).unwrap();
        forward(&[Family::Ipv4, Family::Ipv6]).unwrap();
        let changed = apply(rules.iter().map(|rules| rules.table.clone()).collect()).unwrap();
        forget_clients(&rules).unwrap();
        let udp = |place: &Place| {
            matches!(place, Place::Address(_, Protocol::Udp, _) | Place::Node(Protocol::Udp, _))
        };
        let places = rules.iter().flat_map(|rules| &rules.frontends.places);
        let places = places.filter(|(place, _)| udp(place)).map(|(place, it)| (*place, it.clone()));
        forget_connections(&places.collect()).unwrap();
        changed
    })
}

fn enforce(host: &Host, entries: &[Rc<Entry>]) -> bool {
    enforce_on(host, entries, &node())
}

fn own(pods: &[&Pod]) -> Vec<(IpAddr, bool)> {
    pods.iter().flat_map(|pod| &pod.addresses).map(|ip| (*ip, true)).collect()
}

fn server(pod: &Pod) -> TcpListener {
    pod.run(|| listen("[::]:8080"))
}

/// Connections are refused, and at once.
fn is_refused(target: SocketAddr) -> bool {
    let started = Instant::now();
    let refused = TcpStream::connect_timeout(&target, Duration::from_secs(5));
    refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        && started.elapsed() < Duration::from_secs(1)
}

#[test]
fn a_service_is_reached_from_pods_the_node_and_itself() {
    let host = Host::new(&["10.86.0.0/24"]);
    let (one, two) = (host.attach("one", &[]).unwrap(), host.attach("two", &[]).unwrap());
    let (in_one, in_two) = (server(&one), server(&two));
    assert!(enforce(&host, &[entry(service(&[VIP]), &own(&[&two]))]));
    // Packets of a pod to another one on the bridge come back through the node.
    assert_eq!(one.run(|| call(&in_two, at(VIP, 80))).unwrap().0.to_string(), "10.86.0.1");
    host.run(|| call(&in_two, at(VIP, 80))).unwrap();
    assert!(!enforce(&host, &[entry(service(&[VIP]), &own(&[&two]))]), "it is in force already");
    assert!(enforce(&host, &[entry(service(&[VIP]), &own(&[&one]))]));
    one.run(|| call(&in_one, at(VIP, 80))).unwrap();
    two.run(|| call(&in_one, at(VIP, 80))).unwrap();
    let shown = host.rules();
    assert!(
        shown.contains("10.96.1.1 . 6 . 80 : 10.86.0.2 . 8080") || shown.contains("10.96.1.1 . tcp . 80"),
        "{shown}"
    );
}

#[test]
fn all_that_has_no_endpoint_is_refused_at_once() {
    let (host, far) = (Host::new(&["10.86.0.0/24"]), Host::new(&[]));
    cable(&host, &far);
    let pod = host.attach("one", &[]).unwrap();
    let mut web = ServiceSpec { kind: ServiceType::NodePort, ..service(&[VIP]) };
    web.ports[0].node_port = 30_080;
    web.external_ips = vec![ip("203.0.113.7")];
    host.run(|| sh("ip route add 203.0.113.0/24 via 192.0.2.2"));
    enforce(&host, &[entry(web, &[])]);
    // The Service, another port of it, another address of the range, an external address.
    for target in [at(VIP, 80), at(VIP, 81), at("10.96.9.9", 80), at("203.0.113.7", 80)] {
        assert!(pod.run(|| is_refused(target)), "{target} from a pod");
        assert!(host.run(|| is_refused(target)), "{target} from the node");
    }
    // A process of the node does not answer instead.
    let _other = host.run(|| listen("0.0.0.0:30080"));
    for target in [at("192.0.2.1", 30_080), at("192.0.2.1", 30_081)] {
        assert!(far.run(|| is_refused(target)), "{target} from another machine");
    }
    assert!(pod.run(|| is_refused(at("10.86.0.1", 30_080))));
}

#[test]
fn node_ports_and_load_balancers_are_reached_from_outside() {
    let (host, far) = (Host::new(&["10.86.0.0/24"]), Host::new(&[]));
    cable(&host, &far);
    let pod = host.attach("one", &[]).unwrap();
    let in_pod = server(&pod);
    let mut web = ServiceSpec { kind: ServiceType::LoadBalancer, ..service(&[VIP]) };
    web.ports[0].node_port = 30_080;
    enforce(&host, &[entry(web.clone(), &own(&[&pod]))]);
    for port in [30_080, 80] {
        let client = far.run(|| call(&in_pod, at("192.0.2.1", port))).unwrap().0;
        assert_eq!(client.to_string(), "192.0.2.2", "its address is kept");
        host.run(|| call(&in_pod, at("192.0.2.1", port))).unwrap();
        host.run(|| call(&in_pod, at("127.0.0.1", port))).unwrap();
        pod.run(|| call(&in_pod, at("192.0.2.1", port))).unwrap();
    }
    web.source_ranges = vec!["198.51.100.0/24".parse().unwrap()];
    enforce(&host, &[entry(web.clone(), &own(&[&pod]))]);
    let short = Duration::from_millis(300);
    assert!(far.run(|| TcpStream::connect_timeout(&at("192.0.2.1", 80), short)).is_err());
    far.run(|| call(&in_pod, at("192.0.2.1", 30_080))).unwrap();
    web.source_ranges.push("192.0.2.0/28".parse().unwrap());
    enforce(&host, &[entry(web, &own(&[&pod]))]);
    far.run(|| call(&in_pod, at("192.0.2.1", 80))).unwrap();
}

#[test]
fn endpoints_may_be_on_other_machines() {
    let (host, far) = (Host::new(&["10.86.0.0/24"]), Host::new(&[]));
    cable(&host, &far);
    let pod = host.attach("one", &[]).unwrap();
    let plc = far.run(|| listen("192.0.2.2:8080"));
    let mut web = ServiceSpec { kind: ServiceType::NodePort, ..service(&[VIP]) };
    web.ports[0].node_port = 30_080;
    enforce(&host, &[entry(web, &[(ip("192.0.2.2"), false)])]);
    // They cannot answer pods, or addresses of Services.
    for client in [pod.run(|| call(&plc, at(VIP, 80))), host.run(|| call(&plc, at(VIP, 80)))] {
        assert_eq!(client.unwrap().0.to_string(), "192.0.2.1");
    }
    // Its own packets come back to it through the node.
    assert_eq!(far.run(|| call(&plc, at("192.0.2.1", 30_080))).unwrap().0.to_string(), "192.0.2.1");
}

#[test]
fn both_families_work() {
    let host = Host::new(&["10.86.0.0/24", "fd00:86::/64"]);
    let (one, two) = (host.attach("one", &[]).unwrap(), host.attach("two", &[]).unwrap());
    let in_two = server(&two);
    let mut web = ServiceSpec { kind: ServiceType::NodePort, ..service(&[VIP, "fd00:96::15"]) };
    web.ports[0].node_port = 30_080;
    enforce(&host, &[entry(web, &own(&[&two]))]);
    for target in [at(VIP, 80), at("fd00:96::15", 80), at("fd00:86::1", 30_080)] {
        one.run(|| call(&in_two, target)).unwrap();
        host.run(|| call(&in_two, target)).unwrap();
    }
    for target in [at("fd00:96::15", 81), at("fd00:96::77", 80)] {
        assert!(one.run(|| is_refused(target)), "{target} from a pod");
        assert!(host.run(|| is_refused(target)), "{target} from the node");
    }
}

/// Which of the two servers a new connection of this thread reaches.
fn reached(servers: &[&TcpListener; 2], target: SocketAddr) -> usize {
    let _client = TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap();
    for server in servers {
        server.set_nonblocking(true).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if let Some(position) = servers.iter().position(|server| server.accept().is_ok()) {
            return position;
        }
        std::thread::yield_now();
    }
    panic!("no server was reached");
}

#[test]
fn clients_are_spread_or_keep_their_endpoint() {
    let host = Host::new(&["10.86.0.0/24"]);
    let (one, two, client) = (
        host.attach("one", &[]).unwrap(),
        host.attach("two", &[]).unwrap(),
        host.attach("client", &[]).unwrap(),
    );
    let servers = [&server(&one), &server(&two)];
    let draw = |times: usize| -> BTreeSet<usize> {
        client.run(|| (0..times).map(|_| reached(&servers, at(VIP, 80))).collect())
    };
    enforce(&host, &[entry(service(&[VIP]), &own(&[&one, &two]))]);
    assert_eq!(draw(40).len(), 2, "in one case of a million millions");

    let sticky = ServiceSpec { affinity: Some(600), ..service(&[VIP]) };
    enforce(&host, &[entry(sticky.clone(), &own(&[&one, &two]))]);
    let first = draw(1);
    assert_eq!(draw(20), first);
    // Other rules change, and the client stays.
    let more = ServiceSpec { name: "more".to_owned(), ..service(&["10.96.1.2"]) };
    assert!(enforce(&host, &[entry(sticky.clone(), &own(&[&one, &two])), entry(more, &own(&[&one]))]));
    assert_eq!(draw(20), first);
    // Its endpoint goes, and comes back: the client stays where it went.
    let (left, other) = if first.contains(&0) { (&two, 1) } else { (&one, 0) };
    enforce(&host, &[entry(sticky.clone(), &own(&[left]))]);
    assert_eq!(draw(5), [other].into());
    enforce(&host, &[entry(sticky, &own(&[&one, &two]))]);
    assert_eq!(draw(20), [other].into());
}

#[test]
fn datagrams_follow_the_endpoints() {
    let host = Host::new(&["10.86.0.0/24"]);
    let (one, two, client) = (
        host.attach("one", &[]).unwrap(),
        host.attach("two", &[]).unwrap(),
        host.attach("client", &[]).unwrap(),
    );
    let sockets = [&one, &two].map(|pod| pod.run(|| UdpSocket::bind("0.0.0.0:8080").unwrap()));
    for socket in &sockets {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    let mut web = service(&[VIP]);
    web.ports[0].protocol = Protocol::Udp;
    let from = client.run(|| UdpSocket::bind("0.0.0.0:5000").unwrap());
    from.connect(at(VIP, 80)).unwrap();
    let mut buffer = [0; 8];
    for (text, pod, socket) in [(b"first", &one, &sockets[0]), (b"other", &two, &sockets[1])] {
        enforce(&host, &[entry(web.clone(), &own(&[pod]))]);
        from.send(text).unwrap();
        assert_eq!(socket.recv(&mut buffer).unwrap(), 5);
        assert_eq!(buffer[..5], *text, "the client has sent from one port all the time");
    }
    let moved = two.run(|| UdpSocket::bind("0.0.0.0:8081").unwrap());
    moved.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut on_another_port = entry(web.clone(), &own(&[&two]));
    Rc::get_mut(&mut on_another_port).unwrap().slices[0].ports[0].port = 8081;
    enforce(&host, &[on_another_port]);
    from.send(b"moved").unwrap();
    assert_eq!(moved.recv(&mut buffer).unwrap(), 5);
    enforce(&host, &[entry(web.clone(), &[])]);
    from.send(b"lost").unwrap();
    from.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(from.recv(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    enforce(&host, &[entry(web, &own(&[&one]))]);
    from.send(b"again").unwrap();
    assert_eq!(sockets[0].recv(&mut buffer).unwrap(), 5);
}

#[test]
fn connections_outlive_every_change_of_rules() {
    use std::io::{Read as _, Write as _};
    let host = Host::new(&["10.86.0.0/24"]);
    let (one, two) = (host.attach("one", &[]).unwrap(), host.attach("two", &[]).unwrap());
    let in_two = server(&two);
    enforce(&host, &[entry(service(&[VIP]), &own(&[&two]))]);
    let mut client = one.run(|| TcpStream::connect(at(VIP, 80)).unwrap());
    let (mut connection, _) = in_two.accept().unwrap();
    for entries in
        [vec![entry(service(&[VIP]), &own(&[&one]))], vec![entry(service(&[VIP]), &[])], Vec::new()]
    {
        assert!(enforce(&host, &entries));
        client.write_all(b"ping").unwrap();
        let mut bytes = [0; 4];
        connection.read_exact(&mut bytes).unwrap();
        connection.write_all(&bytes).unwrap();
        client.read_exact(&mut bytes).unwrap();
    }
}

#[test]
fn pods_of_another_network_reach_each_other() {
    // As with plugins: the range is none of the agent's, and its bridge has no rules.
    let host = Host::new(&["10.86.0.0/24"]);
    let (one, two) = (host.attach("one", &[]).unwrap(), host.attach("two", &[]).unwrap());
    let in_two = server(&two);
    host.run(|| sh("nft flush ruleset"));
    let foreign = NodeNetwork { foreign_pods: [one.ip(), two.ip()].into(), routes_loopback: false, ..node() };
    enforce_on(&host, &[entry(service(&[VIP]), &own(&[&two]))], &foreign);
    one.run(|| call(&in_two, at(VIP, 80))).unwrap();
    two.run(|| call(&in_two, at(VIP, 80))).unwrap();
    host.run(|| call(&in_two, at(VIP, 80))).unwrap();
}

#[test]
fn names_fit_whatever_the_bridge_is_called() {
    assert_eq!(names(), KernelNames { link: "svc-agent0".to_owned(), table: "agent0-services".to_owned() });
    let long = KernelNames::of("a-long-bridge-1");
    assert_eq!(long.link.len(), 12);
    assert_ne!(long.link, KernelNames::of("a-long-bridge-2").link);
}

#[test]
fn nothing_is_left_and_overlaps_are_found() {
    let host = Host::new(&[]);
    let overlaps = host.run(|| {
        sh("ip link add lan0 type bridge; ip link set lan0 up; ip addr add 10.96.3.1/24 dev lan0");
        ensure_link(&link()).unwrap()
    });
    assert_eq!(overlaps, ["address 10.96.3.1/24 of lan0", "route 10.96.3.0/24 by lan0"]);
    enforce(&host, &[entry(service(&[VIP]), &[])]);
    assert!(host.run(|| is_present(&names())) && host.run(|| has_rules(&names(), &FAMILIES)));
    host.run(|| remove_all(&names()).unwrap());
    host.run(|| remove_all(&names()).unwrap());
    assert!(!host.run(|| is_present(&names())) && !host.run(|| has_rules(&names(), &FAMILIES)));
    assert_eq!((host.rules(), host.links()), (String::new(), vec!["lo".to_owned(), "lan0".to_owned()]));
}

#[test]
fn a_removal_that_was_interrupted_is_taken_up_again() {
    let host = Host::new(&[]);
    enforce(&host, &[entry(service(&[VIP]), &[])]);
    host.run(|| sh("ip link delete svc-agent0; nft delete table ip agent0-services"));
    assert!(host.run(|| is_present(&names())), "a table of IPv6 is left");
    assert!(!host.run(|| has_rules(&names(), &FAMILIES)));
    assert!(host.run(|| has_rules(&names(), &[Family::Ipv6])));
    host.run(|| remove_all(&names()).unwrap());
    assert!(!host.run(|| is_present(&names())));
    assert_eq!(host.rules(), "");
}

#[test]
fn the_table_of_a_family_without_a_range_is_removed() {
    let host = Host::new(&[]);
    enforce(&host, &[entry(service(&[VIP]), &[])]);
    host.run(|| remove_others(&names().table, &[Family::Ipv4]).unwrap());
    host.run(|| remove_others(&names().table, &[Family::Ipv4]).unwrap());
    assert!(host.run(|| has_rules(&names(), &[Family::Ipv4]) && !has_rules(&names(), &[Family::Ipv6])));
}

#[test]
fn what_another_program_removes_is_missed_and_comes_back() {
    let host = Host::new(&[]);
    let entries = [entry(service(&[VIP]), &[])];
    for command in ["nft flush ruleset", "ip link delete svc-agent0", "ip link set svc-agent0 down"] {
        enforce(&host, &entries);
        assert!(host.run(|| is_intact(&names(), &FAMILIES)), "before {command}");
        host.run(|| sh(command));
        assert!(!host.run(|| is_intact(&names(), &FAMILIES)), "{command}");
    }
    enforce(&host, &entries);
    assert!(host.run(|| is_intact(&names(), &FAMILIES)));
}

#[test]
fn a_kernel_without_nf_tables_is_named_with_the_way_out() {
    let refused = |errno: i32| NetlinkError::Refused {
        what: "list nftables sets".to_owned(),
        detail: String::new(),
        source: std::io::Error::from_raw_os_error(errno),
    };
    let shown = RulesError::of(refused(nix::errno::Errno::EOPNOTSUPP as i32)).to_string();
    assert!(shown.contains("CONFIG_NF_TABLES") && shown.ends_with("--service-cidr \"\""), "{shown}");
    let other = RulesError::of(refused(nix::errno::Errno::EPERM as i32));
    assert_eq!(other.to_string(), "list nftables sets");
}

#[test]
fn another_range_replaces_the_first() {
    let host = Host::new(&[]);
    let other = LinkConfig {
        ranges: vec!["10.97.0.0/16".parse().unwrap()],
        addresses: vec![ip("10.97.0.10")],
        ..link()
    };
    let shown = host.run(|| {
        ensure_link(&link()).unwrap();
        ensure_link(&link()).unwrap();
        ensure_link(&other).unwrap();
        sh("ip -4 -o address show dev svc-agent0; ip route show dev svc-agent0")
    });
    assert!(
        shown.contains("10.97.0.10/32") && shown.contains("10.97.0.0/16") && !shown.contains("10.96."),
        "{shown}"
    );
}

#[test]
fn two_hundred_services_are_in_force_within_milliseconds() {
    let host = Host::new(&[]);
    let entries: Vec<Rc<Entry>> = (1..=200_u8)
        .map(|number| {
            let targets =
                [(ip(&format!("10.86.0.{number}")), true), (ip(&format!("10.86.1.{number}")), true)];
            entry(service(&[&format!("10.96.2.{number}")]), &targets)
        })
        .collect();
    enforce(&host, &entries[1..]);
    let rules = rules(&entries, &node());
    let took = host.run(|| {
        let started = Instant::now();
        assert!(apply(rules.into_iter().map(|rules| rules.table).collect()).unwrap());
        started.elapsed()
    });
    // 10 ms in a program that is optimised, on an idle machine.
    assert!(took < Duration::from_millis(500), "{took:?}");
}
