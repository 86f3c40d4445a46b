//! The registries of the simulated world: which digests their tags have.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use edge_agent::desired::pod_config::edit::Editor;
use edge_agent::model::api::pod::Pod;
use edge_agent::model::objects::LocalObjects;
use edge_agent::platform::rt;
use edge_agent::pod::events::EventRecorder;
use edge_agent::pod::status::StatusManager;
use edge_agent::workload::{DigestAnswer, ImageDigests, ImageUpdateParts, update_images};
use tokio::sync::watch;

/// All registries; clones are the same.
#[derive(Clone, Default)]
pub struct SimRegistry {
    /// By image; about others there is no answer.
    pub digests: Rc<RefCell<BTreeMap<String, String>>>,
    /// How many questions there were.
    pub asked: Rc<Cell<u32>>,
}

impl SimRegistry {
    /// Starts the task that asks them once an hour.
    pub fn follow(
        &self,
        (editor, objects, statuses, events): (Editor, Rc<LocalObjects>, Rc<StatusManager>, EventRecorder),
        desired: watch::Receiver<u64>,
    ) {
        let (digests, interval) = (Rc::new(self.clone()), Duration::from_secs(3600));
        let parts = ImageUpdateParts { editor, objects, statuses, events, desired, digests, interval };
        rt::spawn("image updates", update_images(parts));
    }
}

impl ImageDigests for SimRegistry {
    fn digest(&self, image: String, _pod: Rc<Pod>) -> DigestAnswer {
        self.asked.set(self.asked.get() + 1);
        let answer = self.digests.borrow().get(&image).cloned().ok_or_else(|| "no route to host".to_owned());
        Box::pin(async move { answer })
    }
}
