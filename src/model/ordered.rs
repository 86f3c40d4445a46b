//! Ordered maps and sets out of what an iterator gives, and sorting. Owns nothing.
//!
//! `collect()` into a `BTreeMap` sorts a vector first, and the standard library's stable sort is compiled
//! again for every type: some 5 kB each, half a megabyte of the program in all. The collections here are
//! small; inserting one by one is as fast.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// What `collect()` does, without a sort of its own for every type.
pub(crate) trait Ordered: Iterator + Sized {
    /// The map of all pairs; of two with one key the later stays, as with `collect()`.
    fn into_map<K: Ord, V>(self) -> BTreeMap<K, V>
    where
        Self: Iterator<Item = (K, V)>,
    {
        let mut map = BTreeMap::new();
        self.for_each(|(key, value)| {
            map.insert(key, value);
        });
        map
    }

    /// The set of all items; of two equal ones the earlier stays, as with `collect()`.
    fn into_set(self) -> BTreeSet<Self::Item>
    where
        Self::Item: Ord,
    {
        let mut set = BTreeSet::new();
        self.for_each(|item| {
            set.insert(item);
        });
        set
    }
}

impl<I: Iterator> Ordered for I {}

/// What `sort_by()` and its kin do, with one sort of positions for all types.
pub(crate) trait Sortable<T> {
    fn order_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.order_by(|one, other| key(one).cmp(&key(other)));
    }
}

impl<T> Sortable<T> for [T] {
    fn order_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let mut from = sorted(self.len(), &mut |one, other| compare(&self[one], &self[other]));
        // Each position gets the item that belongs there, one cycle of swaps after another.
        for start in 0..from.len() {
            let mut to = start;
            while from[to] != start {
                let next = from[to];
                self.swap(to, next);
                from[to] = to;
                to = next;
            }
            from[to] = to;
        }
    }
}

/// The positions of the items in their order; of equal ones the earlier is first.
fn sorted(length: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..length).collect();
    positions.sort_by(|one, other| compare(*one, *other));
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_pairs_stays_and_the_order_is_the_keys() {
        let pairs = [(2, "b"), (1, "a"), (2, "c")];
        assert_eq!(pairs.into_iter().into_map(), pairs.into_iter().collect::<BTreeMap<_, _>>());
        assert_eq!(pairs.into_iter().into_map().into_iter().collect::<Vec<_>>(), [(1, "a"), (2, "c")]);
    }

    #[test]
    fn order_by_gives_the_order_of_a_stable_sort() {
        for length in 0..40_u32 {
            let mut items: Vec<(u32, u32)> =
                (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 29, at)).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|item| item.0);
            items.order_by_key(|item| item.0);
            assert_eq!(items, expected);
        }
    }

    #[test]
    fn a_set_is_what_collect_would_make_of_it() {
        let items = [3, 1, 2, 3, 1];
        assert_eq!(items.into_iter().into_set(), items.into_iter().collect::<BTreeSet<_>>());
    }
}
