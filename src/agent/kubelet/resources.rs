//! The node's capacity and allocatable resources: measured once at start, and combined with what is reserved.
//!
//! Owns the measuring. The arithmetic is in `node::allocatable`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::model::api::pod::ResourceList;
use crate::model::ordered::Ordered as _;
use crate::node::allocatable::{
    Enforce, Reserved, allocatable, as_seen_by_pods, capacity, eviction_reserve, excessive_reservations,
    node_values, reserved_values,
};
use crate::platform::sys::node;
use crate::pod::executor::{NodeCgroups, ReservedCgroup, ShareError, node_ids};
use crate::pod::resources::NodeCapacity;
use crate::pod::users::{DEFAULT_IDS_PER_POD, NodeIds};

/// What is set aside of the node's resources.
pub(super) struct ResourcesConfig<'a> {
    pub(super) root_dir: &'a Path,
    /// `localStorageCapacityIsolation`.
    pub(super) isolates_storage: bool,
    pub(super) max_pods: i64,
    pub(super) pods_per_core: i64,
    /// For the system and the kubelet.
    pub(super) reserved: Reserved,
    /// `evictionHard`, if it counts as a reservation.
    pub(super) eviction_hard: Option<&'a BTreeMap<String, String>>,
    /// `enforceNodeAllocatable`.
    pub(super) enforced: &'a [String],
    pub(super) system_cgroup: &'a str,
    pub(super) kube_cgroup: &'a str,
}

pub(super) struct NodeResources {
    pub capacity: NodeCapacity,
    /// The part available to pods.
    pub allocatable: NodeCapacity,
    /// The values of the cgroups above those of pods.
    pub node_cgroups: NodeCgroups,
}

/// Measures the node.
///
/// # Errors
/// More is reserved than exists, with upstream's message.
pub(super) fn measure(mut config: ResourcesConfig<'_>) -> Result<NodeResources, String> {
    let node = node_capacity(config.root_dir, config.isolates_storage);
    let whole = capacity(&node, config.max_pods, config.pods_per_core, node.ephemeral_bytes);
    if let Some(hard) = config.eviction_hard {
        config.reserved.eviction = eviction_reserve(hard, &whole);
    }
    let excessive = excessive_reservations(&whole, &config.reserved);
    if !excessive.is_empty() {
        return Err(excessive.join(" "));
    }
    log_tolerated_settings(&node);
    Ok(NodeResources {
        allocatable: as_seen_by_pods(&node, &allocatable(&whole, &config.reserved)),
        node_cgroups: node_cgroups(&config, &whole),
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
fn log_tolerated_settings(node: &NodeCapacity) {
    if !node.cgroup_v2 {
        log::info!("Node uses cgroup v1; newer container runtimes require cgroup v2");
    }
    if node.swap_bytes > 0 {
        log::info!(swapBytes = node.swap_bytes; "Node has swap enabled");
    }
}

fn node_cgroups(config: &ResourcesConfig<'_>, whole: &ResourceList) -> NodeCgroups {
    let reserved = &config.reserved;
    let has = |word: &str| config.enforced.iter().any(|item| item == word);
    let enforced = has("pods");
    let kinds = [
        ("system", "System", config.system_cgroup, &reserved.system),
        ("kube", "Kube", config.kube_cgroup, &reserved.kube),
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
        cgroups.reserved.push(ReservedCgroup { title, cgroup: cgroup.to_owned(), values });
    }
    cgroups
}

/// The id ranges for pods with user namespaces. Fails at start, as the kubelet does, if the node has too few
/// ids for its pods.
pub(super) async fn user_ids(ids_per_pod: Option<i64>, max_pods: i32) -> Result<NodeIds, ShareError> {
    let ids_per_pod = ids_per_pod.and_then(|ids| u32::try_from(ids).ok());
    let max_pods = u32::try_from(max_pods).unwrap_or(u32::MAX);
    node_ids(ids_per_pod.unwrap_or(DEFAULT_IDS_PER_POD), max_pods).await
}
