//! Memory and huge pages of NUMA nodes, and which nodes a container's come from (upstream: `memorymanager`).
//!
//! A node serves containers alone or as part of one group of nodes, never both, unless a hint is for it alone.
//!
//! Pure: what it returns depends on its arguments alone.

use super::cpu_set::NodeMask;
use super::hints::{self, Hint, Hints};
use super::topology::Topology;

/// Memory that a container has on these nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub nodes: NodeMask,
    /// `memory` or `hugepages-2Mi`.
    pub kind: String,
    pub size: u64,
}

/// `reservedMemory`: node, kind, bytes.
pub(crate) type Reservation = (u32, String, u64);

/// What is asked for: kind and bytes.
pub(crate) type MemoryRequest = (String, u64);

#[derive(Clone, Debug, PartialEq, Eq)]
struct MemoryRow {
    node: u32,
    kind: String,
    allocatable: u64,
    free: u64,
}

/// The tables of all nodes with what is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tables {
    rows: Vec<MemoryRow>,
    /// How many blocks a node has, and the nodes that it serves together with.
    uses: Vec<(u32, usize, NodeMask)>,
}

/// What is allocatable: node, kind, bytes.
#[must_use]
pub(super) fn allocatable(topology: &Topology, reserved: &[Reservation]) -> Vec<(u32, String, u64)> {
    let mut all = Vec::new();
    for node in &topology.nodes {
        let pages: u64 = node.memory.iter().filter(|own| own.kind != "memory").map(|own| own.total).sum();
        for own in &node.memory {
            let is_it = |row: &&Reservation| row.0 == node.id && row.1 == own.kind;
            let kept = reserved.iter().find(is_it).map_or(0, |row| row.2);
            let kept = kept + if own.kind == "memory" { pages } else { 0 };
            all.push((node.id, own.kind.clone(), own.total.saturating_sub(kept)));
        }
    }
    all
}

/// Checks `reservedMemory` against what the node reserves, in upstream's words.
pub(super) fn check_reserved(
    topology: &Topology,
    reserved: &[Reservation],
    node_reserves: u64,
) -> Result<(), String> {
    if let Some((node, ..)) = reserved.iter().find(|row| !topology.node_mask().contains(row.0)) {
        return Err(format!(
            "the reserved memory configuration references a NUMA node {node} that does not exist on this machine"
        ));
    }
    let total = |kind: &str| reserved.iter().filter(|row| row.1 == kind).map(|row| row.2).sum::<u64>();
    for kind in reserved.iter().map(|row| row.1.as_str()).chain(["memory"]) {
        let wanted = if kind == "memory" { node_reserves } else { 0 };
        if total(kind) != wanted {
            return Err(format!(
                "the total amount {:?} of type {kind:?} is not equal to the value {:?} determined by Node \
                 Allocatable feature",
                total(kind).to_string(),
                wanted.to_string()
            ));
        }
    }
    if total("memory") == 0 {
        return Err("[memorymanager] you should specify the system reserved memory".to_owned());
    }
    Ok(())
}

impl Tables {
    /// Replays all blocks, in their order.
    pub(super) fn new<'a>(
        topology: &Topology,
        reserved: &[Reservation],
        blocks: impl Iterator<Item = &'a Block>,
    ) -> Self {
        let free = |(node, kind, bytes)| MemoryRow { node, kind, allocatable: bytes, free: bytes };
        let mut tables = Self {
            rows: allocatable(topology, reserved).into_iter().map(free).collect(),
            uses: topology.nodes.iter().map(|node| (node.id, 0, NodeMask::of(node.id))).collect(),
        };
        for block in blocks {
            tables.add(block);
        }
        tables
    }

    fn add(&mut self, block: &Block) {
        let mut left = block.size;
        for (_, count, group) in self.uses.iter_mut().filter(|(node, ..)| block.nodes.contains(*node)) {
            *count += 1;
            *group = block.nodes;
        }
        for row in self.rows.iter_mut().filter(|row| row.kind == block.kind && block.nodes.contains(row.node))
        {
            let part = row.free.min(left);
            row.free -= part;
            left -= part;
        }
    }

    fn sum(&self, nodes: NodeMask, kind: &str, of: fn(&MemoryRow) -> u64) -> u64 {
        self.rows.iter().filter(|row| row.kind == kind && nodes.contains(row.node)).map(of).sum()
    }

    /// No other group of nodes may be split by, or mixed with, what these nodes serve.
    fn may_serve(&self, nodes: NodeMask) -> bool {
        self.uses.iter().filter(|(node, ..)| nodes.contains(*node)).all(|(_, count, group)| {
            if nodes.count() == 1 { group.count() <= 1 } else { *count == 0 || *group == nodes }
        })
    }

    /// Possible sets of nodes; the same for each kind.
    pub(super) fn hints(&self, requests: &[MemoryRequest], reusable: &[Block]) -> Vec<Hint> {
        let all = self.uses.iter().fold(NodeMask(0), |mask, (node, ..)| mask.or(NodeMask::of(*node)));
        let fits = |nodes: NodeMask| {
            requests.iter().all(|(kind, size)| self.sum(nodes, kind, |row| row.allocatable) >= *size)
        };
        let may = |nodes: NodeMask| {
            let has_free = |(kind, size): &MemoryRequest| {
                self.sum(nodes, kind, |row| row.free) + reused(reusable, nodes, kind) >= *size
            };
            fits(nodes) && self.may_serve(nodes) && requests.iter().all(has_free)
        };
        hints::hints(all, fits, may).0
    }

    /// The nodes for a request, near `hint`.
    ///
    /// # Errors
    /// Upstream's message.
    pub(super) fn choose(
        &self,
        requests: &[MemoryRequest],
        reusable: &[Block],
        hint: Hint,
    ) -> Result<NodeMask, String> {
        let possible = self.hints(requests, reusable);
        let mut chosen = hint;
        if hint.nodes.is_none() {
            chosen = best(&possible, NodeMask(0)).ok_or(
                "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is \
                 available",
            )?;
            if !chosen.preferred && hint.preferred {
                return Err("[memorymanager] failed to find the default preferred hint".to_owned());
            }
        }
        let nodes = chosen.nodes.unwrap_or_default();
        let has = |(kind, size): &MemoryRequest| self.sum(nodes, kind, |row| row.free) >= *size;
        if !requests.iter().all(has) {
            let wider = best(&possible, nodes)
                .ok_or("[memorymanager] failed to find NUMA nodes to extend the current topology hint")?;
            if !wider.preferred && chosen.preferred {
                return Err("[memorymanager] failed to find the extended preferred hint".to_owned());
            }
            chosen = wider;
        }
        let nodes = chosen.nodes.unwrap_or_default();
        if nodes.count() == 1 || self.may_serve(nodes) {
            Ok(nodes)
        } else {
            Err("[memorymanager] preferred hint violates NUMA node allocation".to_owned())
        }
    }
}

/// The narrowest hint that has all these nodes, a preferred one before others.
fn best(possible: &[Hint], nodes: NodeMask) -> Option<Hint> {
    let mut best: Option<Hint> = None;
    for hint in possible.iter().filter(|hint| hint.nodes.is_some_and(|mask| mask.0 & nodes.0 == nodes.0)) {
        let is_better = best.is_none_or(|best| {
            hint.preferred && !best.preferred
                || hint.preferred == best.preferred
                    && hint.nodes.unwrap_or_default().is_narrower_than(best.nodes.unwrap_or_default())
        });
        if is_better {
            best = Some(*hint);
        }
    }
    best
}

/// What ended init containers of the pod leave on these very nodes.
pub(super) fn reused(reusable: &[Block], nodes: NodeMask, kind: &str) -> u64 {
    let is_it = |block: &&Block| block.nodes == nodes && block.kind == kind;
    reusable.iter().filter(is_it).map(|block| block.size).sum()
}

/// What the topology manager is shown: a container that finds nothing has no preference, as upstream.
pub(super) fn as_given(hints: Vec<Hint>) -> Hints {
    (!hints.is_empty()).then_some(hints)
}

#[cfg(test)]
mod tests;
