//! Which images are removed: those unused for too long, and the least recently used ones while their disk is
//! too full.
//!
//! Owns what is remembered of images and the choice (upstream: `image_gc_manager`). Times are counted from
//! the agent's start, so that a clock that is set makes no image old. Invariants: an image that is pinned, in
//! use, or younger than the minimum age is never chosen.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::runtime_config::RuntimeImage;

/// `imageGCHighThresholdPercent` and the fields beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Percent of the disk in use from which on images are removed; 100 for never.
    pub high_percent: u64,
    /// Percent in use at which removal stops.
    pub low_percent: u64,
    /// A younger image is not removed.
    pub minimum_age: Duration,
    /// Images unused for longer are removed whatever the disk usage; zero for never.
    pub maximum_age: Duration,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            high_percent: 85,
            low_percent: 80,
            minimum_age: Duration::from_secs(120),
            maximum_age: Duration::ZERO,
        }
    }
}

impl ImageLimits {
    /// No images are removed automatically.
    #[must_use]
    pub(super) fn is_off(&self) -> bool {
        self.high_percent >= 100 && self.maximum_age.is_zero()
    }

    /// Bytes to free of a disk; `None` while it is not too full, and for one without a size.
    #[must_use]
    pub(crate) fn excess(&self, capacity: u64, available: u64) -> Option<u64> {
        let free_percent = u128::from(available) * 100 / u128::from(capacity).max(1);
        let used_percent = 100_u128.saturating_sub(free_percent);
        if capacity == 0 || self.high_percent >= 100 || used_percent < u128::from(self.high_percent) {
            return None;
        }
        let wanted = u128::from(capacity) * u128::from(100_u64.saturating_sub(self.low_percent)) / 100;
        Some(u64::try_from(wanted).unwrap_or(u64::MAX).saturating_sub(available))
    }
}

/// The state kept about an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sighting {
    /// `None`: it is older than the agent.
    first: Option<Duration>,
    /// `None`: not since the agent's start.
    last_used: Option<Duration>,
}

/// The state kept about all images, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageHistory {
    seen: BTreeMap<String, Sighting>,
    has_begun: bool,
}

/// The images to remove, and when to check again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImagePlan {
    /// Ids of those that have been unused for too long.
    pub old: Vec<String>,
    /// Ids and sizes in bytes of the images that may be removed to free space, the first to be removed first.
    pub removable: Vec<(String, u64)>,
    /// The time after which more images may become removable.
    pub again_after: Option<Duration>,
}

impl ImageHistory {
    /// Records the images that exist and those in use; `used` holds ids. Images found by the first check
    /// count as older than the agent, as upstream.
    pub(super) fn observe(&mut self, images: &[RuntimeImage], used: &BTreeSet<String>, now: Duration) {
        let first = self.has_begun.then_some(now);
        self.has_begun = true;
        self.seen.retain(|id, _| images.iter().any(|image| image.id == *id));
        for image in images {
            let new = Sighting { first, last_used: None };
            let sighting = self.seen.entry(image.id.clone()).or_insert(new);
            if used.contains(&image.id) {
                sighting.last_used = Some(now);
            }
        }
    }

    /// Decides, after [`Self::observe`] with the same arguments.
    #[must_use]
    pub(super) fn plan(
        &self,
        images: &[RuntimeImage],
        used: &BTreeSet<String>,
        limits: &ImageLimits,
        now: Duration,
    ) -> ImagePlan {
        let mut plan = ImagePlan::default();
        let mut candidates = Vec::new();
        let mut soonest = |left: Duration| {
            plan.again_after = Some(plan.again_after.map_or(left, |after| after.min(left)));
        };
        for image in images.iter().filter(|image| !image.pinned && !used.contains(&image.id)) {
            let Some(sighting) = self.seen.get(&image.id) else { continue };
            // An image that was never used counts as unused since the agent's start. Upstream spares images
            // of unknown age in this way.
            let unused = now.saturating_sub(sighting.last_used.unwrap_or_default());
            if !limits.maximum_age.is_zero() {
                match limits.maximum_age.checked_sub(unused) {
                    Some(left) if !left.is_zero() => soonest(left),
                    _ => {
                        plan.old.push(image.id.clone());
                        continue;
                    }
                }
            }
            let age = sighting.first.map_or(Duration::MAX, |first| now.saturating_sub(first));
            match limits.minimum_age.checked_sub(age) {
                Some(left) if !left.is_zero() => soonest(left),
                _ => candidates.push((sighting.last_used, sighting.first, image)),
            }
        }
        candidates.order_by_key(|(last_used, first, image)| (*last_used, *first, image.id.clone()));
        plan.removable =
            candidates.into_iter().map(|(_, _, image)| (image.id.clone(), image.size_bytes)).collect();
        plan
    }
}

/// The ids of images that match these names: ids themselves, tags and digests as the runtime has them.
#[must_use]
pub(super) fn named_ids(images: &[RuntimeImage], names: &BTreeSet<String>) -> BTreeSet<String> {
    let is_named = |image: &&RuntimeImage| {
        names.contains(&image.id) || image.names.iter().any(|name| names.contains(name))
    };
    images.iter().filter(is_named).map(|image| image.id.clone()).into_set()
}

/// The event's message when removing images did not free enough space (upstream's text).
#[must_use]
pub(crate) fn too_little(wanted: u64, freed: u64) -> String {
    format!(
        "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {freed} \
         bytes eligible to free."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const GIB: u64 = 1 << 30;

    fn image(id: &str) -> RuntimeImage {
        RuntimeImage { id: id.to_owned(), names: vec![format!("{id}:1")], size_bytes: 10, pinned: false }
    }

    fn ids(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn removable(plan: &ImagePlan) -> Vec<&str> {
        plan.removable.iter().map(|(id, _)| id.as_str()).collect()
    }

    #[test]
    fn image_gc_frees_from_the_high_to_the_low_threshold() {
        let limits = ImageLimits::default();
        assert_eq!(limits.excess(100 * GIB, 16 * GIB), None);
        assert_eq!(limits.excess(100 * GIB, 15 * GIB), Some(5 * GIB));
        // Percent are whole, as upstream: 84.01 % in use count as 85.
        assert_eq!(limits.excess(100 * GIB, 16 * GIB - 1), Some(4 * GIB + 1));
        assert_eq!(limits.excess(64 << 20, 0), Some((64 << 20) / 5));
        assert_eq!(limits.excess(0, 0), None, "a disk without a size");
        let off = ImageLimits { high_percent: 100, ..limits };
        assert!(off.is_off() && off.excess(GIB, 0).is_none());
        assert!(!ImageLimits { maximum_age: MINUTE, ..off }.is_off());
    }

    #[test]
    fn image_gc_removes_never_used_then_least_recently_used() {
        let images = ["never", "early", "late", "now", "pinned"].map(image);
        let images = images.map(|image| RuntimeImage { pinned: image.id == "pinned", ..image });
        let mut history = ImageHistory::default();
        history.observe(&images, &ids(&["early", "late"]), MINUTE);
        history.observe(&images, &ids(&["late"]), 2 * MINUTE);
        let used = ids(&["now"]);
        history.observe(&images, &used, 3 * MINUTE);
        let plan = history.plan(&images, &used, &ImageLimits::default(), 3 * MINUTE);
        assert_eq!(removable(&plan), ["never", "early", "late"]);
        assert!(plan.old.is_empty() && plan.again_after.is_none());
    }

    #[test]
    fn young_image_is_kept_unless_it_predates_the_agent() {
        let mut history = ImageHistory::default();
        history.observe(&[image("before")], &ids(&[]), Duration::ZERO);
        let both = [image("before"), image("new")];
        history.observe(&both, &ids(&[]), MINUTE);
        let plan = history.plan(&both, &ids(&[]), &ImageLimits::default(), 2 * MINUTE);
        assert_eq!((removable(&plan), plan.again_after), (vec!["before"], Some(MINUTE)));
        let later = history.plan(&both, &ids(&[]), &ImageLimits::default(), 3 * MINUTE);
        assert_eq!(removable(&later), ["before", "new"]);
        // Removed and pulled again: as new as the first time.
        history.observe(&[], &ids(&[]), 3 * MINUTE);
        history.observe(&both, &ids(&[]), 3 * MINUTE);
        assert!(removable(&history.plan(&both, &ids(&[]), &ImageLimits::default(), 3 * MINUTE)).is_empty());
    }

    #[test]
    fn what_is_unused_for_too_long_goes_whatever_the_disk_says() {
        let limits = ImageLimits { maximum_age: 10 * MINUTE, ..ImageLimits::default() };
        let images = [image("a"), image("b")];
        let mut history = ImageHistory::default();
        history.observe(&images, &ids(&["b"]), 4 * MINUTE);
        let plan = history.plan(&images, &ids(&[]), &limits, 9 * MINUTE);
        assert_eq!((plan.old.len(), plan.again_after), (0, Some(MINUTE)), "not before the agent is that old");
        let plan = history.plan(&images, &ids(&[]), &limits, 10 * MINUTE);
        assert_eq!((plan.old, plan.again_after), (vec!["a".to_owned()], Some(4 * MINUTE)));
        assert_eq!(plan.removable, [("b".to_owned(), 10)]);
    }

    #[test]
    fn images_are_found_by_any_of_their_names() {
        let images = [image("a"), image("b"), image("c")];
        assert_eq!(named_ids(&images, &ids(&["a:1", "c", "other"])), ids(&["a", "c"]));
    }
}
