//! Turns for work that many clients request at once.
//!
//! Owns the queue.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// One piece of work per iteration of the event loop: however many wait, sockets, timers and all other tasks
/// are served between two of them.
pub(crate) struct Turns(Arc<Semaphore>);

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Turns {
    /// Waits for a turn, first come first served. A turn lasts until the caller next awaits: a caller that
    /// then waits for its client does not block others. Needs a `LocalSet`.
    pub(crate) async fn next(&self) {
        // Never closed, so this only waits.
        let Ok(turn) = Arc::clone(&self.0).acquire_owned().await else { return };
        super::spawn("end of a turn", async move {
            // tokio polls its sockets and timers before it wakes what has yielded.
            tokio::task::yield_now().await;
            drop(turn);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;

    #[test]
    fn others_run_between_any_two_turns() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let (turns, over) = (Rc::new(Turns::default()), Rc::new(Cell::new(false)));
            let log = Rc::new(RefCell::new(Vec::new()));
            let heavy: Vec<_> = (0..200)
                .map(|_| {
                    let (turns, log) = (Rc::clone(&turns), Rc::clone(&log));
                    super::super::spawn("heavy", async move {
                        turns.next().await;
                        log.borrow_mut().push("heavy");
                    })
                })
                .collect();
            let (probing, probes) = (Rc::clone(&over), Rc::clone(&log));
            let probe = super::super::spawn("probe", async move {
                while !probing.get() {
                    probes.borrow_mut().push("probe");
                    tokio::task::yield_now().await;
                }
            });
            for task in heavy {
                task.await.unwrap();
            }
            over.set(true);
            probe.await.unwrap();
            let log = log.take();
            let together = log.windows(2).filter(|pair| *pair == ["heavy", "heavy"]).count();
            assert_eq!((together, log.iter().filter(|what| **what == "heavy").count()), (0, 200));
        });
    }
}
