//! Fake trees of version 2, and the machine's own of version 1.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use super::*;
use crate::platform::cgroup::devices::DeviceKind;
use crate::platform::cgroup::usage::{ContainerStats, oom_kills, stats};
use crate::platform::testing::TempDir;

struct CgroupTree(TempDir);

impl CgroupTree {
    fn new() -> Self {
        Self(TempDir::new())
    }

    fn put(&self, file: &str, content: &str) {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap()
    }

    fn config(&self, driver: CgroupDriver) -> CgroupConfig {
        CgroupConfig { mount: self.0.to_owned(), v2: true, driver }
    }
}

fn everything() -> DeviceRule {
    DeviceRule {
        allow: true,
        kind: DeviceKind::All,
        major: None,
        minor: None,
        read: true,
        write: true,
        mknod: true,
    }
}

fn resources() -> LinuxResources {
    LinuxResources {
        cpu_shares: 512,
        cpu_quota: 50_000,
        cpu_period: 100_000,
        memory_limit_bytes: 64 << 20,
        hugepage_limits: vec![("2MB".to_owned(), 0)],
        unified: BTreeMap::from([("memory.oom.group".to_owned(), "1".to_owned())]),
        cpuset_cpus: "0".to_owned(),
        ..LinuxResources::default()
    }
}

/// The files that the kernel creates in a new cgroup with these controllers.
fn kernel_files(tree: &CgroupTree, directory: &str) {
    tree.put(&format!("{directory}/cgroup.controllers"), "cpuset cpu memory hugetlb pids\n");
    tree.put(&format!("{directory}/cgroup.events"), "populated 0\n");
    for file in [
        "cpu.weight",
        "cpu.max",
        "memory.max",
        "memory.swap.max",
        "memory.oom.group",
        "cpuset.cpus",
        "hugetlb.2MB.max",
    ] {
        tree.put(&format!("{directory}/{file}"), "as made");
    }
}

/// As a runtime makes a container's.
fn make_container(
    config: &CgroupConfig,
    parent: &str,
    name: &str,
    resources: &LinuxResources,
    rules: &[DeviceRule],
) -> Result<ContainerCgroup, CgroupError> {
    let mut cgroup = make_leaf(config, parent, name)?;
    cgroup.skipped.extend(limit(config, &cgroup.dirs, resources, rules)?);
    Ok(cgroup)
}

#[test]
fn a_v2_container_gets_its_controllers_and_its_limits() {
    let tree = CgroupTree::new();
    tree.put("cgroup.controllers", "cpuset cpu memory hugetlb pids\n");
    tree.put("cgroup.subtree_control", "");
    tree.put("kubepods/cgroup.subtree_control", "cpu");
    tree.put("kubepods/podA/cgroup.subtree_control", "");
    kernel_files(&tree, "kubepods/podA/c1");
    let config = tree.config(CgroupDriver::Cgroupfs);
    let cgroup = make_container(&config, "/kubepods/podA", "c1", &resources(), &[everything()]).unwrap();
    assert!(cgroup.skipped.is_empty(), "{:?}", cgroup.skipped);
    assert_eq!(cgroup.dirs, [tree.0.join("kubepods/podA/c1")]);
    assert_eq!(cgroup.dirs, find(&config, "/kubepods/podA", "c1").unwrap());
    assert_eq!(tree.read("kubepods/podA/cgroup.subtree_control"), "+cpuset +cpu +memory +hugetlb +pids");
    for (file, value) in [
        ("cpu.weight", "20"),
        ("cpu.max", "50000 100000"),
        ("memory.max", "67108864"),
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("cpuset.cpus", "0"),
        ("hugetlb.2MB.max", "0"),
    ] {
        assert_eq!(tree.read(&format!("kubepods/podA/c1/{file}")), value, "{file}");
    }
    // Unset fields are left alone; swap limits apply to swap alone.
    let more = LinuxResources {
        memory_limit_bytes: 32 << 20,
        memory_swap_limit_bytes: 48 << 20,
        ..LinuxResources::default()
    };
    assert!(update(&cgroup.dirs, &more).unwrap().is_empty());
    assert_eq!(tree.read("kubepods/podA/c1/memory.swap.max"), (16 << 20).to_string());
    assert_eq!(tree.read("kubepods/podA/c1/cpu.max"), "50000 100000");
    let open = LinuxResources { cpu_quota: -1, memory_limit_bytes: -1, ..LinuxResources::default() };
    update(&cgroup.dirs, &open).unwrap();
    assert_eq!(tree.read("kubepods/podA/c1/cpu.max"), "max 100000");
    assert_eq!(tree.read("kubepods/podA/c1/memory.swap.max"), "max");
}

#[test]
fn a_huge_page_size_that_the_machine_lacks_is_reported() {
    let tree = CgroupTree::new();
    tree.put("hugetlb/c1/hugetlb.2MB.limit_in_bytes", "");
    tree.put("pids/c1/pids.max", "max");
    let dirs = ["hugetlb/c1", "pids/c1"].map(|name| tree.0.join(name));
    let limits = LinuxResources {
        hugepage_limits: vec![("2MB".to_owned(), 0), ("1GB".to_owned(), 0)],
        ..LinuxResources::default()
    };
    let skipped = |dirs: &[PathBuf]| -> Vec<String> {
        update(dirs, &limits).unwrap().into_iter().map(|skipped| skipped.what).collect()
    };
    assert_eq!(skipped(&dirs), ["hugetlb.1GB.limit_in_bytes"]);
    assert_eq!(tree.read("hugetlb/c1/hugetlb.2MB.limit_in_bytes"), "0");
    assert_eq!(skipped(&dirs[1..]), ["huge page limits"]);
}

#[test]
fn scope_delegates_controllers_with_its_first_container() {
    let tree = CgroupTree::new();
    let scope = "kubepods.slice/kubepods-podA.slice/agent-s1.scope";
    let control = |directory: &str| format!("{directory}/cgroup.subtree_control");
    for directory in [".", "kubepods.slice", "kubepods.slice/kubepods-podA.slice", scope] {
        tree.put(&control(directory), "");
    }
    tree.put("cgroup.controllers", "memory pids\n");
    kernel_files(&tree, &format!("{scope}/c1"));
    let config = tree.config(CgroupDriver::Systemd);
    let place = scope_place("kubepods-podA.slice", "agent-s1.scope");
    // The monitor is still in the scope itself then, and the kernel refuses controllers to the children of
    // such a cgroup.
    make_leaf(&config, &place, "monitor").unwrap();
    assert_eq!(tree.read(&control("kubepods.slice/kubepods-podA.slice")), "+memory +pids");
    assert_eq!(tree.read(&control(scope)), "");
    let limits = LinuxResources { memory_limit_bytes: 1 << 20, ..LinuxResources::default() };
    make_container(&config, &place, "c1", &limits, &[everything()]).unwrap();
    assert_eq!(tree.read(&control(scope)), "+memory +pids");
    assert_eq!(tree.read(&format!("{scope}/c1/memory.max")), "1048576");
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let tree = CgroupTree::new();
    tree.put("cgroup.controllers", "cpu memory\n");
    let config = tree.config(CgroupDriver::Cgroupfs);
    for (parent, name) in [("/a", ""), ("/a", "../b"), ("/a/..", "b"), ("/a", "b/c"), ("/a", "..")] {
        assert!(make_leaf(&config, parent, name).is_err(), "{parent} {name}");
    }
    kernel_files(&tree, "a/b");
    for file in ["cgroup.procs", "../memory.max", "memory/../x", "memory.max/..", "memoryx"] {
        let unified = BTreeMap::from([(file.to_owned(), "1".to_owned())]);
        let resources = LinuxResources { unified, ..LinuxResources::default() };
        assert!(update(&[tree.0.join("a/b")], &resources).is_err(), "{file}");
    }
}

#[test]
fn a_slice_is_where_systemd_has_it() {
    let tree = CgroupTree::new();
    tree.put("cgroup.controllers", "cpu\n");
    let config = tree.config(CgroupDriver::Systemd);
    for parent in ["kubepods-podA.slice", "/kubepods.slice/kubepods-podA.slice"] {
        let place = scope_place(parent, "agent-s1.scope");
        assert_eq!(place, "/kubepods.slice/kubepods-podA.slice/agent-s1.scope");
        let leaf = make_leaf(&config, &place, "c1").unwrap();
        assert_eq!(leaf.dirs, [tree.0.join("kubepods.slice/kubepods-podA.slice/agent-s1.scope/c1")]);
    }
}

#[test]
fn figures_are_read_from_either_version() {
    let tree = CgroupTree::new();
    tree.put("v2/cpu.stat", "usage_usec 1500\nuser_usec 1000\n");
    tree.put("v2/memory.current", "8192\n");
    tree.put("v2/memory.max", "max\n");
    tree.put("v2/memory.swap.current", "4096\n");
    tree.put("v2/memory.stat", "anon 1000\ninactive_file 192\npgfault 7\npgmajfault 2\n");
    tree.put("v2/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 1\n");
    tree.put("v2/pids.current", "5\n");
    let expected = ContainerStats {
        cpu_ns: Some(1_500_000),
        memory_usage: Some(8192),
        working_set: Some(8000),
        rss: Some(1000),
        page_faults: Some(7),
        major_page_faults: Some(2),
        memory_limit: None,
        swap_usage: Some(4096),
        swap_limit: None,
        pids: Some(5),
    };
    let v2 = [tree.0.join("v2")];
    assert_eq!((stats(&v2), oom_kills(&v2)), (expected, 3));
    tree.put("cpu/cpuacct.usage", "1500000\n");
    tree.put("cpu/cpu.stat", "nr_periods 0\nnr_throttled 0\n");
    tree.put("pids/pids.current", "5\n");
    tree.put("memory/memory.usage_in_bytes", "8192\n");
    tree.put("memory/memory.memsw.usage_in_bytes", "12288\n");
    tree.put("memory/memory.limit_in_bytes", "9223372036854771712\n");
    tree.put(
        "memory/memory.stat",
        "rss 1\ntotal_rss 1000\ntotal_inactive_file 192\ntotal_pgfault 7\ntotal_pgmajfault 2\n",
    );
    tree.put("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    let v1 = ["cpu", "memory", "pids"].map(|name| tree.0.join(name));
    assert_eq!((stats(&v1), oom_kills(&v1)), (expected, 3));
    assert_eq!((stats(&[]), oom_kills(&[])), (ContainerStats::default(), 0));
}

/// The machine's own tree, if it is of version 1 and writable.
#[test]
fn v1_container_is_limited_counted_killed_and_removed() {
    let config = CgroupConfig {
        mount: PathBuf::from("/sys/fs/cgroup"),
        v2: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        driver: CgroupDriver::Cgroupfs,
    };
    let parent = format!("/edge-agent-ctr-{}", std::process::id());
    if config.v2 || fs::create_dir(config.mount.join("memory").join(&parent[1..])).is_err() {
        return;
    }
    let null = DeviceRule { kind: DeviceKind::Char, major: Some(1), minor: Some(3), ..everything() };
    let limits = LinuxResources { hugepage_limits: Vec::new(), unified: BTreeMap::new(), ..resources() };
    let cgroup = make_container(&config, &parent, "c1", &limits, &[null]).unwrap();
    let again = make_container(&config, &parent, "c1", &limits, &[null]).unwrap();
    assert_eq!(cgroup.dirs, again.dirs);
    let of = |name: &str| cgroup.dirs.iter().find(|path| path.starts_with(config.mount.join(name))).unwrap();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap().trim().to_owned();
    assert_eq!(read(of("memory").join("memory.limit_in_bytes")), (64 << 20).to_string());
    assert_eq!(read(of("devices").join("devices.list")), "c 1:3 rwm");
    assert_ne!(read(of("cpuset").join("cpuset.mems")), "", "nothing could run in it");
    // Down and up again, with the limit of memory and swap on the way.
    for mega in [16_i64, 128] {
        let limits = LinuxResources { memory_limit_bytes: mega << 20, ..LinuxResources::default() };
        update(&cgroup.dirs, &limits).unwrap();
        assert_eq!(read(of("memory").join("memory.limit_in_bytes")), (mega << 20).to_string());
    }
    let enter = cgroup.dirs.iter().fold(String::new(), |script, directory| {
        format!("{script}echo $$ > {}/cgroup.procs;", directory.display())
    });
    let script = format!("{enter} : < /dev/null && ! (: < /dev/zero) && exec sleep 1000");
    let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let is_running =
        || fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap_or_default() == "sleep\n";
    while !is_running() {
        assert!(Instant::now() < deadline, "the shell could open what it must not, or not enter");
        std::thread::yield_now();
    }
    assert!(!is_empty(&cgroup.dirs));
    let used = stats(&cgroup.dirs);
    assert_eq!(used.pids, Some(1));
    assert!(
        used.cpu_ns > Some(0) && used.memory_usage > Some(0) && used.memory_limit == Some(128 << 20),
        "{used:?}"
    );
    assert_eq!(oom_kills(&cgroup.dirs), 0);
    assert_eq!(kill_all(&cgroup.dirs), 1);
    assert!(!child.wait().unwrap().success());
    assert!(is_empty(&cgroup.dirs));
    assert!(remove(&cgroup.dirs).is_empty() && remove(&cgroup.dirs).is_empty());
    let left = crate::platform::cgroup::remove(&config, &parent);
    assert!(left.is_empty(), "{left:?}");
}
