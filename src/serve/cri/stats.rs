//! Use of resources, as CRI's statistics.
//!
//! Owns the mapping.

use std::path::Path;

use crate::platform::cgroup::usage::ContainerStats;
use crate::platform::proto::runtime as cri;
use crate::runtime::embedded::runtime::api::{ContainerView, SandboxView};
use crate::runtime::{ContainerFigures, DiskFigures};

use super::messages::{container_metadata, number, sandbox_metadata};

pub(super) fn disk(timestamp: i64, figures: &DiskFigures) -> cri::FilesystemUsage {
    let mountpoint = figures.place.display().to_string();
    cri::FilesystemUsage {
        timestamp,
        fs_id: Some(cri::FilesystemIdentifier { mountpoint }),
        used_bytes: figures.bytes.and_then(number),
        inodes_used: figures.inodes.and_then(number),
    }
}

/// `ContainerStats`; `layers` is the directory of all writable layers.
#[must_use]
pub(in crate::serve) fn container(
    view: &ContainerView,
    figures: &ContainerFigures,
    layers: &Path,
) -> cri::ContainerStats {
    let timestamp = figures.at.as_nanos();
    let layer = figures.layer.as_ref();
    let layer = layer.map(|layer| DiskFigures { place: layers.to_owned(), ..layer.clone() });
    cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes {
            id: view.id.to_string(),
            metadata: Some(container_metadata(view)),
            labels: view.config.labels.clone(),
            annotations: view.config.annotations.clone(),
        }),
        cpu: Some(cpu(timestamp, &figures.counted)),
        memory: Some(memory(timestamp, &figures.counted)),
        writable_layer: layer.map(|layer| disk(timestamp, &layer)),
        swap: Some(cri::SwapUsage {
            timestamp,
            swap_available_bytes: None,
            swap_usage_bytes: or_zero(figures.counted.swap_usage),
        }),
        io: None,
    }
}

/// A container without a cgroup uses nothing.
fn or_zero(figure: Option<u64>) -> Option<cri::UInt64Value> {
    number(figure.unwrap_or(0))
}

/// The rate of use is not computed: the interval is the client's choice.
fn cpu(timestamp: i64, counted: &ContainerStats) -> cri::CpuUsage {
    let usage_core_nano_seconds = or_zero(counted.cpu_ns);
    cri::CpuUsage { timestamp, usage_core_nano_seconds, usage_nano_cores: None, psi: None }
}

fn memory(timestamp: i64, counted: &ContainerStats) -> cri::MemoryUsage {
    cri::MemoryUsage {
        timestamp,
        working_set_bytes: or_zero(counted.working_set),
        available_bytes: counted.memory_available().and_then(number),
        usage_bytes: or_zero(counted.memory_usage),
        rss_bytes: or_zero(counted.rss),
        page_faults: or_zero(counted.page_faults),
        major_page_faults: or_zero(counted.major_page_faults),
        psi: None,
    }
}

/// `PodSandboxStats`, of the running containers.
#[must_use]
pub(in crate::serve) fn sandbox(
    view: &SandboxView,
    containers: &[(ContainerView, ContainerFigures)],
    layers: &Path,
) -> cri::PodSandboxStats {
    let total = ContainerStats::sum(containers.iter().map(|(_, figures)| &figures.counted));
    let timestamp = containers.iter().map(|(_, figures)| figures.at.as_nanos()).max().unwrap_or_default();
    let linux = cri::LinuxPodSandboxStats {
        cpu: Some(cpu(timestamp, &total)),
        memory: Some(memory(timestamp, &total)),
        network: None,
        process: Some(cri::ProcessUsage { timestamp, process_count: or_zero(total.pids) }),
        containers: containers.iter().map(|(view, figures)| container(view, figures, layers)).collect(),
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
