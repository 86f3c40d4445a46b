//! CRI's report of resource usage, in this crate's types.

use crate::model::types::{ContainerId, Timestamp};
use crate::platform::cgroup::usage::ContainerStats;
use crate::platform::proto::runtime as cri;
use crate::runtime::{ContainerFigures, DiskFigures};

type Number = cri::UInt64Value;

/// `ContainerStats`; `None` without an id.
#[must_use]
pub(crate) fn figures_from_message(message: cri::ContainerStats) -> Option<(ContainerId, ContainerFigures)> {
    let id = message.attributes?.id;
    let memory = message.memory.unwrap_or_default();
    let value = |number: Option<Number>| number.map(|number| number.value);
    let cpu = message.cpu.unwrap_or_default();
    let (left, working_set) = (value(memory.available_bytes), value(memory.working_set_bytes));
    let counted = ContainerStats {
        cpu_ns: value(cpu.usage_core_nano_seconds),
        memory_usage: value(memory.usage_bytes),
        working_set,
        rss: value(memory.rss_bytes),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        memory_limit: left.zip(working_set).map(|(left, used)| left.saturating_add(used)),
        swap_usage: message.swap.and_then(|swap| value(swap.swap_usage_bytes)),
        ..ContainerStats::default()
    };
    let layer = message.writable_layer.map(disk_from_message);
    let figures = ContainerFigures { at: Timestamp::from_nanos(cpu.timestamp), counted, layer };
    (!id.is_empty()).then(|| (id.into(), figures))
}

#[must_use]
pub(crate) fn disk_from_message(message: cri::FilesystemUsage) -> DiskFigures {
    DiskFigures {
        place: message.fs_id.unwrap_or_default().mountpoint.into(),
        bytes: message.used_bytes.map(|number| number.value),
        inodes: message.inodes_used.map(|number| number.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_runtime_stats_stay_unset() {
        assert_eq!(figures_from_message(cri::ContainerStats::default()), None);
        let attributes = Some(cri::ContainerAttributes { id: "c1".to_owned(), ..Default::default() });
        let cpu = cri::CpuUsage { usage_core_nano_seconds: Some(Number { value: 7 }), ..Default::default() };
        let layer = cri::FilesystemUsage {
            fs_id: Some(cri::FilesystemIdentifier { mountpoint: "/var/lib/x".to_owned() }),
            used_bytes: Some(Number { value: 4096 }),
            ..Default::default()
        };
        let message = cri::ContainerStats {
            attributes,
            cpu: Some(cpu),
            writable_layer: Some(layer),
            ..Default::default()
        };
        let layer = DiskFigures { place: "/var/lib/x".into(), bytes: Some(4096), inodes: None };
        let expected = ContainerFigures {
            counted: ContainerStats { cpu_ns: Some(7), ..Default::default() },
            layer: Some(layer),
            ..Default::default()
        };
        assert_eq!(figures_from_message(message), Some(("c1".into(), expected)));
    }
}
