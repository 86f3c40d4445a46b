//! When a pod of the cluster that was not known before is handed on.
//!
//! Owns the decision: a new pod waits a moment for its objects, so that one transaction of the store has both, and no
//! mount fails for the order in which watches answer.
//!
//! Pure: what it returns depends on its arguments alone.

use std::time::Duration;

use crate::model::api::pod::Pod;
use crate::model::containers::is_terminal;
use crate::model::types::Timestamp;

/// Upstream waits as long for its caches before a mount fails.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Ready,
    /// Its objects are missing; at this time it goes without them.
    Until(Timestamp),
}

/// `is_known`: the node has the pod already. `since`: when the watch first showed it.
#[must_use]
pub(crate) fn ready(
    pod: &Pod,
    is_known: bool,
    lacks_objects: bool,
    now: Timestamp,
    since: Timestamp,
) -> Hold {
    let ends = pod.metadata.deletion_timestamp.is_some() || is_terminal(&pod.status);
    let until = since.saturating_add(LONGEST);
    // A clock that was set back must not prolong it.
    if is_known || ends || !lacks_objects || now >= until || now < since {
        return Hold::Ready;
    }
    Hold::Until(until)
}
