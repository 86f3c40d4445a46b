//! Use of resources, as CRI's statistics.
//!
//! Owns the mapping.

use crate::platform::proto::runtime as cri;
use crate::runtime::embedded::runtime::api::{ContainerStats, ContainerView, SandboxView};

use super::messages::{container_metadata, number, sandbox_metadata};

/// `ContainerStats`.
#[must_use]
pub(in crate::serve) fn container(
    view: &ContainerView,
    stats: &ContainerStats,
    mountpoint: &str,
) -> cri::ContainerStats {
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

/// The rate of use is not computed: the interval is the client's choice.
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

/// The sum over a sandbox's containers.
#[must_use]
pub(in crate::serve) fn sum<'a>(all: impl Iterator<Item = &'a ContainerStats>) -> ContainerStats {
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
pub(in crate::serve) fn sandbox(
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
