//! CSI on a node of a cluster: what the API server says of drivers and volumes, and what it shows of them.
//!
//! Owns which volumes the node says it uses. What the API server said of a volume and its driver is kept in the store, so
//! that a node that boots without its cluster mounts it again. Nothing here ends the node: without permission for
//! CSINode, drivers still mount.
//!
//! | file | what |
//! |---|---|
//! | `answers` | what the API server says, and has said |
//! | `register` | CSINode, annotation and labels of the Node |
//! | `resize` | volumes that have grown |
//! | `rules` | pure |

mod answers;
mod register;
mod resize;
mod rules;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::client::Client;
use crate::cluster::client::transport::Transport;
use crate::cluster::tokens::rules::Token;
use crate::model::api::pod::StringMap;
use crate::model::objects::volumes::texts;
use crate::model::objects::{ObjectLookup, TokenRequest};
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::pod::csi::drivers::CsiDrivers;
use crate::pod::csi::rules::{driver_of, needs_attach};
use crate::pod::csi::{CsiFacts, CsiRound, CsiServer};
use crate::pod::events::EventRecorder;
use crate::pod::volume::csi::{CsiAnswer, CsiVolume};
use crate::store::{CSI, ClusterRow, StoreHandle};

const STORAGE: &str = "storage.k8s.io";
/// How long an attempt waits for the post of `volumesInUse`, and for the volume to be attached.
const SOON: Duration = Duration::from_secs(4);
/// How often claims of mounted volumes are read: they may have grown.
const RESIZE: Duration = Duration::from_secs(120);

pub(crate) struct CsiParts {
    pub store: StoreHandle,
    pub events: EventRecorder,
    pub clock: Clock,
    pub dice: Dice,
    pub drivers: Rc<CsiDrivers>,
    /// Secrets that are here already need no request.
    pub objects: Rc<dyn ObjectLookup>,
}

/// The client, and whether the server answers.
type CsiLink<T> = (Rc<Client<T>>, Rc<dyn Fn() -> bool>);

pub(crate) struct ClusterCsi<T> {
    parts: CsiParts,
    /// Empty until the node has credentials.
    link: OnceCell<CsiLink<T>>,
    /// What the server said last: of a driver (by its name) in `driver`, of a volume (by its unique name) in
    /// `attachment` and the members that name Secrets. Null: there is no such object. `places` are those of a disk in
    /// pods. Rows of the store.
    answers: RefCell<BTreeMap<String, Value>>,
    /// Tokens that drivers have got for pods.
    tokens: RefCell<BTreeMap<TokenRequest, Token>>,
    /// `status.volumesAttached` of the Node.
    attached: RefCell<BTreeSet<String>>,
    /// `status.volumesInUse` as the server has it: the controller detaches no volume of them.
    reported: RefCell<BTreeSet<String>>,
    /// Empty until it is known.
    node_uid: RefCell<String>,
    /// When claims were last read for their size.
    resized: Cell<Option<Instant>>,
}

impl<T: Transport> ClusterCsi<T> {
    /// `rows` are those of the store. Blocks for a moment.
    pub(crate) fn new(parts: CsiParts, rows: &[ClusterRow]) -> Rc<Self> {
        let of_csi = rows.iter().filter(|row| row.key.kind == CSI);
        let answer =
            |row: &ClusterRow| Some((row.key.name.clone(), serde_json::from_slice(&row.value).ok()?));
        let answers: BTreeMap<String, Value> = of_csi.filter_map(answer).collect();
        for (name, answer) in &answers {
            // Disks have no other record. A pod has or awaits them while its directory is there.
            let places = texts(&answer["places"]).map(Path::new);
            for place in places.filter(|place| place.parent().is_some_and(Path::exists)) {
                parts.drivers.in_use.borrow_mut().entry(name.clone()).or_default().insert(place.to_owned());
            }
        }
        // Before they were mounted, the server had them.
        let reported = parts.drivers.in_use.borrow().keys().cloned().into_set();
        Rc::new(Self {
            link: OnceCell::new(),
            answers: RefCell::new(answers),
            tokens: RefCell::default(),
            attached: RefCell::default(),
            reported: RefCell::new(reported),
            node_uid: RefCell::default(),
            resized: Cell::default(),
            parts,
        })
    }

    fn drivers(&self) -> &Rc<CsiDrivers> {
        &self.parts.drivers
    }

    /// The server can be asked from now on, with the node's own client. The first one stays.
    pub(crate) fn connect(&self, client: Rc<Client<T>>, is_online: Rc<dyn Fn() -> bool>) {
        let _ = self.link.set((client, is_online));
        self.drivers().wake.notify_one();
        self.drivers().note_change();
    }

    /// `status.volumesInUse`, sorted: those that can be attached. What was mounted by an earlier process is among it
    /// from the beginning.
    pub(crate) fn volumes_in_use(&self) -> Vec<String> {
        let answers = self.answers.borrow();
        let is_attachable = |name: &&String| {
            let driver = answers.get(driver_of(name));
            driver.is_none_or(|answer| needs_attach(&answer["driver"]))
        };
        self.drivers().in_use.borrow().keys().filter(is_attachable).cloned().collect()
    }

    /// The server has these `volumesInUse`.
    pub(crate) fn set_reported(&self, volumes: &[String]) {
        let volumes = volumes.iter().cloned().collect();
        if self.reported.replace(volumes) != *self.reported.borrow() {
            self.drivers().note_change();
        }
    }

    fn set_attached(&self, volumes: impl IntoIterator<Item = String>) {
        let volumes: BTreeSet<String> = volumes.into_iter().into_set();
        if *self.attached.borrow() != volumes {
            self.attached.replace(volumes);
            self.drivers().note_change();
        }
    }
}

impl<T: Transport> CsiServer for ClusterCsi<T> {
    fn facts(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<CsiFacts> {
        Box::pin(async move { self.facts_of(&volume).await })
    }

    fn attach(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<StringMap> {
        Box::pin(async move { self.attach_disk(&volume).await })
    }

    fn token(self: Rc<Self>, request: TokenRequest) -> CsiAnswer<(Rc<str>, Timestamp)> {
        Box::pin(async move { self.token_for(&request).await.map(|token| (token.value, token.expires)) })
    }

    fn republishes(&self, driver: &str) -> bool {
        self.answers
            .borrow()
            .get(driver)
            .is_some_and(|known| known["driver"]["spec"]["requiresRepublish"] == true)
    }

    fn forget(&self, uid: &OsStr) {
        self.tokens.borrow_mut().retain(|request, _| *request.pod.uid.as_str() != *uid);
    }

    fn round(self: Rc<Self>) -> CsiRound {
        Box::pin(async move {
            let shown = self.show_drivers().await.map_err(|error| format!("error updating CSINode: {error}"));
            self.drop_answers().await;
            self.resize_all().await;
            (shown, self.has_resizable().then_some(RESIZE))
        })
    }
}

#[cfg(test)]
mod tests;
