//! From the configuration and the machine to the managers' rules.
//!
//! Owns what is refused at start: settings that this machine cannot have.

use std::collections::BTreeSet;
use std::path::Path;

use super::cpu_set::CpuSet;
use super::cpus::{CpuOptions, reserve};
use super::hints::Policy;
use super::ledger::{CpuPolicy, Ledger};
use super::memory::{Reservation, check_reserved};
use super::topology::{Level, Topology};

/// The fields of the configuration, validated on their own.
pub(crate) struct ManagersConfig<'a> {
    pub root_dir: &'a Path,
    /// Of the machine, bytes.
    pub memory: u64,
    pub cpu_policy: &'a str,
    /// Those of `cpuManagerPolicyOptions` that are on.
    pub cpu_options: BTreeSet<&'a str>,
    /// `reservedSystemCPUs`.
    pub reserved_cpus: &'a str,
    /// Thousandths of a CPU that are reserved otherwise.
    pub reserved_milli: i64,
    pub memory_policy: &'a str,
    /// `reservedMemory`.
    pub reserved_memory: Vec<Reservation>,
    /// Memory that the node reserves, bytes.
    pub node_reserves: u64,
    pub topology_policy: &'a str,
    pub topology_scope: &'a str,
    /// `prefer-closest-numa-nodes`.
    pub closest: bool,
    /// `max-allowable-numa-nodes`.
    pub most_nodes: usize,
    /// `DisableCPUQuotaWithExclusiveCPUs`.
    pub no_quota: bool,
}

impl ManagersConfig<'_> {
    #[must_use]
    pub(super) fn is_static(&self) -> bool {
        self.cpu_policy == "static"
    }

    #[must_use]
    pub(super) fn is_active(&self) -> bool {
        self.is_static() || self.memory_policy == "Static" || self.topology_policy != "none"
    }

    /// # Errors
    /// Upstream's message.
    pub(super) fn ledger(&self, topology: Topology) -> Result<Ledger, String> {
        let policy = Policy::from_name(self.topology_policy);
        let (closest, most) = (self.closest, self.most_nodes);
        if policy != Policy::None {
            if topology.nodes.len() > most {
                return Err(format!("unsupported on machines with more than {most} NUMA Nodes"));
            }
            if closest && topology.nodes.iter().any(|node| node.distances.len() < topology.nodes.len()) {
                return Err("error getting NUMA distances from sysfs".to_owned());
            }
        }
        let cpu = if self.is_static() { Some(self.cpu_rules(&topology, policy)?) } else { None };
        let memory = if self.memory_policy == "Static" {
            check_reserved(&topology, &self.reserved_memory, self.node_reserves)?;
            Some(self.reserved_memory.clone())
        } else {
            None
        };
        let pod_scope = self.topology_scope == "pod";
        Ok(Ledger { topology, cpu, memory, policy, pod_scope, closest, entries: Vec::new() })
    }

    fn cpu_rules(&self, topology: &Topology, policy: Policy) -> Result<CpuPolicy, String> {
        let is_on = |name| self.cpu_options.contains(name);
        let options = CpuOptions {
            full_pcpus_only: is_on("full-pcpus-only"),
            distribute_across_numa: is_on("distribute-cpus-across-numa"),
            distribute_across_cores: is_on("distribute-cpus-across-cores"),
            align_by_socket: is_on("align-by-socket"),
            strict_reservation: is_on("strict-cpu-reservation"),
            prefer_uncore_cache: is_on("prefer-align-cpus-by-uncorecache"),
        };
        let all = topology.all();
        if options.align_by_socket {
            if policy == Policy::SingleNumaNode {
                return Err("Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket \
                            policy option"
                    .to_owned());
            }
            if topology.groups(&all, Level::Socket).len() > topology.groups(&all, Level::Node).len() {
                return Err(
                    "Align by socket is not compatible with hardware where number of sockets are more than \
                            number of NUMA"
                        .to_owned(),
                );
            }
        }
        let listed = CpuSet::parse(self.reserved_cpus).unwrap_or_default();
        let count = match listed.len() {
            0 => usize::try_from(self.reserved_milli.max(0)).unwrap_or(0).div_ceil(1000),
            listed => listed,
        };
        if count == 0 {
            return Err("[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater \
                        than zero"
                .to_owned());
        }
        let mut reserved = listed.and(&all);
        if reserved != listed {
            log::warn!(reserved:% = listed, online:% = all; "Some CPUs of reservedSystemCPUs are not online");
        }
        if reserved.is_empty() {
            reserved = reserve(topology, options, count);
            if reserved.len() != count {
                return Err(format!(
                    "[cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not equal \
                     {count})"
                ));
            }
        }
        log::info!(reserved:% = reserved, isolated:% = topology.isolated, online:% = all; "CPU manager uses the static \
             policy");
        Ok(CpuPolicy { options, reserved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managers::topology::{Cpu, NodeMemory, NumaNode};

    fn machine(cpus: u32, nodes: u32) -> Topology {
        let cpu = |id| Cpu { id, core: id, socket: 0, node: id % nodes, cache: 0 };
        let memory = || vec![NodeMemory { kind: "memory".to_owned(), total: 1 << 30 }];
        let node = |id| NumaNode { id, memory: memory(), distances: Vec::new() };
        let cpus = (0..cpus).map(cpu).collect();
        Topology { cpus, nodes: (0..nodes).map(node).collect(), isolated: CpuSet::default() }
    }

    fn config(cpu_options: &[&'static str]) -> ManagersConfig<'static> {
        ManagersConfig {
            root_dir: Path::new("/nonexistent"),
            memory: 0,
            cpu_policy: "static",
            cpu_options: cpu_options.iter().copied().collect(),
            reserved_cpus: "",
            reserved_milli: 500,
            memory_policy: "None",
            reserved_memory: Vec::new(),
            node_reserves: 0,
            topology_policy: "none",
            topology_scope: "container",
            closest: false,
            most_nodes: 8,
            no_quota: true,
        }
    }

    #[test]
    fn reserved_cpus_are_a_list_or_a_number() {
        let reserved = |reserved_cpus, reserved_milli| {
            let config = ManagersConfig { reserved_cpus, reserved_milli, ..config(&[]) };
            config.ledger(machine(4, 1)).map(|ledger| ledger.cpu.unwrap().reserved.to_string())
        };
        assert_eq!(reserved("", 500), Ok("0".to_owned()));
        assert_eq!(reserved("", 1500), Ok("0-1".to_owned()));
        assert_eq!(reserved("2-3", 0), Ok("2-3".to_owned()));
        assert_eq!(reserved("3-4", 0), Ok("3".to_owned()), "the one that is online");
        assert_eq!(reserved("8-9", 0), Ok("0-1".to_owned()), "as many, rather than no start");
        assert!(reserved("", 0).unwrap_err().contains("to be greater than zero"));
        assert!(reserved("", 5000).unwrap_err().contains("unable to reserve the required amount of CPUs"));
    }

    #[test]
    fn settings_that_the_machine_cannot_have_are_refused() {
        let refused = |config: ManagersConfig<'_>, nodes| config.ledger(machine(16, nodes)).unwrap_err();
        let single = ManagersConfig { topology_policy: "single-numa-node", ..config(&[]) };
        assert!(single.ledger(machine(16, 8)).is_ok());
        let why = refused(ManagersConfig { topology_policy: "restricted", ..config(&[]) }, 9);
        assert_eq!(why, "unsupported on machines with more than 8 NUMA Nodes");
        let allowed = ManagersConfig { topology_policy: "restricted", most_nodes: 9, ..config(&[]) };
        assert!(allowed.ledger(machine(16, 9)).is_ok());
        let near = ManagersConfig { topology_policy: "restricted", closest: true, ..config(&[]) };
        let why = refused(near, 2);
        assert!(why.contains("NUMA distances"), "{why}");
        let why = refused(
            ManagersConfig { topology_policy: "single-numa-node", ..config(&["align-by-socket"]) },
            1,
        );
        assert!(why.contains("incompatible with CPUManager align-by-socket"), "{why}");
        let why = refused(ManagersConfig { memory_policy: "Static", ..config(&[]) }, 1);
        assert_eq!(why, "[memorymanager] you should specify the system reserved memory");
    }
}
