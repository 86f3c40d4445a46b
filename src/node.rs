//! Node self-protection: frees disk space and evicts pods one at a time before the kernel kills processes
//! (upstream: eviction manager, image garbage collection, OOM watcher).
//!
//! Owns the schedule of checks, and the state kept between two checks. The decisions are in `eviction` and
//! `image_gc`; ending a pod is up to its worker. A check reads a few files. It runs once a minute, every ten
//! seconds while a signal is near or over its threshold, and ten seconds after a pod has changed. It writes
//! nothing while nothing changes.
//!
//! | file | what |
//! |---|---|
//! | `health` | the node's state, for other modules |
//! | `images` | removal of images |
//! | `object` | the `Node` and its lease as Kubernetes writes them |
//! | `oom` | OOM kills in the kernel log |
//! | `pods` | eviction of pods |
//! | `shutdown` | machine shutdown |
//! | `usage` | what the node and its pods use: the types |

pub mod allocatable;
pub mod eviction;
pub mod image_gc;
pub mod stats;
pub mod usage;

pub mod health;
mod images;
pub mod object;
pub mod oom;
mod pods;
pub mod shutdown;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::disruption::Pressure;
use crate::node::eviction::rank::Disks;
use crate::node::eviction::{EvictionConfig, EvictionState, Observation, Observations, Signal, evaluate};
use crate::node::health::Health;
use crate::node::image_gc::ImageLimits;
use crate::node::images::{Images, NodeRuntime};
use crate::node::stats::Stats;
use crate::node::usage::{NodeUse, Summary};
use crate::platform::clock::Clock;
use crate::platform::rt;
use crate::platform::rt::live::Live;
use crate::platform::sys::kernel_log::MemoryStalls;
use crate::platform::sys::node::{FileSystemFacts, file_system};
use crate::pod::events::{EventRecorder, EventType};
use crate::pod::status::StatusManager;
use crate::pod::workers::PodPressure;
use crate::runtime::DiskPlaces;

/// Delay before the first check, which leaves the start to more urgent work.
const FIRST: Duration = Duration::from_secs(2);
/// Upstream's period, and the shortest time between two checks.
const FAST: Duration = Duration::from_secs(10);
/// The pace while nothing is near a threshold.
const SLOW: Duration = Duration::from_secs(60);
/// The pause after a reclaim, before its effect is measured.
const SOON: Duration = Duration::from_secs(1);

pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T>>>;

/// Measures what pods use: CPU and memory, disks, everything.
pub(crate) type Measure = Rc<dyn Fn() -> Pending<Result<Summary, String>>>;

#[derive(Clone, Debug, Default)]
pub struct NodeConfig {
    pub eviction: EvictionConfig,
    pub images: ImageLimits,
    /// `kernelMemcgNotification`: a kernel without notifications is worth a warning.
    pub kernel_notification: bool,
    /// `localStorageCapacityIsolation`: limits of local storage are enforced.
    pub isolates_storage: bool,
    /// `<root-dir>`: the node's disk.
    pub root_dir: PathBuf,
}

pub struct NodeParts {
    pub config: Live<NodeConfig>,
    pub clock: Clock,
    pub events: EventRecorder,
    pub statuses: Rc<StatusManager>,
    pub health: Rc<Health>,
    pub pods: Rc<dyn PodPressure>,
    pub runtime: Rc<dyn NodeRuntime>,
    pub stats: Rc<Stats>,
    pub measure: Measure,
    /// Called after each check. A check makes many pages resident that can be released again.
    pub on_checked: Rc<dyn Fn()>,
}

pub struct NodeManager {
    parts: NodeParts,
    /// At the last check.
    config: Rc<NodeConfig>,
    origin: Instant,
    places: Option<DiskPlaces>,
    state: EvictionState,
    images: Images,
    /// A pod has changed since the last check.
    has_changed: bool,
    /// The signal being reclaimed, once its event was emitted.
    reported_signal: Option<Signal>,
    /// Nothing could be reclaimed, and nothing has changed since.
    is_futile: bool,
    /// When the limits of local storage are checked next.
    limits_at: Duration,
}

struct Look {
    seen: Observations,
    images: Option<FileSystemFacts>,
    disks: Disks,
}

impl NodeManager {
    /// Starts no check before [`Self::run`].
    #[must_use]
    pub fn new(parts: NodeParts) -> Self {
        Self {
            config: parts.config.get(),
            parts,
            origin: Instant::now(),
            places: None,
            state: EvictionState::default(),
            images: Images::default(),
            has_changed: false,
            reported_signal: None,
            is_futile: false,
            limits_at: Duration::ZERO,
        }
    }

    /// Runs as long as the task lives.
    pub async fn run(mut self) {
        let mut statuses = self.parts.statuses.watch();
        let health = Rc::clone(&self.parts.health);
        let stalls = self.stalls();
        let mut next = Instant::now() + FIRST;
        let mut earliest = next;
        loop {
            tokio::select! {
                biased;
                // Losing it is safe: the deadline stays the same.
                () = tokio::time::sleep_until(next) => {}
                // Losing these is safe: a version stays changed until it is read, and memory that stays short
                // is reported again.
                Ok(()) = statuses.changed(), if !self.has_changed => {
                    self.has_changed = true;
                    next = next.min(earliest);
                    continue;
                }
                () = stall(stalls.as_ref()) => {
                    next = next.min(earliest);
                    continue;
                }
                // Losing it is safe: the next request notifies again.
                () = health.images_requested() => {
                    self.show_images().await;
                    continue;
                }
            }
            let pause = self.run_check().await;
            (self.parts.on_checked)();
            earliest = Instant::now() + FAST.min(pause);
            next = Instant::now() + pause;
        }
    }

    /// The kernel's memory stall events (PSI). `None` if no memory threshold is configured, or if the kernel
    /// does not provide them.
    fn stalls(&self) -> Option<MemoryStalls> {
        let config = self.parts.config.get();
        let mut thresholds = config.eviction.thresholds.iter();
        let is_wanted = thresholds.any(|threshold| threshold.signal.pressure() == Pressure::Memory);
        // A simulation has simulated memory, and no reactor.
        if !is_wanted || rt::jobs_run_inline() {
            return None;
        }
        match MemoryStalls::open() {
            Ok(stalls) => Some(stalls),
            // The kubelet's kernel notifications were asked for by their setting.
            Err(error) if config.kernel_notification => {
                log::warn!(err:% = error; "Failed to watch memory pressure events, checking memory \
                     periodically");
                None
            }
            Err(error) => {
                log::debug!(err:% = error; "Failed to watch memory pressure events, checking memory \
                     periodically");
                None
            }
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Runs one check and acts on it. Returns the time until the next.
    async fn run_check(&mut self) -> Duration {
        let has_changed = std::mem::take(&mut self.has_changed);
        self.is_futile &= !has_changed;
        let config = self.parts.config.get();
        if !Rc::ptr_eq(&config, &self.config) {
            self.config = config;
            self.is_futile = false;
            self.images.reconsider();
        }
        let look = self.observe().await;
        let (state, verdict) =
            evaluate(&self.parts.config.get().eviction, &self.state, &look.seen, self.now());
        self.state = state;
        self.publish(&verdict.pressure);
        // A pod's change affects the figures a little later.
        let is_restless = has_changed || verdict.is_near || !verdict.pressure.is_empty();
        let mut pause = if is_restless { FAST } else { SLOW };
        pause = verdict.again_after.map_or(pause, |after| pause.min(after.max(SOON)));
        if let Some(after) = self.keep_images(look.images, has_changed).await {
            pause = pause.min(after.max(SOON));
        }
        if let Some(after) = self.enforce_limits(look.disks).await {
            pause = pause.min(after);
        }
        match verdict.reclaim {
            Some(threshold) => {
                if self.reclaim(threshold, &look).await {
                    pause = SOON;
                }
            }
            None => self.reported_signal = None,
        }
        pause
    }

    /// Reads every signal that has a threshold. Signals that cannot be read are left out.
    async fn observe(&mut self) -> Look {
        if self.places.is_none() {
            match Rc::clone(&self.parts.runtime).places().await {
                Ok(places) => self.places = Some(places),
                Err(error) => log::debug!(err:% = error; "Failed to get image filesystem info from runtime"),
            }
        }
        let node = self.parts.stats.node().await;
        let (root, places) =
            (self.parts.config.get().root_dir.clone(), self.places.clone().unwrap_or_default());
        let (mut look, root) = rt::blocking("file systems", move || disks(&root, &places)).await;
        let mut see = |signal, capacity, available: Option<u64>| {
            if let (Some(capacity), Some(available)) = (capacity, available) {
                look.seen.insert(signal, Observation { capacity, available });
            }
        };
        let less = |all: Option<u64>, part: Option<u64>| Some(all?.saturating_sub(part?));
        see(
            Signal::MemoryAvailable,
            node.memory_total,
            less(node.memory_total, node.usage.counted.working_set),
        );
        see(Signal::PidAvailable, node.max_pids, less(node.max_pids, node.pids));
        if let Some((limit, used)) = pods_memory(&node) {
            see(Signal::AllocatableMemoryAvailable, Some(limit), Some(limit.saturating_sub(used)));
        }
        let mut see_disk = |fs: &FileSystemFacts, bytes, inodes| {
            see(bytes, Some(fs.capacity).filter(|capacity| *capacity > 0), Some(fs.available));
            see(inodes, Some(fs.inodes).filter(|inodes| *inodes > 0), Some(fs.inodes_free));
        };
        if let Some(root) = root {
            see_disk(&root, Signal::NodefsAvailable, Signal::NodefsInodesFree);
        }
        let images = look.images.filter(|_| look.disks.has_imagefs);
        if let Some(images) = images {
            see_disk(&images, Signal::ImagefsAvailable, Signal::ImagefsInodesFree);
        }
        look
    }

    /// Publishes the pressure conditions, and logs changes.
    fn publish(&self, pressure: &BTreeSet<Pressure>) {
        let parts = &self.parts;
        let news = parts.health.set_pressure(pressure, parts.clock.now());
        if news.is_empty() {
            return;
        }
        for of in news {
            let event = of.event(pressure.contains(&of));
            let message = format!("Node {} status is now: {event}", parts.events.node_name());
            parts.events.node_event(EventType::Normal, event, &message);
        }
        parts.pods.set_short_of_disk(pressure.contains(&Pressure::Disk));
        parts.pods.set_pressure(pressure.clone());
    }
}

/// Limit and usage of all pods' memory together, where there is a limit.
fn pods_memory(node: &NodeUse) -> Option<(u64, u64)> {
    let counted = &node.system.iter().find(|system| system.name == "pods")?.usage.counted;
    Some((counted.memory_limit?, counted.working_set?))
}

/// The disks, and the node's own.
fn disks(root: &Path, places: &DiskPlaces) -> (Look, Option<FileSystemFacts>) {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.dev());
    let images = places.images.as_deref();
    let of_images = images.and_then(device);
    let of_layers = places.layers.as_deref().and_then(device).or(of_images);
    let look = Look {
        seen: Observations::new(),
        images: images.and_then(|images| file_system(images).ok()),
        disks: Disks {
            has_imagefs: of_images.is_some() && of_images != device(root),
            layers_with_images: of_layers == of_images,
        },
    };
    (look, file_system(root).ok())
}

async fn stall(stalls: Option<&MemoryStalls>) {
    match stalls {
        Some(stalls) if stalls.next().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
