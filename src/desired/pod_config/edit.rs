//! Changes through the node's own API: one at a time, decided over the desired state, durable before they are
//! visible.
//!
//! Owns the messages and their replies.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::notes::NOTES_KEY;
use super::{Ending, PodConfig, log_changes};
pub use crate::desired::change::ApiChange;
use crate::desired::ephemeral;
use crate::desired::garbage::{self, Owners, Reach};
use crate::desired::merge::{PodChange, PodOp, findings, merge_some};
use crate::desired::stored::StoredObject;
use crate::model::api::managed_fields::ManagedFields;
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObject, ObjectContent, ObjectKey, ObjectKind, PlainBody};
use crate::model::source::{SourceObject, SourcePod};
use crate::model::types::{ContainerName, PodSource, PodUid, Timestamp};
use crate::platform::logging::chain;
use crate::store::{SetChange, StoreError};

/// Edits that wait for the loop. Each caller waits for its own answer.
const QUEUE: usize = 16;

/// The origin of objects that came through the API, for messages.
pub const API_ORIGIN: &str = "the API";

/// Reads the desired state and returns the change to make.
pub(in crate::desired) type Decide = Box<dyn FnOnce(&PodConfig) -> ApiChange>;

/// An edit that is sent to the loop.
pub struct Edit {
    pub decide: Decide,
    /// Notified when the change is on disk, or why it is not.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// The actions for the loop after an edit.
#[derive(Default)]
pub(crate) struct Edited {
    pub changes: Vec<PodChange>,
    /// Grace periods of terminating pods, also of those that were terminating before.
    pub graces: Vec<(Rc<Pod>, Option<i64>)>,
    pub restart: Option<(PodUid, Vec<ContainerName>)>,
    /// New versions of terminating pods.
    pub terminating: Vec<Rc<Pod>>,
    pub notes: bool,
}

impl Edited {
    /// The requested grace period of a pod that is deleted by this edit.
    #[must_use]
    pub(crate) fn take_grace(&mut self, uid: &PodUid) -> Option<i64> {
        let at = self.graces.iter().position(|(pod, _)| pod.metadata.uid == *uid)?;
        self.graces.swap_remove(at).1
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EditError {
    #[error("the agent is shutting down")]
    Ending,
    #[error("store the change: {0}")]
    Store(String),
}

/// The client side of edits. Clones share the queue.
#[derive(Clone)]
pub struct Editor(mpsc::Sender<Edit>);

impl Editor {
    /// An editor, and the loop's receiver of edits.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Edit>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), receiver)
    }

    /// Sends an edit without waiting. False when the queue is full or closed. For simulations.
    #[must_use]
    pub fn post(&self, decide: Decide) -> bool {
        let (done, _) = oneshot::channel();
        self.0.try_send(Edit { decide, done }).is_ok()
    }

    /// Runs `decide` over the desired state and applies its change. When this returns, the change is on disk
    /// and acted on; nothing is written when nothing changes.
    ///
    /// # Errors
    /// Nothing has been changed.
    pub(crate) async fn edit<T: 'static>(
        &self,
        decide: impl FnOnce(&PodConfig) -> (ApiChange, T) + 'static,
    ) -> Result<T, EditError> {
        let slot = Rc::new(RefCell::new(None));
        let filled = Rc::clone(&slot);
        let decide: Decide = Box::new(move |config| {
            let (change, answer) = decide(config);
            *filled.borrow_mut() = Some(answer);
            change
        });
        let (done, result) = oneshot::channel();
        self.0.send(Edit { decide, done }).await.map_err(|_| EditError::Ending)?;
        result.await.map_err(|_| EditError::Ending)?.map_err(EditError::Store)?;
        slot.borrow_mut().take().ok_or(EditError::Ending)
    }
}

impl PodConfig {
    /// Runs `decide` over the desired state, and applies its change to what came through the API. When this
    /// returns, the change is on disk and may be acted on.
    ///
    /// # Errors
    /// The store cannot be written: nothing has changed.
    pub(crate) async fn edit(&mut self, decide: Decide) -> Result<Edited, String> {
        let change = decide(self);
        let mut edited = Edited { restart: change.restart.clone(), ..Edited::default() };
        for pod in &change.update_terminating {
            self.store.put_terminating(pod).await.map_err(|error| refused_by_disk(&error))?;
        }
        edited.terminating.clone_from(&change.update_terminating);
        if let Some(notes) = &change.notes {
            let text = notes.to_text();
            let written = self.store.put_meta(NOTES_KEY, text.as_deref()).await;
            written.map_err(|error| refused_by_disk(&error))?;
            self.notes = notes.clone();
            edited.notes = true;
        }
        let made = self.change_sets(change, Reach::Change).await?;
        Ok(Edited { changes: made.changes, graces: made.graces, ..edited })
    }

    /// Collects what a change of another source, or the end of a pod, has made garbage.
    ///
    /// # Errors
    /// As of [`Self::edit`].
    pub(crate) async fn collect_garbage(&mut self) -> Result<Edited, String> {
        let edited = self.change_sets(ApiChange::default(), Reach::All).await?;
        self.has_garbage = false;
        Ok(edited)
    }

    /// Makes a change of pods and objects, with all that it makes garbage.
    async fn change_sets(&mut self, change: ApiChange, reach: Reach) -> Result<Edited, String> {
        if !change.changes_set() && reach == Reach::Change {
            return Ok(Edited::default());
        }
        let (now, source) = (self.clock.now(), PodSource::Api);
        let mut change = garbage::collect(&*self, change, reach, now);
        self.add_claims(&mut change, reach, now);
        let origin = || API_ORIGIN.to_owned();
        let put = change.put_pods.iter().map(|pod| SourcePod { pod: Rc::clone(pod), origin: origin() });
        let gone: Vec<PodUid> = change.remove_pods.iter().map(|(pod, _)| pod.metadata.uid.clone()).collect();
        let changes = merge_some(&self.desired, source, put.collect(), &gone, now);
        let objects = self.new_objects(&change.put_objects);
        let gone_objects: Vec<&ObjectKey> = change
            .remove_objects
            .iter()
            .filter(|key| self.object_sets.sources.get(&source).is_some_and(|known| known.contains_key(key)))
            .collect();
        let made = Edited { changes, graces: change.remove_pods, ..Edited::default() };
        if made.changes.is_empty() && objects.is_empty() && gone_objects.is_empty() {
            return Ok(made);
        }
        let of_op =
            |goes: bool| made.changes.iter().filter(move |change| (change.op == PodOp::Remove) == goes);
        let rows = SetChange {
            pods: of_op(false).map(|change| (source, &change.pod)).collect(),
            gone_pods: of_op(true).map(|change| (source, &change.pod.pod.metadata.uid)).collect(),
            objects: objects
                .iter()
                .filter(|(_, object)| !self.is_renewal(object))
                .map(|(source, object)| (*source, object))
                .collect(),
            gone_objects: gone_objects.iter().map(|key| (source, *key)).collect(),
        };
        if !rows.is_empty() {
            self.store.commit_change(&rows).await.map_err(|error| refused_by_disk(&error))?;
        }
        self.desired.apply(source, &made.changes);
        self.ending.extend(ending(&made.changes));
        let mut touched: Vec<ObjectKey> = gone_objects.into_iter().cloned().collect();
        for key in &touched {
            self.object_sets.remove(source, key);
        }
        for (source, object) in objects {
            touched.push(object.object.key.clone());
            self.object_sets.put(source, object);
        }
        for key in &touched {
            self.objects.set(key, self.object_sets.find(key));
        }
        self.note_problems_of_api(now).await;
        self.count(source);
        log_changes(source, &made.changes);
        Ok(made)
    }

    /// Adds the claims that ephemeral volumes of pods lack.
    fn add_claims(&self, change: &mut ApiChange, reach: Reach, now: Timestamp) {
        let mut pods = change.put_pods.clone();
        if reach == Reach::All {
            let known = self.desired.pods().filter(|(source, _)| *source != PodSource::Cluster);
            pods.extend(known.map(|(_, found)| Rc::clone(&found.pod)));
        }
        pods.retain(|pod| ephemeral::has_claims(pod));
        ephemeral::add_claims(change, &pods, |key| self.object_sets.find(key).is_some(), now);
    }

    /// The objects that are not as they were, each with the source whose set it is in.
    fn new_objects(&self, put: &[Rc<LocalObject>]) -> Vec<(PodSource, SourceObject)> {
        let shown = |object: &Rc<LocalObject>| {
            self.object_sets.locate(&object.key).filter(|(_, known)| known.object.uid == object.uid)
        };
        let placed = |object: &Rc<LocalObject>| match shown(object) {
            Some((_, known)) if known.object == *object => None,
            Some((source, known)) => {
                Some((source, SourceObject { object: Rc::clone(object), origin: known.origin.clone() }))
            }
            None => {
                let object = SourceObject { object: Rc::clone(object), origin: API_ORIGIN.to_owned() };
                Some((PodSource::Api, object))
            }
        };
        put.iter().filter_map(placed).collect()
    }

    /// Holders renew a lease every few seconds, which would wear out the disk. Its last renewal is written with the next
    /// change that means more: others wait for its duration from when they see it, so an older time is safe.
    fn is_renewal(&self, new: &SourceObject) -> bool {
        let key = &new.object.key;
        let Some(old) = self.object_sets.find(key).filter(|_| key.kind == ObjectKind::Lease) else {
            return false;
        };
        let without_time = |object: &LocalObject| {
            let mut body = object.content.body();
            body["spec"]["renewTime"] = Value::Null;
            let content = ObjectContent::Plain(PlainBody::new(&body));
            LocalObject { content, managed_fields: ManagedFields::default(), ..object.clone() }
        };
        without_time(&old.object) == without_time(&new.object)
    }

    async fn note_problems_of_api(&mut self, now: Timestamp) {
        let source = PodSource::Api;
        let mut problems = self.note_findings(source, findings(&self.desired), now);
        problems.retain(|problem| problem.origin == API_ORIGIN);
        let known = self.views.get(&source).map(|view| view.problems.as_slice()).unwrap_or_default();
        if known != problems {
            self.publish_problems(source, problems).await;
        }
    }

    /// Whether pods that are no longer desired have not ended: objects and namespaces may wait for them.
    #[must_use]
    pub(crate) fn has_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Forgets the pods that have ended. True if any had: until it is collected, there is garbage.
    pub(crate) fn forget_ended(&mut self, is_there: impl Fn(&PodUid) -> bool) -> bool {
        let before = self.ending.len();
        self.ending.retain(|uid, _| is_there(uid));
        let has_ended = self.ending.len() < before;
        self.has_garbage |= has_ended;
        has_ended
    }

    /// Restores what [`Self::has_ending`] reports from the pods that an earlier process was terminating.
    #[must_use]
    pub(super) fn with_terminating(mut self, terminating: &[Pod]) -> Self {
        self.ending.extend(terminating.iter().map(|pod| (pod.metadata.uid.clone(), Ending::of(pod))));
        self
    }
}

fn ending(changes: &[PodChange]) -> impl Iterator<Item = (PodUid, Ending)> {
    let removed = changes.iter().filter(|change| change.op == PodOp::Remove);
    removed.map(|change| (change.pod.pod.metadata.uid.clone(), Ending::of(&change.pod.pod)))
}

impl Owners for PodConfig {
    fn members(&self) -> Vec<StoredObject> {
        let pods =
            self.desired.sources.get(&PodSource::Api).into_iter().flat_map(|state| state.pods.values());
        let pods = pods.map(|pod| StoredObject::Pod(Rc::clone(&pod.pod)));
        let objects = self.object_sets.of_source(PodSource::Api);
        pods.chain(objects.map(|object| StoredObject::Object(Rc::clone(&object.object)))).collect()
    }

    fn object_uid(&self, key: &ObjectKey) -> Option<&str> {
        self.object_sets.find(key).map(|found| found.object.uid.as_str())
    }

    fn member_uid(&self, key: &ObjectKey) -> Option<&str> {
        let found = self.object_sets.sources.get(&PodSource::Api)?.get(key)?;
        Some(found.object.uid.as_str())
    }

    fn has_pod(&self, namespace: &str, name: &str, uid: &str) -> bool {
        let is_it = |(_, found): (PodSource, &SourcePod)| {
            let metadata = &found.pod.metadata;
            // A deleted mirror pod is shown with another uid.
            let mirror = self.notes.mirrors.get(&metadata.uid);
            if ephemeral::has_claims(&found.pod) && metadata.uid.as_str() == uid {
                // Its claims stay with it.
                return true;
            }
            let shown = mirror.map_or(metadata.uid.as_str(), |mirror| mirror.uid.as_str());
            metadata.namespace == namespace && metadata.name == name && shown == uid
        };
        self.desired.pods().any(is_it)
    }

    fn is_ending(&self, uid: &str) -> bool {
        self.ending.contains_key(&PodUid::from(uid))
    }

    fn has_ending(&self, namespace: &str) -> bool {
        self.ending.values().any(|pod| pod.namespace == namespace)
    }

    fn is_blocked_by_pod(&self, owner: &str) -> bool {
        self.ending.values().any(|pod| pod.blocked.iter().any(|uid| uid == owner))
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }
}

fn refused_by_disk(error: &StoreError) -> String {
    let error = chain(error);
    log::warn!(source = PodSource::Api.as_str(), err = error; "Failed to store change, rejecting it");
    error
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::objects::{LocalObjects, ObjectContent, ObjectKind, ObjectLookup};
    use crate::platform::clock::Clock;
    use crate::pod::events::EventRecorder;
    use crate::store::{Mode, OpenOptions, StoreHandle};

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    fn pod(name: &str, image: &str) -> Rc<Pod> {
        let mut pod = Pod::default();
        name.clone_into(&mut pod.metadata.name);
        "default".clone_into(&mut pod.metadata.namespace);
        pod.metadata.uid = PodUid::from(name);
        pod.spec.containers =
            vec![crate::model::api::pod::Container { image: image.to_owned(), ..Default::default() }];
        Rc::new(pod)
    }

    fn map(name: &str) -> Rc<LocalObject> {
        let key =
            ObjectKey { kind: ObjectKind::ConfigMap, namespace: "default".to_owned(), name: name.to_owned() };
        Rc::new(LocalObject {
            uid: format!("uid-of-{name}"),
            key,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            created: Timestamp::from_secs(1),
            managed_fields: crate::model::api::managed_fields::ManagedFields::default(),
            finalizers: Vec::new(),
            owner_references: Vec::new(),
            generation: 0,
            deleted: None,
            content: ObjectContent::ConfigMap {
                data: crate::model::objects::ConfigMapData::default(),
                immutable: false,
            },
        })
    }

    struct EditorNode {
        store: StoreHandle,
        objects: Rc<LocalObjects>,
    }

    impl EditorNode {
        fn new() -> Self {
            let store =
                StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() });
            Self { store: store.unwrap(), objects: Rc::default() }
        }

        /// A second process that starts from the same store.
        async fn start(&self) -> PodConfig {
            let loaded = self.store.load().await.unwrap();
            let events = EventRecorder::new("node".to_owned(), Clock::System, self.store.clone(), Vec::new());
            let registered = vec![PodSource::File, PodSource::Api];
            let objects = Rc::clone(&self.objects);
            PodConfig::new(registered, loaded.desired, objects, self.store.clone(), events, Clock::System)
        }
    }

    fn put(pods: Vec<Rc<Pod>>, objects: Vec<Rc<LocalObject>>) -> Decide {
        Box::new(move |_| ApiChange { put_pods: pods, put_objects: objects, ..ApiChange::default() })
    }

    fn ops(edited: &Edited) -> Vec<(PodOp, &str)> {
        edited.changes.iter().map(|change| (change.op, change.pod.pod.metadata.name.as_str())).collect()
    }

    #[test]
    fn edited_objects_survive_a_restart_with_their_origin() {
        run(async {
            let house = EditorNode::new();
            let mut config = house.start().await;
            assert!(config.views().keys().eq([&PodSource::File]), "nobody uses it yet");
            let edited = config.edit(put(vec![pod("a", "1"), pod("b", "1")], vec![map("m")])).await.unwrap();
            assert_eq!(ops(&edited), [(PodOp::Add, "a"), (PodOp::Add, "b")]);
            assert!(house.objects.config_map("default", "m").is_some());

            let mut config = house.start().await;
            let (source, found) = config.find_pod("default", "a").unwrap();
            assert_eq!((source, found.origin.as_str()), (PodSource::Api, API_ORIGIN));
            assert_eq!(found.pod.metadata.annotations["kubernetes.io/config.source"], "api");
            let view = &config.views()[&PodSource::Api];
            assert_eq!((view.seen, view.pods, view.objects), (true, 2, 1));
            let edited = config.edit(put(vec![pod("a", "2")], Vec::new())).await.unwrap();
            assert_eq!(ops(&edited), [(PodOp::Update, "a")], "the other stays as it was");
            let same = config.edit(Box::new(|_| ApiChange::default())).await.unwrap();
            assert_eq!(ops(&same), []);
            let gone = pod("b", "1");
            let mut edited = config
                .edit(Box::new(move |_| ApiChange {
                    remove_pods: vec![(gone, Some(3))],
                    ..ApiChange::default()
                }))
                .await
                .unwrap();
            assert_eq!(ops(&edited), [(PodOp::Remove, "b")]);
            assert_eq!(edited.take_grace(&PodUid::from("b")), Some(3));
            assert_eq!(house.store.load().await.unwrap().terminating.len(), 1);
        });
    }

    #[test]
    fn failed_store_write_changes_nothing_and_is_returned() {
        run(async {
            let house = EditorNode::new();
            let mut config = house.start().await;
            house.store.shutdown().await.unwrap();
            let refused = config.edit(put(vec![pod("a", "1")], vec![map("m")])).await;
            assert!(refused.is_err());
            assert!(config.find_pod("default", "a").is_none());
            assert!(house.objects.config_map("default", "m").is_none());
        });
    }

    /// What this thread has used of the processors.
    fn processor_time() -> std::time::Duration {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        std::time::Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }

    /// The least of some edits of one object.
    async fn cost_of_an_edit(config: &mut PodConfig) -> std::time::Duration {
        let mut least = std::time::Duration::MAX;
        for round in 0..5 {
            let mut changed = LocalObject::clone(&map("one"));
            changed.labels.insert("round".to_owned(), round.to_string());
            let before = processor_time();
            config.edit(put(Vec::new(), vec![Rc::new(changed)])).await.unwrap();
            least = least.min(processor_time().saturating_sub(before));
        }
        least
    }

    #[test]
    fn a_write_costs_what_it_changes_and_not_what_is_there() {
        const MANY: usize = 10_000;
        run(async {
            let house = EditorNode::new();
            let mut config = house.start().await;
            let few = cost_of_an_edit(&mut config).await;
            let maps = (0..MANY).map(|number| map(&format!("map-{number}"))).collect();
            config.edit(put(Vec::new(), maps)).await.unwrap();
            let many = cost_of_an_edit(&mut config).await;
            // The set would take a hundred times as long to write.
            assert!(
                many < few * 5 + std::time::Duration::from_millis(2),
                "{few:?} alone, {many:?} among {MANY}"
            );
            assert_eq!(house.objects.all().len(), MANY + 1);
        });
    }

    #[test]
    fn an_answer_comes_back_when_the_change_has_been_made() {
        run(async {
            let house = EditorNode::new();
            let mut config = house.start().await;
            let (editor, mut edits) = Editor::channel();
            let asks = editor.edit(|config: &PodConfig| {
                let change = ApiChange { put_pods: vec![pod("a", "1")], ..ApiChange::default() };
                (change, config.pods().count())
            });
            let serves = async {
                let edit = edits.recv().await.unwrap();
                let result = config.edit(edit.decide).await.map(drop);
                edit.done.send(result).unwrap();
            };
            let (answer, ()) = tokio::join!(asks, serves);
            assert_eq!(answer, Ok(0));
            assert_eq!(config.pods().count(), 1);
            drop(edits);
            let late = editor.edit(|_: &PodConfig| (ApiChange::default(), ())).await;
            assert_eq!(late, Err(EditError::Ending));
        });
    }
}
