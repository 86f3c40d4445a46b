//! The DNS server of the lone box: names of Services, and everything else from the servers of the node.
//!
//! Owns its sockets. It answers pods of this node and the node itself, no other machine. Queries over UDP are answered in
//! the order they arrive; those that wait for another server wait in tasks of their own, of which there are few.

pub mod cache;
pub mod forward;
pub mod message;
pub mod zone;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::forward::{Forwarder, framed};
use self::message::{Answer, CNAME, Query, Rcode, Record, RecordData, read_query};
use self::zone::{Decision, Zone};
use super::table::Entry;
use crate::model::cidr::Cidr;
use crate::platform::rt;
use crate::platform::sys::listeners;

/// A query is far smaller.
const MAX_QUERY: usize = 4096;
const MAX_CONNECTIONS: usize = 32;
/// A connection that is idle for so long is closed.
const IDLE: Duration = Duration::from_secs(10);
/// Queries over UDP that wait for another server.
const MAX_PENDING: usize = 128;
/// Aliases that are followed.
const MAX_ALIASES: usize = 8;
/// A socket that fails would fail again at once.
const RETRY: Duration = Duration::from_secs(1);
const MAX_TCP_ANSWER: usize = 65_535;

/// Where the server listens. Not at port 53, which programs of the node bind at all addresses: the rules lead from there
/// to here.
pub(crate) const PORT: u16 = 10_053;

/// What the server answers with; the driver keeps it current.
pub(crate) struct Names {
    pub domain: String,
    pub ranges: Vec<Cidr>,
    pub entries: RefCell<Rc<Vec<Rc<Entry>>>>,
    /// Addresses of pods outside of the ranges.
    pub foreign_pods: RefCell<Rc<std::collections::BTreeSet<IpAddr>>>,
    /// Of pods of the built-in network.
    pub pod_ranges: Vec<Cidr>,
}

pub(crate) struct DnsServer {
    names: Rc<Names>,
    forwarder: Forwarder,
    pending: Cell<usize>,
    connections: Cell<usize>,
}

/// Ends the server when it is dropped.
pub(crate) struct Serving(Vec<JoinHandle<()>>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// An answer, or the query that another server has to answer.
enum DnsReply {
    Bytes(Vec<u8>),
    Ask(Box<Query>),
    Follow(Box<Query>, Record),
    Nothing,
}

impl DnsServer {
    #[must_use]
    pub(crate) fn new(names: Rc<Names>, forwarder: Forwarder) -> Rc<Self> {
        Rc::new(Self { names, forwarder, pending: Cell::new(0), connections: Cell::new(0) })
    }

    /// Listens at these addresses, at [`PORT`].
    ///
    /// # Errors
    /// The address that cannot be bound.
    pub(crate) async fn listen(
        self: &Rc<Self>,
        addresses: &[IpAddr],
    ) -> Result<Serving, (SocketAddr, io::Error)> {
        let mut serving = Serving(Vec::new());
        for ip in addresses {
            let at = SocketAddr::new(*ip, PORT);
            let udp = UdpSocket::bind(at).await.map_err(|error| (at, error))?;
            let tcp = TcpListener::bind(at).await.map_err(|error| (at, error))?;
            serving.0.push(rt::spawn("DNS over UDP", Rc::clone(self).serve_datagrams(Rc::new(udp))));
            serving.0.push(rt::spawn("DNS over TCP", Rc::clone(self).serve_streams(tcp)));
        }
        Ok(serving)
    }

    async fn serve_datagrams(self: Rc<Self>, socket: Rc<UdpSocket>) {
        let mut buffer = vec![0; MAX_QUERY];
        loop {
            let Ok((length, peer)) = socket.recv_from(&mut buffer).await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            if !self.is_client(peer.ip()) {
                continue;
            }
            let (query, record) = match self.reply(&buffer[..length], None) {
                DnsReply::Nothing => continue,
                DnsReply::Bytes(bytes) => {
                    // A client that is gone, or a full queue: the client asks again.
                    let _ = socket.try_send_to(&bytes, peer);
                    continue;
                }
                DnsReply::Ask(query) => (query, None),
                DnsReply::Follow(query, record) => (query, Some(record)),
            };
            if self.pending.get() >= MAX_PENDING {
                let _ = socket
                    .try_send_to(&query.answer(&Answer::failure(Rcode::ServerFailure), MAX_QUERY), peer);
                continue;
            }
            self.pending.set(self.pending.get() + 1);
            // A query that waits does not keep the socket of a server that has ended.
            let (server, socket) = (Rc::clone(&self), Rc::downgrade(&socket));
            rt::spawn("DNS query", async move {
                let bytes = server.ask(&query, record, query.most_bytes(), false).await;
                if let Some(socket) = socket.upgrade() {
                    let _ = socket.try_send_to(&bytes, peer);
                }
                server.pending.set(server.pending.get() - 1);
            });
        }
    }

    async fn serve_streams(self: Rc<Self>, listener: TcpListener) {
        loop {
            let Ok((stream, peer)) = listener.accept().await else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            if !self.is_client(peer.ip()) || self.connections.get() >= MAX_CONNECTIONS {
                continue;
            }
            self.connections.set(self.connections.get() + 1);
            let server = Rc::clone(&self);
            rt::spawn("DNS connection", async move {
                // The peer's end of the connection, or what it sent, is no reason to report anything.
                let _ = server.serve_stream(stream).await;
                server.connections.set(server.connections.get() - 1);
            });
        }
    }

    async fn serve_stream(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            let length = usize::from(timeout(IDLE, stream.read_u16()).await??);
            if length > MAX_QUERY {
                return Ok(());
            }
            buffer.resize(length, 0);
            timeout(IDLE, stream.read_exact(&mut buffer)).await??;
            let bytes = match self.reply(&buffer, Some(MAX_TCP_ANSWER)) {
                DnsReply::Nothing => return Ok(()),
                DnsReply::Bytes(bytes) => bytes,
                DnsReply::Ask(query) => self.ask(&query, None, MAX_TCP_ANSWER, true).await,
                DnsReply::Follow(query, record) => self.ask(&query, Some(record), MAX_TCP_ANSWER, true).await,
            };
            timeout(IDLE, stream.write_all(&framed(&bytes))).await??;
        }
    }

    /// What is answered at once, if anything is; `most` replaces the size that the client takes.
    fn reply(&self, bytes: &[u8], most: Option<usize>) -> DnsReply {
        let query = match read_query(bytes) {
            Ok(query) => query,
            Err(Some(refusal)) => return DnsReply::Bytes(refusal),
            Err(None) => return DnsReply::Nothing,
        };
        let most = most.unwrap_or_else(|| query.most_bytes());
        match self.decide(&query) {
            Decision::Answer(answer) => DnsReply::Bytes(query.answer(&answer, most)),
            Decision::Follow(record) => DnsReply::Follow(Box::new(query), record),
            Decision::Forward => match self.forwarder.known(&query).filter(|bytes| bytes.len() <= most) {
                Some(known) => DnsReply::Bytes(known),
                None => DnsReply::Ask(Box::new(query)),
            },
        }
    }

    fn decide(&self, query: &Query) -> Decision {
        let entries = Rc::clone(&self.names.entries.borrow());
        Zone { domain: &self.names.domain, entries: &entries, ranges: &self.names.ranges }.decide(query)
    }

    async fn ask(&self, query: &Query, alias: Option<Record>, most: usize, by_tcp: bool) -> Vec<u8> {
        match alias {
            None => self.forwarder.ask(query, most, by_tcp).await,
            Some(record) => query.answer(&self.follow(query, record).await, most),
        }
    }

    /// The alias, and what it leads to.
    async fn follow(&self, query: &Query, record: Record) -> Answer {
        let mut answer =
            Answer { rcode: Rcode::NoError, is_authoritative: true, records: Vec::new(), zone: None };
        let mut next = Some(record);
        while let Some(record) = next.take() {
            let RecordData::Alias(target) = record.data.clone() else { break };
            answer.records.push(record);
            if query.kind == CNAME || answer.records.len() > MAX_ALIASES {
                break;
            }
            match self.decide(&Query::new(0, &target, query.kind)) {
                Decision::Answer(found) => answer.records.extend(found.records),
                Decision::Follow(record) => next = Some(record),
                Decision::Forward => match self.forwarder.look_up(&target, query.kind).await {
                    Some(found) => answer.records.extend(found.records),
                    None => return Answer::failure(Rcode::ServerFailure),
                },
            }
        }
        answer
    }

    /// Pods of this node, and the node itself.
    fn is_client(&self, peer: IpAddr) -> bool {
        let names = &self.names;
        names.pod_ranges.iter().any(|range| range.contains(peer))
            || names.foreign_pods.borrow().contains(&peer)
            || listeners::is_own_address(peer)
    }
}

#[cfg(test)]
mod tests;
