//! Use of resources, as CRI's statistics and metrics.
//!
//! Owns the mapping and the list of metrics. Must not know where the numbers come from.

use crate::proto::runtime as cri;
use crate::runtime::embedded::runtime::api::{ContainerStats, ContainerView, SandboxView};

use super::messages::{container_metadata, number, sandbox_metadata};

/// `ContainerStats`.
#[must_use]
pub fn container(view: &ContainerView, stats: &ContainerStats, mountpoint: &str) -> cri::ContainerStats {
    let timestamp = stats.at.as_nanos();
    cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes {
            id: view.id.to_string(),
            metadata: Some(container_metadata(view)),
            labels: view.config.labels.clone(),
            annotations: view.config.annotations.clone(),
        }),
        cpu: Some(cpu(stats)),
        memory: Some(memory(stats)),
        writable_layer: Some(cri::FilesystemUsage {
            timestamp,
            fs_id: Some(cri::FilesystemIdentifier { mountpoint: mountpoint.to_owned() }),
            used_bytes: number(stats.writable_layer_bytes),
            inodes_used: number(stats.writable_layer_inodes),
        }),
        swap: Some(cri::SwapUsage {
            timestamp,
            swap_available_bytes: None,
            swap_usage_bytes: number(stats.swap_usage_bytes),
        }),
        io: None,
    }
}

/// The rate of use is left to the client, who alone knows over which time it wants it.
fn cpu(stats: &ContainerStats) -> cri::CpuUsage {
    cri::CpuUsage {
        timestamp: stats.at.as_nanos(),
        usage_core_nano_seconds: number(stats.cpu_nanoseconds),
        usage_nano_cores: None,
        psi: None,
    }
}

fn memory(stats: &ContainerStats) -> cri::MemoryUsage {
    cri::MemoryUsage {
        timestamp: stats.at.as_nanos(),
        working_set_bytes: number(stats.memory_working_set_bytes),
        available_bytes: stats.memory_available_bytes.and_then(number),
        usage_bytes: number(stats.memory_usage_bytes),
        rss_bytes: number(stats.memory_rss_bytes),
        page_faults: number(stats.page_faults),
        major_page_faults: number(stats.major_page_faults),
        psi: None,
    }
}

/// What a sandbox's containers use together.
#[must_use]
pub fn sum<'a>(all: impl Iterator<Item = &'a ContainerStats>) -> ContainerStats {
    all.fold(ContainerStats::default(), |sum, one| ContainerStats {
        at: sum.at.max(one.at),
        cpu_nanoseconds: sum.cpu_nanoseconds.saturating_add(one.cpu_nanoseconds),
        memory_usage_bytes: sum.memory_usage_bytes.saturating_add(one.memory_usage_bytes),
        memory_working_set_bytes: sum.memory_working_set_bytes.saturating_add(one.memory_working_set_bytes),
        memory_rss_bytes: sum.memory_rss_bytes.saturating_add(one.memory_rss_bytes),
        page_faults: sum.page_faults.saturating_add(one.page_faults),
        major_page_faults: sum.major_page_faults.saturating_add(one.major_page_faults),
        pids: sum.pids.saturating_add(one.pids),
        ..ContainerStats::default()
    })
}

/// `PodSandboxStats`, of the running containers.
#[must_use]
pub fn sandbox(
    view: &SandboxView,
    containers: &[(ContainerView, ContainerStats)],
    mountpoint: &str,
) -> cri::PodSandboxStats {
    let total = sum(containers.iter().map(|(_, stats)| stats));
    let linux = cri::LinuxPodSandboxStats {
        cpu: Some(cpu(&total)),
        memory: Some(memory(&total)),
        network: None,
        process: Some(cri::ProcessUsage {
            timestamp: total.at.as_nanos(),
            process_count: number(total.pids),
        }),
        containers: containers.iter().map(|(view, stats)| container(view, stats, mountpoint)).collect(),
        io: None,
    };
    cri::PodSandboxStats {
        attributes: Some(cri::PodSandboxAttributes {
            id: view.id.to_string(),
            metadata: Some(sandbox_metadata(view)),
            labels: view.config.labels.clone(),
            annotations: view.config.annotations.clone(),
        }),
        linux: Some(linux),
        windows: None,
    }
}

/// One metric: name, help, kind, value.
type Metric = (&'static str, &'static str, cri::MetricType, fn(&ContainerStats) -> u64);

const COUNTER: cri::MetricType = cri::MetricType::Counter;
const GAUGE: cri::MetricType = cri::MetricType::Gauge;

/// Names and units are cAdvisor's, but for CPU time, which CRI's whole numbers can only carry in nanoseconds.
const METRICS: [Metric; 8] = [
    ("container_cpu_usage_nanoseconds_total", "CPU time consumed", COUNTER, |stats| stats.cpu_nanoseconds),
    ("container_memory_usage_bytes", "Memory in use, page cache included", GAUGE, |stats| {
        stats.memory_usage_bytes
    }),
    ("container_memory_working_set_bytes", "Memory that cannot be taken away", GAUGE, |stats| {
        stats.memory_working_set_bytes
    }),
    ("container_memory_rss", "Anonymous memory", GAUGE, |stats| stats.memory_rss_bytes),
    ("container_memory_swap", "Swap in use", GAUGE, |stats| stats.swap_usage_bytes),
    ("container_processes", "Processes and threads", GAUGE, |stats| stats.pids),
    ("container_fs_usage_bytes", "Bytes of the writable layer", GAUGE, |stats| stats.writable_layer_bytes),
    ("container_fs_inodes_used", "Files of the writable layer", GAUGE, |stats| stats.writable_layer_inodes),
];

/// Of every metric, in this order.
const LABELS: [&str; 3] = ["id", "name", "image"];

/// `ListMetricDescriptors`.
#[must_use]
pub fn descriptors() -> Vec<cri::MetricDescriptor> {
    let descriptor = |(name, help, _, _): &Metric| cri::MetricDescriptor {
        name: (*name).to_owned(),
        help: (*help).to_owned(),
        label_keys: LABELS.map(str::to_owned).into(),
    };
    METRICS.iter().map(descriptor).collect()
}

/// `PodSandboxMetrics`.
#[must_use]
pub fn metrics(
    sandbox: &SandboxView,
    containers: &[(ContainerView, ContainerStats)],
) -> cri::PodSandboxMetrics {
    let of_container = |(view, stats): &(ContainerView, ContainerStats)| cri::ContainerMetrics {
        container_id: view.id.to_string(),
        metrics: METRICS
            .iter()
            .map(|(name, _, kind, value)| cri::Metric {
                name: (*name).to_owned(),
                timestamp: stats.at.as_nanos(),
                metric_type: (*kind).into(),
                label_values: vec![view.id.to_string(), view.config.name.clone(), view.image.clone()],
                value: number(value(stats)),
            })
            .collect(),
    };
    cri::PodSandboxMetrics {
        pod_sandbox_id: sandbox.id.to_string(),
        metrics: Vec::new(),
        container_metrics: containers.iter().map(of_container).collect(),
    }
}
