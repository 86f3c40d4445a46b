//! Desired state from the sources, pods and objects: the messages from the manifest readers to the main loop,
//! and their stored form.
//!
//! Owns data types only.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::model::api::pod::Pod;
pub use crate::model::objects::SourceObject;
use crate::model::types::{PodSource, Timestamp};

/// Where a manifest comes from: the uid, the tolerations and the messages of its pods depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestOrigin {
    pub source: PodSource,
    /// Path of the file, or the URL without its password.
    pub location: String,
}

/// A whole set of one origin or source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceSet {
    pub pods: Vec<SourcePod>,
    pub objects: Vec<SourceObject>,
}

/// Everything a source wants to run now.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceUpdate {
    pub source: PodSource,
    /// The whole set, or that there is no valid answer and the last one stays in force.
    pub answer: SourceAnswer,
    /// With [`SourceAnswer::Pods`]: all objects that the source defines. Empty with an unknown answer.
    pub objects: Vec<SourceObject>,
    /// All current problems of the source; empty without any.
    pub problems: Vec<SourceProblem>,
    /// Lets a source continue after a restart: a URL's ETag and Last-Modified, or the directory that the
    /// files were in.
    pub validator: Option<String>,
    /// The newest signature from the source. It never decreases, so it is stored whatever the answer is.
    pub signed: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SourceAnswer {
    /// These pods and no others (an empty list is a valid answer).
    Pods(Vec<SourcePod>),
    /// No valid answer: a missing directory, an HTTP error, an empty body. The last good set stays in force.
    Unknown,
}

/// One wanted pod and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcePod {
    /// Defaulted, named, with uid and annotations: ready to run.
    pub pod: Rc<Pod>,
    /// File path or URL, for messages. With [`SourceAnswer::Pods`], a pod whose newest manifest is broken
    /// keeps its last good version here.
    pub origin: String,
}

/// A problem that the user must fix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceProblem {
    /// File path or URL.
    pub origin: String,
    /// A Kubernetes event reason, `FailedValidation` for a manifest that does not parse or validate.
    pub reason: String,
    /// What is wrong, where, and how to fix it.
    pub message: String,
    /// When this problem (with this very message) was first seen.
    pub since: Timestamp,
    /// `NAMESPACE/NAME` of the pod that runs in spite of it; empty when there is no such pod. Not stored.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
}
