//! Desired state from the sources, pods and objects: the messages from the manifest readers to the main loop,
//! and their stored form.
//!
//! Owns data types only.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::model::api::pod::Pod;
use crate::model::objects::LocalObject;
use crate::model::types::{PodSource, Timestamp};

/// Everything a source wants to run now.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceUpdate {
    pub source: PodSource,
    /// The whole set, or that there is no valid answer and the last one stands.
    pub answer: SourceAnswer,
    /// Beside [`SourceAnswer::Pods`]: the objects it defines, these and no others. Nothing beside an unknown answer.
    pub objects: Vec<SourceObject>,
    /// What is wrong with the source right now, its whole list; empty when all is well.
    pub problems: Vec<SourceProblem>,
    /// Lets a source continue after a restart: a URL's ETag and Last-Modified, or the directory that the
    /// files were in.
    pub validator: Option<String>,
    /// The newest signature that the source has seen. It never goes backwards, so it is remembered whatever the answer is.
    pub signed: Option<String>,
}

/// What a source knows.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceAnswer {
    /// These pods and no others (an empty list is a valid answer).
    Pods(Vec<SourcePod>),
    /// No valid answer: a missing directory, an HTTP error, an empty body. The last good set stands.
    Unknown,
}

/// One wanted pod and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcePod {
    /// Defaulted, named, with uid and annotations: ready to run.
    pub pod: Rc<Pod>,
    /// File path or URL, for messages. With [`SourceAnswer::Pods`], a pod whose newest manifest is broken keeps its last
    /// good version here.
    pub origin: String,
}

/// One ConfigMap, Secret or claim and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceObject {
    /// Defaulted and valid.
    pub object: Rc<LocalObject>,
    /// As of [`SourcePod`], last good versions included.
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
    /// `NAMESPACE/NAME` of the pod that runs in spite of it; empty when it is about no such pod. Not stored.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
}
