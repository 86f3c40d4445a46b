//! What the server has to hear of a pod next.
//!
//! Owns the decision. There is no queue: what waits is the difference between the pod's stored status and what the
//! server shows, so it survives a restart, and only the latest status is ever sent.
//!
//! Pure: what it returns depends on its arguments alone.

use std::time::Duration;

use serde_json::Value;

use crate::cluster::patch::{digest, outgoing, pod_status};
use crate::model::api::pod::Pod;
use crate::model::containers::is_terminal;
use crate::model::disruption::is_shutdown_status;
use crate::model::types::{PodRef, PodUid, Timestamp};
use crate::pod::workers::has_only_object;

/// How long a status that was accepted may take to come back through the watch.
const ECHO: Duration = Duration::from_secs(10);
/// How often one status is sent. A server that shows it otherwise after that does not know one of its fields.
const TRIES: u8 = 2;
/// A status without this condition was not computed: the pod's worker has not synced yet.
const SYNCED: &str = "PodScheduled";

/// A pod as the server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenPod {
    pub reference: PodRef,
    /// It shows a terminal phase.
    pub is_terminal: bool,
    pub is_deleting: bool,
    /// Digest of the node's part of the status.
    pub shown: u64,
    /// The static pod that this is a mirror of.
    pub mirror_of: Option<PodUid>,
    /// `config.mirror` of a mirror; else empty.
    pub hash: String,
}

/// What was sent for a pod and accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub digest: u64,
    pub at: Timestamp,
    /// How often this status was sent.
    pub tries: u8,
    /// The object was deleted: if it is still there, finalizers keep it.
    pub is_deleted: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Delivery {
    /// Patch the status. `is_end`: the phase is terminal, and has to be on disk before.
    Patch {
        to: PodRef,
        body: Value,
        digest: u64,
        is_end: bool,
    },
    Delete {
        to: PodRef,
        grace: i64,
    },
    CreateMirror {
        body: Value,
    },
    Nothing,
    /// Nothing before this time.
    After(Timestamp),
}

/// `pod` has the node's newest status; `seen` is the object that shows it, of a static pod its mirror. `None`: the
/// server has none, so there is nothing to say.
#[must_use]
pub(crate) fn next_delivery(
    pod: &Pod,
    seen: Option<&SeenPod>,
    sent: Option<&Sent>,
    now: Timestamp,
) -> Delivery {
    let Some(seen) = seen else { return Delivery::Nothing };
    if !pod.status.conditions.iter().any(|condition| condition.type_ == SYNCED)
        || is_shutdown_status(pod, &pod.status)
    {
        return Delivery::Nothing;
    }
    let status = outgoing(pod);
    let is_end = is_terminal(&status);
    if seen.is_terminal && !is_end {
        // An end is never taken back; the worker is about to agree.
        return Delivery::Nothing;
    }
    let digest = digest(&status);
    if digest != seen.shown {
        let tries = sent.filter(|sent| sent.digest == digest).map_or(0, |sent| sent.tries);
        let echo = sent.map_or(now, |sent| sent.at.saturating_add(ECHO));
        // A clock that was set back must not silence the pod.
        let waits = sent.is_some_and(|sent| now < echo && sent.at <= now);
        if tries > 0 && waits {
            return Delivery::After(echo);
        }
        if tries < TRIES {
            let to = seen.reference.clone();
            return Delivery::Patch { body: pod_status(&to.uid, &status), to, digest, is_end };
        }
    }
    let is_deleted = sent.is_some_and(|sent| sent.is_deleted);
    if seen.mirror_of.is_none() && seen.is_deleting && seen.is_terminal && has_only_object(pod) && !is_deleted
    {
        return Delivery::Delete { to: seen.reference.clone(), grace: 0 };
    }
    Delivery::Nothing
}

/// What to remember of a delivery that the server accepted at `now`.
#[must_use]
pub(crate) fn accepted(before: Option<&Sent>, delivery: &Delivery, now: Timestamp) -> Sent {
    let before = before.copied().unwrap_or_default();
    match delivery {
        Delivery::Patch { digest, .. } => {
            let tries = if before.digest == *digest { before.tries } else { 0 };
            Sent { digest: *digest, at: now, tries: tries.saturating_add(1), ..before }
        }
        Delivery::Delete { .. } => Sent { is_deleted: true, ..before },
        _ => before,
    }
}

/// What to remember of a delivery that the server will not accept: nothing more is sent until the status changes.
#[must_use]
pub(crate) fn settled(before: Option<&Sent>, delivery: &Delivery, now: Timestamp) -> Sent {
    Sent { tries: TRIES, ..accepted(before, delivery, now) }
}
