//! What the agent says about itself over the local socket, and `agent status` prints.
//!
//! Owns the shape: every field is always written, so that a program need not know defaults.

use crate::model::api::pod::Pod;
use crate::model::objects::wire::{self, Values};
use crate::model::objects::{ObjectKey, ObjectKind};
use crate::model::source::{SourceObject, SourceProblem};
use crate::model::types::Timestamp;
use crate::store::StoredEvent;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentReport {
    /// Release of the agent.
    pub version: String,
    /// Its process; zero when it does not run.
    pub pid: u32,
    /// When that process started.
    pub started_at: Option<Timestamp>,
    /// Name of the node.
    pub node_name: String,
    /// Whether this comes from a running agent or from its memory.
    pub mode: AgentMode,
    /// The container runtime.
    pub runtime: RuntimeReport,
    /// Where pods come from.
    pub sources: Vec<SourceReport>,
    /// Wanted and terminating pods, with their statuses.
    pub pods: Vec<Pod>,
    /// How many objects the sources define.
    pub object_counts: ObjectCounts,
    /// The objects themselves, if they were asked for.
    pub objects: Vec<ObjectReport>,
    /// What the node is short of.
    pub pressure: Vec<PressureReport>,
    /// Servers that cannot serve now, and why.
    pub serving: Vec<String>,
    /// Where its API is.
    pub api: ApiReport,
    /// The last events, oldest first.
    pub events: Vec<EventReport>,
    /// The agent's memory.
    pub store: StoreReport,
}

/// What a report is to say of ConfigMaps, Secrets and claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectDetail {
    /// How many there are.
    #[default]
    Counted,
    /// What they hold; of a Secret the keys and how long each value is.
    Hidden,
    /// All they hold.
    Shown,
}

impl ObjectDetail {
    /// As part of a request; empty for the default.
    #[must_use]
    pub fn as_query(self) -> &'static str {
        match self {
            Self::Counted => "",
            Self::Hidden => "objects=hidden",
            Self::Shown => "objects=shown",
        }
    }

    /// Reads the part of a request.
    #[must_use]
    pub fn from_query(query: &str) -> Self {
        [Self::Hidden, Self::Shown].into_iter().find(|detail| detail.as_query() == query).unwrap_or_default()
    }

    /// The objects in this detail; `volumes_dir` is where claims have their directories.
    #[must_use]
    pub fn reports(self, objects: &[SourceObject], volumes_dir: &Path) -> Vec<ObjectReport> {
        let values = match self {
            Self::Counted => return Vec::new(),
            Self::Hidden => Values::Hidden,
            Self::Shown => Values::Shown,
        };
        let report = |object: &SourceObject| ObjectReport {
            origin: object.origin.clone(),
            directory: match &object.object.key {
                ObjectKey { kind: ObjectKind::PersistentVolumeClaim, namespace, name } => {
                    volumes_dir.join(namespace).join(name).display().to_string()
                }
                _ => String::new(),
            },
            object: wire::to_value(&object.object, values),
        };
        objects.iter().map(report).collect()
    }
}

/// The API over TLS, as clients on this machine find it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiReport {
    /// `https://127.0.0.1:10250`; empty when it is not served.
    pub server: String,
    /// Where the node's authority is.
    pub cert_dir: String,
}

/// How many objects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectCounts {
    pub config_maps: u32,
    pub secrets: u32,
    pub persistent_volume_claims: u32,
}

impl ObjectCounts {
    #[must_use]
    pub fn of<'a>(kinds: impl Iterator<Item = &'a ObjectKey>) -> Self {
        let mut counts = Self::default();
        for key in kinds {
            match key.kind {
                ObjectKind::ConfigMap => counts.config_maps += 1,
                ObjectKind::Secret => counts.secrets += 1,
                ObjectKind::PersistentVolumeClaim => counts.persistent_volume_claims += 1,
                // They hold nothing.
                ObjectKind::Namespace | ObjectKind::RuntimeClass => {}
            }
        }
        counts
    }
}

/// Something the node is short of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PressureReport {
    /// `MemoryPressure`, `DiskPressure`, `PIDPressure`.
    pub condition: String,
    pub message: String,
    pub since: Option<Timestamp>,
}

/// One ConfigMap, Secret or claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReport {
    /// File or URL that defines it.
    pub origin: String,
    /// Of a claim: where its data is.
    pub directory: String,
    /// As Kubernetes writes it.
    pub object: Value,
}

/// The container runtime as the agent sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeReport {
    /// `unix:///run/containerd/containerd.sock`.
    pub endpoint: String,
    /// The runtime's own name.
    pub name: String,
    /// The runtime's own version.
    pub version: String,
    /// It answers and says that it is ready.
    pub ready: bool,
    /// Why it is not ready.
    pub message: String,
    /// Since when it has been (not) ready.
    pub since: Option<Timestamp>,
}

/// One source of pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceReport {
    /// `file`, `http` or `api`.
    pub name: String,
    /// Directory, file or URL.
    pub origin: String,
    /// What it is doing.
    pub state: SourceState,
    /// When it last gave a valid answer.
    pub last_answer: Option<Timestamp>,
    /// How many pods it wants.
    pub pods: u32,
    /// How many ConfigMaps, Secrets and claims it defines.
    pub objects: u32,
    /// What is wrong with it or with single manifests.
    pub problems: Vec<SourceProblem>,
}

/// One event, with the field names of `v1.Event`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventReport {
    /// What it is about.
    pub involved_object: ObjectReference,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub type_: String,
    pub reason: String,
    pub message: String,
    pub count: u32,
    pub first_timestamp: Option<Timestamp>,
    pub last_timestamp: Option<Timestamp>,
}

/// `v1.ObjectReference`, as far as events need it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// `Pod` or `Node`.
    pub kind: String,
    /// Empty for nodes.
    pub namespace: String,
    /// Of the object.
    pub name: String,
    /// Of the object.
    pub uid: String,
    /// `spec.containers{name}`, or empty.
    pub field_path: String,
}

/// The agent's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StoreReport {
    /// The file; empty when it remembers nothing.
    pub path: String,
    /// The last write worked.
    pub ok: bool,
    /// Why it did not.
    pub message: String,
}
/// Where a report comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentMode {
    /// From the agent itself, now.
    #[default]
    Running,
    /// From the store: the last known state.
    NotRunning,
}

/// What a source is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceState {
    /// It has not given a valid answer since the agent started; the stored set stands.
    #[default]
    Waiting,
    /// Its last answer was valid.
    Ok,
    /// So it did, and that set has not proved yet that it starts; the last good one is kept beside it.
    Trial,
    /// It has answered before, but does not now; the last good set stands.
    Failing,
}

impl From<StoredEvent> for EventReport {
    fn from(event: StoredEvent) -> Self {
        Self {
            type_: event.key.event_type.as_str().to_owned(),
            involved_object: ObjectReference {
                kind: event.key.kind,
                namespace: event.key.namespace,
                name: event.key.name,
                uid: event.key.uid,
                field_path: event.key.field_path,
            },
            reason: event.key.reason,
            message: event.key.message,
            count: event.count,
            first_timestamp: Some(event.first),
            last_timestamp: Some(event.last),
        }
    }
}
