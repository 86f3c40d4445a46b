//! The node, pods and their containers, read from cgroups and procfs.
//!
//! Owns their locations. Everything that reads blocks: for the pool of `rt::blocking`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::machine::{default_interface, disks, interfaces, machine};
use super::{Ask, Measured, StatsConfig, disks};
use crate::model::api::pod::Pod;
use crate::model::observed::{ContainerStateKind, ObservedContainer};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::runtime_config::CgroupDriver;
use crate::model::types::{PodRef, Timestamp};
use crate::node::usage::{ContainerUse, Interface, NodeUse, PodUse, Summary, SystemUse, Usage};
use crate::platform::cgroup::usage::{self, ContainerStats, Detail, PRESSURE_FILES};
use crate::platform::cgroup::{self, CgroupConfig};
use crate::platform::sys::node;
use crate::pod::resources::{CgroupLayout, QosClass, class_cgroup_path, pod_cgroup_path, qos_class};
use crate::runtime::RuntimeUse;

#[derive(Debug, Default)]
pub(super) struct MeasuredPod {
    pub(super) pod: PodRef,
    pub(super) started_at: Timestamp,
    /// Candidates for its cgroup, the likeliest first.
    places: Vec<String>,
    sandbox: String,
    containers: Vec<ContainerUse>,
}

/// Those of the pods that have a running container, by namespace and name. A pod that is no longer desired
/// stays included as long as it runs.
pub(super) fn subjects(
    layout: &CgroupLayout,
    pods: Vec<Pod>,
    containers: Vec<ObservedContainer>,
) -> Vec<MeasuredPod> {
    let wanted: BTreeMap<_, Pod> = pods.into_iter().map(|pod| (pod.metadata.uid.clone(), pod)).into_map();
    let mut found: BTreeMap<PodRef, MeasuredPod> = BTreeMap::new();
    for container in containers.into_iter().filter(|found| found.state == ContainerStateKind::Running) {
        let pod = wanted.get(&container.pod.uid);
        let subject = found.entry(container.pod.clone()).or_insert_with(|| subject(layout, &container, pod));
        subject.sandbox = container.sandbox.to_string();
        subject.containers.push(ContainerUse {
            started_at: started_at(&container, pod),
            name: container.name.to_string(),
            id: container.id.to_string(),
            image: container.image,
            ..ContainerUse::default()
        });
    }
    let mut subjects: Vec<MeasuredPod> = found.into_values().collect();
    for subject in &mut subjects {
        subject.containers.order_by(|a, b| a.name.cmp(&b.name));
        if subject.started_at.is_zero() {
            let times = subject.containers.iter().map(|container| container.started_at);
            subject.started_at = times.min().unwrap_or_default();
        }
    }
    subjects
}

fn subject(layout: &CgroupLayout, container: &ObservedContainer, pod: Option<&Pod>) -> MeasuredPod {
    let other = match layout.driver {
        CgroupDriver::Systemd => CgroupDriver::Cgroupfs,
        CgroupDriver::Cgroupfs => CgroupDriver::Systemd,
    };
    let classes = match pod {
        Some(pod) => vec![qos_class(pod)],
        None => vec![QosClass::Burstable, QosClass::BestEffort, QosClass::Guaranteed],
    };
    let mut places = Vec::new();
    for driver in [layout.driver, other] {
        let layout = CgroupLayout { driver, ..layout.clone() };
        places.extend(classes.iter().map(|class| pod_cgroup_path(&container.pod.uid, *class, &layout)));
    }
    MeasuredPod {
        pod: container.pod.clone(),
        started_at: pod.and_then(|pod| pod.status.start_time).unwrap_or_default(),
        places,
        ..MeasuredPod::default()
    }
}

/// From the pod's status, for a list of containers does not include it.
fn started_at(container: &ObservedContainer, pod: Option<&Pod>) -> Timestamp {
    let status = pod.map(|pod| &pod.status);
    let all = status
        .into_iter()
        .flat_map(|status| status.container_statuses.iter().chain(&status.init_container_statuses));
    let mut of_it = all.filter(|status| status.container_id.ends_with(container.id.as_str()));
    let told = of_it.find_map(|status| status.state.running.as_ref()?.started_at);
    told.unwrap_or(if container.started_at.is_zero() { container.created_at } else { container.started_at })
}

/// The machine and the processes outside pods.
pub(super) fn node(config: &StatsConfig, ask: Ask, at: Timestamp) -> NodeUse {
    let machine = machine(&config.proc);
    let of = |counted| Usage { at, counted, ..Usage::default() };
    let psi =
        |dirs: &[PathBuf], files| if ask.pressure { usage::psi(dirs, files) } else { Default::default() };
    let text = |file: &str| fs::read_to_string(config.proc.join(file)).unwrap_or_default();
    let mut node = NodeUse {
        name: config.node_name.clone(),
        started_at: machine.booted_at.map(Timestamp::from_secs).unwrap_or_default(),
        usage: Usage {
            psi: psi(&[config.proc.join("pressure")], ["cpu", "memory", "io"]),
            ..of(machine.counted)
        },
        memory_total: machine.memory_total,
        swap_total: machine.swap_total,
        cpus: u64::try_from(node::cpu_count()).unwrap_or(1),
        max_pids: node::max_pids().and_then(|pids| u64::try_from(pids).ok()),
        pids: machine.threads,
        ..NodeUse::default()
    };
    if ask.network {
        node.interfaces = interfaces(&text("self/net/dev"));
        node.default_interface = default_interface(&text("self/net/route"));
    }
    if ask.details {
        node.disks = disks(&text("diskstats"), &text("self/mountinfo"));
    }
    let pods = [CgroupDriver::Cgroupfs, CgroupDriver::Systemd].map(|driver| {
        class_cgroup_path(QosClass::Guaranteed, &CgroupLayout { driver, ..config.layout.clone() })
    });
    let own = own_cgroup(&text("self/cgroup"));
    let runtime = Some(config.runtime_cgroup.clone()).filter(|place| !place.is_empty());
    let places = [
        ("pods", pods.to_vec()),
        ("kubelet", own.into_iter().collect()),
        ("runtime", runtime.into_iter().collect()),
    ];
    for (name, places) in places {
        if let Some((place, dirs)) = first_there(&config.cgroup, &places) {
            let usage = Usage { psi: psi(&dirs, PRESSURE_FILES), ..of(usage::stats(&dirs)) };
            node.system.push(SystemUse { name, cgroup: place.to_owned(), usage });
        }
    }
    node
}

/// The path of the memory controller's line, else of version 2's `0::/system.slice/agent.service`. `None` for
/// the root.
fn own_cgroup(text: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let counts = |controllers: &str| controllers.split(',').any(|name| name == "memory");
    let own = lines.clone().find(|(controllers, _)| counts(controllers));
    let own = own.or_else(|| lines.find(|(controllers, _)| controllers.is_empty()));
    own.map(|(_, path)| path.to_owned()).filter(|path| path != "/")
}

/// The first of these cgroups that exists.
fn first_there<'a>(config: &CgroupConfig, places: &'a [String]) -> Option<(&'a str, Vec<PathBuf>)> {
    let with_dirs = places.iter().map(|place| (place.as_str(), cgroup::counting_dirs(config, place)));
    with_dirs.into_iter().find(|(_, dirs)| !dirs.is_empty())
}

pub(super) fn pod(config: &StatsConfig, ask: Ask, at: Timestamp, subject: &MeasuredPod) -> PodUse {
    let of = |counted| Usage { at, counted, ..Usage::default() };
    let psi =
        |dirs: &[PathBuf], files| if ask.pressure { usage::psi(dirs, files) } else { Default::default() };
    let (place, dirs) = first_there(&config.cgroup, &subject.places).unwrap_or_default();
    let ids: Vec<&str> = subject.containers.iter().map(|container| container.id.as_str()).collect();
    let found = cgroup::find_by_ids(&dirs, &ids);
    let PodRef { namespace, name, uid } = &subject.pod;
    let measures_logs = ask.disks != Measured::Nothing;
    let logs = config.pod_logs_dir.join(format!("{namespace}_{name}_{uid}"));
    let containers = subject.containers.iter().zip(found).map(|(container, own)| ContainerUse {
        cgroup: below(place, &dirs, &own),
        usage: Usage { psi: psi(&own, PRESSURE_FILES), ..of(usage::stats(&own)) },
        detail: ask
            .details
            .then(|| Detail { processes: usage::processes(&config.proc, &own), ..detail(&own) }),
        logs: measures_logs.then(|| disks::logs(at, &logs.join(&container.name))).flatten(),
        ..container.clone()
    });
    let containers: Vec<ContainerUse> = containers.collect();
    let counted = if dirs.is_empty() {
        ContainerStats::sum(containers.iter().map(|container| &container.usage.counted))
    } else {
        usage::stats(&dirs)
    };
    PodUse {
        pod: subject.pod.clone(),
        started_at: subject.started_at,
        cgroup: place.to_owned(),
        usage: Usage { psi: psi(&dirs, PRESSURE_FILES), ..of(counted) },
        detail: (ask.details && !dirs.is_empty()).then(|| detail(&dirs)),
        interfaces: if ask.network { pod_interfaces(config, &dirs, &subject.sandbox) } else { Vec::new() },
        containers,
        ..PodUse::default()
    }
}

/// With disks by their names, as cAdvisor has them.
fn detail(dirs: &[PathBuf]) -> Detail {
    let mut detail = usage::detail(dirs);
    let name = |number: String| {
        let link = fs::read_link(format!("/sys/dev/block/{number}")).ok();
        let name = link.as_ref().and_then(|link| link.file_name()).map(|name| name.to_string_lossy());
        name.map_or(number, |name| format!("/dev/{name}"))
    };
    detail.io = std::mem::take(&mut detail.io).into_iter().map(|(disk, io)| (name(disk), io)).into_map();
    detail
}

/// Fills in what only the runtime provides, and the usage of pods without a cgroup.
pub(super) fn complete(summary: &mut Summary, known: &RuntimeUse) {
    for pod in &mut summary.pods {
        let mut is_new = false;
        for container in &mut pod.containers {
            let told = known.containers.iter().find(|(id, _)| id.as_str() == container.id);
            let Some((_, told)) = told.filter(|_| container.usage.counted.memory_usage.is_none()) else {
                continue;
            };
            is_new = true;
            container.usage.counted = told.counted;
        }
        if is_new && pod.cgroup.is_empty() {
            pod.usage.counted =
                ContainerStats::sum(pod.containers.iter().map(|container| &container.usage.counted));
        }
    }
}

/// The path of a container's cgroup below its pod's.
fn below(place: &str, pod_dirs: &[PathBuf], own: &[PathBuf]) -> String {
    let relative = own.first().and_then(|own| pod_dirs.iter().find_map(|pod| own.strip_prefix(pod).ok()));
    relative.map(|relative| format!("{place}/{}", relative.display())).unwrap_or_default()
}

/// The pod's network traffic; empty with the host network.
fn pod_interfaces(config: &StatsConfig, dirs: &[PathBuf], sandbox: &str) -> Vec<Interface> {
    let Some(pid) = cgroup::sandbox_process(dirs, sandbox) else { return Vec::new() };
    let namespace = |process: &str| fs::read_link(config.proc.join(process).join("ns/net")).ok();
    let process = pid.to_string();
    let own = namespace("self");
    if own.is_none() || namespace(&process) == own {
        return Vec::new();
    }
    // The process may have ended and its PID may have been reused. Then these figures are of a foreign
    // process, and the next request corrects them.
    interfaces(&fs::read_to_string(config.proc.join(process).join("net/dev")).unwrap_or_default())
}
