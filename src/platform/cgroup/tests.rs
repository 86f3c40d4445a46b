//! Fake trees of both versions, and the machine's own tree where it is writable.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::platform::sys::node;

struct Tree(CgroupConfig);

impl Tree {
    fn new(name: &str, v2: bool) -> Self {
        let mount = std::env::temp_dir().join(format!("edge-agent-cgroup-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&mount);
        fs::create_dir_all(&mount).unwrap();
        Self(CgroupConfig { mount, v2, driver: CgroupDriver::Cgroupfs })
    }

    /// Creates a file as the kernel would.
    fn put(&self, file: &str, content: &str) {
        let path = self.0.mount.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Mounts hierarchies of version 1.
    fn mount(&self, hierarchies: &[&str]) {
        for hierarchy in hierarchies {
            self.put(&format!("{hierarchy}/cgroup.procs"), "");
        }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.mount.join(file)).unwrap()
    }

    fn has(&self, directory: &str) -> bool {
        self.0.mount.join(directory).is_dir()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0.mount);
    }
}

fn values() -> CgroupValues {
    CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        memory_bytes: Some(64 << 20),
        pids: Some(100),
        huge_pages: vec![("2MB".to_owned(), Some(0)), ("1GB".to_owned(), None)],
    }
}

#[test]
fn v2_pod_cgroup_enables_controllers_and_writes_limits() {
    let tree = Tree::new("v2-make", true);
    tree.put("cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n");
    tree.put("cgroup.subtree_control", "cpu memory\n");
    tree.put("kubepods/cgroup.subtree_control", "cpuset cpu memory hugetlb pids\n");
    tree.put("kubepods/burstable/cgroup.subtree_control", "");
    let files = ["cpu.weight", "cpu.max", "memory.max", "pids.max", "hugetlb.2MB.max", "hugetlb.1GB.max"];
    for file in files {
        tree.put(&format!("kubepods/burstable/podA/{file}"), "the kernel's own default");
    }
    let skipped = ensure(&tree.0, "/kubepods/burstable/podA", &values()).unwrap();
    assert!(skipped.is_empty(), "{skipped:?}");
    assert_eq!(tree.read("cgroup.subtree_control"), "+cpuset +hugetlb +pids");
    assert_eq!(
        tree.read("kubepods/cgroup.subtree_control"),
        "cpuset cpu memory hugetlb pids\n",
        "not written"
    );
    assert_eq!(tree.read("kubepods/burstable/cgroup.subtree_control"), "+cpuset +cpu +memory +hugetlb +pids");
    let written = files.map(|file| tree.read(&format!("kubepods/burstable/podA/{file}")));
    assert_eq!(written, ["20", "50000 100000", "67108864", "100", "0", "max"]);
    let open = CgroupValues { cpu_quota: Some(-1), memory_bytes: Some(-1), ..CgroupValues::default() };
    update(&tree.0, "/kubepods/burstable/podA", &open).unwrap();
    assert_eq!(tree.read("kubepods/burstable/podA/cpu.max"), "max 100000");
    assert_eq!(tree.read("kubepods/burstable/podA/memory.max"), "max");
    assert_eq!(tree.read("kubepods/burstable/podA/cpu.weight"), "20", "not mentioned, left alone");
}

#[test]
fn v1_pod_cgroup_is_in_each_hierarchy_with_inherited_cpuset() {
    let tree = Tree::new("v1-make", false);
    tree.mount(&["cpu,cpuacct", "cpuset", "memory", "pids", "hugetlb", "freezer", "systemd"]);
    tree.put("cpuset/cpuset.cpus", "0-3\n");
    tree.put("cpuset/cpuset.mems", "0\n");
    tree.put("cpuset/kubepods/cpuset.cpus", "0-1\n");
    tree.put("cpuset/kubepods/cpuset.mems", "\n");
    tree.put("cpuset/kubepods/podA/cpuset.cpus", "\n");
    tree.put("cpuset/kubepods/podA/cpuset.mems", "\n");
    let files = [
        ("cpu,cpuacct", "cpu.shares", "512"),
        ("cpu,cpuacct", "cpu.cfs_period_us", "100000"),
        ("cpu,cpuacct", "cpu.cfs_quota_us", "50000"),
        ("memory", "memory.limit_in_bytes", "67108864"),
        ("pids", "pids.max", "100"),
        ("hugetlb", "hugetlb.2MB.limit_in_bytes", "0"),
        ("hugetlb", "hugetlb.1GB.limit_in_bytes", "-1"),
    ];
    for (hierarchy, file, _) in files {
        tree.put(&format!("{hierarchy}/kubepods/podA/{file}"), "");
    }
    let skipped = ensure(&tree.0, "/kubepods/podA", &values()).unwrap();
    assert!(skipped.is_empty(), "{skipped:?}");
    for (hierarchy, file, value) in files {
        assert_eq!(tree.read(&format!("{hierarchy}/kubepods/podA/{file}")), value, "{file}");
    }
    assert_eq!(tree.read("cpuset/kubepods/podA/cpuset.cpus"), "0-1");
    assert_eq!(tree.read("cpuset/kubepods/podA/cpuset.mems"), "0");
    assert_eq!(tree.read("cpuset/kubepods/cpuset.cpus"), "0-1\n", "what somebody has set stays");
    assert!(!tree.has("freezer/kubepods") && !tree.has("systemd/kubepods"));
}

#[test]
fn a_v1_directory_on_which_nothing_is_mounted_is_no_hierarchy() {
    let tree = Tree::new("v1-not-mounted", false);
    tree.mount(&["cpu", "memory"]);
    fs::create_dir(tree.0.mount.join("openrc")).unwrap();
    let made = container::make_leaf(&tree.0, "/kubepods/podA", "c1").unwrap();
    assert_eq!(made.dirs, ["cpu", "memory"].map(|name| tree.0.mount.join(name).join("kubepods/podA/c1")));
    assert!(!tree.has("openrc/kubepods"));
}

#[test]
fn what_a_machine_does_not_have_is_left_out_and_named() {
    let tree = Tree::new("skipped", true);
    tree.put("cgroup.controllers", "cpu memory");
    tree.put("kubepods/cpu.weight", "");
    let skipped = ensure(&tree.0, "/kubepods", &values()).unwrap();
    let names: Vec<&str> = skipped.iter().map(|each| each.what.as_str()).collect();
    assert_eq!(names, ["cpu.max", "memory.max"], "pids and hugetlb are no controllers here");
    assert_eq!(tree.read("kubepods/cpu.weight"), "20");
}

#[test]
fn other_trouble_is_an_error_with_its_file() {
    let tree = Tree::new("errors", true);
    tree.put("cgroup.controllers", "memory");
    tree.put("kubepods/memory.max/in-the-way", "");
    let error = ensure(&tree.0, "/kubepods", &values()).unwrap_err();
    assert!(error.to_string().starts_with("write \"67108864\" to"), "{error}");
    tree.put("file", "");
    let error = ensure(&tree.0, "/file/kubepods", &values()).unwrap_err();
    assert!(error.to_string().starts_with("create cgroup"), "{error}");
    let error = update(&tree.0, "/absent", &values()).unwrap_err();
    assert_eq!(error.to_string(), "\"/absent\" cgroup does not exist");
}

#[test]
fn no_path_reaches_a_hierarchys_root() {
    let tree = Tree::new("paths", true);
    fs::create_dir_all(tree.0.mount.join("kubepods/podA")).unwrap();
    for nothing in ["", "/", "/kubepods/..", "../kubepods", "/kubepods//podA", "/kubepods/./podA"] {
        assert!(remove(&tree.0, nothing).is_empty());
        assert!(ensure(&tree.0, nothing, &values()).is_err(), "{nothing:?}");
        assert!(!exists(&tree.0, nothing));
        assert_eq!(kill_all(&tree.0, nothing), 0);
    }
    assert!(tree.has("kubepods/podA"));
    assert!(remove(&tree.0, "/kubepods/podA").is_empty());
    assert!(!tree.has("kubepods/podA") && tree.has("kubepods"));
}

#[test]
fn v1_pod_cgroup_is_removed_everywhere_and_siblings_kept() {
    let tree = Tree::new("v1-remove", false);
    tree.mount(&["cpu", "memory", "systemd"]);
    for path in [
        "cpu/kubepods/besteffort/podA/c1",
        "memory/kubepods/besteffort/podA",
        "systemd/kubepods/besteffort/podA",
        "cpu/kubepods/besteffort/podB",
    ] {
        fs::create_dir_all(tree.0.mount.join(path)).unwrap();
    }
    let both = ["/kubepods/besteffort/podA", "/kubepods/besteffort/podB"];
    assert_eq!(children(&tree.0, "/kubepods/besteffort"), both);
    assert!(remove(&tree.0, "/kubepods/besteffort/podA").is_empty());
    assert_eq!(children(&tree.0, "/kubepods/besteffort"), both[1..]);
    assert!(!tree.has("systemd/kubepods/besteffort/podA"));
}

#[test]
fn weights_span_their_range() {
    assert_eq!([0, 2, 1024, 262_144, 1 << 40].map(v2::cpu_weight), [1, 1, 39, 10_000, 10_000]);
}

/// The machine's tree, or `None` where it is not writable.
fn real_tree() -> Option<CgroupConfig> {
    let mount = Path::new("/sys/fs/cgroup").to_owned();
    let config = CgroupConfig { mount, v2: node::cgroup_v2(), driver: CgroupDriver::Cgroupfs };
    let probe = format!("/edge-agent-probe-{}", std::process::id());
    let made = ensure(&config, &probe, &CgroupValues::default());
    let can = made.is_ok_and(|skipped| skipped.is_empty()) && exists(&config, &probe);
    let _ = remove(&config, &probe);
    can.then_some(config)
}

#[test]
fn kernel_accepts_limits_and_leftover_processes_are_killed() {
    let Some(config) = real_tree() else { return };
    let top = format!("/edge-agent-test-{}", std::process::id());
    let pod = format!("{top}/burstable/podA");
    let plain = CgroupValues { huge_pages: Vec::new(), ..values() };
    let skipped = ensure(&config, &pod, &plain).unwrap();
    assert!(skipped.is_empty(), "{skipped:?}");
    let (hierarchy, file) = if config.v2 { ("", "memory.max") } else { ("memory", "memory.limit_in_bytes") };
    let memory = config.mount.join(hierarchy).join(&pod[1..]);
    assert_eq!(fs::read_to_string(memory.join(file)).unwrap().trim(), "67108864");
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let container = memory.join("container");
    fs::create_dir(&container).unwrap();
    fs::write(container.join("cgroup.procs"), child.id().to_string()).unwrap();
    assert_eq!(remove(&config, &pod).len(), 1, "a process is in one of the hierarchies");
    assert_eq!(kill_all(&config, &pod), 1);
    assert!(!child.wait().unwrap().success());
    assert!(remove(&config, &top).is_empty());
    assert!(!exists(&config, &top));
}

#[test]
fn what_a_v2_cgroup_counts_is_read_with_its_details() {
    let tree = Tree::new("v2-stats", true);
    let stat = "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 250000\n";
    for (file, content) in [
        ("cpu.stat", stat),
        ("cpu.max", "20000 100000\n"),
        ("cpu.weight", "39\n"),
        ("memory.current", "10485760\n"),
        ("memory.max", "67108864\n"),
        ("memory.peak", "20971520\n"),
        ("memory.swap.current", "4096\n"),
        ("memory.swap.max", "max\n"),
        (
            "memory.stat",
            "anon 1048576\nfile 8388608\nfile_mapped 4096\ninactive_file 2097152\npgfault 77\npgmajfault 3\n",
        ),
        ("memory.events", "low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\n"),
        ("pids.current", "7\n"),
        ("pids.max", "max\n"),
        (
            "io.stat",
            "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n253:1 rbytes=1 wbytes=2 rios=3 wios=4\n",
        ),
        // Before Linux 5.13 the kernel has no `full` line for CPU.
        ("cpu.pressure", "some avg10=1.00 avg60=0.50 avg300=0.10 total=1500\n"),
        (
            "memory.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
        ),
        ("cgroup.procs", "12\n13\n14\n"),
    ] {
        tree.put(&format!("pod/c1/{file}"), content);
    }
    let dirs = counting_dirs(&tree.0, "/pod/c1");
    let stats = usage::stats(&dirs);
    assert_eq!((stats.cpu_ns, stats.memory_usage), (Some(1_500_000_000), Some(10 << 20)));
    assert_eq!((stats.working_set, stats.rss), (Some(8 << 20), Some(1 << 20)));
    assert_eq!((stats.page_faults, stats.major_page_faults), (Some(77), Some(3)));
    assert_eq!((stats.memory_limit, stats.swap_usage, stats.swap_limit), (Some(64 << 20), Some(4096), None));
    assert_eq!(stats.pids, Some(7));
    let detail = usage::detail(&dirs);
    assert_eq!((detail.user_ns, detail.system_ns), (Some(1_000_000_000), Some(500_000_000)));
    assert_eq!(
        (detail.periods, detail.throttled_periods, detail.throttled_ns),
        (Some(10), Some(4), Some(250_000_000))
    );
    assert_eq!((detail.cpu_quota, detail.cpu_period), (Some(20_000), Some(100_000)));
    assert_eq!(v2::cpu_weight(detail.cpu_shares.unwrap().try_into().unwrap()), 39, "as it was");
    assert_eq!((detail.cache, detail.mapped_file), (Some(8 << 20), Some(4096)));
    assert_eq!((detail.memory_max_usage, detail.memory_failures), (Some(20 << 20), Some(5)));
    assert_eq!(detail.memory_reservation, None, "max is none");
    assert_eq!((detail.oom_kills, detail.pids_limit), (Some(1), None));
    let io = detail.io["8:0"];
    assert_eq!((io.read_bytes, io.written_bytes, io.reads, io.writes), (4096, 8192, 1, 2));
    assert_eq!((detail.io["253:1"].writes, detail.io["253:1"].device), (4, (253, 1)));
    let pressure = |waiting_ns, stalled_ns| usage::Pressure { waiting_ns, stalled_ns };
    assert_eq!(
        detail.pressure,
        [pressure(Some(1_500_000), None), pressure(Some(7000), Some(3000)), pressure(None, None)]
    );
    // One with files, one without, one that has ended.
    tree.put("proc/13/status", "");
    tree.put("proc/12/fd/0", "");
    tree.put("proc/12/limits", "Max processes             unlimited            unlimited            processes\nMax open files            1024                 4096                 files\n");
    std::os::unix::fs::symlink("socket:[4711]", tree.0.mount.join("proc/12/fd/3")).unwrap();
    let found = usage::processes(&tree.0.mount.join("proc"), &dirs);
    assert_eq!(
        found,
        Some(usage::Processes { count: 3, files: Some(2), sockets: Some(1), max_files: Some(1024) })
    );
    assert_eq!(usage::processes(&tree.0.mount.join("proc"), &[]), None);
    assert_eq!(usage::detail(&counting_dirs(&tree.0, "/none")), usage::Detail::default());
}

#[test]
fn what_v1_cgroups_count_is_read_from_all_hierarchies() {
    let tree = Tree::new("v1-stats", false);
    tree.mount(&["cpu,cpuacct", "memory", "pids", "blkio", "freezer"]);
    for (file, content) in [
        ("cpu,cpuacct/pod/cpuacct.usage", "1500000000\n"),
        ("cpu,cpuacct/pod/cpuacct.usage_user", "1000000000\n"),
        ("cpu,cpuacct/pod/cpuacct.usage_sys", "500000000\n"),
        ("cpu,cpuacct/pod/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 250000000\n"),
        ("cpu,cpuacct/pod/cpu.shares", "512\n"),
        ("cpu,cpuacct/pod/cpu.cfs_quota_us", "-1\n"),
        ("cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n"),
        ("memory/pod/memory.usage_in_bytes", "10485760\n"),
        ("memory/pod/memory.max_usage_in_bytes", "20971520\n"),
        ("memory/pod/memory.limit_in_bytes", "67108864\n"),
        ("memory/pod/memory.memsw.usage_in_bytes", "10489856\n"),
        ("memory/pod/memory.memsw.limit_in_bytes", "134217728\n"),
        ("memory/pod/memory.failcnt", "5\n"),
        ("memory/pod/memory.soft_limit_in_bytes", "33554432\n"),
        (
            "memory/pod/memory.stat",
            "cache 1\ntotal_cache 8388608\ntotal_rss 1048576\ntotal_mapped_file 4096\ntotal_inactive_file 2097152\ntotal_pgfault 77\ntotal_pgmajfault 3\n",
        ),
        ("memory/pod/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
        ("pids/pod/pids.current", "7\n"),
        ("pids/pod/pids.max", "100\n"),
        (
            "blkio/pod/blkio.throttle.io_service_bytes",
            "8:0 Read 4096\n8:0 Write 8192\n8:0 Total 12288\nTotal 12288\n",
        ),
        ("blkio/pod/blkio.throttle.io_serviced", "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n"),
        ("freezer/pod/freezer.state", "THAWED\n"),
    ] {
        tree.put(file, content);
    }
    let dirs = counting_dirs(&tree.0, "/pod");
    assert_eq!(dirs.len(), 4, "a freezer counts nothing: {dirs:?}");
    let stats = usage::stats(&dirs);
    assert_eq!((stats.cpu_ns, stats.working_set), (Some(1_500_000_000), Some(8 << 20)));
    assert_eq!((stats.swap_usage, stats.swap_limit), (Some(4096), Some(64 << 20)));
    assert_eq!((stats.rss, stats.page_faults, stats.pids), (Some(1 << 20), Some(77), Some(7)));
    let detail = usage::detail(&dirs);
    assert_eq!((detail.user_ns, detail.system_ns), (Some(1_000_000_000), Some(500_000_000)));
    assert_eq!((detail.periods, detail.throttled_ns), (Some(10), Some(250_000_000)));
    assert_eq!((detail.cpu_shares, detail.cpu_quota, detail.cpu_period), (Some(512), None, Some(100_000)));
    assert_eq!((detail.cache, detail.memory_failures, detail.oom_kills), (Some(8 << 20), Some(5), Some(1)));
    assert_eq!((detail.pids_limit, detail.memory_reservation), (Some(100), Some(32 << 20)));
    let io = detail.io["8:0"];
    assert_eq!((io.read_bytes, io.written_bytes, io.reads, io.writes), (4096, 8192, 1, 2));
    assert_eq!(detail.io.len(), 1, "totals are no disk");
}

#[test]
fn container_cgroups_are_found_by_id_in_any_runtime_naming() {
    let tree = Tree::new("find", true);
    for path in [
        "pod/aaa",
        "pod/cri-containerd-bbb.scope",
        "pod/crio-ccc.scope",
        "pod/crio-conmon-ccc.scope",
        "pod/agent-sandbox.scope/ddd/ddd",
        "pod/xeee",
    ] {
        fs::create_dir_all(tree.0.mount.join(path)).unwrap();
    }
    let pod = counting_dirs(&tree.0, "/pod");
    let found = find_by_ids(&pod, &["aaa", "bbb", "ccc", "ddd", "eee", ""]);
    let names: Vec<String> = found
        .iter()
        .map(|dirs| {
            let below = dirs.iter().map(|dir| dir.strip_prefix(&pod[0]).unwrap().display().to_string());
            below.collect::<Vec<_>>().join(" ")
        })
        .collect();
    let expected = ["aaa", "cri-containerd-bbb.scope", "crio-ccc.scope", "agent-sandbox.scope/ddd", "", ""];
    assert_eq!(names, expected);
    tree.put("pod/cgroup.procs", "");
    tree.put("pod/aaa/cgroup.procs", "12\n");
    tree.put("pod/monitor-0123456789ab/cgroup.procs", "34\n");
    assert_eq!(sandbox_process(&pod, "0123456789abcdef"), Some(34), "the sandbox's own");
    assert_eq!(sandbox_process(&pod, "another-sandbox"), Some(12), "else any");
    assert_eq!(sandbox_process(&[], "x"), None);
}
