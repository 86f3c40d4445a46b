//! The faults of the simulator, and the seeded dice that decide when they happen.
//!
//! Owns the random numbers.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::runtime::{ErrorKind, RuntimeError};

/// Fault switches; all off by default.
#[derive(Clone, Debug)]
pub struct FakeFaults {
    /// Share of calls that fail, 0.0 to 1.0: before the effect, or after it as a lost answer.
    pub error_rate: f64,
    /// Share of calls that take up to `slow_max`, 0.0 to 1.0.
    pub slow_rate: f64,
    pub slow_max: Duration,
    /// CRI names of calls that get no answer: they fail with [`ErrorKind::Timeout`] after `hang_timeout`,
    /// without effect.
    pub hang: BTreeSet<&'static str>,
    /// The caller's own limit on a call, as a real client has one.
    pub hang_timeout: Duration,
    /// The socket has no listener.
    pub unavailable: bool,
}

impl Default for FakeFaults {
    fn default() -> Self {
        Self {
            error_rate: 0.0,
            slow_rate: 0.0,
            slow_max: Duration::from_secs(1),
            hang: BTreeSet::new(),
            hang_timeout: Duration::from_secs(120),
            unavailable: false,
        }
    }
}

/// The drawn faults of one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fate {
    pub delay_before: Duration,
    /// Fails without effect.
    pub error_before: Option<RuntimeError>,
    pub delay_after: Duration,
    /// The call takes effect, and its answer is lost.
    pub error_after: Option<RuntimeError>,
}

impl FakeFaults {
    /// Draws the faults of one call. With all rates at zero no number is drawn, so the effect of enabling
    /// faults later does not depend on how many calls came before.
    pub(super) fn fate(&self, call: &'static str, dice: &mut Dice) -> Fate {
        let mut fate = Fate::default();
        if self.unavailable {
            fate.error_before =
                Some(RuntimeError::new(call, ErrorKind::Unavailable, "connect: connection refused"));
            return fate;
        }
        if self.hang.contains(call) {
            fate.delay_before = self.hang_timeout;
            fate.error_before =
                Some(RuntimeError::new(call, ErrorKind::Timeout, "context deadline exceeded"));
            return fate;
        }
        if self.slow_rate > 0.0 && dice.chance(self.slow_rate) {
            fate.delay_before = dice.up_to(self.slow_max);
            fate.delay_after = dice.up_to(self.slow_max.saturating_sub(fate.delay_before));
        }
        if self.error_rate > 0.0 && dice.chance(self.error_rate) {
            match dice.below(4) {
                0 => fate.error_before = Some(injected(call, ErrorKind::Unavailable)),
                1 => fate.error_before = Some(injected(call, ErrorKind::Refused)),
                2 => fate.error_before = Some(injected(call, ErrorKind::Timeout)),
                _ => fate.error_after = Some(injected(call, ErrorKind::Timeout)),
            }
        }
        fate
    }
}

fn injected(call: &'static str, kind: ErrorKind) -> RuntimeError {
    RuntimeError::new(call, kind, format!("simulated fault: {kind:?}"))
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, good enough, the same on every machine.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// Uniform enough for small bounds.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double")]
    fn chance(&mut self, rate: f64) -> bool {
        ((self.next() >> 11) as f64) / ((1_u64 << 53) as f64) < rate
    }

    fn up_to(&mut self, limit: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_fates_and_no_rates_give_none() {
        let faults = FakeFaults { error_rate: 0.3, slow_rate: 0.3, ..FakeFaults::default() };
        let roll = |seed| {
            let mut dice = Dice::new(seed);
            (0..200).map(|_| faults.fate("Version", &mut dice)).collect::<Vec<_>>()
        };
        assert_eq!(roll(7), roll(7));
        assert_ne!(roll(7), roll(8));
        let failed =
            roll(7).iter().filter(|fate| fate.error_before.is_some() || fate.error_after.is_some()).count();
        assert!((30..90).contains(&failed), "{failed} of 200 at a rate of 0.3");
        assert_eq!(FakeFaults::default().fate("Version", &mut Dice::new(1)), Fate::default());
    }
}
