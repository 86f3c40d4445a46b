use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::forward::ForwardConfig;
use super::message::{A, Found, read_answer};
use super::*;
use crate::platform::clock::Clock;
use crate::platform::rt::live::Live;
use crate::platform::sys::netlink::nftables::Family;
use crate::platform::testing::TempDir;
use crate::pod::executor::PodSettings;
use crate::service::spec::{ServiceSpec, ServiceType};

fn local<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

fn service(name: &str, ip: Option<IpAddr>, external: &str) -> Rc<Entry> {
    let service = ServiceSpec {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        kind: if external.is_empty() { ServiceType::ClusterIp } else { ServiceType::ExternalName },
        external_name: external.to_owned(),
        cluster_ips: ip.into_iter().collect(),
        families: vec![Family::Ipv4],
        ..ServiceSpec::default()
    };
    Rc::new(Entry { service: Rc::new(service), slices: Vec::new() })
}

/// A server of the node that knows one name, at a port of its own; what it was asked is counted.
struct Upstream {
    port: u16,
    asked: Rc<Cell<usize>>,
    _udp: JoinHandle<()>,
    _tcp: JoinHandle<()>,
}

async fn upstream(records: usize) -> Upstream {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = tcp.local_addr().unwrap().port();
    let udp = UdpSocket::bind(("127.0.0.1", port)).await.unwrap();
    let asked = Rc::new(Cell::new(0));
    let reply = move |bytes: &[u8], most: usize| {
        let query = read_query(bytes).unwrap();
        let (rcode, records) = match query.name.as_str() {
            "example.com" => (Rcode::NoError, records),
            _ => (Rcode::NameError, 0),
        };
        let record = |last: usize| Record {
            name: query.name.clone(),
            ttl: 60,
            data: RecordData::Address(Ipv4Addr::new(192, 0, 2, u8::try_from(last % 250).unwrap()).into()),
        };
        let records = (0..records).map(record).collect();
        let answer = Answer { rcode, is_authoritative: false, records, zone: Some(("com".to_owned(), 60)) };
        query.answer(&answer, most)
    };
    let count = Rc::clone(&asked);
    let by_udp = rt::spawn("upstream", async move {
        let mut buffer = [0; 512];
        loop {
            let (length, peer) = udp.recv_from(&mut buffer).await.unwrap();
            count.set(count.get() + 1);
            udp.send_to(&reply(&buffer[..length], 512), peer).await.unwrap();
        }
    });
    let by_tcp = rt::spawn("upstream", async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let mut bytes = vec![0; usize::from(stream.read_u16().await.unwrap())];
            stream.read_exact(&mut bytes).await.unwrap();
            stream.write_all(&framed(&reply(&bytes, 65_535))).await.unwrap();
        }
    });
    Upstream { port, asked, _udp: by_udp, _tcp: by_tcp }
}

/// A server at a loopback address of its own, which forwards to that port.
async fn server(ip: IpAddr, port: u16, resolv_conf: &str) -> (Serving, Rc<DnsServer>, TempDir) {
    let file = TempDir::new();
    file.put("resolv.conf", resolv_conf);
    let entries = vec![
        service("web", Some("10.96.1.1".parse().unwrap()), ""),
        service("alias", None, "example.com"),
        service("inner", None, "web.shop.svc.cluster.local"),
        service("loop", None, "loop.shop.svc.cluster.local"),
    ];
    let names = Names {
        domain: "cluster.local".to_owned(),
        ranges: vec!["10.96.0.0/16".parse().unwrap()],
        entries: RefCell::new(Rc::new(entries)),
        foreign_pods: RefCell::new(Rc::new(BTreeSet::new())),
        pod_ranges: Vec::new(),
    };
    let resolv_conf = Some(file.join("resolv.conf"));
    let pods = Live::new(PodSettings { resolv_conf, ..PodSettings::default() });
    let config = ForwardConfig { port, ..ForwardConfig::new(pods, vec![ip]) };
    let server = DnsServer::new(Rc::new(names), Forwarder::new(config, Clock::System));
    let serving = server.listen(&[ip]).await.unwrap();
    (serving, server, file)
}

async fn ask(ip: IpAddr, name: &str) -> Found {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let query = Query::new(77, name, A);
    socket.send_to(&query.to_bytes(), (ip, PORT)).await.unwrap();
    let mut buffer = [0; 2048];
    let (length, from) =
        timeout(Duration::from_secs(5), socket.recv_from(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(from, SocketAddr::new(ip, PORT));
    assert!(query.is_answered_by(&buffer[..length]));
    read_answer(&buffer[..length]).unwrap()
}

async fn ask_by_tcp(ip: IpAddr, names: &[&str]) -> Vec<Found> {
    let mut stream = TcpStream::connect((ip, PORT)).await.unwrap();
    let mut answers = Vec::new();
    for name in names {
        let query = Query::new(78, name, A);
        stream.write_all(&framed(&query.to_bytes())).await.unwrap();
        let mut bytes = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut bytes).await.unwrap();
        answers.push(read_answer(&bytes).unwrap());
    }
    answers
}

fn shown(found: &Found) -> String {
    let text = |record: &Record| match &record.data {
        RecordData::Address(ip) => ip.to_string(),
        other => format!("{other:?}"),
    };
    format!("{} {}", found.rcode, found.records.iter().map(text).collect::<Vec<_>>().join(" "))
}

#[test]
fn names_of_services_and_of_the_world_are_answered() {
    local(async {
        let ip: IpAddr = "127.0.54.1".parse().unwrap();
        let upstream = upstream(1).await;
        let (_serving, _, _file) =
            server(ip, upstream.port, "nameserver 127.0.54.1\nnameserver 127.0.0.1\n").await;
        assert_eq!(shown(&ask(ip, "web.shop.svc.cluster.local").await), "0 10.96.1.1");
        assert_eq!(upstream.asked.get(), 0);
        assert_eq!(shown(&ask(ip, "example.com").await), "0 192.0.2.0");
        assert_eq!(shown(&ask(ip, "Example.com").await), "0 192.0.2.0");
        assert_eq!(upstream.asked.get(), 1, "the second answer was known, and the agent does not ask itself");
        assert_eq!(shown(&ask(ip, "nothing.com").await), "3 ");
        assert_eq!(
            shown(&ask(ip, "alias.shop.svc.cluster.local").await),
            "0 Alias(\"example.com\") 192.0.2.0"
        );
        assert_eq!(
            shown(&ask(ip, "inner.shop.svc.cluster.local").await),
            "0 Alias(\"web.shop.svc.cluster.local\") 10.96.1.1"
        );
        assert!(ask(ip, "loop.shop.svc.cluster.local").await.records.len() < 20, "it ends");
        let answers =
            ask_by_tcp(ip, &["web.shop.svc.cluster.local", "example.com", "alias.shop.svc.cluster.local"])
                .await;
        let answers: Vec<String> = answers.iter().map(shown).collect();
        assert_eq!(answers, ["0 10.96.1.1", "0 192.0.2.0", "0 Alias(\"example.com\") 192.0.2.0"]);
    });
}

#[test]
fn a_large_answer_is_cut_and_whole_by_tcp() {
    local(async {
        let ip: IpAddr = "127.0.54.2".parse().unwrap();
        let upstream = upstream(100).await;
        let (_serving, _, _file) = server(ip, upstream.port, "nameserver 127.0.0.1\n").await;
        assert!(ask(ip, "example.com").await.is_cut);
        assert_eq!(ask_by_tcp(ip, &["example.com"]).await[0].records.len(), 100);
        // The alias of an external name is followed by TCP, too.
        let found = &ask_by_tcp(ip, &["alias.shop.svc.cluster.local"]).await[0];
        assert_eq!(found.records.len(), 101);
    });
}

#[test]
fn without_a_server_the_answer_is_a_failure_at_once() {
    local(async {
        let ip: IpAddr = "127.0.54.3".parse().unwrap();
        let (_serving, _, file) = server(ip, 1, "").await;
        let started = std::time::Instant::now();
        assert_eq!(ask(ip, "example.com").await.rcode, 2);
        assert!(started.elapsed() < Duration::from_secs(1));
        drop(file);
        assert_eq!(shown(&ask(ip, "web.shop.svc.cluster.local").await), "0 10.96.1.1");
    });
}

#[test]
fn the_next_server_is_asked_when_one_is_gone() {
    local(async {
        let ip: IpAddr = "127.0.54.4".parse().unwrap();
        let upstream = upstream(1).await;
        // No server listens there: the kernel refuses at once.
        let (_serving, server, _file) =
            server(ip, upstream.port, "nameserver 127.0.54.99\nnameserver 127.0.0.1\n").await;
        assert_eq!(shown(&ask(ip, "example.com").await), "0 192.0.2.0");
        assert_eq!(shown(&ask(ip, "nothing.com").await), "3 ");
        assert_eq!(server.pending.get(), 0);
    });
}

#[test]
fn a_query_that_waits_does_not_keep_the_address() {
    local(async {
        let ip: IpAddr = "127.0.54.7".parse().unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let (serving, server, _file) = server(ip, port, "nameserver 127.0.0.1\n").await;
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(&Query::new(1, "example.com", A).to_bytes(), (ip, PORT)).await.unwrap();
        silent.recv_from(&mut [0; 512]).await.unwrap();
        assert_eq!(server.pending.get(), 1);
        drop(serving);
        // The tasks end, and with them the socket, when they are next run.
        let again = async {
            while server.listen(&[ip]).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), again).await.expect("the address is free");
        assert_eq!(server.pending.get(), 1, "it still waits");
    });
}

#[test]
fn rubbish_is_refused_and_nothing_ends() {
    local(async {
        let ip: IpAddr = "127.0.54.5".parse().unwrap();
        let (_serving, server, _file) = server(ip, 1, "").await;
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for bytes in [&b""[..], b"x", &[0; 11], &[0xff; 64], &[0; 600]] {
            socket.send_to(bytes, (ip, PORT)).await.unwrap();
        }
        let mut stream = TcpStream::connect((ip, PORT)).await.unwrap();
        stream.write_all(&[0xff, 0xff, 1]).await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap_or_default();
        assert!(rest.is_empty(), "a query is not that long");
        assert_eq!(shown(&ask(ip, "web.shop.svc.cluster.local").await), "0 10.96.1.1");
        assert_eq!(server.connections.get(), 0);
        assert!(!server.is_client("192.0.2.1".parse().unwrap()), "another machine");
    });
}

#[test]
fn an_answer_takes_less_than_a_millisecond() {
    local(async {
        let ip: IpAddr = "127.0.54.6".parse().unwrap();
        let (_serving, _, _file) = server(ip, 1, "").await;
        ask(ip, "web.shop.svc.cluster.local").await;
        let mut took: Vec<Duration> = Vec::new();
        for _ in 0..50 {
            let started = std::time::Instant::now();
            ask(ip, "web.shop.svc.cluster.local").await;
            took.push(started.elapsed());
        }
        took.sort();
        assert!(took[25] < Duration::from_millis(1), "half of them: {took:?}");
    });
}
