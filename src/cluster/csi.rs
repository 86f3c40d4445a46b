//! The node's side of CSI: drivers that register, and the volumes that they mount for pods.
//!
//! Owns the registered drivers and which volumes the node uses. What is mounted is on disk (`pod::volume::csi`, and
//! `plugins/kubernetes.io/csi` of the root directory for staged volumes), so that a later process can unmount it: a
//! record is written before the driver is called, and removed when nothing can be mounted any more. Nothing here ends
//! the node: without an API server, or without permission for CSINode, drivers still mount what needs neither.
//!
//! | file | what |
//! |---|---|
//! | `calls` | the calls of a driver |
//! | `register` | registration, CSINode, annotation and labels of the Node |
//! | `rules` | pure |

pub(crate) mod rules;

mod calls;
mod register;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::tokens;
use crate::codec::base64;
use crate::devices::client::{PluginClient, PluginError};
use crate::model::api::pod::StringMap;
use crate::model::objects::{ObjectLookup, TokenRequest};
use crate::platform::dice::Dice;
use crate::platform::rt;
use crate::pod::volume::Volumes;
use crate::pod::volume::csi::{
    CsiAnswer, CsiPublished, CsiRecord, CsiVolume, CsiVolumes, records, remove_mount_dir,
};

use calls::CsiCall;
use rules::{DriverInfo, MOUNT_GROUP, MULTI_WRITER, STAGE_UNSTAGE};

const STORAGE: &str = "storage.k8s.io";
/// Below the root directory: upstream's places of staged volumes.
const STAGING_DIR: &str = "plugins/kubernetes.io/csi";
/// How long a pod's worker waits for one attempt. The attempt goes on.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct CsiParts<T> {
    pub client: Rc<Client<T>>,
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
}

pub(crate) struct CsiNode<T> {
    parts: CsiParts<T>,
    drivers: RefCell<BTreeMap<String, Driver>>,
    /// Drivers that were removed and may still be in CSINode.
    gone: RefCell<BTreeSet<String>>,
    /// CSIDriver objects as last read; null when there is none.
    objects: RefCell<BTreeMap<String, Value>>,
    /// `status.volumesAttached` of the Node.
    attached: RefCell<BTreeSet<String>>,
    /// Empty until it is known.
    node_uid: RefCell<String>,
    /// By unique name: the places in pods that wait for a volume or have it, and where it is staged.
    in_use: RefCell<BTreeMap<String, BTreeSet<PathBuf>>>,
    /// Volumes with an attempt under way.
    busy: RefCell<BTreeSet<String>>,
    changed: watch::Sender<u64>,
    /// Something of the drivers is not shown yet.
    is_stale: Cell<bool>,
    /// Wakes the task.
    wake: Notify,
}

impl<T: Transport> CsiNode<T> {
    /// Reads the records of an earlier process: their volumes are in use. Blocks for a moment.
    pub(crate) fn new(parts: CsiParts<T>) -> Rc<Self> {
        let node = Self {
            drivers: RefCell::default(),
            gone: RefCell::default(),
            objects: RefCell::default(),
            attached: RefCell::default(),
            node_uid: RefCell::default(),
            in_use: RefCell::default(),
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

    /// `status.volumesInUse`, sorted. What was mounted by an earlier process is among it from the beginning.
    pub(crate) fn volumes_in_use(&self) -> Vec<String> {
        self.in_use.borrow().keys().cloned().collect()
    }

    #[cfg_attr(
        test,
        expect(dead_code, reason = "the node's status follows it once the registry is connected")
    )]
    /// Changes when `volumes_in_use` does, and when pods that wait for a volume may try again.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Names of the registered drivers, for reports.
    pub(crate) fn driver_names(&self) -> Vec<String> {
        self.drivers.borrow().keys().cloned().collect()
    }

    fn set_attached(&self, volumes: impl IntoIterator<Item = String>) {
        let volumes: BTreeSet<String> = volumes.into_iter().collect();
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
        let handle = handle(&volume);
        let client = self.driver(&name)?;
        let object = self.driver_object(&name).await?;
        rules::check_lifecycle(&name, &object, volume.claimed.is_none())?;
        let publish_context = match &volume.claimed {
            Some(_) if rules::needs_attach(&object) => self.publish_context(&name, &handle).await?,
            _ => StringMap::new(),
        };
        let can = calls::capabilities(&client).await.map_err(|error: PluginError| error.message)?;
        let can = |capability| can.contains(&capability);
        let mut call = CsiCall {
            handle: handle.clone(),
            publish_context,
            capability: calls::capability(&volume, can(MULTI_WRITER), can(MOUNT_GROUP)),
            context: rules::string_map(&volume.source["volumeAttributes"]),
            read_only: volume.read_only,
            ..CsiCall::default()
        };
        if volume.claimed.is_some() && can(STAGE_UNSTAGE) {
            let staging = self.staging(&name, &handle);
            call.staging = staging.display().to_string();
            call.secrets = self.secret(&volume, "nodeStageSecretRef").await?;
            let record = CsiRecord { driver: name.clone(), handle: handle.clone(), ..CsiRecord::default() };
            save(record, &staging, true).await?;
            self.hold(&rules::unique_name(&name, &handle), &staging);
            if let Err(error) = calls::stage(&client, call.clone()).await {
                self.clean(&staging, error.code).await;
                return Err(format!("MountVolume.MountDevice failed : {}", error.message));
            }
        }
        call.context = rules::volume_context(&object, &volume);
        call.secrets = self.secret(&volume, "nodePublishSecretRef").await?;
        self.add_tokens(&object, &volume, &mut call).await?;
        let record = CsiRecord {
            volume: volume.claimed.as_ref().map_or(&volume.name, |claimed| &claimed.name).clone(),
            attachment: rules::attachment_name(&handle, &name, &self.parts.node_name),
            node: self.parts.node_name.clone(),
            is_ephemeral: volume.claimed.is_none(),
            is_published: false,
            driver: name,
            handle,
        };
        save(record, &volume.target, false).await?;
        if let Err(error) = calls::publish(&client, call, &volume.target).await {
            self.clean(&volume.target, error.code).await;
            return Err(error.message);
        }
        Ok(CsiPublished { apply_group: !can(MOUNT_GROUP) && rules::applies_group(&object, &volume) })
    }

    async fn unmount(&self, record: CsiRecord, target: PathBuf) -> Result<(), String> {
        let client = self.driver(&record.driver)?;
        calls::unpublish(&client, &record.handle, &target).await.map_err(|error| error.message)?;
        let place = target.clone();
        let removed = rt::blocking("remove CSI volume", move || remove_mount_dir(&place)).await;
        removed.map_err(|error| format!("failed to clean mount dir {}: {error}", target.display()))?;
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
        }
        is_changed
    }

    /// The CSIDriver object, null without one. While the server does not answer, as it was last read.
    async fn driver_object(&self, name: &str) -> Result<Value, String> {
        let path = ResourcePath::whole(STORAGE, "csidrivers", name);
        let object = match self.parts.client.get(Lane::Main, &path, Accept::Json).await {
            Ok(object) => object,
            Err(error) if error.kind == ApiErrorKind::NotFound => Value::Null,
            Err(error) => {
                let known = self.objects.borrow().get(name).cloned();
                return known.ok_or_else(|| format!("failed to get CSIDriver {name:?}: {error}"));
            }
        };
        self.objects.borrow_mut().insert(name.to_owned(), object.clone());
        Ok(object)
    }

    async fn publish_context(&self, driver: &str, handle: &str) -> Result<StringMap, String> {
        let unique = rules::unique_name(driver, handle);
        if !self.attached.borrow().contains(&unique) {
            return Err(rules::not_attached(&unique));
        }
        let name = rules::attachment_name(handle, driver, &self.parts.node_name);
        let path = ResourcePath::whole(STORAGE, "volumeattachments", &name);
        let answer = self.parts.client.get(Lane::Main, &path, Accept::Json).await;
        rules::publish_context(&answer.map_err(|error| error.to_string())?, &unique)
    }

    /// The Secret that a member of the volume's source names; empty without one.
    async fn secret(&self, volume: &CsiVolume, member: &str) -> Result<StringMap, String> {
        let reference = &volume.source[member];
        let Some(name) = reference["name"].as_str().filter(|name| !name.is_empty()) else {
            return Ok(StringMap::new());
        };
        // An inline volume has the Secrets of its pod's namespace only.
        let namespace = match &volume.claimed {
            Some(_) => reference["namespace"].as_str().unwrap_or_default(),
            None => &volume.pod.namespace,
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if let Some(data) = self.parts.objects.of(volume.realm).secret(namespace, name) {
            return Ok(data.iter().map(|(key, value)| (key.clone(), text(value))).collect());
        }
        let path = ResourcePath::namespaced("", "secrets", namespace, name);
        let answer: Result<Value, ApiError> = self.parts.client.get(Lane::Main, &path, Accept::Json).await;
        let failed = |error| {
            format!("failed to find the secret {name} in the namespace {namespace} with error: {error}")
        };
        let object = answer.map_err(failed)?;
        let decode = |value: &Value| base64::decode(value.as_str()?).map(|bytes| text(&bytes));
        let data = object["data"].as_object().into_iter().flatten();
        Ok(data.filter_map(|(key, value)| Some((key.clone(), decode(value)?))).collect())
    }

    /// Tokens that the driver asks for by `tokenRequests`.
    async fn add_tokens(&self, object: &Value, volume: &CsiVolume, call: &mut CsiCall) -> Result<(), String> {
        let wanted = object["spec"]["tokenRequests"].as_array().into_iter().flatten();
        let mut tokens = Map::new();
        for each in wanted {
            let request = TokenRequest {
                namespace: volume.pod.namespace.clone(),
                account: volume.account.clone(),
                pod: volume.pod.clone(),
                audience: each["audience"].as_str().unwrap_or_default().to_owned(),
                seconds: each["expirationSeconds"].as_i64().unwrap_or(3600),
            };
            let path = ResourcePath::namespaced("", "serviceaccounts", &request.namespace, &request.account);
            let body = tokens::rules::body(&request);
            let answer = self.parts.client.create(Lane::Main, &path.with_part("token"), &body).await;
            let answer = answer.map_err(|error| format!("failed to get service account token: {error}"))?;
            tokens.insert(request.audience, answer["status"].clone());
        }
        if !tokens.is_empty() {
            let into = if object["spec"]["serviceAccountTokenInSecrets"] == true {
                &mut call.secrets
            } else {
                &mut call.context
            };
            let key = "csi.storage.k8s.io/serviceAccount.tokens".to_owned();
            into.insert(key, Value::from(tokens).to_string());
        }
        Ok(())
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

    fn generation(&self) -> u64 {
        *self.changed.borrow()
    }

    fn forget(&self, pod_dir: &Path) {
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
