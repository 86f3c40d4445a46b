//! `agent resolve`: names as pods see them, for the node.
//!
//! Owns the command. It asks the DNS server of the agent, so that the node's own resolver stays as it is.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::args::{Common, Has, Own, UsageError};
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, api, print};
use crate::platform::rt;
use crate::service::dns::message::{A, AAAA, Found, PTR, Query, RecordData, read_answer};

const HELP: &str = "\
Print the addresses of a name as the DNS server for pods knows it, or the name of an address.

Usage: agent resolve NAME [options]

  agent resolve web                  the Service web in namespace default
  agent resolve web.shop             the Service web in namespace shop
  agent resolve example.com          any other name
  agent resolve 10.96.0.1            the name of an address

Options:
  -n, --namespace NAME      Namespace of a name without dots (default \"default\")
      --socket PATH         Socket of the agent (default /run/agent/agent.sock)
  -h, --help                Show this help

Exit status: 0 on success, 1 if there is no such name or no DNS server, 2 for bad usage.
";

const SERVER: &str = "/api/v1/namespaces/kube-system/services/kube-dns";
const PORT: u16 = 53;
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
        print(environment, HELP)?;
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
        ask(server, name, kind)
            .map_err(|error| CliError::Answer(format!("ask the DNS server {server}: {error}")))
    };
    let found = if let Ok(ip) = name.parse::<IpAddr>() {
        lines(&ask(&reversed(ip), PTR)?)
    } else {
        let domain = domain(&ask(&reversed(server), PTR)?);
        let mut found = Vec::new();
        for candidate in candidates(&name, common.namespace.as_deref().unwrap_or("default"), &domain) {
            found.extend(lines(&ask(&candidate, A)?));
            found.extend(lines(&ask(&candidate, AAAA)?));
            if !found.is_empty() {
                break;
            }
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

fn ask(server: IpAddr, name: &str, kind: u16) -> io::Result<Found> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(SocketAddr::new(server, PORT))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let query = Query::new(1, name, kind);
    socket.send(&query.to_bytes())?;
    let mut bytes = [0; 4096];
    let length = socket.recv(&mut bytes)?;
    let bytes = &bytes[..length];
    let found = read_answer(bytes).filter(|_| query.is_answered_by(bytes));
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

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
