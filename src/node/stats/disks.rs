//! What pods and containers use of disks.
//!
//! Owns the results of directory walks, which are kept while requests keep coming, and the one thread that
//! walks. A walk is expensive. So at most one runs at a time, none starts while a result is recent, and a
//! request waits only briefly for one. The figure is left out until there is a first result; afterwards the
//! last result is used.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::model::api::pod::{Pod, Volume};
use crate::model::objects::{ClaimedSource, ObjectLookup};
use crate::model::ordered::Ordered as _;
use crate::model::provenance::realm;
use crate::model::types::Timestamp;
use crate::node::usage::{FileSystem, Summary, VolumeUse};
use crate::platform::rt;
use crate::platform::sys::disk_usage::disk_usage;
use crate::platform::sys::node::{FileSystemFacts, file_system};
use crate::pod::volume::csi::{CsiVolumes, PLUGIN};
use crate::pod::volume::rules::claim_of;
use crate::pod::volume::{RemoteJobs, run_remote};
use crate::runtime::{DiskFigures, RuntimeUse};

/// A slow walk is repeated less often: walking takes at most this part of the time.
const SHARE: u32 = 20;
/// How long a request waits for walks.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a request waits for another machine.
const REMOTE_PATIENCE: Duration = Duration::from_secs(2);
/// Results that have not been requested for this long are dropped.
const KEPT: Duration = Duration::from_secs(300);

/// How a volume is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Measure {
    /// By a walk: a directory that shares its disk.
    Walk(PathBuf),
    /// By its file system, which it fills alone.
    FileSystem(PathBuf),
    /// By its file system, on another machine.
    Remote(PathBuf),
    /// By its CSI driver, or, when that does not measure, as on another machine: a dead driver must block nothing.
    Driver(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Measurable {
    name: String,
    pub(super) claim: Option<String>,
    measure: Measure,
    /// The pod uses the node's disk through it.
    is_ephemeral: bool,
}

/// The volumes of a pod that can be measured, by the rules of upstream's plugins: not `hostPath`, whose files
/// are the node's.
pub(super) fn measurable(pods_dir: &Path, pod: &Pod, objects: &dyn ObjectLookup) -> Vec<Measurable> {
    let volumes = pods_dir.join(pod.metadata.uid.as_str()).join("volumes");
    let of = |volume: &Volume| {
        let at = |plugin: &str, name: &str| volumes.join(plugin).join(name);
        let name = volume.name.as_str();
        let in_memory =
            volume.secret.is_some() || volume.downward_api.is_some() || volume.projected.is_some();
        let mut claim = None;
        let measure = if let Some(empty) = &volume.empty_dir {
            let path = at("kubernetes.io~empty-dir", name);
            if empty.medium.is_empty() { Measure::Walk(path) } else { Measure::FileSystem(path) }
        } else if volume.config_map.is_some() {
            Measure::Walk(at("kubernetes.io~configmap", name))
        } else if in_memory {
            let plugin = match (&volume.secret, &volume.projected) {
                (Some(_), _) => "kubernetes.io~secret",
                (_, Some(_)) => "kubernetes.io~projected",
                _ => "kubernetes.io~downward-api",
            };
            Measure::FileSystem(at(plugin, name))
        } else if volume.nfs.is_some() {
            Measure::Remote(at("kubernetes.io~nfs", name))
        } else if volume.iscsi.is_some() {
            Measure::Remote(at("kubernetes.io~iscsi", name))
        } else if volume.fc.is_some() {
            Measure::Remote(at("kubernetes.io~fc", name))
        } else if volume.csi.is_some() {
            Measure::Driver(at(PLUGIN, name).join("mount"))
        } else {
            let (named, _) = claim_of(pod, volume)?;
            let bound = objects.of(realm(pod)).persistent_volume_claim(&pod.metadata.namespace, &named)?;
            claim = Some(named);
            match bound.source {
                ClaimedSource::Directory { path, .. } => Measure::Walk(path.into()),
                ClaimedSource::Local { .. } => {
                    Measure::FileSystem(at("kubernetes.io~local-volume", &bound.name))
                }
                ClaimedSource::Nfs { .. } => Measure::Remote(at("kubernetes.io~nfs", &bound.name)),
                ClaimedSource::Disk { kind, .. } => {
                    Measure::Remote(at(&format!("kubernetes.io~{kind}"), &bound.name))
                }
                ClaimedSource::Csi { .. } => Measure::Driver(at(PLUGIN, &bound.name).join("mount")),
                ClaimedSource::HostPath { .. } => return None,
            }
        };
        let is_ephemeral = claim.is_none() && matches!(measure, Measure::Walk(_));
        Some(Measurable { name: name.to_owned(), claim, measure, is_ephemeral })
    };
    pod.spec.volumes.iter().filter_map(of).collect()
}

/// Bytes and inodes.
type Taken = (u64, u64);

struct DiskAnswer {
    /// `None`: it could not be walked.
    taken: Option<Taken>,
    at: Instant,
    took: Duration,
    asked: Instant,
}

impl DiskAnswer {
    fn is_fresh(&self, now: Instant, period: Duration) -> bool {
        now.saturating_duration_since(self.at) < period.max(self.took.saturating_mul(SHARE))
    }
}

pub(super) struct Disks {
    /// A younger result is used as it is. `None`: no directory is walked.
    period: Option<Duration>,
    answers: RefCell<BTreeMap<PathBuf, DiskAnswer>>,
    walking: Cell<bool>,
    ended: Notify,
    remote: RemoteJobs,
}

type Walked = (PathBuf, Option<Taken>, Duration);

impl Disks {
    pub(super) fn new(period: Option<Duration>) -> Self {
        Self {
            period,
            answers: RefCell::default(),
            walking: Cell::new(false),
            ended: Notify::new(),
            remote: RemoteJobs::default(),
        }
    }

    /// Bytes and inodes of these directories, as far as they are available within a few seconds.
    async fn measure_directories(self: &Rc<Self>, wanted: BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Taken> {
        let Some(period) = self.period else { return BTreeMap::new() };
        let now = Instant::now();
        let mut missing = Vec::new();
        for path in &wanted {
            let mut answers = self.answers.borrow_mut();
            match answers.get_mut(path) {
                Some(answer) => {
                    answer.asked = now;
                    if !answer.is_fresh(now, period) {
                        missing.push(path.clone());
                    }
                }
                None => missing.push(path.clone()),
            }
        }
        if !missing.is_empty() && !self.walking.get() {
            self.walk(missing);
        }
        if self.walking.get() {
            let all_known = || {
                let answers = self.answers.borrow();
                wanted.iter().all(|path| answers.contains_key(path))
            };
            let ended = async {
                while self.walking.get() && !all_known() {
                    self.ended.notified().await;
                }
            };
            // A request with older results for every directory does not wait.
            let _ = tokio::time::timeout(PATIENCE, ended).await;
        }
        let answers = self.answers.borrow();
        wanted.into_iter().filter_map(|path| answers.get(&path)?.taken.map(|taken| (path, taken))).into_map()
    }

    /// Walks on a thread of its own, for the pool is for pods, and stores the results as they arrive.
    fn walk(self: &Rc<Self>, paths: Vec<PathBuf>) {
        let (answers, mut walked) = mpsc::unbounded_channel::<Walked>();
        let walk = move || {
            for path in paths {
                let started = std::time::Instant::now();
                let taken = disk_usage(&path).ok();
                if answers.send((path, taken, started.elapsed())).is_err() {
                    return;
                }
            }
        };
        if rt::jobs_run_inline() {
            walk();
        } else if let Err(error) = rt::spawn_thread("measure disk usage", walk) {
            log::warn!(err:% = error; "Failed to start disk usage thread");
            return;
        }
        self.walking.set(true);
        let disks = Rc::clone(self);
        rt::spawn("measure disk usage", async move {
            while let Some((path, taken, took)) = walked.recv().await {
                let now = Instant::now();
                disks.answers.borrow_mut().insert(path, DiskAnswer { taken, at: now, took, asked: now });
                disks.ended.notify_waiters();
            }
            disks.walking.set(false);
            disks.ended.notify_waiters();
        });
    }

    /// Drops results that are no longer requested. `true` when nothing is left.
    pub(super) fn forget(&self) -> bool {
        let now = Instant::now();
        let mut answers = self.answers.borrow_mut();
        answers.retain(|_, answer| now.saturating_duration_since(answer.asked) < KEPT);
        answers.is_empty()
    }

    /// Fills in a summary's figures of disks.
    pub(super) async fn fill(
        self: &Rc<Self>,
        at: Timestamp,
        summary: &mut Summary,
        places: Places,
        runtime: &RuntimeUse,
    ) {
        let Places { root_dir, volumes, csi } = places;
        let upper = |id: &str| runtime.layers.as_ref().map(|layers| layers.join(id).join("upper"));
        let mut wanted = BTreeSet::new();
        for pod in &summary.pods {
            wanted.extend(pod.containers.iter().filter_map(|container| upper(&container.id)));
            let of_pod = volumes.get(pod.pod.uid.as_str()).into_iter().flatten();
            wanted.extend(of_pod.filter_map(|volume| match &volume.measure {
                Measure::Walk(path) => Some(path.clone()),
                _ => None,
            }));
        }
        let remote = self.remote(at, &volumes, csi.as_ref()).await;
        let taken = self.measure_directories(wanted).await;
        let seen = Seen { at, taken, remote };
        let (mut filled, upper) = (std::mem::take(summary), runtime.layers.clone());
        let figures: BTreeMap<String, DiskFigures> = runtime
            .containers
            .iter()
            .filter_map(|(id, figures)| Some((id.to_string(), figures.layer.clone()?)))
            .into_map();
        let (images, all_layers) = (runtime.images.clone(), runtime.all_layers.clone());
        *summary = rt::blocking("file systems", move || {
            let node = &mut filled.node;
            node.fs = seen.whole(&root_dir);
            node.image_fs = images.as_ref().and_then(|figures| seen.figures(figures));
            node.container_fs = all_layers.as_ref().and_then(|figures| seen.figures(figures));
            for pod in &mut filled.pods {
                let mut ephemeral = Sum::default();
                for container in &mut pod.containers {
                    container.rootfs = match (&upper, figures.get(&container.id)) {
                        (Some(layers), _) => seen.walked(&layers.join(&container.id).join("upper")),
                        (None, Some(figures)) => seen.figures(figures),
                        (None, None) => None,
                    };
                    ephemeral.add(container.rootfs);
                    ephemeral.add(container.logs);
                }
                for volume in volumes.get(pod.pod.uid.as_str()).into_iter().flatten() {
                    let fs = match &volume.measure {
                        Measure::Walk(path) => seen.walked(path),
                        Measure::FileSystem(path) => seen.whole(path),
                        Measure::Remote(path) | Measure::Driver(path) => seen.remote.get(path).copied(),
                    };
                    let Some(fs) = fs else { continue };
                    if volume.is_ephemeral {
                        ephemeral.add(Some(fs));
                    }
                    let (name, claim) = (volume.name.clone(), volume.claim.clone());
                    pod.volumes.push(VolumeUse { name, claim, fs, is_ephemeral: volume.is_ephemeral });
                }
                pod.ephemeral = node.fs.map(|fs| ephemeral.of(fs));
            }
            if node.container_fs.is_none() && upper.is_some() {
                let layers = filled.pods.iter().flat_map(|pod| &pod.containers);
                let mut sum = Sum::default();
                layers.for_each(|container| sum.add(container.rootfs));
                node.container_fs = upper.and_then(|layers| seen.whole(&layers)).map(|fs| sum.of(fs));
            }
            filled
        })
        .await;
    }

    /// The file systems of other machines, each queried on a thread of its own, with a short timeout.
    async fn remote(
        &self,
        at: Timestamp,
        volumes: &BTreeMap<String, Vec<Measurable>>,
        csi: Option<&Rc<dyn CsiVolumes>>,
    ) -> BTreeMap<PathBuf, FileSystem> {
        let mut found = BTreeMap::new();
        let deadline = Instant::now() + REMOTE_PATIENCE;
        for volume in volumes.values().flatten() {
            let (Measure::Remote(path) | Measure::Driver(path)) = &volume.measure else { continue };
            if let (Measure::Driver(_), Some(csi)) = (&volume.measure, csi) {
                let asked = Rc::clone(csi).usage(path.clone());
                match tokio::time::timeout_at(deadline, asked).await {
                    Ok(Ok(Some(facts))) => drop(found.insert(path.clone(), of_facts(at, facts))),
                    Ok(Ok(None)) => {}
                    Ok(Err(_)) | Err(_) => continue,
                }
                if found.contains_key(path) {
                    continue;
                }
            }
            let (asked, patience) = (path.clone(), deadline.saturating_duration_since(Instant::now()));
            let answer = run_remote(&self.remote, path, patience, move || whole(at, &asked)).await;
            if let Ok(Some(fs)) = answer {
                found.insert(path.clone(), fs);
            }
        }
        found
    }
}

pub(super) struct Places {
    /// On the node's file system.
    pub(super) root_dir: PathBuf,
    pub(super) volumes: BTreeMap<String, Vec<Measurable>>,
    pub(super) csi: Option<Rc<dyn CsiVolumes>>,
}

/// The figures so far; the rest is queried from the kernel.
struct Seen {
    at: Timestamp,
    taken: BTreeMap<PathBuf, Taken>,
    remote: BTreeMap<PathBuf, FileSystem>,
}

impl Seen {
    fn whole(&self, path: &Path) -> Option<FileSystem> {
        whole(self.at, path)
    }

    fn walked(&self, path: &Path) -> Option<FileSystem> {
        let (facts, taken) = (file_system(path).ok()?, self.taken.get(path));
        let (used, inodes_used) = (taken.map(|taken| taken.0), taken.map(|taken| taken.1));
        Some(FileSystem { at: self.at, facts, used, inodes_used })
    }

    fn figures(&self, figures: &DiskFigures) -> Option<FileSystem> {
        let facts = file_system(&figures.place).ok()?;
        Some(FileSystem { at: self.at, facts, used: figures.bytes, inodes_used: figures.inodes })
    }
}

/// The usage of a file system with a single subject.
fn whole(at: Timestamp, path: &Path) -> Option<FileSystem> {
    Some(of_facts(at, file_system(path).ok()?))
}

fn of_facts(at: Timestamp, facts: FileSystemFacts) -> FileSystem {
    let inodes = (facts.inodes > 0).then(|| facts.inodes.saturating_sub(facts.inodes_free));
    FileSystem { at, facts, used: Some(facts.used), inodes_used: inodes }
}

/// Parts of the node's disk; one that is unknown leaves the whole unknown.
#[derive(Default)]
struct Sum {
    used: u64,
    inodes: u64,
    is_partial: bool,
}

impl Sum {
    fn add(&mut self, fs: Option<FileSystem>) {
        let Some(fs) = fs else { return };
        match fs.used {
            Some(used) => self.used = self.used.saturating_add(used),
            None => self.is_partial = true,
        }
        self.inodes = self.inodes.saturating_add(fs.inodes_used.unwrap_or(0));
    }

    fn of(&self, fs: FileSystem) -> FileSystem {
        let known = |number: u64| (!self.is_partial).then_some(number);
        FileSystem { used: known(self.used), inodes_used: known(self.inodes), ..fs }
    }
}

/// The log files of a container: a flat directory.
pub(super) fn logs(at: Timestamp, directory: &Path) -> Option<FileSystem> {
    let facts = file_system(directory).ok()?;
    let (mut used, mut inodes) = (0_u64, 0_u64);
    for entry in std::fs::read_dir(directory).ok()?.flatten() {
        if let Ok(metadata) = entry.metadata().as_ref().map(MetadataExt::blocks) {
            used = used.saturating_add(metadata.saturating_mul(512));
            inodes += 1;
        }
    }
    Some(FileSystem { at, facts, used: Some(used), inodes_used: Some(inodes) })
}
