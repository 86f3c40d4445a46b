//! Who sits where, for people: one line for each CPU, and one for each block of memory.
//!
//! Pure: what it returns depends on its arguments alone.

use super::ledger::Ledger;
use crate::model::types::PodUid;

/// Cells separated by tabs: CPU, core, socket, NUMA node, use.
#[must_use]
pub(super) fn cpus(ledger: &Ledger, name: &dyn Fn(&PodUid) -> String) -> Vec<String> {
    let Some(policy) = &ledger.cpu else { return Vec::new() };
    let shared = ledger.shared();
    let line = |cpu: &super::topology::Cpu| {
        let owners = ledger.entries.iter().filter(|entry| entry.cpus.contains(cpu.id));
        let owners: Vec<String> =
            owners.map(|entry| format!("{} ({})", name(&entry.pod), entry.container)).collect();
        let mut uses = Vec::new();
        if !owners.is_empty() {
            uses.push(owners.join(", "));
        } else if shared.contains(cpu.id) {
            uses.push("shared".to_owned());
        } else if !policy.reserved.contains(cpu.id) {
            uses.push("free".to_owned());
        }
        for (set, word) in [(&policy.reserved, "reserved"), (&ledger.topology.isolated, "isolated")] {
            if set.contains(cpu.id) {
                uses.push(word.to_owned());
            }
        }
        format!("{}\t{}\t{}\t{}\t{}", cpu.id, cpu.core, cpu.socket, cpu.node, uses.join(", "))
    };
    ledger.topology.cpus.iter().map(line).collect()
}

/// Cells separated by tabs: container, kind, bytes, NUMA nodes.
#[must_use]
pub(super) fn memory(ledger: &Ledger, name: &dyn Fn(&PodUid) -> String) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in &ledger.entries {
        for block in entry.memory.iter().filter(|block| block.size > 0) {
            let owner = format!("{} ({})", name(&entry.pod), entry.container);
            lines.push(format!("{owner}\t{}\t{}\t{}", block.kind, block.size, block.nodes));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managers::cpu_set::{CpuSet, NodeMask};
    use crate::managers::cpus::CpuOptions;
    use crate::managers::ledger::{CpuPolicy, ExclusiveEntry};
    use crate::managers::memory::Block;
    use crate::managers::topology::{Cpu, Topology};

    #[test]
    fn every_cpu_has_a_line() {
        let cpu = |id| Cpu { id, core: id, socket: 0, node: 0, cache: 0 };
        let topology = Topology {
            cpus: (0..4).map(cpu).collect(),
            isolated: CpuSet::parse("2-3").unwrap(),
            ..Topology::default()
        };
        let policy = CpuPolicy { options: CpuOptions::default(), reserved: CpuSet::of(0) };
        let memory_of = vec![Block { nodes: NodeMask(1), kind: "memory".to_owned(), size: 64 }];
        let entry = ExclusiveEntry {
            pod: "u".into(),
            container: "c".to_owned(),
            cpus: CpuSet::of(2),
            memory: memory_of,
        };
        let ledger = Ledger { topology, cpu: Some(policy), entries: vec![entry], ..Ledger::default() };
        let lines = cpus(&ledger, &|uid| format!("default/{uid}"));
        let expected = [
            "0\t0\t0\t0\tshared, reserved",
            "1\t1\t0\t0\tshared",
            "2\t2\t0\t0\tdefault/u (c), isolated",
            "3\t3\t0\t0\tfree, isolated",
        ];
        assert_eq!(lines, expected);
        assert_eq!(memory(&ledger, &|uid| format!("default/{uid}")), ["default/u (c)\tmemory\t64\t0"]);
        assert!(cpus(&Ledger::default(), &|_| String::new()).is_empty());
    }
}
