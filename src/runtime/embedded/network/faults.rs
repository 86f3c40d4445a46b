//! Places where a test can stop the agent as `kill -9` would: nothing after the place happens, no cleanup
//! either.

/// Stopped by a test; never seen outside of tests.
#[derive(Debug, thiserror::Error)]
#[error("stopped before: {0}")]
pub(crate) struct Stopped(pub &'static str);

#[cfg(not(test))]
mod switch {
    use super::Stopped;

    /// Never fails outside of tests.
    #[allow(clippy::unnecessary_wraps, reason = "it can fail in tests")]
    pub(crate) fn step(_: &'static str) -> Result<(), Stopped> {
        Ok(())
    }

    /// What another thread inherits: nothing outside of tests.
    pub(crate) struct Carried;

    /// For a thread that continues the work.
    pub(crate) fn carry() -> Carried {
        Carried
    }

    impl Carried {
        /// Called in that thread.
        #[expect(clippy::unused_self, reason = "in tests it sets what is to fail in that thread")]
        pub(crate) fn enter(&self) {}
    }
}

pub(crate) use switch::*;

#[cfg(test)]
mod switch {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::Stopped;

    thread_local! {
        static LEFT: RefCell<Option<Arc<AtomicUsize>>> = const { RefCell::new(None) };
    }

    pub(crate) fn step(name: &'static str) -> Result<(), Stopped> {
        LEFT.with_borrow(|left| match left {
            Some(left) if left.fetch_sub(1, SeqCst) == 0 => {
                // Every step after this place fails, too.
                left.store(0, SeqCst);
                Err(Stopped(name))
            }
            _ => Ok(()),
        })
    }

    pub(crate) struct Carried(Option<Arc<AtomicUsize>>);

    pub(crate) fn carry() -> Carried {
        Carried(LEFT.with_borrow(Clone::clone))
    }

    impl Carried {
        pub(crate) fn enter(&self) {
            LEFT.replace(self.0.clone());
        }
    }

    /// Makes step number `after` of this thread, and all later ones, fail. `None` switches that off.
    pub(in crate::runtime) fn stop_after(after: Option<usize>) {
        LEFT.replace(after.map(|after| Arc::new(AtomicUsize::new(after))));
    }
}
