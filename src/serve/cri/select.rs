//! Selection of objects by a request: short ids, and the filters of lists.
//!
//! Owns the matching. Pure.

use std::collections::BTreeMap;

/// Why an id matches no object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Unfound {
    None,
    /// It is the beginning of several.
    Several,
}

/// The one of `ids` that equals `wanted` or has it as a prefix.
pub(in crate::serve) fn one<'a>(
    wanted: &str,
    ids: impl Iterator<Item = &'a str>,
) -> Result<&'a str, Unfound> {
    if wanted.is_empty() {
        return Err(Unfound::None);
    }
    let mut several = false;
    let mut found = None;
    for id in ids.filter(|id| id.starts_with(wanted)) {
        if id == wanted {
            return Ok(id);
        }
        several |= found.replace(id).is_some();
    }
    if several { Err(Unfound::Several) } else { found.ok_or(Unfound::None) }
}

/// Whether an object matches a list's filter: by id prefix and labels.
#[must_use]
pub(in crate::serve) fn matches_filter(
    id: &str,
    labels: &BTreeMap<String, String>,
    id_filter: &str,
    selector: &BTreeMap<String, String>,
) -> bool {
    id.starts_with(id_filter) && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_ids_name_one_or_nothing() {
        let ids = ["aab", "aac", "b", "bb"];
        let one = |wanted| super::one(wanted, ids.into_iter());
        assert_eq!(one("aab"), Ok("aab"));
        assert_eq!(one("bb"), Ok("bb"));
        assert_eq!(one("aa"), Err(Unfound::Several));
        assert_eq!(one("b"), Ok("b"), "a whole id is meant, though another begins with it");
        assert_eq!((one("x"), one("")), (Err(Unfound::None), Err(Unfound::None)));
    }

    proptest! {
        #[test]
        fn a_short_id_names_one_exactly_when_no_other_begins_with_it(
            ids in proptest::collection::btree_set("[ab]{6}", 1..12), pick in any::<prop::sample::Index>(), length in 1..7_usize,
        ) {
            let ids: Vec<String> = ids.into_iter().collect();
            let id = &ids[pick.index(ids.len())];
            let short = &id[..length];
            let others = ids.iter().filter(|other| other.starts_with(short)).count();
            let found = one(short, ids.iter().map(String::as_str));
            prop_assert_eq!(found, if others == 1 { Ok(id.as_str()) } else { Err(Unfound::Several) });
        }

        #[test]
        fn filter_matches_all_labels_and_the_id_prefix(
            labels in proptest::collection::btree_map("[ab]", "[xy]", 0..3),
            selector in proptest::collection::btree_map("[ab]", "[xy]", 0..3),
            id in "[ab]{4}", prefix in "[ab]{0,3}",
        ) {
            let kept: Vec<_> = selector.iter().filter(|(key, value)| labels.get(*key) == Some(*value)).collect();
            let expected = kept.len() == selector.len() && id[..prefix.len()] == prefix;
            prop_assert_eq!(matches_filter(&id, &labels, &prefix, &selector), expected);
        }
    }
}
