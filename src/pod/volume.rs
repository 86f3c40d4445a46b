//! Volumes of pods on this node: sets up the volumes of a pod's spec and removes them with the pod.
//!
//! Owns `<root>/pods/<uid>/{volumes,volume-subpaths,plugins}` and the removal of pods' directories.

pub(crate) mod csi;
pub mod projection;
pub mod rules;

mod atomic_writer;
mod claim;
mod disks;
mod empty_dir;
mod ephemeral;
mod host_path;
mod kept;
mod nfs;
mod orphans;
mod ownership;
mod propagation;
pub(crate) mod quota;
mod remote;
mod rendered;
mod sub_path;
mod tear_down;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::Value;

use crate::model::api::pod::{HostPathVolumeSource, NfsVolumeSource, Pod, Volume};
use crate::model::objects::retired;
use crate::model::objects::{
    Absence, ClaimedSource, ClaimedVolume, ObjectKey, ObjectKind, ObjectLookup, Realm,
};
use crate::model::provenance::realm;
use crate::model::runtime_config::ImageMount;
use crate::model::types::PodUid;
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::sys::dir::make_dir;
use crate::pod::resources::NodeCapacity;
use crate::pod::volume::projection::{ProjectionError, is_projected};
use crate::pod::volume::rules::{MediumError, check_use, claim_of, empty_dir_medium, own_mounts};

use claim::{BeingGiven, FsGroup, LocalVolume};
use csi::{CsiVolume, CsiVolumes};
use disks::NetworkDisks;
use kept::Kept;
use nfs::Export;
use orphans::Guard;
use ownership::Policy;
pub(crate) use propagation::{MARK as MOUNT_MARK, share_mounts_below, unshare_mounts_below};
use remote::RemoteError;
pub(crate) use remote::{RemoteJobs, run as run_remote};
use rendered::Refreshed;
pub(crate) use sub_path::{SubPath, SubPathError};
use tear_down::tear_down_dir;

#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// `<root-dir>/pods`.
    pub pods_dir: PathBuf,
    /// The limit that unlimited containers see, and the size of memory.
    pub capacity: NodeCapacity,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountedVolume {
    pub host_path: PathBuf,
    pub read_only: bool,
    pub selinux_relabel: bool,
    /// An image instead of `host_path`; its id is known after the pull.
    pub image: Option<ImageMount>,
    /// The files are on another machine: any access may block forever.
    pub remote: bool,
}

/// Ready volumes by the name the pod gives them.
pub(super) type MountedVolumes = BTreeMap<String, MountedVolume>;

/// A volume could not be set up or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error(
        "MountVolume.SetUp failed for volume {volume:?} : no volume plugin matched: this node does not mount volumes of this kind; mount it on the host and use hostPath, or use a CSI driver"
    )]
    UnsupportedKind {
        /// Its name in the pod.
        volume: String,
    },
    /// Of a kind that Kubernetes gave up; in upstream's words.
    #[error("{0}")]
    Retired(String),
    #[error("MountVolume.SetUp failed for volume {volume:?}")]
    Medium {
        volume: String,
        #[source]
        source: MediumError,
    },
    /// The source of the volume is missing: an object or a key.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {problem}")]
    Projection {
        volume: String,
        /// In upstream's words.
        problem: ProjectionError,
    },
    #[error(
        "MountVolume.SetUp failed for volume {volume:?} : hostPath type check failed: {} is not {expected}", path.display()
    )]
    HostPathType {
        volume: String,
        path: PathBuf,
        /// For example "a directory".
        expected: &'static str,
    },
    #[error("MountVolume.SetUp failed for volume {volume:?} : persistentvolumeclaim {claim:?} not found")]
    ClaimNotFound {
        /// Its name in the pod.
        volume: String,
        claim: String,
    },
    /// A claim of the cluster that cannot be used.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process volumes=[{volume}]: error processing PVC {claim}: {message}"
    )]
    Claim {
        /// Its name in the pod.
        volume: String,
        /// With its namespace.
        claim: String,
        /// In upstream's words.
        message: String,
    },
    #[error(
        "MountVolume.SetUp failed for volume {volume:?} : volume uses the ReadWriteOncePod access mode and is already in use by another pod"
    )]
    InUse {
        /// Its name in the pod.
        volume: String,
    },
    #[error("MountVolume.SetUp failed for volume {volume:?} : path {path:?} does not exist")]
    LocalPathMissing {
        volume: String,
        /// On the node.
        path: PathBuf,
    },
    #[error("MountVolume.SetUp failed for volume {volume:?} : {message}")]
    Remote {
        volume: String,
        /// Why, with all causes.
        message: String,
    },
    #[error("MountVolume.SetUp failed for volume {volume:?} : {action} {path:?}")]
    SetUp {
        volume: String,
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("error making pod data directories: create {path:?}")]
    PodDirectory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("UnmountVolume.TearDown failed for volume {volume:?} : {message}")]
    Unmount {
        /// Its name in the pod, or of its PersistentVolume.
        volume: String,
        /// Why, in the driver's words.
        message: String,
    },
    #[error("{action} {path:?}")]
    TearDown {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Something else is mounted below the pod's directory; nothing is deleted across a mount point.
    #[error("{path:?} is still a mount point: unmount it to delete the directory")]
    StillMounted {
        /// The mount point.
        path: PathBuf,
    },
}

/// `<pods>/<uid>`.
#[must_use]
pub(super) fn pod_dir(config: &VolumeConfig, uid: &PodUid) -> PathBuf {
    config.pods_dir.join(uid.as_str())
}

impl VolumeError {
    /// Only a changed manifest can help.
    #[must_use]
    pub(super) fn is_permanent(&self) -> bool {
        matches!(self, Self::UnsupportedKind { .. } | Self::Retired(_) | Self::Medium { .. })
    }
}

pub(crate) struct Volumes {
    config: VolumeConfig,
    objects: Rc<dyn ObjectLookup>,
    clock: Clock,
    refreshed: Refreshed,
    remote_jobs: RemoteJobs,
    guard: Guard,
    claims_in_use: BeingGiven,
    kept: Kept,
    limits: quota::Limits,
    disks: Rc<NetworkDisks>,
    /// `None`: the node has just started.
    csi: RefCell<Option<Rc<dyn CsiVolumes>>>,
}

impl Volumes {
    /// Volumes below `config.pods_dir`, with content from `objects`.
    #[must_use]
    pub(crate) fn new(config: VolumeConfig, objects: Rc<dyn ObjectLookup>, clock: Clock) -> Self {
        let remote_jobs = RemoteJobs::default();
        Self {
            disks: NetworkDisks::new(&config.pods_dir, &remote_jobs),
            config,
            objects,
            clock,
            refreshed: Refreshed::default(),
            remote_jobs,
            guard: Guard::default(),
            claims_in_use: BeingGiven::default(),
            kept: Kept::default(),
            limits: quota::Limits::default(),
            csi: RefCell::default(),
        }
    }

    /// From now on CSI drivers can be called.
    pub(crate) fn set_csi(&self, csi: Rc<dyn CsiVolumes>) {
        *self.csi.borrow_mut() = Some(csi);
    }

    fn csi(&self) -> Option<Rc<dyn CsiVolumes>> {
        self.csi.borrow().clone()
    }

    /// Creates the pod's directory and sets up all its volumes. Idempotent; existing data is not touched.
    /// Repeat until it succeeds.
    ///
    /// # Errors
    /// The first volume that fails, in the order of the spec.
    pub(crate) async fn ensure(&self, pod: &Pod) -> Result<MountedVolumes, VolumeError> {
        self.guard.claim(&pod.metadata.uid).await;
        let pod_dir = self.make_pod_dir(&pod.metadata.uid).await?;
        let mut mounted = MountedVolumes::new();
        for volume in &pod.spec.volumes {
            mounted.insert(volume.name.clone(), self.ensure_volume(pod, &pod_dir, volume).await?);
        }
        Ok(mounted)
    }

    async fn make_pod_dir(&self, uid: &PodUid) -> Result<PathBuf, VolumeError> {
        let pod_dir = pod_dir(&self.config, uid);
        rt::blocking("make pod directory", move || match make_dir(&pod_dir, 0o750) {
            Ok(()) => Ok(pod_dir),
            Err(source) => Err(VolumeError::PodDirectory { path: pod_dir, source }),
        })
        .await
    }

    async fn ensure_volume(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &Volume,
    ) -> Result<MountedVolume, VolumeError> {
        let name = volume.name.as_str();
        if is_projected(volume) {
            return self.ensure_rendered(pod, pod_dir, volume).await;
        }
        if let Some(source) = &volume.host_path {
            let (pod, owned_name, source) = (pod_dir.to_owned(), name.to_owned(), source.clone());
            let job = move || host_path::ensure(&pod, &owned_name, &source);
            return self.run_with_timeout(pod_dir, name, job).await;
        }
        if let Some(source) = &volume.empty_dir {
            let medium = empty_dir_medium(pod, source, &self.config.capacity)
                .map_err(|source| VolumeError::Medium { volume: name.to_owned(), source })?;
            let group = fs_group(pod).map(|wanted| wanted.group);
            return empty_dir::ensure(pod_dir, name, medium, group).await;
        }
        if let Some((claim, read_only)) = claim_of(pod, volume) {
            let found = match self.claimed_volume(pod, name, &claim) {
                Ok(found) => found,
                Err(error) => {
                    return self.kept_mount(pod, pod_dir, name, claim, read_only).await.ok_or(error);
                }
            };
            let mounted = self.ensure_claim(pod, pod_dir, name, found.clone(), (claim, read_only)).await?;
            self.keep(pod, name, found, &mounted);
            return Ok(mounted);
        }
        if let Some(source) = &volume.nfs {
            return nfs::ensure(&self.remote_jobs, pod_dir, name, name, inline_export(source)).await;
        }
        if let Some(source) = &volume.csi {
            let read_only = source["readOnly"] == true;
            let wanted = csi_volume(pod, pod_dir, name, (**source).clone(), None, read_only);
            return csi::ensure(self.csi(), wanted, fs_group(pod)).await;
        }
        for (kind, source) in [("iscsi", &volume.iscsi), ("fc", &volume.fc)] {
            if let Some(source) = source {
                let (source, read_only) = ((**source).clone(), source["readOnly"] == true);
                return self.ensure_disk(pod, pod_dir, name, (kind, source), None, read_only).await;
            }
        }
        if let Some(source) = &volume.image {
            let user_specified_image = source.reference.clone();
            let image = ImageMount { user_specified_image, ..ImageMount::default() };
            return Ok(MountedVolume { read_only: true, image: Some(image), ..MountedVolume::default() });
        }
        Err(match retired::sources(volume).next() {
            Some((kind, _)) => VolumeError::Retired(kind.refusal(name)),
            None => VolumeError::UnsupportedKind { volume: name.to_owned() },
        })
    }

    /// Publishes the volumes again whose drivers ask for it.
    ///
    /// # Errors
    /// The first volume that fails; it stays as it is.
    async fn refresh_csi(&self, pod: &Pod) -> Result<(), VolumeError> {
        let Some(csi) = self.csi() else { return Ok(()) };
        let (pod_dir, mut result) = (pod_dir(&self.config, &pod.metadata.uid), Ok(()));
        for volume in &pod.spec.volumes {
            let name = volume.name.as_str();
            let wanted = if let Some(source) = &volume.csi {
                csi_volume(pod, &pod_dir, name, (**source).clone(), None, source["readOnly"] == true)
            } else if let Some((claim, read_only)) = claim_of(pod, volume)
                && let Some(found) =
                    self.claimed_volume(pod, name, &claim).ok().or_else(|| self.kept_volume(pod, name))
                && let ClaimedSource::Csi { source, .. } = &found.source
            {
                let read_only = read_only || found.read_only;
                csi_volume(pod, &pod_dir, name, source.clone(), Some(found.clone()), read_only)
            } else {
                continue;
            };
            if csi.is_due(&wanted) {
                let again = CsiVolume { is_again: true, ..wanted };
                let done = csi::ensure(Some(Rc::clone(&csi)), again, fs_group(pod)).await;
                result = result.and(done.map(drop));
            }
        }
        result
    }

    /// Runs a job on a path that the user chose. It may be on an unreachable server: two such pods would fill
    /// the blocking pool, so the job gets its own thread and a timeout.
    async fn run_with_timeout(
        &self,
        pod_dir: &Path,
        name: &str,
        job: impl FnOnce() -> Result<MountedVolume, VolumeError> + Send + 'static,
    ) -> Result<MountedVolume, VolumeError> {
        let looked = remote::run(&self.remote_jobs, &pod_dir.join(name), nfs::PATIENCE, job).await;
        let unanswered =
            |error: RemoteError| VolumeError::Remote { volume: name.to_owned(), message: error.to_string() };
        looked.map_err(unanswered)?
    }

    /// The volume that a claim is bound to.
    fn claimed_volume(&self, pod: &Pod, name: &str, claim: &str) -> Result<ClaimedVolume, VolumeError> {
        let (volume, claim) = (name.to_owned(), claim.to_owned());
        let (namespace, objects) = (&pod.metadata.namespace, self.objects.of(realm(pod)));
        if let Some(found) = objects.persistent_volume_claim(namespace, &claim) {
            // It was bound for any pod that names it.
            let claim = format!("{namespace}/{claim}");
            return match check_use(pod, name, &claim, &found) {
                Some(message) => Err(VolumeError::Claim { volume, claim, message }),
                None => Ok(found),
            };
        }
        let fetch = |why| format!("failed to fetch PVC from API server: {why}");
        let kind = ObjectKind::PersistentVolumeClaim;
        let key = ObjectKey { kind, namespace: namespace.clone(), name: claim };
        let message = match objects.absence(&key) {
            Absence::NotFound if realm(pod) == Realm::Node => {
                return Err(VolumeError::ClaimNotFound { volume, claim: key.name });
            }
            Absence::NotFound => fetch(format!("persistentvolumeclaims {:?} not found", key.name)),
            Absence::NotSynced => fetch("timed out waiting for the condition".to_owned()),
            Absence::Refused(message) => message,
        };
        Err(VolumeError::Claim { volume, claim: format!("{namespace}/{}", key.name), message })
    }

    async fn ensure_claim(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        name: &str,
        volume: ClaimedVolume,
        (claim, read_only): (String, bool),
    ) -> Result<MountedVolume, VolumeError> {
        let read_only = read_only || volume.read_only;
        if volume.single_pod
            && let ClaimedSource::HostPath { .. } | ClaimedSource::Nfs { .. } = volume.source
        {
            claim::reserve(pod_dir, name, &volume.name, &self.claims_in_use).await?;
        }
        let mounted = match volume.source {
            ClaimedSource::HostPath { path, type_ } => {
                let (pod, owned_name) = (pod_dir.to_owned(), name.to_owned());
                let source = HostPathVolumeSource { path, type_ };
                let job = move || claim::ensure_host_path(&pod, &owned_name, &source);
                self.run_with_timeout(pod_dir, name, job).await?
            }
            ClaimedSource::Directory { ref path, .. } => {
                let (path, group) = (PathBuf::from(path), fs_group(pod).filter(|_| !read_only));
                claim::ensure_directory(name, &path).await?;
                self.guard.note_claim(&path);
                self.limit_claim(pod, claim, &volume, Some(pod_dir)).await;
                let wanted = LocalVolume {
                    name,
                    volume: &volume.name,
                    source: &path,
                    options: &[],
                    fs_group: group,
                    single_pod: volume.single_pod,
                };
                claim::ensure_local(pod_dir, wanted, &self.claims_in_use).await?
            }
            ClaimedSource::Local { ref path, ref fs_type } => {
                let target = plugin_dir(pod_dir, claim::PLUGIN).join(&volume.name);
                let local = (Path::new(path), fs_type.as_str(), volume.mount_options.as_slice());
                let (source, _held) = self.local_source(name, &target, local, read_only).await?;
                let wanted = LocalVolume {
                    name,
                    volume: &volume.name,
                    source: &source,
                    options: &volume.mount_options,
                    fs_group: fs_group(pod).filter(|_| !read_only),
                    single_pod: volume.single_pod,
                };
                claim::ensure_local(pod_dir, wanted, &self.claims_in_use).await?
            }
            ClaimedSource::Csi { ref source, .. } => {
                let source = source.clone();
                let wanted = csi_volume(pod, pod_dir, name, source, Some(volume), read_only);
                csi::ensure(self.csi(), wanted, fs_group(pod)).await?
            }
            ClaimedSource::Disk { kind, ref source } => {
                let source = (kind, source.clone());
                self.ensure_disk(pod, pod_dir, name, source, Some(volume), read_only).await?
            }
            ClaimedSource::Nfs { server, path } => {
                let export = Export { server, path, read_only, options: volume.mount_options };
                nfs::ensure(&self.remote_jobs, pod_dir, name, &volume.name, export).await?
            }
        };
        Ok(MountedVolume { read_only, ..mounted })
    }

    /// Binds a part of a ready volume for one mount of a container, and returns the path to mount. The bind
    /// of an earlier start is used again if it still shows the same file.
    pub(super) async fn ensure_sub_path(
        &self,
        uid: &PodUid,
        volume: &MountedVolume,
        sub_path: SubPath,
    ) -> Result<PathBuf, SubPathError> {
        let pod_dir = pod_dir(&self.config, uid);
        if !volume.remote {
            return rt::blocking("bind subPath", move || sub_path::ensure(&pod_dir, &sub_path)).await;
        }
        let (wanted, path) = (sub_path.clone(), volume.host_path.join(&sub_path.path));
        let job = move || sub_path::ensure(&pod_dir, &wanted);
        let source = match remote::run(&self.remote_jobs, &path, nfs::PATIENCE, job).await {
            Ok(result) => return result,
            Err(RemoteError::Waiting) => std::io::ErrorKind::TimedOut.into(),
            Err(RemoteError::Thread(error)) => error,
        };
        Err(SubPathError::Prepare { volume: sub_path.volume, container: sub_path.container, source })
    }

    /// Removes what [`Volumes::ensure`] created and the whole directory of the pod. Idempotent. Only the
    /// agent's own mounts are unmounted; any other mount below stops the removal, so that no foreign data is
    /// deleted.
    ///
    /// # Errors
    /// What prevents the removal. Repeat later.
    pub(crate) async fn tear_down(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.refreshed.forget(uid);
        self.limits.forget(uid);
        self.forget_kept(uid);
        let pod_dir = pod_dir(&self.config, uid);
        self.unmount_attached(&pod_dir).await?;
        let removed = rt::blocking("tear down volumes", move || tear_down_dir(&pod_dir)).await;
        if removed.is_ok() {
            self.guard.release(uid);
        }
        self.clean_unclaimed().await;
        self.release_devices().await;
        removed
    }

    /// What others than the agent have attached.
    async fn unmount_attached(&self, pod_dir: &Path) -> Result<(), VolumeError> {
        self.release_disks(pod_dir).await?;
        csi::tear_down(self.csi(), pod_dir).await
    }
}

/// The group that files of managed volumes are to belong to.
fn fs_group(pod: &Pod) -> Option<FsGroup> {
    let security = pod.spec.security_context.as_ref()?;
    let group = u32::try_from(security.fs_group?).ok()?;
    Some(FsGroup { group, policy: Policy::of(security.fs_group_change_policy.as_deref()) })
}

fn csi_volume(
    pod: &Pod,
    pod_dir: &Path,
    name: &str,
    source: Value,
    claimed: Option<ClaimedVolume>,
    read_only: bool,
) -> CsiVolume {
    let directory = claimed.as_ref().map_or(name, |claimed| claimed.name.as_str());
    CsiVolume {
        pod: pod.pod_ref(),
        realm: realm(pod),
        account: pod.spec.service_account_name.clone(),
        name: name.to_owned(),
        claim: {
            let mut volumes = pod.spec.volumes.iter().filter(|volume| volume.name == name);
            volumes.find_map(|volume| claim_of(pod, volume)).unwrap_or_default().0
        },
        target: csi::target(pod_dir, directory),
        source,
        claimed,
        read_only,
        fs_group: fs_group(pod).map(|wanted| wanted.group),
        is_again: false,
    }
}

fn inline_export(source: &NfsVolumeSource) -> Export {
    Export {
        server: source.server.clone(),
        path: source.path.clone(),
        read_only: source.read_only,
        options: Vec::new(),
    }
}

/// `<pod>/volumes/<plugin>`.
fn plugin_dir(pod_dir: &Path, plugin: &str) -> PathBuf {
    pod_dir.join("volumes").join(plugin)
}

fn set_up_error(volume: &str, action: &'static str, path: &Path, source: std::io::Error) -> VolumeError {
    VolumeError::SetUp { volume: volume.to_owned(), action, path: path.to_owned(), source }
}

/// Runs one future as the agent would.
#[cfg(test)]
fn run<F: std::future::Future>(future: F) -> F::Output {
    rt::run(future).expect("create the async runtime")
}

#[cfg(test)]
mod tests;
