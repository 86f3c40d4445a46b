//! Keys of the labels and annotations that tie sandboxes and containers to pods: the adoption contract with
//! the kubelet.
//!
//! Owns the keys.

/// Sandbox and container label: `metadata.name` of the pod.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Sandbox and container label: `metadata.namespace` of the pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Sandbox and container label: `metadata.uid` of the pod. Records without it do not belong to the agent.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Container label: the container's name in the pod.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Container annotation: hex hash of the container's spec.
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
/// Container annotation: decimal restart count.
pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Container annotation: `terminationMessagePath`.
pub(crate) const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Container annotation: `terminationMessagePolicy`.
pub(crate) const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Container annotation of the agent: JSON of the cpu and memory requests and limits at creation.
pub(crate) const CONTAINER_RESOURCES: &str = "edge-agent.io/container.resources";
/// Container annotation: seconds, when the pod has a deletion grace period.
pub(crate) const POD_DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Container annotation: seconds, `terminationGracePeriodSeconds` of the pod.
pub(crate) const POD_TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Container annotation: JSON of the preStop handler, if there is one.
pub(crate) const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
/// Container annotation: JSON array of the container's ports, if it has any.
pub(crate) const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
