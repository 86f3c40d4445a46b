//! Image garbage collection: when images are listed, and how they are removed.
//!
//! Owns the state kept about images. Which ones are removed is decided in `node::image_gc`. Images are listed
//! when the disk is too full, when a pod has changed (at most every five minutes, upstream's period), and
//! when an image reaches its maximum age.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use super::{NodeManager, Pending};
use crate::model::api::pod::Pod;
use crate::model::containers::{all_with_ephemeral, is_terminal};
use crate::model::image_name::apply_default_tag;
use crate::model::ordered::Ordered as _;
use crate::node::eviction::is_resolved;
use crate::node::image_gc::{ImageHistory, ImagePlan, named_ids, too_little};
use crate::platform::logging::chain;
use crate::platform::metrics::{self, Family};
use crate::platform::rt;
use crate::platform::sys::node::FileSystemFacts;
use crate::pod::events::EventType;
use crate::pod::image::Prunable;
use crate::runtime::{DiskPlaces, Runtime, RuntimeError, RuntimeImage};

static COLLECTED: Family = Family::counter(
    "kubelet_image_garbage_collected_total",
    "Total number of images garbage collected, by reason: disk usage or image age",
    &["reason"],
);

const PERIOD: Duration = Duration::from_secs(300);
/// Maximum age of a list that is shown to other modules (upstream's cache).
const SHOWN_FOR: Duration = Duration::from_secs(30);

/// The part of a runtime that manages images.
pub trait NodeRuntime {
    /// Where its disks are.
    fn places(self: Rc<Self>) -> Pending<Result<DiskPlaces, RuntimeError>>;
    fn images(self: Rc<Self>) -> Pending<Result<Vec<RuntimeImage>, RuntimeError>>;
    /// The image references of containers, running or not.
    fn used_images(self: Rc<Self>) -> Pending<Result<BTreeSet<String>, RuntimeError>>;
    /// The ids of these references; those of missing images are left out.
    fn ids_of(
        self: Rc<Self>,
        references: BTreeSet<String>,
    ) -> Pending<Result<BTreeSet<String>, RuntimeError>>;
    fn remove(self: Rc<Self>, id: String) -> Pending<Result<Option<u64>, RuntimeError>>;
}

impl<R: Runtime> NodeRuntime for R {
    fn places(self: Rc<Self>) -> Pending<Result<DiskPlaces, RuntimeError>> {
        Box::pin(async move { self.disk_places().await })
    }

    fn images(self: Rc<Self>) -> Pending<Result<Vec<RuntimeImage>, RuntimeError>> {
        Box::pin(async move { self.list_images().await })
    }

    fn used_images(self: Rc<Self>) -> Pending<Result<BTreeSet<String>, RuntimeError>> {
        Box::pin(async move {
            let containers = self.list_containers(None).await?;
            Ok(containers.into_iter().flat_map(|container| [container.image_id, container.image]).into_set())
        })
    }

    fn ids_of(
        self: Rc<Self>,
        references: BTreeSet<String>,
    ) -> Pending<Result<BTreeSet<String>, RuntimeError>> {
        Box::pin(async move {
            let mut ids = BTreeSet::new();
            for reference in references {
                ids.extend(self.image_status(&reference).await?.map(|image| image.id));
            }
            Ok(ids)
        })
    }

    fn remove(self: Rc<Self>, id: String) -> Pending<Result<Option<u64>, RuntimeError>> {
        Box::pin(async move { self.remove_image(&id).await })
    }
}

#[derive(Default)]
pub(super) struct Images {
    history: ImageHistory,
    listed_at: Option<Duration>,
    /// When images were last removed to free space, or could not be.
    freed: Option<Duration>,
    /// When the passing of time alone makes a difference.
    again_at: Option<Duration>,
    /// Something has changed since the last check.
    is_dirty: bool,
    /// Too little could be removed, and nothing has changed since.
    is_futile: bool,
    /// The failure to free space that was reported, by upstream's reason.
    reported_failure: Option<&'static str>,
}

impl Images {
    /// What was decided under another configuration counts no more.
    pub(super) fn reconsider(&mut self) {
        (self.listed_at, self.freed, self.again_at, self.is_futile) = (None, None, None, false);
    }
}

impl NodeManager {
    /// Removes images that are too old, and those the disk has no room for. Returns the time until the next
    /// listing.
    pub(super) async fn keep_images(
        &mut self,
        disk: Option<FileSystemFacts>,
        has_changed: bool,
    ) -> Option<Duration> {
        let limits = self.parts.config.get().images;
        if limits.is_off() {
            return None;
        }
        let now = self.now();
        let rested = |last: Option<Duration>| last.is_none_or(|last| now.saturating_sub(last) >= PERIOD);
        self.images.is_dirty |= has_changed;
        self.images.is_futile &= !has_changed;
        let excess = disk.and_then(|disk| limits.excess(disk.capacity, disk.available));
        let is_due = self.images.again_at.is_some_and(|at| now >= at);
        let frees = excess.is_some() && (is_due || rested(self.images.freed) && !self.images.is_futile);
        if excess.is_none() {
            self.images.reported_failure = None;
        }
        if frees
            || is_due
            || self.images.is_dirty && rested(self.images.listed_at)
            || self.images.listed_at.is_none()
        {
            self.images.again_at = None;
            match self.collect(if frees { excess } else { None }).await {
                Ok(()) => {}
                Err(error) if frees || is_due => self.report_image_failure("ImageGCFailed", &chain(&error)),
                Err(error) => {
                    log::debug!(err = chain(&error); "Failed to get image filesystem stats from runtime");
                }
            }
        }
        self.images.again_at.map(|at| at.saturating_sub(self.now()))
    }

    async fn collect(&mut self, wanted: Option<u64>) -> Result<(), RuntimeError> {
        let mut plan = self.plan().await?;
        let now = self.now();
        if !plan.old.is_empty() || wanted.is_some() && !plan.removable.is_empty() {
            plan = self.without_used_images(plan).await?;
        }
        // An image that cannot be removed must not keep the others.
        let mut failed = None;
        for id in std::mem::take(&mut plan.old) {
            if let Err(error) = self.remove(&id, 0, "age").await {
                failed.get_or_insert(error);
            }
        }
        let mut freed = 0;
        if let Some(wanted) = wanted {
            self.images.freed = Some(now);
            for (id, size) in &plan.removable {
                if freed >= wanted {
                    break;
                }
                match self.remove(id, *size, "space").await {
                    Ok(bytes) => freed += bytes,
                    Err(error) => {
                        failed.get_or_insert(error);
                    }
                }
            }
            self.images.is_futile = freed < wanted && failed.is_none();
            if self.images.is_futile {
                self.report_image_failure("FreeDiskSpaceFailed", &too_little(wanted, freed));
            }
        }
        // Only work with a deadline of its own justifies a wake-up.
        let is_awaited = wanted.is_some_and(|wanted| freed < wanted)
            || !self.parts.config.get().images.maximum_age.is_zero();
        self.images.again_at = plan.again_after.filter(|_| is_awaited).map(|after| now.saturating_add(after));
        failed.map_or(Ok(()), Err)
    }

    /// Lists all images and those in use.
    async fn plan(&mut self) -> Result<ImagePlan, RuntimeError> {
        let runtime = &self.parts.runtime;
        let root = self.parts.config.get().root_dir.clone();
        let records = rt::blocking("pull-records", move || Prunable::list(&root)).await;
        let images = Rc::clone(runtime).images().await?;
        let ids = images.iter().map(|image| image.id.clone()).into_set();
        rt::blocking("pull-records", move || records.prune(&ids)).await;
        let names = Rc::clone(runtime).used_images().await?;
        let (now, used) = (self.now(), named_ids(&images, &names));
        self.images.history.observe(&images, &used, now);
        (self.images.listed_at, self.images.is_dirty) = (Some(now), false);
        let plan = self.images.history.plan(&images, &used, &self.parts.config.get().images, now);
        if !self.parts.config.get().images.maximum_age.is_zero() {
            // Whatever triggered this check: images that are too old now, or will be, stay scheduled.
            let soonest = if plan.old.is_empty() { plan.again_after } else { Some(Duration::ZERO) };
            self.images.again_at = soonest.map(|after| now.saturating_add(after));
        }
        self.parts.health.set_images(images);
        Ok(plan)
    }

    /// The plan without the images of pods that have not ended, whether or not a container exists now: the
    /// device may have no network to pull them again. The kubelet spares only images of existing containers.
    async fn without_used_images(&self, mut plan: ImagePlan) -> Result<ImagePlan, RuntimeError> {
        let pods = self.parts.statuses.all_pods();
        let wanted = pods.iter().filter(|pod| !is_terminal(&pod.status)).flat_map(named).into_set();
        let ids = Rc::clone(&self.parts.runtime).ids_of(wanted).await?;
        plan.old.retain(|id| !ids.contains(id));
        plan.removable.retain(|(id, _)| !ids.contains(id));
        Ok(plan)
    }

    /// Returns the bytes freed, or the image's size where the freed bytes are unknown.
    async fn remove(&self, id: &str, size: u64, why: &str) -> Result<u64, RuntimeError> {
        log::info!(imageID = id, reason = why; "Removing unused image");
        let freed = Rc::clone(&self.parts.runtime).remove(id.to_owned()).await?;
        metrics::count(&COLLECTED, &[why]);
        Ok(freed.unwrap_or(size))
    }

    /// Removes images one after the other until no threshold is met any more. `true` when that was enough.
    pub(super) async fn free_for_thresholds(&mut self) -> bool {
        let plan = match self.plan().await {
            Ok(plan) if plan.removable.is_empty() => return false,
            Ok(plan) => self.without_used_images(plan).await,
            Err(error) => Err(error),
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                self.report_image_failure("ImageGCFailed", &chain(&error));
                return false;
            }
        };
        for (id, size) in &plan.removable {
            if let Err(error) = self.remove(id, *size, "space").await {
                self.report_image_failure("ImageGCFailed", &chain(&error));
                continue;
            }
            let look = self.observe().await;
            if is_resolved(&self.parts.config.get().eviction, &look.seen) {
                return true;
            }
        }
        false
    }

    /// Answers a request for the list of images.
    pub(super) async fn show_images(&mut self) {
        let now = self.now();
        if self.images.listed_at.is_some_and(|looked| now.saturating_sub(looked) < SHOWN_FOR) {
            return;
        }
        if let Err(error) = self.plan().await {
            log::debug!(err:% = error; "Failed to list images");
        }
    }

    /// Once, until space is free again: otherwise a full disk would be written to each time.
    fn report_image_failure(&mut self, reason: &'static str, message: &str) {
        if self.images.reported_failure.replace(reason) != Some(reason) {
            self.parts.events.node_event(EventType::Warning, reason, message);
        }
    }
}

/// The image references of the pod, but for those that are none: a runtime would refuse the question.
fn named(pod: &Pod) -> impl Iterator<Item = String> {
    let containers = all_with_ephemeral(pod).map(|(container, _)| container.image.clone());
    let volumes = pod.spec.volumes.iter().filter_map(|volume| Some(volume.image.as_ref()?.reference.clone()));
    containers.chain(volumes).filter(|name| apply_default_tag(name).is_ok())
}
