//! Changes through the node's own API: one at a time, decided over the desired state, durable before they are
//! visible.
//!
//! Owns the messages and their replies.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::sync::{mpsc, oneshot};

use super::notes::{NOTES_KEY, Notes};
use super::{PodConfig, log_changes};
use crate::desired::merge::{PodChange, merge};
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObject, ObjectKey};
use crate::model::source::{SourceObject, SourcePod};
use crate::model::types::{ContainerName, PodSource, PodUid};
use crate::platform::logging::chain;
use crate::store::StoreError;

/// Edits that wait for the loop. Each caller waits for its own answer.
const QUEUE: usize = 16;

/// The origin of objects that came through the API, for messages.
pub const API_ORIGIN: &str = "the API";

/// The changes of one edit. Everything else stays.
#[derive(Default)]
pub struct ApiChange {
    /// New pods, and new versions of pods with the same uid.
    pub put_pods: Vec<Rc<Pod>>,
    /// Pods to delete, each with an optional grace period in seconds that replaces its own. A pod may be
    /// terminating already, and of any source.
    pub remove_pods: Vec<(Rc<Pod>, Option<i64>)>,
    /// New objects, and new versions of objects with the same key.
    pub put_objects: Vec<Rc<LocalObject>>,
    pub remove_objects: Vec<ObjectKey>,
    /// Containers to restart, of a pod of any source. Nothing is stored for it.
    pub restart: Option<(PodUid, Vec<ContainerName>)>,
    /// New versions of pods that are no longer desired and still terminating.
    pub update_terminating: Vec<Rc<Pod>>,
    /// The API's other state, if it changes.
    pub notes: Option<Notes>,
}

impl ApiChange {
    /// Whether it changes desired pods or objects.
    fn changes_set(&self) -> bool {
        !(self.put_pods.is_empty()
            && self.remove_pods.is_empty()
            && self.put_objects.is_empty()
            && self.remove_objects.is_empty())
    }
}

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
        if !change.changes_set() {
            return Ok(edited);
        }
        let now = self.clock.now();
        let source = PodSource::Api;
        let (pods, objects) = self.after(&change);
        let merged = merge(&self.desired, source, Some(pods), now);
        let object_sets = self.object_sets.merge(source, objects);
        let pods: Vec<SourcePod> = merged
            .desired
            .sources
            .get(&source)
            .into_iter()
            .flat_map(|state| state.pods.values().cloned())
            .collect();
        let objects: Vec<SourceObject> = object_sets
            .sources
            .get(&source)
            .into_iter()
            .flat_map(|objects| objects.values().cloned())
            .collect();
        let written = self.store.commit_source(source, &pods, &objects, None).await;
        written.map_err(|error| refused_by_disk(&error))?;
        self.desired = merged.desired;
        self.object_sets = object_sets;
        self.publish_objects();
        let mut problems = self.note_findings(source, merged.findings, now);
        problems.retain(|problem| problem.origin == API_ORIGIN);
        self.publish_problems(source, problems).await;
        self.count(source);
        log_changes(source, &merged.changes);
        Ok(Edited { changes: merged.changes, graces: change.remove_pods, ..edited })
    }

    /// The whole set of the API after a change.
    fn after(&self, change: &ApiChange) -> (Vec<SourcePod>, Vec<SourceObject>) {
        let source = PodSource::Api;
        let origin = || API_ORIGIN.to_owned();
        let goes = |pod: &SourcePod| {
            let uid = &pod.pod.metadata.uid;
            change.remove_pods.iter().any(|(gone, _)| gone.metadata.uid == *uid)
                || change.put_pods.iter().any(|new| new.metadata.uid == *uid)
        };
        let known = self.desired.sources.get(&source).into_iter().flat_map(|state| state.pods.values());
        let mut pods: Vec<SourcePod> = known.filter(|pod| !goes(pod)).cloned().collect();
        pods.extend(change.put_pods.iter().map(|pod| SourcePod { pod: Rc::clone(pod), origin: origin() }));
        let mut objects = self.object_sets.sources.get(&source).cloned().unwrap_or_default();
        objects.retain(|key, _| !change.remove_objects.contains(key));
        for object in &change.put_objects {
            let new = SourceObject { object: Rc::clone(object), origin: origin() };
            objects.insert(object.key.clone(), new);
        }
        (pods, objects.into_values().collect())
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
    use crate::desired::merge::PodOp;
    use crate::model::objects::{LocalObjects, ObjectContent, ObjectKind, ObjectLookup};
    use crate::model::types::Timestamp;
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
