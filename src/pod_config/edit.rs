//! Changes that come through the node's own API: one at a time, decided over what is wanted now, durable before anybody hears.
//!
//! Owns the messages and the way back of an answer. Must not know requests.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::sync::{mpsc, oneshot};

use super::PodConfig;
use crate::api::pod::Pod;
use crate::objects::{LocalObject, ObjectKey};
use crate::reconcile::merge::PodChange;
use crate::types::PodUid;

/// Edits that wait for the loop; whoever asks waits for his answer.
const QUEUE: usize = 16;

/// Where objects are written that came through the API, for messages.
pub const API_ORIGIN: &str = "the API";

/// What an edit changes. What is not named stays.
#[derive(Default)]
pub struct ApiChange {
    /// New pods, and new versions of those of their uid.
    pub put_pods: Vec<Rc<Pod>>,
    /// Pods that are to go, with seconds of grace that replace their own. Such a pod may be going already, from any source.
    pub remove_pods: Vec<(Rc<Pod>, Option<i64>)>,
    /// New objects, and new versions of those of their key.
    pub put_objects: Vec<Rc<LocalObject>>,
    /// Objects that are to go.
    pub remove_objects: Vec<ObjectKey>,
}

impl ApiChange {
    /// True when nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.put_pods.is_empty()
            && self.remove_pods.is_empty()
            && self.put_objects.is_empty()
            && self.remove_objects.is_empty()
    }
}

/// Looks at what is wanted and says what is to change.
pub type Decide = Box<dyn FnOnce(&PodConfig) -> ApiChange>;

/// An edit on its way to the loop.
pub struct Edit {
    /// The decision.
    pub decide: Decide,
    /// Told when the change is on disk, or why it is not.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// What the loop has to act on after an edit.
#[derive(Default)]
pub struct Edited {
    /// What has changed of the wanted pods.
    pub changes: Vec<PodChange>,
    /// Graces of pods that go, also of those that went before.
    pub graces: Vec<(Rc<Pod>, Option<i64>)>,
}

impl Edited {
    /// The grace that was asked for, for a pod that goes because of this edit.
    #[must_use]
    pub fn take_grace(&mut self, uid: &PodUid) -> Option<i64> {
        let at = self.graces.iter().position(|(pod, _)| pod.metadata.uid == *uid)?;
        self.graces.swap_remove(at).1
    }
}

/// An edit could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The agent is ending.
    #[error("the agent is shutting down")]
    Ending,
    /// The disk.
    #[error("write down the change: {0}")]
    Store(String),
}

/// Client side of edits. Clones share the queue.
#[derive(Clone)]
pub struct Editor(mpsc::Sender<Edit>);

impl Editor {
    /// An editor, and where the loop hears of edits.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Edit>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), receiver)
    }

    /// Has `decide` look at what is wanted and change it. When this returns, the change is on disk and acted on; nothing is
    /// written when nothing changes.
    ///
    /// # Errors
    /// Nothing has been changed.
    pub async fn edit<T: 'static>(
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
