//! Random numbers for delays and times, so that many nodes do not act in the same moment.
//!
//! Owns the only randomness of decisions. Keys and tokens come from elsewhere: these numbers are easy to guess.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::rc::Rc;

/// Shares its numbers with its clones.
#[derive(Clone, Debug)]
pub enum Dice {
    System,
    /// The same numbers for the same seed: SplitMix64 (Steele, Lea, Flood 2014).
    Seeded(Rc<Cell<u64>>),
}

impl Dice {
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::Seeded(Rc::new(Cell::new(seed)))
    }

    pub(crate) fn word(&self) -> u64 {
        match self {
            // The standard library's keys for hash tables are random.
            Self::System => RandomState::new().build_hasher().finish(),
            Self::Seeded(state) => {
                state.set(state.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
                let mut word = state.get();
                word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                word ^ (word >> 31)
            }
        }
    }

    /// From 0 to 1 exclusive.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double")]
    pub(crate) fn unit(&self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From `low` to `high`, both included.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most the span, which is a u32"
    )]
    pub(crate) fn between(&self, low: u32, high: u32) -> u32 {
        let span = high.saturating_sub(low);
        low + ((self.unit() * (f64::from(span) + 1.0)) as u32).min(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_seed_repeat_and_stay_in_their_range() {
        let draw = |dice: &Dice| (0..50).map(|_| dice.unit()).collect::<Vec<_>>();
        let (first, second) = (draw(&Dice::seeded(7)), draw(&Dice::seeded(7)));
        assert_eq!(first, second);
        assert_ne!(first, draw(&Dice::seeded(8)));
        let system = Dice::System;
        assert!(first.into_iter().chain(draw(&system)).all(|unit| (0.0..1.0).contains(&unit)));
        assert_ne!(draw(&system), draw(&system));
        let drawn: Vec<u32> = (0..200).map(|_| system.between(3, 5)).collect();
        assert!([3, 4, 5].iter().all(|value| drawn.contains(value)) && drawn.iter().all(|value| *value < 6));
        assert_eq!(system.between(5, 5), 5);
    }
}
