//! An amount of a resource, absolute or as a part of the capacity, as `evictionHard` writes it.

use crate::model::api::quantity::Quantity;

/// A quantity or a part of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes, inodes, processes.
    Fixed(u64),
    /// Thousandths of a percent of the capacity.
    Share(u64),
}

impl Amount {
    /// Of this capacity.
    #[must_use]
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Fixed(amount) => amount,
            Self::Share(share) => {
                u64::try_from(u128::from(capacity) * u128::from(share) / 100_000).unwrap_or(u64::MAX)
            }
        }
    }

    /// `None` for what switches a threshold off (`0%`, `100%`), and for texts that validation refuses.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let unsigned = |number: i64| u64::try_from(number).ok();
        let Some(percentage) = text.strip_suffix('%') else {
            return unsigned(Quantity::parse(text).ok()?.value()).map(Self::Fixed);
        };
        let share = unsigned(Quantity::parse(percentage).ok()?.milli_value())?;
        (share > 0 && share < 100_000).then_some(Self::Share(share))
    }
}
