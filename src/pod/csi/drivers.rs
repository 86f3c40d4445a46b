//! The drivers that have registered, and the volumes that they have on this node.
//!
//! Owns them, and which attempts are under way: calls of one volume never run at the same time. What is mounted is on
//! disk: a record is written before a driver is called, and removed when nothing can be mounted any more.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::calls::{self, CsiCall};
use super::rules::{self, DriverInfo};
use crate::devices::client::PluginClient;
use crate::devices::plugins::CsiPlugins;
use crate::platform::rt;
use crate::pod::volume::csi::{CsiAnswer, CsiRecord, CsiVolume, records, remove_mount_dir};

/// Below the root directory: upstream's places of staged volumes.
const STAGING_DIR: &str = "plugins/kubernetes.io/csi";
/// How long a pod's worker waits for one attempt. The attempt goes on.
const PATIENCE: Duration = Duration::from_secs(10);
/// A driver may ask a cloud's metadata service first.
const INFO_LIMIT: Duration = Duration::from_secs(30);

/// A registered driver.
pub(crate) struct Driver {
    client: PluginClient,
    version: Vec<u32>,
    pub info: DriverInfo,
    pub can_expand: bool,
}

pub(crate) struct CsiDrivers {
    /// `--root-dir`.
    root_dir: PathBuf,
    pub node_name: String,
    pub drivers: RefCell<BTreeMap<String, Driver>>,
    /// Drivers that were removed and may still be in CSINode.
    pub gone: RefCell<BTreeSet<String>>,
    /// Something of the drivers is not shown yet.
    pub is_stale: Cell<bool>,
    /// By unique name: the places in pods that wait for a volume or have it, and where it is staged.
    pub in_use: RefCell<BTreeMap<String, BTreeSet<PathBuf>>>,
    /// By place: the volumes of pods, and when they were published.
    pub published: RefCell<BTreeMap<PathBuf, (CsiVolume, Instant)>>,
    /// One was published since this was last asked.
    pub has_new: Cell<bool>,
    /// Volumes with an attempt under way.
    busy: RefCell<BTreeSet<String>>,
    pub(super) changed: watch::Sender<u64>,
    /// Wakes the task.
    pub wake: Notify,
}

impl CsiDrivers {
    /// Reads the records of an earlier process: their volumes are in use. Blocks for a moment.
    pub(crate) fn new(root_dir: PathBuf, node_name: String) -> Rc<Self> {
        let node = Self {
            root_dir,
            node_name,
            drivers: RefCell::default(),
            gone: RefCell::default(),
            is_stale: Cell::default(),
            in_use: RefCell::default(),
            published: RefCell::default(),
            has_new: Cell::default(),
            busy: RefCell::default(),
            changed: watch::Sender::new(0),
            wake: Notify::new(),
        };
        match disk_records(&node.root_dir) {
            Ok(found) => {
                let mut in_use = node.in_use.borrow_mut();
                for (place, record) in found.into_iter().filter(|(_, record)| !record.is_ephemeral) {
                    let name = rules::unique_name(&record.driver, &record.handle);
                    in_use.entry(name).or_default().insert(place);
                }
            }
            Err(error) => log::warn!(err:% = error; "Failed to read the records of CSI volumes"),
        }
        Rc::new(node)
    }

    /// Changes with the volumes in use, and when pods that wait for a volume may try again.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    #[cfg(test)]
    pub(crate) fn driver_names(&self) -> Vec<String> {
        self.drivers.borrow().keys().cloned().collect()
    }

    pub(crate) fn note_change(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    /// What is shown of the drivers may have to be written.
    pub(crate) fn note_stale(&self) {
        self.is_stale.set(true);
        self.wake.notify_one();
        self.note_change();
    }

    pub(crate) fn driver(&self, name: &str) -> Result<PluginClient, String> {
        let drivers = self.drivers.borrow();
        let missing = || format!("driver name {name} not found in the list of registered CSI drivers");
        drivers.get(name).map(|driver| driver.client.clone()).ok_or_else(missing)
    }

    /// Runs one attempt for a volume, which goes on when the caller no longer waits.
    pub(crate) fn attempt<R: 'static>(
        self: &Rc<Self>,
        key: String,
        job: impl Future<Output = Result<R, String>> + 'static,
    ) -> CsiAnswer<R> {
        let node = Rc::clone(self);
        Box::pin(async move {
            if !node.busy.borrow_mut().insert(key.clone()) {
                return Err(format!("an operation with the name {key:?} is already executing"));
            }
            let (answer, answered) = oneshot::channel();
            rt::spawn("csi volume", async move {
                let result = job.await;
                node.busy.borrow_mut().remove(&key);
                // The caller may be gone; then the next attempt finds what this one has done.
                let _ = answer.send(result);
            });
            match tokio::time::timeout(PATIENCE, answered).await {
                Ok(Ok(result)) => result,
                _ => Err("waiting for the CSI driver to respond".to_owned()),
            }
        })
    }

    pub(super) async fn stage(
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

    pub(super) async fn unmount(&self, record: CsiRecord, target: PathBuf) -> Result<(), String> {
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
        let (root, staging) = (self.root_dir.clone(), self.staging(driver, handle));
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
    pub(super) async fn clean(&self, target: &Path, code: i32) {
        if !rules::is_final(code) {
            return;
        }
        let place = target.to_owned();
        if let Err(error) = rt::blocking("remove CSI volume", move || remove_mount_dir(&place)).await {
            log::warn!(path:% = target.display(), err:% = error; "Failed to remove the place of a CSI volume");
        }
    }

    /// Unstages volumes that no pod has or waits for: a crash, or a driver that failed, has left them.
    pub(super) async fn sweep(self: &Rc<Self>) -> Result<(), String> {
        let root = self.root_dir.clone();
        let found = rt::blocking("list staged CSI volumes", move || disk_records(&root)).await;
        let mut result = Ok(());
        for (place, record) in found.map_err(|error| error.to_string())? {
            let is_staged = record.volume.is_empty() && self.driver(&record.driver).is_ok();
            let key = rules::unique_name(&record.driver, &record.handle);
            let is_used =
                self.in_use.borrow().get(&key).is_some_and(|places| places.iter().any(|each| *each != place));
            // What a pod's attempt leaves is found when it has ended.
            if !is_staged || is_used || self.busy.borrow().contains(&key) {
                continue;
            }
            let node = Rc::clone(self);
            let unstage = async move { node.unstage_unused(&record.driver, &record.handle).await };
            result = result.and(self.attempt(key, unstage).await);
        }
        result
    }

    pub(crate) fn staging(&self, driver: &str, handle: &str) -> PathBuf {
        self.root_dir.join(STAGING_DIR).join(rules::staging_place(driver, handle))
    }

    pub(super) fn hold(&self, name: &str, place: &Path) {
        if self.in_use.borrow_mut().entry(name.to_owned()).or_default().insert(place.to_owned()) {
            self.note_change();
        }
    }

    /// A place has the volume no more.
    fn release(&self, place: &Path) {
        let _ = self.release_all(|known| known == place);
    }

    pub(super) fn release_all(&self, is_gone: impl Fn(&Path) -> bool) -> bool {
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

impl CsiPlugins for CsiDrivers {
    fn register(
        self: Rc<Self>,
        name: String,
        versions: Vec<String>,
        endpoint: PathBuf,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>>>> {
        Box::pin(async move {
            let failed = |why: &str| {
                let place = endpoint.display();
                format!(
                    "validation failed for CSI Driver {name} at endpoint {place}: kubernetes.io/csi: {why}"
                )
            };
            let version = rules::highest_version(&versions).ok_or_else(|| {
                failed(&format!("None of the versions specified {versions:?} are supported"))
            })?;
            if self.drivers.borrow().get(&name).is_some_and(|known| known.version > version) {
                let why =
                    "Another driver with the same name is already registered with a higher supported version";
                return Err(failed(why));
            }
            let client = PluginClient::new(endpoint.clone());
            let info = calls::info(&client, INFO_LIMIT).await.map_err(|error| error.message)?;
            let can = calls::capabilities(&client).await.map_err(|error| error.message)?;
            let can_expand = can.contains(&rules::EXPAND_VOLUME);
            if info.node_id.is_empty() {
                return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
            }
            log::info!(driver = name, endpoint:% = endpoint.display(), nodeID = info.node_id; "Registered CSI driver");
            self.gone.borrow_mut().remove(&name);
            self.drivers.borrow_mut().insert(name, Driver { client, version, info, can_expand });
            self.note_stale();
            Ok(())
        })
    }

    fn remove(&self, name: &str) {
        if self.drivers.borrow_mut().remove(name).is_some() {
            log::info!(driver = name; "Removed CSI driver");
            self.gone.borrow_mut().insert(name.to_owned());
            self.note_stale();
        }
    }
}

/// Writes the record of a volume into the directory above its mount. The place of a staged volume must exist before
/// the call; that of a pod's volume is the driver's to create.
pub(crate) async fn save(record: CsiRecord, target: &Path, with_place: bool) -> Result<(), String> {
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
