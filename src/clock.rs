//! The one place that asks what time it is.
//!
//! Owns the wall clock. Timers go through tokio's clock, which a simulation pauses; a manual clock derives its wall time
//! from that same clock, so that a simulated hour takes no time and both clocks agree.

use crate::types::Timestamp;

/// Wall-clock time, handed to whatever needs "now".
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock. It may be wrong and it may jump.
    System,
    /// Starts at a given moment and moves with tokio's (possibly paused) clock.
    Manual {
        /// Wall time at `origin`.
        start: Timestamp,
        /// Tokio's time when the clock was made.
        origin: tokio::time::Instant,
    },
}

impl Clock {
    /// A clock for simulations; call it inside a runtime with paused time.
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        Self::Manual { start, origin: tokio::time::Instant::now() }
    }

    /// Now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one home of the wall clock")]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => {
                let since_epoch =
                    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                Timestamp::from_nanos(i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX))
            }
            Self::Manual { start, origin } => start.saturating_add(origin.elapsed()),
        }
    }
}
