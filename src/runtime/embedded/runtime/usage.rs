//! What a container uses: from its cgroup and its writable layer.

use std::path::Path;

use super::api::ContainerStats;
use super::record::ContainerRecord;
use crate::model::types::Timestamp;
use crate::platform::cgroup::usage;
use crate::platform::sys::disk_usage::disk_usage;
use crate::runtime::ContainerFigures;

/// Reads the current usage.
pub(super) fn stats(at: Timestamp, record: &ContainerRecord, layer: &Path) -> ContainerStats {
    let used = usage::stats(&record.cgroups);
    let (writable_layer_bytes, writable_layer_inodes) = disk_usage(&layer.join("upper")).unwrap_or_default();
    let working_set = used.working_set.unwrap_or(0);
    ContainerStats {
        at,
        cpu_nanoseconds: used.cpu_ns.unwrap_or(0),
        memory_usage_bytes: used.memory_usage.unwrap_or(0),
        memory_working_set_bytes: working_set,
        memory_rss_bytes: used.rss.unwrap_or(0),
        page_faults: used.page_faults.unwrap_or(0),
        major_page_faults: used.major_page_faults.unwrap_or(0),
        memory_available_bytes: used.memory_limit.map(|limit| limit.saturating_sub(working_set)),
        swap_usage_bytes: used.swap_usage.unwrap_or(0),
        pids: used.pids.unwrap_or(0),
        writable_layer_bytes,
        writable_layer_inodes,
    }
}

/// Usage that only this runtime can report: from containers' records, for those whose cgroups cannot be found
/// otherwise.
pub(super) fn figures(record: &ContainerRecord) -> ContainerFigures {
    let used = usage::stats(&record.cgroups);
    ContainerFigures {
        cpu_ns: used.cpu_ns,
        memory_usage: used.memory_usage,
        working_set: used.working_set,
        rss: used.rss,
        page_faults: used.page_faults,
        major_page_faults: used.major_page_faults,
        memory_available: used
            .memory_limit
            .zip(used.working_set)
            .map(|(limit, used)| limit.saturating_sub(used)),
        swap_usage: used.swap_usage,
        layer: None,
    }
}
