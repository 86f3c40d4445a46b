//! Converts measurements into the types of the eviction decisions.

use crate::node::eviction::rank::{ContainerUse, DiskUse, PodUse};
use crate::node::stats::{self, FileSystem};

fn disk(fs: Option<&FileSystem>) -> DiskUse {
    DiskUse { bytes: fs.and_then(|fs| fs.used), inodes: fs.and_then(|fs| fs.inodes_used) }
}

/// What a pod uses. A volume counts as the pod's own if it is not a claim and is on the node's disk.
pub(super) fn of_pod(measured: &stats::PodUse) -> PodUse {
    let containers = measured.containers.iter().map(|container| ContainerUse {
        name: container.name.clone(),
        memory: container.usage.counted.working_set,
        rootfs: disk(container.rootfs.as_ref()),
        logs: disk(container.logs.as_ref()),
    });
    let volumes = measured.volumes.iter().map(|volume| {
        (volume.name.clone(), disk(Some(&volume.fs)), volume.claim.is_none() && volume.on_node_disk)
    });
    PodUse {
        memory: measured.usage.counted.working_set,
        pids: measured.usage.counted.pids,
        containers: containers.collect(),
        volumes: volumes.collect(),
    }
}
