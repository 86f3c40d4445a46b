//! The desired state of this node: every source's whole set, merged, stored first, and passed on as changes
//! (upstream: `PodConfig`). The objects that sources define take the same path, and can be looked up once
//! they are stored.
//!
//! Owns the desired set, the objects and the problems of the sources.

pub mod edit;
pub mod notes;
mod problems;
mod rollout;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::desired::ephemeral;
use crate::desired::kinds::addresses::{ServiceRanges, assign};
use crate::desired::local_objects::ObjectSets;
use crate::desired::merge::{DesiredSet, PodChange, PodOp, SetFinding, SourceState, merge};
use crate::desired::priority::{self, PriorityClass};
use crate::desired::rollout::Rollout;
use crate::desired::service_account::{self, PodAccount};
use crate::model::api::pod::Pod;
use crate::model::field_error::FieldError;
use crate::model::objects::{
    LocalObject, LocalObjects, ObjectContent, ObjectKey, ObjectKind, OwnerReference, RuntimeClassSpec,
};
use crate::model::ordered::Ordered as _;
use crate::model::source::{SourceAnswer, SourceObject, SourcePod, SourceProblem, SourceSet, SourceUpdate};
use crate::model::types::{PodSource, PodUid, Timestamp};
use crate::platform::clock::Clock;
use crate::pod::events::EventRecorder;
use crate::pod::runtime_class::{class_of, resolved};
use crate::store::rollout::RolloutPhase;
use crate::store::{StoreHandle, StoredSource, meta};
use notes::Notes;

/// The state of one source, for `agent status`.
#[derive(Clone, Debug, Default)]
pub struct SourceView {
    /// It has given a valid answer since the start.
    pub seen: bool,
    /// Its last answer was valid.
    pub answering: bool,
    /// Its current set is being rolled out.
    pub rolling_out: bool,
    /// When it last gave a valid answer.
    pub last_answer: Option<Timestamp>,
    pub pods: usize,
    /// ConfigMaps, Secrets and claims it defines.
    pub objects: usize,
    pub problems: Vec<SourceProblem>,
}

/// The desired set, with its store.
pub struct PodConfig {
    desired: DesiredSet,
    object_sets: ObjectSets,
    /// The effective objects, shared with all readers.
    objects: Rc<LocalObjects>,
    /// Those of the cluster, shared likewise.
    cluster_objects: Option<Rc<LocalObjects>>,
    registered: Vec<PodSource>,
    views: BTreeMap<PodSource, SourceView>,
    /// Sources whose newest set is not yet on disk, with what to write besides the pods.
    unwritten: BTreeMap<PodSource, Option<String>>,
    store: StoreHandle,
    events: EventRecorder,
    clock: Clock,
    store_trouble: Option<String>,
    /// Of the source whose new sets are rolled out, if any.
    rollout: Option<Rollout>,
    /// Rollouts from the store; taken by `begin_rollouts`.
    stored_rollouts: BTreeMap<PodSource, RolloutPhase>,
    notes: Notes,
    ending: BTreeMap<PodUid, Ending>,
    /// Owners may be gone whose dependents have not been collected.
    has_garbage: bool,
    /// False when rows of the store could not be read: owners that are not found may be among them.
    is_complete: bool,
    /// The newest signature that is on disk.
    signed: Option<String>,
}

impl PodConfig {
    /// Restores from the store: each registered source's last set stays in effect until that source answers.
    /// From now on `objects` contains theirs.
    #[must_use]
    pub fn new(
        registered: Vec<PodSource>,
        stored: Vec<StoredSource>,
        objects: Rc<LocalObjects>,
        store: StoreHandle,
        events: EventRecorder,
        clock: Clock,
    ) -> Self {
        let mut desired = DesiredSet::default();
        let mut remembered = Vec::new();
        for source in stored {
            remembered.push((source.source, source.objects));
            let pods = source.pods.into_iter().map(|pod| (pod.pod.metadata.uid.clone(), pod)).into_map();
            desired.sources.insert(source.source, SourceState { pods, ..SourceState::default() });
        }
        if registered.contains(&PodSource::Api) {
            // The store has the API's whole state.
            desired.sources.entry(PodSource::Api).or_default().seen = true;
        }
        let object_sets = ObjectSets::remembered(remembered);
        objects.replace(object_sets.winners().into_values());
        let mut config = Self {
            desired,
            object_sets,
            objects,
            cluster_objects: None,
            views: registered
                .iter()
                .filter(|source| **source != PodSource::Api)
                .map(|source| (*source, SourceView::default()))
                .into_map(),
            registered,
            unwritten: BTreeMap::new(),
            store,
            events: events.without_log(),
            clock,
            store_trouble: None,
            rollout: None,
            stored_rollouts: BTreeMap::new(),
            notes: Notes::default(),
            ending: BTreeMap::new(),
            has_garbage: false,
            is_complete: true,
            signed: None,
        };
        for source in config.registered.clone() {
            config.count(source);
        }
        config
    }

    /// From now on `objects` contains those of the cluster, as `new` says of the node's.
    #[must_use]
    pub(crate) fn with_cluster_objects(self, objects: Rc<LocalObjects>) -> Self {
        let config = Self { cluster_objects: Some(objects), ..self };
        config.publish_objects();
        config
    }

    /// From now on what has lost its owners is collected, beginning with what an earlier process has left. If rows of
    /// the store could not be read, owners that are not found may be among them and count as there.
    #[must_use]
    pub(crate) fn with_garbage_collection(self, is_complete: bool, terminating: &[Pod]) -> Self {
        if !is_complete {
            log::warn!("Desired state is incomplete, keeping objects whose owners are not found");
        }
        Self { has_garbage: true, is_complete, ..self.with_terminating(terminating) }
    }

    /// Whether owners may be gone whose dependents have not been collected.
    #[must_use]
    pub(crate) fn has_garbage(&self) -> bool {
        self.has_garbage
    }

    /// This node has joined a cluster, even if it is not configured in this run: the pods of the last run stay, as
    /// those of any source that has not answered.
    #[must_use]
    pub(crate) fn of_joined_node(mut self) -> Self {
        if !self.registered.contains(&PodSource::Cluster) {
            self.registered.push(PodSource::Cluster);
            self.count(PodSource::Cluster);
        }
        self
    }

    /// From now on Services get addresses and ports.
    #[must_use]
    pub(crate) fn with_services(mut self, ranges: Option<ServiceRanges>) -> Self {
        self.object_sets.services = ranges;
        self
    }

    /// Gives a new Service, or one that replaces `old`, what it lacks.
    ///
    /// # Errors
    /// Why it cannot have it.
    pub(crate) fn assign_addresses(
        &self,
        object: &mut LocalObject,
        old: Option<&LocalObject>,
    ) -> Result<(), Vec<FieldError>> {
        let ranges = self.object_sets.services.as_ref().filter(|_| object.key.kind == ObjectKind::Service);
        let errors = ranges
            .map_or_else(Vec::new, |ranges| assign(object, old, &self.object_sets.taken(ranges), ranges));
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Shows the effective objects to all readers.
    fn publish_objects(&self) {
        self.objects.replace(self.object_sets.winners().into_values());
        if let Some(objects) = &self.cluster_objects {
            objects.replace(self.object_sets.of_source(PodSource::Cluster));
        }
    }

    /// Restores the API's state other than pods and objects.
    #[must_use]
    pub(crate) fn with_notes(self, facts: &BTreeMap<String, String>) -> Self {
        let wanted: BTreeSet<PodUid> = self.pods().map(|pod| pod.pod.metadata.uid.clone()).into_set();
        Self { notes: Notes::restore(facts, &wanted), ..self }
    }

    /// The API's state other than pods and objects.
    #[must_use]
    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }

    /// The desired set of a source; `None` if it never answered.
    fn previous_set(&self, source: PodSource) -> Option<SourceSet> {
        let pods = self.desired.sources.get(&source)?;
        let objects = self.object_sets.sources.get(&source);
        Some(SourceSet {
            pods: pods.pods.values().cloned().collect(),
            objects: objects.into_iter().flat_map(BTreeMap::values).cloned().collect(),
        })
    }

    pub(crate) fn pods(&self) -> impl Iterator<Item = &SourcePod> {
        self.desired.pods().map(|(_, pod)| pod)
    }

    /// True when every registered source has given a valid answer since the start.
    #[must_use]
    pub(crate) fn seen_all_sources(&self) -> bool {
        self.desired.seen_all_sources(&self.registered)
    }

    /// The state of each registered source.
    #[must_use]
    pub(crate) fn views(&self) -> &BTreeMap<PodSource, SourceView> {
        &self.views
    }

    /// Why the newest desired set is not on disk, if it is not.
    #[must_use]
    pub(crate) fn store_trouble(&self) -> Option<&str> {
        self.store_trouble.as_deref()
    }

    /// A source of earlier runs that is no longer configured: its pods are removed.
    pub(crate) async fn drop_unregistered(&mut self) -> Vec<PodChange> {
        let gone: Vec<PodSource> =
            self.desired.sources.keys().copied().filter(|source| !self.registered.contains(source)).collect();
        let mut changes = Vec::new();
        for source in gone {
            let pods = self.desired.sources.get(&source).map_or(0, |state| state.pods.len());
            if pods > 0 {
                log::info!(source = source.as_str(), pods = pods; "Source is no longer configured, removing \
                     its pods");
            }
            let merged = merge(&self.desired, source, Some(Vec::new()), self.clock.now());
            changes.extend(merged.changes);
            self.desired = merged.desired;
            self.object_sets.replace(source, Vec::new());
            self.write(source, None).await;
            self.desired.sources.remove(&source);
        }
        self.publish_objects();
        changes
    }

    /// Applies an answer of a source. When this returns, the new set is on disk (or the disk's error is
    /// known) and the changes may be acted on.
    pub(crate) async fn apply(&mut self, update: SourceUpdate) -> Vec<PodChange> {
        let now = self.clock.now();
        let mut update = update;
        self.save_newest_signature(update.source, update.signed.take()).await;
        let new_answer = self.new_answer(&mut update);
        let objects_before = self.object_sets.sources.get(&update.source).cloned();
        let mut otherwise = Vec::new();
        let (answer, answering) = match update.answer {
            SourceAnswer::Pods(mut pods) => {
                self.object_sets.replace(update.source, update.objects);
                otherwise = self.resolve_classes(update.source, &mut pods);
                (Some(pods), true)
            }
            SourceAnswer::Unknown => (None, false),
        };
        let is_known = self.desired.sources.contains_key(&update.source);
        let merged = merge(&self.desired, update.source, answer, now);
        self.desired = merged.desired;
        // Its server sends the set whenever anything happens to it.
        let is_as_stored = update.source == PodSource::Cluster
            && is_known
            && merged.changes.is_empty()
            && !self.unwritten.contains_key(&update.source)
            && objects_before.as_ref() == self.object_sets.sources.get(&update.source);
        if let Some(new_answer) = new_answer {
            let objects = self.object_sets.sources.get(&update.source);
            let is_change = !merged.changes.is_empty() || objects_before.as_ref() != objects;
            self.roll_out(new_answer, is_change);
        }
        let mut problems = update.problems;
        otherwise.extend(merged.findings);
        problems.extend(self.note_findings(update.source, otherwise, now));
        let problems = self.with_rollback_problem(update.source, problems);
        if answering && !is_as_stored {
            self.write(update.source, update.validator).await;
            self.publish_objects();
        }
        let is_kept = |key: &ObjectKey| self.object_sets.find(key).is_some();
        let has_lost = objects_before.iter().flat_map(BTreeMap::keys).any(|key| !is_kept(key))
            || merged.changes.iter().any(|change| change.op == PodOp::Remove);
        let lacks_claims =
            |change: &PodChange| change.op != PodOp::Remove && ephemeral::has_claims(&change.pod.pod);
        let is_due = has_lost || merged.changes.iter().any(lacks_claims);
        self.has_garbage |= is_due && update.source != PodSource::Cluster;
        self.publish_problems(update.source, problems).await;
        let view = self.views.entry(update.source).or_default();
        view.answering = answering;
        if answering {
            view.seen = true;
            view.last_answer = Some(now);
        }
        self.count(update.source);
        log_changes(update.source, &merged.changes);
        merged.changes
    }

    /// Applies RuntimeClasses to pods of manifests, as a cluster's admission does. Pods that contradict their
    /// class run as they are written.
    fn resolve_classes(&self, source: PodSource, pods: &mut [SourcePod]) -> Vec<SetFinding> {
        if source == PodSource::Cluster {
            // The server's admission has done it.
            return Vec::new();
        }
        let known = self.desired.sources.get(&source).map(|state| &state.pods);
        let classes = self.priority_classes();
        let mut findings = Vec::new();
        for SourcePod { pod, origin } in pods {
            if !pod.spec.priority_class_name.is_empty() && pod.spec.priority.is_none() {
                // As before, a pod of a manifest runs if its class does not exist.
                let mut spec = pod.spec.clone();
                if priority::admit(&mut spec, &classes).is_ok() {
                    Rc::make_mut(pod).spec = spec;
                }
            }
            let Some(name) = class_of(pod).map(str::to_owned) else { continue };
            let known = known.and_then(|known| known.get(&pod.metadata.uid)).map(|known| &*known.pod);
            match resolved(pod, known, self.runtime_class(&name)) {
                Some(Ok(spec)) => Rc::make_mut(pod).spec = spec,
                Some(Err(why)) => findings.push(SetFinding {
                    pod: pod.pod_ref(),
                    origin: origin.clone(),
                    message: format!(
                        "the pod contradicts its RuntimeClass {name:?} and runs as it is written: {why}; leave the field out of the pod, or name another class"
                    ),
                }),
                None => {}
            }
        }
        findings
    }

    /// Gives a new pod of this node's API, with this uid, the service account it names.
    ///
    /// # Errors
    /// There is no such account; upstream's message.
    pub(crate) fn admit_account(&self, pod: &mut Pod, uid: &str) -> Result<(), String> {
        let name = service_account::name_of(pod);
        let key = ObjectKey {
            kind: ObjectKind::ServiceAccount,
            namespace: pod.metadata.namespace.clone(),
            name: name.to_owned(),
        };
        let is_joined = self.registered.contains(&PodSource::Cluster);
        let account = match self.object_sets.find(&key) {
            Some(found) if !is_joined => PodAccount::of(&found.object),
            None if name == service_account::DEFAULT => PodAccount::default(),
            _ => return Err(service_account::not_found(pod)),
        };
        // A node of a cluster issues no tokens.
        if !is_joined {
            service_account::admit(pod, &account, uid);
        }
        Ok(())
    }

    #[must_use]
    pub(crate) fn runtime_class(&self, name: &str) -> Option<&RuntimeClassSpec> {
        let key =
            ObjectKey { kind: ObjectKind::RuntimeClass, namespace: String::new(), name: name.to_owned() };
        match &self.object_sets.find(&key)?.object.content {
            ObjectContent::RuntimeClass(class) => Some(class),
            _ => None,
        }
    }

    /// The PriorityClasses of this node.
    #[must_use]
    pub(crate) fn priority_classes(&self) -> Vec<PriorityClass> {
        let class = |(_, found): (PodSource, &SourceObject)| match &found.object.content {
            ObjectContent::Plain(body) if found.object.key.kind == ObjectKind::PriorityClass => {
                Some(PriorityClass::of(&found.object.key.name, body))
            }
            _ => None,
        };
        self.objects_by_source().filter_map(class).collect()
    }

    /// Before the set with that signature: writing the set also writes this.
    async fn save_newest_signature(&mut self, source: PodSource, signed: Option<String>) {
        if signed.is_none() || signed == self.signed {
            return;
        }
        match self.store.put_meta(meta::NEWEST_SIGNATURE, signed.as_deref()).await {
            Ok(()) => self.signed = signed,
            Err(error) => {
                log::warn!(source = source.as_str(), err:% = error; "Failed to store the newest signature \
                     timestamp");
            }
        }
    }

    /// Retries failed writes. Cheap when there are none.
    pub(crate) async fn retry_writes(&mut self) {
        for (source, validator) in std::mem::take(&mut self.unwritten) {
            self.write(source, validator).await;
        }
    }

    async fn write(&mut self, source: PodSource, validator: Option<String>) {
        let SourceSet { pods, objects } = self.previous_set(source).unwrap_or_default();
        let phase = self.rollout_of(source).map(|rollout| rollout.phase.clone()).unwrap_or_default();
        match self.store.commit_rollout(source, &pods, &objects, validator.as_deref(), &phase).await {
            Ok(_) => {
                if self.unwritten.is_empty() && self.store_trouble.take().is_some() {
                    log::info!(source = source.as_str(); "Desired state is stored again");
                }
            }
            Err(error) => {
                // The desired pods keep running; only a power cut before this is fixed would lose the change.
                if self.store_trouble.is_none() {
                    log::error!(source = source.as_str(), err:% = error; "Failed to store desired state, \
                         keeping it in memory only");
                }
                self.store_trouble = Some(error.to_string());
                self.unwritten.insert(source, validator);
            }
        }
    }

    /// The desired pod of this name, and its source.
    #[must_use]
    pub(crate) fn find_pod(&self, namespace: &str, name: &str) -> Option<(PodSource, &SourcePod)> {
        self.desired.pods().find(|(_, pod)| {
            let metadata = &pod.pod.metadata;
            metadata.namespace == namespace && metadata.name == name
        })
    }

    /// Every desired pod and its source.
    pub fn pods_by_source(&self) -> impl Iterator<Item = (PodSource, &SourcePod)> {
        self.desired.pods()
    }

    /// The effective object of the node with this key, and its source.
    #[must_use]
    pub(crate) fn find_object(&self, key: &ObjectKey) -> Option<(PodSource, &SourceObject)> {
        self.object_sets.locate(key)
    }

    /// Every object and its source; of one key the effective one first.
    pub fn objects_by_source(&self) -> impl Iterator<Item = (PodSource, &SourceObject)> {
        let sources = self.object_sets.sources.iter();
        sources.flat_map(|(source, objects)| objects.values().map(|object| (*source, object)))
    }

    /// Whether a pod or an object of any source is in this namespace.
    #[must_use]
    pub(crate) fn is_namespace_in_use(&self, namespace: &str) -> bool {
        self.pods().any(|pod| pod.pod.metadata.namespace == namespace)
            || self.objects_by_source().any(|(_, object)| object.object.key.namespace == namespace)
    }

    fn count(&mut self, source: PodSource) {
        let all = self.desired.sources.get(&source).into_iter().flat_map(|state| state.pods.values());
        // A deleted pod that finalizers keep is not to run.
        let pods = all.filter(|pod| pod.pod.metadata.deletion_timestamp.is_none()).count();
        let objects = self.object_sets.sources.get(&source).map_or(0, BTreeMap::len);
        let rollout = self.rollout_of(source);
        let rolling_out =
            rollout.is_some_and(|rollout| matches!(rollout.phase, RolloutPhase::Progressing { .. }));
        if source == PodSource::Api && pods + objects == 0 {
            // The source is not in use: there is nothing to show.
            self.views.remove(&source);
            return;
        }
        let view = self.views.entry(source).or_default();
        (view.pods, view.objects, view.rolling_out) = (pods, objects, rolling_out);
        if source == PodSource::Api {
            (view.seen, view.answering) = (true, true);
        }
    }
}

fn log_changes(source: PodSource, changes: &[PodChange]) {
    for change in changes {
        log::info!(source = source.as_str(), op:% = change.op, pod:% = change.pod.pod.pod_ref(), origin = change.pod.origin; "SyncLoop");
    }
}

/// A pod that is no longer desired and has not ended.
struct Ending {
    namespace: String,
    /// The uids of the owners that it blocks.
    blocked: Vec<String>,
}

impl Ending {
    fn of(pod: &Pod) -> Self {
        let owners = pod.metadata.owner_references.iter().map(OwnerReference::from_value);
        let blocked = owners.filter(|owner| owner.block_owner_deletion).map(|owner| owner.uid);
        Self { namespace: pod.metadata.namespace.clone(), blocked: blocked.collect() }
    }
}

#[cfg(test)]
mod tests;
