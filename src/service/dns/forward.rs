//! Questions about other names: passed on to the servers of the node.
//!
//! Owns the choice of the server, and the answers that are kept.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout};

use super::cache::Cache;
use super::message::{Answer, Found, Query, Rcode, cut, read_answer};
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::platform::rt::live::Live;
use crate::pod::executor::PodSettings;
use crate::pod::network::parse_resolv_conf;

/// As many as the resolver of the C library reads.
const MAX_SERVERS: usize = 3;
/// A server that has not answered by then is slower than the next one, or gone.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);
/// Clients try again after five seconds.
const ROUNDS: usize = 2;
/// The longest time for which the servers of the node are taken to be as they were.
const REREAD: Duration = Duration::from_secs(3);
/// Questions that wait for servers at once; each has a socket.
const MAX_WAITING: usize = 64;
/// What servers may send: queries name [`super::message::MAX_UDP_SIZE`].
const MAX_ANSWER: usize = 4096;
const DNS_PORT: u16 = 53;

/// Where the node's servers are found.
pub(crate) struct ForwardConfig {
    /// Without a `resolvConf` nothing is passed on.
    pub pods: Live<PodSettings>,
    /// The agent's own server, which is not asked.
    pub own: Vec<IpAddr>,
    /// For tests; 53 otherwise.
    pub port: u16,
}

impl ForwardConfig {
    #[must_use]
    pub(crate) fn new(pods: Live<PodSettings>, own: Vec<IpAddr>) -> Self {
        Self { pods, own, port: DNS_PORT }
    }
}

pub(crate) struct Forwarder {
    config: ForwardConfig,
    clock: Clock,
    servers: RefCell<(Option<Instant>, Vec<IpAddr>)>,
    /// The server that answered last.
    preferred: Cell<usize>,
    waiting: Cell<usize>,
    cache: RefCell<Cache>,
}

impl Forwarder {
    #[must_use]
    pub(crate) fn new(config: ForwardConfig, clock: Clock) -> Self {
        Self {
            config,
            clock,
            servers: RefCell::default(),
            preferred: Cell::new(0),
            waiting: Cell::new(0),
            cache: RefCell::default(),
        }
    }

    /// The answer if it is known.
    #[must_use]
    pub(crate) fn known(&self, query: &Query) -> Option<Vec<u8>> {
        self.cache.borrow().find(query, self.clock.now())
    }

    /// The answer of one of the node's servers, of at most so many bytes.
    pub(crate) async fn ask(&self, query: &Query, most: usize, by_tcp: bool) -> Vec<u8> {
        match self.found(query, by_tcp).await {
            Some((bytes, _)) if bytes.len() <= most => query.pass_on(&bytes, &[], 0),
            Some((bytes, _)) => cut(&bytes, query),
            None => query.answer(&Answer::failure(Rcode::ServerFailure), most),
        }
    }

    /// The answer to a question of the agent's own.
    pub(crate) async fn look_up(&self, name: &str, kind: u16) -> Option<Found> {
        let query = Query::new(0, name, kind);
        if let Some(known) = self.known(&query) {
            return read_answer(&known);
        }
        let (_, found) = self.found(&query, false).await?;
        if found.is_cut { self.found(&query, true).await.map(|(_, found)| found) } else { Some(found) }
    }

    async fn found(&self, query: &Query, by_tcp: bool) -> Option<(Vec<u8>, Found)> {
        if self.waiting.get() >= MAX_WAITING {
            return None;
        }
        let _place = Place::take(&self.waiting);
        let servers = self.servers().await;
        let first = self.preferred.get();
        let mut refused = None;
        for position in 0..servers.len() * ROUNDS {
            let at = (first + position) % servers.len();
            let to = SocketAddr::new(servers[at], self.config.port);
            // An id that others do not know, from a port that they do not know.
            let asked = query.with_id(u16::try_from(Dice::System.between(0, 0xffff)).unwrap_or_default());
            let answer = timeout(ANSWER_TIMEOUT, async {
                if by_tcp { by_stream(to, &asked).await } else { by_datagram(to, &asked).await }
            });
            let Ok(Ok(bytes)) = answer.await else { continue };
            let Some(found) = read_answer(&bytes) else { continue };
            // Another server may know.
            if matches!(found.rcode, 0 | 3) {
                self.preferred.set(at);
                self.cache.borrow_mut().keep(query, &bytes, &found, self.clock.now());
                return Some((bytes, found));
            }
            refused = Some((bytes, found));
            if position + 1 >= servers.len() {
                break;
            }
        }
        refused
    }

    /// The servers of the node, read again when that was a while ago.
    async fn servers(&self) -> Vec<IpAddr> {
        let (read, known) = self.servers.borrow().clone();
        if read.is_some_and(|read| read.elapsed() < REREAD) {
            return known;
        }
        let path = self.config.pods.get().resolv_conf.clone();
        let text = rt::blocking("read resolv.conf", move || {
            path.and_then(|path| std::fs::read_to_string(path).ok())
        });
        let text = text.await.unwrap_or_default();
        let listed = parse_resolv_conf(&text).servers;
        let mut servers: Vec<IpAddr> = listed.iter().filter_map(|server| server.parse().ok()).collect();
        servers.retain(|server| !self.config.own.contains(server));
        servers.truncate(MAX_SERVERS);
        if servers != known {
            self.preferred.set(0);
            self.cache.borrow_mut().clear();
        }
        *self.servers.borrow_mut() = (Some(Instant::now()), servers.clone());
        servers
    }
}

/// One of the questions that wait; dropped with its task.
struct Place<'f>(&'f Cell<usize>);

impl<'f> Place<'f> {
    fn take(waiting: &'f Cell<usize>) -> Self {
        waiting.set(waiting.get() + 1);
        Self(waiting)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn by_datagram(to: SocketAddr, query: &Query) -> std::io::Result<Vec<u8>> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    socket.send(&query.to_bytes()).await?;
    let mut bytes = vec![0; MAX_ANSWER];
    loop {
        let length = socket.recv(&mut bytes).await?;
        // Anything else is not from that server, or late.
        if query.is_answered_by(&bytes[..length]) {
            bytes.truncate(length);
            bytes.shrink_to_fit();
            return Ok(bytes);
        }
    }
}

async fn by_stream(to: SocketAddr, query: &Query) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to).await?;
    let bytes = query.to_bytes();
    stream.write_all(&framed(&bytes)).await?;
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    if query.is_answered_by(&bytes) { Ok(bytes) } else { Err(std::io::ErrorKind::InvalidData.into()) }
}

/// A message as streams carry it: after its length.
#[must_use]
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], &message[..usize::from(length)]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[tokio::test(start_paused = true)]
    async fn servers_are_those_of_the_file_that_is_set_now() {
        rt::run_jobs_inline();
        let directory = TempDir::new();
        directory.put("stub", "nameserver 127.0.0.53\n");
        directory.put("real", "nameserver 192.0.2.1\n");
        let set =
            |name: &str| PodSettings { resolv_conf: Some(directory.join(name)), ..PodSettings::default() };
        let pods = Live::new(set("stub"));
        let forwarder = Forwarder::new(ForwardConfig::new(pods.clone(), Vec::new()), Clock::System);
        assert_eq!(forwarder.servers().await, ["127.0.0.53".parse::<IpAddr>().unwrap()]);
        pods.set(set("real"));
        tokio::time::advance(REREAD).await;
        assert_eq!(forwarder.servers().await, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    }
}
