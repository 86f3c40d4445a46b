//! The counter of resource versions: the component that changes an object takes the next one, in the step in
//! which readers begin to see the change.
//!
//! Owns the newest version of this process.

use std::cell::Cell;
use std::rc::Rc;

use super::types::Timestamp;

/// Shared by all that stamp.
#[derive(Clone, Debug)]
pub struct Revisions {
    first: u64,
    newest: Rc<Cell<u64>>,
}

impl Revisions {
    /// Versions begin with the time of the start in microseconds, so that they grow over restarts however many
    /// changes there were.
    #[must_use]
    pub fn since(start: Timestamp) -> Self {
        let first = u64::try_from(start.as_nanos() / 1_000).unwrap_or_default().max(1);
        Self { first, newest: Rc::new(Cell::new(first)) }
    }

    /// The version before all changes of this process.
    #[must_use]
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    #[must_use]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.get()
    }

    /// The version of a change that is visible from now on. The one before it is free: for the deletion of the
    /// object that had the name before.
    pub(crate) fn next(&self) -> u64 {
        self.newest.set(self.newest.get() + 2);
        self.newest.get()
    }
}
