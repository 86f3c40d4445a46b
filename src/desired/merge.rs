//! Merges whole sets from sources and returns the changes (upstream: `PodConfig`'s snapshot-and-updates
//! mode).
//!
//! Owns the comparison. Invariant: a source that has not answered loses nothing.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::model::api::pod::{Pod, StringMap};
use crate::model::ordered::Sortable as _;
use crate::model::provenance::{LOCAL_ANNOTATIONS, mark_first_seen};
use crate::model::source::SourcePod;
use crate::model::types::{PodFullName, PodRef, PodSource, PodUid, Timestamp};

/// The desired pods of one source.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SourceState {
    /// It has given a valid answer since the process started. Until then `pods` are those from the store.
    pub seen: bool,
    pub pods: BTreeMap<PodUid, SourcePod>,
    /// The findings of its last valid answer.
    pub findings: Vec<SetFinding>,
}

/// All desired pods of this node, by source.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DesiredSet {
    /// The sources that were registered or stored.
    pub sources: BTreeMap<PodSource, SourceState>,
}

impl DesiredSet {
    /// Every desired pod, ordered by source and uid.
    pub(super) fn pods(&self) -> impl Iterator<Item = (PodSource, &SourcePod)> {
        self.sources.iter().flat_map(|(source, state)| state.pods.values().map(|pod| (*source, pod)))
    }

    /// True when each of `registered` has answered since the start.
    #[must_use]
    pub(super) fn seen_all_sources(&self, registered: &[PodSource]) -> bool {
        registered.iter().all(|source| self.sources.get(source).is_some_and(|state| state.seen))
    }
}

impl DesiredSet {
    /// Makes these changes in the set of a source.
    pub(crate) fn apply(&mut self, source: PodSource, changes: &[PodChange]) {
        let state = self.sources.entry(source).or_default();
        state.seen = true;
        for PodChange { op, pod } in changes {
            let uid = &pod.pod.metadata.uid;
            match op {
                PodOp::Remove => drop(state.pods.remove(uid)),
                _ => drop(state.pods.insert(uid.clone(), pod.clone())),
            }
        }
    }
}

/// A change of the desired set, in upstream's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PodOp {
    /// No longer desired: terminate it with its grace period.
    Remove,
    Add,
    /// Changed in place.
    Update,
    Delete,
    /// Only its status, or its field managers, differ from the known pod.
    Reconcile,
}

impl fmt::Display for PodOp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Remove => "REMOVE",
            Self::Add => "ADD",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Reconcile => "RECONCILE",
        })
    }
}

/// One change. For `Remove` the pod is the previous version.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodChange {
    pub op: PodOp,
    pub pod: SourcePod,
}

/// A problem of the sets that the user must fix; reason `FailedValidation`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SetFinding {
    pub pod: PodRef,
    /// The file or URL that defines it.
    pub origin: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Merged {
    pub desired: DesiredSet,
    /// From the old set to the new one, in upstream's order: remove, add, update, delete, reconcile; within
    /// one by uid.
    pub changes: Vec<PodChange>,
    /// The source answered for the first time since the start (logged even when nothing changed).
    pub first_seen: bool,
    /// All findings of the new set, complete each time.
    pub findings: Vec<SetFinding>,
}

/// Merges the pods of `source` into the desired set. `None` is no valid answer (`SourceAnswer::Unknown`):
/// nothing changes. Pods come as sources send them; source and first observation are recorded here.
#[must_use]
pub(crate) fn merge(
    desired: &DesiredSet,
    source: PodSource,
    answer: Option<Vec<SourcePod>>,
    now: Timestamp,
) -> Merged {
    let mut merged = Merged { desired: desired.clone(), ..Merged::default() };
    let Some(wanted) = answer else {
        merged.findings = findings(&merged.desired);
        return merged;
    };
    let (wanted, ignored) = admit(wanted, source);
    let state = merged.desired.sources.entry(source).or_default();
    state.findings = ignored;
    merged.first_seen = !state.seen;
    let old = std::mem::take(&mut state.pods);
    state.seen = true;
    for (uid, gone) in &old {
        if !wanted.contains_key(uid) {
            merged.changes.push(PodChange { op: PodOp::Remove, pod: gone.clone() });
        }
    }
    for (uid, new) in wanted {
        let (op, pod) = match old.get(&uid) {
            None => (Some(PodOp::Add), mark(new, source, now)),
            Some(known) => update(known, new, source),
        };
        if let Some(op) = op {
            merged.changes.push(PodChange { op, pod: pod.clone() });
        }
        state.pods.insert(uid, pod);
    }
    // Stable: the order by uid stays within one kind of operation.
    merged.changes.order_by_key(|change| change.op);
    merged.findings = findings(&merged.desired);
    merged
}

/// The changes that single pods of one source make: those that are put, and those that go. The others stay.
#[must_use]
pub(crate) fn merge_some(
    desired: &DesiredSet,
    source: PodSource,
    put: Vec<SourcePod>,
    gone: &[PodUid],
    now: Timestamp,
) -> Vec<PodChange> {
    let known = desired.sources.get(&source).map(|state| &state.pods);
    let find = |uid: &PodUid| known.and_then(|pods| pods.get(uid));
    let removed = gone.iter().filter_map(find).cloned();
    let mut changes: Vec<PodChange> = removed.map(|pod| PodChange { op: PodOp::Remove, pod }).collect();
    for new in put {
        let (op, pod) = match find(&new.pod.metadata.uid) {
            None => (Some(PodOp::Add), mark(new, source, now)),
            Some(known) => update(known, new, source),
        };
        changes.extend(op.map(|op| PodChange { op, pod }));
    }
    changes.order_by_key(|change| change.op);
    changes
}

/// The findings of all sources' sets.
pub(crate) fn findings(desired: &DesiredSet) -> Vec<SetFinding> {
    let ignored = desired.sources.values().flat_map(|state| state.findings.iter().cloned());
    ignored.chain(cross_source_findings(desired)).collect()
}

/// Drops pods that conflict with others of the same source. Which one is kept depends on their origins alone,
/// not on the order in which a source happened to read them.
fn admit(mut wanted: Vec<SourcePod>, source: PodSource) -> (BTreeMap<PodUid, SourcePod>, Vec<SetFinding>) {
    wanted.order_by(|left, right| sort_key(left).cmp(&sort_key(right)));
    let mut names: BTreeMap<PodFullName, String> = BTreeMap::new();
    let mut admitted: BTreeMap<PodUid, SourcePod> = BTreeMap::new();
    let mut findings = Vec::new();
    for pod in wanted {
        let who = pod.pod.pod_ref();
        let name = who.full_name();
        let message = if let Some(first) = names.get(&name) {
            Some(format!(
                "Error validating pod {who} from {source} due to duplicate pod name \"{name}\", ignoring ({first} is used)"
            ))
        } else {
            admitted.get(&who.uid).map(|first| {
                format!(
                    "Error validating pod {who} from {source} due to duplicate uid \"{}\", ignoring (used \
                     by pod {} of {}); set a unique metadata.uid, or none",
                    who.uid,
                    first.pod.pod_ref().full_name(),
                    first.origin
                )
            })
        };
        if let Some(message) = message {
            findings.push(SetFinding { pod: who, origin: pod.origin, message });
        } else {
            names.insert(name, pod.origin.clone());
            admitted.insert(who.uid, pod);
        }
    }
    (admitted, findings)
}

fn sort_key(pod: &SourcePod) -> (&str, &str, &str, &PodUid) {
    let metadata = &pod.pod.metadata;
    (&pod.origin, &metadata.namespace, &metadata.name, &metadata.uid)
}

/// Pods with the same full name from two sources: the workers run them one after another, which is rarely
/// intended.
fn cross_source_findings(desired: &DesiredSet) -> Vec<SetFinding> {
    let mut first: BTreeMap<PodFullName, (PodSource, &SourcePod)> = BTreeMap::new();
    let mut findings = Vec::new();
    for (source, pod) in desired.pods() {
        let who = pod.pod.pod_ref();
        let name = who.full_name();
        match first.get(&name) {
            None => {
                first.insert(name, (source, pod));
            }
            Some((other, earlier)) => findings.push(SetFinding {
                message: format!(
                    "pod name \"{name}\" is used by both {other} ({}) and {source} ({}); only one can run \
                     at a time, the other waits until the first is removed",
                    earlier.origin, pod.origin
                ),
                pod: who,
                origin: pod.origin.clone(),
            }),
        }
    }
    findings
}

/// Records source and first observation in a new pod. Sources do so themselves, so that they and the desired
/// set share one pod.
fn mark(mut new: SourcePod, source: PodSource, now: Timestamp) -> SourcePod {
    let annotations = &new.pod.metadata.annotations;
    if !LOCAL_ANNOTATIONS[..2].iter().all(|name| annotations.contains_key(*name)) {
        mark_first_seen(Rc::make_mut(&mut new.pod), source, now);
    }
    new
}

/// The operation for a known pod, and the pod to remember. Generations of pods of the API are set by the API;
/// those of other pods are counted here.
fn update(known: &SourcePod, new: SourcePod, source: PodSource) -> (Option<PodOp>, SourcePod) {
    let SourcePod { pod: new, origin } = new;
    let op = if is_semantically_different(&known.pod, &new) {
        if new.metadata.deletion_timestamp.is_some() { Some(PodOp::Delete) } else { Some(PodOp::Update) }
    } else if known.pod.status != new.status || differs_in_ownership(&known.pod, &new) {
        Some(PodOp::Reconcile)
    } else {
        None
    };
    if source == PodSource::Cluster {
        // The source has kept the time of first sight, and shares its pods with this set.
        let pod = if op.is_some() { new } else { Rc::clone(&known.pod) };
        return (op, SourcePod { pod, origin });
    }
    let mut known = Rc::clone(&known.pod);
    if op.is_some() {
        let new = Rc::unwrap_or_clone(new);
        let pod = Rc::make_mut(&mut known);
        pod.metadata.annotations =
            keep_local_annotations(&pod.metadata.annotations, new.metadata.annotations);
        pod.metadata.labels = new.metadata.labels;
        pod.metadata.deletion_timestamp = new.metadata.deletion_timestamp;
        pod.metadata.deletion_grace_period_seconds = new.metadata.deletion_grace_period_seconds;
        pod.metadata.generation = match source {
            PodSource::Api => new.metadata.generation,
            _ => pod.metadata.generation.max(1) + i64::from(pod.spec != new.spec),
        };
        pod.metadata.managed_fields = new.metadata.managed_fields;
        pod.metadata.owner_references = new.metadata.owner_references;
        pod.metadata.finalizers = new.metadata.finalizers;
        pod.spec = new.spec;
        pod.status = new.status;
    }
    (op, SourcePod { pod: known, origin })
}

/// Fields that are stored with a pod and do not affect how it runs.
fn differs_in_ownership(known: &Pod, new: &Pod) -> bool {
    let (known, new) = (&known.metadata, &new.metadata);
    known.managed_fields != new.managed_fields
        || known.owner_references != new.owner_references
        || known.finalizers != new.finalizers
}

fn is_local(annotation: &str) -> bool {
    LOCAL_ANNOTATIONS.contains(&annotation)
}

fn keep_local_annotations(known: &StringMap, mut new: StringMap) -> StringMap {
    new.retain(|name, _| !is_local(name));
    new.extend(
        known.iter().filter(|(name, _)| is_local(name)).map(|(name, text)| (name.clone(), text.clone())),
    );
    new
}

/// True when a worker has to be notified of the difference.
#[must_use]
pub(super) fn is_semantically_different(known: &Pod, new: &Pod) -> bool {
    let (old_meta, new_meta) = (&known.metadata, &new.metadata);
    known.spec != new.spec
        || old_meta.labels != new_meta.labels
        || old_meta.deletion_timestamp != new_meta.deletion_timestamp
        || old_meta.deletion_grace_period_seconds != new_meta.deletion_grace_period_seconds
        || !remote_annotations(&old_meta.annotations).eq(remote_annotations(&new_meta.annotations))
}

fn remote_annotations(annotations: &StringMap) -> impl Iterator<Item = (&String, &String)> {
    annotations.iter().filter(|(name, _)| !is_local(name))
}

#[cfg(test)]
mod tests;
