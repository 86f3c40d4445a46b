//! Node pressure, and how it is relieved: unused images and containers are removed first, then pods are
//! evicted one at a time.
//!
//! Owns thresholds, pressure and their times (upstream: `eviction_manager.synchronize`). Times are counted
//! from the agent's start: setting the clock neither causes pressure nor ends it. Invariants: at most one
//! threshold is acted on at a time; a condition stays for the transition period after it was last observed.
//!
//! | file | what |
//! |---|---|
//! | `limits` | pods that exceed their limits of local storage |
//! | `rank` | the order of eviction, and the messages |
//! | `threshold` | signals, and parsing of the configuration |
//!
//! Pure: what it returns depends on its arguments alone.

pub mod limits;
pub mod rank;
mod threshold;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::disruption::Pressure;
use crate::model::ordered::Ordered as _;

pub use threshold::{Signal, Threshold, ThresholdTexts, thresholds};

/// The available and total amount of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observation {
    pub capacity: u64,
    pub available: u64,
}

/// The current observations. A signal that is missing is not judged.
pub(super) type Observations = BTreeMap<Signal, Observation>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionConfig {
    /// `evictionHard` and `evictionSoft`; memory first, as upstream handles them.
    pub thresholds: Vec<Threshold>,
    /// `evictionPressureTransitionPeriod`.
    pub transition: Duration,
    /// `evictionMaxPodGracePeriod`, seconds.
    pub max_pod_grace_seconds: i64,
}

/// The state kept between two checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EvictionState {
    /// Since when a threshold is met; a reload may replace thresholds.
    first_met: Vec<(Threshold, Duration)>,
    /// Thresholds that were met for their grace and not resolved since.
    met: Vec<Threshold>,
    last_seen: BTreeMap<Pressure, Duration>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EvictionVerdict {
    /// The current pressure conditions, transition period included.
    pub pressure: BTreeSet<Pressure>,
    pub reclaim: Option<Threshold>,
    /// A signal is near its threshold: check again soon.
    pub is_near: bool,
    /// The next moment at which the passing of time alone changes the result.
    pub again_after: Option<Duration>,
}

/// Judges the observations. Only this changes the state.
#[must_use]
pub(crate) fn evaluate(
    config: &EvictionConfig,
    state: &EvictionState,
    seen: &Observations,
    now: Duration,
) -> (EvictionState, EvictionVerdict) {
    let mut next = EvictionState { last_seen: state.last_seen.clone(), ..EvictionState::default() };
    let mut verdict = EvictionVerdict::default();
    let mut soonest = |left: Duration| {
        verdict.again_after = Some(verdict.again_after.map_or(left, |after| after.min(left)));
    };
    for threshold in &config.thresholds {
        let Some(observed) = seen.get(&threshold.signal) else { continue };
        verdict.is_near |= threshold.is_near(*observed);
        let was_met = state.met.contains(threshold);
        if !threshold.is_met(*observed, was_met) {
            continue;
        }
        let met_before = state.first_met.iter().find(|(met, _)| met == threshold);
        let first = met_before.map_or(now, |(_, first)| *first);
        next.first_met.push((*threshold, first));
        next.last_seen.insert(threshold.signal.pressure(), now);
        match threshold.grace.checked_sub(now.saturating_sub(first)) {
            Some(left) if !left.is_zero() => soonest(left),
            _ => next.met.push(*threshold),
        }
    }
    next.last_seen.retain(|_, last| {
        let left = config.transition.checked_sub(now.saturating_sub(*last)).filter(|left| !left.is_zero());
        // With no transition period the current observation still counts.
        if let Some(left) = left {
            soonest(left);
        }
        left.is_some() || *last == now
    });
    verdict.pressure = next.last_seen.keys().copied().into_set();
    verdict.reclaim = next.met.first().copied();
    (next, verdict)
}

/// Whether enough has been reclaimed: no threshold is met any more, whatever its grace period, and each by at
/// least its minimum reclaim.
#[must_use]
pub(super) fn is_resolved(config: &EvictionConfig, seen: &Observations) -> bool {
    let met = |threshold: &Threshold| {
        seen.get(&threshold.signal).is_some_and(|observed| threshold.is_met(*observed, true))
    };
    !config.thresholds.iter().any(met)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn config(hard: &[(&str, &str)], soft: &[(&str, &str, u64)], reclaim: &[(&str, &str)]) -> EvictionConfig {
        let texts = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        let texts = ThresholdTexts {
            hard: texts(hard),
            soft: soft.iter().map(|(name, text, _)| ((*name).to_owned(), (*text).to_owned())).collect(),
            grace: soft
                .iter()
                .map(|(name, _, grace)| ((*name).to_owned(), SECOND * u32::try_from(*grace).unwrap()))
                .collect(),
            minimum_reclaim: texts(reclaim),
            pods_are_limited: false,
        };
        EvictionConfig { thresholds: thresholds(&texts), transition: 300 * SECOND, max_pod_grace_seconds: 0 }
    }

    fn seen(of: &[(Signal, u64)]) -> Observations {
        of.iter()
            .map(|(signal, available)| (*signal, Observation { capacity: 1000, available: *available }))
            .collect()
    }

    /// Runs checks one second apart. Returns what is reclaimed, and what is published.
    fn run(
        config: &EvictionConfig,
        looks: &[(u64, &[(Signal, u64)])],
    ) -> Vec<(Option<Signal>, Vec<&'static str>)> {
        let mut state = EvictionState::default();
        let look = |(at, of): &(u64, &[(Signal, u64)])| {
            let now = SECOND * u32::try_from(*at).unwrap();
            let verdict;
            (state, verdict) = evaluate(config, &state, &seen(of), now);
            let conditions = verdict.pressure.iter().map(|pressure| pressure.condition()).collect();
            (verdict.reclaim.map(|threshold| threshold.signal), conditions)
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn a_condition_outlives_its_cause_by_the_transition_period() {
        let config = config(&[("memory.available", "100")], &[], &[]);
        let memory = Signal::MemoryAvailable;
        let went = run(
            &config,
            &[
                (0, &[(memory, 100)]),
                (1, &[(memory, 99)]),
                (2, &[(memory, 100)]),
                (300, &[(memory, 900)]),
                (301, &[(memory, 900)]),
            ],
        );
        let pressure = vec!["MemoryPressure"];
        assert_eq!(
            went,
            [
                (None, vec![]),
                (Some(memory), pressure.clone()),
                (None, pressure.clone()),
                (None, pressure),
                (None, vec![])
            ]
        );
    }

    #[test]
    fn soft_threshold_grace_restarts_when_no_longer_met() {
        let config = config(&[], &[("nodefs.available", "10%", 30)], &[]);
        let disk = Signal::NodefsAvailable;
        let low: &[(Signal, u64)] = &[(disk, 50)];
        let went =
            run(&config, &[(0, low), (29, low), (29, &[(disk, 100)]), (40, low), (69, low), (70, low)]);
        let acted: Vec<bool> = went.iter().map(|(reclaim, _)| reclaim.is_some()).collect();
        assert_eq!(acted, [false, false, false, false, false, true]);
        assert!(went.iter().all(|(_, shown)| *shown == ["DiskPressure"]), "shown from the first look on");
        let (_, verdict) = evaluate(&config, &EvictionState::default(), &seen(low), SECOND);
        assert_eq!(verdict.again_after, Some(30 * SECOND));
    }

    #[test]
    fn a_replaced_threshold_inherits_nothing() {
        let soft = |of: &[(&str, &str, u64)]| config(&[], of, &[]);
        let (memory, disk) = (("memory.available", "100", 60), ("nodefs.available", "10%", 60));
        let low = seen(&[(Signal::MemoryAvailable, 50), (Signal::NodefsAvailable, 50)]);
        let (state, _) = evaluate(&soft(&[disk]), &EvictionState::default(), &low, SECOND);
        // Memory comes first in the list, and its grace begins now; that of the disk goes on.
        let (state, verdict) = evaluate(&soft(&[disk, memory]), &state, &low, 51 * SECOND);
        assert_eq!((verdict.reclaim, verdict.again_after), (None, Some(10 * SECOND)));
        let both = soft(&[disk, memory]);
        let (_, verdict) = evaluate(&both, &state, &low, 61 * SECOND);
        assert_eq!(verdict.reclaim.map(|threshold| threshold.signal), Some(Signal::NodefsAvailable));
        let (_, verdict) = evaluate(&soft(&[("nodefs.available", "20%", 60)]), &state, &low, 61 * SECOND);
        assert_eq!(verdict.reclaim, None, "another threshold of the same signal");
    }

    #[test]
    fn what_was_met_is_resolved_only_with_the_minimum_reclaimed() {
        let config = config(&[("nodefs.available", "10%")], &[], &[("nodefs.available", "5%")]);
        let disk = Signal::NodefsAvailable;
        let went = run(
            &config,
            &[
                (0, &[(disk, 120)]),
                (1, &[(disk, 99)]),
                (2, &[(disk, 149)]),
                (3, &[(disk, 150)]),
                (4, &[(disk, 120)]),
            ],
        );
        let acted: Vec<bool> = went.iter().map(|(reclaim, _)| reclaim.is_some()).collect();
        assert_eq!(acted, [false, true, true, false, false]);
        assert!(!is_resolved(&config, &seen(&[(disk, 149)])) && is_resolved(&config, &seen(&[(disk, 150)])));
    }

    #[test]
    fn memory_is_reclaimed_first_and_unmeasured_signals_skipped() {
        let config = config(
            &[("imagefs.available", "10%"), ("memory.available", "100"), ("pid.available", "50")],
            &[],
            &[],
        );
        let all = [(Signal::ImagefsAvailable, 1), (Signal::MemoryAvailable, 1), (Signal::PidAvailable, 1)];
        let went = run(&config, &[(0, &all), (1, &all[..1]), (2, &[])]);
        assert_eq!(
            went[0],
            (Some(Signal::MemoryAvailable), vec!["MemoryPressure", "DiskPressure", "PIDPressure"])
        );
        assert_eq!(went[1].0, Some(Signal::ImagefsAvailable));
        assert_eq!(went[2].0, None);
    }

    #[test]
    fn node_is_near_a_threshold_only_within_its_margin() {
        let config = config(&[("memory.available", "100")], &[], &[]);
        let near = |available| {
            evaluate(
                &config,
                &EvictionState::default(),
                &seen(&[(Signal::MemoryAvailable, available)]),
                SECOND,
            )
            .1
            .is_near
        };
        assert_eq!([near(50), near(100), near(125), near(126), near(900)], [true, true, true, false, false]);
    }

    #[test]
    fn without_a_transition_period_pressure_is_what_is_seen_now() {
        let config =
            EvictionConfig { transition: Duration::ZERO, ..config(&[("pid.available", "10")], &[], &[]) };
        let went = run(&config, &[(1, &[(Signal::PidAvailable, 5)]), (2, &[(Signal::PidAvailable, 50)])]);
        assert_eq!(went, [(Some(Signal::PidAvailable), vec!["PIDPressure"]), (None, vec![])]);
    }
}
