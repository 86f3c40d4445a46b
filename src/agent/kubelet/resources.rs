//! The node's capacity and allocatable resources: measured once at start, and combined with the
//! configuration.
//!
//! Owns the measuring. The arithmetic is in `node::allocatable`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::agent::config::{KubeletConfiguration, Resolved};
use crate::model::api::pod::ResourceList;
use crate::model::api::quantity::Quantity;
use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::CgroupDriver;
use crate::node::allocatable::{
    Enforce, Reserved, allocatable, as_seen_by_pods, capacity, count_cpus, eviction_reserve,
    excessive_reservations, node_values, reserved_values,
};
use crate::platform::cgroup::CgroupConfig;
use crate::platform::sys::node;
use crate::pod::executor::{NodeCgroups, ReservedCgroup, ShareError, node_ids};
use crate::pod::resources::{CgroupLayout, NodeCapacity, ResourceFlags};
use crate::pod::users::{DEFAULT_IDS_PER_POD, NodeIds};

pub(super) struct NodeResources {
    pub capacity: NodeCapacity,
    /// The part available to pods.
    pub allocatable: NodeCapacity,
    /// How resources are translated to cgroup values.
    pub flags: ResourceFlags,
    /// The names of pod cgroups.
    pub layout: CgroupLayout,
    /// The location of pod cgroups.
    pub cgroup: CgroupConfig,
    /// The values of the cgroups above them.
    pub node_cgroups: NodeCgroups,
}

/// Measures the node.
///
/// # Errors
/// More is reserved than exists, with upstream's message.
pub(super) fn measure(resolved: &Resolved) -> Result<NodeResources, String> {
    let kubelet = &resolved.kubelet;
    let node = node_capacity(&resolved.flags.root_dir, kubelet.local_storage_capacity_isolation);
    let whole =
        capacity(&node, i64::from(kubelet.max_pods), i64::from(kubelet.pods_per_core), node.ephemeral_bytes);
    let reserved = reserved(resolved, &whole);
    let excessive = excessive_reservations(&whole, &reserved);
    if !excessive.is_empty() {
        return Err(excessive.join(" "));
    }
    say_what_is_accepted(&node);
    let (layout, cgroup) = layout(kubelet, node.cgroup_v2);
    Ok(NodeResources {
        allocatable: as_seen_by_pods(&node, &allocatable(&whole, &reserved)),
        flags: resource_flags(kubelet, node.cgroup_v2),
        layout,
        cgroup,
        node_cgroups: node_cgroups(kubelet, &whole, &reserved),
        capacity: node,
    })
}

fn node_capacity(root_dir: &Path, local_storage: bool) -> NodeCapacity {
    let cgroup_v2 = node::cgroup_v2();
    let page_sizes = node::huge_page_sizes();
    NodeCapacity {
        cpu_milli: i64::try_from(node::cpu_count()).unwrap_or(1) * 1000,
        memory_bytes: node::memory_total_bytes(),
        swap_bytes: node::swap_total_bytes(),
        huge_page_bytes: page_sizes.iter().map(|size| (*size, node::huge_page_bytes(*size))).into_map(),
        page_sizes,
        ephemeral_bytes: if local_storage { node::file_system_bytes(root_dir) } else { 0 },
        cgroup_v2,
        swap_accounting: node::swap_accounting(cgroup_v2),
    }
}

/// Where the kubelet refuses to start, the agent logs a line and continues: such machines are common in a
/// fleet.
fn say_what_is_accepted(node: &NodeCapacity) {
    if !node.cgroup_v2 {
        log::info!("Node uses cgroup v1; newer container runtimes require cgroup v2");
    }
    if node.swap_bytes > 0 {
        log::info!(swapBytes = node.swap_bytes; "Node has swap enabled");
    }
}

fn reserved(resolved: &Resolved, whole: &ResourceList) -> Reserved {
    let kubelet = &resolved.kubelet;
    let mut reserved = Reserved {
        system: amounts(&kubelet.system_reserved),
        kube: amounts(&kubelet.kube_reserved),
        eviction: ResourceList::new(),
    };
    if !kubelet.reserved_system_cpus.is_empty() {
        // Reserved CPUs by number replace both reservations (upstream).
        reserved.kube.remove("cpu");
        let cpus = Quantity::from_units(count_cpus(&kubelet.reserved_system_cpus));
        reserved.system.insert("cpu".to_owned(), cpus);
    }
    if !resolved.flags.experimental_allocatable_ignore_eviction {
        reserved.eviction = eviction_reserve(&kubelet.eviction_hard, whole);
    }
    reserved
}

/// Strings already validated with the configuration.
fn amounts(texts: &BTreeMap<String, String>) -> ResourceList {
    texts.iter().filter_map(|(name, text)| Some((name.clone(), Quantity::parse(text).ok()?))).into_map()
}

fn resource_flags(kubelet: &KubeletConfiguration, cgroup_v2: bool) -> ResourceFlags {
    let period = kubelet.cpu_cfs_quota_period.to_std().as_micros();
    ResourceFlags {
        cpu_cfs_quota: kubelet.cpu_cfs_quota,
        cpu_cfs_quota_period: i64::try_from(period).unwrap_or(100_000),
        single_process_oom_kill: kubelet.single_process_oom_kill.unwrap_or(!cgroup_v2),
        limited_swap: kubelet.memory_swap_swap_behavior == "LimitedSwap",
        pod_pids_limit: Some(kubelet.pod_pids_limit).filter(|limit| *limit > 0),
    }
}

/// The location of pod cgroups as configured; the runtime may report another driver.
pub(super) fn layout(kubelet: &KubeletConfiguration, v2: bool) -> (CgroupLayout, CgroupConfig) {
    let driver = match kubelet.cgroup_driver.as_str() {
        "systemd" => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    };
    let root = if kubelet.cgroup_root.is_empty() { "/" } else { kubelet.cgroup_root.as_str() };
    let layout = CgroupLayout { driver, root: root.to_owned(), per_qos: kubelet.cgroups_per_qos };
    (layout, CgroupConfig { mount: PathBuf::from("/sys/fs/cgroup"), v2, driver })
}

fn node_cgroups(kubelet: &KubeletConfiguration, whole: &ResourceList, reserved: &Reserved) -> NodeCgroups {
    let words = &kubelet.enforce_node_allocatable;
    let has = |word: &str| words.iter().any(|item| item == word);
    let enforced = has("pods");
    let kinds = [
        ("system", "System", &kubelet.system_reserved_cgroup, &reserved.system),
        ("kube", "Kube", &kubelet.kube_reserved_cgroup, &reserved.kube),
    ];
    let mut cgroups =
        NodeCgroups { pods: node_values(whole, node::max_pids(), reserved, enforced), reserved: Vec::new() };
    for (word, title, cgroup, reservation) in kinds {
        let enforce = if has(&format!("{word}-reserved")) {
            Enforce::All
        } else if has(&format!("{word}-reserved-compressible")) {
            Enforce::Compressible
        } else {
            continue;
        };
        let values = reserved_values(reservation, enforce);
        cgroups.reserved.push(ReservedCgroup { title, cgroup: cgroup.clone(), values });
    }
    cgroups
}

/// The id ranges for pods with user namespaces. Fails at start, as the kubelet does, if the node has too few
/// ids for its pods.
pub(super) async fn user_ids(resolved: &Resolved) -> Result<NodeIds, ShareError> {
    let ids_per_pod = resolved.kubelet.user_namespaces_ids_per_pod.and_then(|ids| u32::try_from(ids).ok());
    let max_pods = u32::try_from(resolved.kubelet.max_pods).unwrap_or(u32::MAX);
    node_ids(ids_per_pod.unwrap_or(DEFAULT_IDS_PER_POD), max_pods).await
}
