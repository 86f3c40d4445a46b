//! The target of a probe.
//!
//! Owns the resolution of ports, hosts and variables. Errors are upstream's words.

use std::collections::BTreeMap;

use crate::model::api::pod::{Container, Probe};
use crate::model::ordered::Ordered as _;
use crate::pod::env::expand;
use crate::pod::target::{HttpTarget, PortError, checked_port, host_or, http_target, resolve_port};

/// The action of a probe on a container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeTarget {
    Exec(Vec<String>),
    HttpGet(HttpTarget),
    TcpSocket {
        /// Name or address; empty for this machine.
        host: String,
        port: u16,
    },
    Grpc {
        /// The pod's address; empty for this machine.
        host: String,
        port: u16,
        /// Which service; empty for the server as a whole.
        service: String,
    },
}

/// The target of a probe of `container`. `pod_ip` is the pod's address, empty while unknown.
pub(crate) fn probe_target(
    probe: &Probe,
    container: &Container,
    pod_ip: &str,
) -> Result<ProbeTarget, String> {
    if let Some(exec) = &probe.exec {
        return Ok(ProbeTarget::Exec(expand_literally(&exec.command, container)));
    }
    if let Some(action) = &probe.http_get {
        return http_target(action, &container.ports, pod_ip)
            .map(ProbeTarget::HttpGet)
            .map_err(port_error_text);
    }
    if let Some(action) = &probe.tcp_socket {
        let port = resolve_port(&action.port, &container.ports).map_err(port_error_text)?;
        return Ok(ProbeTarget::TcpSocket { host: host_or(&action.host, pod_ip), port });
    }
    if let Some(action) = &probe.grpc {
        let port = checked_port(i64::from(action.port)).map_err(port_error_text)?;
        let service = action.service.clone().unwrap_or_default();
        return Ok(ProbeTarget::Grpc { host: pod_ip.to_owned(), port, service });
    }
    Err(format!("missing probe handler for container {}", container.name))
}

fn port_error_text(error: PortError) -> String {
    match error {
        PortError::Unknown(name) => format!("strconv.Atoi: parsing {name:?}: invalid syntax"),
        PortError::Invalid(number) => format!("invalid port number: {number}"),
    }
}

/// Expands `$(VAR)` with literal values of the manifest: a value from elsewhere counts as empty, and values
/// are not expanded themselves.
fn expand_literally(command: &[String], container: &Container) -> Vec<String> {
    let variables: BTreeMap<&str, &str> =
        container.env.iter().map(|variable| (variable.name.as_str(), variable.value.as_str())).into_map();
    command.iter().map(|word| expand(word, |name| variables.get(name).copied())).collect()
}
