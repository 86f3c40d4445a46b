//! Timers of the wall clock, and whether that clock is right.
//!
//! Owns the descriptor.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::libc;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::reactor::Polled;
use crate::model::types::Timestamp;

/// Nothing is waited for but a change of the clock: the kernel's last second, in 2262.
const FAR: Duration = Duration::from_secs(9_223_372_036);

/// A timer that follows the wall clock, also through suspension, and ends early when the clock is set.
pub(crate) struct ClockTimer {
    timer: TimerFd,
    polled: Polled,
}

impl ClockTimer {
    /// Needs a running tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let timer =
            TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        let copy: OwnedFd = std::os::fd::AsFd::as_fd(&timer).try_clone_to_owned()?;
        Ok(Self { timer, polled: Polled::readable(copy)? })
    }

    /// Waits for this time, or until the clock is set. Cancel safe: the next call sets the timer.
    pub(crate) async fn wait_until(&self, time: Option<Timestamp>) -> io::Result<()> {
        let nanos =
            time.map_or(FAR, |time| Duration::from_nanos(u64::try_from(time.as_nanos()).unwrap_or(1)));
        // Zero would disarm the timer.
        let at = TimeSpec::from_duration(nanos.clamp(Duration::from_nanos(1), FAR));
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        self.timer.set(Expiration::OneShot(at), flags)?;
        self.polled
            .read_with(|fd| match nix::unistd::read(fd, &mut [0; 8]) {
                // The clock was set.
                Ok(_) | Err(nix::errno::Errno::ECANCELED) => Ok(()),
                Err(error) => Err(error.into()),
            })
            .await
    }
}

/// Whether something such as NTP keeps the clock right, as the kernel knows it.
#[must_use]
pub(crate) fn clock_is_synchronized() -> bool {
    // SAFETY: all-zero is a valid value of this structure of integers.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the call; zero modes change nothing.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    result >= 0 && result != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0
}

/// How long the machine has been up, its sleep included. Without a file to read: it is asked at each status of a pod.
pub(crate) fn uptime() -> Option<Duration> {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::clock::Clock;

    #[test]
    fn the_timer_ends_at_its_time_of_the_wall_clock() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = ClockTimer::new().unwrap();
            let at = Clock::System.now().saturating_add(Duration::from_millis(30));
            timer.wait_until(Some(at)).await.unwrap();
            assert!(Clock::System.now() >= at);
            timer.wait_until(Some(Timestamp::from_secs(1))).await.unwrap();
            let never = tokio::time::timeout(Duration::from_millis(20), timer.wait_until(None));
            assert!(never.await.is_err());
        });
        // The answer depends on the machine; the call must not fail.
        let _ = clock_is_synchronized();
    }
}
