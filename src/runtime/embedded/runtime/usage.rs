//! What a container uses: from its cgroup and its writable layer.

use std::path::PathBuf;

use super::record::ContainerRecord;
use crate::model::types::Timestamp;
use crate::platform::cgroup::usage;
use crate::platform::sys::disk_usage::disk_usage;
use crate::runtime::{ContainerFigures, DiskFigures};

/// Reads the current usage, from the cgroups in the container's record: not all can be found otherwise.
/// `layer` is the directory of its writable layer, if that is to be measured.
pub(super) fn figures(at: Timestamp, record: &ContainerRecord, layer: Option<PathBuf>) -> ContainerFigures {
    let layer = layer.map(|place| {
        let (bytes, inodes) = disk_usage(&place.join("upper")).unwrap_or_default();
        DiskFigures { place, bytes: Some(bytes), inodes: Some(inodes) }
    });
    ContainerFigures { at, counted: usage::stats(&record.cgroups), layer }
}
