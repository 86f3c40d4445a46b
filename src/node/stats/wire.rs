//! `/stats/summary` on the wire: `stats/v1alpha1` of Kubernetes.
//!
//! Owns the names of fields. Pure. Figures that are not available are left out.

use serde_json::{Map, Value, json};

use crate::model::types::Timestamp;
use crate::node::usage::{ContainerUse, FileSystem, Interface, PodUse, Summary, Usage, VolumeUse};
use crate::platform::cgroup::usage::{Lost, Psi};

fn object<const N: usize>(at: Option<Timestamp>, fields: [(&str, Option<u64>); N]) -> Map<String, Value> {
    let time = at.map(|at| ("time".to_owned(), json!(at)));
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    time.into_iter().chain(fields).collect()
}

/// The answer. `whole`: more than CPU and memory was requested.
#[must_use]
pub(crate) fn summary(summary: &Summary, whole: bool) -> Value {
    let node = &summary.node;
    let system: Vec<Value> = node
        .system
        .iter()
        .map(|system| {
            let mut object = Map::new();
            object.insert("name".to_owned(), system.name.into());
            object.insert("startTime".to_owned(), json!(node.started_at));
            usage(&mut object, &system.usage);
            object.into()
        })
        .collect();
    let mut shown = Map::new();
    shown.insert("nodeName".to_owned(), node.name.as_str().into());
    if !system.is_empty() {
        shown.insert("systemContainers".to_owned(), system.into());
    }
    shown.insert("startTime".to_owned(), json!(node.started_at));
    usage(&mut shown, &node.usage);
    swap(&mut shown, &node.usage);
    if whole {
        io(&mut shown, &node.usage);
        network(&mut shown, node.usage.at, &node.interfaces, node.default_interface.as_deref());
        file_system(&mut shown, "fs", node.fs);
        let mut runtime = Map::new();
        file_system(&mut runtime, "imageFs", node.image_fs);
        file_system(&mut runtime, "containerFs", node.container_fs);
        if !runtime.is_empty() {
            shown.insert("runtime".to_owned(), runtime.into());
        }
        let limits = [("maxpid", node.max_pids), ("curproc", node.pids)];
        shown.insert("rlimit".to_owned(), object(Some(node.usage.at), limits).into());
    }
    let pods: Vec<Value> = summary.pods.iter().map(|each| pod(each, whole)).collect();
    json!({ "node": shown, "pods": pods })
}

fn pod(pod: &PodUse, whole: bool) -> Value {
    let mut shown = Map::new();
    shown.insert("podRef".to_owned(), json!(pod.pod));
    shown.insert("startTime".to_owned(), json!(pod.started_at));
    let containers: Vec<Value> = pod.containers.iter().map(|each| container(each, whole)).collect();
    shown.insert("containers".to_owned(), containers.into());
    usage(&mut shown, &pod.usage);
    swap(&mut shown, &pod.usage);
    if whole {
        io(&mut shown, &pod.usage);
        network(&mut shown, pod.usage.at, &pod.interfaces, Some("eth0"));
        let volumes: Vec<Value> = pod.volumes.iter().map(|each| volume(&pod.pod.namespace, each)).collect();
        if !volumes.is_empty() {
            shown.insert("volume".to_owned(), volumes.into());
        }
        file_system(&mut shown, "ephemeral-storage", pod.ephemeral);
    }
    if let Some(pids) = pod.usage.counted.pids {
        shown.insert("process_stats".to_owned(), json!({ "process_count": pids }));
    }
    shown.into()
}

fn container(container: &ContainerUse, whole: bool) -> Value {
    let mut shown = Map::new();
    shown.insert("name".to_owned(), container.name.as_str().into());
    shown.insert("startTime".to_owned(), json!(container.started_at));
    usage(&mut shown, &container.usage);
    swap(&mut shown, &container.usage);
    if whole {
        io(&mut shown, &container.usage);
        file_system(&mut shown, "rootfs", container.rootfs);
        file_system(&mut shown, "logs", container.logs);
    }
    shown.into()
}

fn usage(shown: &mut Map<String, Value>, usage: &Usage) {
    let counted = &usage.counted;
    let cpu = [("usageNanoCores", usage.nano_cores), ("usageCoreNanoSeconds", counted.cpu_ns)];
    let memory = [
        ("availableBytes", usage.counted.memory_available()),
        ("usageBytes", counted.memory_usage),
        ("workingSetBytes", counted.working_set),
        ("rssBytes", counted.rss),
        ("pageFaults", counted.page_faults),
        ("majorPageFaults", counted.major_page_faults),
    ];
    let [of_cpu, of_memory, _] = usage.psi;
    if counted.cpu_ns.is_some() {
        shown.insert("cpu".to_owned(), with_psi(object(Some(usage.at), cpu), of_cpu));
    }
    if counted.memory_usage.is_some() {
        shown.insert("memory".to_owned(), with_psi(object(Some(usage.at), memory), of_memory));
    }
}

fn with_psi(mut shown: Map<String, Value>, psi: Option<Psi>) -> Value {
    let line = |lost: Lost| {
        let [ten, sixty, more] = lost.average.map(|hundredths| f64::from(hundredths) / 100.0);
        json!({"total": lost.total, "avg10": ten, "avg60": sixty, "avg300": more})
    };
    if let Some(psi) = psi {
        shown.insert("psi".to_owned(), json!({"full": line(psi.full), "some": line(psi.some)}));
    }
    shown.into()
}

/// No other figures of disks are available.
fn io(shown: &mut Map<String, Value>, usage: &Usage) {
    if let psi @ Some(_) = usage.psi[2] {
        shown.insert("io".to_owned(), with_psi(object(Some(usage.at), []), psi));
    }
}

fn swap(shown: &mut Map<String, Value>, usage: &Usage) {
    if let Some(swap) = usage.counted.swap_usage {
        let available = usage.counted.swap_limit.map(|limit| limit.saturating_sub(swap));
        let fields = [("swapAvailableBytes", available), ("swapUsageBytes", Some(swap))];
        shown.insert("swap".to_owned(), object(Some(usage.at), fields).into());
    }
}

fn network(shown: &mut Map<String, Value>, at: Timestamp, all: &[Interface], default: Option<&str>) {
    if all.is_empty() {
        return;
    }
    let one = |interface: &Interface, at: Option<Timestamp>| {
        let fields = [
            ("rxBytes", Some(interface.rx_bytes)),
            ("rxErrors", Some(interface.rx_errors)),
            ("txBytes", Some(interface.tx_bytes)),
            ("txErrors", Some(interface.tx_errors)),
        ];
        let mut shown = object(at, fields);
        shown.insert("name".to_owned(), interface.name.as_str().into());
        shown
    };
    let found = all.iter().find(|interface| Some(interface.name.as_str()) == default);
    // Upstream writes the field even without a name.
    let none = || [("time".to_owned(), json!(at)), ("name".to_owned(), "".into())].into_iter().collect();
    let mut network = found.map_or_else(none, |interface| one(interface, Some(at)));
    let all: Vec<Value> = all.iter().map(|interface| one(interface, None).into()).collect();
    network.insert("interfaces".to_owned(), all.into());
    shown.insert("network".to_owned(), network.into());
}

fn fields(fs: &FileSystem) -> Map<String, Value> {
    let facts = &fs.facts;
    // File systems such as btrfs have no limit on inodes and report 0.
    let inodes = |number: u64| Some(number).filter(|_| facts.inodes > 0);
    object(
        Some(fs.at),
        [
            ("availableBytes", Some(facts.available)),
            ("capacityBytes", Some(facts.capacity)),
            ("usedBytes", fs.used),
            ("inodesFree", inodes(facts.inodes_free)),
            ("inodes", inodes(facts.inodes)),
            ("inodesUsed", fs.inodes_used),
        ],
    )
}

fn file_system(shown: &mut Map<String, Value>, name: &str, fs: Option<FileSystem>) {
    if let Some(fs) = fs {
        shown.insert(name.to_owned(), fields(&fs).into());
    }
}

fn volume(namespace: &str, volume: &VolumeUse) -> Value {
    let mut shown = fields(&volume.fs);
    shown.insert("name".to_owned(), volume.name.as_str().into());
    if let Some(claim) = &volume.claim {
        shown.insert("pvcRef".to_owned(), json!({ "name": claim, "namespace": namespace }));
    }
    shown.into()
}
