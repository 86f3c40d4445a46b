//! JSON that watches send, shared by all of them, and how much of it is kept for slow clients alone.
//!
//! Owns the count.

use std::cell::Cell;
use std::rc::Rc;

use serde_json::Value;

/// Bytes that nothing but unsent events keeps in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retained(Rc<Cell<usize>>);

impl Retained {
    /// How many they are.
    #[must_use]
    pub(in crate::serve) fn bytes(&self) -> usize {
        self.0.get()
    }
}

/// An object or a line as JSON.
#[derive(Debug)]
pub(crate) struct Written {
    json: Box<[u8]>,
    /// It counts as retained.
    counts: Cell<bool>,
    retained: Retained,
}

impl Written {
    /// The current state of an object. It is needed anyway and counts only once
    /// [`supersede`](Self::supersede) was called.
    #[must_use]
    pub(crate) fn current(json: Box<[u8]>, retained: &Retained) -> Rc<Self> {
        Rc::new(Self { json, counts: Cell::new(false), retained: retained.clone() })
    }

    /// What only clients wait for. It counts until it is dropped.
    #[must_use]
    pub(in crate::serve) fn unsent(json: Box<[u8]>, retained: &Retained) -> Rc<Self> {
        let written = Self::current(json, retained);
        written.supersede();
        written
    }

    /// It is no object's current state any more: whatever still holds it is a client that has yet to take it.
    pub(in crate::serve) fn supersede(&self) {
        if !self.counts.replace(true) {
            self.retained.0.set(self.retained.0.get() + self.json.len());
        }
    }

    #[must_use]
    pub(crate) fn json(&self) -> &[u8] {
        &self.json
    }

    #[must_use]
    pub(crate) fn parse(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or_default()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if self.counts.get() {
            self.retained.0.set(self.retained.0.get().saturating_sub(self.json.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_superseded_and_unsent_buffers_count_until_dropped() {
        let retained = Retained::default();
        let state = Written::current(Box::from(*b"{}"), &retained);
        let waiting = Rc::clone(&state);
        assert_eq!(retained.bytes(), 0);
        state.supersede();
        state.supersede();
        drop(state);
        assert_eq!(retained.bytes(), 2);
        let line = Written::unsent(Box::from(*b"1234"), &retained);
        assert_eq!(retained.bytes(), 6);
        drop((waiting, line));
        assert_eq!(retained.bytes(), 0);
    }
}
