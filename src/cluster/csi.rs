//! The node's side of CSI: drivers that register, and the volumes that they mount for pods.
//!
//! Owns the registered drivers and which volumes the node uses. What is mounted is on disk (`pod::volume::csi`, and
//! `plugins/kubernetes.io/csi` of the root directory for staged volumes), so that a later process can unmount it: a
//! record is written before the driver is called, and removed when nothing can be mounted any more. What the API server
//! said of a volume and its driver is kept in the store, so that a node that boots without its cluster mounts it again.
//! Nothing here ends the node: without permission for CSINode, drivers still mount.
//!
//! | file | what |
//! |---|---|
//! | `answers` | what the API server says, and has said |
//! | `calls` | the calls of a driver |
//! | `register` | registration, CSINode, annotation and labels of the Node |
//! | `resize` | volumes that have grown |
//! | `rules` | pure |

pub(crate) mod rules;

mod answers;
mod calls;
mod register;
mod resize;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::cluster::client::Client;
use crate::cluster::client::transport::Transport;
use crate::cluster::tokens::rules::Token;
use crate::devices::client::{PluginClient, PluginError};
use crate::model::api::pod::StringMap;
use crate::model::objects::{ObjectLookup, TokenRequest};
use crate::model::ordered::Ordered as _;
use crate::platform::clock::Clock;
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::platform::sys::node::FileSystemFacts;
use crate::pod::events::EventRecorder;
use crate::pod::volume::Volumes;
use crate::pod::volume::csi::{
    CsiAnswer, CsiPublished, CsiRecord, CsiVolume, CsiVolumes, records, remove_mount_dir,
};
use crate::store::{CSI, ClusterRow, StoreHandle};

use calls::CsiCall;
use rules::{DriverInfo, MOUNT_GROUP, MULTI_WRITER, STAGE_UNSTAGE, VOLUME_STATS};

const STORAGE: &str = "storage.k8s.io";
/// Below the root directory: upstream's places of staged volumes.
const STAGING_DIR: &str = "plugins/kubernetes.io/csi";
/// How long a pod's worker waits for one attempt. The attempt goes on.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an attempt waits for the post of `volumesInUse`, and for the volume to be attached.
const SOON: Duration = Duration::from_secs(4);
/// As often as upstream's kubelet syncs a pod, volumes are published again whose driver asks for it.
const AGAIN: Duration = Duration::from_secs(60);
/// How often claims of mounted volumes are read: they may have grown.
const RESIZE: Duration = Duration::from_secs(120);

pub(crate) struct CsiParts {
    pub store: StoreHandle,
    pub events: EventRecorder,
    pub clock: Clock,
    pub dice: Dice,
    pub node_name: String,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// Secrets that are here already need no request.
    pub objects: Rc<dyn ObjectLookup>,
}

/// A registered driver.
struct Driver {
    client: PluginClient,
    version: Vec<u32>,
    info: DriverInfo,
    can_expand: bool,
}

/// The client, and whether the server answers.
type CsiLink<T> = (Rc<Client<T>>, Rc<dyn Fn() -> bool>);

pub(crate) struct CsiNode<T> {
    parts: CsiParts,
    /// Empty until the node has credentials.
    link: OnceCell<CsiLink<T>>,
    drivers: RefCell<BTreeMap<String, Driver>>,
    /// Drivers that were removed and may still be in CSINode.
    gone: RefCell<BTreeSet<String>>,
    /// What the server said last: of a driver (by its name) in `driver`, of a volume (by its unique name) in
    /// `attachment` and the members that name Secrets. Null: there is no such object. Rows of the store.
    answers: RefCell<BTreeMap<String, Value>>,
    /// Tokens that drivers have got for pods.
    tokens: RefCell<BTreeMap<TokenRequest, Token>>,
    /// `status.volumesAttached` of the Node.
    attached: RefCell<BTreeSet<String>>,
    /// `status.volumesInUse` as the server has it: the controller detaches no volume of them.
    reported: RefCell<BTreeSet<String>>,
    /// Empty until it is known.
    node_uid: RefCell<String>,
    /// By unique name: the places in pods that wait for a volume or have it, and where it is staged.
    in_use: RefCell<BTreeMap<String, BTreeSet<PathBuf>>>,
    /// By place: the volumes of pods, and when they were published.
    published: RefCell<BTreeMap<PathBuf, (CsiVolume, Instant)>>,
    /// When claims were last read for their size.
    resized: Cell<Option<Instant>>,
    /// Volumes with an attempt under way.
    busy: RefCell<BTreeSet<String>>,
    changed: watch::Sender<u64>,
    /// Something of the drivers is not shown yet.
    is_stale: Cell<bool>,
    /// Wakes the task.
    wake: Notify,
}

impl<T: Transport> CsiNode<T> {
    /// Reads the records of an earlier process: their volumes are in use. Blocks for a moment. `rows` are those of the
    /// store.
    pub(crate) fn new(parts: CsiParts, rows: &[ClusterRow]) -> Rc<Self> {
        let of_csi = rows.iter().filter(|row| row.key.kind == CSI);
        let answer =
            |row: &ClusterRow| Some((row.key.name.clone(), serde_json::from_slice(&row.value).ok()?));
        let node = Self {
            link: OnceCell::new(),
            drivers: RefCell::default(),
            gone: RefCell::default(),
            answers: RefCell::new(of_csi.filter_map(answer).collect()),
            tokens: RefCell::default(),
            attached: RefCell::default(),
            reported: RefCell::default(),
            node_uid: RefCell::default(),
            in_use: RefCell::default(),
            published: RefCell::default(),
            resized: Cell::default(),
            busy: RefCell::default(),
            changed: watch::Sender::new(0),
            is_stale: Cell::new(false),
            wake: Notify::new(),
            parts,
        };
        match disk_records(&node.parts.root_dir) {
            Ok(found) => {
                let mut in_use = node.in_use.borrow_mut();
                for (place, record) in found.into_iter().filter(|(_, record)| !record.is_ephemeral) {
                    let name = rules::unique_name(&record.driver, &record.handle);
                    // Before it was mounted, the server had it.
                    node.reported.borrow_mut().insert(name.clone());
                    in_use.entry(name).or_default().insert(place);
                }
            }
            Err(error) => log::warn!(err:% = error; "Failed to read the records of CSI volumes"),
        }
        Rc::new(node)
    }

    /// From now on pods get volumes of CSI drivers. The task keeps CSINode and the Node right, and unstages volumes
    /// that no pod uses.
    pub(crate) fn start(self: &Rc<Self>, volumes: &Volumes) -> JoinHandle<()> {
        volumes.set_csi(Rc::clone(self) as Rc<dyn CsiVolumes>);
        rt::spawn("cluster csi", register::run(Rc::clone(self)))
    }

    /// The server can be asked from now on, with the node's own client. The first one stays.
    pub(crate) fn connect(&self, client: Rc<Client<T>>, is_online: Rc<dyn Fn() -> bool>) {
        let _ = self.link.set((client, is_online));
        self.wake.notify_one();
        self.note_change();
    }

    /// `status.volumesInUse`, sorted: those that can be attached. What was mounted by an earlier process is among it
    /// from the beginning.
    pub(crate) fn volumes_in_use(&self) -> Vec<String> {
        let answers = self.answers.borrow();
        let is_attachable = |name: &&String| {
            let driver = answers.get(rules::driver_of(name));
            driver.is_none_or(|answer| rules::needs_attach(&answer["driver"]))
        };
        self.in_use.borrow().keys().filter(is_attachable).cloned().collect()
    }

    /// The server has these `volumesInUse`.
    pub(crate) fn set_reported(&self, volumes: &[String]) {
        let volumes = volumes.iter().cloned().collect();
        if self.reported.replace(volumes) != *self.reported.borrow() {
            self.note_change();
        }
    }

    /// Changes when `volumes_in_use` does, and when pods that wait for a volume may try again.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    #[cfg(test)]
    pub(crate) fn driver_names(&self) -> Vec<String> {
        self.drivers.borrow().keys().cloned().collect()
    }

    fn set_attached(&self, volumes: impl IntoIterator<Item = String>) {
        let volumes: BTreeSet<String> = volumes.into_iter().into_set();
        if *self.attached.borrow() != volumes {
            self.attached.replace(volumes);
            self.note_change();
        }
    }

    /// CSINode or the Node may have to be written.
    fn note_stale(&self) {
        self.is_stale.set(true);
        self.wake.notify_one();
        self.note_change();
    }

    /// The driver asks for its volumes to be published again from time to time.
    fn republishes(&self, driver: &str) -> bool {
        self.answers
            .borrow()
            .get(driver)
            .is_some_and(|known| known["driver"]["spec"]["requiresRepublish"] == true)
    }

    fn note_change(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    fn driver(&self, name: &str) -> Result<PluginClient, String> {
        let drivers = self.drivers.borrow();
        let missing = || format!("driver name {name} not found in the list of registered CSI drivers");
        drivers.get(name).map(|driver| driver.client.clone()).ok_or_else(missing)
    }

    /// Runs one attempt for a volume, which goes on when the caller no longer waits.
    fn attempt<R: 'static>(
        self: Rc<Self>,
        key: String,
        job: impl Future<Output = Result<R, String>> + 'static,
    ) -> CsiAnswer<R> {
        Box::pin(async move {
            if !self.busy.borrow_mut().insert(key.clone()) {
                return Err(format!("an operation with the name {key:?} is already executing"));
            }
            let (answer, answered) = oneshot::channel();
            rt::spawn("csi volume", async move {
                let result = job.await;
                self.busy.borrow_mut().remove(&key);
                // The caller may be gone; then the next attempt finds what this one has done.
                let _ = answer.send(result);
            });
            match tokio::time::timeout(PATIENCE, answered).await {
                Ok(Ok(result)) => result,
                _ => Err("waiting for the CSI driver to respond".to_owned()),
            }
        })
    }

    async fn mount(&self, volume: CsiVolume) -> Result<CsiPublished, String> {
        let name = volume.source["driver"].as_str().unwrap_or_default().to_owned();
        let (handle, is_claimed) = (handle(&volume), volume.claimed.is_some());
        let client = self.driver(&name)?;
        let object = self.driver_object(&name).await?;
        rules::check_lifecycle(&name, &object, !is_claimed)?;
        let publish_context = if is_claimed && rules::needs_attach(&object) {
            self.publish_context(&name, &handle).await?
        } else {
            StringMap::new()
        };
        let can = calls::capabilities(&client).await.map_err(|error: PluginError| error.message)?;
        let can = |capability| can.contains(&capability);
        let mut call = CsiCall {
            handle: handle.clone(),
            publish_context,
            capability: calls::capability(&volume, can(MULTI_WRITER), can(MOUNT_GROUP)),
            context: rules::string_map(&volume.source["volumeAttributes"]),
            read_only: volume.read_only,
            secrets: self.secret(&volume, "nodeStageSecretRef").await?,
            ..CsiCall::default()
        };
        let secrets = self.secret(&volume, "nodePublishSecretRef").await?;
        self.keep_answers(&name, is_claimed.then(|| rules::unique_name(&name, &handle))).await;
        if is_claimed && can(STAGE_UNSTAGE) {
            let staging = self.staging(&name, &handle);
            call.staging = staging.display().to_string();
            if !volume.is_again {
                self.stage(&client, call.clone(), &name, &staging).await?;
            }
        }
        call.context = rules::volume_context(&object, &volume);
        call.secrets = secrets;
        self.add_tokens(&object, &volume, &mut call).await?;
        let apply_group = !can(MOUNT_GROUP) && rules::applies_group(&object, &volume);
        let record = CsiRecord {
            volume: volume.claimed.as_ref().map_or(&volume.name, |claimed| &claimed.name).clone(),
            attachment: rules::attachment_name(&handle, &name, &self.parts.node_name),
            node: self.parts.node_name.clone(),
            is_ephemeral: !is_claimed,
            is_published: volume.is_again,
            driver: name.clone(),
            handle,
        };
        save(record, &volume.target, false).await?;
        if let Err(error) = calls::publish(&client, call, &volume.target).await {
            self.clean(&volume.target, error.code).await;
            return Err(error.message);
        }
        self.published.borrow_mut().insert(volume.target.clone(), (volume, Instant::now()));
        // Its claim is read at once.
        self.resized.take();
        self.wake.notify_one();
        Ok(CsiPublished { apply_group })
    }

    async fn stage(
        &self,
        client: &PluginClient,
        call: CsiCall,
        driver: &str,
        staging: &Path,
    ) -> Result<(), String> {
        let handle = call.handle.clone();
        let name = rules::unique_name(driver, &handle);
        let record = CsiRecord { driver: driver.to_owned(), handle, ..CsiRecord::default() };
        save(record, staging, true).await?;
        self.hold(&name, staging);
        let Err(error) = calls::stage(client, call).await else { return Ok(()) };
        self.clean(staging, error.code).await;
        Err(format!("MountVolume.MountDevice failed : {}", error.message))
    }

    async fn unmount(&self, record: CsiRecord, target: PathBuf) -> Result<(), String> {
        let client = self.driver(&record.driver)?;
        calls::unpublish(&client, &record.handle, &target).await.map_err(|error| error.message)?;
        let place = target.clone();
        let removed = rt::blocking("remove CSI volume", move || remove_mount_dir(&place)).await;
        removed.map_err(|error| format!("failed to clean mount dir {}: {error}", target.display()))?;
        self.published.borrow_mut().remove(&target);
        if record.is_ephemeral {
            return Ok(());
        }
        self.release(&target);
        if let Err(why) = self.unstage_unused(&record.driver, &record.handle).await {
            log::warn!(driver = record.driver, volume = record.handle, err = why; "Failed to unstage CSI volume");
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Unstages a volume that no pod uses. The records decide, not the memory of this process.
    async fn unstage_unused(&self, driver: &str, handle: &str) -> Result<(), String> {
        let (root, staging) = (self.parts.root_dir.clone(), self.staging(driver, handle));
        let place = staging.clone();
        let of = (driver.to_owned(), handle.to_owned());
        let is_unused = rt::blocking("find users of CSI volume", move || {
            let found = disk_records(&root)?;
            let mut users = found.iter().filter(|(_, record)| {
                !record.volume.is_empty() && (&record.driver, &record.handle) == (&of.0, &of.1)
            });
            Ok::<_, io::Error>(place.parent().is_some_and(Path::exists) && users.next().is_none())
        });
        if !is_unused.await.map_err(|error| error.to_string())? {
            self.release(&staging);
            return Ok(());
        }
        let client = self.driver(driver)?;
        calls::unstage(&client, handle, &staging).await.map_err(|error| error.message)?;
        let place = staging.clone();
        let removed = rt::blocking("remove staged CSI volume", move || remove_mount_dir(&place)).await;
        removed.map_err(|error| format!("failed to clean up global mount {}: {error}", staging.display()))?;
        self.release(&staging);
        Ok(())
    }

    /// Removes the place of a volume whose mount has failed. After an uncertain error it stays, with its record.
    async fn clean(&self, target: &Path, code: i32) {
        if !rules::is_final(code) {
            return;
        }
        let place = target.to_owned();
        if let Err(error) = rt::blocking("remove CSI volume", move || remove_mount_dir(&place)).await {
            log::warn!(path:% = target.display(), err:% = error; "Failed to remove the place of a CSI volume");
        }
    }

    fn staging(&self, driver: &str, handle: &str) -> PathBuf {
        self.parts.root_dir.join(STAGING_DIR).join(rules::staging_place(driver, handle))
    }

    fn hold(&self, name: &str, place: &Path) {
        if self.in_use.borrow_mut().entry(name.to_owned()).or_default().insert(place.to_owned()) {
            self.note_change();
        }
    }

    /// A place has the volume no more.
    fn release(&self, place: &Path) {
        let _ = self.release_all(|known| known == place);
    }

    fn release_all(&self, is_gone: impl Fn(&Path) -> bool) -> bool {
        let mut in_use = self.in_use.borrow_mut();
        let count = |in_use: &BTreeMap<String, BTreeSet<PathBuf>>| in_use.values().map(BTreeSet::len).sum();
        let before: usize = count(&in_use);
        for places in in_use.values_mut() {
            places.retain(|place| !is_gone(place));
        }
        let is_changed = count(&in_use) != before;
        in_use.retain(|_, places| !places.is_empty());
        drop(in_use);
        if is_changed {
            self.note_change();
            // What is known of volumes without a user can go.
            self.wake.notify_one();
        }
        is_changed
    }
}

impl<T: Transport> CsiVolumes for CsiNode<T> {
    fn publish(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<CsiPublished> {
        let driver = volume.source["driver"].as_str().unwrap_or_default().to_owned();
        let key = match &volume.claimed {
            None => volume.target.display().to_string(),
            Some(claimed) => {
                let key = rules::unique_name(&driver, &handle(&volume));
                let staging = self.staging(&driver, &handle(&volume));
                let others = |places: &BTreeSet<PathBuf>| {
                    places.iter().any(|place| *place != volume.target && *place != staging)
                };
                if claimed.single_pod && self.in_use.borrow().get(&key).is_some_and(others) {
                    let why =
                        "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
                    return Box::pin(std::future::ready(Err(why.to_owned())));
                }
                // Before it is attached: the controller attaches what the node says it uses.
                self.hold(&key, &volume.target);
                key
            }
        };
        let node = Rc::clone(&self);
        self.attempt(key, async move { node.mount(volume).await })
    }

    fn unpublish(self: Rc<Self>, record: CsiRecord, target: PathBuf) -> CsiAnswer<()> {
        let key = if record.is_ephemeral {
            target.display().to_string()
        } else {
            rules::unique_name(&record.driver, &record.handle)
        };
        let node = Rc::clone(&self);
        self.attempt(key, async move { node.unmount(record, target).await })
    }

    fn usage(self: Rc<Self>, target: PathBuf) -> CsiAnswer<Option<FileSystemFacts>> {
        Box::pin(async move {
            let directory = target.parent().unwrap_or(&target).to_owned();
            let loaded = rt::blocking("read CSI volume", move || CsiRecord::load(&directory)).await;
            let record = loaded.map_err(|error| error.to_string())?.filter(|record| record.is_published);
            let record = record.ok_or_else(|| "the volume is not mounted".to_owned())?;
            let client = self.driver(&record.driver)?;
            let usage = async {
                let can = calls::capabilities(&client).await?;
                if !can.contains(&VOLUME_STATS) {
                    return Ok(None);
                }
                calls::usage(&client, &record.handle, &target).await.map(Some)
            };
            usage.await.map_err(|error: PluginError| error.message)
        })
    }

    fn generation(&self) -> u64 {
        *self.changed.borrow()
    }

    fn is_due(&self, volume: &CsiVolume) -> bool {
        let mut published = self.published.borrow_mut();
        let now = Instant::now();
        let last = published.get(&volume.target).map(|(_, last)| *last);
        let driver = volume.source["driver"].as_str().unwrap_or_default();
        let is_due = last.is_none_or(|last| now.duration_since(last) >= AGAIN / 2)
            && self.republishes(driver)
            && self.driver(driver).is_ok();
        if is_due || last.is_none() {
            // Also when it fails: the next time is as far.
            published.insert(volume.target.clone(), (volume.clone(), now));
            self.wake.notify_one();
        }
        is_due
    }

    fn forget(&self, pod_dir: &Path) {
        let uid = pod_dir.file_name().unwrap_or_default();
        self.tokens.borrow_mut().retain(|request, _| *request.pod.uid.as_str() != *uid);
        self.published.borrow_mut().retain(|place, _| !place.starts_with(pod_dir));
        if self.release_all(|place| place.starts_with(pod_dir)) {
            // It may have been staged for this pod, and not published.
            self.wake.notify_one();
        }
    }
}

fn handle(volume: &CsiVolume) -> String {
    match &volume.claimed {
        Some(_) => volume.source["volumeHandle"].as_str().unwrap_or_default().to_owned(),
        None => rules::inline_handle(volume.pod.uid.as_str(), &volume.name),
    }
}

/// Writes the record of a volume into the directory above its mount. The place of a staged volume must exist before
/// the call; that of a pod's volume is the driver's to create.
async fn save(record: CsiRecord, target: &Path, with_place: bool) -> Result<(), String> {
    let (place, shown) = (target.to_owned(), target.display().to_string());
    let saved = rt::blocking("record CSI volume", move || {
        record.save(place.parent().unwrap_or(&place))?;
        if with_place { std::fs::create_dir_all(&place) } else { Ok(()) }
    });
    saved.await.map_err(|error| format!("failed to save volume info data of {shown}: {error}"))
}

/// The records of all pods and of all staged volumes, each with the place of its mount.
fn disk_records(root: &Path) -> io::Result<Vec<(PathBuf, CsiRecord)>> {
    let list = |directory: &Path| -> io::Result<Vec<PathBuf>> {
        match std::fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            entries => {
                let paths: io::Result<Vec<PathBuf>> = entries?.map(|entry| Ok(entry?.path())).collect();
                Ok(paths?.into_iter().filter(|path| path.is_dir()).collect())
            }
        }
    };
    let mut found = Vec::new();
    for pod in list(&root.join("pods"))? {
        let of_pod = records(&pod)?.into_iter();
        found.extend(of_pod.map(|(directory, record)| (directory.join("mount"), record)));
    }
    for driver in list(&root.join(STAGING_DIR))? {
        for volume in list(&driver)? {
            if let Some(record) = CsiRecord::load(&volume)? {
                found.push((volume.join("globalmount"), record));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
