//! Sets of completion indexes, as a Job's status writes them: `0-3,7`.
//!
//! Pure: what it returns depends on its arguments alone.

use std::fmt;

/// Intervals in order, with a gap between each two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<(i64, i64)>);

impl Indexes {
    /// Those below `bound`; what cannot be read is left out.
    pub(super) fn parse(text: &str, bound: i64) -> Self {
        let mut indexes = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<i64>(), last.parse::<i64>()) else { continue };
            let last = last.min(bound - 1);
            if first >= 0 && first <= last {
                indexes.add(first, last);
            }
        }
        indexes
    }

    pub(super) fn insert(&mut self, index: i64) {
        self.add(index, index);
    }

    fn add(&mut self, first: i64, last: i64) {
        let start = self.0.partition_point(|known| known.1 + 1 < first);
        let end = self.0.partition_point(|known| known.0 <= last + 1);
        let merged = self.0[start..end]
            .iter()
            .fold((first, last), |sum, known| (sum.0.min(known.0), sum.1.max(known.1)));
        self.0.splice(start..end, [merged]);
    }

    pub(super) fn has(&self, index: i64) -> bool {
        let at = self.0.partition_point(|known| known.1 < index);
        self.0.get(at).is_some_and(|known| known.0 <= index)
    }

    pub(super) fn total(&self) -> i64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// How many of these are in `other`.
    pub(super) fn shared(&self, other: &Self) -> i64 {
        let within = |(first, last): &(i64, i64)| {
            other.0.iter().map(|known| (known.1.min(*last) - known.0.max(*first) + 1).max(0)).sum::<i64>()
        };
        self.0.iter().map(within).sum()
    }

    /// The first indexes below `bound` that are not in here.
    pub(super) fn missing(&self, bound: i64) -> impl Iterator<Item = i64> {
        (0..bound).filter(|index| !self.has(*index))
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.0.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            match last - first {
                0 => write!(formatter, "{comma}{first}")?,
                1 => write!(formatter, "{comma}{first},{last}")?,
                _ => write!(formatter, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn indexes_read_and_write_as_upstreams() {
        for (text, written, total) in [
            ("", "", 0),
            ("0-3,7", "0-3,7", 5),
            ("1,2", "1,2", 2),
            ("0,1,2", "0-2", 3),
            ("4-9", "4-7", 4),
            ("9", "", 0),
            ("x,2,-1,3-2", "2", 1),
        ] {
            let indexes = Indexes::parse(text, 8);
            assert_eq!((indexes.to_string().as_str(), indexes.total()), (written, total), "{text}");
        }
        let some = Indexes::parse("0-3,7", 10);
        assert_eq!(some.missing(9).collect::<Vec<_>>(), [4, 5, 6, 8]);
        assert_eq!(some.shared(&Indexes::parse("2-8", 10)), 3);
    }

    proptest! {
        #[test]
        fn indexes_are_a_set(inserted in proptest::collection::vec(0_i64..40, 0..60)) {
            let mut indexes = Indexes::default();
            let mut model = BTreeSet::new();
            for index in inserted {
                indexes.insert(index);
                model.insert(index);
            }
            prop_assert_eq!(indexes.total(), i64::try_from(model.len()).unwrap());
            prop_assert!((0..41).all(|index| indexes.has(index) == model.contains(&index)));
            prop_assert_eq!(Indexes::parse(&indexes.to_string(), 100), indexes);
        }
    }
}
