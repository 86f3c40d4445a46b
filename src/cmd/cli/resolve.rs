//! `agent resolve`: names as pods see them, for the node.
//!
//! Owns the command. It asks the DNS server of the agent, so that the node's own resolver stays as it is.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use super::args::{Common, Has, Own, UsageError};
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, api, print};
use crate::cmd::help;
use crate::platform::rt;
use crate::service::dns::forward::framed;
use crate::service::dns::message::{A, AAAA, Found, PTR, Query, RecordData, read_answer};

const SERVER: &str = "/api/v1/namespaces/kube-system/services/kube-dns";
const PORT: u16 = 53;
const NO_ERROR: u16 = 0;
const SERVER_FAILURE: u16 = 2;
const NAME_ERROR: u16 = 3;
const REFUSED: u16 = 5;
/// The agent answers at once, or waits for two rounds of the node's servers.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let mut name = None;
    let common = Common::parse(arguments, Has::Namespace, &mut |own, _| {
        match own {
            Own::Word(word) if name.is_none() => name = Some(word.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })
    .map_err(CliError::Usage)?;
    if common.help {
        print(environment, &help::text("resolve"))?;
        return Ok(EXIT_OK);
    }
    let Some(name) = name else {
        let message = "missing name: agent resolve NAME".to_owned();
        return Err(CliError::Usage(UsageError::Option { message }));
    };
    let service = rt::run(api::fetch(&common.socket, SERVER, api::OBJECTS)).map_err(CliError::Runtime)??;
    let address = service["spec"]["clusterIP"].as_str().and_then(|ip| ip.parse().ok());
    let server: IpAddr =
        address.ok_or_else(|| CliError::Answer("the agent has no DNS server for pods".to_owned()))?;
    let ask = |name: &str, kind: u16| {
        ask(SocketAddr::new(server, PORT), name, kind, PATIENCE)
            .map_err(|error| CliError::Answer(no_answer(server, &error)))
    };
    let found = if let Ok(ip) = name.parse::<IpAddr>() {
        let found = ask(&reversed(ip), PTR)?;
        check(&found, &name)?;
        lines(&found)
    } else {
        let domain = domain(&ask(&reversed(server), PTR)?);
        let mut found = Vec::new();
        for candidate in candidates(&name, common.namespace.as_deref().unwrap_or("default"), &domain) {
            let answers = [ask(&candidate, A)?, ask(&candidate, AAAA)?];
            found.extend(answers.iter().flat_map(lines));
            if !found.is_empty() {
                break;
            }
            answers.iter().try_for_each(|answer| check(answer, &candidate))?;
        }
        found
    };
    if found.is_empty() {
        // The write may fail: standard error may be closed.
        let _ = writeln!(environment.err, "error: {name}: no such name");
        return Ok(EXIT_FAILED);
    }
    print(environment, &found.concat())?;
    Ok(EXIT_OK)
}

/// The names that a pod would try (`ndots:5`).
fn candidates(name: &str, namespace: &str, domain: &str) -> Vec<String> {
    if let Some(whole) = name.strip_suffix('.') {
        return vec![whole.to_owned()];
    }
    let within = [
        format!("{name}.{namespace}.svc.{domain}"),
        format!("{name}.svc.{domain}"),
        format!("{name}.{domain}"),
    ];
    within.into_iter().chain([name.to_owned()]).collect()
}

/// The cluster's domain, from the name of the server itself.
fn domain(found: &Found) -> String {
    let names = found.records.iter().filter_map(|record| match &record.data {
        RecordData::Pointer(name) => name.split_once(".svc."),
        _ => None,
    });
    names.map(|(_, domain)| domain.to_owned()).next().unwrap_or_else(|| "cluster.local".to_owned())
}

fn lines(found: &Found) -> Vec<String> {
    let line = |data: &RecordData| match data {
        RecordData::Address(ip) => Some(format!("{ip}\n")),
        RecordData::Pointer(name) => Some(format!("{name}\n")),
        _ => None,
    };
    found.records.iter().filter_map(|record| line(&record.data)).collect()
}

fn reversed(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(ip) => {
            let nibbles = ip.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            nibbles.map(|nibble| format!("{nibble:x}.")).collect::<Vec<_>>().concat() + "ip6.arpa"
        }
    }
}

/// An error for an answer that says neither what there is nor that there is nothing.
fn check(found: &Found, name: &str) -> Result<(), CliError> {
    match found.rcode {
        NO_ERROR | NAME_ERROR => Ok(()),
        SERVER_FAILURE | REFUSED => {
            Err(CliError::Answer(format!("{name}: the DNS servers of the node do not answer")))
        }
        rcode => Err(CliError::Answer(format!("{name}: the DNS server answers with error {rcode}"))),
    }
}

fn no_answer(server: IpAddr, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock
        | ErrorKind::TimedOut
        | ErrorKind::ConnectionRefused
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable => {
            format!("no answer from the DNS server {server}; it runs while there are pods or Services")
        }
        _ => format!("ask the DNS server {server}: {error}"),
    }
}

fn ask(server: SocketAddr, name: &str, kind: u16, patience: Duration) -> io::Result<Found> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(patience))?;
    let query = Query::new(1, name, kind);
    socket.send(&query.to_bytes())?;
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes)?;
    let found = read(&query, &bytes[..length])?;
    if found.is_cut { ask_by_tcp(server, &query, patience) } else { Ok(found) }
}

/// The whole of an answer that was cut.
fn ask_by_tcp(server: SocketAddr, query: &Query, patience: Duration) -> io::Result<Found> {
    let mut stream = TcpStream::connect_timeout(&server, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(&framed(&query.to_bytes()))?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut bytes)?;
    read(query, &bytes)
}

fn read(query: &Query, bytes: &[u8]) -> io::Result<Found> {
    let found = read_answer(bytes).filter(|_| query.is_answered_by(bytes));
    found.ok_or_else(|| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::service::dns::message::{Answer, Rcode, Record, read_query};

    /// A server that answers one question by UDP with up to 512 bytes, and the next one by TCP.
    fn server(addresses: u8) -> SocketAddr {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(at).unwrap();
        let reply = move |bytes: &[u8], most: usize| {
            let query = read_query(bytes).unwrap();
            let record = |last: u8| {
                let data = RecordData::Address(IpAddr::from([192, 0, 2, last]));
                Record { name: query.name.clone(), ttl: 5, data }
            };
            let records = (0..addresses).map(record).collect();
            query.answer(&Answer { records, ..Answer::failure(Rcode::NoError) }, most)
        };
        let serve = move || {
            let mut bytes = [0; 512];
            let (length, peer) = udp.recv_from(&mut bytes).unwrap();
            udp.send_to(&reply(&bytes[..length], 512), peer).unwrap();
            let (mut stream, _) = tcp.accept().unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&framed(&reply(&bytes, 65_535))).unwrap();
        };
        crate::platform::rt::spawn_thread("dns", serve).unwrap();
        at
    }

    #[test]
    fn an_answer_that_was_cut_is_asked_for_again() {
        let patience = Duration::from_secs(5);
        assert_eq!(lines(&ask(server(2), "a.com", A, patience).unwrap()).len(), 2);
        assert_eq!(lines(&ask(server(100), "a.com", A, patience).unwrap()).len(), 100);
    }

    #[test]
    fn a_failure_is_not_a_name_that_does_not_exist() {
        let shown = |rcode: u16| {
            let found = Found { rcode, ..Found::default() };
            check(&found, "a.com").map_err(|error| error.to_string())
        };
        assert_eq!((shown(0), shown(3)), (Ok(()), Ok(())));
        assert_eq!(shown(2), Err("a.com: the DNS servers of the node do not answer".to_owned()));
        assert_eq!(shown(4), Err("a.com: the DNS server answers with error 4".to_owned()));
    }

    #[test]
    fn a_server_that_is_silent_is_named() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = silent.local_addr().unwrap();
        let error = ask(at, "a.com", A, Duration::from_millis(20)).unwrap_err();
        assert_eq!(
            no_answer(at.ip(), &error),
            "no answer from the DNS server 127.0.0.1; it runs while there are pods or Services"
        );
    }

    #[test]
    fn names_are_tried_as_a_pod_tries_them() {
        assert_eq!(
            candidates("web", "shop", "cluster.local"),
            ["web.shop.svc.cluster.local", "web.svc.cluster.local", "web.cluster.local", "web"]
        );
        assert_eq!(candidates("example.com.", "shop", "cluster.local"), ["example.com"]);
        assert_eq!(reversed("10.96.0.10".parse().unwrap()), "10.0.96.10.in-addr.arpa");
        let six = reversed("fd00:96::a".parse().unwrap());
        assert_eq!(six, "a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa");
    }
}
