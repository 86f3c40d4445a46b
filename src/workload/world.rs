//! What the steps decide over: the objects and pods of the controllers, as the next version of them. Steps change them
//! here, and each change makes the objects that it concerns take their step, until none is left.
//!
//! Owns what has changed, and the order of the steps.
//!
//! Pure: what it returns depends on its arguments alone.

mod garbage;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::environment::{FLOOR, NodeEnvironment};
use super::fields::{at, string_map, text};
use super::item::{Item, ItemChange};
use super::names::Names;
use super::pods::{PodView, owner_uid};
use crate::desired::kinds::rules;
use crate::model::api::decode::decode;
use crate::model::api::managed_fields::ManagedFields;
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObject, ObjectContent, ObjectKey, ObjectKind, OwnerReference, PlainBody};
use crate::model::types::{PodUid, Timestamp};
use crate::pod::events::EventType;
use crate::pod::lifecycle::requested_termination;
use crate::pod::scheduling::first_status;

/// The kinds that take steps, in the order in which they do.
pub(super) const CONTROLLERS: [ObjectKind; 7] = [
    ObjectKind::PersistentVolume,
    ObjectKind::DaemonSet,
    ObjectKind::Deployment,
    ObjectKind::ReplicaSet,
    ObjectKind::StatefulSet,
    ObjectKind::CronJob,
    ObjectKind::Job,
];

/// No pass takes more steps: one that does not come to rest would block the node.
const MAX_STEPS: usize = 20_000;

/// No pass creates more pods, as of upstream's Job controller.
const MAX_NEW_PODS: usize = 500;
/// Until a step goes on that this has stopped.
const AFTER_FULL: Duration = Duration::from_secs(1);

/// Pauses that double.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackOffTimes {
    pub first: Duration,
    pub longest: Duration,
}

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorldEvent {
    pub key: ObjectKey,
    pub uid: String,
    pub event_type: EventType,
    pub reason: &'static str,
    pub message: String,
}

/// What a step left to do.
#[derive(Clone, Debug, Default)]
pub(super) struct Rest {
    /// When it has to be taken again, whatever happens until then.
    pub wake: Option<Timestamp>,
    /// Something could not be created: it is tried again when any object changes, or a pod comes or goes.
    pub is_failing: bool,
    /// How often something was tried again in a row, and when last.
    retries: Option<(u32, Timestamp)>,
    /// When it was last stopped because the pass had created its pods.
    full: Option<Timestamp>,
}

/// Everything that is to be written.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub put_objects: Vec<Rc<LocalObject>>,
    pub remove_objects: Vec<ObjectKey>,
    pub put_pods: Vec<Rc<Pod>>,
    pub remove_pods: Vec<Rc<Pod>>,
    pub events: Vec<WorldEvent>,
    /// Nothing but statuses of objects is written.
    pub is_status_only: bool,
}

pub(crate) struct World<'e> {
    pub now: Timestamp,
    pub env: &'e dyn NodeEnvironment,
    pub names: Names,
    items: BTreeMap<ObjectKey, Item>,
    pods: BTreeMap<PodUid, PodView>,
    /// By namespace and name.
    pod_uids: BTreeMap<(String, String), PodUid>,
    /// Pods that this pass has tried to create.
    tries: usize,
    dirty: BTreeSet<(usize, ObjectKey)>,
    new_pods: BTreeSet<PodUid>,
    changed_pods: BTreeSet<PodUid>,
    removed_pods: BTreeSet<PodUid>,
    removed_items: Vec<ObjectKey>,
    events: Vec<WorldEvent>,
    rest: Rest,
    /// By key, of the controllers.
    rests: BTreeMap<ObjectKey, Rest>,
    /// Those whose time has come.
    due: BTreeSet<ObjectKey>,
    /// The one whose step is taken, with its uid.
    current: Option<(ObjectKey, String)>,
}

impl<'e> World<'e> {
    pub(super) fn new(
        now: Timestamp,
        env: &'e dyn NodeEnvironment,
        seed: u64,
        items: impl IntoIterator<Item = Item>,
        pods: impl IntoIterator<Item = PodView>,
    ) -> Self {
        let mut world = Self {
            now,
            env,
            names: Names(seed),
            items: BTreeMap::new(),
            pods: BTreeMap::new(),
            pod_uids: BTreeMap::new(),
            tries: 0,
            dirty: BTreeSet::new(),
            new_pods: BTreeSet::new(),
            changed_pods: BTreeSet::new(),
            removed_pods: BTreeSet::new(),
            removed_items: Vec::new(),
            events: Vec::new(),
            rest: Rest::default(),
            rests: BTreeMap::new(),
            due: BTreeSet::new(),
            current: None,
        };
        for item in items {
            world.items.insert(item.object.key.clone(), item);
        }
        for pod in pods {
            world.insert_pod(pod);
        }
        world
    }

    fn insert_pod(&mut self, pod: PodView) {
        let name = (pod.pod.metadata.namespace.clone(), pod.name().to_owned());
        self.pod_uids.insert(name, pod.uid().clone());
        self.pods.insert(pod.uid().clone(), pod);
    }

    /// The object has to take its step.
    pub(super) fn mark(&mut self, key: &ObjectKey) {
        if let Some(rank) = CONTROLLERS.iter().position(|kind| *kind == key.kind) {
            self.dirty.insert((rank, key.clone()));
        }
    }

    /// What the steps before left to do.
    pub(super) fn remember(&mut self, rests: BTreeMap<ObjectKey, Rest>) {
        self.rests = rests;
    }

    /// The time of this object has come.
    pub(super) fn mark_due(&mut self, key: &ObjectKey) {
        self.mark(key);
        self.due.insert(key.clone());
    }

    /// The step is taken because its time has come, not because of a change.
    pub(super) fn is_due(&self, item: &Item) -> bool {
        self.due.contains(&item.object.key)
    }

    fn mark_uid(&mut self, uid: Option<&str>) {
        let Some(uid) = uid else { return };
        if let Some(key) =
            self.current.as_ref().filter(|(_, current)| current == uid).map(|(key, _)| key.clone())
        {
            return self.mark(&key);
        }
        let owner = self.items.values().find(|item| item.object.uid == uid);
        if let Some(key) = owner.map(|owner| owner.object.key.clone()) {
            self.mark(&key);
        }
    }

    /// Takes the steps of all marked objects, and of those that these change. False when they do not come to rest.
    pub(super) fn settle(&mut self, take: fn(&mut Self, &mut Item)) -> bool {
        for _ in 0..MAX_STEPS {
            let Some((_, key)) = self.dirty.pop_first() else { return true };
            let Some(mut item) = self.items.remove(&key) else { continue };
            let before = item.edits;
            let (retries, full) = self.rests.get(&key).map_or((None, None), |rest| (rest.retries, rest.full));
            self.rest = Rest { retries, full, ..Rest::default() };
            self.current = Some((key.clone(), item.object.uid.clone()));
            take(self, &mut item);
            self.current = None;
            let rest = std::mem::take(&mut self.rest);
            self.due.remove(&key);
            if self.removed_items.contains(&key) {
                self.rests.remove(&key);
                continue;
            }
            self.rests.insert(key.clone(), rest);
            let is_changed = item.edits != before;
            let owner = item.owner().map(str::to_owned);
            self.items.insert(key.clone(), item);
            if is_changed {
                self.mark(&key);
                self.mark_uid(owner.as_deref());
            }
        }
        false
    }

    /// The pass takes a step of this object again after this time.
    pub(super) fn wake_in(&mut self, left: Duration) {
        // Times in statuses are whole seconds: the step must not come early.
        let at = self.now.saturating_add(left.max(Duration::from_millis(1)));
        self.rest.wake = Some(self.rest.wake.map_or(at, |known| known.min(at)));
    }

    /// The step is taken again when any object changes, or a pod comes or goes.
    pub(super) fn wait_for_others(&mut self) {
        self.rest.is_failing = true;
    }

    /// Whether the object whose step this is may try again what has failed: the first time at once, then after pauses.
    pub(super) fn may_retry(&mut self, times: BackOffTimes) -> bool {
        let now = self.now;
        let retries = self.rest.retries.filter(|(_, last)| now.saturating_since(*last) < times.longest * 2);
        let (count, left) = match retries {
            None => (0, Duration::ZERO),
            Some((count, last)) => {
                let pause = times.first.saturating_mul(2_u32.saturating_pow(count - 1)).min(times.longest);
                (count, pause.saturating_sub(now.saturating_since(last)))
            }
        };
        if !left.is_zero() {
            self.wake_in(left);
            return false;
        }
        self.rest.retries = Some((count + 1, now));
        true
    }

    pub(super) fn rests(&self) -> &BTreeMap<ObjectKey, Rest> {
        &self.rests
    }

    /// The time since then. No longer than the machine has been up, for deadlines that a wrong clock must not miss.
    pub(super) fn elapsed_up(&self, since: Timestamp) -> Duration {
        self.now.saturating_since(since).min(self.env.up())
    }

    /// The time since then; if the clock was not set then, no longer than the machine has been up.
    pub(super) fn elapsed(&self, since: Timestamp) -> Duration {
        if since < FLOOR { self.elapsed_up(since) } else { self.now.saturating_since(since) }
    }

    pub(super) fn event(
        &mut self,
        item: &Item,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) {
        let (key, uid) = (item.object.key.clone(), item.object.uid.clone());
        self.events.push(WorldEvent { key, uid, event_type, reason, message });
    }

    pub(super) fn normal(&mut self, item: &Item, reason: &'static str, message: String) {
        self.event(item, EventType::Normal, reason, message);
    }

    pub(super) fn warn(&mut self, item: &Item, reason: &'static str, message: String) {
        self.event(item, EventType::Warning, reason, message);
    }

    pub(super) fn get(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<&Item> {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        self.items.get(&key)
    }

    pub(super) fn item(&self, key: &ObjectKey) -> Option<&Item> {
        self.items.get(key)
    }

    /// Changes an object; those that it concerns take their steps.
    pub(super) fn change(&mut self, key: &ObjectKey, change: impl FnOnce(&mut Item)) {
        let Some(item) = self.items.get_mut(key) else { return };
        change(item);
        let owner = item.owner().map(str::to_owned);
        self.mark(key);
        self.mark_uid(owner.as_deref());
    }

    /// The objects of this kind in a namespace.
    pub(super) fn of_kind<'w>(
        &'w self,
        kind: ObjectKind,
        namespace: &'w str,
    ) -> impl Iterator<Item = &'w Item> + use<'w, 'e> {
        let items = self.items.values();
        items.filter(move |item| item.object.key.kind == kind && item.object.key.namespace == namespace)
    }

    /// The objects of this kind.
    pub(super) fn of_all(&self, kind: ObjectKind) -> impl Iterator<Item = &Item> {
        self.items.values().filter(move |item| item.object.key.kind == kind)
    }

    /// The objects of this kind that the owner manages.
    pub(super) fn owned(&self, kind: ObjectKind, owner: &Item) -> Vec<ObjectKey> {
        let all = self.of_kind(kind, &owner.object.key.namespace);
        let managed = all.filter(|item| item.owner() == Some(&owner.object.uid));
        managed.map(|item| item.object.key.clone()).collect()
    }

    /// The pods that the owner manages, those included that are being deleted; by name.
    pub(super) fn pods_of(&self, owner: &Item) -> Vec<PodView> {
        let uid = owner.object.uid.as_str();
        self.pods.values().filter(|pod| pod.owner() == Some(uid)).cloned().collect()
    }

    /// Adopts the pods that the selector of `owner` selects and that no object manages, and releases its own that it
    /// does not select any more; returns those that it manages.
    pub(super) fn claim_pods(
        &mut self,
        owner: &Item,
        is_selected: impl Fn(&PodView) -> bool,
    ) -> Vec<PodView> {
        let (uid, namespace) = (owner.object.uid.as_str(), owner.object.key.namespace.as_str());
        let reference = owner.reference().to_value();
        let mut news = Vec::new();
        for view in self.pods.values().filter(|view| view.pod.metadata.namespace == namespace) {
            let by = view.owner();
            let adopts = by.is_none() && view.is_active() && !owner.is_deleted() && is_selected(view);
            let releases = by == Some(uid) && !view.is_deleted && !is_selected(view);
            if !adopts && !releases {
                continue;
            }
            let mut pod = Rc::clone(&view.pod);
            let owners = &mut Rc::make_mut(&mut pod).metadata.owner_references;
            if releases {
                owners.retain(|owner| owner["uid"] != uid);
            } else {
                owners.push(reference.clone());
            }
            news.push(pod);
        }
        for pod in news {
            self.put_pod(pod);
        }
        self.pods_of(owner)
    }

    /// A pod of this name in this namespace, whatever manages it.
    pub(super) fn pod_named(&self, namespace: &str, name: &str) -> Option<&PodView> {
        self.pods.get(self.pod_uids.get(&(namespace.to_owned(), name.to_owned()))?)
    }

    /// Whether the step may try to create one more pod in this pass. If not, it is taken again a moment later: a great
    /// number at once would block the node.
    pub(super) fn may_create(&mut self) -> bool {
        let now = self.now;
        let full = self.rest.full.filter(|full| *full <= now && now.saturating_since(*full) < AFTER_FULL);
        if full.is_none() && self.tries < MAX_NEW_PODS {
            self.tries += 1;
            return true;
        }
        let full = full.unwrap_or(now);
        self.rest.full = Some(full);
        self.wake_in(AFTER_FULL.saturating_sub(now.saturating_since(full)));
        false
    }

    /// Creates a pod from its JSON. Without a name it gets one from its `generateName`.
    ///
    /// # Errors
    /// Why it may not be created.
    pub(super) fn create_pod(&mut self, mut pod: Value) -> Result<String, String> {
        let namespace = text(&pod, "/metadata/namespace").to_owned();
        let base = text(&pod, "/metadata/generateName").to_owned();
        if !base.is_empty() {
            let name = loop {
                let name = self.names.generate(&base);
                if self.pod_named(&namespace, &name).is_none() {
                    break name;
                }
            };
            pod["metadata"]["name"] = json!(name);
        }
        let pod = decode::<Pod>(pod).map_err(|error| error.to_string())?.object;
        let name = pod.metadata.name.clone();
        if self.pod_named(&namespace, &name).is_some() {
            self.rest.is_failing = true;
            return Err(format!("pods {name:?} already exists"));
        }
        let uid = PodUid::from(self.names.uid());
        let pod = self.env.admit(pod, uid.clone()).inspect_err(|_| self.rest.is_failing = true)?;
        let owner = owner_uid(&pod).map(str::to_owned);
        let view = PodView { status: Rc::new(first_status(&pod)), pod: Rc::new(pod), is_deleted: false };
        self.insert_pod(view);
        self.new_pods.insert(uid.clone());
        self.changed_pods.insert(uid);
        self.mark_uid(owner.as_deref());
        Ok(name)
    }

    /// A new version of a pod. A deleted one goes with its last finalizer.
    pub(super) fn put_pod(&mut self, pod: Rc<Pod>) {
        let uid = pod.metadata.uid.clone();
        let Some(view) = self.pods.get_mut(&uid) else { return };
        let before = owner_uid(&view.pod).map(str::to_owned);
        view.pod = pod;
        let after = owner_uid(&view.pod).map(str::to_owned);
        let is_over = view.is_deleted && view.pod.metadata.finalizers.is_empty();
        if is_over && view.pod.metadata.deletion_timestamp.is_some() {
            self.changed_pods.remove(&uid);
            self.removed_pods.insert(uid);
        } else {
            self.changed_pods.insert(uid);
        }
        self.mark_uid(before.as_deref());
        self.mark_uid(after.as_deref());
    }

    /// Deletes a pod; one with finalizers stays until these are removed.
    pub(super) fn delete_pod(&mut self, uid: &PodUid) {
        let now = self.now;
        let Some(view) = self.pods.get_mut(uid) else { return };
        if view.is_deleted {
            return;
        }
        view.is_deleted = true;
        let owner = view.owner().map(str::to_owned);
        if self.new_pods.remove(uid) {
            // It has never been.
            self.changed_pods.remove(uid);
            if let Some(pod) = self.pods.remove(uid) {
                let metadata = &pod.pod.metadata;
                self.pod_uids.remove(&(metadata.namespace.clone(), metadata.name.clone()));
            }
        } else if view.pod.metadata.finalizers.is_empty() {
            self.changed_pods.remove(uid);
            self.removed_pods.insert(uid.clone());
        } else {
            let (since, grace) = requested_termination(&view.pod, None, now);
            let metadata = &mut Rc::make_mut(&mut view.pod).metadata;
            metadata.deletion_timestamp = Some(since);
            metadata.deletion_grace_period_seconds = Some(grace);
            self.changed_pods.insert(uid.clone());
        }
        self.mark_uid(owner.as_deref());
    }

    /// Creates an object of a controller; returns its key.
    ///
    /// # Errors
    /// The name is taken.
    pub(super) fn create(
        &mut self,
        owner: &Item,
        kind: ObjectKind,
        name: String,
        metadata: &Value,
        mut body: Value,
    ) -> Result<ObjectKey, String> {
        (rules(kind).defaults)(&mut body);
        let key = ObjectKey { kind, namespace: owner.object.key.namespace.clone(), name };
        let object = LocalObject {
            key,
            uid: self.names.uid(),
            labels: string_map(at(metadata, "/labels")),
            annotations: string_map(at(metadata, "/annotations")),
            created: self.now,
            managed_fields: ManagedFields::default(),
            finalizers: Vec::new(),
            owner_references: vec![owner.reference()],
            generation: i64::from(kind.has_generation()),
            deleted: None,
            content: ObjectContent::Plain(PlainBody::default()),
        };
        let body = OnceCell::from(body);
        self.insert(Item {
            object: Rc::new(object),
            body,
            is_read_only: false,
            change: ItemChange::New,
            edits: 0,
        })
    }

    /// Creates a claim for a pod.
    ///
    /// # Errors
    /// Why it may not be created.
    pub(super) fn create_claim(&mut self, claim: Value, owners: Vec<OwnerReference>) -> Result<(), String> {
        let mut object = self.env.claim(claim).inspect_err(|_| self.rest.is_failing = true)?;
        object.uid = self.names.uid();
        object.created = self.now;
        object.owner_references = owners;
        let item = Item { change: ItemChange::New, ..Item::new(Rc::new(object), false) };
        self.insert(item).map(drop)
    }

    fn insert(&mut self, item: Item) -> Result<ObjectKey, String> {
        let key = item.object.key.clone();
        if self.items.contains_key(&key) {
            self.rest.is_failing = true;
            return Err(format!("{} {:?} already exists", key.kind.plural(), key.name));
        }
        self.removed_items.retain(|removed| *removed != key);
        self.items.insert(key.clone(), item);
        self.mark(&key);
        Ok(key)
    }

    /// Deletes an object; what it manages goes with it when this is written. One with finalizers stays until these are
    /// removed.
    pub(super) fn remove(&mut self, key: &ObjectKey) {
        let Some(mut item) = self.items.remove(key) else { return };
        if !self.remove_item(&mut item) {
            self.items.insert(key.clone(), item);
        }
    }

    /// As [`Self::remove`], of the object whose step this is. False when it stays.
    pub(super) fn remove_item(&mut self, item: &mut Item) -> bool {
        self.mark_uid(item.owner());
        if item.object.finalizers.is_empty() {
            self.removed_items.push(item.object.key.clone());
            return true;
        }
        if !item.is_deleted() {
            item.meta_mut().deleted = Some(self.now);
        }
        false
    }

    /// Removes a finalizer from a pod.
    pub(super) fn strip_finalizer(&mut self, uid: &PodUid, finalizer: &str) {
        let Some(view) = self.pods.get(uid) else { return };
        if view.pod.metadata.finalizers.iter().any(|known| known == finalizer) {
            let mut pod = Rc::clone(&view.pod);
            Rc::make_mut(&mut pod).metadata.finalizers.retain(|known| known != finalizer);
            self.put_pod(pod);
        }
    }

    /// Everything that has changed.
    pub(super) fn finish(mut self) -> Changes {
        let mut changes = Changes { is_status_only: true, ..Changes::default() };
        changes.events = std::mem::take(&mut self.events);
        for item in self.items.into_values().filter(|item| item.change > ItemChange::None) {
            changes.is_status_only &= item.change == ItemChange::Status;
            changes.put_objects.push(item.into_object());
        }
        // What was created and removed in one pass has never been.
        changes.remove_objects = self.removed_items;
        for uid in &self.removed_pods {
            changes.remove_pods.extend(self.pods.get(uid).map(|view| Rc::clone(&view.pod)));
        }
        for uid in self.changed_pods.difference(&self.removed_pods) {
            changes.put_pods.extend(self.pods.get(uid).map(|view| Rc::clone(&view.pod)));
        }
        let writes = changes.remove_objects.len() + changes.put_pods.len() + changes.remove_pods.len();
        changes.is_status_only &= writes == 0 && changes.events.is_empty();
        changes
    }

    /// The pods, for tests and for the count of those that have ended.
    pub(super) fn pods(&self) -> impl Iterator<Item = &PodView> {
        self.pods.values()
    }
}
