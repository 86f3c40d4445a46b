//! Whether the server that answers is the cluster that this node belongs to: it has the Node object with the
//! remembered uid.
//!
//! Owns that uid. The Node is read for each list of pods that has to be judged, after the list: what a watch of the
//! Node showed before may be of another server at the same address.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::cluster::client::Client;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::pods::guard::NodeSeen;
use crate::model::back_off::Retry;
use crate::platform::dice::Dice;
use crate::platform::rt;

/// Between attempts to read the Node, which may have to register first.
const FIRST_RETRY: std::time::Duration = std::time::Duration::from_millis(200);
const LONGEST_RETRY: std::time::Duration = std::time::Duration::from_secs(7);

pub(crate) struct NodeCheck {
    name: String,
    /// Of the Node of the cluster that was believed last; empty for a node that has never been in one.
    remembered: RefCell<String>,
    /// As the server has it.
    current: RefCell<String>,
    /// `Absent` until the Node was read after the newest list.
    seen: Cell<NodeSeen>,
    is_reading: Cell<bool>,
    version: watch::Sender<u64>,
    /// Stores another uid.
    on_uid: Rc<dyn Fn(&str)>,
}

impl NodeCheck {
    pub(crate) fn new(name: String, remembered: String, on_uid: Rc<dyn Fn(&str)>) -> Self {
        Self {
            name,
            remembered: RefCell::new(remembered),
            current: RefCell::default(),
            seen: Cell::new(NodeSeen::Absent),
            is_reading: Cell::new(false),
            version: watch::Sender::new(0),
            on_uid,
        }
    }

    pub(crate) fn seen(&self) -> NodeSeen {
        self.seen.get()
    }

    /// Changes with [`Self::seen`].
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// A new list: what was read before it says nothing of it.
    pub(crate) fn forget(&self) {
        self.seen.set(NodeSeen::Absent);
    }

    /// The server has the Node with this uid. While its pods are believed, that uid is remembered.
    pub(crate) fn shown(&self, uid: &str, is_believed: bool) {
        uid.clone_into(&mut self.current.borrow_mut());
        if is_believed {
            self.believe();
        }
    }

    /// The pods of the server are believed: its Node is this node's.
    pub(crate) fn believe(&self) {
        let current = self.current.borrow().clone();
        if !current.is_empty() && *self.remembered.borrow() != current {
            (self.on_uid)(&current);
            *self.remembered.borrow_mut() = current;
        }
    }

    /// Reads the Node until it is there.
    pub(crate) fn read<T: Transport>(self: &Rc<Self>, client: &Rc<Client<T>>, dice: &Dice) {
        if self.is_reading.replace(true) {
            return;
        }
        let (check, client, dice) = (Rc::clone(self), Rc::clone(client), dice.clone());
        rt::spawn("cluster node check", async move {
            let path = ResourcePath::whole("", "nodes", &check.name);
            let mut retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
            let uid = loop {
                let answer = client.get(Lane::Heartbeat, &path, Accept::Metadata).await;
                match answer.ok().and_then(|node| Some(node["metadata"]["uid"].as_str()?.to_owned())) {
                    Some(uid) => break uid,
                    None => sleep(retry.delay_with(dice.unit())).await,
                }
            };
            let is_same = [String::new(), uid.clone()].contains(&check.remembered.borrow());
            *check.current.borrow_mut() = uid;
            check.seen.set(if is_same { NodeSeen::Same } else { NodeSeen::Other });
            check.is_reading.set(false);
            check.version.send_modify(|version| *version += 1);
        });
    }
}
