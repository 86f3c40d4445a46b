//! Network namespaces of one test, joined by veth pairs. Links and addresses in them are no other test's, and go with them.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};

/// A network namespace. A process holds it, and ends with the test, however that ends: it reads from a pipe.
pub struct NetworkNamespace {
    holder: Child,
}

impl NetworkNamespace {
    /// With nothing but the loopback. It passes no packets on.
    pub fn new() -> Self {
        let script = "ip link set lo up && echo 0 > /proc/sys/net/ipv4/ip_forward && echo made && exec cat";
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start unshare");
        let mut said = String::new();
        BufReader::new(holder.stdout.as_mut().expect("a pipe")).read_line(&mut said).expect("read");
        assert_eq!(said, "made\n", "make a network namespace: the tests run as root");
        Self { holder }
    }

    /// A process in it.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Adds another one that is joined to this one by a veth pair, with this one as its router. `number` is part of the addresses:
    /// of this end [`router_of`], of the other one [`client_of`].
    pub fn joined(&self, number: u8) -> Self {
        let other = Self::new();
        let [near_end, far_end] = [router_of(number), client_of(number)];
        self.set_up(&format!(
            "link add to{number} type veth peer name eth0 netns {}\n{}",
            other.pid(),
            addressed(&format!("to{number}"), near_end)
        ));
        let routes = near_end.map(|ip| format!("route add default via {ip}\n")).concat();
        other.set_up(&format!("{}{routes}", addressed("eth0", far_end)));
        other
    }

    /// Lines of `ip`, in this namespace.
    fn set_up(&self, lines: &str) {
        let net = format!("--net=/proc/{}/ns/net", self.pid());
        let mut ip = Command::new("nsenter")
            .args([&net, "ip", "-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("start nsenter");
        ip.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("write to ip");
        assert!(ip.wait().expect("wait for ip").success(), "{lines}");
    }

    /// Writes a program that runs `program` in this namespace, into a directory of the test.
    pub fn program(&self, program: &Path, directory: &Path) -> PathBuf {
        let wrapper = directory.join("in-namespace");
        let text = format!(
            "#!/bin/sh\nexec nsenter --net=/proc/{}/ns/net {} \"$@\"\n",
            self.pid(),
            program.display()
        );
        fs::write(&wrapper, text).expect("write the wrapper");
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("make it a program");
        wrapper
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The addresses of the router's end of a veth pair, one for each family.
pub fn router_of(pair: u8) -> [IpAddr; 2] {
    [end_of(pair, 1), Ipv6Addr::new(0xfd64, 0, 0, pair.into(), 0, 0, 0, 1).into()]
}

/// The addresses of its other end, one for each family.
pub fn client_of(pair: u8) -> [IpAddr; 2] {
    [end_of(pair, 2), Ipv6Addr::new(0xfd64, 0, 0, pair.into(), 0, 0, 0, 2).into()]
}

fn end_of(pair: u8, end: u8) -> IpAddr {
    IpAddr::from([10, 82, pair, end])
}

/// Lines of `ip` for a link with these addresses, usable at once.
fn addressed(link: &str, [ipv4, ipv6]: [IpAddr; 2]) -> String {
    format!("addr add {ipv4}/24 dev {link}\naddr add {ipv6}/64 dev {link} nodad\nlink set {link} up\n")
}

/// Acts in the network namespace of a process. Sockets that are made there stay there.
pub fn within<T: Send>(pid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            let net = File::open(format!("/proc/{pid}/ns/net")).expect("open a network namespace");
            setns(net, CloneFlags::CLONE_NEWNET).expect("enter a network namespace");
            act()
        });
        acting.join().expect("what is done there succeeds")
    })
}

/// How long a server may take to answer.
pub const LIMIT: Duration = Duration::from_secs(2);

/// What a server says to `GET path`, without the headers. `from` is a process in the client's network.
pub fn page(from: u32, server: SocketAddr, path: &str, limit: Duration) -> std::io::Result<String> {
    within(from, || {
        let mut stream = TcpStream::connect_timeout(&server, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.replace("\r\n", "\n").split_once("\n\n").map(|(_, body)| body.to_owned()).unwrap_or(answer))
    })
}

/// A client's socket, which sends to `server` alone. `from` is a process in the client's network.
pub fn udp_client(from: u32, server: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    within(from, || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(socket)
    })
}

/// A server's socket, for both families, which never waits. `at` is a process in the server's network.
pub fn udp_server(at: u32, port: u16) -> std::io::Result<UdpSocket> {
    within(at, || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    })
}
