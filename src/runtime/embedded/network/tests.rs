//! Hosts are network namespaces of their own, so that nothing of the machine is touched; pods' servers are sockets made in
//! the pod's namespace, which can be used from any thread.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::sys::netlink::namespace;
use crate::sys::netlink::route;

const PATIENCE: Duration = Duration::from_secs(5);

struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("edge-agent-network-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A machine.
struct Host {
    namespace: File,
    directory: Directory,
    network: Network,
}

impl Host {
    fn new(subnets: &[&str]) -> Self {
        let directory = Directory::new();
        let network = Network::new(NetworkConfig {
            bridge: DEFAULT_BRIDGE.to_owned(),
            subnets: subnets.iter().map(|text| text.parse().unwrap()).collect(),
            mtu: None,
            state: directory.0.join("state"),
            cni_conf_dir: directory.0.join("net.d"),
            cni_bin_dirs: vec!["/usr/lib/cni".into(), "/opt/cni/bin".into()],
        });
        let host = Self { namespace: namespace::create().unwrap(), directory, network };
        host.run(|| sh("ip link set lo up"));
        host
    }

    fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        namespace::inside(&self.namespace, body).unwrap()
    }

    fn attach(&self, name: &str, ports: &[(&str, i32, i32, &str)]) -> Result<Pod, NetworkError> {
        let pod = Pod::new(name);
        let addresses = self.run(|| self.network.attach(&pod.attachment(ports)))?;
        Ok(Pod { addresses, ..pod })
    }

    fn detach(&self, pod: &Pod) {
        let netns = pod.netns();
        self.run(|| self.network.detach(&pod.sandbox, Some(&netns))).unwrap();
    }

    fn links(&self) -> Vec<String> {
        self.run(|| route::Network::open().unwrap().links().unwrap()).into_iter().map(|link| link.name).collect()
    }

    fn rules(&self) -> String {
        self.run(|| sh("nft list ruleset"))
    }

    fn records(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.directory.0.join("state"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }

    fn assert_nothing_is_left(&self) {
        assert_eq!(self.links(), ["lo"]);
        assert_eq!(self.rules(), "");
        assert_eq!(self.records(), Vec::<String>::new());
    }
}

/// A pod: a namespace and what it was given.
struct Pod {
    sandbox: SandboxId,
    namespace: File,
    addresses: Vec<IpAddr>,
}

impl Pod {
    fn new(name: &str) -> Self {
        Self { sandbox: name.into(), namespace: namespace::create().unwrap(), addresses: Vec::new() }
    }

    /// For other processes, too.
    fn netns(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd())
    }

    fn attachment(&self, ports: &[(&str, i32, i32, &str)]) -> Attachment {
        let ports = ports.iter().map(|(protocol, host_port, container_port, host_ip)| PortMapping {
            protocol: (*protocol).to_owned(),
            host_port: *host_port,
            container_port: *container_port,
            host_ip: (*host_ip).to_owned(),
        });
        Attachment {
            sandbox: self.sandbox.clone(),
            pod: PodRef { namespace: "default".into(), name: self.sandbox.to_string(), uid: "u".into() },
            netns: self.netns(),
            ports: ports.collect(),
            ..Attachment::default()
        }
    }

    fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        namespace::inside(&self.namespace, body).unwrap()
    }

    fn ip(&self) -> IpAddr {
        self.addresses[0]
    }
}

/// Runs a program in this thread's namespace; its output.
fn sh(command: &str) -> String {
    let output = Command::new("sh").arg("-ec").arg(command).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Listens in this thread's namespace.
fn listen(address: &str) -> TcpListener {
    TcpListener::bind(address).unwrap()
}

/// Calls from this thread's namespace; whom the server saw, and whom it was for.
fn call(server: &TcpListener, target: SocketAddr) -> Result<(IpAddr, IpAddr), std::io::Error> {
    let mut client = TcpStream::connect_timeout(&target, PATIENCE)?;
    client.set_read_timeout(Some(PATIENCE))?;
    server.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    let (mut connection, peer) = loop {
        match server.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::yield_now();
            }
            other => break other?,
        }
    };
    connection.write_all(b"hello")?;
    let mut text = [0; 5];
    client.read_exact(&mut text)?;
    assert_eq!(&text, b"hello");
    Ok((peer.ip().to_canonical(), connection.local_addr()?.ip()))
}

fn at(ip: impl ToString, port: u16) -> SocketAddr {
    SocketAddr::new(ip.to_string().parse().unwrap(), port)
}

/// Joins two hosts by a cable: 192.0.2.1 (2001:db8::1) and 192.0.2.2 (2001:db8::2).
fn cable(one: &Host, other: &Host) {
    let fd = format!("/proc/{}/fd/{}", std::process::id(), other.namespace.as_raw_fd());
    one.run(|| {
        sh(&format!(
            "ip link add up0 type veth peer name up1; ip link set up1 netns {fd}
             ip addr add 192.0.2.1/24 dev up0; ip addr add 2001:db8::1/64 dev up0 nodad; ip link set up0 up"
        ))
    });
    other.run(|| {
        sh("ip addr add 192.0.2.2/24 dev up1; ip addr add 2001:db8::2/64 dev up1 nodad; ip link set up1 up")
    });
}

#[test]
fn pods_reach_each_other_the_node_and_other_hosts_and_only_those_see_a_masquerade() {
    let (host, far) = (Host::new(&["10.86.0.0/24"]), Host::new(&[]));
    cable(&host, &far);
    let (one, two) = (host.attach("one", &[]).unwrap(), host.attach("two", &[]).unwrap());
    assert_eq!((one.ip().to_string(), two.ip().to_string()), ("10.86.0.2".into(), "10.86.0.3".into()));
    assert_eq!(host.network.addresses(&one.sandbox), Some(one.addresses.clone()));

    let in_two = two.run(|| listen("0.0.0.0:80"));
    assert_eq!(one.run(|| call(&in_two, at(two.ip(), 80))).unwrap().0, one.ip());
    let on_node = host.run(|| listen("0.0.0.0:81"));
    assert_eq!(one.run(|| call(&on_node, at("10.86.0.1", 81))).unwrap().0, one.ip());
    assert_eq!(one.run(|| call(&on_node, at("192.0.2.1", 81))).unwrap().0, one.ip());
    assert_eq!(host.run(|| call(&in_two, at(two.ip(), 80))).unwrap().0.to_string(), "10.86.0.1");
    let far_away = far.run(|| listen("0.0.0.0:82"));
    assert_eq!(one.run(|| call(&far_away, at("192.0.2.2", 82))).unwrap().0.to_string(), "192.0.2.1");

    host.detach(&one);
    host.detach(&one);
    assert_eq!(host.network.addresses(&one.sandbox), None);
    assert_eq!(host.records(), ["two.json"]);
    drop(two.namespace);
    host.run(|| host.network.detach(&two.sandbox, None)).unwrap();
    assert_eq!(host.links(), ["lo", "up0"]);
    assert_eq!((host.rules(), host.records().len()), (String::new(), 0));
}

#[test]
fn host_ports_are_reached_from_everywhere() {
    let (host, far) = (Host::new(&["10.86.0.0/24"]), Host::new(&[]));
    cable(&host, &far);
    let web = host
        .attach("web", &[("TCP", 8080, 80, ""), ("TCP", 8081, 80, "127.0.0.1"), ("TCP", 8082, 80, "192.0.2.1"), ("TCP", 0, 90, "")])
        .unwrap();
    let other = host.attach("other", &[]).unwrap();
    let server = web.run(|| listen("0.0.0.0:80"));
    // From outside: nobody else's address is put between.
    assert_eq!(far.run(|| call(&server, at("192.0.2.1", 8080))).unwrap().0.to_string(), "192.0.2.2");
    assert_eq!(far.run(|| call(&server, at("192.0.2.1", 8082))).unwrap().0.to_string(), "192.0.2.2");
    // From the node.
    assert_eq!(host.run(|| call(&server, at("192.0.2.1", 8080))).unwrap().0.to_string(), "192.0.2.1");
    assert_eq!(host.run(|| call(&server, at("127.0.0.1", 8080))).unwrap().0.to_string(), "10.86.0.1");
    assert_eq!(host.run(|| call(&server, at("127.0.0.1", 8081))).unwrap().0.to_string(), "10.86.0.1");
    // From the pod itself, and from another one.
    for pod in [&web, &other] {
        for target in ["10.86.0.1", "192.0.2.1"] {
            assert_eq!(pod.run(|| call(&server, at(target, 8080))).unwrap().0.to_string(), "10.86.0.1");
        }
    }
    // An address of the node is meant, and no other.
    assert!(host.run(|| call(&server, at("192.0.2.1", 8081))).is_err());
    assert!(host.run(|| call(&server, at("127.0.0.1", 8082))).is_err());
    assert!(far.run(|| call(&server, at("192.0.2.1", 90))).is_err());
    let taken = host.attach("late", &[("TCP", 8080, 1, "0.0.0.0")]).err().unwrap();
    assert_eq!(taken.to_string(), "host port 8080 (TCP): pod web_default(u) has it");
    assert_eq!(host.records(), ["other.json", "web.json"]);
    host.detach(&web);
    assert!(far.run(|| call(&server, at("192.0.2.1", 8080))).is_err());
}
