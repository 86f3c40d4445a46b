//! What a probe asks, and whom.
//!
//! Owns the look-up of ports, hosts and commands. Must not know how a question is put. Errors are upstream's words.

use std::collections::BTreeMap;

use crate::api::pod::{Container, HttpGetAction, IntOrString, Probe};
use crate::reconcile::env::expand;

/// One question to a container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeTarget {
    /// A command in the container.
    Exec(Vec<String>),
    /// A GET.
    HttpGet(HttpTarget),
    /// A connection.
    TcpSocket {
        /// Name or address; empty for this machine.
        host: String,
        /// Port.
        port: u16,
    },
    /// A gRPC health check.
    Grpc {
        /// The pod's address; empty for this machine.
        host: String,
        /// Port.
        port: u16,
        /// Which service; empty for the server as a whole.
        service: String,
    },
}

/// The parts of an `httpGet`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpTarget {
    /// Scheme `HTTPS`.
    pub https: bool,
    /// Name or address; empty for this machine.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// As the manifest gives them.
    pub headers: Vec<(String, String)>,
}

/// What a probe of `container` asks. `pod_ip` is where the pod answers, empty while unknown.
///
/// # Errors
/// There is no such port; a probe without a handler.
pub fn probe_target(probe: &Probe, container: &Container, pod_ip: &str) -> Result<ProbeTarget, String> {
    if let Some(exec) = &probe.exec {
        return Ok(ProbeTarget::Exec(expand_literally(&exec.command, container)));
    }
    if let Some(action) = &probe.http_get {
        return http_target(action, container, pod_ip).map(ProbeTarget::HttpGet);
    }
    if let Some(action) = &probe.tcp_socket {
        let port = resolve_port(&action.port, container)?;
        return Ok(ProbeTarget::TcpSocket { host: host_or(&action.host, pod_ip), port });
    }
    if let Some(action) = &probe.grpc {
        let port = checked_port(i64::from(action.port))?;
        let service = action.service.clone().unwrap_or_default();
        return Ok(ProbeTarget::Grpc { host: pod_ip.to_owned(), port, service });
    }
    Err(format!("missing probe handler for container {}", container.name))
}

/// What an `httpGet` of a probe or hook asks.
///
/// # Errors
/// There is no such port.
pub fn http_target(
    action: &HttpGetAction,
    container: &Container,
    pod_ip: &str,
) -> Result<HttpTarget, String> {
    let headers = action.http_headers.iter().map(|header| (header.name.clone(), header.value.clone()));
    Ok(HttpTarget {
        https: action.scheme.eq_ignore_ascii_case("https"),
        host: host_or(&action.host, pod_ip),
        port: resolve_port(&action.port, container)?,
        path: action.path.clone(),
        headers: headers.collect(),
    })
}

/// A port by number, by name, or by a number in quotes.
///
/// # Errors
/// It is none of these.
pub fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => match container.ports.iter().find(|port| port.name == *name) {
            Some(port) => i64::from(port.container_port),
            None => name.parse().map_err(|_| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?,
        },
    };
    checked_port(number)
}

fn checked_port(number: i64) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("invalid port number: {number}"))
}

fn host_or(host: &str, pod_ip: &str) -> String {
    if host.is_empty() { pod_ip.to_owned() } else { host.to_owned() }
}

/// `$(VAR)` by what the manifest says literally: a value from elsewhere counts as empty, and values are not expanded
/// themselves.
fn expand_literally(command: &[String], container: &Container) -> Vec<String> {
    let variables: BTreeMap<&str, &str> =
        container.env.iter().map(|variable| (variable.name.as_str(), variable.value.as_str())).collect();
    command.iter().map(|word| expand(word, |name| variables.get(name).copied())).collect()
}
