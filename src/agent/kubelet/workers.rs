//! Back-offs and history of the pod workers, from the resolved configuration.

use std::time::Duration;

use crate::agent::config::Resolved;
use crate::model::back_off::BackOffLimits;
use crate::pod::executor::ExecutorConfig;
use crate::pod::workers::PodWorkerConfig;

/// Upstream's initial back-off of a crash-looping container.
const FIRST_BACK_OFF: Duration = Duration::from_secs(10);

/// The limits of the back-offs, and the history of dead containers.
pub(super) fn worker_config(resolved: &Resolved, executor: &ExecutorConfig) -> PodWorkerConfig {
    let longest = resolved.kubelet.crash_loop_back_off_max_container_restart_period.to_std();
    PodWorkerConfig {
        // Upstream: a maximum below the initial back-off is also the initial one.
        limits: BackOffLimits { initial: FIRST_BACK_OFF.min(longest), max: longest },
        max_dead_per_container: usize::try_from(resolved.flags.maximum_dead_containers_per_container)
            .unwrap_or(1),
        node_ips: executor.node_ips.clone(),
    }
}
