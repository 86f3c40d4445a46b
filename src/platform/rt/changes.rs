//! Waiting for the first of several counters to change.
//!
//! Owns nothing.

use tokio::sync::watch;

/// Wakes when something may have changed. Combines several sources, each a counter.
pub(crate) struct Changes(pub Vec<watch::Receiver<u64>>);

impl Changes {
    /// Whether something may have changed since the last call of [`next`](Self::next), or since creation.
    #[must_use]
    pub(crate) fn has_changed(&self) -> bool {
        self.0.iter().any(|source| source.has_changed().unwrap_or(false))
    }

    /// Waits for the next change since the last call. A closed source causes no further wake-ups.
    pub(crate) async fn next(&mut self) {
        let mut waits: Vec<_> = self.0.iter_mut().map(|source| Box::pin(source.changed())).collect();
        std::future::poll_fn(|context| {
            let woken = waits
                .iter_mut()
                .any(|wait| matches!(wait.as_mut().poll(context), std::task::Poll::Ready(Ok(()))));
            if woken { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
}
