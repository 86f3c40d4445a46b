//! Exponential back-off.

use std::time::Duration;

use crate::model::types::Timestamp;

/// One container's crash-loop (or one image's pull) back-off. It is stored, so that neither a restart of the
/// agent nor a power cut turns a crash loop into a busy loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// The wait before the next restart, from the end of the last run.
    pub delay: Duration,
    /// When the entry was last set or doubled.
    pub updated: Timestamp,
}

/// First and longest delay of a back-off that doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOffLimits {
    pub initial: Duration,
    pub max: Duration,
}

impl Default for BackOffLimits {
    /// Upstream's 10 s doubling to 5 minutes.
    fn default() -> Self {
        Self { initial: Duration::from_secs(10), max: Duration::from_secs(300) }
    }
}

impl BackOffLimits {
    /// The delay after `last`; the first one after `None`.
    #[must_use]
    pub(crate) fn after(self, last: Option<Duration>) -> Duration {
        last.map_or(self.initial, |last| last.saturating_mul(2)).min(self.max)
    }
}

/// Delays between attempts that fail in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    limits: BackOffLimits,
    last: Option<Duration>,
}

impl Retry {
    /// The first delay will be `initial`, the longest `max`.
    #[must_use]
    pub(crate) const fn new(initial: Duration, max: Duration) -> Self {
        Self { limits: BackOffLimits { initial, max }, last: None }
    }

    /// The delay before the next attempt, twice the one before.
    pub(crate) fn delay(&mut self) -> Duration {
        let delay = self.limits.after(self.last);
        self.last = Some(delay);
        delay
    }

    /// The same, longer by the share `unit` of itself: many nodes that lost the same server do not come back at once.
    pub(crate) fn delay_with(&mut self, unit: f64) -> Duration {
        self.delay().mul_f64(1.0 + unit.clamp(0.0, 1.0))
    }

    /// An attempt succeeded: the next delay is the first one.
    pub(crate) fn reset(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_share_makes_a_delay_longer() {
        let mut retry = Retry::new(Duration::from_secs(2), Duration::from_secs(4));
        assert_eq!(retry.delay_with(0.0), Duration::from_secs(2));
        assert_eq!(retry.delay_with(0.5), Duration::from_secs(6));
        assert_eq!(retry.delay_with(9.0), Duration::from_secs(8), "at most twice the delay");
    }

    #[test]
    fn delays_double_to_the_longest_and_start_again() {
        let mut retry = Retry::new(Duration::from_secs(1), Duration::from_secs(5));
        let seconds: Vec<u64> = (0..5).map(|_| retry.delay().as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 5, 5]);
        retry.reset();
        assert_eq!(retry.delay().as_secs(), 1);
        let limits = BackOffLimits { initial: Duration::from_secs(20), max: Duration::from_secs(5) };
        assert_eq!(limits.after(None).as_secs(), 5, "never longer than the longest");
    }
}
