//! Pod lifecycle events: what changed between two relists, and which pods in the runtime are orphans.
//!
//! Owns the difference.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::labels;
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedSandbox};
use crate::model::ordered::Ordered as _;
use crate::model::types::{ContainerId, ContainerName, PodRef, PodUid, SandboxId};

/// Upstream's grace period for running orphans whose containers have no annotation for it.
pub(in crate::pod) const ORPHAN_GRACE_SECONDS: i64 = 1;

/// The state of the runtime at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlegSnapshot {
    pods: BTreeMap<PodUid, PlegPod>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct PlegPod {
    pod: PodRef,
    /// By the runtime's id; sandboxes count as containers.
    records: BTreeMap<String, PlegRecord>,
}

#[derive(Clone, Debug, PartialEq)]
struct PlegRecord {
    state: PlegState,
    /// `None` for a sandbox.
    container: Option<ContainerName>,
    grace_seconds: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlegState {
    Running,
    Exited,
    Unknown,
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlegEventKind {
    ContainerStarted,
    /// The container or sandbox ended.
    ContainerDied,
    /// The runtime removed the record.
    ContainerRemoved,
    /// The new state is neither running nor exited. Upstream creates this event and does not deliver it.
    ContainerChanged,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlegEvent {
    pub pod: PodUid,
    pub kind: PlegEventKind,
    /// The container's or sandbox's id.
    pub id: String,
}

/// A pod with the agent's labels in the runtime that no source wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OrphanPod {
    pub pod: PodRef,
    /// All its containers, live or not.
    pub containers: Vec<(ContainerId, ContainerName)>,
    /// All its sandboxes.
    pub sandboxes: Vec<SandboxId>,
    /// The longest grace period in the annotations of its containers.
    pub grace_seconds: i64,
}

impl PlegSnapshot {
    /// From the runtime's lists. Records without a pod uid are ignored: the agent did not create them.
    #[must_use]
    pub(crate) fn new(sandboxes: &[ObservedSandbox], containers: &[ObservedContainer]) -> Self {
        let mut snapshot = Self::default();
        for sandbox in sandboxes {
            let state = if sandbox.ready { PlegState::Running } else { PlegState::Exited };
            let record = PlegRecord { state, container: None, grace_seconds: None };
            snapshot.insert(&sandbox.pod, sandbox.id.as_str(), record);
        }
        for container in containers {
            let state = match container.state {
                ContainerStateKind::Running => PlegState::Running,
                ContainerStateKind::Exited => PlegState::Exited,
                ContainerStateKind::Created | ContainerStateKind::Unknown => PlegState::Unknown,
            };
            let grace = container.annotations.get(labels::POD_TERMINATION_GRACE_PERIOD);
            let grace_seconds = grace.and_then(|seconds| seconds.parse().ok());
            let record = PlegRecord { state, container: Some(container.name.clone()), grace_seconds };
            snapshot.insert(&container.pod, container.id.as_str(), record);
        }
        snapshot
    }

    fn insert(&mut self, pod: &PodRef, id: &str, record: PlegRecord) {
        if pod.uid.is_empty() {
            return;
        }
        let entry = self.pods.entry(pod.uid.clone()).or_default();
        entry.pod = pod.clone();
        entry.records.insert(id.to_owned(), record);
    }

    /// Every pod of which the runtime has a record.
    pub(crate) fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys()
    }

    fn states(&self, uid: &PodUid) -> BTreeMap<&str, PlegState> {
        let records = self.pods.get(uid).map(|pod| &pod.records);
        records.into_iter().flatten().map(|(id, record)| (id.as_str(), record.state)).into_map()
    }
}

/// The changes between two relists, ordered by pod and id.
#[must_use]
pub(crate) fn diff(old: &PlegSnapshot, new: &PlegSnapshot) -> Vec<PlegEvent> {
    let mut events = Vec::new();
    let uids: BTreeSet<&PodUid> = old.uids().chain(new.uids()).into_set();
    for uid in uids {
        let (before, after) = (old.states(uid), new.states(uid));
        let ids: BTreeSet<&str> = before.keys().chain(after.keys()).copied().into_set();
        for id in ids {
            let state =
                |states: &BTreeMap<&str, PlegState>| states.get(id).copied().unwrap_or(PlegState::Absent);
            for kind in event_kinds(state(&before), state(&after)) {
                events.push(PlegEvent { pod: uid.clone(), kind: *kind, id: id.to_owned() });
            }
        }
    }
    events
}

/// The pods whose workers must sync again.
#[must_use]
pub(in crate::pod) fn pods_to_wake(events: &[PlegEvent]) -> BTreeSet<PodUid> {
    let delivered = events.iter().filter(|event| event.kind != PlegEventKind::ContainerChanged);
    delivered.map(|event| event.pod.clone()).into_set()
}

fn event_kinds(old: PlegState, new: PlegState) -> &'static [PlegEventKind] {
    use PlegEventKind::{ContainerChanged, ContainerDied, ContainerRemoved, ContainerStarted};
    match (old, new) {
        (PlegState::Running, PlegState::Running)
        | (PlegState::Exited, PlegState::Exited)
        | (PlegState::Unknown, PlegState::Unknown)
        | (PlegState::Absent, PlegState::Absent) => &[],
        (_, PlegState::Running) => &[ContainerStarted],
        (_, PlegState::Exited) => &[ContainerDied],
        (_, PlegState::Unknown) => &[ContainerChanged],
        (PlegState::Exited, PlegState::Absent) => &[ContainerRemoved],
        (_, PlegState::Absent) => &[ContainerDied, ContainerRemoved],
    }
}

/// Pods with the agent's labels in the runtime that are not in `known`: neither wanted nor being taken down.
#[must_use]
pub(crate) fn orphans(known: &BTreeSet<PodUid>, snapshot: &PlegSnapshot) -> Vec<OrphanPod> {
    let unknown = snapshot.pods.iter().filter(|(uid, _)| !known.contains(*uid));
    unknown
        .map(|(_, found)| {
            let mut orphan = OrphanPod {
                pod: found.pod.clone(),
                containers: Vec::new(),
                sandboxes: Vec::new(),
                grace_seconds: ORPHAN_GRACE_SECONDS,
            };
            for (id, record) in &found.records {
                match &record.container {
                    Some(name) => orphan.containers.push((ContainerId::from(id.as_str()), name.clone())),
                    None => orphan.sandboxes.push(SandboxId::from(id.as_str())),
                }
                orphan.grace_seconds = orphan.grace_seconds.max(record.grace_seconds.unwrap_or(0));
            }
            orphan
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(uid: &str, id: &str, state: ContainerStateKind) -> ObservedContainer {
        ObservedContainer {
            id: id.into(),
            pod: PodRef { uid: uid.into(), ..Default::default() },
            name: "web".into(),
            state,
            ..Default::default()
        }
    }

    fn snapshot(containers: &[ObservedContainer]) -> PlegSnapshot {
        PlegSnapshot::new(&[], containers)
    }

    #[test]
    fn every_change_of_state_gives_upstreams_events() {
        use ContainerStateKind::{Created, Exited, Running, Unknown};
        use PlegEventKind::{ContainerChanged, ContainerDied, ContainerRemoved, ContainerStarted};
        let cases: [(Option<ContainerStateKind>, Option<ContainerStateKind>, &[PlegEventKind]); 12] = [
            (None, Some(Running), &[ContainerStarted]),
            (None, Some(Exited), &[ContainerDied]),
            (None, Some(Created), &[ContainerChanged]),
            (Some(Created), Some(Running), &[ContainerStarted]),
            (Some(Created), Some(Unknown), &[]),
            (Some(Running), Some(Exited), &[ContainerDied]),
            (Some(Running), Some(Unknown), &[ContainerChanged]),
            (Some(Running), Some(Running), &[]),
            (Some(Exited), Some(Running), &[ContainerStarted]),
            (Some(Exited), None, &[ContainerRemoved]),
            (Some(Running), None, &[ContainerDied, ContainerRemoved]),
            (Some(Unknown), None, &[ContainerDied, ContainerRemoved]),
        ];
        for (old, new, expected) in cases {
            let look = |state: Option<ContainerStateKind>| match state {
                Some(state) => snapshot(&[container("u", "c", state)]),
                None => PlegSnapshot::default(),
            };
            let events = diff(&look(old), &look(new));
            let kinds: Vec<PlegEventKind> = events.iter().map(|event| event.kind).collect();
            assert_eq!(kinds, expected, "{old:?} -> {new:?}");
            let delivered = expected.iter().any(|kind| *kind != ContainerChanged);
            assert_eq!(pods_to_wake(&events).contains(&PodUid::from("u")), delivered);
        }
    }

    #[test]
    fn a_sandbox_counts_as_a_container() {
        let mut sandbox = ObservedSandbox { id: "s".into(), ready: true, ..Default::default() };
        sandbox.pod.uid = "u".into();
        let before = PlegSnapshot::new(std::slice::from_ref(&sandbox), &[]);
        sandbox.ready = false;
        let events = diff(&before, &PlegSnapshot::new(&[sandbox], &[]));
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].kind, PlegEventKind::ContainerDied);
    }

    #[test]
    fn orphan_keeps_its_grace_and_pods_without_uid_are_ignored() {
        let mut orphan = container("gone", "c1", ContainerStateKind::Running);
        orphan.annotations.insert(labels::POD_TERMINATION_GRACE_PERIOD.into(), "45".into());
        let mut foreign = container("", "c3", ContainerStateKind::Running);
        foreign.name = "foreign".into();
        let look = snapshot(&[orphan, container("kept", "c2", ContainerStateKind::Running), foreign]);
        let found = orphans(&BTreeSet::from([PodUid::from("kept")]), &look);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pod.uid, PodUid::from("gone"));
        assert_eq!(found[0].containers, [(ContainerId::from("c1"), ContainerName::from("web"))]);
        assert_eq!(found[0].grace_seconds, 45);
    }
}
