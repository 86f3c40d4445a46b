//! The agent's status report, which the local socket serves and `agent status` prints.
//!
//! Owns the shape: every field is always written, so that a program need not know defaults.

use crate::cluster::report::ClusterReport;
use crate::model::api::pod::Pod;
use crate::model::objects::volumes::{Binding, show_binding};
use crate::model::objects::wire::{self, Values};
use crate::model::objects::{LocalObject, ObjectKey, ObjectKind};
use crate::model::source::SourceProblem;
use crate::model::types::Timestamp;
use crate::store::StoredEvent;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentReport {
    pub version: String,
    /// The agent's process id; zero when it is not running.
    pub pid: u32,
    pub started_at: Option<Timestamp>,
    pub node_name: String,
    /// Whether this comes from a running agent or from its store.
    pub mode: AgentMode,
    pub runtime: RuntimeReport,
    /// `None`: the node has joined no cluster.
    pub cluster: Option<ClusterReport>,
    pub sources: Vec<SourceReport>,
    /// Desired and terminating pods, with their statuses.
    pub pods: Vec<Pod>,
    /// How many objects the sources define.
    pub object_counts: ObjectCounts,
    /// The objects themselves, if requested.
    pub objects: Vec<ObjectReport>,
    pub pressure: Vec<PressureReport>,
    /// Servers that cannot run now, and why.
    pub serving: Vec<String>,
    /// Image archives that cannot be imported, and pods whose host ports a process of the node listens on.
    pub problems: Vec<ProblemReport>,
    pub api: ApiReport,
    /// One line for each CPU, see `managers::drawing`; none without a policy for CPUs.
    pub cpus: Vec<String>,
    /// One line for each block of memory that a container has to itself.
    pub memory: Vec<String>,
    /// The last events, oldest first.
    pub events: Vec<EventReport>,
    pub store: StoreReport,
}

/// How much detail of ConfigMaps, Secrets and claims a report has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectDetail {
    /// Only how many there are.
    #[default]
    Counted,
    /// Their contents; of a Secret the keys and the length of each value.
    Hidden,
    /// Their contents with the values of Secrets.
    Shown,
}

impl ObjectDetail {
    /// The query of a request; empty for the default.
    #[must_use]
    pub(crate) fn as_query(self) -> &'static str {
        match self {
            Self::Counted => "",
            Self::Hidden => "objects=hidden",
            Self::Shown => "objects=shown",
        }
    }

    /// Parses the query of a request.
    #[must_use]
    pub(in crate::serve) fn from_query(query: &str) -> Self {
        [Self::Hidden, Self::Shown].into_iter().find(|detail| detail.as_query() == query).unwrap_or_default()
    }

    /// The ConfigMaps, Secrets and claims in this detail, with their origins; `volumes_dir` contains the directories of claims.
    #[must_use]
    pub(crate) fn reports<'a>(
        self,
        objects: impl Iterator<Item = (&'a LocalObject, &'a str)>,
        volumes_dir: &Path,
        binding: &dyn Fn(&LocalObject) -> Binding,
    ) -> Vec<ObjectReport> {
        let values = match self {
            Self::Counted => return Vec::new(),
            Self::Hidden => Values::Hidden,
            Self::Shown => Values::Shown,
        };
        let is_shown = |(object, _): &(&LocalObject, &str)| {
            matches!(
                object.key.kind,
                ObjectKind::ConfigMap | ObjectKind::Secret | ObjectKind::PersistentVolumeClaim
            )
        };
        let report = |(object, origin): (&LocalObject, &str)| {
            let (mut shown, mut directory) = (wire::to_value(object, values), String::new());
            if object.key.kind == ObjectKind::PersistentVolumeClaim {
                let binding = binding(object);
                show_binding(&mut shown, &binding);
                if binding == Binding::Directory {
                    directory = object.claim_directory(volumes_dir).display().to_string();
                }
            }
            ObjectReport { origin: origin.to_owned(), directory, object: shown }
        };
        objects.filter(is_shown).map(report).collect()
    }
}

/// The API over TLS, as clients on this machine reach it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiReport {
    /// `https://127.0.0.1:10250`; empty when it is not served.
    pub server: String,
    /// The directory of the node's authority.
    pub cert_dir: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectCounts {
    pub config_maps: u32,
    pub secrets: u32,
    pub persistent_volume_claims: u32,
}

impl ObjectCounts {
    #[must_use]
    pub(crate) fn of<'a>(kinds: impl Iterator<Item = &'a ObjectKey>) -> Self {
        let mut counts = Self::default();
        for key in kinds {
            match key.kind {
                ObjectKind::ConfigMap => counts.config_maps += 1,
                ObjectKind::Secret => counts.secrets += 1,
                ObjectKind::PersistentVolumeClaim => counts.persistent_volume_claims += 1,
                _ => {}
            }
        }
        counts
    }
}

/// A problem that is not part of another field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProblemReport {
    pub subject: String,
    pub message: String,
}

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

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeReport {
    /// `unix:///run/containerd/containerd.sock`.
    pub endpoint: String,
    pub name: String,
    pub version: String,
    /// It answers and reports that it is ready.
    pub ready: bool,
    pub message: String,
    /// Since when it has been (not) ready.
    pub since: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceReport {
    /// `file`, `http` or `api`.
    pub name: String,
    /// Directory, file or URL.
    pub origin: String,
    pub state: SourceState,
    /// When it last gave a valid answer.
    pub last_answer: Option<Timestamp>,
    /// How many pods it defines.
    pub pods: u32,
    /// How many ConfigMaps, Secrets and claims it defines.
    pub objects: u32,
    /// Problems of the source or of single manifests.
    pub problems: Vec<SourceProblem>,
}

/// One event, with the field names of `v1.Event`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventReport {
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
    pub name: String,
    pub uid: String,
    /// `spec.containers{name}`, or empty.
    pub field_path: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StoreReport {
    /// The file; empty without a store.
    pub path: String,
    /// The last write worked.
    pub ok: bool,
    /// Why it did not.
    pub message: String,
}
/// The origin of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentMode {
    /// From the running agent, now.
    #[default]
    Running,
    /// From the store: the last known state.
    NotRunning,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceState {
    /// It has not given a valid answer since the agent started; the stored set stays in effect.
    #[default]
    Waiting,
    /// Its last answer was valid.
    Ok,
    /// Its last answer was valid, but that set is still on trial; the last good one is kept beside it.
    Trial,
    /// It has answered before, but does not now; the last good set stays in effect.
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
