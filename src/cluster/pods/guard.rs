//! Whether a complete list of pods is believed: a cluster that was replaced, or restored from a backup, must not
//! empty the node at once.
//!
//! Owns the decision.
//!
//! Pure: what it returns depends on its arguments alone.

use std::time::Duration;

use serde_json::{Value, json};

use crate::model::types::Timestamp;

/// The state of the guard; it is stored, so that a restart does not begin the grace period again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Guard {
    #[default]
    Open,
    /// The answers of the server are not believed.
    Holding { since: Timestamp, why: GuardReason },
}

impl Guard {
    /// As it is stored.
    pub(crate) fn to_value(self) -> Value {
        let Self::Holding { since, why } = self else { return Value::Null };
        let why = match why {
            GuardReason::AnotherNode => "AnotherNode",
            GuardReason::VersionWentBack => "VersionWentBack",
        };
        json!({"since": since.to_rfc3339_nano(), "reason": why})
    }

    /// From the store; open when it cannot be read, which the next list makes good.
    pub(crate) fn of(stored: &Value) -> Self {
        let since = stored["since"].as_str().and_then(Timestamp::parse_rfc3339);
        let why = match stored["reason"].as_str() {
            Some("AnotherNode") => Some(GuardReason::AnotherNode),
            Some("VersionWentBack") => Some(GuardReason::VersionWentBack),
            _ => None,
        };
        since.zip(why).map_or(Self::Open, |(since, why)| Self::Holding { since, why })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardReason {
    /// The Node object has another uid, or none.
    AnotherNode,
    /// The resource version is lower than one that was seen: etcd was restored.
    VersionWentBack,
}

/// The Node object at the server, beside the one that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeSeen {
    Same,
    Other,
    Absent,
}

/// The first complete list after a start, or after the link was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstAnswer {
    /// Pods that the node has of the cluster.
    pub known: usize,
    /// Those of them that the list lacks.
    pub missing: usize,
    pub node: NodeSeen,
    pub version_went_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The list is the truth, even an empty one.
    Believe,
    /// As if there were no answer.
    Hold,
    /// The node has to register and to ask again: its object may only have been deleted.
    RegisterFirst,
}

/// Judges a list. `accepted`: an administrator has confirmed the cluster. After `grace` any list is believed: the
/// owner has had time, and pods that a cluster has given to other nodes must stop here. A grace of zero means no
/// guard.
#[must_use]
pub(crate) fn judge(
    guard: &Guard,
    answer: &FirstAnswer,
    accepted: bool,
    now: Timestamp,
    grace: Duration,
) -> (Guard, Verdict) {
    let why = match answer.node {
        _ if answer.version_went_back => GuardReason::VersionWentBack,
        // A backup has the earlier Node: only the lists before this one have shown that the version went back.
        NodeSeen::Same if matches!(guard, Guard::Holding { why: GuardReason::VersionWentBack, .. }) => {
            GuardReason::VersionWentBack
        }
        NodeSeen::Same => return (Guard::Open, Verdict::Believe),
        // One that is already held has registered, or cannot.
        NodeSeen::Absent if *guard == Guard::Open && answer.missing > 0 && !accepted && !grace.is_zero() => {
            return (Guard::Open, Verdict::RegisterFirst);
        }
        NodeSeen::Absent | NodeSeen::Other => GuardReason::AnotherNode,
    };
    let since = match guard {
        Guard::Holding { since, .. } => *since,
        Guard::Open => now,
    };
    // A clock that was set back makes a held list wait again, which is the safe side.
    let is_over = now.saturating_since(since) >= grace;
    if answer.missing == 0 || accepted || is_over {
        return (Guard::Open, Verdict::Believe);
    }
    (Guard::Holding { since, why }, Verdict::Hold)
}
