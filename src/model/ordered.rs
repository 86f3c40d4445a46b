//! Ordered maps and sets out of what an iterator gives. Owns nothing.
//!
//! `collect()` into a `BTreeMap` sorts a vector first, and the standard library's stable sort is compiled
//! again for every type: some 5 kB each, half a megabyte of the program in all. The collections here are
//! small; inserting one by one is as fast.

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
    fn a_set_is_what_collect_would_make_of_it() {
        let items = [3, 1, 2, 3, 1];
        assert_eq!(items.into_iter().into_set(), items.into_iter().collect::<BTreeSet<_>>());
    }
}
