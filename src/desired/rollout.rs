//! One source's rollout in this process: its phase, and the time spent in it.
//!
//! Owns the timers, which run on the monotonic clock. Must not decide ([`rules`] does) nor know the desired set.

pub mod rules;

use std::time::Duration;

use tokio::time::Instant;

use crate::model::source::SourceProblem;
use crate::model::types::PodSource;
use crate::store::rollout::RolloutPhase;
use rules::{PARTS, RolloutTimes};

/// The reason of the problem and the event of a set that was rolled back.
pub const REASON_ROLLED_BACK: &str = "RolledBack";

/// The source whose sets are rolled out, and the time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutConfig {
    pub source: PodSource,
    /// The source's path or URL, for messages.
    pub origin: String,
    /// A set that has not started after this time is rolled back.
    pub after: Duration,
}

/// The rollout of one source, with its timers.
#[derive(Debug)]
pub(super) struct Rollout {
    pub(super) config: RolloutConfig,
    pub(super) phase: RolloutPhase,
    /// When the current part of the time began.
    part_began: Instant,
    /// Since when all pods have been up.
    started_since: Option<Instant>,
    /// When to check again if nothing else happens.
    pub(super) next_deadline: Option<Instant>,
}

impl Rollout {
    pub(super) fn new(config: RolloutConfig, phase: RolloutPhase) -> Self {
        let mut rollout =
            Self { config, phase, part_began: Instant::now(), started_since: None, next_deadline: None };
        rollout.begin_part();
        rollout
    }

    /// Enters another phase, or restarts the same one.
    pub(super) fn set_phase(&mut self, phase: RolloutPhase) {
        self.phase = phase;
        self.started_since = None;
        self.begin_part();
    }

    fn begin_part(&mut self) {
        self.part_began = Instant::now();
        self.next_deadline = self.phase.is_open().then_some(self.part_began);
    }

    /// One part is used up.
    pub(super) fn end_part(&mut self) {
        if let RolloutPhase::Progressing { parts_left, .. } = &mut self.phase {
            *parts_left = parts_left.saturating_sub(1);
        }
        self.begin_part();
    }

    /// Restarts the current part of the time: its result would prove nothing.
    pub(super) fn restart_part(&mut self) {
        self.part_began = Instant::now();
        self.next_deadline = Some(self.part_began + self.config.after / u32::from(PARTS));
    }

    /// The elapsed times now; `all_started` is whether all pods are up.
    pub(super) fn times(&mut self, all_started: bool) -> RolloutTimes {
        let now = Instant::now();
        self.started_since = all_started.then(|| self.started_since.unwrap_or(now));
        RolloutTimes {
            after: self.config.after,
            in_part: now - self.part_began,
            all_started: self.started_since.map(|since| now - since),
        }
    }

    /// The problem that `agent status` shows while the last good set runs instead of the source's current
    /// one.
    pub(super) fn problem(&self) -> Option<SourceProblem> {
        let RolloutPhase::RolledBack { why, since, .. } = &self.phase else { return None };
        let after = shown(self.config.after);
        Some(SourceProblem {
            origin: self.config.origin.clone(),
            reason: REASON_ROLLED_BACK.to_owned(),
            message: format!(
                "the newest pod set did not start within {after}, rolled back to the last good one; serve a \
                 corrected set: {why}"
            ),
            since: *since,
            pod: String::new(),
        })
    }
}

pub(super) fn shown(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_millis()) {
        (seconds, 0) if seconds > 0 && seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        (seconds, 0) if seconds > 0 && seconds % 60 == 0 => format!("{}m", seconds / 60),
        (seconds, 0) => format!("{seconds}s"),
        (..) => format!("{}s", duration.as_secs_f32()),
    }
}
