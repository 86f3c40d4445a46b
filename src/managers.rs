//! The resource managers: which CPUs and which memory a container has to itself, aligned with its devices
//! (upstream: `cpumanager`, `memorymanager`, `topologymanager`).

pub(crate) mod cpu_set;
pub(crate) mod cpus;
pub(crate) mod machine;
pub(crate) mod topology;
