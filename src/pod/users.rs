//! Id ranges for pods with a user namespace (`hostUsers: false`): the node's share, cut into equal ranges,
//! one per pod.
//!
//! Owns the arithmetic, the allocation, and the format of a pod's `userns` file.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::model::ordered::Ordered as _;
use crate::model::runtime_config::IdRange;
use crate::model::types::PodUid;

/// `userNamespaces.idsPerPod` unless configured.
pub(crate) const DEFAULT_IDS_PER_POD: u32 = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIds {
    first: u32,
    ranges: u32,
    ids_per_pod: u32,
}

/// The share cannot be used for pods. The words are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeIdsError {
    #[error("kubelet user namespace length {0} is not a multiple of {DEFAULT_IDS_PER_POD}")]
    IdsPerPod(u32),
    #[error("kubelet user assigned ID {first} is not a multiple of {ids_per_pod}")]
    First { first: u32, ids_per_pod: u32 },
    /// The share contains the node's own root.
    #[error("kubelet user assigned ID {first} must be greater or equal to {ids_per_pod}")]
    Low { first: u32, ids_per_pod: u32 },
    #[error("kubelet user assigned IDs length {length} is not a multiple of {ids_per_pod}")]
    Length { length: u32, ids_per_pod: u32 },
    #[error("kubelet user assigned IDs are not enough to support {0} pods")]
    TooFew(u32),
    #[error("error parsing line {0:?}: it must be one line with a name, a first ID and a length")]
    SubordinateIds(String),
}

impl Default for NodeIds {
    /// All ids but the first 65536.
    fn default() -> Self {
        Self {
            first: DEFAULT_IDS_PER_POD,
            ranges: u32::MAX / DEFAULT_IDS_PER_POD,
            ids_per_pod: DEFAULT_IDS_PER_POD,
        }
    }
}

impl NodeIds {
    /// The share of `length` ids from `first` on.
    pub(crate) fn new(
        first: u32,
        length: u32,
        ids_per_pod: u32,
        max_pods: u32,
    ) -> Result<Self, NodeIdsError> {
        if ids_per_pod == 0 || !ids_per_pod.is_multiple_of(DEFAULT_IDS_PER_POD) {
            return Err(NodeIdsError::IdsPerPod(ids_per_pod));
        }
        if !first.is_multiple_of(ids_per_pod) {
            return Err(NodeIdsError::First { first, ids_per_pod });
        }
        if first < ids_per_pod {
            return Err(NodeIdsError::Low { first, ids_per_pod });
        }
        if !length.is_multiple_of(ids_per_pod) {
            return Err(NodeIdsError::Length { length, ids_per_pod });
        }
        let ranges = length / ids_per_pod;
        if ranges < max_pods {
            return Err(NodeIdsError::TooFew(max_pods));
        }
        Ok(Self { first, ranges, ids_per_pod })
    }

    /// Every id except the node's own first ones; the default without configuration.
    pub(crate) fn all(ids_per_pod: u32, max_pods: u32) -> Result<Self, NodeIdsError> {
        Self::new(ids_per_pod, ids_per_pod.wrapping_neg(), ids_per_pod, max_pods)
    }

    /// Parses the output of `getsubids`, for example `0: kubelet 65536 2147483648`.
    pub(super) fn from_getsubids(
        output: &str,
        ids_per_pod: u32,
        max_pods: u32,
    ) -> Result<Self, NodeIdsError> {
        let words: Vec<&str> = output.split_ascii_whitespace().collect();
        let number = |word: &str| word.parse::<u32>().ok();
        match words.as_slice() {
            [_, _, first, length] if output.trim_matches('\n').lines().count() == 1 => {
                number(first).zip(number(length))
            }
            _ => None,
        }
        .ok_or_else(|| NodeIdsError::SubordinateIds(output.to_owned()))
        .and_then(|(first, length)| Self::new(first, length, ids_per_pod, max_pods))
    }

    fn range(self, index: u32) -> IdRange {
        IdRange { host: self.first + index * self.ids_per_pod, length: self.ids_per_pod }
    }
}

/// A range cannot be allocated or recorded. The words are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RangeError {
    #[error("could not find an empty slot to allocate a user namespace")]
    Exhausted,
    #[error("wrong user namespace length {0}")]
    Length(u32),
    /// A recorded range begins inside another one.
    #[error("wrong user namespace offset specified {0}")]
    Offset(u32),
    #[error("id {0} is out of range")]
    OutOfRange(u32),
    #[error("range picked for pod {0:?} already taken")]
    Taken(String),
    #[error("invalid user namespace mappings file: {0}")]
    File(&'static str),
}

/// The ranges of pods: no two are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct UserRanges {
    ids: NodeIds,
    taken: BTreeMap<PodUid, u32>,
}

impl UserRanges {
    #[must_use]
    pub(super) fn new(ids: NodeIds) -> Self {
        Self { ids, taken: BTreeMap::new() }
    }

    #[must_use]
    pub(super) fn of(&self, uid: &PodUid) -> Option<IdRange> {
        self.taken.get(uid).map(|index| self.ids.range(*index))
    }

    #[must_use]
    pub(super) fn is_full(&self) -> bool {
        u32::try_from(self.taken.len()).is_ok_and(|taken| taken >= self.ids.ranges)
    }

    /// Gives a pod that has none the first free range.
    pub(super) fn allocate(&mut self, uid: &PodUid) -> Result<IdRange, RangeError> {
        let taken: BTreeSet<u32> = self.taken.values().copied().into_set();
        let index = (0..self.ids.ranges).find(|index| !taken.contains(index)).ok_or(RangeError::Exhausted)?;
        self.taken.insert(uid.clone(), index);
        Ok(self.ids.range(index))
    }

    /// Notes the range an earlier process gave a pod.
    pub(super) fn record(&mut self, uid: &PodUid, range: IdRange) -> Result<(), RangeError> {
        let ids = self.ids;
        if range.length != ids.ids_per_pod {
            return Err(RangeError::Length(range.length));
        }
        if !range.host.is_multiple_of(ids.ids_per_pod) {
            return Err(RangeError::Offset(range.host));
        }
        let index = range
            .host
            .checked_sub(ids.first)
            .map(|distance| distance / ids.ids_per_pod)
            .filter(|index| *index < ids.ranges)
            .ok_or(RangeError::OutOfRange(range.host))?;
        if self.taken.iter().any(|(other, taken)| *taken == index && other != uid) {
            return Err(RangeError::Taken(uid.to_string()));
        }
        self.taken.insert(uid.clone(), index);
        Ok(())
    }

    /// The pod needs no range any more.
    pub(super) fn release(&mut self, uid: &PodUid) {
        self.taken.remove(uid);
    }

    /// Releases the ranges of all pods but these.
    pub(super) fn retain(&mut self, pods: &BTreeSet<PodUid>) {
        self.taken.retain(|uid, _| pods.contains(uid));
    }
}

/// The content of a pod's `userns` file.
#[must_use]
pub(super) fn format_mappings(range: IdRange) -> String {
    let mapping = json!([{"hostId": range.host, "containerId": 0, "length": range.length}]);
    json!({"uidMappings": mapping, "gidMappings": mapping}).to_string()
}

/// Reads a pod's `userns` file.
///
/// # Errors
/// It is not one range from root on, the same for users and groups.
pub(super) fn parse_mappings(text: &str) -> Result<IdRange, RangeError> {
    let value: Value = serde_json::from_str(text).map_err(|_| RangeError::File("it is not JSON"))?;
    let (users, groups) = (&value["uidMappings"], &value["gidMappings"]);
    let [mapping] = users.as_array().map(Vec::as_slice).unwrap_or_default() else {
        return Err(RangeError::File("no more than one mapping allowed"));
    };
    if users != groups {
        return Err(RangeError::File("GID and UID mappings should be identical"));
    }
    if mapping["containerId"].as_u64() != Some(0) {
        return Err(RangeError::File("UID 0 must be mapped"));
    }
    let number = |field: &str| mapping[field].as_u64().and_then(|number| u32::try_from(number).ok());
    number("hostId")
        .zip(number("length"))
        .map(|(host, length)| IdRange { host, length })
        .ok_or(RangeError::File("hostId and length must be 32-bit numbers"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNIT: u32 = DEFAULT_IDS_PER_POD;

    fn uid(number: usize) -> PodUid {
        PodUid::from(format!("u{number}"))
    }

    #[test]
    fn a_share_must_be_cut_without_rest_leave_out_root_and_suffice() {
        let cases = [
            ((UNIT, 110 * UNIT, UNIT, 110), ""),
            ((UNIT, 109 * UNIT, UNIT, 110), "kubelet user assigned IDs are not enough to support 110 pods"),
            ((0, 110 * UNIT, UNIT, 1), "kubelet user assigned ID 0 must be greater or equal to 65536"),
            ((UNIT + 1, UNIT, UNIT, 1), "kubelet user assigned ID 65537 is not a multiple of 65536"),
            ((UNIT, UNIT + 1, UNIT, 1), "kubelet user assigned IDs length 65537 is not a multiple of 65536"),
            ((UNIT, UNIT, 1000, 1), "kubelet user namespace length 1000 is not a multiple of 65536"),
            ((UNIT, UNIT, 0, 1), "kubelet user namespace length 0 is not a multiple of 65536"),
        ];
        for ((first, length, ids_per_pod, max_pods), expected) in cases {
            let made = NodeIds::new(first, length, ids_per_pod, max_pods);
            assert_eq!(made.map_or_else(|error| error.to_string(), |_| String::new()), expected);
        }
        assert_eq!(NodeIds::all(UNIT, 110), Ok(NodeIds::default()), "2^32 - 65536 ids are 65535 ranges");
        assert_eq!(NodeIds::all(2 * UNIT, 32_767).unwrap().ranges, 32_767);
        assert_eq!(NodeIds::all(2 * UNIT, 32_768), Err(NodeIdsError::TooFew(32_768)));
    }

    #[test]
    fn getsubids_prints_one_line() {
        let read = |output: &str| NodeIds::from_getsubids(output, UNIT, 1);
        assert_eq!(read("0: kubelet 65536 2147483648\n"), NodeIds::new(UNIT, 1 << 31, UNIT, 1));
        for output in
            ["", "0: kubelet 65536", "0: kubelet x 65536\n", "0: k 65536 65536\n1: k 131072 65536\n"]
        {
            assert_eq!(read(output), Err(NodeIdsError::SubordinateIds(output.to_owned())));
        }
        assert_eq!(
            read("0: kubelet 100000 65536\n"),
            Err(NodeIdsError::First { first: 100_000, ids_per_pod: UNIT })
        );
    }

    #[test]
    fn ranges_are_given_once_until_there_are_none_and_come_back() {
        let mut ranges = UserRanges::new(NodeIds::new(UNIT, 2 * UNIT, UNIT, 2).unwrap());
        assert_eq!(ranges.allocate(&uid(0)), Ok(IdRange { host: UNIT, length: UNIT }));
        assert_eq!(ranges.allocate(&uid(1)), Ok(IdRange { host: 2 * UNIT, length: UNIT }));
        assert!(ranges.is_full());
        assert_eq!(
            ranges.allocate(&uid(2)).unwrap_err().to_string(),
            "could not find an empty slot to allocate a user namespace"
        );
        ranges.release(&uid(0));
        assert_eq!(ranges.allocate(&uid(2)).unwrap().host, UNIT);
        ranges.retain(&[uid(2)].into());
        assert_eq!((ranges.of(&uid(1)), ranges.is_full()), (None, false));
    }

    #[test]
    fn what_an_earlier_process_gave_is_kept_unless_it_does_not_fit() {
        let mut ranges = UserRanges::new(NodeIds::new(2 * UNIT, 2 * UNIT, UNIT, 2).unwrap());
        let range = |host, length| IdRange { host, length };
        assert_eq!(ranges.record(&uid(0), range(3 * UNIT, UNIT)), Ok(()));
        assert_eq!(ranges.record(&uid(0), range(3 * UNIT, UNIT)), Ok(()), "again");
        for (host, length, expected) in [
            (2 * UNIT, 2 * UNIT, RangeError::Length(2 * UNIT)),
            (2 * UNIT + 5, UNIT, RangeError::Offset(2 * UNIT + 5)),
            (UNIT, UNIT, RangeError::OutOfRange(UNIT)),
            (4 * UNIT, UNIT, RangeError::OutOfRange(4 * UNIT)),
            (3 * UNIT, UNIT, RangeError::Taken("u1".to_owned())),
        ] {
            assert_eq!(ranges.record(&uid(1), range(host, length)), Err(expected));
        }
        assert_eq!(ranges.allocate(&uid(1)), Ok(range(2 * UNIT, UNIT)), "the other one");
    }

    #[test]
    fn the_file_is_the_kubelets() {
        let range = IdRange { host: UNIT, length: UNIT };
        let text = format_mappings(range);
        let mapping = json!([{"hostId": 65536, "containerId": 0, "length": 65536}]);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value, json!({"uidMappings": mapping, "gidMappings": mapping}));
        assert_eq!(parse_mappings(&text), Ok(range));
        let one = r#"{"hostId":65536,"containerId":0,"length":65536}"#;
        let inner = r#"{"hostId":65536,"containerId":1,"length":65536}"#;
        for (users, groups, expected) in [
            (String::new(), String::new(), "no more than one mapping allowed"),
            (format!("{one},{one}"), format!("{one},{one}"), "no more than one mapping allowed"),
            (one.to_owned(), inner.to_owned(), "GID and UID mappings should be identical"),
            (inner.to_owned(), inner.to_owned(), "UID 0 must be mapped"),
        ] {
            let text = format!(r#"{{"uidMappings":[{users}],"gidMappings":[{groups}]}}"#);
            assert_eq!(parse_mappings(&text), Err(RangeError::File(expected)), "{text}");
        }
        assert_eq!(parse_mappings("{"), Err(RangeError::File("it is not JSON")));
    }

    proptest! {
        /// After any sequence of allocations, releases and restarts: no two pods share an id, none
        /// has root's.
        #[test]
        fn no_two_pods_share_an_id(steps in proptest::collection::vec((0_usize..12, 0_u8..3), 0..80)) {
            let ids = NodeIds::new(3 * UNIT, 8 * UNIT, UNIT, 8).unwrap();
            let mut ranges = UserRanges::new(ids);
            for (number, step) in steps {
                match step {
                    0 if ranges.of(&uid(number)).is_none() => {
                        prop_assert_eq!(ranges.allocate(&uid(number)).is_err(), ranges.is_full() && ranges.of(&uid(number)).is_none());
                    }
                    1 => ranges.release(&uid(number)),
                    2 => {
                        let mut again = UserRanges::new(ids);
                        for pod in 0..12 {
                            if let Some(range) = ranges.of(&uid(pod)) {
                                prop_assert_eq!(again.record(&uid(pod), parse_mappings(&format_mappings(range)).unwrap()), Ok(()));
                            }
                        }
                        ranges = again;
                    }
                    _ => {}
                }
                let mut hosts: Vec<u32> = (0..12).filter_map(|pod| ranges.of(&uid(pod))).map(|range| range.host).collect();
                prop_assert!(hosts.iter().all(|host| (3 * UNIT..11 * UNIT).contains(host)));
                let before = hosts.len();
                hosts.sort_unstable();
                hosts.dedup();
                prop_assert_eq!(hosts.len(), before);
            }
        }
    }
}
