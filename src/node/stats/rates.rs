//! CPU rates: a rate needs two readings, and only requests make readings.
//!
//! Owns the last two readings, while requests keep coming. Pure: readings and times in, rates out.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::ordered::Ordered as _;

/// The shortest interval of a rate: less is noise, and for the machine's own CPU time 1 % of a core.
pub(in crate::node) const SHORTEST: Duration = Duration::from_secs(1);
/// A reading older than this gives no current rate.
pub(in crate::node) const LONGEST: Duration = Duration::from_secs(120);

/// CPU time in nanoseconds, by consumer.
pub(in crate::node) type Reading = BTreeMap<String, u64>;

/// The last two readings that are far enough apart.
#[derive(Debug, Default)]
pub(in crate::node) struct Rates {
    newer: Option<(Duration, Reading)>,
    older: Option<(Duration, Reading)>,
}

impl Rates {
    /// How long to wait before a reading gives rates; `None`: read now. Times are those of a monotonic clock.
    #[must_use]
    pub(in crate::node) fn wait(&self, now: Duration) -> Option<Duration> {
        if self.base(now).is_some() {
            return None;
        }
        let age = self.newer.as_ref().map(|(at, _)| now.saturating_sub(*at)).filter(|age| *age <= LONGEST);
        Some(SHORTEST.saturating_sub(age?))
    }

    fn base(&self, now: Duration) -> Option<&(Duration, Reading)> {
        [&self.newer, &self.older].into_iter().flatten().find(|(at, _)| {
            let age = now.saturating_sub(*at);
            (SHORTEST..=LONGEST).contains(&age)
        })
    }

    /// Adds a reading and returns rates. A key that is new, or whose counter has restarted, has no rate yet.
    pub(in crate::node) fn add_reading(&mut self, now: Duration, reading: Reading) -> Reading {
        let rates = self.base(now).map_or_else(Reading::new, |(at, before)| {
            let nanos = now.saturating_sub(*at).as_nanos();
            let rate = |(key, used): (&String, &u64)| {
                let grown = used.checked_sub(*before.get(key)?)?;
                let rate = u128::from(grown) * 1_000_000_000 / nanos.max(1);
                Some((key.clone(), u64::try_from(rate).unwrap_or(u64::MAX)))
            };
            reading.iter().filter_map(rate).into_map()
        });
        if self.newer.as_ref().is_none_or(|(at, _)| now.saturating_sub(*at) >= SHORTEST) {
            self.older = self.newer.replace((now, reading));
        }
        rates
    }

    /// Drops readings that are too old. `true` when nothing is left.
    pub(in crate::node) fn forget(&mut self, now: Duration) -> bool {
        for read in [&mut self.newer, &mut self.older] {
            if read.as_ref().is_some_and(|(at, _)| now.saturating_sub(*at) > LONGEST) {
                *read = None;
            }
        }
        self.newer.is_none() && self.older.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(pairs: &[(&str, u64)]) -> Reading {
        pairs.iter().map(|(key, used)| ((*key).to_owned(), *used)).collect()
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_first_ask_waits_for_a_second_read_and_later_ones_do_not() {
        let mut rates = Rates::default();
        assert_eq!(rates.wait(at(0)), None, "nothing has been read yet: read first");
        assert!(rates.add_reading(at(0), reading(&[("a", 100)])).is_empty());
        assert_eq!(rates.wait(at(0)), Some(SHORTEST));
        assert_eq!(rates.wait(at(400)), Some(at(600)));
        let second = rates.add_reading(at(1000), reading(&[("a", 500_000_100), ("b", 7)]));
        assert_eq!(second, reading(&[("a", 500_000_000)]), "half a core, and nothing of what is new");
        // At once again: the rate covers a little more than the same second, without waiting.
        assert_eq!(rates.wait(at(1100)), None);
        assert_eq!(
            rates.add_reading(at(1100), reading(&[("a", 1_100_000_100)])),
            reading(&[("a", 1_000_000_000)])
        );
        assert_eq!(rates.wait(at(15_000)), None);
    }

    #[test]
    fn counter_reset_has_no_rate_and_stale_readings_are_dropped() {
        let mut rates = Rates::default();
        rates.add_reading(at(0), reading(&[("a", 100)]));
        assert!(rates.add_reading(at(2000), reading(&[("a", 50)])).is_empty(), "a counter that fell");
        let late = at(2000) + LONGEST + at(1);
        assert!(rates.add_reading(late, reading(&[("a", 90)])).is_empty(), "over too long");
        assert!(!rates.forget(late));
        assert!(rates.forget(late + LONGEST + at(1)));
    }
}
