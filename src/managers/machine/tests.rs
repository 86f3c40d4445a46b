use super::*;
use crate::managers::cpus::{CpuOptions, reserve, take};
use crate::managers::topology::Level;

/// A directory with the files that a kernel shows; each line is a path below `devices/system` and its content.
struct SysfsTree(PathBuf);

impl SysfsTree {
    fn new(name: &str, files: &str) -> Self {
        let root = std::env::temp_dir().join(format!("edge-agent-sysfs-{name}-{}", std::process::id()));
        for line in files.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (path, content) = line.split_once(' ').unwrap_or((line, ""));
            for (path, content) in expanded(path, content) {
                let path = root.join("devices/system").join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, format!("{content}\n")).unwrap();
            }
        }
        Self(root)
    }
}

impl Drop for SysfsTree {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// `cpu[0-3]/x N` are four files; `N` is the number in each.
fn expanded(path: &str, content: &str) -> Vec<(String, String)> {
    let Some((before, rest)) = path.split_once('[') else {
        return vec![(path.to_owned(), content.to_owned())];
    };
    let (cpus, after) = rest.split_once(']').unwrap();
    let file = |cpu: u32| (format!("{before}{cpu}{after}"), content.replace('N', &cpu.to_string()));
    CpuSet::parse(cpus).unwrap().iter().map(file).collect()
}

const PI_4: &str = "
    cpu/online 0-3
    cpu/isolated
    cpu/cpu[0-3]/topology/physical_package_id 0
    cpu/cpu[0-3]/topology/thread_siblings_list N
    cpu/cpu[0-3]/cache/index0/level 1
    cpu/cpu[0-3]/cache/index0/shared_cpu_list N
    cpu/cpu[0-3]/cache/index2/level 2
    cpu/cpu[0-3]/cache/index2/shared_cpu_list 0-3";

const PI_5: &str = "
    cpu/online 0-3
    cpu/isolated 3
    cpu/cpu[0-3]/topology/physical_package_id 0
    cpu/cpu[0-3]/topology/thread_siblings_list N
    cpu/cpu[0-3]/cache/index3/level 3
    cpu/cpu[0-3]/cache/index3/shared_cpu_list 0-3
    node/node0/cpulist 0-3
    node/node0/distance 10 10
    node/node0/meminfo Node 0 MemTotal:        4079360 kB
    node/node1/cpulist
    node/node1/distance 10 10
    node/node1/meminfo Node 1 MemTotal:        4108288 kB";

/// Two cores with two threads, four without; another one is offline.
const HYBRID: &str = "
    cpu/online 0-7
    cpu/isolated
    cpu/cpu[0-9]/topology/physical_package_id 0
    cpu/cpu[0-1]/topology/thread_siblings_list 0-1
    cpu/cpu[2-3]/topology/thread_siblings_list 2-3
    cpu/cpu[4-7]/topology/thread_siblings_list N
    cpu/cpu[0-7]/cache/index3/level 3
    cpu/cpu[0-7]/cache/index3/shared_cpu_list 0-7
    node/node0/cpulist 0-7
    node/node0/distance 10
    node/node0/meminfo Node 0 MemTotal:       16137340 kB
    node/node0/hugepages/hugepages-2048kB/nr_hugepages 64
    node/node0/hugepages/hugepages-1048576kB/nr_hugepages 0";

const TWO_SOCKETS: &str = "
    cpu/online 0-7
    cpu/isolated
    cpu/cpu[0-1,4-5]/topology/physical_package_id 0
    cpu/cpu[2-3,6-7]/topology/physical_package_id 1
    cpu/cpu[0,4]/topology/thread_siblings_list 0,4
    cpu/cpu[1,5]/topology/thread_siblings_list 1,5
    cpu/cpu[2,6]/topology/thread_siblings_list 2,6
    cpu/cpu[3,7]/topology/thread_siblings_list 3,7
    cpu/cpu[0-1,4-5]/cache/index3/level 3
    cpu/cpu[0-1,4-5]/cache/index3/shared_cpu_list 0-1,4-5
    cpu/cpu[2-3,6-7]/cache/index3/level 3
    cpu/cpu[2-3,6-7]/cache/index3/shared_cpu_list 2-3,6-7
    node/node0/cpulist 0-1,4-5
    node/node0/distance 10 21
    node/node0/meminfo Node 0 MemTotal:       32768000 kB
    node/node1/cpulist 2-3,6-7
    node/node1/distance 21 10
    node/node1/meminfo Node 1 MemTotal:       33030144 kB";

/// CPUs, cores, sockets, NUMA nodes with CPUs, caches.
fn counts(topology: &Topology) -> [usize; 5] {
    let all = topology.all();
    let number = |level| topology.groups(&all, level).len();
    [all.len(), number(Level::Core), number(Level::Socket), number(Level::Node), number(Level::Cache)]
}

#[test]
fn boards_and_servers_are_read_from_sysfs() {
    let cases = [
        ("pi4", PI_4, [4, 4, 1, 1, 1]),
        ("pi5", PI_5, [4, 4, 1, 1, 1]),
        ("hybrid", HYBRID, [8, 6, 1, 1, 1]),
        ("sockets", TWO_SOCKETS, [8, 4, 2, 2, 2]),
    ];
    for (name, files, expected) in cases {
        let tree = SysfsTree::new(name, files);
        assert_eq!(counts(&read(&tree.0, 1 << 30)), expected, "{name}");
    }
}

#[test]
fn memory_is_that_of_each_node() {
    let tree = SysfsTree::new("memory-pi4", PI_4);
    let nodes = read(&tree.0, 1 << 30).nodes;
    assert_eq!((nodes.len(), nodes[0].memory[0].total), (1, 1 << 30), "no node says it: the machine's");
    let tree = SysfsTree::new("memory-pi5", PI_5);
    let nodes = read(&tree.0, 0).nodes;
    assert_eq!((nodes.len(), nodes[1].memory[0].total), (2, 4_108_288 << 10), "a node without CPUs");
    let tree = SysfsTree::new("memory-hybrid", HYBRID);
    let memory = read(&tree.0, 0).nodes.remove(0).memory;
    let memory: Vec<(&str, u64)> = memory.iter().map(|own| (own.kind.as_str(), own.total)).collect();
    assert_eq!(memory, [("hugepages-2Mi", 128 << 20), ("hugepages-1Gi", 0), ("memory", 16_137_340 << 10)]);
}

#[test]
fn allocation_on_real_trees() {
    let tree = SysfsTree::new("take-pi5", PI_5);
    let board = read(&tree.0, 0);
    assert_eq!(board.isolated.to_string(), "3");
    let options = CpuOptions::default();
    assert_eq!(take(&board, options, &board.all(), 1).unwrap().to_string(), "3", "the isolated one");
    assert_eq!(reserve(&board, options, 1).to_string(), "0");
    let tree = SysfsTree::new("take-sockets", TWO_SOCKETS);
    let server = read(&tree.0, 0);
    assert_eq!(take(&server, options, &server.all(), 4).unwrap().to_string(), "0-1,4-5", "one socket");
    assert_eq!(take(&server, options, &CpuSet::parse("1-7").unwrap(), 2).unwrap().to_string(), "1,5");
}

#[test]
fn an_offline_sibling_leaves_a_core_of_one() {
    let tree = SysfsTree::new("offline", TWO_SOCKETS);
    std::fs::write(tree.0.join("devices/system/cpu/online"), "0-3,5-7\n").unwrap();
    let server = read(&tree.0, 0);
    assert_eq!(counts(&server), [7, 4, 2, 2, 2]);
    assert_eq!(server.whole_cores(&CpuSet::of(0)).to_string(), "0");
    // The core of CPU 0 is whole with one CPU: it is what a request of one takes.
    assert_eq!(take(&server, CpuOptions::default(), &server.all(), 1).unwrap().to_string(), "0");
    assert_eq!(reserve(&server, CpuOptions::default(), 2).to_string(), "0-1", "never a CPU that is offline");
}

#[test]
fn nothing_in_sysfs_is_a_machine_without_cpus() {
    let empty = read(Path::new("/nonexistent"), 1 << 20);
    assert!(empty.cpus.is_empty() && empty.nodes.len() == 1);
    assert!(!read(Path::new("/sys"), 1 << 20).cpus.is_empty(), "this machine");
}
