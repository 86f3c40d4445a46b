//! How many calls are under way at once: a runtime that gets too many requests at the same time answers none
//! in time.
//!
//! Owns the bounds.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Calls of one kind under way at once. More would not be answered sooner: runtimes take turns at their locks
/// and the disk.
const CALLS: usize = 64;

/// The kind of a call. Calls wait only for others of their kind, so that creating a thousand sandboxes does
/// not delay a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Whether the runtime is there at all (`Version`): never waits.
    Health,
    /// Lists and statuses, the runtime's own included: every new pod asks for it.
    Queries,
    /// Makes, starts, removes.
    Changes,
    /// Commands in containers, which run for as long as their authors intended.
    Commands,
}

pub(super) struct CallLimits {
    queries: Semaphore,
    changes: Semaphore,
    commands: Semaphore,
}

impl CallLimits {
    pub(super) fn new() -> Self {
        Self {
            queries: Semaphore::new(CALLS),
            changes: Semaphore::new(CALLS),
            commands: Semaphore::new(CALLS),
        }
    }

    /// Waits for a turn, which lasts as long as the permit. First come, first served.
    pub(super) async fn acquire(&self, lane: CallKind) -> Option<SemaphorePermit<'_>> {
        let semaphore = match lane {
            CallKind::Health => return None,
            CallKind::Queries => &self.queries,
            CallKind::Changes => &self.changes,
            CallKind::Commands => &self.commands,
        };
        Some(semaphore.acquire().await.expect("never closed"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn call_kinds_are_limited_separately() {
        let limits = CallLimits::new();
        let mut taken = Vec::new();
        for _ in 0..CALLS {
            taken.push(limits.acquire(CallKind::Changes).await);
        }
        let soon = Duration::from_millis(1);
        assert!(tokio::time::timeout(soon, limits.acquire(CallKind::Changes)).await.is_err());
        for other in [CallKind::Health, CallKind::Queries, CallKind::Commands] {
            assert!(tokio::time::timeout(soon, limits.acquire(other)).await.is_ok(), "{other:?}");
        }
        taken.pop();
        assert!(tokio::time::timeout(soon, limits.acquire(CallKind::Changes)).await.is_ok());
    }
}
