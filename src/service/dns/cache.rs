//! Answers of other servers, for as long as they hold.
//!
//! Owns a small, bounded list.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::VecDeque;
use std::time::Duration;

use super::message::{Found, Query};
use crate::model::types::Timestamp;

const MAX_ENTRIES: usize = 64;
/// A larger answer is rare, and is not kept.
const MAX_BYTES: usize = 1232;
/// The longest time for an answer, and for one that there is nothing.
const LONGEST: u32 = 300;
const LONGEST_NEGATIVE: u32 = 30;
const NAME_ERROR: u16 = 3;

#[derive(Debug, Default)]
pub(crate) struct Cache(VecDeque<Cached>);

#[derive(Debug)]
struct Cached {
    key: (Vec<u8>, bool),
    bytes: Vec<u8>,
    ttls: Vec<usize>,
    since: Timestamp,
    seconds: u32,
}

impl Cache {
    /// The answer to a query, if it is known.
    #[must_use]
    pub(crate) fn find(&self, query: &Query, now: Timestamp) -> Option<Vec<u8>> {
        let key = query.key();
        let known = self.0.iter().find(|known| known.key == key)?;
        // A clock that was set back makes no answer older.
        let age = now.saturating_since(known.since);
        if age >= Duration::from_secs(u64::from(known.seconds)) || now < known.since {
            return None;
        }
        Some(query.pass_on(&known.bytes, &known.ttls, u32::try_from(age.as_secs()).unwrap_or(u32::MAX)))
    }

    pub(crate) fn keep(&mut self, query: &Query, bytes: &[u8], found: &Found, now: Timestamp) {
        let key = query.key();
        self.0.retain(|known| known.key != key);
        let is_empty = found.rcode == NAME_ERROR || found.records.is_empty();
        let longest = if is_empty { LONGEST_NEGATIVE } else { LONGEST };
        let seconds = found.ttl.unwrap_or(0).min(longest);
        let is_final = matches!(found.rcode, 0 | NAME_ERROR) && !found.is_cut;
        if !is_final || seconds == 0 || bytes.len() > MAX_BYTES {
            return;
        }
        if self.0.len() == MAX_ENTRIES {
            self.0.pop_front();
        }
        let (bytes, ttls) = (bytes.to_vec(), found.ttls.clone());
        self.0.push_back(Cached { key, bytes, ttls, since: now, seconds });
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::message::{A, read_answer};
    use super::*;

    fn answer(query: &Query, ttl: u32) -> Vec<u8> {
        let mut bytes = query.to_bytes();
        bytes[2] |= 0x80;
        bytes[7] = 1;
        // No additional records: the one of EDNS is cut off.
        bytes[11] = 0;
        bytes.truncate(bytes.len() - 11);
        bytes.extend([0xc0, 12, 0, 1, 0, 1]);
        bytes.extend(ttl.to_be_bytes());
        bytes.extend([0, 4, 192, 0, 2, 7]);
        bytes
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn answers_are_found_until_they_end_and_grow_older() {
        let query = Query::new(7, "example.com", A);
        let bytes = answer(&query, 20);
        let found = read_answer(&bytes).unwrap();
        let mut cache = Cache::default();
        cache.keep(&query, &bytes, &found, at(100));
        let again = Query::new(9, "EXAMPLE.com", A);
        let cached = cache.find(&again, at(105)).unwrap();
        assert!(again.is_answered_by(&cached));
        assert_eq!(read_answer(&cached).unwrap().ttl, Some(15));
        assert_eq!(cache.find(&again, at(120)), None);
        assert_eq!(cache.find(&again, at(99)), None, "the clock was set back");
        assert_eq!(cache.find(&Query::new(9, "example.org", A), at(105)), None);
        let bytes = answer(&query, 1_000_000);
        cache.keep(&query, &bytes, &read_answer(&bytes).unwrap(), at(100));
        assert!(cache.find(&query, at(399)).is_some() && cache.find(&query, at(400)).is_none());
        cache.keep(&query, &answer(&query, 0), &read_answer(&answer(&query, 0)).unwrap(), at(100));
        assert_eq!(cache.find(&query, at(100)), None, "it must not be kept");
    }

    #[test]
    fn names_that_read_the_same_are_not_the_same() {
        use super::super::message::read_query;

        let asked = |name: &str, kind| read_query(&Query::new(7, name, kind).to_bytes()).unwrap();
        let one = asked("a!b.com", A);
        let bytes = answer(&one, 20);
        let mut cache = Cache::default();
        cache.keep(&one, &bytes, &read_answer(&bytes).unwrap(), at(100));
        assert_eq!(one.name, asked("a#b.com", A).name);
        assert_eq!(cache.find(&asked("a#b.com", A), at(100)), None);
        assert!(cache.find(&asked("A!B.com", A), at(100)).is_some());
        // 65 and 97 are letters of both cases.
        assert_ne!(asked("a.com", 65).key(), asked("a.com", 97).key());
    }

    proptest! {
        #[test]
        fn no_number_of_answers_makes_it_grow(names in proptest::collection::vec("[a-z]{1,3}", 0..300)) {
            let mut cache = Cache::default();
            for name in &names {
                let query = Query::new(1, name, A);
                let bytes = answer(&query, 60);
                cache.keep(&query, &bytes, &read_answer(&bytes).unwrap(), at(0));
                prop_assert!(cache.0.len() <= MAX_ENTRIES);
            }
            if let Some(name) = names.last() {
                prop_assert!(cache.find(&Query::new(2, name, A), at(1)).is_some());
            }
        }
    }
}
