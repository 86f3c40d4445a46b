//! The only module that reads the wall clock.
//!
//! Owns the wall clock. Timers use tokio's clock, which a simulation pauses; a manual clock derives its wall
//! time from that same clock, so that a simulated hour takes no time and both clocks agree.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::model::types::Timestamp;

/// Wall-clock time, for all code that needs "now".
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock. It may be wrong and it may jump.
    System,
    /// Starts at a given moment and moves with tokio's (possibly paused) clock.
    Manual {
        /// Wall time at `origin`.
        start: Rc<Cell<Timestamp>>,
        /// Tokio's time when the clock was made.
        origin: tokio::time::Instant,
    },
}

impl Clock {
    /// A clock for simulations; call it inside a runtime with paused time.
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        Self::Manual { start: Rc::new(Cell::new(start)), origin: tokio::time::Instant::now() }
    }

    /// Sets the clock: from now on it continues from this time, for all holders of this clock. The agent must
    /// not set the machine's own clock.
    pub fn set(&self, now: Timestamp) {
        if let Self::Manual { start, origin } = self {
            let passed = i64::try_from(origin.elapsed().as_nanos()).unwrap_or(i64::MAX);
            start.set(Timestamp::from_nanos(now.as_nanos().saturating_sub(passed)));
        }
    }

    /// The machine's uptime, which cannot be set: nothing of this boot has lasted longer, whatever the wall
    /// clock says. A manual clock counts from its creation; [`Duration::MAX`] when the kernel does not report
    /// it.
    #[must_use]
    pub(crate) fn since_boot(&self) -> Duration {
        match self {
            Self::System => uptime().unwrap_or(Duration::MAX),
            Self::Manual { origin, .. } => origin.elapsed(),
        }
    }

    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one home of the wall clock")]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => {
                let since_epoch =
                    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                Timestamp::from_nanos(i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX))
            }
            Self::Manual { start, origin } => start.get().saturating_add(origin.elapsed()),
        }
    }
}

fn uptime() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    Duration::try_from_secs_f64(text.split_whitespace().next()?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn setting_the_clock_does_not_change_time_since_boot() {
        let clock = Clock::manual(Timestamp::from_secs(30));
        let shared = clock.clone();
        tokio::time::advance(Duration::from_secs(5)).await;
        clock.set(Timestamp::from_secs(1_000_000));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(shared.now(), Timestamp::from_secs(1_000_002));
        assert_eq!(shared.since_boot(), Duration::from_secs(7));
        shared.set(Timestamp::from_secs(1));
        assert_eq!(clock.now(), Timestamp::from_secs(1));
    }

    #[test]
    fn the_kernel_says_how_long_the_machine_has_been_up() {
        let up = Clock::System.since_boot();
        assert!(!up.is_zero() && up < Duration::MAX);
    }
}
