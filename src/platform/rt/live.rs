//! A configuration that is replaced while its readers run.

use std::cell::RefCell;
use std::rc::Rc;

/// The value in force. Clones share it.
pub struct Live<T>(Rc<RefCell<Rc<T>>>);

impl<T> Live<T> {
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(Rc::new(RefCell::new(Rc::new(value))))
    }

    /// The value now; a later one does not change what was returned.
    #[must_use]
    pub(crate) fn get(&self) -> Rc<T> {
        Rc::clone(&self.0.borrow())
    }

    pub(crate) fn set(&self, value: T) {
        *self.0.borrow_mut() = Rc::new(value);
    }
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T: Default> Default for Live<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}
