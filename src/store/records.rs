//! The store's content, as values.
//!
//! Owns shapes only.

use std::collections::BTreeMap;

use crate::model::api::pod::{Pod, PodStatus};
use crate::model::back_off::BackOff;
use crate::model::source::{SourceObject, SourcePod, SourceProblem};
use crate::model::types::{ContainerName, PodSource, PodUid, Timestamp};
use crate::store::cluster::ClusterRow;
use crate::store::rollout::RolloutPhase;
use crate::store::rows::UnreadableRow;

/// The whole content of the store, read once at start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Every source that has ever given a valid answer, with its last good set.
    pub desired: Vec<StoredSource>,
    /// The rollouts of sources' sets, except for good ones.
    pub rollouts: BTreeMap<PodSource, RolloutPhase>,
    /// Pods that left the desired set and whose end is not yet confirmed with `forget_pod`; some may be
    /// wanted again.
    pub terminating: Vec<Pod>,
    /// Restart counts and back-off.
    pub container_state: BTreeMap<PodUid, BTreeMap<ContainerName, StoredContainerState>>,
    pub statuses: BTreeMap<PodUid, PodStatus>,
    pub problems: BTreeMap<PodSource, Vec<SourceProblem>>,
    /// Small facts by key, see [`meta`].
    pub meta: BTreeMap<String, String>,
    /// What the cluster has shown beside pods and objects.
    pub cluster: Vec<ClusterRow>,
    /// Rows that could not be read back. They were skipped.
    pub unreadable: Vec<UnreadableRow>,
    /// Values in pods that their fields cannot hold. The pods are included without them.
    pub dropped: Vec<UnreadableRow>,
}

/// Keys of `meta` that several modules share.
pub mod meta {
    /// The runtime endpoint that holds the pods.
    pub(crate) const RUNTIME_ENDPOINT: &str = "runtime-endpoint";
    /// Endpoints, separated by spaces, of runtimes that held pods before and are not cleaned up yet.
    pub(crate) const EARLIER_RUNTIMES: &str = "earlier-runtimes";
    /// The node's name, which is part of every static pod's name.
    pub(crate) const NODE_NAME: &str = "node-name";
    /// The newest signature from `--manifest-url`, in its source's format.
    pub(crate) const NEWEST_SIGNATURE: &str = "newest-signature";
    /// `/proc/sys/kernel/random/boot_id` of the last run.
    #[cfg(test)]
    pub(crate) const BOOT_ID: &str = "boot-id";
}

/// The last good set of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSource {
    pub source: PodSource,
    /// Ordered by namespace, name, uid.
    pub pods: Vec<SourcePod>,
    /// Ordered by kind, namespace, name.
    pub objects: Vec<SourceObject>,
    /// ETag and the like.
    pub validator: Option<String>,
}

/// The state of a container that must survive the loss of its records in the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredContainerState {
    pub restart_count: u32,
    pub back_off: Option<BackOff>,
}

/// `Normal` or `Warning`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventType {
    #[default]
    Normal,
    Warning,
}

impl EventType {
    /// The value on the wire.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }

    /// Parses the value on the wire; anything but `Warning` is normal.
    #[must_use]
    pub(crate) fn from_name(name: &str) -> Self {
        if name == "Warning" { Self::Warning } else { Self::Normal }
    }
}

/// An event's object and content: repetitions of the same key only count.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventKey {
    /// `Pod` or `Node`.
    pub kind: String,
    /// Empty for nodes.
    pub namespace: String,
    /// Of the object.
    pub name: String,
    /// Of the object; a node's uid is its name, as the kubelet has it.
    pub uid: String,
    /// `spec.containers{name}`, or empty for the whole object.
    pub field_path: String,
    pub event_type: EventType,
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredEvent {
    pub key: EventKey,
    pub count: u32,
    pub first: Timestamp,
    pub last: Timestamp,
}
