//! The faults of the fake apiserver.
//!
//! Owns the switches; the verbs, watches and the transport ask for them.

use std::time::Duration;

use serde_json::{Value, json};

/// Fault switches; all off by default.
#[derive(Clone, Debug, Default)]
pub struct ApiFaults {
    /// No connection, and those that there are end.
    pub refuse: bool,
    /// Nothing answers, and nothing ends.
    pub hang: bool,
    /// Before each part of a watch.
    pub chunk_delay: Duration,
    /// Each watch ends after so many events.
    pub cut_after: Option<u32>,
    /// It ends in the middle of the next event.
    pub cut_inside_a_line: bool,
    /// No version is kept: 410 for watches from a version and for later pages.
    pub gone: bool,
    /// 429 with this `Retry-After`; none when it is zero.
    pub too_many: Option<Duration>,
    /// Every answer has this status.
    pub status: Option<u16>,
    /// Lists are empty, as those of a server that has lost its storage.
    pub empty_lists: bool,
    /// A web page, with status 200.
    pub html: bool,
    /// 422 for streaming lists.
    pub no_watch_list: bool,
    pub no_bookmarks: bool,
    /// Requests take effect, and their answers are lost.
    pub lose_answers: bool,
    /// Events arrive twice.
    pub repeat_events: bool,
    /// Objects have members of a later version of Kubernetes.
    pub unknown_fields: bool,
    /// The API of ClusterTrustBundles is not served.
    pub no_trust_bundles: bool,
    /// Of the Node authorizer's graph, behind the storage: the age below which a pod leads to no object.
    pub graph_lag: Duration,
}

impl ApiFaults {
    /// An object as this server shows it.
    pub(super) fn shown(&self, mut object: Value) -> Value {
        if self.unknown_fields {
            for part in ["metadata", "spec", "status"] {
                if let Some(members) = object.get_mut(part).and_then(Value::as_object_mut) {
                    members.insert("fromTheFuture".to_owned(), json!({"list": [1, {"a": null}]}));
                }
            }
        }
        object
    }
}
