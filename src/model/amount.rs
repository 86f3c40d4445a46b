//! An amount of a resource, absolute or as a fraction of the capacity, as in `evictionHard`.

use crate::model::api::quantity::Quantity;

/// A quantity or a fraction of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes, inodes, processes.
    Fixed(u64),
    /// Thousandths of a percent of the capacity.
    Share(u64),
}

impl Amount {
    /// The absolute amount for this capacity.
    #[must_use]
    pub(crate) fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Fixed(amount) => amount,
            Self::Share(share) => {
                u64::try_from(u128::from(capacity) * u128::from(share) / 100_000).unwrap_or(u64::MAX)
            }
        }
    }

    /// `None` for values that disable a threshold (`0%`, `100%`), and for invalid text, which validation
    /// refuses.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let unsigned = |number: i64| u64::try_from(number).ok();
        let Some(percentage) = text.strip_suffix('%') else {
            return unsigned(Quantity::parse(text).ok()?.value()).map(Self::Fixed);
        };
        let share = unsigned(Quantity::parse(percentage).ok()?.milli_value())?;
        (share > 0 && share < 100_000).then_some(Self::Share(share))
    }
}
