//! Why the node ends pods: its pressures, and the reasons in statuses.

use crate::model::api::pod::{Pod, PodStatus};
use crate::model::provenance::is_of_cluster;

/// Upstream's reason for a pod's status, for its event, and for a pod that is rejected.
pub(crate) const EVICTED: &str = "Evicted";

/// Upstream's `immediateEvictionGracePeriodSeconds`.
pub(crate) const IMMEDIATELY: i64 = 1;

/// Reason of a pod that ended because its machine shut down. Upstream's words, both.
pub(crate) const TERMINATED: &str = "Terminated";

/// The message of its status and its event.
pub(crate) const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// The message of a pod of the cluster that the cluster does not hear of: it runs again after the boot.
pub(crate) const MESSAGE_OFFLINE: &str =
    "Pod was terminated in response to imminent node shutdown; it runs again after the boot.";

/// Reason of a pod that ended because its node was without the cluster for too long: of its status and of its event.
pub(crate) const OFFLINE_TOO_LONG: &str = "OfflineTooLong";

/// Upstream's reason for a pod that makes room for a critical one: of its status and of its event.
pub(crate) const PREEMPTING: &str = "Preempting";

/// The message of its status and its event.
pub(crate) const PREEMPTED: &str = "Preempted in order to admit critical pod";

/// The message of the condition `DisruptionTarget` of a pod that ends for `reason`. Upstream has another one for
/// preemption.
#[must_use]
pub(crate) fn disruption_message<'a>(reason: &str, message: &'a str) -> &'a str {
    match reason {
        PREEMPTING => "Pod was preempted by Kubelet to accommodate a critical pod.",
        _ => message,
    }
}

/// The node's pressures, in upstream's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Memory,
    /// Bytes or inodes of a disk.
    Disk,
    Pid,
}

impl Pressure {
    /// All pressures, in the order of the node's conditions.
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Pid];

    /// The type of the node's condition.
    #[must_use]
    pub(crate) fn condition(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }

    /// Reason and message of the condition, upstream's.
    #[must_use]
    pub(crate) fn reason_and_message(self, holds: bool) -> (&'static str, &'static str) {
        match (self, holds) {
            (Self::Memory, true) => {
                ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available")
            }
            (Self::Memory, false) => {
                ("KubeletHasSufficientMemory", "kubelet has sufficient memory available")
            }
            (Self::Disk, true) => ("KubeletHasDiskPressure", "kubelet has disk pressure"),
            (Self::Disk, false) => ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            (Self::Pid, true) => ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
            (Self::Pid, false) => ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        }
    }

    /// Reason of the node's event when the condition changes, upstream's.
    #[must_use]
    pub(crate) fn event(self, holds: bool) -> &'static str {
        match (self, holds) {
            (Self::Memory, true) => "NodeHasInsufficientMemory",
            (Self::Memory, false) => "NodeHasSufficientMemory",
            (Self::Disk, true) => "NodeHasDiskPressure",
            (Self::Disk, false) => "NodeHasNoDiskPressure",
            (Self::Pid, true) => "NodeHasInsufficientPID",
            (Self::Pid, false) => "NodeHasSufficientPID",
        }
    }
}

/// A pod that ends for a shutdown with this message does not run again: the cluster calls it failed.
#[must_use]
pub(crate) fn ends_for_good(pod: &Pod, message: &str) -> bool {
    is_of_cluster(pod) && message == MESSAGE
}

/// The status is that of a pod whose machine shuts down: shown, but neither stored nor sent to the cluster, so that
/// the pod runs again after the boot as it would after a power cut.
#[must_use]
pub(crate) fn is_shutdown_status(pod: &Pod, status: &PodStatus) -> bool {
    status.phase == "Failed" && status.reason == TERMINATED && !ends_for_good(pod, &status.message)
}
