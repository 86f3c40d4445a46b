//! What a container uses: from its cgroup and its writable layer.

use std::path::Path;

use super::api::ContainerStats;
use super::record::ContainerRecord;
use crate::cgroup::usage;
use crate::types::Timestamp;

/// Directories that wait to be looked into; a tree that is wider than this is counted in part.
const MOST_WAITING: usize = 65_536;

/// Reads it now.
pub(super) fn stats(at: Timestamp, record: &ContainerRecord, layer: &Path) -> ContainerStats {
    let used = usage::stats(&record.cgroups);
    let (writable_layer_bytes, writable_layer_inodes) = disk_usage(&layer.join("upper"));
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

/// Bytes and inodes below a directory. Links are not followed.
fn disk_usage(root: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    let (mut bytes, mut inodes) = (0_u64, 0_u64);
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            inodes += 1;
            if metadata.is_dir() && waiting.len() < MOST_WAITING {
                waiting.push(entry.path());
            }
        }
    }
    (bytes, inodes)
}
