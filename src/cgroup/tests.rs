//! Fake trees of both versions, and the machine's own tree where it lets us.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::sys::node;

struct Tree(CgroupConfig);

impl Tree {
    fn new(name: &str, v2: bool) -> Self {
        let mount = std::env::temp_dir().join(format!("edge-agent-cgroup-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&mount);
        fs::create_dir_all(&mount).unwrap();
        Self(CgroupConfig { mount, v2, driver: CgroupDriver::Cgroupfs })
    }

    /// What the kernel would have made.
    fn put(&self, file: &str, content: &str) {
        let path = self.0.mount.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
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
fn a_v2_pod_has_its_controllers_on_down_the_path_and_its_values_in_files() {
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
fn a_v1_pod_is_in_every_hierarchy_of_its_controllers_and_its_cpuset_is_its_parents() {
    let tree = Tree::new("v1-make", false);
    for directory in ["cpu,cpuacct", "cpuset", "memory", "pids", "hugetlb", "freezer", "systemd"] {
        fs::create_dir(tree.0.mount.join(directory)).unwrap();
    }
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
fn a_pods_cgroup_goes_from_every_v1_hierarchy_and_its_neighbours_stay() {
    let tree = Tree::new("v1-remove", false);
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

/// The machine's tree, or `None` where we may not write to it.
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
fn the_kernel_takes_the_values_and_a_process_left_behind_is_killed_with_its_cgroup() {
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
