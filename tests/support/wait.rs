//! Patience with a limit: asks again until the answer is there or the deadline has passed.

use std::time::{Duration, Instant};

/// How often a condition is looked at. Short beside anything that is waited for, long beside what a look costs.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How much slower than a quiet machine one may be that has other work: what is waited for then still comes.
const SLOWER: u32 = 4;

/// Waits until `look` returns `Ok`, and returns its value. After `patience`, which is meant for a quiet machine, and a
/// few times that on a busy one, fails the test with `what` and the last reason `look` gave.
pub fn wait_for<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let patience = patience * SLOWER;
    let deadline = Instant::now() + patience;
    loop {
        match look() {
            Ok(value) => return value,
            Err(reason) => {
                assert!(Instant::now() < deadline, "waited {patience:?} for {what}; last seen: {reason}");
            }
        }
        pause(LOOK_EVERY);
    }
}

/// As [`wait_for`], for a plain yes or no.
pub fn wait_until(what: &str, patience: Duration, mut look: impl FnMut() -> bool) {
    wait_for(what, patience, || if look() { Ok(()) } else { Err("not yet".to_owned()) });
}

/// Fails the test as soon as `holds` gives a reason why it does not, for as long as `duration`.
pub fn stays(what: &str, duration: Duration, mut holds: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + duration;
    while Instant::now() < end {
        if let Err(reason) = holds() {
            panic!("{what} should have stayed so for {duration:?}: {reason}");
        }
        pause(LOOK_EVERY);
    }
}

/// Lets time pass. Tests of real processes have no clock to advance.
#[expect(clippy::disallowed_methods, reason = "another process has to get on; nothing here could wake us")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
