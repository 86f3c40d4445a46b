//! Restarts of containers that a user requested.
//!
//! Owns the instances concerned. Nothing is stored: a request that the agent did not begin before it ended is
//! lost, and the container keeps running.

use std::collections::BTreeSet;

use crate::model::observed::{ContainerStateKind, ObservedPod};
use crate::model::types::{ContainerId, ContainerName};

/// Requests of one pod.
#[derive(Default)]
pub(super) struct Restarts {
    requested: BTreeSet<ContainerName>,
    instances: BTreeSet<ContainerId>,
}

impl Restarts {
    pub(super) fn request(&mut self, containers: Vec<ContainerName>) {
        self.requested.extend(containers);
    }

    /// The instances to replace now. A request is done when its instance has ended.
    pub(super) fn due(&mut self, observed: &ObservedPod) -> BTreeSet<ContainerId> {
        let records = &observed.containers;
        let runs = |id: &ContainerId| {
            records.iter().any(|record| record.id == *id && record.state == ContainerStateKind::Running)
        };
        self.instances.retain(runs);
        // Newest first.
        let newest = |name: &ContainerName| records.iter().find(|record| record.name == *name);
        let named = self.requested.iter().filter_map(newest).map(|record| record.id.clone());
        self.instances.extend(named);
        self.requested.clear();
        self.instances.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::observed::ObservedContainer;

    fn seen(records: &[(&str, &str, ContainerStateKind)]) -> ObservedPod {
        let record = |(name, id, state): &(&str, &str, ContainerStateKind)| ObservedContainer {
            name: (*name).into(),
            id: (*id).into(),
            state: *state,
            ..ObservedContainer::default()
        };
        ObservedPod { containers: records.iter().map(record).collect(), ..ObservedPod::default() }
    }

    #[test]
    fn request_names_the_newest_instance_until_it_has_ended() {
        use ContainerStateKind::{Exited, Running};
        let ids = |due: BTreeSet<ContainerId>| due.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut restarts = Restarts::default();
        let before = seen(&[("a", "a-1", Running), ("a", "a-0", Exited), ("b", "b-0", Exited)]);
        assert!(restarts.due(&before).is_empty());
        restarts.request(vec!["a".into(), "b".into()]);
        assert_eq!(ids(restarts.due(&before)), ["a-1", "b-0"]);
        // The stop failed: it is tried again. An instance that ended already is not replaced again.
        assert_eq!(ids(restarts.due(&before)), ["a-1"]);
        let after = seen(&[("a", "a-2", Running), ("a", "a-1", Exited)]);
        assert!(restarts.due(&after).is_empty());
    }
}
