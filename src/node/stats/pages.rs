//! `/metrics/resource` and `/metrics/cadvisor`, in Prometheus' text format.
//!
//! Owns the families, upstream's names and labels. Pure. Figures that are not available are left out.

use crate::node::usage::{ContainerUse, Disk, Interface, PodUse, Summary, Usage};
use crate::platform::cgroup::usage::{Detail, Io};
use crate::platform::metrics::MetricKind::{Counter, Gauge};
use crate::platform::metrics::{MetricKind, Seconds, Text};

/// A family's figure from the usage, in its own unit; CPU time in nanoseconds.
type Figure = fn(&Usage) -> Option<u64>;

/// `/proc/diskstats` counts milliseconds.
const NANOS_PER_MILLI: u64 = 1_000_000;

const CPU: Figure = |usage| usage.counted.cpu_ns;
const WORKING_SET: Figure = |usage| usage.counted.working_set;
const SWAP: Figure = |usage| usage.counted.swap_usage;

/// `/metrics/resource`. `None`: no figures, and `resource_scrape_error` is 1.
#[must_use]
pub(crate) fn resource(summary: Option<&Summary>) -> String {
    let mut text = Text::default();
    if let Some(summary) = summary {
        resource_nodes(&mut text, summary);
        resource_containers(&mut text, summary);
        resource_pods(&mut text, summary);
    }
    text.family(
        Gauge,
        "resource_scrape_error",
        "1 if there was an error while getting these metrics, 0 otherwise",
    );
    text.sample(&[], &u8::from(summary.is_none()));
    text.finish()
}

fn timed(text: &mut Text, labels: &[(&str, &str)], usage: &Usage, figure: Figure, kind: MetricKind) {
    match (figure(usage), kind) {
        (Some(nanos), Counter) => text.sample_at(labels, &Seconds(nanos), usage.at),
        (Some(number), _) => text.sample_at(labels, &number, usage.at),
        (None, _) => {}
    }
}

fn resource_nodes(text: &mut Text, summary: &Summary) {
    let families = [
        (
            "node_cpu_usage_seconds_total",
            Counter,
            "Cumulative CPU time consumed by the node in core-seconds",
            CPU,
        ),
        ("node_memory_working_set_bytes", Gauge, "Current working set of the node in bytes", WORKING_SET),
        ("node_swap_usage_bytes", Gauge, "Current swap usage of the node in bytes", SWAP),
    ];
    for (name, kind, help, figure) in families {
        text.family(kind, name, help);
        timed(text, &[], &summary.node.usage, figure, kind);
    }
}

fn resource_containers(text: &mut Text, summary: &Summary) {
    let each = || summary.pods.iter().flat_map(|pod| pod.containers.iter().map(move |each| (pod, each)));
    text.family(
        Gauge,
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds",
    );
    for (pod, container) in each().filter(|(_, container)| !container.started_at.is_zero()) {
        text.sample(&of_container(pod, container), &started(container));
    }
    let families = [
        (
            "container_cpu_usage_seconds_total",
            Counter,
            "Cumulative CPU time consumed by the container in core-seconds",
            CPU,
        ),
        (
            "container_memory_working_set_bytes",
            Gauge,
            "Current working set of the container in bytes",
            WORKING_SET,
        ),
        ("container_swap_usage_bytes", Gauge, "Current swap usage of the container in bytes", SWAP),
    ];
    for (name, kind, help, figure) in families {
        text.family(kind, name, help);
        for (pod, container) in each() {
            timed(text, &of_container(pod, container), &container.usage, figure, kind);
        }
    }
    text.family(Gauge, "container_swap_limit_bytes", "Swap limit of the container in bytes");
    for (pod, container) in each() {
        if let Some(limit) = container.usage.counted.swap_limit {
            text.sample_at(&of_container(pod, container), &limit, container.usage.at);
        }
    }
}

fn resource_pods(text: &mut Text, summary: &Summary) {
    let families = [
        (
            "pod_cpu_usage_seconds_total",
            Counter,
            "Cumulative CPU time consumed by the pod in core-seconds",
            CPU,
        ),
        ("pod_memory_working_set_bytes", Gauge, "Current working set of the pod in bytes", WORKING_SET),
        ("pod_swap_usage_bytes", Gauge, "Current swap usage of the pod in bytes", SWAP),
    ];
    for (name, kind, help, figure) in families {
        text.family(kind, name, help);
        for pod in &summary.pods {
            let labels = [("namespace", pod.pod.namespace.as_str()), ("pod", pod.pod.name.as_str())];
            timed(text, &labels, &pod.usage, figure, kind);
        }
    }
}

fn of_container<'a>(pod: &'a PodUse, container: &'a ContainerUse) -> [(&'a str, &'a str); 3] {
    [("container", &container.name), ("namespace", &pod.pod.namespace), ("pod", &pod.pod.name)]
}

fn started(container: &ContainerUse) -> Seconds {
    Seconds(u64::try_from(container.started_at.as_nanos()).unwrap_or_default())
}

/// Identifiers of this machine, for the `machine_*` families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MachineNames {
    /// Changes with every boot.
    pub boot_id: String,
    /// `/etc/machine-id`.
    pub machine_id: String,
    pub system_uuid: String,
}

/// A cgroup as `/metrics/cadvisor` shows it.
struct Group<'a> {
    labels: [(&'a str, &'a str); 6],
    usage: &'a Usage,
    detail: Option<&'a Detail>,
    container: Option<&'a ContainerUse>,
    interfaces: &'a [Interface],
}

/// `/metrics/cadvisor`.
#[must_use]
pub(crate) fn cadvisor(summary: Option<&Summary>, names: &MachineNames) -> String {
    let mut text = Text::default();
    if let Some(summary) = summary {
        let groups = groups(summary);
        used(&mut text, &groups);
        detailed(&mut text, &groups);
        limits(&mut text, &groups);
        disks(&mut text, &groups);
        // The first is the node's.
        node_disks(&mut text, &groups[0], &summary.node.disks);
        networks(&mut text, &groups);
        machine(&mut text, summary, names);
    }
    text.family(
        Gauge,
        "container_scrape_error",
        "1 if there was an error while getting these metrics, 0 otherwise",
    );
    text.sample(&[], &u8::from(summary.is_none()));
    text.finish()
}

fn groups(summary: &Summary) -> Vec<Group<'_>> {
    let bare =
        |id| [("container", ""), ("id", id), ("image", ""), ("name", ""), ("namespace", ""), ("pod", "")];
    let node = &summary.node;
    let mut groups = vec![Group {
        labels: bare("/"),
        usage: &node.usage,
        detail: None,
        container: None,
        interfaces: &node.interfaces,
    }];
    // The kubelet and the runtime may share a cgroup.
    let is_first = |at: usize| !node.system[..at].iter().any(|other| other.cgroup == node.system[at].cgroup);
    let system = node.system.iter().enumerate().filter(|(at, _)| is_first(*at));
    groups.extend(system.map(|(_, system)| Group {
        labels: bare(system.cgroup.as_str()),
        usage: &system.usage,
        detail: None,
        container: None,
        interfaces: &[],
    }));
    for pod in &summary.pods {
        let (namespace, name) = (("namespace", pod.pod.namespace.as_str()), ("pod", pod.pod.name.as_str()));
        if !pod.cgroup.is_empty() {
            groups.push(Group {
                labels: [
                    ("container", ""),
                    ("id", &pod.cgroup),
                    ("image", ""),
                    ("name", ""),
                    namespace,
                    name,
                ],
                usage: &pod.usage,
                detail: pod.detail.as_ref(),
                container: None,
                interfaces: &pod.interfaces,
            });
        }
        groups.extend(pod.containers.iter().map(|container| Group {
            labels: [
                ("container", container.name.as_str()),
                ("id", if container.cgroup.is_empty() { &container.id } else { &container.cgroup }),
                ("image", &container.image),
                ("name", &container.id),
                namespace,
                name,
            ],
            usage: &container.usage,
            detail: container.detail.as_ref(),
            container: Some(container),
            interfaces: &[],
        }));
    }
    groups
}

fn used(text: &mut Text, groups: &[Group<'_>]) {
    text.family(Counter, "container_cpu_usage_seconds_total", "Cumulative CPU time consumed in seconds");
    for group in groups {
        if let Some(nanos) = group.usage.counted.cpu_ns {
            let labels = with(group, ("cpu", "total"));
            text.sample_at(&labels, &Seconds(nanos), group.usage.at);
        }
    }
    let families: [(&'static str, &str, Figure); 7] = [
        ("container_memory_usage_bytes", "Current memory usage in bytes", |usage| usage.counted.memory_usage),
        ("container_memory_working_set_bytes", "Current working set in bytes", WORKING_SET),
        ("container_memory_rss", "Size of RSS in bytes", |usage| usage.counted.rss),
        ("container_memory_swap", "Swap usage in bytes", SWAP),
        ("container_spec_memory_limit_bytes", "Memory limit, 0 for none", |usage| {
            Some(usage.counted.memory_limit.unwrap_or(0))
        }),
        ("container_spec_memory_swap_limit_bytes", "Swap limit", |usage| usage.counted.swap_limit),
        ("container_threads", "Number of processes and threads", |usage| usage.counted.pids),
    ];
    for (name, help, figure) in families {
        text.family(Gauge, name, help);
        for group in groups {
            timed(text, &group.labels, group.usage, figure, Gauge);
        }
    }
    text.family(
        Counter,
        "container_memory_failures_total",
        "Cumulative count of page faults and major page faults",
    );
    for group in groups {
        let counted = &group.usage.counted;
        for (kind, number) in [("pgfault", counted.page_faults), ("pgmajfault", counted.major_page_faults)] {
            if let Some(number) = number {
                let mut labels = with(group, ("failure_type", kind));
                labels.push(("scope", "hierarchy"));
                text.sample_at(&labels, &number, group.usage.at);
            }
        }
    }
    text.family(
        Gauge,
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds",
    );
    for group in groups {
        if let Some(container) = group.container.filter(|container| !container.started_at.is_zero()) {
            text.sample(&group.labels, &started(container));
        }
    }
    text.family(
        Gauge,
        "container_last_seen",
        "Last time the container was seen, since unix epoch in seconds",
    );
    for group in groups {
        text.sample_at(&group.labels, &(group.usage.at.as_nanos() / 1_000_000_000), group.usage.at);
    }
}

fn with<'a>(group: &Group<'a>, more: (&'a str, &'a str)) -> Vec<(&'a str, &'a str)> {
    let mut labels = group.labels.to_vec();
    labels.push(more);
    labels
}

/// A figure that only `/metrics/cadvisor` shows.
type Of = fn(&Detail) -> Option<u64>;
type Count = (&'static str, MetricKind, &'static str, Of);

/// Names of the time waiting and stalled, and what for, in the order of [`Detail::pressure`].
const PRESSURE: [(&str, &str, &str); 3] = [
    ("container_pressure_cpu_waiting_seconds_total", "container_pressure_cpu_stalled_seconds_total", "CPU"),
    (
        "container_pressure_memory_waiting_seconds_total",
        "container_pressure_memory_stalled_seconds_total",
        "memory",
    ),
    ("container_pressure_io_waiting_seconds_total", "container_pressure_io_stalled_seconds_total", "IO"),
];

fn detailed(text: &mut Text, groups: &[Group<'_>]) {
    let seconds: [(&'static str, &str, Of); 3] = [
        ("container_cpu_user_seconds_total", "Cumulative user CPU time in seconds", |detail| detail.user_ns),
        ("container_cpu_system_seconds_total", "Cumulative system CPU time in seconds", |detail| {
            detail.system_ns
        }),
        ("container_cpu_cfs_throttled_seconds_total", "Total time throttled by the CPU quota", |detail| {
            detail.throttled_ns
        }),
    ];
    let numbers: [Count; 13] = [
        ("container_cpu_cfs_periods_total", Counter, "Number of elapsed enforcement periods", |detail| {
            detail.periods
        }),
        (
            "container_cpu_cfs_throttled_periods_total",
            Counter,
            "Number of throttled enforcement periods",
            |detail| detail.throttled_periods,
        ),
        ("container_memory_cache", Gauge, "Page cache memory in bytes", |detail| detail.cache),
        ("container_memory_mapped_file", Gauge, "Size of memory mapped files in bytes", |detail| {
            detail.mapped_file
        }),
        ("container_memory_max_usage_bytes", Gauge, "Maximum memory usage recorded in bytes", |detail| {
            detail.memory_max_usage
        }),
        ("container_oom_events_total", Counter, "Count of out of memory events", |detail| detail.oom_kills),
        ("container_threads_max", Gauge, "Maximum number of threads, 0 for no limit", |detail| {
            Some(detail.pids_limit.unwrap_or(0))
        }),
        ("container_processes", Gauge, "Processes", |detail| Some(detail.processes?.count)),
        ("container_file_descriptors", Gauge, "Number of open file descriptors", |detail| {
            detail.processes?.files
        }),
        ("container_sockets", Gauge, "Number of open sockets", |detail| detail.processes?.sockets),
        ("container_spec_cpu_shares", Gauge, "CPU shares", |detail| detail.cpu_shares),
        ("container_spec_cpu_quota", Gauge, "CPU quota per period in microseconds", |detail| {
            detail.cpu_quota
        }),
        ("container_spec_cpu_period", Gauge, "CPU period in microseconds", |detail| detail.cpu_period),
    ];
    for (name, help, of) in seconds {
        nanoseconds(text, groups, name, help, &of);
    }
    for (at, (waiting, stalled, what)) in PRESSURE.into_iter().enumerate() {
        let help = format!("Total time tasks waited due to {what} congestion");
        nanoseconds(text, groups, waiting, &help, &|detail| detail.pressure[at].waiting_ns);
        let help = format!("Total time no task made progress due to {what} congestion");
        nanoseconds(text, groups, stalled, &help, &|detail| detail.pressure[at].stalled_ns);
    }
    counts(text, groups, &numbers);
}

fn nanoseconds(
    text: &mut Text,
    groups: &[Group<'_>],
    name: &'static str,
    help: &str,
    of: &dyn Fn(&Detail) -> Option<u64>,
) {
    text.family(Counter, name, help);
    for group in groups {
        if let Some(nanos) = group.detail.and_then(of) {
            text.sample_at(&group.labels, &Seconds(nanos), group.usage.at);
        }
    }
}

fn counts(text: &mut Text, groups: &[Group<'_>], families: &[Count]) {
    for (name, kind, help, of) in families {
        text.family(*kind, name, help);
        for group in groups {
            if let Some(number) = group.detail.and_then(of) {
                text.sample_at(&group.labels, &number, group.usage.at);
            }
        }
    }
}

/// Limits, and how often they were reached.
fn limits(text: &mut Text, groups: &[Group<'_>]) {
    let numbers: [Count; 2] = [
        ("container_memory_failcnt", Counter, "Number of memory limit hits", |detail| detail.memory_failures),
        (
            "container_spec_memory_reservation_limit_bytes",
            Gauge,
            "Memory reservation limit, 0 for none",
            |detail| Some(detail.memory_reservation.unwrap_or(0)),
        ),
    ];
    counts(text, groups, &numbers);
    text.family(Gauge, "container_ulimits_soft", "Soft ulimits of the container root process");
    for group in groups {
        let processes = group.detail.and_then(|detail| detail.processes);
        if let Some(number) = processes.and_then(|processes| processes.max_files) {
            text.sample_at(&with(group, ("ulimit", "max_open_files")), &number, group.usage.at);
        }
    }
}

fn disks(text: &mut Text, groups: &[Group<'_>]) {
    type Of = fn(&Io) -> u64;
    type OfLayer = fn(&ContainerUse) -> Option<u64>;
    text.family(Counter, "container_blkio_device_usage_total", "Bytes read from and written to disk");
    for group in groups {
        for (device, io) in group.detail.iter().flat_map(|detail| &detail.io) {
            let (major, minor) = (io.device.0.to_string(), io.device.1.to_string());
            for (operation, bytes) in [("Read", io.read_bytes), ("Write", io.written_bytes)] {
                let mut labels = with(group, ("device", device));
                labels.extend([
                    ("major", major.as_str()),
                    ("minor", minor.as_str()),
                    ("operation", operation),
                ]);
                text.sample_at(&labels, &bytes, group.usage.at);
            }
        }
    }
    let families: [(&'static str, &str, Of); 4] = [
        ("container_fs_reads_bytes_total", "Bytes read from the disk", |io| io.read_bytes),
        ("container_fs_writes_bytes_total", "Bytes written to the disk", |io| io.written_bytes),
        ("container_fs_reads_total", "Reads from the disk", |io| io.reads),
        ("container_fs_writes_total", "Writes to the disk", |io| io.writes),
    ];
    for (name, help, of) in families {
        text.family(Counter, name, help);
        for group in groups {
            for (device, io) in group.detail.iter().flat_map(|detail| &detail.io) {
                text.sample_at(&with(group, ("device", device)), &of(io), group.usage.at);
            }
        }
    }
    let families: [(&'static str, &str, OfLayer); 5] = [
        ("container_fs_usage_bytes", "Bytes used by the writable layer", |container| container.rootfs?.used),
        ("container_fs_inodes_used", "Inodes used by the writable layer", |container| {
            container.rootfs?.inodes_used
        }),
        ("container_fs_limit_bytes", "Capacity in bytes of the writable layer's filesystem", |container| {
            Some(container.rootfs?.facts.capacity)
        }),
        ("container_fs_inodes_total", "Number of inodes of the writable layer's filesystem", |container| {
            Some(container.rootfs?.facts.inodes)
        }),
        ("container_fs_inodes_free", "Free inodes of the writable layer's filesystem", |container| {
            Some(container.rootfs?.facts.inodes_free)
        }),
    ];
    for (name, help, of) in families {
        text.family(Gauge, name, help);
        for group in groups {
            if let Some(number) = group.container.and_then(of) {
                text.sample_at(&with(group, ("device", "")), &number, group.usage.at);
            }
        }
    }
}

/// For the node only, as upstream: the kernel counts these for whole disks.
fn node_disks(text: &mut Text, node: &Group<'_>, disks: &[Disk]) {
    let counts: [(&'static str, MetricKind, &str, usize); 5] = [
        ("container_fs_sector_reads_total", Counter, "Sectors read from the disk", 2),
        ("container_fs_reads_merged_total", Counter, "Reads that were merged with others", 1),
        ("container_fs_sector_writes_total", Counter, "Sectors written to the disk", 6),
        ("container_fs_writes_merged_total", Counter, "Writes that were merged with others", 5),
        ("container_fs_io_current", Gauge, "Reads and writes in progress", 8),
    ];
    for (name, kind, help, at) in counts {
        text.family(kind, name, help);
        for disk in disks {
            text.sample_at(&with(node, ("device", &disk.device)), &disk.counts[at], node.usage.at);
        }
    }
    let times: [(&'static str, &str, usize); 4] = [
        ("container_fs_read_seconds_total", "Time spent reading", 3),
        ("container_fs_write_seconds_total", "Time spent writing", 7),
        ("container_fs_io_time_seconds_total", "Time in which the disk was busy", 9),
        ("container_fs_io_time_weighted_seconds_total", "Time spent reading and writing", 10),
    ];
    for (name, help, at) in times {
        text.family(Counter, name, help);
        for disk in disks {
            let time = Seconds(disk.counts[at].saturating_mul(NANOS_PER_MILLI));
            text.sample_at(&with(node, ("device", &disk.device)), &time, node.usage.at);
        }
    }
}

fn networks(text: &mut Text, groups: &[Group<'_>]) {
    type Of = fn(&Interface) -> u64;
    let families: [(&'static str, &str, Of); 8] = [
        ("container_network_receive_bytes_total", "Bytes received", |each| each.rx_bytes),
        ("container_network_receive_packets_total", "Packets received", |each| each.rx_packets),
        ("container_network_receive_errors_total", "Errors while receiving", |each| each.rx_errors),
        ("container_network_receive_packets_dropped_total", "Packets dropped while receiving", |each| {
            each.rx_dropped
        }),
        ("container_network_transmit_bytes_total", "Bytes sent", |each| each.tx_bytes),
        ("container_network_transmit_packets_total", "Packets sent", |each| each.tx_packets),
        ("container_network_transmit_errors_total", "Errors while sending", |each| each.tx_errors),
        ("container_network_transmit_packets_dropped_total", "Packets dropped while sending", |each| {
            each.tx_dropped
        }),
    ];
    for (name, help, of) in families {
        text.family(Counter, name, help);
        for group in groups {
            for interface in group.interfaces {
                let labels = with(group, ("interface", &interface.name));
                text.sample_at(&labels, &of(interface), group.usage.at);
            }
        }
    }
}

fn machine(text: &mut Text, summary: &Summary, names: &MachineNames) {
    let labels = [
        ("boot_id", names.boot_id.as_str()),
        ("machine_id", names.machine_id.as_str()),
        ("system_uuid", names.system_uuid.as_str()),
    ];
    let node = &summary.node;
    let families = [
        ("machine_cpu_cores", "Number of logical CPU cores", Some(node.cpus)),
        ("machine_memory_bytes", "Memory of the machine in bytes", node.memory_total),
        ("machine_swap_bytes", "Swap of the machine in bytes", node.swap_total),
    ];
    for (name, help, number) in families {
        text.family(Gauge, name, help);
        if let Some(number) = number {
            text.sample(&labels, &number);
        }
    }
}
