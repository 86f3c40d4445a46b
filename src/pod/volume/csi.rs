//! `csi`, and claims for volumes of CSI drivers: what a pod has of them, and the interface to the drivers.
//!
//! Owns `volumes/kubernetes.io~csi` of a pod: `<volume>/mount`, where the driver mounts, and `<volume>/vol_data.json`,
//! upstream's file. It is written before the driver is called and removed after the driver has unmounted, so that a
//! later process knows what may be mounted: there is no other memory of it.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use serde_json::{Value, json};

use super::{FsGroup, MountedVolume, VolumeError, make_dir, own_mounts, ownership, plugin_dir, set_up_error};
use crate::model::api::pod::StringMap;
use crate::model::objects::{ClaimedVolume, Realm};
use crate::model::types::PodRef;
use crate::platform::rt;
use crate::platform::sys::durable::write_durably;
use crate::platform::sys::mount;
use crate::platform::sys::node::FileSystemFacts;

/// The directory name of the plugin, as the kubelet has it on disk.
pub(crate) const PLUGIN: &str = "kubernetes.io~csi";
const RECORD: &str = "vol_data.json";
/// Ours beside upstream's members: the volume was given to the pod, with the pod's group on its files.
const PUBLISHED: &str = "published";

/// An answer of a driver, on its way.
pub(crate) type CsiAnswer<T> = Pin<Box<dyn Future<Output = Result<T, String>>>>;

/// What calls the CSI drivers of the node. Calls of one volume never run at the same time: the second one fails, and
/// is repeated later.
pub(crate) trait CsiVolumes {
    /// Mounts a volume at `target`. Idempotent.
    fn publish(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<CsiPublished>;
    /// The node uses a volume whose `volumeHandle` the agent itself attaches: returns what its `secretRef` has, once the
    /// cluster allows the node to attach it. One that is mounted (`is_again`) needs neither.
    fn attach(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<StringMap>;
    /// Unmounts what is at `target` and removes `target`, its record and its directory. Idempotent.
    fn unpublish(self: Rc<Self>, record: CsiRecord, target: PathBuf) -> CsiAnswer<()>;
    /// What the driver says of the file system that it has mounted at `target`; `None` when it says nothing.
    fn usage(self: Rc<Self>, target: PathBuf) -> CsiAnswer<Option<FileSystemFacts>>;
    /// Changes when a volume that failed may be tried again: a driver has registered, a volume is attached.
    fn generation(&self) -> u64;
    /// The driver wants a volume that is mounted to be published again now. The caller does it.
    fn is_due(&self, volume: &CsiVolume) -> bool;
    /// A place in the pod with an attempt under way: its driver may mount there, and nothing says so yet.
    fn mounting(&self, pod_dir: &Path) -> Option<PathBuf>;
    /// The pod is gone: it waits for no volume any more.
    fn forget(&self, pod_dir: &Path);
}

/// A volume that a pod needs.
#[derive(Clone, Debug)]
pub(crate) struct CsiVolume {
    pub pod: PodRef,
    pub realm: Realm,
    /// `serviceAccountName`.
    pub account: String,
    /// Its name in the pod.
    pub name: String,
    /// Of the PersistentVolumeClaim; empty for an inline volume.
    pub claim: String,
    /// `csi` of the pod's volume, or of the PersistentVolume.
    pub source: Value,
    /// `None`: an inline volume, which lives as long as the pod.
    pub claimed: Option<ClaimedVolume>,
    pub read_only: bool,
    pub fs_group: Option<u32>,
    /// Where the driver mounts.
    pub target: PathBuf,
    /// It is mounted; the driver brings it up to date.
    pub is_again: bool,
}

/// A volume is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CsiPublished {
    /// The driver leaves the group of the files to the node.
    pub apply_group: bool,
}

/// What `vol_data.json` says: of a pod's volume, or of a volume that is staged on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CsiRecord {
    /// `spec.name` of the PersistentVolume, or the volume's name in the pod. Empty for a staged volume.
    pub volume: String,
    pub handle: String,
    pub driver: String,
    pub node: String,
    pub attachment: String,
    pub is_ephemeral: bool,
    pub is_published: bool,
}

impl CsiRecord {
    fn value(&self) -> Value {
        let mut value = json!({"volumeHandle": self.handle, "driverName": self.driver});
        if !self.volume.is_empty() {
            value["specVolID"] = self.volume.clone().into();
            value["nodeName"] = self.node.clone().into();
            value["attachmentID"] = self.attachment.clone().into();
            let mode = if self.is_ephemeral { "Ephemeral" } else { "Persistent" };
            value["volumeLifecycleMode"] = mode.into();
        }
        if self.is_published {
            value[PUBLISHED] = "true".into();
        }
        value
    }

    fn of(value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        Self {
            volume: text("specVolID"),
            handle: text("volumeHandle"),
            driver: text("driverName"),
            node: text("nodeName"),
            attachment: text("attachmentID"),
            is_ephemeral: value["volumeLifecycleMode"] == "Ephemeral",
            is_published: value[PUBLISHED] == "true",
        }
    }

    /// Writes it into the directory of a volume, which is created.
    pub(crate) fn save(&self, directory: &Path) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        write_durably(&directory.join(RECORD), self.value().to_string().as_bytes(), 0o600)
    }

    /// `None` when there is none.
    pub(crate) fn load(directory: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(directory.join(RECORD)) {
            Ok(bytes) => Ok(Some(Self::of(&serde_json::from_slice(&bytes)?))),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Removes the place of a mount, its record and its directory, unless something is mounted there. Never deletes data:
/// a place that is not empty is an error.
pub(crate) fn remove_mount_dir(target: &Path) -> io::Result<()> {
    let directory = target.parent().unwrap_or(target);
    if !directory.exists() || mount::is_mount_point(target)? {
        return Ok(());
    }
    let absent = |result: io::Result<()>| match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    absent(std::fs::remove_dir(target))?;
    absent(std::fs::remove_file(directory.join(RECORD)))?;
    absent(std::fs::remove_dir(directory))
}

/// The records of a pod's volumes, each with its directory.
pub(crate) fn records(pod_dir: &Path) -> io::Result<Vec<(PathBuf, CsiRecord)>> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(plugin_dir(pod_dir, PLUGIN)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let directory = entry?.path();
        if let Some(record) = CsiRecord::load(&directory)? {
            found.push((directory, record));
        }
    }
    Ok(found)
}

/// `<pod>/volumes/kubernetes.io~csi/<volume>/mount`.
pub(super) fn target(pod_dir: &Path, volume: &str) -> PathBuf {
    plugin_dir(pod_dir, PLUGIN).join(volume.replace('/', "~")).join("mount")
}

/// Mounts a volume, unless the pod has it already: a mount outlives the agent, and a container that restarts needs
/// neither the driver nor the API server.
pub(super) async fn ensure(
    csi: Option<Rc<dyn CsiVolumes>>,
    volume: CsiVolume,
    fs_group: Option<FsGroup>,
) -> Result<MountedVolume, VolumeError> {
    let (name, target) = (volume.name.clone(), volume.target.clone());
    let mounted = MountedVolume {
        host_path: target.clone(),
        selinux_relabel: true,
        remote: true,
        ..MountedVolume::default()
    };
    let directory = target.parent().unwrap_or(&target).to_owned();
    let (owned_name, at) = (name.clone(), directory.clone());
    let is_mounted = rt::blocking("stat CSI volume", move || prepare(&owned_name, &at)).await?;
    // A mount that is gone is not made while containers run: they would not see it.
    if is_mounted != volume.is_again {
        return Ok(mounted);
    }
    let failed = |message: String| VolumeError::Remote { volume: name.clone(), message };
    let csi = csi.ok_or_else(|| failed("no CSI driver can be called yet".to_owned()))?;
    let published = csi.publish(volume).await.map_err(failed)?;
    if let (Some(FsGroup { group, policy }), true) = (fs_group, published.apply_group) {
        ownership::apply(&name, &target, group, policy).await?;
    }
    rt::blocking("record CSI volume", move || match CsiRecord::load(&directory) {
        Ok(Some(record)) => CsiRecord { is_published: true, ..record }.save(&directory),
        answer => answer.map(drop),
    })
    .await
    .map_err(|error| set_up_error(&name, "record the mount of", &target, error))?;
    Ok(mounted)
}

/// True when the pod has the volume already.
fn prepare(name: &str, directory: &Path) -> Result<bool, VolumeError> {
    make_dir(directory, 0o750).map_err(|error| set_up_error(name, "create directory", directory, error))?;
    let failed = |action| move |error| set_up_error(name, action, directory, error);
    let record = CsiRecord::load(directory).map_err(failed("read vol_data.json in"))?;
    if !record.is_some_and(|record| record.is_published) {
        return Ok(false);
    }
    mount::is_mount_point(&directory.join("mount")).map_err(failed("list mounts below"))
}

/// Unmounts all volumes of a pod that drivers have mounted, or may have. Tries all; returns the first error.
pub(super) async fn tear_down(csi: Option<Rc<dyn CsiVolumes>>, pod_dir: &Path) -> Result<(), VolumeError> {
    if let Some(place) = csi.as_ref().and_then(|csi| csi.mounting(pod_dir)) {
        let volume = place.parent().and_then(Path::file_name).unwrap_or_default();
        let volume = volume.to_string_lossy().into_owned();
        return Err(VolumeError::Unmount { volume, message: "it is still being mounted".to_owned() });
    }
    let owned = pod_dir.to_owned();
    let found = rt::blocking("list CSI volumes", move || {
        let found = records(&owned)?;
        if !found.is_empty() {
            unmount_sub_paths(&owned)?;
        }
        Ok(found)
    });
    let found: io::Result<Vec<(PathBuf, CsiRecord)>> = found.await;
    let listed = |source| VolumeError::TearDown {
        action: "read the CSI volumes of",
        path: pod_dir.to_owned(),
        source,
    };
    let mut first = Ok(());
    for (directory, record) in found.map_err(listed)? {
        let volume = record.volume.clone();
        let answer = match &csi {
            Some(csi) => Rc::clone(csi).unpublish(record, directory.join("mount")).await,
            None => Err(format!("driver {} cannot be called yet", record.driver)),
        };
        first = first.and(answer.map_err(|message| VolumeError::Unmount { volume, message }));
    }
    if let (Some(csi), Ok(())) = (&csi, &first) {
        csi.forget(pod_dir);
    }
    first
}

/// Binds of parts of volumes would keep them busy.
pub(super) fn unmount_sub_paths(pod_dir: &Path) -> io::Result<()> {
    let real = pod_dir.canonicalize()?;
    let below = real.join("volume-subpaths");
    let points = mount::mount_points()?;
    let binds = own_mounts(&real, &points).into_iter().filter(|point| point.starts_with(&below));
    binds.into_iter().try_for_each(|point| mount::unmount(&point))
}
