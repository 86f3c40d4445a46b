//! Restart policy and crash-loop back-off arithmetic.
//!
//! Owns the numbers. Invariant: a back-off never shrinks except by being forgotten.

use std::time::Duration;

use crate::types::Timestamp;

/// One container's crash-loop (or one image's pull) back-off. Kept in the store, so that neither a restart of the agent
/// nor a power cut turns a crash loop into a busy loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// What the next restart has to wait for, measured from the end of the last run.
    pub delay: Duration,
    /// When the entry was last set or doubled.
    pub updated: Timestamp,
}

/// `crashLoopBackOff` limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOffLimits {
    /// First delay.
    pub initial: Duration,
    /// Longest delay (`maxContainerRestartPeriod`).
    pub max: Duration,
}

impl Default for BackOffLimits {
    /// Upstream's 10 s doubling to 5 minutes.
    fn default() -> Self {
        Self { initial: Duration::from_secs(10), max: Duration::from_secs(300) }
    }
}
