//! Container log paths and rotation, from the resolved configuration.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::task::JoinHandle;

use crate::agent::config::Resolved;
use crate::model::api::quantity::Quantity;
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::pod::container_logs::{self, LogConfig};
use crate::pod::log_rotation::LogLimits;
use crate::runtime::Runtime;

/// `/var/log/containers` for the default log directory, otherwise a sibling of the configured one.
pub(super) fn container_logs_dir(pod_logs_dir: &Path) -> PathBuf {
    pod_logs_dir.parent().unwrap_or(Path::new("/var/log")).join("containers")
}

/// Mounts a tmpfs on the existing log directory, if configured. A failure must not keep pods from starting.
pub(super) fn place(resolved: &Resolved, pod_logs_dir: &Path) {
    let Some(bytes) = resolved.agent.container_log_ram else { return };
    if let Err(error) = container_logs::keep_in_memory(pod_logs_dir, bytes) {
        log::error!(
            path = pod_logs_dir.display().to_string(), err:% = error;
            "Failed to keep container logs in memory, writing them to disk"
        );
    }
}

/// Rotates logs as long as the task lives.
pub(super) fn start<R: Runtime>(resolved: &Resolved, runtime: &Rc<R>, clock: Clock) -> JoinHandle<()> {
    let kubelet = &resolved.kubelet;
    let pod_logs_dir = PathBuf::from(&kubelet.pod_logs_dir);
    let size = Quantity::parse(&kubelet.container_log_max_size).map_or(0, Quantity::value);
    let config = LogConfig {
        links_dir: container_logs_dir(&pod_logs_dir),
        pod_logs_dir,
        limits: LogLimits {
            // As upstream, a negative size turns rotation off.
            max_bytes: u64::try_from(size).unwrap_or_default(),
            max_files: usize::try_from(kubelet.container_log_max_files).unwrap_or_default(),
        },
        interval: kubelet.container_log_monitor_interval.to_std(),
        in_memory: resolved.agent.container_log_ram.is_some(),
    };
    rt::spawn("container logs", container_logs::rotate_logs(Rc::clone(runtime), config, clock))
}
