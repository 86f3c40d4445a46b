//! Signals, and parsing of the configured thresholds.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Observation;
use crate::model::amount::Amount;
use crate::model::disruption::Pressure;
use crate::model::ordered::Sortable as _;

/// The signals that are watched. There are none for `containerfs.*`: its configuration is ignored, as
/// upstream, and the disk of the writable layers is watched as the node's or the images'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    MemoryAvailable,
    /// Memory of all pods together, within the limit of their cgroup.
    AllocatableMemoryAvailable,
    /// Bytes on the disk of the root directory.
    NodefsAvailable,
    NodefsInodesFree,
    /// Bytes on the disk of images, if it is a separate one.
    ImagefsAvailable,
    ImagefsInodesFree,
    PidAvailable,
}

impl Signal {
    const NAMES: [(Self, &'static str); 7] = [
        (Self::MemoryAvailable, "memory.available"),
        (Self::AllocatableMemoryAvailable, "allocatableMemory.available"),
        (Self::NodefsAvailable, "nodefs.available"),
        (Self::NodefsInodesFree, "nodefs.inodesFree"),
        (Self::ImagefsAvailable, "imagefs.available"),
        (Self::ImagefsInodesFree, "imagefs.inodesFree"),
        (Self::PidAvailable, "pid.available"),
    ];

    fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(signal, _)| *signal)
    }

    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(signal, _)| *signal == self).map_or("", |(_, name)| name)
    }

    /// The resource that is reclaimed, as messages name it.
    #[must_use]
    pub(crate) fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    #[must_use]
    pub(crate) fn pressure(self) -> Pressure {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Pressure::Memory,
            Self::PidAvailable => Pressure::Pid,
            _ => Pressure::Disk,
        }
    }
}

/// One threshold: it is met when less than this is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    pub signal: Signal,
    pub value: Amount,
    /// How long it may be met; zero for a hard threshold.
    pub grace: Duration,
    /// `evictionHard`.
    pub is_hard: bool,
    /// `evictionMinimumReclaim`: how much must be free beyond the value once the threshold was met.
    pub minimum_reclaim: Option<Amount>,
}

impl Threshold {
    /// `was_met`: it is resolved only after the minimum reclaim.
    #[must_use]
    pub(in crate::node) fn is_met(&self, observed: Observation, was_met: bool) -> bool {
        let reclaim =
            self.minimum_reclaim.filter(|_| was_met).map_or(0, |amount| amount.of(observed.capacity));
        observed.available < self.value.of(observed.capacity).saturating_add(reclaim)
    }

    /// Within a quarter of the value, or two percent of the capacity.
    #[must_use]
    pub(in crate::node) fn is_near(&self, observed: Observation) -> bool {
        let value = self.value.of(observed.capacity);
        observed.available <= value.saturating_add((value / 4).max(observed.capacity / 50))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThresholdTexts {
    /// `evictionHard`.
    pub hard: BTreeMap<String, String>,
    /// `evictionSoft`.
    pub soft: BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`.
    pub grace: BTreeMap<String, Duration>,
    /// `evictionMinimumReclaim`.
    pub minimum_reclaim: BTreeMap<String, String>,
    /// `pods` is in `enforceNodeAllocatable`: all pods together have a limit of memory.
    pub pods_are_limited: bool,
}

/// All thresholds, in the order in which they are handled: memory first. Where pods are limited, the hard
/// threshold of memory also applies to the rest of their limit (upstream: `addAllocatableThresholds`).
#[must_use]
pub fn thresholds(texts: &ThresholdTexts) -> Vec<Threshold> {
    let reclaim = |name: &str| texts.minimum_reclaim.get(name).and_then(|text| Amount::parse(text));
    let of = |name: &str, text: &str, grace: Option<Duration>| {
        Some(Threshold {
            signal: Signal::from_name(name)?,
            value: Amount::parse(text)?,
            grace: grace.unwrap_or_default(),
            is_hard: grace.is_none(),
            minimum_reclaim: reclaim(name),
        })
    };
    let hard = texts.hard.iter().filter_map(|(name, text)| of(name, text, None));
    let soft = texts.soft.iter().filter_map(|(name, text)| of(name, text, Some(*texts.grace.get(name)?)));
    let mut all: Vec<Threshold> = hard.chain(soft).collect();
    let memory = |threshold: &&Threshold| threshold.is_hard && threshold.signal == Signal::MemoryAvailable;
    if let Some(memory) = all.iter().find(memory).filter(|_| texts.pods_are_limited) {
        all.push(Threshold { signal: Signal::AllocatableMemoryAvailable, ..*memory });
    }
    all.order_by_key(|threshold| threshold.signal.pressure() != Pressure::Memory);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_amounts_and_some_switch_a_signal_off() {
        assert_eq!(Amount::parse("100Mi"), Some(Amount::Fixed(100 << 20)));
        assert_eq!(Amount::parse("12.5%").unwrap().of(1000), 125);
        for off in ["0%", "100%", "x", "-1"] {
            assert_eq!(Amount::parse(off), None, "{off}");
        }
    }

    #[test]
    fn memory_thresholds_sort_first_and_include_allocatable() {
        let text = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        let texts = ThresholdTexts {
            hard: text(&[
                ("imagefs.available", "15%"),
                ("memory.available", "100Mi"),
                ("containerfs.available", "15%"),
            ]),
            soft: text(&[("memory.available", "200Mi"), ("pid.available", "10")]),
            grace: [("memory.available".to_owned(), Duration::from_secs(5))].into(),
            pods_are_limited: true,
            ..ThresholdTexts::default()
        };
        let names: Vec<(&str, bool)> =
            thresholds(&texts).iter().map(|threshold| (threshold.signal.name(), threshold.is_hard)).collect();
        let expected = [
            ("memory.available", true),
            ("memory.available", false),
            ("allocatableMemory.available", true),
            ("imagefs.available", true),
        ];
        assert_eq!(names, expected);
    }
}
