//! The resource managers of this node: from the configuration, the machine and the store.
//!
//! Owns the report of allocations that had to change.

use std::path::Path;

use crate::agent::config::{Resolved, parse_bool};
use crate::managers::{CpuChange, ManagersConfig, RECORD, ResourceManagers};
use crate::model::ordered::Ordered as _;
use crate::node::allocatable::memory_reservation;
use crate::pod::events::{EventRecorder, EventType, container_path};
use crate::pod::executor::ExecutorConfig;
use crate::store::{Loaded, StoreHandle};

/// Restores the managers into the executor's configuration, and returns what became of earlier allocations.
///
/// # Errors
/// Why the configuration does not suit this machine, in upstream's words.
pub(super) async fn open(
    resolved: &Resolved,
    executor: &mut ExecutorConfig,
    loaded: &Loaded,
    store: &StoreHandle,
) -> Result<Vec<CpuChange>, String> {
    let kubelet = &resolved.kubelet;
    let (all, left) = (&executor.capacity, &executor.allocatable);
    let mut reserved_memory = Vec::new();
    for node in &kubelet.reserved_memory {
        for (kind, amount) in &node.limits {
            let bytes = u64::try_from(amount.value()).unwrap_or(0);
            reserved_memory.push((u32::try_from(node.numa_node).unwrap_or(u32::MAX), kind.clone(), bytes));
        }
    }
    let unsigned = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    let topology_option = |name: &str| kubelet.topology_manager_policy_options.get(name);
    let config = ManagersConfig {
        root_dir: &resolved.flags.root_dir,
        memory: unsigned(all.memory_bytes),
        cpu_policy: &kubelet.cpu_manager_policy,
        cpu_options: kubelet
            .cpu_manager_policy_options
            .iter()
            .filter_map(|(name, value)| (parse_bool(value) == Ok(true)).then_some(name.as_str()))
            .into_set(),
        reserved_cpus: &kubelet.reserved_system_cpus,
        reserved_milli: all.cpu_milli - left.cpu_milli,
        memory_policy: &kubelet.memory_manager_policy,
        reserved_memory,
        node_reserves: unsigned(memory_reservation(all, left)),
        topology_policy: &kubelet.topology_manager_policy,
        topology_scope: &kubelet.topology_manager_scope,
        closest: topology_option("prefer-closest-numa-nodes").is_some_and(|on| parse_bool(on) == Ok(true)),
        most_nodes: topology_option("max-allowable-numa-nodes")
            .and_then(|most| most.parse().ok())
            .unwrap_or(8),
        no_quota: resolved.feature_gates.enabled("DisableCPUQuotaWithExclusiveCPUs"),
    };
    let record = loaded.meta.get(RECORD).map(String::as_str);
    let (managers, changes) = ResourceManagers::open(&config, Path::new("/sys"), record, store.clone())?;
    managers.save().await;
    executor.managers = managers;
    Ok(changes)
}

/// Says which containers have other CPUs than before.
pub(super) fn report(changes: &[CpuChange], loaded: &Loaded, events: &EventRecorder) {
    let pods = || loaded.desired.iter().flat_map(|source| &source.pods);
    for CpuChange { pod: uid, container, message } in changes {
        let Some(found) = pods().find(|each| each.pod.metadata.uid == *uid) else { continue };
        let pod = found.pod.pod_ref();
        log::warn!(pod:% = pod, container = container; "Changed exclusive CPUs: {message}");
        let path = Some(container_path("containers", container));
        events.event(&pod, path, EventType::Warning, "ExclusiveCPUsChanged", message);
    }
}
