//! The node's offer to pods, from the configuration and the kernel.
//!
//! Owns the source of each fact.

use std::collections::BTreeSet;

use crate::agent::config::{KubeletConfiguration, Resolved};
use crate::model::node_changes::Taint;
use crate::node::allocatable::capacity;
use crate::platform::sys::node;
use crate::pod::admission::rules::{NodeFacts, OwnPort, go_arch, node_labels};
use crate::pod::executor::ExecutorConfig;

/// The facts at start. The runtime's features are added once it reports them.
#[must_use]
pub(in crate::agent) fn node_facts(resolved: &Resolved, executor: &ExecutorConfig) -> NodeFacts {
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
        allowed_devices: resolved.agent.allowed_devices.clone(),
        apparmor: node::apparmor_enabled(),
        user_namespaces: None,
        supplemental_groups_policy: None,
        pressure: BTreeSet::new(),
        is_shutting_down: false,
        own_ports: own_ports(kubelet),
        unschedulable: false,
        taints: configured_taints(resolved),
    }
}

/// The TCP ports that [`super::serving`] listens on.
fn own_ports(kubelet: &KubeletConfiguration) -> Vec<OwnPort> {
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
pub(super) fn configured_taints(resolved: &Resolved) -> Vec<Taint> {
    let taints = resolved.kubelet.register_with_taints.iter();
    taints
        .map(|taint| Taint {
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: taint.effect.clone(),
            time_added: taint.time_added.clone(),
        })
        .collect()
}

/// `--node-ip`, otherwise the addresses of the default routes, otherwise those of the interfaces.
pub(super) fn node_ips(resolved: &Resolved) -> Vec<String> {
    let mut ips = resolved.node_ips.clone();
    if ips.is_empty() {
        ips = node::default_route_addresses();
    }
    if ips.is_empty() {
        ips = node::addresses().into_iter().take(1).collect();
    }
    ips.iter().map(ToString::to_string).collect()
}
