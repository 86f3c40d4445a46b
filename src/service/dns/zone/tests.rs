use super::*;
use crate::platform::sys::netlink::nftables::Family;
use crate::service::spec::{Protocol, SlicePort};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(namespace: &str, name: &str, ips: &[&str]) -> ServiceSpec {
    ServiceSpec {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        cluster_ips: ips.iter().map(|text| ip(text)).collect(),
        families: vec![Family::Ipv4],
        ports: vec![ServicePort { name: "http".to_owned(), port: 80, ..ServicePort::default() }],
        ..ServiceSpec::default()
    }
}

fn entries() -> Vec<Rc<Entry>> {
    let endpoint = |address: &str, hostname: Option<&str>, ready: bool| Endpoint {
        hostname: hostname.map(str::to_owned),
        ready,
        ..Endpoint::ready(ip(address), true)
    };
    let port = |number| SlicePort { name: "http".to_owned(), port: number, ..SlicePort::default() };
    let slice = |number, endpoints| Slice { family: Family::Ipv4, ports: vec![port(number)], endpoints };
    let external = ServiceSpec {
        kind: ServiceType::ExternalName,
        external_name: "DB.example.com.".to_owned(),
        ..service("shop", "outside", &[])
    };
    let entry = |service, slices| Rc::new(Entry { service: Rc::new(service), slices });
    vec![
        entry(service("shop", "web", &["10.96.1.1", "fd00:96::11"]), Vec::new()),
        entry(
            service("shop", "db", &[]),
            vec![
                slice(
                    5432,
                    vec![endpoint("10.86.0.2", Some("db-0"), true), endpoint("10.86.0.3", None, true)],
                ),
                slice(5433, vec![endpoint("10.86.0.4", Some("db-2"), false)]),
                Slice { family: Family::Ipv6, ..slice(5432, vec![endpoint("fd00::2", Some("db-0"), true)]) },
            ],
        ),
        entry(external, Vec::new()),
    ]
}

fn decide(name: &str, kind: u16) -> Decision {
    let (entries, ranges) = (entries(), ["10.96.0.0/16".parse().unwrap()]);
    Zone { domain: "cluster.local", entries: &entries, ranges: &ranges }.decide(&Query::new(1, name, kind))
}

/// The records as text; the code without any.
fn look(name: &str, kind: u16) -> String {
    let answer = match decide(name, kind) {
        Decision::Forward => return "forward".to_owned(),
        Decision::Follow(record) => return format!("follow {:?}", record.data),
        Decision::Answer(answer) => answer,
    };
    let text = |record: &Record| match &record.data {
        RecordData::Address(ip) => ip.to_string(),
        RecordData::Alias(name) | RecordData::Pointer(name) => name.clone(),
        RecordData::Service(port, host) => format!("{host}:{port}"),
        RecordData::Text(text) => (*text).to_owned(),
    };
    if answer.records.is_empty() {
        return format!("{:?}", answer.rcode);
    }
    assert!(
        answer.is_authoritative
            && answer.records.iter().all(|record| record.name == name.to_ascii_lowercase())
    );
    answer.records.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[test]
fn services_have_their_addresses() {
    assert_eq!(look("web.shop.svc.cluster.local", A), "10.96.1.1");
    assert_eq!(look("WEB.shop.SVC.cluster.local", AAAA), "fd00:96::11");
    assert_eq!(look("web.shop.svc.cluster.local", TXT), "NoError", "no such record");
    assert_eq!(look("nothing.shop.svc.cluster.local", A), "NameError");
    assert_eq!(look("web.other.svc.cluster.local", A), "NameError");
    assert_eq!(look("x.web.shop.svc.cluster.local", A), "NameError");
    for name in ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"] {
        assert_eq!(look(name, A), "NoError", "{name}: something is below it");
    }
    assert_eq!(look("other.svc.cluster.local", A), "NameError");
    assert_eq!(look("example.com.shop.svc.cluster.local", A), "NameError", "a search domain was added");
    assert_eq!(look("dns-version.cluster.local", TXT), "1.1.0");
    for name in ["example.com", "cluster.local.example.com", "xcluster.local", "local", ""] {
        assert_eq!(look(name, A), "forward", "{name}");
    }
}

#[test]
fn headless_services_have_those_of_their_endpoints() {
    assert_eq!(
        look("db.shop.svc.cluster.local", A),
        "10.86.0.2 10.86.0.3",
        "without the one that is not ready"
    );
    assert_eq!(look("db.shop.svc.cluster.local", AAAA), "fd00::2");
    assert_eq!(look("db-0.db.shop.svc.cluster.local", A), "10.86.0.2");
    assert_eq!(look("10-86-0-3.db.shop.svc.cluster.local", A), "10.86.0.3");
    assert_eq!(look("10-86-0-3.db.shop.svc.cluster.local", AAAA), "NoError");
    assert_eq!(look("db-2.db.shop.svc.cluster.local", A), "NameError");
    assert_eq!(look("db-0.web.shop.svc.cluster.local", A), "NameError", "it is not headless");
}

#[test]
fn named_ports_are_service_records() {
    assert_eq!(look("_http._tcp.web.shop.svc.cluster.local", SRV), "web.shop.svc.cluster.local:80");
    assert_eq!(look("web.shop.svc.cluster.local", SRV), "web.shop.svc.cluster.local:80");
    assert_eq!(
        look("_http._tcp.db.shop.svc.cluster.local", SRV),
        "10-86-0-3.db.shop.svc.cluster.local:5432 db-0.db.shop.svc.cluster.local:5432"
    );
    assert_eq!(look("_http._tcp.web.shop.svc.cluster.local", A), "NoError");
    assert_eq!(look("_tcp.web.shop.svc.cluster.local", SRV), "NoError");
    assert_eq!(look("_http._udp.web.shop.svc.cluster.local", SRV), "NameError");
    assert_eq!(look("_x._tcp.web.shop.svc.cluster.local", SRV), "NameError");
    assert_eq!(Protocol::from_text("UDP").as_str(), "UDP");
}

#[test]
fn addresses_lead_back_to_names() {
    assert_eq!(look("1.1.96.10.in-addr.arpa", PTR), "web.shop.svc.cluster.local");
    assert_eq!(look("2.0.86.10.in-addr.arpa", PTR), "db-0.db.shop.svc.cluster.local");
    assert_eq!(look("9.9.96.10.in-addr.arpa", PTR), "NameError", "in the range of Services");
    assert_eq!(look("1.1.168.192.in-addr.arpa", PTR), "forward");
    assert_eq!(look("1.1.96.10.in-addr.arpa", A), "NoError");
    assert_eq!(look("96.10.in-addr.arpa", PTR), "forward", "no whole address");
    let six = "1.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa";
    assert_eq!(look(six, PTR), "web.shop.svc.cluster.local");
    assert_eq!(look("1.ip6.arpa", PTR), "forward");
}

#[test]
fn external_names_are_followed() {
    assert_eq!(look("outside.shop.svc.cluster.local", A), "follow Alias(\"db.example.com\")");
    assert_eq!(look("x.outside.shop.svc.cluster.local", A), "NameError");
}
