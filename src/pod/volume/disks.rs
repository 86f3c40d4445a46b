//! `iscsi` and `fc`: a disk of the network, mounted once on the node and bound into each pod that has it.
//!
//! Owns `plugins/kubernetes.io/{iscsi,fc}` of the root directory, where disks are mounted, and
//! `volumes/kubernetes.io~{iscsi,fc}` of a pod. There is no memory of what is attached: a record lies in the place of a disk
//! (below its mount) before anything is attached, and is removed when nothing is. Which pods use a disk is what is
//! mounted; a link in `plugins/kubernetes.io~{iscsi,fc}` of a pod leads to the place of each disk that it wants. An
//! attempt may wait for minutes; the pod's worker waits for a moment and retries.
//!
//! | file | what |
//! |---|---|
//! | `block` | what is on a device; formatting, mounting |
//! | `fc`, `iscsi` | attaching and detaching |
//! | `local` | block devices of `local` volumes |

mod block;
mod fc;
mod iscsi;
mod local;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Mutex, oneshot};

use super::csi::{CsiVolume, unmount_sub_paths};
use super::nfs::PATIENCE;
use super::remote::{self, RemoteJobs};
use super::{
    FsGroup, MountedVolume, VolumeError, Volumes, csi_volume, fs_group, make_dir, ownership, plugin_dir,
};
use crate::model::api::pod::{Pod, StringMap};
use crate::model::objects::ClaimedVolume;
use crate::model::objects::volumes::{DISKS, texts};
use crate::model::provenance::realm;
use crate::platform::rt;
use crate::platform::sys::durable::write_durably;
use crate::platform::sys::mount;

use block::BlockHost;
use fc::FcDisk;
use iscsi::IscsiDisk;

/// Beside the disks: block volumes of upstream's kubelet.
const DEVICES_DIR: &str = "volumeDevices";

enum NetworkDisk {
    Iscsi(IscsiDisk),
    Fc(FcDisk),
}

impl NetworkDisk {
    fn of(kind: &str, volume: &str, source: &Value) -> Result<Self, String> {
        Ok(match kind {
            "fc" => Self::Fc(FcDisk::of(source)?),
            _ => Self::Iscsi(IscsiDisk::of(volume, source)?),
        })
    }

    fn place(&self) -> PathBuf {
        match self {
            Self::Iscsi(disk) => disk.place(),
            Self::Fc(disk) => disk.place(),
        }
    }
}

/// A disk that a pod wants.
struct WantedDisk {
    disk: NetworkDisk,
    record: Value,
    secret: StringMap,
    /// Where it is mounted on the node.
    place: PathBuf,
    /// Where the pod has it.
    target: PathBuf,
    fs_type: String,
    options: Vec<String>,
    read_only: bool,
    /// The pods' directory, when one pod may have the volume.
    single_below: Option<PathBuf>,
}

pub(super) struct NetworkDisks {
    host: Arc<BlockHost>,
    plugins: PathBuf,
    pods: PathBuf,
    jobs: RemoteJobs,
    /// By target: calls of one target never run at the same time.
    locks: RefCell<BTreeMap<String, Arc<Mutex<()>>>>,
    /// Places in pods, and pods, with an attempt under way.
    busy: RefCell<BTreeSet<PathBuf>>,
    /// Why the last attempt failed.
    failures: RefCell<BTreeMap<PathBuf, String>>,
}

impl NetworkDisks {
    pub(super) fn new(pods: &Path, jobs: &RemoteJobs) -> Rc<Self> {
        Self::on(BlockHost::new(), pods, jobs)
    }

    fn on(host: BlockHost, pods: &Path, jobs: &RemoteJobs) -> Rc<Self> {
        Rc::new(Self {
            host: Arc::new(host),
            plugins: pods.with_file_name("plugins/kubernetes.io"),
            pods: pods.to_owned(),
            jobs: Rc::clone(jobs),
            locks: RefCell::default(),
            busy: RefCell::default(),
            failures: RefCell::default(),
        })
    }

    fn lock(&self, place: &Path) -> Arc<Mutex<()>> {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let key = iscsi::names_of(&name).map_or(&*name, |(_, target, _)| target);
        let mut locks = self.locks.borrow_mut();
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(key.to_owned()).or_default())
    }

    /// Runs one attempt, which goes on when the caller no longer waits.
    async fn attempt(
        self: &Rc<Self>,
        key: PathBuf,
        job: impl Future<Output = Result<(), String>> + 'static,
    ) -> Result<(), String> {
        let disks = Rc::clone(self);
        let waiting = |disks: &Self| match disks.failures.borrow().get(&key) {
            Some(why) => format!("waiting for the disk; the last attempt failed: {why}"),
            None => "waiting for the disk".to_owned(),
        };
        if !self.busy.borrow_mut().insert(key.clone()) {
            return Err(waiting(self));
        }
        let (answer, answered) = oneshot::channel();
        let at = key.clone();
        rt::spawn("disk", async move {
            let result = job.await;
            disks.busy.borrow_mut().remove(&at);
            let mut failures = disks.failures.borrow_mut();
            match &result {
                Ok(()) => drop(failures.remove(&at)),
                Err(why) => drop(failures.insert(at, why.clone())),
            }
            drop(failures);
            // The caller may be gone; then the next attempt finds what this one has done.
            let _ = answer.send(result);
        });
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(result)) => result,
            _ => Err(waiting(self)),
        }
    }

    /// In a thread of its own, however long it takes.
    async fn run(
        &self,
        key: &Path,
        job: impl FnOnce(&BlockHost) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let host = Arc::clone(&self.host);
        let done = remote::run(&self.jobs, key, Duration::MAX, move || job(&host));
        done.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    async fn set_up(
        self: Rc<Self>,
        wanted: Arc<WantedDisk>,
        volume: String,
        group: Option<FsGroup>,
    ) -> Result<(), String> {
        // Until the pod has it: another pod's end must not detach it.
        let _held = self.lock(&wanted.place).lock_owned().await;
        let job = Arc::clone(&wanted);
        self.run(&wanted.target, move |host| mount_disk(host, &job)).await?;
        if let (Some(FsGroup { group, policy }), false) = (group, wanted.read_only) {
            let applied = ownership::apply(&volume, &wanted.place, group, policy).await;
            applied.map_err(|error| crate::platform::logging::chain(&error))?;
        }
        let bind = move || {
            make_dir(&wanted.target, 0o750)?;
            mount::bind(&wanted.place, &wanted.target)
        };
        rt::blocking("bind disk", bind).await.map_err(|error| format!("bind the disk: {error}"))
    }

    /// Unmounts what a pod has, and detaches the disks that no pod has.
    async fn release(self: Rc<Self>, pod_dir: PathBuf) -> Result<(), String> {
        let (plugins, dir) = (self.plugins.clone(), pod_dir.clone());
        let found = rt::blocking("unmount disks", move || unmount_all(&plugins, &dir)).await;
        let (own, others) = found.map_err(|error| error.to_string())?;
        let mut first = Ok(());
        for place in own {
            let _held = self.lock(&place).lock_owned().await;
            let key = pod_dir.join(place.file_name().unwrap_or_default());
            first = first.and(self.detach(&key, place).await);
        }
        for place in others {
            // Otherwise there is an attempt for another pod, which also reports what fails.
            if let Ok(held) = self.lock(&place).try_lock_owned() {
                let disks = Rc::clone(&self);
                rt::spawn("disk", async move {
                    let _ = disks.detach(&place.clone(), place).await;
                    drop(held);
                });
            }
        }
        first
    }

    async fn detach(&self, key: &Path, place: PathBuf) -> Result<(), String> {
        let (plugins, pods) = (self.plugins.clone(), self.pods.clone());
        self.run(key, move |host| detach_unused(host, &plugins, &pods, &place)).await
    }
}

impl Volumes {
    /// Mounts a disk, unless the pod has it already.
    pub(super) async fn ensure_disk(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        name: &str,
        (kind, source): (&str, Value),
        claimed: Option<ClaimedVolume>,
        read_only: bool,
    ) -> Result<MountedVolume, VolumeError> {
        let failed = |message: String| VolumeError::Remote { volume: name.to_owned(), message };
        let volume = claimed.as_ref().map_or(name, |claimed| &claimed.name).to_owned();
        let target = plugin_dir(pod_dir, &plugin(kind)).join(&volume);
        let disk = NetworkDisk::of(kind, &volume, &source).map_err(failed)?;
        let place = self.disks.plugins.join(disk.place());
        let (at, to) = (target.clone(), place.clone());
        let link = pod_dir.join("plugins").join(plugin(kind)).join(&volume);
        let mounted = rt::blocking("stat disk", move || {
            make_dir(at.parent().unwrap_or(&at), 0o750)?;
            if std::fs::read_link(&link).ok().as_ref() != Some(&to) {
                make_dir(link.parent().unwrap_or(&link), 0o750)?;
                let _ = std::fs::remove_file(&link);
                symlink(&to, &link)?;
            }
            mount::is_mount_point(&at)
        });
        let is_mounted = mounted.await.map_err(|error| failed(error.to_string()))?;
        let secret = self.disk_secret(pod, pod_dir, name, (kind, &source), (&claimed, &target, is_mounted));
        let secret = secret.await.map_err(failed)?;
        if !is_mounted {
            let wanted = WantedDisk {
                record: match &disk {
                    NetworkDisk::Iscsi(disk) => disk.record(),
                    NetworkDisk::Fc(disk) => disk.record(),
                },
                place,
                disk,
                secret,
                target: target.clone(),
                fs_type: source["fsType"].as_str().unwrap_or_default().to_owned(),
                single_below: claimed
                    .as_ref()
                    .filter(|claimed| claimed.single_pod)
                    .map(|_| self.config.pods_dir.clone()),
                options: claimed.map(|claimed| claimed.mount_options).unwrap_or_default(),
                read_only,
            };
            let set_up = Rc::clone(&self.disks).set_up(Arc::new(wanted), volume, fs_group(pod));
            self.disks.attempt(target.clone(), set_up).await.map_err(failed)?;
        }
        Ok(MountedVolume {
            host_path: target,
            read_only,
            selinux_relabel: true,
            remote: true,
            ..MountedVolume::default()
        })
    }

    /// What the volume's Secret has for CHAP. Meanwhile the cluster learns that the node uses the volume: its controller
    /// lets one node at a time have it.
    async fn disk_secret(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        name: &str,
        (kind, source): (&str, &Value),
        (claimed, target, is_mounted): (&Option<ClaimedVolume>, &Path, bool),
    ) -> Result<StringMap, String> {
        let list = |field: &str| format!("[{}]", texts(&source[field]).collect::<Vec<_>>().join(" "));
        let handle = match kind {
            "iscsi" => format!(
                "{}:{}:{}",
                source["targetPortal"].as_str().unwrap_or_default(),
                source["iqn"].as_str().unwrap_or_default(),
                source["lun"]
            ),
            _ if texts(&source["targetWWNs"]).next().is_none() => list("wwids"),
            _ => format!("{}:{}", list("targetWWNs"), source["lun"]),
        };
        let mut asked = json!({"driver": format!("kubernetes.io/{kind}"), "volumeHandle": handle});
        let namespace = source["secretRef"]["namespace"].as_str().filter(|name| !name.is_empty());
        let namespace = namespace.filter(|_| claimed.is_some()).unwrap_or(&pod.metadata.namespace);
        let secret = source["secretRef"]["name"].as_str().unwrap_or_default();
        if source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true {
            asked["secretRef"] = json!({"name": secret, "namespace": namespace});
        }
        if let Some(csi) = self.csi() {
            let volume = csi_volume(pod, pod_dir, name, asked, claimed.clone(), false);
            return csi.attach(CsiVolume { target: target.to_owned(), is_again: is_mounted, ..volume }).await;
        }
        if asked["secretRef"].is_null() || is_mounted {
            return Ok(StringMap::new());
        }
        let found = self.objects.of(realm(pod)).secret(namespace, secret);
        // In the words of those who ask otherwise.
        let missing = || {
            format!(
                "failed to find the secret {secret} in the namespace {namespace} with error: secrets {secret:?} not found"
            )
        };
        let found = found.ok_or_else(missing)?;
        let text =
            |(key, value): (&String, &Vec<u8>)| (key.clone(), String::from_utf8_lossy(value).into_owned());
        Ok(found.iter().map(text).collect())
    }

    /// Unmounts the disks of a pod, and detaches those that no other pod has.
    pub(super) async fn release_disks(&self, pod_dir: &Path) -> Result<(), VolumeError> {
        let at = pod_dir.to_owned();
        let list = move || {
            let directories = DISKS.map(|kind| std::fs::read_dir(plugin_dir(&at, &plugin(kind))));
            let mut found = directories.into_iter().flatten().peekable();
            found.peek()?;
            let names =
                found.flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            Some(names.collect::<Vec<_>>().join(", "))
        };
        let Some(volumes) = rt::blocking("find disks", list).await else { return Ok(()) };
        let failed = |message| VolumeError::Unmount { volume: volumes, message };
        let busy = |place: &PathBuf| place.starts_with(pod_dir) && place != pod_dir;
        if self.disks.busy.borrow().iter().any(busy) {
            return Err(failed("a disk is still being mounted".to_owned()));
        }
        let release = Rc::clone(&self.disks).release(pod_dir.to_owned());
        let released = self.disks.attempt(pod_dir.to_owned(), release).await;
        self.disks.failures.borrow_mut().retain(|place, _| place == pod_dir || !place.starts_with(pod_dir));
        released.map_err(failed)
    }
}

/// The directory name of a plugin, as the kubelet has it on disk.
fn plugin(kind: &str) -> String {
    format!("kubernetes.io~{kind}")
}

fn kind_of(plugins: &Path, place: &Path) -> &'static str {
    if place.starts_with(plugins.join("fc")) { "fc" } else { "iscsi" }
}

/// Below the mount.
fn record_of(place: &Path, kind: &str) -> PathBuf {
    place.join(format!("{kind}.json"))
}

fn mount_disk(host: &BlockHost, wanted: &WantedDisk) -> Result<(), String> {
    let WantedDisk { place, target, .. } = wanted;
    let failed = |action: &str| {
        let action = format!("{action} {}", place.display());
        move |error: io::Error| format!("{action}: {error}")
    };
    if let Some(pods) = &wanted.single_below {
        let pods = pods.canonicalize().map_err(failed("list pods for"))?;
        let place = target.components().rev().take(3).collect::<Vec<_>>();
        let place: PathBuf = place.into_iter().rev().collect();
        let points = mount::mount_points().map_err(failed("list mounts for"))?;
        if points.iter().any(|point| point.starts_with(&pods) && point.ends_with(&place)) {
            let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
            return Err(why.to_owned());
        }
    }
    make_dir(place, 0o750).map_err(failed("create"))?;
    if mount::is_mount_point(place).map_err(failed("list mounts for"))? {
        return Ok(());
    }
    let kind = if matches!(wanted.disk, NetworkDisk::Fc(_)) { "fc" } else { "iscsi" };
    write_durably(&record_of(place, kind), wanted.record.to_string().as_bytes(), 0o600)
        .map_err(failed("write the record in"))?;
    let device = match &wanted.disk {
        NetworkDisk::Iscsi(disk) => disk.attach(host, &wanted.secret)?,
        NetworkDisk::Fc(disk) => disk.attach(host)?,
    };
    let file_system = (wanted.fs_type.as_str(), wanted.options.as_slice());
    host.format_and_mount(&device, place, file_system, wanted.read_only)
}

/// Unmounts the disks of a pod. Returns the places of those that it had or was to have, and all other places.
fn unmount_all(plugins: &Path, pod_dir: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (real, plugins) = match (pod_dir.canonicalize(), plugins.canonicalize()) {
        (Ok(real), Ok(plugins)) => (real, plugins),
        (Err(error), _) | (_, Err(error)) if error.kind() == ErrorKind::NotFound => {
            return Ok((Vec::new(), Vec::new()));
        }
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    unmount_sub_paths(&real)?;
    let mounts = mount::mounted_devices()?;
    let directories = DISKS.map(|kind| plugin_dir(&real, &plugin(kind)));
    let is_its = |point: &Path| directories.iter().any(|directory| point.starts_with(directory));
    let mut devices = BTreeSet::new();
    for (point, device) in mounts.iter().rev().filter(|(point, _)| is_its(point)) {
        mount::unmount(point)?;
        devices.insert(*device);
    }
    let links = DISKS.into_iter().flat_map(|kind| std::fs::read_dir(real.join("plugins").join(plugin(kind))));
    let noted = links.flatten().flatten().filter_map(|link| link.path().canonicalize().ok());
    let noted: BTreeSet<PathBuf> = noted.collect();
    let is_own = |place: &PathBuf| {
        noted.contains(place)
            || mounts.iter().any(|(point, device)| point == place && devices.contains(device))
    };
    Ok(DISKS.into_iter().flat_map(|kind| places(&plugins, kind)).partition(is_own))
}

fn places(plugins: &Path, kind: &str) -> Vec<PathBuf> {
    let list = |directory: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| !path.ends_with(DEVICES_DIR)).collect()
    };
    let found = list(&plugins.join(kind));
    if kind == "fc" { found } else { found.iter().flat_map(|iface| list(iface)).collect() }
}

/// Unmounts and detaches a disk that no pod has, and forgets it.
fn detach_unused(host: &BlockHost, plugins: &Path, pods: &Path, place: &Path) -> Result<(), String> {
    let failed = |action: &str| {
        let action = format!("{action} {}", place.display());
        move |error: io::Error| format!("{action}: {error}")
    };
    let mounts = mount::mounted_devices().map_err(failed("list mounts for"))?;
    if let Some((_, device)) = mounts.iter().rfind(|(point, _)| point == place) {
        let pods = pods.canonicalize().map_err(failed("list pods for"))?;
        if mounts.iter().any(|(point, of)| of == device && point.starts_with(&pods)) {
            return Ok(());
        }
        mount::unmount_written(place).map_err(failed("unmount"))?;
    }
    let plugins = plugins.canonicalize().map_err(failed("find the plugin of"))?;
    let kind = kind_of(&plugins, place);
    let file = record_of(place, kind);
    let record = std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let record: Value = record.unwrap_or_default();
    if kind == "iscsi" {
        let Some(disk) = IscsiDisk::of_record(&record, place) else { return Ok(()) };
        let others: Vec<PathBuf> = places(&plugins, kind).into_iter().filter(|each| each != place).collect();
        disk.detach(host, &others)?;
    } else if let Ok(disk) = FcDisk::of(&record) {
        disk.detach(host)?;
    }
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(failed("remove the record in")(error));
        }
        _ => {}
    }
    std::fs::remove_dir(place).map_err(failed("remove"))
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
