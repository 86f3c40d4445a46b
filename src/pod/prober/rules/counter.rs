//! From single runs of a probe to its published result.
//!
//! Owns the thresholds.

use super::{ProbeKind, ProbeResult};
use crate::model::api::pod::Probe;

/// The counter of one probe of one container instance. Runs without a result (errors) are not counted at all.
///
/// Invariant: the published result changes only after as many equal results in a row as the probe's
/// threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProbeCounter {
    pub published: Option<ProbeResult>,
    /// The instance is not probed any more: it has started, or it is to be killed.
    pub on_hold: bool,
    last: Option<ProbeResult>,
    run: i32,
}

impl ProbeCounter {
    /// A counter without runs; a startup probe that is known to have succeeded is on hold.
    #[must_use]
    pub(in crate::pod) fn new(kind: ProbeKind, published: Option<ProbeResult>) -> Self {
        let on_hold = kind == ProbeKind::Startup && published == Some(ProbeResult::Success);
        Self { published, on_hold, last: None, run: 0 }
    }

    #[must_use]
    pub(in crate::pod) fn record(self, kind: ProbeKind, probe: &Probe, result: ProbeResult) -> Self {
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

/// Whether a repeated complaint is worth an event when it comes for the `times`th time in a row (from 1):
/// every time until the threshold, then ever more rarely, so that a probe that fails for a year causes a few
/// dozen events.
#[must_use]
pub(crate) fn is_reported(times: u32, threshold: i32) -> bool {
    times <= u32::try_from(threshold).unwrap_or_default() || times.is_power_of_two()
}
