//! Reads the machine from sysfs: CPUs and their cores, caches and sockets; NUMA nodes and their memory.
//!
//! Owns the paths. What is missing has the value of a small board: one socket, one node, cores of one CPU.

use std::path::{Path, PathBuf};

use super::cpu_set::{CpuSet, MAX_CPUS};
use super::topology::{Cpu, NodeMemory, NumaNode, Topology};
use crate::model::ordered::Sortable as _;

/// Machines with more are not served by one agent.
const MAX_NODES: u32 = 64;

/// Reads below `sys`, which is `/sys` but in tests. `memory` is the machine's, where no NUMA node says its own.
#[must_use]
pub(crate) fn read(sys: &Path, memory: u64) -> Topology {
    let cpu_dir = sys.join("devices/system/cpu");
    let online = list(&cpu_dir.join("online")).unwrap_or_else(|| present(&cpu_dir));
    let mut nodes = nodes(sys);
    let placed: Vec<(u32, CpuSet)> = nodes.iter().map(|(node, cpus)| (node.id, *cpus)).collect();
    let mut cpus = Vec::new();
    for id in online.iter() {
        let own = cpu_dir.join(format!("cpu{id}"));
        // A machine may have CPUs without a file of their own: they are one core each.
        let siblings = list(&own.join("topology/thread_siblings_list")).unwrap_or_default().and(&online);
        let socket = number(&own.join("topology/physical_package_id")).unwrap_or(0);
        let node = placed.iter().find(|(_, cpus)| cpus.contains(id)).map_or(0, |(node, _)| *node);
        let cache = last_level_cache(&own).and_then(|shared| shared.and(&online).iter().next());
        cpus.push(Cpu {
            id,
            core: siblings.iter().next().unwrap_or(id),
            socket,
            node,
            // No cache above the core's own: what shares a socket is as near as it gets.
            cache: cache.unwrap_or(MAX_CPUS + socket),
        });
    }
    if nodes.is_empty() {
        let pages = huge_pages(&sys.join("kernel/mm/hugepages"));
        nodes.push((NumaNode { id: 0, memory: with_memory(pages, memory), distances: vec![10] }, online));
    }
    if let [(only, _)] = nodes.as_mut_slice()
        && let Some(own) = only.memory.iter_mut().find(|own| own.total == 0 && own.kind == "memory")
    {
        own.total = memory;
    }
    Topology {
        cpus,
        nodes: nodes.into_iter().map(|(node, _)| node).collect(),
        isolated: list(&cpu_dir.join("isolated")).unwrap_or_default().and(&online),
    }
}

fn text(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn list(path: &Path) -> Option<CpuSet> {
    text(path).and_then(|text| CpuSet::parse(&text))
}

fn number(path: &Path) -> Option<u32> {
    text(path)?.parse().ok()
}

/// The numbers of directories `prefix0`, `prefix1`.
fn numbered(directory: &Path, prefix: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<u32> = entries.filter_map(number).collect();
    numbers.order_by_key(|number| *number);
    numbers
}

fn present(cpu_dir: &Path) -> CpuSet {
    numbered(cpu_dir, "cpu").iter().fold(CpuSet::default(), |set, cpu| set.or(&CpuSet::of(*cpu)))
}

/// Who shares the cache of level 3, or a higher one.
fn last_level_cache(cpu: &Path) -> Option<CpuSet> {
    let indices = numbered(&cpu.join("cache"), "index");
    let path = |index: &u32| cpu.join(format!("cache/index{index}"));
    let caches = indices.iter().filter_map(|index| Some((number(&path(index).join("level"))?, path(index))));
    let (_, widest) = caches.filter(|(level, _)| *level >= 3).max_by_key(|(level, _)| *level)?;
    list(&widest.join("shared_cpu_list"))
}

fn nodes(sys: &Path) -> Vec<(NumaNode, CpuSet)> {
    let directory = sys.join("devices/system/node");
    let mut nodes = Vec::new();
    for id in numbered(&directory, "node").into_iter().filter(|id| *id < MAX_NODES) {
        let own = directory.join(format!("node{id}"));
        let cpus = list(&own.join("cpulist")).unwrap_or_default();
        let memory = text(&own.join("meminfo")).and_then(|text| total(&text)).unwrap_or(0);
        let distances = text(&own.join("distance")).unwrap_or_default();
        let distances = distances.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let memory = with_memory(huge_pages(&own.join("hugepages")), memory);
        nodes.push((NumaNode { id, memory, distances }, cpus));
    }
    nodes
}

/// `Node 0 MemTotal:  8007864 kB`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn with_memory(mut memory: Vec<NodeMemory>, total: u64) -> Vec<NodeMemory> {
    memory.push(NodeMemory { kind: "memory".to_owned(), total });
    memory
}

fn huge_pages(directory: &Path) -> Vec<NodeMemory> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| -> Option<(u64, PathBuf)> {
        let name = entry.file_name();
        let size = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Some((size, entry.path()))
    };
    let mut sizes: Vec<(u64, PathBuf)> = entries.filter_map(size).collect();
    sizes.order_by_key(|(size, _)| *size);
    let pages = |(size, path): (u64, PathBuf)| {
        let pages = u64::from(number(&path.join("nr_hugepages")).unwrap_or(0));
        NodeMemory { kind: page_kind(size), total: pages * size * 1024 }
    };
    sizes.into_iter().map(pages).collect()
}

/// The resource's name: `hugepages-2Mi`.
fn page_kind(kibibytes: u64) -> String {
    let (mut size, mut unit) = (kibibytes, 0);
    while size.is_multiple_of(1024) && size > 0 && unit < 2 {
        (size, unit) = (size / 1024, unit + 1);
    }
    format!("hugepages-{size}{}", ["Ki", "Mi", "Gi"][unit])
}

#[cfg(test)]
mod tests;
