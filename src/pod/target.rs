//! The target of an `httpGet` or of a port in a manifest, for probes and hooks alike.
//!
//! Owns the resolution of ports and hosts.
//!
//! Pure: what it returns depends on its arguments alone.

use crate::model::api::pod::{ContainerPort, HttpGetAction, IntOrString};

/// The parts of an `httpGet`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HttpTarget {
    pub https: bool,
    /// Name or address, without brackets; empty for this machine.
    pub host: String,
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// As the manifest gives them; `Host` sets the request's host, an empty `User-Agent` or `Accept` drops
    /// that header.
    pub headers: Vec<(String, String)>,
}

/// A manifest's port cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortError {
    /// Neither a name of one of the ports nor a number.
    Unknown(String),
    Invalid(i64),
}

/// The target of `action`; without a host of its own it is `pod_ip`.
pub(super) fn http_target(
    action: &HttpGetAction,
    ports: &[ContainerPort],
    pod_ip: &str,
) -> Result<HttpTarget, PortError> {
    let headers = action.http_headers.iter().map(|header| (header.name.clone(), header.value.clone()));
    Ok(HttpTarget {
        https: action.scheme.eq_ignore_ascii_case("https"),
        host: host_or(&action.host, pod_ip),
        port: resolve_port(&action.port, ports)?,
        path: action.path.clone(),
        headers: headers.collect(),
    })
}

/// A port by number, by name, or by a number in quotes.
pub(super) fn resolve_port(port: &IntOrString, ports: &[ContainerPort]) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => match ports.iter().find(|port| port.name == *name) {
            Some(port) => i64::from(port.container_port),
            None => name.parse().map_err(|_| PortError::Unknown(name.clone()))?,
        },
    };
    checked_port(number)
}

pub(super) fn checked_port(number: i64) -> Result<u16, PortError> {
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or(PortError::Invalid(number))
}

/// A manifest's host, which may be written as in a URL, or else the pod's address.
#[must_use]
pub(super) fn host_or(host: &str, pod_ip: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() { pod_ip.to_owned() } else { host.to_owned() }
}

impl HttpTarget {
    /// The same without TLS, for a server that does not support it. Credentials are not sent in the clear
    /// (upstream).
    #[must_use]
    pub(super) fn without_tls(&self) -> Self {
        let is_secret = |name: &str| name.eq_ignore_ascii_case("authorization");
        let headers = self.headers.iter().filter(|(name, _)| !is_secret(name)).cloned().collect();
        Self { https: false, headers, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::pod::HttpHeader;

    #[test]
    fn ports_are_found_by_number_by_name_and_by_number_in_quotes() {
        let port = |name: &str, container_port| ContainerPort {
            name: name.to_owned(),
            container_port,
            ..ContainerPort::default()
        };
        let ports = [port("web", 8080), port("81", 9), port("bad", 0)];
        let name = |text: &str| IntOrString::String(text.to_owned());
        let cases = [
            (IntOrString::Int(80), Ok(80)),
            (name("web"), Ok(8080)),
            (name("81"), Ok(9)),
            (name("443"), Ok(443)),
            (name("nope"), Err(PortError::Unknown("nope".to_owned()))),
            (name("bad"), Err(PortError::Invalid(0))),
            (name("70000"), Err(PortError::Invalid(70_000))),
            (IntOrString::Int(65536), Err(PortError::Invalid(65_536))),
            (IntOrString::Int(-1), Err(PortError::Invalid(-1))),
        ];
        for (port, expected) in cases {
            assert_eq!(resolve_port(&port, &ports), expected, "{port:?}");
        }
    }

    #[test]
    fn a_host_may_be_written_as_in_a_url() {
        assert_eq!(host_or("[fd00::1]", "10.0.0.1"), "fd00::1");
        assert_eq!(host_or("", "10.0.0.1"), "10.0.0.1");
    }

    #[test]
    fn a_request_that_loses_its_tls_loses_its_credentials_too() {
        let header = |name: &str| HttpHeader { name: name.to_owned(), value: "v".to_owned() };
        let action = HttpGetAction {
            host: "fd00::1".to_owned(),
            scheme: "HTTPS".to_owned(),
            port: IntOrString::Int(443),
            http_headers: vec![header("AUTHORIZATION"), header("X-A")],
            ..HttpGetAction::default()
        };
        let open = http_target(&action, &[], "").unwrap().without_tls();
        assert_eq!((open.https, open.headers), (false, vec![("X-A".to_owned(), "v".to_owned())]));
    }
}
