//! From single runs of a probe to what is published of it.
//!
//! Owns the thresholds.

use super::{ProbeKind, ProbeResult};
use crate::model::api::pod::Probe;

/// Where one probe of one container instance stands. Runs that came to no result (errors) are not counted at all.
///
/// Invariant: what is published changes only when as many equal results in a row as the probe's threshold have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounter {
    /// What is published.
    pub published: Option<ProbeResult>,
    /// Nothing more is asked of this instance: it has started, or it is to be killed.
    pub on_hold: bool,
    last: Option<ProbeResult>,
    run: i32,
}

impl ProbeCounter {
    /// Nothing has been counted; a startup probe that is known to have succeeded is done with.
    #[must_use]
    pub fn new(kind: ProbeKind, published: Option<ProbeResult>) -> Self {
        let on_hold = kind == ProbeKind::Startup && published == Some(ProbeResult::Success);
        Self { published, on_hold, last: None, run: 0 }
    }

    /// One more result.
    #[must_use]
    pub fn record(self, kind: ProbeKind, probe: &Probe, result: ProbeResult) -> Self {
        if self.on_hold {
            return self;
        }
        let run = if self.last == Some(result) { self.run.saturating_add(1) } else { 1 };
        let threshold = match result {
            ProbeResult::Success => probe.success_threshold,
            ProbeResult::Failure => probe.failure_threshold,
        };
        let counted = Self { last: Some(result), run, ..self };
        if run < threshold {
            return counted;
        }
        let on_hold = match kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => result == ProbeResult::Failure,
            ProbeKind::Readiness => false,
        };
        Self { published: Some(result), on_hold, ..counted }
    }
}

/// Whether the same complaint is worth an event when it comes for the `times`th time in a row (from 1): every time until
/// the threshold, then ever more rarely, so that a probe that fails for a year writes a few dozen times.
#[must_use]
pub fn is_told(times: u32, threshold: i32) -> bool {
    times <= u32::try_from(threshold).unwrap_or_default() || times.is_power_of_two()
}
