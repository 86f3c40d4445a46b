//! From fake trees to the wire format.

use std::fs;

use serde_json::{Value, json};

use super::pages::{MachineNames, cadvisor, resource};
use super::*;
use crate::model::observed::ContainerStateKind;
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{PodRef, PodUid, Timestamp};
use crate::node::usage::{ContainerUse, Disk, FileSystem, NodeUse, SystemUse};
use crate::platform::cgroup::usage::{ContainerStats, Detail, Io, Processes};
use crate::platform::sys::node::FileSystemFacts;
use crate::runtime::{ContainerFigures, DiskFigures};

struct NoObjects;

impl ObjectLookup for NoObjects {
    fn config_map(&self, _: &str, _: &str) -> Option<crate::model::objects::ConfigMapData> {
        None
    }

    fn secret(&self, _: &str, _: &str) -> Option<crate::model::objects::ObjectData> {
        None
    }

    fn persistent_volume_claim(&self, _: &str, name: &str) -> Option<crate::model::objects::ClaimedVolume> {
        let path =
            std::env::temp_dir().join(format!("edge-agent-stats-{}/claims/{name}", std::process::id()));
        Some(crate::model::objects::ClaimedVolume {
            name: format!("pv-{name}"),
            source: crate::model::objects::ClaimedSource::Directory {
                path: path.display().to_string(),
                bytes: 0,
                uid: String::new(),
            },
            mount_options: Vec::new(),
            supplemental_group: None,
            read_only: false,
            single_pod: false,
            owner: String::new(),
        })
    }

    crate::model::objects::plain_lookup!();
}

/// A machine in a directory: cgroups of version 2, procfs, a kubelet's directories.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let root = std::env::temp_dir().join(format!("edge-agent-stats-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let it = Self { root };
        it.put("cgroup/cgroup.controllers", "cpu memory pids io\n");
        it.put("proc/stat", "cpu  100 0 0 0 0 0 0 0 0 0\nbtime 1700000000\n");
        it.put("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\n");
        it.put("proc/self/net/dev", "h\nh\n  eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n");
        it
    }

    fn put(&self, file: &str, content: &str) {
        let path = self.root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn cgroup(&self, path: &str, cpu_micros: u64, memory: u64) {
        let put = |file: &str, content: String| self.put(&format!("cgroup/{path}/{file}"), &content);
        put("cpu.stat", format!("usage_usec {cpu_micros}\n"));
        put("memory.current", format!("{memory}\n"));
        put("memory.stat", "anon 1\ninactive_file 0\npgfault 2\npgmajfault 3\n".to_owned());
        put("pids.current", "4\n".to_owned());
    }

    fn stats(&self) -> Rc<Stats> {
        let config = StatsConfig {
            node_name: "box".to_owned(),
            cgroup: CgroupConfig {
                mount: self.root.join("cgroup"),
                v2: true,
                driver: CgroupDriver::Cgroupfs,
            },
            layout: CgroupLayout { driver: CgroupDriver::Systemd, root: "/".to_owned(), per_qos: true },
            proc: self.root.join("proc"),
            runtime_cgroup: String::new(),
            root_dir: self.root.join("kubelet"),
            pod_logs_dir: self.root.join("logs"),
            walk_period: Some(Duration::from_secs(60)),
        };
        fs::create_dir_all(&config.root_dir).unwrap();
        Stats::new(config, Rc::new(NoObjects), Clock::manual(Timestamp::from_secs(1_700_000_100)))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web\"\n", "namespace": "default", "uid": "u1"},
        "spec": {
            "containers": [{"name": "app", "image": "i"}, {"name": "side", "image": "i"}],
            "volumes": [
                {"name": "cache", "emptyDir": {}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "c1"}},
                {"name": "host", "hostPath": {"path": "/"}},
            ],
        },
        "status": {"startTime": "2023-11-14T22:14:00Z"},
    }))
    .unwrap()
}

fn container(name: &str, state: ContainerStateKind) -> ObservedContainer {
    let pod = PodRef { namespace: "default".into(), name: "web\"\n".into(), uid: PodUid::from("u1") };
    ObservedContainer {
        id: format!("id-{name}").as_str().into(),
        pod,
        name: name.into(),
        state,
        image: "i".into(),
        created_at: Timestamp::from_secs(1_700_000_050),
        ..ObservedContainer::default()
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    rt::run_jobs_inline();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

fn nobody() -> AskRuntime {
    Rc::new(|_, _| Box::pin(async { Err("nobody answers".to_owned()) }))
}

#[test]
fn a_pod_is_measured_from_its_cgroups_and_rates_from_two_reads() {
    let it = Machine::new();
    let pod_path = "kubepods/besteffort/podu1";
    it.cgroup(pod_path, 3_000_000, 5000);
    it.cgroup(&format!("{pod_path}/id-app"), 1_000_000, 3000);
    it.cgroup(&format!("{pod_path}/id-side"), 2_000_000, 1000);
    run(async {
        let stats = it.stats();
        let containers = ["app", "side", "gone"].map(|name| match name {
            "gone" => container(name, ContainerStateKind::Exited),
            _ => container(name, ContainerStateKind::Running),
        });
        let measuring =
            Rc::clone(&stats).measure(Ask::CPU_AND_MEMORY, vec![pod()], containers.to_vec(), nobody());
        let burn = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            it.cgroup(&format!("{pod_path}/id-app"), 1_250_000, 3000);
        };
        let (summary, ()) = tokio::join!(measuring, burn);
        let [found] = &summary.pods[..] else { panic!("{summary:?}") };
        assert_eq!(
            found.cgroup,
            format!("/{pod_path}"),
            "of the driver that the runtime has, whatever was configured"
        );
        assert_eq!(found.started_at.to_rfc3339(), "2023-11-14T22:14:00Z");
        assert_eq!(
            (found.usage.counted.cpu_ns, found.usage.counted.memory_usage),
            (Some(3_000_000_000), Some(5000))
        );
        let [app, side] = &found.containers[..] else { panic!("{found:?}") };
        assert_eq!(
            (app.usage.counted.cpu_ns, side.usage.counted.memory_usage),
            (Some(1_000_000_000), Some(1000))
        );
        let rate = app.usage.nano_cores.unwrap();
        assert!((240_000_000..=250_000_000).contains(&rate), "a quarter of a core over a second: {rate}");
        assert_eq!(side.usage.nano_cores, Some(0));
        assert_eq!(summary.node.usage.counted.memory_usage, Some(600 << 10));

        // The kept state is dropped when requests stop.
        assert!(stats.forgetting.get());
        tokio::time::sleep(rates::LONGEST * 3).await;
        assert!(!stats.forgetting.get());
        assert!(stats.rates.borrow_mut().forget(stats.origin.elapsed()));
        assert_eq!(Rc::strong_count(&stats), 1, "no task is left");
    });
}

#[test]
fn summary_combines_disk_walks_with_runtime_stats() {
    let it = Machine::new();
    it.put("layers/id-app/upper/file", &"x".repeat(10_000));
    it.put("kubelet/pods/u1/volumes/kubernetes.io~empty-dir/cache/file", &"x".repeat(20_000));
    it.put("claims/c1/file", &"x".repeat(40_000));
    it.put("logs/default_web\"\n_u1/app/0.log", &"x".repeat(5_000));
    run(async {
        let layers = it.root.join("layers");
        let asked: AskRuntime = Rc::new(move |disks, of| {
            assert!(disks && of == [ContainerId::from("id-app")], "{of:?}");
            let counted = ContainerStats {
                cpu_ns: Some(7),
                memory_usage: Some(100),
                working_set: Some(60),
                memory_limit: Some(100),
                ..ContainerStats::default()
            };
            let figures = ContainerFigures { counted, ..ContainerFigures::default() };
            let images = DiskFigures { place: "/".into(), bytes: Some(11), inodes: Some(12) };
            let known = RuntimeUse {
                containers: vec![("id-app".into(), figures)],
                layers: Some(layers.clone()),
                images: Some(images),
                all_layers: None,
            };
            Box::pin(async { Ok(known) })
        });
        let ask = Ask { disks: Measured::Everything, network: true, ..Ask::default() };
        let containers = vec![container("app", ContainerStateKind::Running)];
        let summary = it.stats().measure(ask, vec![pod()], containers, asked).await;
        let shown = wire::summary(&summary, true);
        let (node, pod) = (&shown["node"], &shown["pods"][0]);
        assert_eq!(node["network"]["interfaces"][0]["txBytes"], 5, "{node}");
        assert_eq!(node["runtime"]["imageFs"]["usedBytes"], 11);
        assert!(node["fs"]["capacityBytes"].as_u64().unwrap() > 0);
        let app = &pod["containers"][0];
        assert_eq!(
            (app["cpu"]["usageCoreNanoSeconds"].clone(), app["memory"]["availableBytes"].clone()),
            (json!(7), json!(40))
        );
        assert_eq!(app["cpu"].get("usageNanoCores"), None, "nobody asked for rates");
        assert_eq!(pod["memory"]["workingSetBytes"], 60, "a pod without a cgroup is what its containers are");
        let used = |value: &Value| value["usedBytes"].as_u64().unwrap_or_else(|| panic!("{value}"));
        assert!((10_000..30_000).contains(&used(&app["rootfs"])), "{app}");
        assert!((5_000..9_000).contains(&used(&app["logs"])), "{app}");
        let volumes = pod["volume"].as_array().unwrap();
        let names: Vec<&str> = volumes.iter().map(|volume| volume["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["cache", "data"], "nobody measures the host's directories");
        assert!((20_000..30_000).contains(&used(&volumes[0])), "{volumes:?}");
        assert!((40_000..50_000).contains(&used(&volumes[1])), "{volumes:?}");
        assert_eq!(volumes[1]["pvcRef"], json!({"name": "c1", "namespace": "default"}));
        let sum = used(&app["rootfs"]) + used(&app["logs"]) + used(&volumes[0]);
        assert_eq!(used(&pod["ephemeral-storage"]), sum, "a claim is not ephemeral");
        let bare = wire::summary(&summary, false);
        assert!(bare["pods"][0].get("volume").is_none() && bare["node"].get("fs").is_none());
    });
}

#[test]
fn recent_disk_walk_is_reused_and_unused_ones_are_dropped() {
    let it = Machine::new();
    it.put("claims/c1/file", "x");
    run(async {
        let stats = it.stats();
        let ask = Ask { disks: Measured::Claims, ..Ask::default() };
        let used = async || {
            let containers = vec![container("app", ContainerStateKind::Running)];
            let summary = Rc::clone(&stats).measure(ask, vec![pod()], containers, nobody()).await;
            let [volume] = &summary.pods[0].volumes[..] else { panic!("only the claim: {summary:?}") };
            volume.fs.inodes_used
        };
        assert_eq!(used().await, Some(2));
        it.put("claims/c1/another", "x");
        assert_eq!(used().await, Some(2), "not a minute has passed");
        tokio::time::sleep(Duration::from_secs(61)).await;
        // The older result is used while the new walk runs.
        used().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(used().await, Some(3));
        tokio::time::sleep(Duration::from_secs(1200)).await;
        assert!(stats.disks.forget() && Rc::strong_count(&stats) == 1);
    });
}

#[test]
fn psi_is_in_the_summary_for_controllers_the_kernel_reports() {
    let psi = |total: u64| {
        format!(
            "some avg10=1.50 avg60=0.25 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.05 total=2\n"
        )
    };
    let machine = Machine::new();
    for (place, total) in [("cgroup/pod", 7), ("proc/pressure", 9)] {
        let of =
            |file: &str| if place == "proc/pressure" { file.to_owned() } else { format!("{file}.pressure") };
        machine.put(&format!("{place}/{}", of("cpu")), &psi(total));
        machine
            .put(&format!("{place}/{}", of("memory")), "some avg10=0.00 avg60=0.00 avg300=100.00 total=1\n");
    }
    let read = |place: &str, files| crate::platform::cgroup::usage::psi(&[machine.root.join(place)], files);
    let of_pod = read("cgroup/pod", crate::platform::cgroup::usage::PRESSURE_FILES);
    assert_eq!(
        of_pod[0].map(|psi| (psi.some.average, psi.some.total, psi.full.total)),
        Some(([150, 25, 0], 7, 2))
    );
    assert_eq!(of_pod[1].map(|psi| psi.some.average), Some([0, 0, 10_000]));
    assert_eq!(of_pod[2], None);
    machine.put("cgroup/pod/io.pressure", &psi(3));
    let usage = |ask: Ask| {
        let node = pods::node(&machine.stats().config, ask, Timestamp::from_secs(10));
        let counted = ContainerStats { cpu_ns: Some(1), memory_usage: Some(1), ..ContainerStats::default() };
        let psi = if ask.pressure {
            read("cgroup/pod", crate::platform::cgroup::usage::PRESSURE_FILES)
        } else {
            [None; 3]
        };
        let container =
            ContainerUse { usage: Usage { counted, psi, ..Usage::default() }, ..ContainerUse::default() };
        let pod = PodUse { usage: container.usage, containers: vec![container], ..PodUse::default() };
        Summary { node, pods: vec![pod] }
    };
    let shown = wire::summary(&usage(Ask::SUMMARY), true);
    let line = |total: u64| {
        json!({"some": {"avg10": 1.5, "avg60": 0.25, "avg300": 0.0, "total": total},
        "full": {"avg10": 0.0, "avg60": 0.0, "avg300": 0.05, "total": 2}})
    };
    assert_eq!(shown["node"]["cpu"]["psi"], line(9));
    assert_eq!(shown["node"]["memory"]["psi"]["some"]["avg300"], 100.0);
    assert_eq!(shown["node"].get("io"), None);
    for at in ["/pods/0", "/pods/0/containers/0"] {
        let at = shown.pointer(at).unwrap();
        assert_eq!((&at["cpu"]["psi"], &at["io"]["psi"]), (&line(7), &line(3)));
        assert_eq!(at["memory"]["psi"]["full"]["total"], 0);
        assert!(at["io"]["time"].is_string());
    }
    let plain = wire::summary(&usage(Ask::CPU_AND_MEMORY), false);
    assert_eq!((plain["node"]["cpu"].get("psi"), plain["pods"][0].get("io")), (None, None));
}

#[test]
fn metrics_escape_label_values_and_report_scrape_errors() {
    let pod = PodUse {
        pod: PodRef { namespace: "default".into(), name: "a\"b\\c\nd".into(), uid: "u".into() },
        cgroup: "/kubepods/podu".into(),
        usage: Usage {
            at: Timestamp::from_secs(10),
            counted: ContainerStats { cpu_ns: Some(1_500_000_000), ..ContainerStats::default() },
            ..Usage::default()
        },
        ..PodUse::default()
    };
    let summary = Summary { pods: vec![pod], ..Summary::default() };
    let page = resource(Some(&summary));
    let line = "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"a\\\"b\\\\c\\nd\"} 1.5 10000\n";
    assert!(page.contains(line), "{page}");
    assert!(!page.contains("pod_memory"), "what nobody counts is not shown: {page}");
    assert!(page.ends_with("resource_scrape_error 0\n"));
    assert!(resource(None).ends_with("resource_scrape_error 1\n"));
    let page = cadvisor(Some(&summary), &MachineNames::default());
    let line = "container_cpu_usage_seconds_total{container=\"\",id=\"/kubepods/podu\",image=\"\",name=\"\",namespace=\"default\",pod=\"a\\\"b\\\\c\\nd\",cpu=\"total\"} 1.5 10000\n";
    assert!(page.contains(line), "{page}");
    assert!(cadvisor(None, &MachineNames::default()).ends_with("container_scrape_error 1\n"));
}

#[test]
fn a_container_is_shown_with_its_disk_and_limits() {
    let at = Timestamp::from_secs(10);
    let io = Io { device: (8, 1), read_bytes: 4096, written_bytes: 8192, ..Io::default() };
    let processes = Processes { count: 1, max_files: Some(1024), ..Processes::default() };
    let detail = Detail {
        memory_failures: Some(5),
        memory_reservation: Some(32),
        io: BTreeMap::from([("/dev/sda1".to_owned(), io)]),
        processes: Some(processes),
        ..Detail::default()
    };
    let facts = FileSystemFacts { capacity: 100, inodes: 50, inodes_free: 40, ..FileSystemFacts::default() };
    let container = ContainerUse {
        name: "app".into(),
        usage: Usage { at, ..Usage::default() },
        detail: Some(detail),
        rootfs: Some(FileSystem { at, facts, used: Some(7), inodes_used: Some(3) }),
        ..ContainerUse::default()
    };
    let pod = PodUse { containers: vec![container], ..PodUse::default() };
    let disk = Disk { device: "/dev/sda1".to_owned(), counts: [1, 2, 3, 4500, 5, 6, 7, 8, 9, 10_250, 11] };
    let node = NodeUse { disks: vec![disk], ..NodeUse::default() };
    let page = cadvisor(Some(&Summary { node, pods: vec![pod] }), &MachineNames::default());
    for (name, expected) in [
        ("container_fs_reads_merged_total", "2"),
        ("container_fs_sector_reads_total", "3"),
        ("container_fs_read_seconds_total", "4.5"),
        ("container_fs_writes_merged_total", "6"),
        ("container_fs_sector_writes_total", "7"),
        ("container_fs_write_seconds_total", "0.008"),
        ("container_fs_io_current", "9"),
        ("container_fs_io_time_seconds_total", "10.25"),
        ("container_fs_io_time_weighted_seconds_total", "0.011"),
    ] {
        let samples: Vec<&str> = page.lines().filter(|line| line.starts_with(&format!("{name}{{"))).collect();
        let [only] = samples.as_slice() else { panic!("{name}: {samples:?}") };
        assert!(only.contains("id=\"/\"") && only.contains("device=\"/dev/sda1\""), "{only}");
        assert_eq!(only.split(' ').nth(1), Some(expected), "{only}");
    }
    let value = |name: &str, more: &str| {
        let of_app =
            |line: &&str| line.starts_with(&format!("{name}{{container=\"app\"")) && line.contains(more);
        page.lines().find(of_app).and_then(|line| line.split(' ').nth(1)).map(str::to_owned)
    };
    for (name, more, expected) in [
        ("container_memory_failcnt", "", "5"),
        ("container_spec_memory_reservation_limit_bytes", "", "32"),
        ("container_ulimits_soft", "ulimit=\"max_open_files\"", "1024"),
        (
            "container_blkio_device_usage_total",
            "device=\"/dev/sda1\",major=\"8\",minor=\"1\",operation=\"Write\"",
            "8192",
        ),
        ("container_fs_writes_bytes_total", "device=\"/dev/sda1\"", "8192"),
        ("container_fs_usage_bytes", "device=\"\"", "7"),
        ("container_fs_limit_bytes", "", "100"),
        ("container_fs_inodes_total", "", "50"),
        ("container_fs_inodes_free", "", "40"),
    ] {
        assert_eq!(value(name, more).as_deref(), Some(expected), "{name}: {page}");
    }
}

#[test]
fn kubelet_and_runtime_are_shown_by_their_cgroups() {
    let machine = Machine::new();
    machine.put("proc/self/cgroup", "0::/agent\n");
    machine.cgroup("agent", 5, 100);
    machine.cgroup("runtime", 7, 200);
    let shown = |runtime_cgroup: &str| {
        let config = (*machine.stats().config).clone();
        let config = StatsConfig { runtime_cgroup: runtime_cgroup.to_owned(), ..config };
        let node = pods::node(&config, Ask::default(), Timestamp::from_secs(10));
        let page =
            cadvisor(Some(&Summary { node: node.clone(), pods: Vec::new() }), &MachineNames::default());
        let lines = page.lines().filter(|line| line.starts_with("container_memory_usage_bytes{")).count();
        let of = |system: &SystemUse| (system.name, system.usage.counted.memory_usage);
        (node.system.iter().map(of).collect::<Vec<_>>(), lines)
    };
    let kubelet = ("kubelet", Some(100));
    // The node has a line of its own.
    let node = usize::from(
        pods::node(&machine.stats().config, Ask::default(), Timestamp::default())
            .usage
            .counted
            .memory_usage
            .is_some(),
    );
    assert_eq!(shown(""), (vec![kubelet], node + 1));
    assert_eq!(shown("/runtime"), (vec![kubelet, ("runtime", Some(200))], node + 2));
    assert_eq!(shown("/agent"), (vec![kubelet, ("runtime", Some(100))], node + 1));
    assert_eq!(shown("/none"), (vec![kubelet], node + 1));
}
