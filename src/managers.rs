//! The resource managers: which CPUs and which memory a container has to itself, aligned with its devices
//! (upstream: `cpumanager`, `memorymanager`, `topologymanager`).

mod checkpoint;
pub(crate) mod cpu_set;
pub(crate) mod cpus;
pub(crate) mod hints;
pub(crate) mod ledger;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod topology;
