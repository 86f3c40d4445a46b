//! Host ports of a pod on which a host process listens.
//!
//! Owns the warning.
//!
//! The rules that lead a host port to its pod come before the node's own sockets, with every runtime: from
//! then on the process gets no new connections. That is no reason to keep the pod down, as after a boot
//! either may come first; it is only reported.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use super::Executor;
use crate::model::api::pod::Pod;
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::PortMapping;
use crate::platform::rt;
use crate::platform::sys::listeners::{Listener, TCP, Tables, UDP, listeners};
use crate::pod::admission::rules::addresses_overlap;
use crate::pod::events::EventType;
use crate::pod::network::port_mappings;
use crate::runtime::Runtime;

const CHECK: &str = "check listeners on host ports";

/// The ports of running pods on which a host process listens now: namespace and name of the pod, and a message.
pub(crate) async fn port_conflicts(pods: &[Pod]) -> Vec<(String, String)> {
    let has_ports = |pod: &&Pod| {
        !pod.spec.host_network && !pod.status.pod_ips.is_empty() && pod.metadata.deletion_timestamp.is_none()
    };
    let of = |pod: &Pod| {
        let mappings: Vec<_> =
            port_mappings(pod).into_iter().filter(|mapping| mapping.host_port > 0).collect();
        let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        (!mappings.is_empty()).then_some((name, mappings))
    };
    let wanted: Vec<_> = pods.iter().filter(has_ports).filter_map(of).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let all = move || {
        let of = |(name, mappings): &(String, Vec<_>)| {
            find_conflicts(mappings).into_iter().map(|message| (name.clone(), message)).collect::<Vec<_>>()
        };
        wanted.iter().flat_map(of).collect()
    };
    rt::blocking(CHECK, all).await
}

impl<R: Runtime> Executor<R> {
    pub(super) async fn report_port_conflicts(&self, pod: &Pod, mappings: &[PortMapping]) {
        let mappings: Vec<_> = mappings.iter().filter(|mapping| mapping.host_port > 0).cloned().collect();
        // A pod on the node's network binds ports as any process does: it cannot bind one in use.
        if mappings.is_empty() || pod.spec.host_network {
            return;
        }
        let conflicts = rt::blocking(CHECK, move || find_conflicts(&mappings)).await;
        for message in conflicts {
            self.pod_event(pod, EventType::Warning, "HostPortConflict", &message);
        }
    }
}

fn find_conflicts(mappings: &[PortMapping]) -> BTreeSet<String> {
    let of = |protocol: &str, tables: Tables| {
        let mappings: Vec<_> = mappings.iter().filter(|mapping| mapping.protocol == protocol).collect();
        let ports: Vec<u16> =
            mappings.iter().filter_map(|mapping| u16::try_from(mapping.host_port).ok()).collect();
        let found = if ports.is_empty() { Vec::new() } else { listeners(Path::new("/"), tables, &ports) };
        let meets = |found: &Listener| {
            mappings.iter().any(|mapping| {
                mapping.host_port == i32::from(found.port) && overlaps(&mapping.host_ip, found.address)
            })
        };
        let message = |found: &Listener| message(found, protocol);
        found.iter().filter(|found| meets(found)).map(message).collect::<Vec<_>>()
    };
    of("TCP", TCP).into_iter().chain(of("UDP", UDP)).into_set()
}

/// No rule leads `::1` of the node to a pod: the kernel routes it nowhere.
fn overlaps(host_ip: &str, listens: IpAddr) -> bool {
    listens != IpAddr::V6(Ipv6Addr::LOCALHOST) && addresses_overlap(host_ip, &listens.to_string())
}

fn message(found: &Listener, protocol: &str) -> String {
    let Listener { address, port, process } = found;
    let who = match process {
        Some((name, pid)) => format!("{name} (process {pid})"),
        None => "a host process".to_owned(),
    };
    format!(
        "host port {port}/{protocol} is now forwarded to this pod instead of {who}, which listens on \
         {address}: stop that process, or use another hostPort"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(host_ip: &str, protocol: &str, host_port: u16) -> PortMapping {
        PortMapping {
            protocol: protocol.to_owned(),
            container_port: 80,
            host_port: host_port.into(),
            host_ip: host_ip.to_owned(),
        }
    }

    #[test]
    fn a_listener_whose_port_a_pod_takes_is_named() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let said = find_conflicts(&[mapping("", "TCP", port), mapping("127.0.0.1", "TCP", port)]);
        let said = said.into_iter().collect::<Vec<_>>().join("\n");
        assert!(said.starts_with(&format!("host port {port}/TCP is now forwarded to this pod")), "{said}");
        let who = format!("(process {}), which listens on 127.0.0.1: ", std::process::id());
        assert!(said.contains(&who) && !said.contains('\n'), "{said}");
        for free in [mapping("192.0.2.1", "TCP", port), mapping("", "UDP", port), mapping("", "SCTP", port)] {
            assert!(find_conflicts(std::slice::from_ref(&free)).is_empty(), "{free:?}");
        }
    }
}
