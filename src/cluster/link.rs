//! Whether the apiserver answers, since when, and why not.
//!
//! Pure: a state and an event in, a state and news out. Owns the states of the link.
//!
//! Events come from what has to work all the time: the watches of pods and Node, the lease. A request for one object
//! that fails says nothing about the link.

use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::model::types::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// No answer since the start, and no failure yet.
    Never,
    Online {
        since: Timestamp,
    },
    Offline {
        /// The end of the last time online.
        since: Timestamp,
        why: ApiError,
    },
    /// Something answers, and it is no valid answer of this cluster for this node.
    Refused {
        /// As of `Offline`.
        since: Timestamp,
        why: ApiError,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum LinkEvent {
    /// A valid answer to a request.
    Answered,
    Failed(ApiError),
    /// All pods of this node were listed.
    Listed,
}

/// A change that is logged once and wakes readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkNews {
    Online,
    Offline,
    Refused,
}

impl LinkState {
    pub(crate) fn is_online(&self) -> bool {
        matches!(self, Self::Online { .. })
    }

    /// Why there is no valid answer.
    pub(crate) fn why(&self) -> Option<&ApiError> {
        match self {
            Self::Offline { why, .. } | Self::Refused { why, .. } => Some(why),
            Self::Never | Self::Online { .. } => None,
        }
    }

    /// Since when there has been no valid answer.
    pub(crate) fn lost_since(&self) -> Option<Timestamp> {
        match self {
            Self::Offline { since, .. } | Self::Refused { since, .. } => Some(*since),
            Self::Never | Self::Online { .. } => None,
        }
    }
}

/// What an event means. A server that may not show us our pods (403) is online again when it has shown them, whatever
/// else it answers.
pub(crate) fn transition(
    state: LinkState,
    event: LinkEvent,
    now: Timestamp,
) -> (LinkState, Option<LinkNews>) {
    use LinkState::{Offline, Online, Refused};
    let failed = match (event, &state) {
        (LinkEvent::Failed(error), _) => error,
        (LinkEvent::Answered | LinkEvent::Listed, Online { .. }) => return (state, None),
        (LinkEvent::Answered, Refused { why, .. }) if why.kind == ApiErrorKind::Forbidden => {
            return (state, None);
        }
        (LinkEvent::Answered | LinkEvent::Listed, _) => {
            return (Online { since: now }, Some(LinkNews::Online));
        }
    };
    let refused = match failed.kind {
        ApiErrorKind::Unauthorized
        | ApiErrorKind::Forbidden
        | ApiErrorKind::Tls
        | ApiErrorKind::NotAnApiserver => true,
        ApiErrorKind::Unreachable | ApiErrorKind::Server => false,
        // The server is there and has answered, or nothing was sent.
        _ => return (state, None),
    };
    let since = state.lost_since().unwrap_or(now);
    match (refused, state) {
        (true, Refused { .. }) => (Refused { since, why: failed }, None),
        (true, _) => (Refused { since, why: failed }, Some(LinkNews::Refused)),
        (false, Offline { .. }) => (Offline { since, why: failed }, None),
        (false, _) => (Offline { since, why: failed }, Some(LinkNews::Offline)),
    }
}

#[cfg(test)]
mod tests;
