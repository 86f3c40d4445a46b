//! Names, addresses and ports of a pod: hostname, /etc/hosts, DNS, port mappings.
//!
//! Owns content.
//!
//! Pure: what it returns depends on its arguments alone.

pub mod dns;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv6Addr;

pub use self::dns::{
    DnsContext, DnsProblem, ResolvConfSource, check_host_limits, parse_resolv_conf, pod_dns,
};
use crate::model::api::pod::{HostAlias, Pod};
use crate::model::runtime_config::PortMapping;

/// Longest host name (a DNS label).
const HOSTNAME_MAX: usize = 63;
/// Longest name the kernel takes.
const FQDN_MAX: usize = 64;

/// The pod's name in the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodHostname {
    /// Without dots, normally.
    pub host: String,
    /// `<subdomain>.<namespace>.svc.<cluster domain>`; empty without a subdomain.
    pub domain: String,
}

/// `setHostnameAsFQDN` with a name the kernel does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({FQDN_MAX} characters is \
     the max, {length} characters requested)"
)]
pub(super) struct FqdnTooLong {
    fqdn: String,
    length: usize,
}

#[must_use]
pub(super) fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> PodHostname {
    let spec = &pod.spec;
    if let Some(name) = spec.hostname_override.as_ref().filter(|name| !name.is_empty()) {
        return PodHostname { host: truncated(name), domain: String::new() };
    }
    let name = if spec.hostname.is_empty() { &pod.metadata.name } else { &spec.hostname };
    let domain = if spec.subdomain.is_empty() {
        String::new()
    } else {
        format!("{}.{}.svc.{cluster_domain}", spec.subdomain, pod.metadata.namespace)
    };
    PodHostname { host: truncated(name), domain }
}

/// The hostname for the sandbox config: empty for a host-network pod, the FQDN when the pod asks for it.
pub(super) fn sandbox_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, FqdnTooLong> {
    if pod.spec.host_network && pod.spec.hostname_override.is_none() {
        return Ok(String::new());
    }
    let name = hostname_and_domain(pod, cluster_domain);
    if pod.spec.set_hostname_as_fqdn != Some(true) || name.domain.is_empty() {
        return Ok(name.host);
    }
    let fqdn = format!("{}.{}", name.host, name.domain);
    let length = fqdn.len();
    if length > FQDN_MAX { Err(FqdnTooLong { fqdn, length }) } else { Ok(fqdn) }
}

fn truncated(name: &str) -> String {
    match name.get(..HOSTNAME_MAX) {
        Some(start) if name.len() > HOSTNAME_MAX => start.trim_end_matches(['-', '.']).to_owned(),
        _ => name.to_owned(),
    }
}

/// A pod's addresses in the order of its status, whatever the runtime's order: one of the family of the
/// node's first address, then one of the other family.
#[must_use]
pub(super) fn sort_pod_ips(ips: &[String], node_ips: &[String]) -> Vec<String> {
    let is_v6 = |ip: &String| ip.parse::<Ipv6Addr>().is_ok();
    let primary_v6 = node_ips.first().is_some_and(is_v6);
    let first_of = |v6: bool| ips.iter().find(|ip| is_v6(ip) == v6).cloned();
    first_of(primary_v6).into_iter().chain(first_of(!primary_v6)).collect()
}

/// The address at which a pod is reached: the first one of its status; on the host's network the node's.
/// `None` while it is unknown.
#[must_use]
pub(super) fn pod_address(host_network: bool, sandbox_ips: &[String], node_ips: &[String]) -> Option<String> {
    if host_network {
        node_ips.first().cloned()
    } else {
        sort_pod_ips(sandbox_ips, node_ips).into_iter().next()
    }
}

/// `/etc/hosts` of a pod with its own network.
#[must_use]
pub(super) fn hosts_file(pod_ips: &[String], name: &PodHostname, aliases: &[HostAlias]) -> String {
    let mut content = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    for ip in pod_ips {
        // Writing to a String cannot fail.
        let _ = if name.domain.is_empty() {
            writeln!(content, "{ip}\t{}", name.host)
        } else {
            writeln!(content, "{ip}\t{}.{}\t{}", name.host, name.domain, name.host)
        };
    }
    content + &alias_lines(aliases)
}

/// `/etc/hosts` of a host-network pod: the node's own, given as `node_hosts`, and the pod's aliases.
#[must_use]
pub(super) fn host_network_hosts_file(node_hosts: &str, aliases: &[HostAlias]) -> String {
    format!("# Kubernetes-managed hosts file (host network).\n{node_hosts}{}", alias_lines(aliases))
}

fn alias_lines(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let lines = aliases.iter().map(|alias| format!("{}\t{}\n", alias.ip, alias.hostnames.join("\t")));
    format!("\n# Entries added by HostAliases.\n{}", lines.collect::<String>())
}

/// The ports of the regular containers, each once per container.
#[must_use]
pub(crate) fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    let mut mappings = Vec::new();
    for container in &pod.spec.containers {
        let mut seen = BTreeSet::new();
        for port in &container.ports {
            let protocol = if port.protocol.is_empty() { "TCP" } else { port.protocol.as_str() };
            let family = match (port.host_ip.is_empty(), port.host_ip.parse::<Ipv6Addr>()) {
                (true, _) => "any",
                (false, Ok(_)) => "v6",
                (false, Err(_)) => "v4",
            };
            let key = if port.name.is_empty() {
                let (inner, outer) = (port.container_port, port.host_port);
                format!("{family}-{protocol}-{}:{inner}:{outer}", port.host_ip)
            } else {
                port.name.clone()
            };
            if seen.insert(key) {
                mappings.push(PortMapping {
                    protocol: protocol.to_owned(),
                    container_port: port.container_port,
                    host_port: port.host_port,
                    host_ip: port.host_ip.clone(),
                });
            }
        }
    }
    mappings
}

#[cfg(test)]
mod tests;
