//! The API's state other than pods and objects: changes of the node, and deleted mirror pods.
//!
//! Owns its format in the store.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::api::record::{plain, record};
use crate::model::node_changes::NodeChanges;
use crate::model::types::{PodUid, Timestamp};

/// Its key in the store. Releases that do not know the key leave it unchanged.
pub(super) const NOTES_KEY: &str = "api-notes";

record! {
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Notes as snake_case {
        /// The node's fields that clients have changed.
        pub node: NodeChanges,
        /// By uid of the static pod: the mirror pod that replaced a deleted one.
        pub mirrors: BTreeMap<PodUid, Mirror>,
        /// Namespaces that manifests use and that were deleted nevertheless, with the time: it determines their
        /// new uids.
        pub namespaces: BTreeMap<String, Timestamp>,
    }
}

/// A mirror pod of a static pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    pub uid: String,
    pub created: Timestamp,
}

plain! { Mirror }

impl Notes {
    /// Restores from the store; only the mirrors of desired pods are kept.
    pub(super) fn restore(facts: &BTreeMap<String, String>, wanted: &BTreeSet<PodUid>) -> Self {
        let Some(text) = facts.get(NOTES_KEY) else { return Self::default() };
        let mut notes: Self = serde_json::from_str(text).unwrap_or_else(|error| {
            log::warn!(err:% = error; "Failed to read node changes from the store, discarding them");
            Self::default()
        });
        notes.mirrors.retain(|uid, _| wanted.contains(uid));
        notes
    }

    /// The stored form; `None` when there is nothing to store.
    pub(super) fn to_text(&self) -> Option<String> {
        let is_empty = *self == Self::default();
        (!is_empty).then(|| serde_json::to_string(self).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_without_mirrors_of_pods_that_are_gone() {
        let mirror = Mirror { uid: "m".to_owned(), created: Timestamp::from_secs(7) };
        let mut notes = Notes::default();
        notes.node.unschedulable = true;
        notes.mirrors =
            [("here", &mirror), ("gone", &mirror)].map(|(uid, one)| (PodUid::from(uid), one.clone())).into();
        let facts = BTreeMap::from([(NOTES_KEY.to_owned(), notes.to_text().unwrap())]);
        let back = Notes::restore(&facts, &[PodUid::from("here")].into());
        assert!(back.node.unschedulable);
        assert_eq!(back.mirrors, BTreeMap::from([(PodUid::from("here"), mirror)]));
        assert_eq!(Notes::default().to_text(), None);
        let damaged = BTreeMap::from([(NOTES_KEY.to_owned(), "{".to_owned())]);
        assert_eq!(Notes::restore(&damaged, &BTreeSet::new()), Notes::default());
    }
}
