//! The managers' metrics, under upstream's names.
//!
//! Owns the names and when they count.

use std::time::Duration;

use super::cpu_set::NodeMask;
use super::ledger::{AdmissionRefusal, Ledger, ResourceRequest};
use crate::model::types::PodUid;
use crate::platform::metrics::{self, Family};

/// Milliseconds, as upstream.
const MILLISECONDS: [f64; 15] =
    [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

static CPU_REQUESTS: Family = Family::counter(
    "kubelet_cpu_manager_pinning_requests_total",
    "The number of cpu core allocations which required pinning.",
    &[],
);
static CPU_ERRORS: Family = Family::counter(
    "kubelet_cpu_manager_pinning_errors_total",
    "The number of cpu core allocations which required pinning failed.",
    &[],
);
static SHARED: Family = Family::gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
    &[],
);
static EXCLUSIVE: Family = Family::gauge(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "The total number of CPUs exclusively allocated to containers running on this node",
    &[],
);
static PER_NODE: Family = Family::gauge(
    "kubelet_cpu_manager_allocation_per_numa",
    "Number of CPUs allocated per NUMA node",
    &["numa_node"],
);
static MEMORY_REQUESTS: Family = Family::counter(
    "kubelet_memory_manager_pinning_requests_total",
    "The number of memory pages allocations which required pinning.",
    &[],
);
static MEMORY_ERRORS: Family = Family::counter(
    "kubelet_memory_manager_pinning_errors_total",
    "The number of memory pages allocations which required pinning that failed.",
    &[],
);
static ADMISSIONS: Family = Family::counter(
    "kubelet_topology_manager_admission_requests_total",
    "The number of admission requests where resources have to be aligned.",
    &[],
);
static ADMISSION_ERRORS: Family = Family::counter(
    "kubelet_topology_manager_admission_errors_total",
    "The number of admission request failures where resources could not be aligned.",
    &[],
);
static ADMISSION_TIME: Family = Family::seconds(
    "kubelet_topology_manager_admission_duration_ms",
    "Duration in milliseconds to serve a pod admission request.",
    &[],
)
.with_buckets(&MILLISECONDS);
static ALIGNED: Family = Family::counter(
    "kubelet_container_aligned_compute_resources_count",
    "Cumulative number of aligned compute resources allocated to containers by alignment type.",
    &["scope", "boundary"],
);
static NOT_ALIGNED: Family = Family::counter(
    "kubelet_container_aligned_compute_resources_failure_count",
    "Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
    &["scope", "boundary"],
);
static ALLOCATIONS: Family = Family::counter(
    "resource_manager_allocations_total",
    "Number of exclusive resource allocations performed by a resource manager.",
    &["resource_name", "source"],
);
static ALLOCATION_ERRORS: Family = Family::counter(
    "resource_manager_allocation_errors_total",
    "Number of errors encountered during exclusive resource allocation.",
    &["resource_name", "source"],
);
static ASSIGNMENTS: Family = Family::counter(
    "resource_manager_container_assignments",
    "Number of containers with a specific type of resource assignment.",
    &["resource_name", "assignment_type"],
);

#[expect(clippy::cast_precision_loss, reason = "numbers of CPUs")]
fn level(number: usize) -> f64 {
    number as f64
}

/// Sets the gauges.
pub(super) fn show(ledger: &Ledger) {
    for family in [&CPU_REQUESTS, &CPU_ERRORS].into_iter().filter(|_| ledger.cpu.is_some()) {
        metrics::begin(family);
    }
    for family in [&MEMORY_REQUESTS, &MEMORY_ERRORS].into_iter().filter(|_| ledger.memory.is_some()) {
        metrics::begin(family);
    }
    let Some(policy) = &ledger.cpu else { return };
    let exclusive = ledger.exclusive();
    let shared = ledger.default_set().minus(&policy.reserved);
    metrics::set(&SHARED, &[], level(shared.len() * 1000));
    metrics::set(&EXCLUSIVE, &[], level(exclusive.len()));
    for node in &ledger.topology.nodes {
        let own = exclusive.and(&ledger.topology.of_nodes(NodeMask::of(node.id)));
        metrics::set(&PER_NODE, &[&node.id.to_string()], level(own.len()));
    }
}

/// A pod was admitted, or not, where resources have to be aligned.
pub(super) fn admission(took: Duration, failed: bool) {
    metrics::count(&ADMISSIONS, &[]);
    metrics::observe(&ADMISSION_TIME, &[], took * 1000);
    if failed {
        metrics::count(&ADMISSION_ERRORS, &[]);
    }
}

/// The policy guarantees an alignment, and it was reached or not.
pub(super) fn aligned(scope: &str, boundary: &str, is_guaranteed: bool, reached: bool) {
    if is_guaranteed {
        metrics::count(if reached { &ALIGNED } else { &NOT_ALIGNED }, &[scope, boundary]);
    }
}

/// One container was served, or could not be.
pub(super) fn allocation(
    ledger: &Ledger,
    uid: &PodUid,
    request: &ResourceRequest,
    refused: Option<&AdmissionRefusal>,
) {
    let of_memory = refused.is_some_and(|why| why.message.contains("[memorymanager]"));
    let full = ledger.cpu.is_some_and(|policy| policy.options.full_pcpus_only);
    let one = |name: &str, wanted: bool, families: [&'static Family; 2], failed: bool| {
        if !wanted {
            return;
        }
        metrics::count(families[0], &[]);
        if failed {
            metrics::count(families[1], &[]);
            metrics::count(&ALLOCATION_ERRORS, &[name, "node"]);
        } else {
            metrics::count(&ALLOCATIONS, &[name, "node"]);
            metrics::count(&ASSIGNMENTS, &[name, "node_exclusive"]);
        }
    };
    let wants_cpus = request.cpus > 0 && ledger.cpu.is_some();
    let cpus_failed = refused.is_some() && !of_memory;
    one("cpu", wants_cpus, [&CPU_REQUESTS, &CPU_ERRORS], cpus_failed);
    let wants_memory = !request.memory.is_empty() && ledger.memory.is_some() && !(wants_cpus && cpus_failed);
    one("memory", wants_memory, [&MEMORY_REQUESTS, &MEMORY_ERRORS], of_memory);
    if wants_cpus {
        aligned("container", "physical_cpu", full, !cpus_failed);
        let cpus = ledger.entry(uid, &request.container).map(|entry| entry.cpus);
        aligned("container", "uncore_cache", cpus.is_some_and(|cpus| ledger.shares_cache(&cpus)), true);
    }
}
