//! Machines as directories, and the findings about them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::super::facts::{Cgroups, InitSystem, ProbedMachine, Service, Swap};
use super::*;
use crate::model::types::Timestamp;
use crate::platform::sys::node::FileSystemFacts;

mod kubeadm;

/// 2026-11-22.
const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);

/// A directory that imitates a machine; removed when dropped.
struct Tree(PathBuf);

impl Tree {
    /// A Raspberry Pi 4 with Raspberry Pi OS, correctly configured.
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("edge-agent-preflight-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let tree = Self(root);
        for (path, text) in [
            ("proc/sys/kernel/hostname", "box-1\n"),
            ("proc/sys/kernel/osrelease", "6.6.31+rpt-rpi-v8\n"),
            ("proc/sys/kernel/random/entropy_avail", "256\n"),
            ("proc/sys/net/ipv4/ip_forward", "0\n"),
            ("proc/meminfo", "MemTotal:         943844 kB\nMemFree:          1 kB\n"),
            ("proc/filesystems", "nodev\tsysfs\nnodev\toverlay\n\text4\n"),
            ("proc/cmdline", "console=tty1 root=PARTUUID=1 cgroup_disable=memory cgroup_enable=memory\n"),
            ("proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0"),
            ("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n"),
            ("proc/self/mountinfo", "1 0 179:2 / / rw,noatime - ext4 /dev/mmcblk0p2 rw\n"),
            (
                "proc/net/route",
                "Iface\tDestination\tGateway\neth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
            ),
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("sys/class/rtc/rtc0/name", "ds3231\n"),
            ("boot/firmware/cmdline.txt", "console=tty1 root=PARTUUID=1\n"),
        ] {
            tree.file(path, text);
        }
        tree
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn facts(&self) -> MachineFacts {
        let machine = ProbedMachine { root: self.0.clone(), uid: 0, now: NOW, cpus: 4, proxies: Vec::new() };
        let mut facts = machine.gather(&wanted().interest());
        // The disk below the tree is that of the machine that runs the test.
        let room = FileSystemFacts {
            available: 8 << 30,
            inodes: 1 << 20,
            inodes_free: 1 << 19,
            ..FileSystemFacts::default()
        };
        facts.room.insert(wanted().root_dir, room);
        facts
    }

    /// All files with their contents.
    fn snapshot(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let (mut all, mut open) = (Vec::new(), vec![self.0.clone()]);
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                let path = entry.path();
                if entry.file_type().unwrap().is_dir() {
                    open.push(path.clone());
                }
                all.push((path.clone(), fs::read(&path).unwrap_or_default()));
            }
        }
        all.sort();
        all
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn wanted() -> Purpose {
    let local = IpAddr::from([127, 0, 0, 1]);
    Purpose {
        task: PreflightTask::Alone,
        needs: ClusterNeeds::default(),
        node_name: String::new(),
        root_dir: PathBuf::from("/var/lib/kubelet"),
        log_dir: PathBuf::from("/var/log/pods"),
        manifests: PathBuf::from("/etc/kubernetes/manifests"),
        endpoint: "embedded".to_owned(),
        ports: vec![
            WantedPort { address: local, port: 10248, setting: "healthzPort" },
            WantedPort { address: local, port: 10250, setting: "port" },
        ],
        is_embedded: true,
        subnets: vec!["10.86.0.0/24".parse().unwrap()],
        bridge: "agent0".to_owned(),
        fail_swap_on: false,
        fail_cgroup_v1: false,
    }
}

/// Warnings and errors, each with its name and the start of its message.
fn complaints(facts: &MachineFacts, wanted: &Purpose) -> Vec<PreflightFinding> {
    let mut found = check(facts, wanted);
    found.retain(|finding| finding.severity > Severity::Skipped);
    found
}

/// The only finding.
#[track_caller]
fn only(facts: &MachineFacts, wanted: &Purpose) -> PreflightFinding {
    let mut found = complaints(facts, wanted);
    assert_eq!(found.len(), 1, "{found:#?}");
    let finding = found.remove(0);
    assert!(
        !finding.message.is_empty() && !finding.fix.is_empty(),
        "it says what is wrong and what helps: {finding:?}"
    );
    finding
}

#[test]
fn healthy_board_passes_preflight_and_is_not_changed() {
    let tree = Tree::new("healthy");
    let before = tree.snapshot();
    let facts = tree.facts();
    assert_eq!(complaints(&facts, &wanted()), []);
    assert_eq!(tree.snapshot(), before);
    assert_eq!((facts.memory >> 20, facts.release.as_str()), (921, "6.6.31+rpt-rpi-v8"));
    let named: Vec<String> = check(&facts, &wanted()).into_iter().map(|finding| finding.name).collect();
    for name in [
        "NumCPU",
        "Mem",
        "Firewalld",
        "Port-10248",
        "Port-10250",
        "DirAvailable--etc-kubernetes-manifests",
        "FileAvailable--etc-kubernetes-kubelet.conf",
        "HTTPProxy",
        "Swap",
        "SystemVerification",
        "OverlayFS",
        "Hostname",
        "Service-kubelet",
        "FileContent--proc-sys-net-ipv4-ip_forward",
        "DefaultRoute",
        "Writable--var-lib-kubelet",
        "DiskSpace",
        "DiskType",
        "Clock",
        "RTC",
        "Entropy",
    ] {
        assert!(named.iter().any(|there| there == name), "{name}: {named:?}");
    }
}

#[test]
fn raspberry_pi_without_memory_cgroup_is_shown_the_fix() {
    let tree = Tree::new("pi");
    tree.file("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n");
    tree.file("proc/cmdline", "console=tty1 cgroup_disable=memory root=PARTUUID=1\n");
    let finding = only(&tree.facts(), &wanted());
    assert_eq!((finding.name.as_str(), finding.severity), ("SystemVerification", Severity::Error));
    assert!(
        finding.message.starts_with(
            "missing required cgroups: memory (the kernel was booted with cgroup_disable=memory)"
        )
    );
    assert!(
        finding.fix.contains("cgroup_enable=memory") && finding.fix.contains("/boot/firmware/cmdline.txt"),
        "{}",
        finding.fix
    );
    assert_eq!(
        finding.commands,
        ["sed -i '1s/$/ cgroup_enable=memory/' /boot/firmware/cmdline.txt && reboot"]
    );
    // Before Debian 12 the file was elsewhere; a PC has a boot loader.
    fs::remove_dir_all(tree.0.join("boot")).unwrap();
    tree.file("boot/cmdline.txt", "");
    assert!(only(&tree.facts(), &wanted()).commands[0].contains(" /boot/cmdline.txt "));
    fs::remove_dir_all(tree.0.join("boot")).unwrap();
    fs::remove_dir_all(tree.0.join("proc/device-tree")).unwrap();
    assert!(only(&tree.facts(), &wanted()).fix.contains("GRUB_CMDLINE_LINUX"));
}

#[test]
fn cgroups_are_checked_for_version_controllers_and_access() {
    let tree = Tree::new("cgroups");
    let facts = tree.facts();
    let with = |cgroups: Cgroups| MachineFacts { cgroups, ..facts.clone() };
    let names = |names: &str| names.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let unified = |listed: &str, is_threaded| Cgroups::Unified { controllers: names(listed), is_threaded };
    let all = "cpu memory pids cpuset io";
    assert!(only(&with(Cgroups::None), &wanted()).message.contains("no cgroup file system"));
    assert!(only(&with(unified(all, true)), &wanted()).message.contains("threaded"));
    assert_eq!(
        only(&with(unified("memory cpuset io", false)), &wanted()).message,
        "missing required cgroups: cpu pids"
    );
    let optional = only(&with(unified("cpu memory pids cpuset", false)), &wanted());
    assert_eq!(
        (optional.severity, optional.message.as_str()),
        (Severity::Warning, "missing optional cgroups: io")
    );
    let legacy =
        with(Cgroups::Legacy { controllers: names("cpu memory pids cpuset blkio cpuacct devices freezer") });
    assert_eq!(only(&legacy, &wanted()).severity, Severity::Warning);
    assert_eq!(only(&legacy, &Purpose { fail_cgroup_v1: true, ..wanted() }).severity, Severity::Error);
    // The mounts of a cgroup v1 machine.
    fs::remove_dir_all(tree.0.join("sys/fs/cgroup")).unwrap();
    tree.file(
        "proc/cgroups",
        "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t0\t1\t0\n",
    );
    tree.file(
        "proc/self/mountinfo",
        "1 0 179:2 / / rw - ext4 /dev/mmcblk0p2 rw\n2 1 0:9 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
    );
    assert_eq!(tree.facts().cgroups, Cgroups::Legacy { controllers: names("cpu") });
    tree.file("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids");
    tree.file(
        "proc/self/mountinfo",
        "1 0 179:2 / / rw - ext4 /dev/mmcblk0p2 rw\n2 1 0:9 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
    );
    assert!(only(&tree.facts(), &wanted()).message.contains("read-only"));
}

#[test]
fn another_kubelet_is_an_error_that_names_how_to_get_rid_of_it() {
    let tree = Tree::new("k3s");
    tree.file("etc/systemd/system/k3s.service", "[Service]\n");
    fs::create_dir_all(tree.0.join("etc/systemd/system/multi-user.target.wants")).unwrap();
    let link = tree.0.join("etc/systemd/system/multi-user.target.wants/k3s.service");
    symlink("/etc/systemd/system/k3s.service", link).unwrap();
    let enabled = only(&tree.facts(), &wanted());
    assert_eq!((enabled.name.as_str(), enabled.severity), ("Service-k3s", Severity::Error));
    assert!(enabled.commands.contains(&"k3s-killall.sh".to_owned()), "{enabled:?}");
    tree.file("proc/812/comm", "k3s-server\n");
    assert!(only(&tree.facts(), &wanted()).message.contains("running (process 812)"));
    // Installed but neither running nor enabled is not a conflict.
    let mut facts = tree.facts();
    facts.services.insert("k3s", Service { installed: true, enabled: false, process: None });
    assert_eq!(complaints(&facts, &wanted()), []);
    facts.services.insert("kubelet", Service { installed: true, enabled: true, process: None });
    assert_eq!(only(&facts, &wanted()).commands, ["systemctl disable --now kubelet"]);
    facts.init_system = InitSystem::OpenRc;
    assert_eq!(only(&facts, &wanted()).commands, ["rc-service kubelet stop; rc-update del kubelet default"]);
}

#[test]
fn neighbours_that_cost_memory_or_drop_packets_are_warned_of() {
    let facts = MachineFacts { ipv4_forwarding: Some(true), ..Tree::new("neighbours").facts() };
    let with = |name| {
        let mut facts = facts.clone();
        facts.services.insert(name, Service { installed: true, enabled: true, process: Some(7) });
        facts
    };
    let docker = only(&with("docker"), &wanted());
    assert_eq!((docker.name.as_str(), docker.severity), ("Service-docker", Severity::Warning));
    assert!(docker.message.contains("firewall"));
    assert!(!only(&with("containerd"), &wanted()).message.contains("firewall"));
    assert!(only(&with("firewalld"), &wanted()).commands[0].contains("--add-interface=agent0"));
    let cri = Purpose {
        is_embedded: false,
        endpoint: "unix:///run/containerd/containerd.sock".to_owned(),
        ..wanted()
    };
    let missing = only(&with("containerd"), &cri);
    assert_eq!((missing.name.as_str(), missing.severity), ("CRI", Severity::Error));
    let there =
        MachineFacts { files: vec![PathBuf::from("/run/containerd/containerd.sock")], ..with("containerd") };
    assert_eq!(complaints(&there, &cri), []);
}

#[test]
fn read_only_root_is_an_error_and_in_memory_root_a_warning() {
    let tree = Tree::new("read-only");
    tree.file(
        "proc/self/mountinfo",
        "1 0 179:2 / / ro,noatime - ext4 /dev/mmcblk0p2 ro\n2 1 0:5 / /run rw - tmpfs tmpfs rw\n",
    );
    let found = complaints(&tree.facts(), &wanted());
    let names: Vec<&str> = found.iter().map(|finding| finding.name.as_str()).collect();
    assert_eq!(names, ["Writable--var-lib-kubelet", "Writable--var-log-pods", "Writable--etc-kubernetes"]);
    assert!(found.iter().all(|finding| finding.severity == Severity::Error));
    assert_eq!(found[0].commands, ["mount -o remount,rw /"]);
    tree.file(
        "proc/self/mountinfo",
        "1 0 0:3 / / rw - overlay overlayroot rw,lowerdir=/x,upperdir=/media/root-rw/overlay,workdir=/y\n",
    );
    let found = complaints(&tree.facts(), &wanted());
    let names: Vec<&str> = found.iter().map(|finding| finding.name.as_str()).collect();
    assert_eq!(names, ["OverlayFS", "Writable--var-lib-kubelet"], "{found:#?}");
    assert!(found[1].message.contains("in memory") && found[1].severity == Severity::Warning);
}

#[test]
fn memory_and_cpu_minimums_are_kubeadms_for_a_control_plane() {
    let tree = Tree::new("memory");
    tree.file("proc/meminfo", "MemTotal:          49152 kB\n");
    let facts = tree.facts();
    let finding = only(&facts, &wanted());
    assert_eq!(finding.message, "the system RAM (48 MB) is less than the minimum 64 MB");
    assert_eq!(
        (finding.severity, finding.seen.as_str(), finding.required.as_str()),
        (Severity::Error, "48 MB", "64 MB")
    );
    let with = |megabytes: u64, cpus| MachineFacts { memory: megabytes << 20, cpus, ..facts.clone() };
    assert_eq!(only(&with(128, 1), &wanted()).severity, Severity::Warning);
    assert_eq!(complaints(&with(256, 1), &wanted()), []);
    let control_plane = kubeadm::wanted_by(PreflightTask::Init);
    let facts = kubeadm::ready(with(1024, 1));
    let said: Vec<String> =
        complaints(&facts, &control_plane).into_iter().map(|finding| finding.message).collect();
    assert_eq!(
        said,
        [
            "the number of available CPUs 1 is less than the required 2",
            "the system RAM (1024 MB) is less than the minimum 1700 MB",
        ]
    );
}

#[test]
fn a_clock_of_1970_and_one_without_a_battery_are_warned_of() {
    let tree = Tree::new("clock");
    let facts = MachineFacts { now: Some(Timestamp::from_secs(60)), ..tree.facts() };
    let clock = only(&facts, &wanted());
    assert_eq!((clock.name.as_str(), clock.severity), ("Clock", Severity::Warning));
    assert!(clock.message.contains("1970-01-01"), "{}", clock.message);
    fs::remove_dir_all(tree.0.join("sys/class/rtc")).unwrap();
    for (init_system, service) in [(InitSystem::Systemd, "systemd-timesyncd"), (InitSystem::OpenRc, "chrony")]
    {
        let clock = only(&MachineFacts { init_system, ..tree.facts() }, &wanted());
        assert_eq!(
            (clock.name.as_str(), clock.commands),
            ("RTC", vec![format!("apt-get install {service}")])
        );
    }
    // The kernel truncates a process name to fifteen characters.
    tree.file("proc/300/comm", "systemd-timesyn\n");
    assert_eq!(complaints(&tree.facts(), &wanted()), []);
    let facts = MachineFacts { entropy: Some(60), ..tree.facts() };
    assert_eq!(only(&facts, &wanted()).name, "Entropy");
}

#[test]
fn port_in_use_names_the_process_unless_it_is_the_agent() {
    let tree = Tree::new("ports");
    let line = |address: &str, port: u16, inode: u32| {
        format!("  sl\n   0: {address}:{port:04X} 00000000:0000 0A 0:0 0:0 0 0 0 {inode} 1\n")
    };
    tree.file("proc/net/tcp", &line("00000000", 10250, 4711));
    tree.file("proc/812/comm", "kubelet-like\n");
    fs::create_dir_all(tree.0.join("proc/812/fd")).unwrap();
    symlink("socket:[4711]", tree.0.join("proc/812/fd/5")).unwrap();
    let finding = only(&tree.facts(), &wanted());
    assert_eq!((finding.name.as_str(), finding.severity), ("Port-10250", Severity::Error));
    assert_eq!(finding.message, "Port 10250 is in use by kubelet-like (process 812)");
    assert_eq!(finding.commands, ["systemctl status 812"]);
    tree.file("proc/812/comm", "agent\n");
    assert_eq!(complaints(&tree.facts(), &wanted()), [], "an agent that runs is no obstacle");
    // The same port on another address is not a conflict.
    fs::remove_file(tree.0.join("proc/812/comm")).unwrap();
    let other = u32::from_ne_bytes([192, 168, 1, 2]);
    tree.file("proc/net/tcp", &line(&format!("{other:08X}"), 10250, 4711));
    assert_eq!(complaints(&tree.facts(), &wanted()), []);
    tree.file("proc/net/tcp6", &line("00000000000000000000000000000000", 10248, 5));
    assert_eq!(only(&tree.facts(), &wanted()).message, "Port 10248 is in use");
}

#[test]
fn disk_swap_is_a_warning_and_an_error_with_fail_swap_on() {
    let tree = Tree::new("swap");
    tree.file("proc/swaps", "Filename\tType\n/dev/zram0 partition 102400 0 100\n");
    assert_eq!(complaints(&tree.facts(), &wanted()), []);
    let strict = Purpose { fail_swap_on: true, ..wanted() };
    assert_eq!(only(&tree.facts(), &strict).severity, Severity::Error);
    let swap = Swap { name: "/var/swap".to_owned(), bytes: 100 << 20 };
    let facts = MachineFacts { swaps: vec![swap], ..tree.facts() };
    let finding = only(&facts, &wanted());
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.message.contains("/var/swap (100 MB)"), "{}", finding.message);
}

#[test]
fn kernels_are_judged_by_version_and_options() {
    let facts = MachineFacts { ipv4_forwarding: Some(true), ..Tree::new("kernel").facts() };
    let release = |release: &str| MachineFacts { release: release.to_owned(), ..facts.clone() };
    for (running, severity) in
        [("4.19.0-rpi", Severity::Error), ("5.8.0", Severity::Warning), ("5.9.16-v7l+", Severity::Warning)]
    {
        assert_eq!(only(&release(running), &wanted()).severity, severity, "{running}");
    }
    assert_eq!(complaints(&release("5.10"), &wanted()), []);
    assert_eq!(complaints(&release(""), &wanted()), []);
    let all: String =
        kernel::tests::every_option().iter().map(|name| ["CONFIG_", name, "=y\n"].concat()).collect();
    let config = |text: String| MachineFacts { kernel_config: Some(text), ..facts.clone() };
    assert_eq!(complaints(&config(all.replace("CONFIG_VETH=y", "CONFIG_VETH=m")), &wanted()), []);
    let without =
        |name: &str| config(all.replace(&format!("CONFIG_{name}=y"), &format!("# CONFIG_{name} is not set")));
    assert_eq!(only(&without("PID_NS"), &wanted()).message, "unexpected kernel config: CONFIG_PID_NS");
    assert!(only(&without("CFS_BANDWIDTH"), &wanted()).message.contains("CPU limits"));
    let bridge = only(&without("BRIDGE"), &wanted());
    assert!(bridge.severity == Severity::Warning && bridge.message.contains("hostNetwork"), "{bridge:?}");
    let cri = Purpose { is_embedded: false, endpoint: "/s".to_owned(), ..wanted() };
    let there = MachineFacts { files: vec![PathBuf::from("/s")], ..without("BRIDGE") };
    assert_eq!(complaints(&there, &cri), []);
    let no_overlay = MachineFacts { file_systems: Vec::new(), ..facts.clone() };
    assert_eq!(only(&no_overlay, &wanted()).name, "OverlayFS");
    let module = MachineFacts { modules: vec!["overlay".to_owned()], ..no_overlay };
    assert_eq!(complaints(&module, &wanted()), []);
    assert_eq!(
        only(&MachineFacts { apparmor: true, ..facts.clone() }, &wanted()).name,
        "FileExisting-apparmor_parser"
    );
}

#[test]
fn the_network_is_judged_by_name_route_forwarding_and_proxies() {
    let facts = Tree::new("network").facts();
    for (hostname, ok) in
        [("box-1", true), ("Box_1.example", true), ("-box", false), ("", false), ("localhost", false)]
    {
        let found = complaints(&MachineFacts { hostname: hostname.to_owned(), ..facts.clone() }, &wanted());
        assert_eq!(found.is_empty(), ok, "{hostname}: {found:?}");
    }
    assert_eq!(
        only(&MachineFacts { default_routes: Vec::new(), ..facts.clone() }, &wanted()).name,
        "DefaultRoute"
    );
    let none = MachineFacts { ipv4_forwarding: None, ..facts.clone() };
    assert_eq!(only(&none, &wanted()).name, "FileContent--proc-sys-net-ipv4-ip_forward");
    let cri = Purpose { is_embedded: false, endpoint: "/s".to_owned(), ..wanted() };
    let off = MachineFacts { files: vec![PathBuf::from("/s")], ..facts.clone() };
    assert_eq!(only(&off, &cri).severity, Severity::Error);
    let proxies = vec![("https_proxy".to_owned(), "http://me:secret@proxy:3128".to_owned())];
    let shell = MachineFacts { proxies, ..facts.clone() };
    let finding = only(&shell, &wanted());
    assert!(!format!("{finding:?}").contains("secret"), "{finding:?}");
    assert_eq!(finding.commands, ["echo \"https_proxy=$https_proxy\" >> /etc/default/agent"]);
    let service = MachineFacts { service_environment: "HTTPS_PROXY=http://proxy:3128\n".to_owned(), ..shell };
    assert_eq!(complaints(&service, &wanted()), []);
}

#[test]
fn a_range_of_pods_that_is_in_use_is_warned_of() {
    let tree = Tree::new("podcidr");
    let with = |link: &str, network: [u8; 4], gateway: &str, mask: [u8; 4]| {
        let hex = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let line = format!("{link}\t{}\t{gateway}\t0003\t0\t0\t0\t{}\t0\t0\t0\n", hex(network), hex(mask));
        tree.file(
            "proc/net/route",
            &format!("Iface\neth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n{line}"),
        );
        tree.facts()
    };
    let (here, gateway) = ("00000000", "0101A8C0");
    let clash = only(&with("eth0", [10, 86, 0, 0], here, [255, 255, 0, 0]), &wanted());
    assert_eq!((clash.name.as_str(), clash.severity), ("PodCIDR", Severity::Warning));
    assert!(clash.message.contains("10.86.0.0/24 overlaps with 10.86.0.0/16 on eth0"), "{}", clash.message);
    for (link, network, by, mask) in [
        ("agent0", [10, 86, 0, 0], here, [255, 255, 255, 0]),
        ("eth0", [10, 86, 1, 0], here, [255, 255, 255, 0]),
        ("eth0", [10, 0, 0, 0], gateway, [255, 0, 0, 0]),
    ] {
        assert_eq!(complaints(&with(link, network, by, mask), &wanted()), [], "{link} {network:?}");
    }
}

#[test]
fn disks_are_judged_by_room_and_by_what_wears_flash() {
    let tree = Tree::new("disks");
    let facts = tree.facts();
    let room = |available: u64, inodes_free: u64| {
        let mut facts = facts.clone();
        let room = FileSystemFacts { available, inodes: 1 << 20, inodes_free, ..FileSystemFacts::default() };
        facts.room.insert(wanted().root_dir, room);
        facts
    };
    assert_eq!(only(&room(10 << 20, 1 << 19), &wanted()).severity, Severity::Error);
    assert_eq!(only(&room(100 << 20, 1 << 19), &wanted()).severity, Severity::Warning);
    assert!(only(&room(8 << 30, 100), &wanted()).message.contains("100 inodes"));
    tree.file("proc/self/mountinfo", "1 0 179:2 / / rw,strictatime - ext4 /dev/mmcblk0p2 rw\n");
    assert_eq!(only(&tree.facts(), &wanted()).name, "DiskType");
    tree.file("etc/kubernetes/manifests/web.yaml", "kind: Pod\n");
    tree.file("proc/self/mountinfo", "1 0 179:2 / / rw,noatime - ext4 /dev/mmcblk0p2 rw\n");
    let manifests = only(&tree.facts(), &wanted());
    assert_eq!(
        (manifests.name.as_str(), manifests.severity),
        ("DirAvailable--etc-kubernetes-manifests", Severity::Warning)
    );
    assert!(manifests.message.contains("web.yaml"));
    fs::remove_file(tree.0.join("etc/kubernetes/manifests/web.yaml")).unwrap();
    tree.file("etc/kubernetes/kubelet.conf", "kind: Config\n");
    let joined = only(&tree.facts(), &wanted());
    assert_eq!(
        (joined.name.as_str(), joined.severity),
        ("FileAvailable--etc-kubernetes-kubelet.conf", Severity::Error)
    );
}

#[test]
fn ignored_errors_become_warnings_case_insensitively() {
    let found =
        || vec![PreflightFinding::error("Mem", "", "a"), PreflightFinding::error("Port-10250", "", "b")];
    let applied = |names: &[&str]| {
        let mut ignored = Ignored::default();
        for names in names {
            ignored.add(names).unwrap();
        }
        let mut findings = found();
        ignored.apply(&mut findings);
        findings.iter().map(|finding| finding.severity == Severity::Error).collect::<Vec<_>>()
    };
    assert_eq!(applied(&[]), [true, true]);
    assert_eq!(applied(&["mEM,Nothing"]), [false, true]);
    assert_eq!(applied(&["mem", "port-10250"]), [false, false]);
    assert_eq!(applied(&["all"]), [false, false]);
    assert!(Ignored::default().add("all,Mem").is_err());
}

#[test]
fn what_is_said_is_kubeadms_with_what_helps_below() {
    let finding = PreflightFinding::error("Mem", "48 MB", "too little").fix("buy more").command("free -m");
    let warning = PreflightFinding::warning("Swap", "", "on");
    let said = report(&[finding.clone(), warning, PreflightFinding::ok("NumCPU", "4 CPUs")], false);
    assert_eq!(
        said,
        "\t[WARNING Swap]: on\n[preflight] Some fatal errors occurred:\n\t[ERROR Mem]: too little\n\
         \t    fix: buy more\n\t      # free -m\n\
         [preflight] If you know what you are doing, you can make a check non-fatal with `--ignore-preflight-errors=...`\n"
    );
    assert!(report(&[PreflightFinding::ok("NumCPU", "4 CPUs")], true).contains("[NumCPU]: 4 CPUs"));
    let json = to_json(&[finding]);
    assert_eq!(
        (json["passed"].as_bool(), json["checks"][0]["severity"].as_str()),
        (Some(false), Some("error"))
    );
    let nobody = privileged(1000);
    assert_eq!(
        (nobody.name.as_str(), nobody.message.as_str()),
        ("IsPrivilegedUser", "user is not running as root")
    );
    assert_eq!(path_name("DirAvailable", Path::new("/etc/kubernetes")), "DirAvailable--etc-kubernetes");
}
