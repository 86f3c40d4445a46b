//! Accepts connections, with a limit on their number.
//!
//! Owns the accept loop of all servers.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// `accept` fails when descriptors run out; it would fail again at once.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

pub mod listener;

/// The right to be one of the open connections. It counts until it is dropped.
pub(crate) struct ConnectionSlot {
    _permit: Option<OwnedSemaphorePermit>,
    seat: Option<listener::Seat>,
}

impl ConnectionSlot {
    /// One of any number.
    #[cfg(test)]
    pub(crate) fn unlimited() -> Self {
        Self { _permit: None, seat: None }
    }

    /// Marks the client as authenticated. `false`: too many authenticated connections are open.
    #[must_use]
    pub(crate) fn admit(&self) -> bool {
        self.seat.as_ref().is_none_or(listener::Seat::admit)
    }
}

/// Serves the connections from `accept`, each in a task of its own, and at most `most` of them: more wait in
/// the kernel's queue. Dropping the future ends it and all connections. Needs a `LocalSet`.
///
/// A failing `accept` is logged once, as a failure on `name`, and retried after a second.
pub(crate) async fn serve<S, F>(
    name: &'static str,
    most: usize,
    mut accept: impl AsyncFnMut() -> io::Result<S>,
    mut serve_one: impl FnMut(S, ConnectionSlot) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    let places = Arc::new(Semaphore::new(most));
    let mut connections = JoinSet::new();
    loop {
        // Never closed, so this only waits.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = accepted(name, &mut connections, &mut accept).await;
        connections.spawn_local(serve_one(stream, ConnectionSlot { _permit: Some(place), seat: None }));
    }
}

/// The next connection. Ended ones are reaped meanwhile.
async fn accepted<S>(
    name: &'static str,
    connections: &mut JoinSet<()>,
    accept: &mut impl AsyncFnMut() -> io::Result<S>,
) -> S {
    let mut failing = false;
    loop {
        match while_reaping(connections, accept()).await {
            Ok(stream) => return stream,
            Err(error) => {
                if !failing {
                    log::warn!(socket = name, err:% = error; "Failed to accept a connection");
                }
                failing = true;
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Awaits `waited`, and reaps ended tasks meanwhile: a task keeps its memory until it is joined, and the next
/// connection may never come.
async fn while_reaping<T>(connections: &mut JoinSet<()>, waited: impl Future<Output = T>) -> T {
    let mut waited = pin!(waited);
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            found = &mut waited => return found,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::rc::Rc;

    use super::*;

    /// Connections that are numbers; one that is an error is refused by the kernel.
    async fn run(most: usize, offered: Vec<io::Result<u32>>, until: Duration) -> (Vec<u32>, usize) {
        let mut offered = VecDeque::from(offered);
        let accepted = Rc::new(RefCell::new(Vec::new()));
        let (open, widest) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let accept = async || match offered.pop_front() {
            Some(next) => next,
            None => std::future::pending().await,
        };
        let serving = serve("a test's socket", most, accept, |number, place| {
            let (accepted, open, widest) = (Rc::clone(&accepted), Rc::clone(&open), Rc::clone(&widest));
            async move {
                open.set(open.get() + 1);
                widest.set(widest.get().max(open.get()));
                tokio::time::sleep(Duration::from_secs(10)).await;
                open.set(open.get() - 1);
                accepted.borrow_mut().push(number);
                drop(place);
            }
        });
        let _ = tokio::time::timeout(until, serving).await;
        (accepted.take(), widest.get())
    }

    #[test]
    fn finished_connections_are_reaped_while_waiting() {
        let left = paused(async {
            let mut connections = JoinSet::new();
            for seconds in 1..=3 {
                connections.spawn_local(tokio::time::sleep(Duration::from_secs(seconds)));
            }
            while_reaping(&mut connections, tokio::time::sleep(Duration::from_millis(2500))).await;
            connections.len()
        });
        assert_eq!(left, 1);
    }

    fn paused<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime.expect("a runtime"), test)
    }

    #[test]
    fn all_are_served_but_never_more_at_once_than_allowed() {
        let offered = (0..7).map(Ok).collect();
        let (served, widest) = paused(run(3, offered, Duration::from_secs(35)));
        assert_eq!(served, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(widest, 3);
    }

    #[test]
    fn an_accept_that_fails_is_tried_again_a_second_later() {
        let refused = || Err(io::Error::other("out of descriptors"));
        let offered = || vec![refused(), refused(), Ok(7)];
        let (served, _) = paused(run(3, offered(), Duration::from_millis(12_500)));
        assert_eq!(served, [7]);
        let (served, _) = paused(run(3, offered(), Duration::from_millis(11_500)));
        assert_eq!(served, [] as [u32; 0], "two failures cost two seconds");
    }
}
