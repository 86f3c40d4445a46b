//! Effects of calls whose caller is gone: a real runtime continues with a request even when its caller no
//! longer waits.
//!
//! Owns the pending effects.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::world::World;
use crate::model::types::Timestamp;

type Effect = Box<dyn FnOnce(&mut World, Timestamp)>;

/// Pending effects; clones share them.
#[derive(Clone, Default)]
pub(super) struct Late {
    pub(super) on: Rc<Cell<bool>>,
    effects: Rc<RefCell<Vec<(Timestamp, Effect)>>>,
}

impl Late {
    /// Carries out the effects that are due, in order.
    pub(super) fn settle(&self, world: &mut World, now: Timestamp) {
        let mut effects = self.effects.borrow_mut();
        while let Some(position) = effects.iter().position(|(due, _)| *due <= now) {
            let (due, effect) = effects.remove(position);
            world.settle(due);
            world.is_late = true;
            effect(world, due);
            world.is_late = false;
        }
    }

    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.effects.borrow().first().map(|(due, _)| *due)
    }

    /// Drops all pending effects.
    pub(super) fn clear(&self) {
        self.effects.borrow_mut().clear();
    }

    fn push(&self, due: Timestamp, effect: Effect) {
        let mut effects = self.effects.borrow_mut();
        let position = effects.partition_point(|(other, _)| *other <= due);
        effects.insert(position, (due, effect));
    }
}

/// A call that waits for its effect; dropping it makes the effect a late one.
pub(super) struct UnderWay<F, T>
where
    F: FnOnce(&mut World, Timestamp) -> T + 'static,
{
    effect: Option<F>,
    due: Timestamp,
    late: Option<Late>,
}

impl<F, T> UnderWay<F, T>
where
    F: FnOnce(&mut World, Timestamp) -> T + 'static,
{
    /// Without `late` the call takes effect only if it is awaited.
    pub(super) fn new(effect: F, due: Timestamp, late: Option<&Late>) -> Self {
        let late = late.filter(|late| late.on.get()).cloned();
        Self { effect: Some(effect), due, late }
    }

    /// The caller is still there: takes the effect out.
    pub(super) fn go_through(mut self) -> F {
        self.effect.take().expect("taken here alone, and this consumes the call")
    }
}

impl<F, T> Drop for UnderWay<F, T>
where
    F: FnOnce(&mut World, Timestamp) -> T + 'static,
{
    fn drop(&mut self) {
        if let (Some(effect), Some(late)) = (self.effect.take(), &self.late) {
            late.push(self.due, Box::new(move |world, now| drop(effect(world, now))));
        }
    }
}
