//! The only module that reads the wall clock.
//!
//! Owns the wall clock. Timers use tokio's clock, which a simulation pauses; a manual clock derives its wall
//! time from that same clock, so that a simulated hour takes no time and both clocks agree.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::watch;

use crate::model::types::Timestamp;
use crate::platform::sys::timer::{ClockTimer, clock_is_synchronized, uptime};

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
        /// How often it was set.
        sets: Rc<watch::Sender<u32>>,
    },
}

/// Waits for times of the wall clock.
pub(crate) struct Alarm {
    clock: Clock,
    /// `None` of a manual clock, and where the kernel has no such timers.
    timer: Option<ClockTimer>,
}

impl Alarm {
    /// Waits for this time, or until the clock is set; without a time only for that. Cancel safe.
    pub(crate) async fn wait_until(&self, time: Option<Timestamp>) {
        if let Some(timer) = &self.timer
            && timer.wait_until(time).await.is_ok()
        {
            return;
        }
        let left = time.map_or(Duration::MAX, |time| time.saturating_since(self.clock.now()));
        let set = async {
            match &self.clock {
                Clock::System => std::future::pending().await,
                Clock::Manual { sets, .. } => drop(sets.subscribe().changed().await),
            }
        };
        tokio::select! {
            () = tokio::time::sleep(left) => {}
            () = set => {}
        }
    }
}

impl Clock {
    /// A clock for simulations; call it inside a runtime with paused time.
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        let origin = tokio::time::Instant::now();
        Self::Manual { start: Rc::new(Cell::new(start)), origin, sets: Rc::default() }
    }

    /// Sets the clock: from now on it continues from this time, for all holders of this clock. The agent must
    /// not set the machine's own clock.
    pub fn set(&self, now: Timestamp) {
        if let Self::Manual { start, origin, sets } = self {
            let passed = i64::try_from(origin.elapsed().as_nanos()).unwrap_or(i64::MAX);
            start.set(Timestamp::from_nanos(now.as_nanos().saturating_sub(passed)));
            sets.send_modify(|sets| *sets += 1);
        }
    }

    /// Needs a running tokio runtime.
    pub(crate) fn alarm(&self) -> Alarm {
        let timer = match self {
            Self::System => ClockTimer::new().ok(),
            Self::Manual { .. } => None,
        };
        Alarm { clock: self.clone(), timer }
    }

    /// Whether something keeps the clock right, as the kernel knows it; a manual one always is.
    #[must_use]
    pub(crate) fn is_synchronized(&self) -> bool {
        matches!(self, Self::Manual { .. }) || clock_is_synchronized()
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
            Self::Manual { start, origin, .. } => start.get().saturating_add(origin.elapsed()),
        }
    }
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

    #[tokio::test(start_paused = true)]
    async fn an_alarm_rings_at_its_time_or_when_the_clock_is_set() {
        let clock = Clock::manual(Timestamp::from_secs(100));
        let alarm = clock.alarm();
        alarm.wait_until(Some(Timestamp::from_secs(160))).await;
        assert_eq!(clock.now(), Timestamp::from_secs(160));
        let sets = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            clock.set(Timestamp::from_secs(1_000));
        };
        tokio::join!(alarm.wait_until(None), sets);
        assert_eq!(clock.now(), Timestamp::from_secs(1_000));
    }

    #[test]
    fn the_kernel_says_how_long_the_machine_has_been_up() {
        let up = Clock::System.since_boot();
        assert!(!up.is_zero() && up < Duration::MAX);
    }
}
