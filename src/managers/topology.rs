//! The machine as the managers see it: which CPUs share a core, a cache, a socket and a NUMA node, and what memory
//! each node has.
//!
//! Owns the questions about it; `machine` reads it. Siblings are enumerated, never computed: cores of one machine may
//! differ, and a sibling may be offline.
//!
//! Pure: what it returns depends on its arguments alone.

use super::cpu_set::{CpuSet, NodeMask};

/// A CPU that is online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub id: u32,
    /// The lowest CPU of the core.
    pub core: u32,
    pub socket: u32,
    pub node: u32,
    /// The lowest CPU that shares the last-level cache.
    pub cache: u32,
}

/// Memory of one kind on one NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeMemory {
    /// `memory` or `hugepages-2Mi`.
    pub kind: String,
    pub total: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NumaNode {
    pub id: u32,
    pub memory: Vec<NodeMemory>,
    /// To the nodes, in their order.
    pub distances: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    /// In ascending order.
    pub cpus: Vec<Cpu>,
    pub nodes: Vec<NumaNode>,
    /// The kernel's scheduler leaves these alone (`isolcpus=`).
    pub isolated: CpuSet,
}

/// What a CPU is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Node,
    Socket,
    Cache,
    Core,
}

impl Cpu {
    pub(super) fn at(&self, level: Level) -> u32 {
        match level {
            Level::Node => self.node,
            Level::Socket => self.socket,
            Level::Cache => self.cache,
            Level::Core => self.core,
        }
    }
}

impl Topology {
    #[must_use]
    pub(crate) fn all(&self) -> CpuSet {
        let mut all = CpuSet::default();
        self.cpus.iter().for_each(|cpu| all.insert(cpu.id));
        all
    }

    /// The CPUs of `among` in one group.
    #[must_use]
    pub(super) fn within(&self, among: &CpuSet, level: Level, group: u32) -> CpuSet {
        let mut found = CpuSet::default();
        for cpu in self.cpus.iter().filter(|cpu| cpu.at(level) == group && among.contains(cpu.id)) {
            found.insert(cpu.id);
        }
        found
    }

    /// The groups that CPUs of `among` are in, in ascending order.
    #[must_use]
    pub(super) fn groups(&self, among: &CpuSet, level: Level) -> Vec<u32> {
        let mut groups: Vec<u32> = Vec::new();
        for cpu in self.cpus.iter().filter(|cpu| among.contains(cpu.id)) {
            if let Err(at) = groups.binary_search(&cpu.at(level)) {
                groups.insert(at, cpu.at(level));
            }
        }
        groups
    }

    /// The CPUs of these NUMA nodes.
    #[must_use]
    pub(crate) fn of_nodes(&self, nodes: NodeMask) -> CpuSet {
        let mut found = CpuSet::default();
        for cpu in self.cpus.iter().filter(|cpu| nodes.contains(cpu.node)) {
            found.insert(cpu.id);
        }
        found
    }

    /// The NUMA nodes that have CPUs.
    #[must_use]
    pub(crate) fn nodes_of(&self, cpus: &CpuSet) -> NodeMask {
        let cpus = self.cpus.iter().filter(|cpu| cpus.contains(cpu.id));
        cpus.fold(NodeMask::default(), |mask, cpu| mask.or(NodeMask::of(cpu.node)))
    }

    /// The given CPUs and all siblings on their cores.
    #[must_use]
    pub(super) fn whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        let all = self.all();
        let cores = self.groups(cpus, Level::Core);
        cores.iter().fold(CpuSet::default(), |set, core| set.or(&self.within(&all, Level::Core, *core)))
    }

    /// How many CPUs a core has; the least where cores differ.
    #[must_use]
    pub(super) fn threads_per_core(&self) -> usize {
        let all = self.all();
        let cores = self.groups(&all, Level::Core);
        cores.iter().map(|core| self.within(&all, Level::Core, *core).len()).min().unwrap_or(1)
    }

    #[must_use]
    pub(crate) fn node_mask(&self) -> NodeMask {
        self.nodes.iter().fold(NodeMask::default(), |mask, node| mask.or(NodeMask::of(node.id)))
    }

    /// Whether all of them share one last-level cache.
    #[must_use]
    pub(super) fn share_cache(&self, cpus: &CpuSet) -> bool {
        self.groups(cpus, Level::Cache).len() <= 1
    }
}
