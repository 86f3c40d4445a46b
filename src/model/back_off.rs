//! A back-off as it is stored.

use std::time::Duration;

use crate::model::types::Timestamp;

/// One container's crash-loop (or one image's pull) back-off. Kept in the store, so that neither a restart of the agent
/// nor a power cut turns a crash loop into a busy loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// What the next restart has to wait for, measured from the end of the last run.
    pub delay: Duration,
    /// When the entry was last set or doubled.
    pub updated: Timestamp,
}
