//! The node as pods and clients see it, from the configuration and the kernel.
//!
//! Owns the source of each fact.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::agent::config::{KubeletConfiguration, Resolved};
use crate::agent::kubelet::embedded;
use crate::model::cidr::Cidr;
use crate::model::node_changes::Taint;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;
use crate::node::allocatable::capacity;
use crate::node::object::{NodeState, node_uid};
use crate::platform::sys::node;
use crate::pod::admission::rules::{NodeFacts, OwnPort, go_arch, node_labels};
use crate::pod::executor::ExecutorConfig;
use crate::serve::localapi::discovery::RELEASE;

/// The facts at start. The runtime's features are added once it reports them.
#[must_use]
pub(super) fn node_facts(resolved: &Resolved, executor: &ExecutorConfig) -> NodeFacts {
    let kubelet = &resolved.kubelet;
    // The limit of pods depends on all cores, including reserved ones.
    let (most, per_core) = (i64::from(kubelet.max_pods), i64::from(kubelet.pods_per_core));
    let pods = capacity(&executor.capacity, most, per_core, 0).get("pods").map_or(most, |pods| pods.value());
    let left = &executor.allocatable;
    NodeFacts {
        name: resolved.node_name.clone(),
        labels: node_labels(
            &resolved.node_name,
            go_arch(std::env::consts::ARCH),
            &resolved.flags.node_labels,
        ),
        allocatable: capacity(left, pods, 0, left.ephemeral_bytes),
        kernel: node::kernel_version(),
        allowed_unsafe_sysctls: kubelet.allowed_unsafe_sysctls.clone(),
        allowed_devices: resolved.flags.allowed_devices.clone(),
        apparmor: node::apparmor_enabled(),
        user_namespaces: None,
        supplemental_groups_policy: None,
        pressure: BTreeSet::new(),
        is_shutting_down: false,
        agent_ports: agent_ports(kubelet),
        unschedulable: false,
        taints: configured_taints(kubelet),
        static_policies: executor.managers.policies(),
    }
}

/// The part of the `Node` object that does not change.
pub(super) fn node_state(
    resolved: &Resolved,
    executor: Option<&ExecutorConfig>,
    now: Timestamp,
) -> NodeState {
    let kubelet = &resolved.kubelet;
    let (most, per_core) = (i64::from(kubelet.max_pods), i64::from(kubelet.pods_per_core));
    let arch = go_arch(std::env::consts::ARCH);
    let mut state = NodeState {
        name: resolved.node_name.clone(),
        uid: node_uid(&resolved.node_name),
        labels: node_labels(&resolved.node_name, arch, &resolved.flags.node_labels),
        created: now,
        hostname: node::hostname().unwrap_or_default(),
        port: u16::try_from(kubelet.port).unwrap_or_default(),
        lease_seconds: kubelet.node_lease_duration_seconds,
        taints: configured_taints(kubelet),
        pod_cidrs: pod_cidrs(resolved),
        provider_id: kubelet.provider_id.clone(),
        info: info(arch),
        ..NodeState::default()
    };
    if let Some(executor) = executor {
        let has = &executor.capacity;
        state.capacity = capacity(has, most, per_core, has.ephemeral_bytes);
        let pods = state.capacity.get("pods").map_or(most, |pods| pods.value());
        state.allocatable = capacity(&executor.allocatable, pods, 0, executor.allocatable.ephemeral_bytes);
        state.addresses.clone_from(&executor.node_ips);
    }
    state
}

/// `nodeInfo` except for the runtime.
fn info(arch: &str) -> Vec<(&'static str, String)> {
    vec![
        ("architecture", arch.to_owned()),
        ("bootID", node::boot_id()),
        ("kernelVersion", node::kernel_release()),
        // A field that upstream requires and leaves empty.
        ("kubeProxyVersion", String::new()),
        ("kubeletVersion", RELEASE.to_owned()),
        ("machineID", node::first_line_of("/etc/machine-id,/var/lib/dbus/machine-id")),
        ("operatingSystem", "linux".to_owned()),
        ("osImage", node::os_image()),
        ("systemUUID", node::system_uuid()),
    ]
}

/// Those of the built-in network; other runtimes do not report their networks.
fn pod_cidrs(resolved: &Resolved) -> Vec<String> {
    if !resolved.owns_pod_network() {
        return Vec::new();
    }
    let subnets = embedded::subnets(&resolved.kubelet.pod_cidr).unwrap_or_default();
    subnets.iter().map(ToString::to_string).collect()
}

/// The TCP ports that `serving` listens on.
fn agent_ports(kubelet: &KubeletConfiguration) -> Vec<OwnPort> {
    let own = |address: &str, port: i32, setting| OwnPort { address: address.to_owned(), port, setting };
    let mut ports = vec![own(&kubelet.healthz_bind_address, kubelet.healthz_port, "healthzPort")];
    if kubelet.enable_server {
        ports.push(own(&kubelet.address, kubelet.port, "port"));
        ports.push(own(&kubelet.address, kubelet.read_only_port, "readOnlyPort"));
    }
    ports.retain(|own| own.port > 0);
    ports
}

/// `registerWithTaints`.
pub(in crate::agent::kubelet) fn configured_taints(kubelet: &KubeletConfiguration) -> Vec<Taint> {
    let taints = kubelet.register_with_taints.iter();
    taints
        .map(|taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: taint.effect.clone(),
            time_added: taint.time_added.clone(),
        })
        .collect()
}

/// `--node-ip`, otherwise the addresses of the default routes, otherwise those of the interfaces, but for those that the
/// agent itself gives them.
pub(super) fn node_ips(given: Vec<IpAddr>, own: &[Cidr]) -> Vec<String> {
    let is_own = |ip: &IpAddr| own.iter().any(|range| range.contains(*ip));
    let interfaces = || node::addresses().into_iter().filter(|ip| !is_own(ip)).collect::<Vec<_>>();
    let ips = chosen_ips(given, node::default_route_addresses, &interfaces);
    ips.iter().map(ToString::to_string).collect()
}

/// An unspecified address only says which family comes first (upstream: `nodestatus.NodeAddress`).
fn chosen_ips(
    mut given: Vec<IpAddr>,
    routes: fn() -> Vec<IpAddr>,
    interfaces: &dyn Fn() -> Vec<IpAddr>,
) -> Vec<IpAddr> {
    let is_ipv6_first = given.first().is_some_and(|ip| ip.is_unspecified() && ip.is_ipv6());
    given.retain(|ip| !ip.is_unspecified());
    if !given.is_empty() {
        return given;
    }
    let (mut ips, mut limit) = (routes(), usize::MAX);
    if ips.is_empty() {
        ips = interfaces();
        limit = 1;
    }
    ips.order_by_key(|ip| ip.is_ipv6() != is_ipv6_first);
    ips.truncate(limit);
    ips
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn an_unspecified_node_ip_chooses_the_family_only() {
        let chosen = |given: &str, routes: fn() -> Vec<IpAddr>, interfaces: &str| {
            chosen_ips(ips(given), routes, &|| ips(interfaces))
        };
        let both: fn() -> Vec<IpAddr> = || ips("192.0.2.1 2001:db8::1");
        for (given, expected) in [
            ("", "192.0.2.1 2001:db8::1"),
            ("0.0.0.0", "192.0.2.1 2001:db8::1"),
            ("::", "2001:db8::1 192.0.2.1"),
            ("198.51.100.1", "198.51.100.1"),
        ] {
            assert_eq!(chosen(given, both, "10.0.0.1"), ips(expected), "{given}");
        }
        let only_v4: fn() -> Vec<IpAddr> = || ips("192.0.2.1");
        assert_eq!(chosen("::", only_v4, "2001:db8::2"), ips("192.0.2.1"), "a route comes before a family");
        for (given, expected) in [("", "10.0.0.1"), ("0.0.0.0", "10.0.0.1"), ("::", "2001:db8::2")] {
            assert_eq!(chosen(given, Vec::new, "10.0.0.1 10.0.0.2 2001:db8::2"), ips(expected), "{given}");
        }
    }
}
