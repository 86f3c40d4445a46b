//! Which pods end so that a critical pod gets a place: as few as possible, best-effort pods before the others, and of
//! equal ones those that request least (upstream: `preemption.go` 1.36).
//!
//! Owns the choice.
//!
//! Pure: what it returns depends on its arguments alone.

#[cfg(test)]
mod tests;

use crate::model::api::pod::Pod;
use crate::model::types::PodUid;
use crate::pod::admission::rules::requested;
use crate::pod::resources::{QosClass, is_critical, qos_class};

/// What is missing: resource, amount.
type Shortage = [(String, i64)];

/// The pods to end; `None` when all of them together do not free enough.
#[must_use]
pub(super) fn pods_to_preempt<'a>(
    pod: &Pod,
    others: &[&'a Pod],
    short: &Shortage,
) -> Option<Vec<&'a PodUid>> {
    let of = |class: QosClass| -> Vec<&'a Pod> {
        others
            .iter()
            .copied()
            .filter(|other| is_preemptable(pod, other) && qos_class(other) == class)
            .collect()
    };
    let best_effort = of(QosClass::BestEffort);
    let burstable = of(QosClass::Burstable);
    let guaranteed = of(QosClass::Guaranteed);
    // Of each class what is needed when all of the classes below it end anyway.
    let lower = [&best_effort[..], &burstable].concat();
    let of_guaranteed = by_distance(guaranteed, left(short, &lower))?;
    let of_burstable = by_distance(burstable, left(short, &[&best_effort[..], &of_guaranteed].concat()))?;
    let higher = [&of_burstable[..], &of_guaranteed].concat();
    let of_best_effort = by_distance(best_effort, left(short, &higher))?;
    Some([of_best_effort, higher].concat().into_iter().map(|pod| &pod.metadata.uid).collect())
}

fn is_preemptable(pod: &Pod, other: &Pod) -> bool {
    let priorities = (pod.spec.priority, other.spec.priority);
    !is_critical(other) || matches!(priorities, (Some(own), Some(others)) if own > others)
}

/// What is still missing when these pods end.
fn left(short: &Shortage, pods: &[&Pod]) -> Vec<(String, i64)> {
    let rest = short.iter().map(|(name, missing)| {
        let freed = pods.iter().fold(0_i64, |sum, pod| sum.saturating_add(requested(pod, name)));
        (name.clone(), missing.saturating_sub(freed))
    });
    rest.filter(|(_, missing)| *missing > 0).collect()
}

/// Chooses pod after pod, each time the one that leaves least missing.
fn by_distance(mut pods: Vec<&Pod>, mut short: Vec<(String, i64)>) -> Option<Vec<&Pod>> {
    let mut chosen = Vec::new();
    while !short.is_empty() {
        let mut best = 0;
        for (index, pod) in pods.iter().enumerate().skip(1) {
            let (one, other) = (distance(pod, &short), distance(pods[best], &short));
            if one < other || (one <= other && requests_less(pod, pods[best])) {
                best = index;
            }
        }
        if pods.is_empty() {
            return None;
        }
        let pod = pods.swap_remove(best);
        short = left(&short, &[pod]);
        chosen.push(pod);
    }
    Some(chosen)
}

/// How much of each resource would still be missing, each counted alike whatever its unit.
#[expect(clippy::cast_precision_loss, reason = "a ratio, compared with others")]
fn distance(pod: &Pod, short: &Shortage) -> f64 {
    let of = |(name, missing): &(String, i64)| {
        let rest = missing.saturating_sub(requested(pod, name)).max(0);
        (rest as f64 / *missing as f64).powi(2)
    };
    short.iter().map(of).sum()
}

fn requests_less(one: &Pod, other: &Pod) -> bool {
    let of = |pod: &Pod| (requested(pod, "memory"), requested(pod, "cpu"));
    of(one) <= of(other)
}
