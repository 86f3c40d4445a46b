use super::*;
use crate::managers::topology::Cpu;

/// Core, socket, node and cache of each CPU.
fn machine(cpus: u32, place: impl Fn(u32) -> [u32; 4]) -> Topology {
    let cpu = |id| {
        let [core, socket, node, cache] = place(id);
        Cpu { id, core, socket, node, cache }
    };
    Topology { cpus: (0..cpus).map(cpu).collect(), ..Topology::default() }
}

fn single_ht() -> Topology {
    machine(8, |cpu| [cpu % 4, 0, 0, 0])
}

fn dual_ht() -> Topology {
    machine(12, |cpu| [cpu % 6, cpu % 6 % 2, cpu % 6 % 2, cpu % 6 % 2])
}

fn dual() -> Topology {
    machine(8, |cpu| [cpu, cpu / 4, cpu / 4, cpu / 4])
}

/// Two sockets of two NUMA nodes each, ten cores a node, two threads a core.
fn large() -> Topology {
    machine(80, |cpu| [cpu % 40, cpu % 40 / 20, cpu % 40 / 10, cpu % 40 / 20])
}

fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

fn taken(topology: &Topology, options: CpuOptions, free: &str, count: usize) -> String {
    match take(topology, options, &set(free), count) {
        Ok(taken) => taken.to_string(),
        Err(why) => why,
    }
}

/// The expected sets are those that Kubernetes' own tests have.
#[test]
fn packed_requests_get_what_the_kubelet_gives() {
    let quad = machine(288, |cpu| [cpu % 72, cpu % 72 / 18, cpu % 72 / 18, cpu % 72 / 18]);
    let cases: &[(&Topology, &str, usize, &str)] = &[
        (
            &single_ht(),
            "1,2,4,5",
            5,
            "not enough cpus available to satisfy request: requested=5, available=4",
        ),
        (&single_ht(), "0-7", 0, ""),
        (&single_ht(), "0-7", 1, "0"),
        (&single_ht(), "0-7", 2, "0,4"),
        (&single_ht(), "1-2,4-7", 2, "1,5"),
        (&single_ht(), "0-7", 8, "0-7"),
        (&single_ht(), "1,3,5-7", 1, "6"),
        (&single_ht(), "1-7", 6, "1-3,5-7"),
        (&dual_ht(), "0-11", 1, "0"),
        (&dual_ht(), "1-5,7-11", 1, "2"),
        (&dual_ht(), "0-11", 6, "0,2,4,6,8,10"),
        (&dual_ht(), "0-11", 8, "0-2,4,6-8,10"),
        (&dual_ht(), "1-5,7-11", 10, "1-5,7-11"),
        (&dual(), "0-7", 6, "0-5"),
        (&large(), "0-79", 40, "0-19,40-59"),
        (&large(), "0-79", 20, "0-9,40-49"),
        (&large(), "10-39,50-79", 20, "10-19,50-59"),
        (&large(), "0-79", 60, "0-29,40-69"),
        (&large(), "1-39,41-79", 60, "10-39,50-79"),
        (&large(), "0-79", 64, "0-31,40-71"),
        (&quad, "0-287", 72, "0-17,72-89,144-161,216-233"),
    ];
    for (topology, free, count, expected) in cases {
        assert_eq!(taken(topology, CpuOptions::default(), free, *count), *expected, "{count} of {free}");
    }
}

#[test]
fn caches_are_kept_together_when_asked() {
    let options = CpuOptions { prefer_uncore_cache: true, ..CpuOptions::default() };
    let plain = machine(16, |cpu| [cpu, 0, 0, cpu / 4]);
    let sockets = machine(16, |cpu| [cpu, cpu / 8, cpu / 8, cpu / 4]);
    let nodes = machine(16, |cpu| [cpu, 0, cpu / 8, cpu / 4]);
    let threads = machine(16, |cpu| [cpu % 8, 0, 0, cpu % 8 / 4]);
    let cases: &[(&Topology, &str, usize, &str)] = &[
        (&plain, "1-15", 10, "1-2,4-11"),
        (&sockets, "0-15", 4, "0-3"),
        (&sockets, "2-15", 6, "2-7"),
        (&sockets, "8-15", 4, "8-11"),
        (&nodes, "3-8,12", 2, "4-5"),
        (&threads, "2-7,10-15", 6, "4-6,12-14"),
        (&threads, "1-7,9-15", 10, "1,4-7,9,12-15"),
    ];
    for (topology, free, count, expected) in cases {
        assert_eq!(taken(topology, options, free, *count), *expected, "{count} of {free}");
    }
}

#[test]
fn spread_over_cores_takes_one_thread_of_each() {
    let options = CpuOptions { distribute_across_cores: true, ..CpuOptions::default() };
    let cases: &[(&Topology, &str, usize, &str)] = &[
        (&single_ht(), "0-7", 3, "0-2"),
        (&dual_ht(), "0-11", 2, "0,2"),
        (&dual_ht(), "0-11", 3, "0,2,4"),
        (&dual_ht(), "0-11", 8, "0-4,6,8,10"),
        (&dual(), "0-7", 2, "0-1"),
        (&large(), "0-79", 8, "0-7"),
    ];
    for (topology, free, count, expected) in cases {
        assert_eq!(taken(topology, options, free, *count), *expected, "{count} of {free}");
    }
}

#[test]
fn spread_over_numa_nodes_is_even() {
    let single = CpuOptions { distribute_across_numa: true, ..CpuOptions::default() };
    let cores = CpuOptions { full_pcpus_only: true, ..single };
    let cases: &[(&Topology, CpuOptions, &str, usize, &str)] = &[
        (&dual_ht(), single, "0-11", 8, "0-3,6-9"),
        (&dual_ht(), single, "1-5,7-11", 1, "1"),
        (&dual_ht(), cores, "1-5,7-11", 1, "2"),
        (&large(), single, "0-79", 64, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"),
        (&large(), single, "0-79", 48, "0-7,10-17,20-27,40-47,50-57,60-67"),
        (&large(), single, "1-29,32-39,41-69,72-79", 48, "1-8,10-17,20-27,41-48,50-57,60-67"),
        (&large(), single, "2-29,31-39,42-69,71-79", 48, "10-17,20-27,31-38,50-57,60-67,71-78"),
        (
            &large(),
            single,
            "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71",
            16,
            "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71",
        ),
        (&large(), single, "0-79", 26, "0-6,10-16,40-45,50-55"),
        (&large(), cores, "0-79", 26, "0-6,10-15,40-46,50-55"),
        (&large(), single, "0-79", 62, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
        (&large(), cores, "0-79", 62, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
    ];
    for (topology, options, free, count, expected) in cases {
        assert_eq!(taken(topology, *options, free, *count), *expected, "{count} of {free}");
    }
}

#[test]
fn isolated_cpus_are_handed_out_first_and_reserved_last() {
    let mut four = machine(4, |cpu| [cpu, 0, 0, 0]);
    four.isolated = set("2-3");
    let options = CpuOptions::default();
    assert_eq!(taken(&four, options, "0-3", 1), "2");
    assert_eq!(taken(&four, options, "0-3", 2), "2-3");
    assert_eq!(taken(&four, options, "0-3", 3), "0-2", "not enough of them: any");
    assert_eq!(taken(&four, options, "0-1,3", 2), "0-1", "kinds are not mixed while one suffices");
    assert_eq!(reserve(&four, options, 1).to_string(), "0");
    assert_eq!(reserve(&four, options, 3).to_string(), "0-2");
    let half = Topology { isolated: set("4-5"), ..single_ht() };
    let whole = CpuOptions { full_pcpus_only: true, ..options };
    assert_eq!(taken(&half, whole, "0-7", 2), "2,6", "half cores are not whole ones");
}

#[test]
fn hybrid_machines_are_taken_by_their_real_cores() {
    // Two cores with two threads, four with one.
    let hybrid = machine(8, |cpu| [if cpu < 4 { cpu / 2 * 2 } else { cpu }, 0, 0, 0]);
    assert_eq!(hybrid.threads_per_core(), 1);
    assert_eq!(taken(&hybrid, CpuOptions::default(), "1-7", 2), "4-5");
    assert_eq!(taken(&hybrid, CpuOptions::default(), "0-7", 6), "0-1,4-7");
    let whole = CpuOptions { full_pcpus_only: true, ..CpuOptions::default() };
    assert_eq!(taken(&hybrid, whole, "0-5", 3), "0-1,4", "not part of a wide core");
    assert_eq!(taken(&hybrid, whole, "0-3", 3), "0-2", "there is no such set of cores");
    assert!(is_whole(&hybrid, &set("0-1,4")) && !is_whole(&hybrid, &set("0,4")));
    assert_eq!(reserve(&hybrid, CpuOptions::default(), 3).to_string(), "0-2");
}
