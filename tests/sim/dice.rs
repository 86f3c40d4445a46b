//! Seeded random numbers for scripts: SplitMix64 (Steele, Lea, Flood 2014), the same on every machine.

use std::time::Duration;

/// One stream of numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Equal seeds give equal streams.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// From 0 to `bound` exclusive.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        let position = self
            .below(u64::try_from(list.len()).expect("a list in memory has fewer entries than u64 counts"));
        &list[usize::try_from(position).expect("below the length of a list")]
    }

    /// Up to `limit`, in milliseconds; short ones are as likely as long ones.
    pub fn up_to(&mut self, limit: Duration) -> Duration {
        let most = u64::try_from(limit.as_millis()).expect("simulations are shorter than that");
        let most = if self.one_in(2) { most / 20 } else { most };
        Duration::from_millis(self.below(most + 1))
    }
}
