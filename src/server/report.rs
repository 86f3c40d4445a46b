//! What the agent says about itself over the local socket, and `agent status` prints.
//!
//! Owns the shape. Must not know how it is gathered or shown.

use crate::api::pod::Pod;
use crate::api::wire;
use crate::source::SourceProblem;
use crate::store::StoredEvent;
use crate::types::Timestamp;

use serde::{Deserialize, Serialize};

wire! {
    /// Everything at one moment.
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
        /// The last events, oldest first.
        pub events: Vec<EventReport>,
        /// The agent's memory.
        pub store: StoreReport,
    }

    /// The container runtime as the agent sees it.
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
        /// What is wrong with it or with single manifests.
        pub problems: Vec<SourceProblem>,
    }

    /// One event, with the field names of `v1.Event`.
    pub struct EventReport {
        /// What it is about.
        pub involved_object: ObjectReference,
        /// `Normal` or `Warning`.
        #[serde(rename = "type")]
        pub type_: String,
        /// One word.
        pub reason: String,
        /// For people.
        pub message: String,
        /// How often.
        pub count: u32,
        /// First time.
        pub first_timestamp: Option<Timestamp>,
        /// Last time.
        pub last_timestamp: Option<Timestamp>,
    }

    /// `v1.ObjectReference`, as far as events need it.
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
    pub struct StoreReport {
        /// The file; empty when it remembers nothing.
        pub path: String,
        /// The last write worked.
        pub ok: bool,
        /// Why it did not.
        pub message: String,
    }
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
