//! Which pods end when the node shuts down, in which order, and how long each gets (upstream:
//! `nodeshutdown`).
//!
//! Owns the groups and their members.
//!
//! Pure: what it returns depends on its arguments alone.

use crate::model::ordered::Sortable as _;
use std::collections::BTreeMap;

use crate::model::api::pod::Pod;
use crate::model::containers::is_terminal;
use crate::model::types::PodUid;
use crate::pod::resources::priority;

/// Pods with this priority or a higher one are critical.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;
/// The message of the node's condition during the shutdown.
pub(crate) const NODE_MESSAGE: &str = "node is shutting down";
/// Without a configuration: the pods' periods when systemd stops the agent because of a machine shutdown.
const UNASKED: [Period; 2] =
    [Period { priority: 0, seconds: 10 }, Period { priority: SYSTEM_CRITICAL, seconds: 5 }];

/// Pods from this priority up to the next period's get this many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    /// The lowest priority of the group.
    pub priority: i32,
    /// Seconds the whole group gets.
    pub seconds: i64,
}

/// `shutdownGracePeriod*` as groups, ascending; empty when nothing is configured. Whole seconds, as upstream.
#[must_use]
pub(crate) fn periods(total_seconds: i64, critical_seconds: i64, by_priority: &[Period]) -> Vec<Period> {
    let mut all = by_priority.to_vec();
    if all.is_empty() && total_seconds > 0 {
        let others = total_seconds.saturating_sub(critical_seconds).max(0);
        all.push(Period { priority: 0, seconds: others });
        all.push(Period { priority: SYSTEM_CRITICAL, seconds: critical_seconds });
    }
    all.order_by_key(|period| period.priority);
    all
}

/// The groups to use when the machine goes down without a delay having been requested: the configured ones,
/// or short built-in ones.
#[must_use]
pub(in crate::node) fn or_default_periods(configured: &[Period]) -> Vec<Period> {
    if total(configured) > 0 { configured.to_vec() } else { UNASKED.to_vec() }
}

/// Seconds of all groups together: the delay to request from logind.
#[must_use]
pub(crate) fn total(periods: &[Period]) -> i64 {
    periods.iter().fold(0, |sum, period| sum.saturating_add(period.seconds))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Seconds it gets as a whole.
    pub seconds: i64,
    /// Its pods and the seconds each gets to end.
    pub pods: BTreeMap<PodUid, i64>,
}

/// Turns, in order; groups without pods have none. A pod below the lowest group belongs to that group. Pods
/// that have ended are in none; terminating pods are included, since the shutdown may shorten their grace
/// period.
#[must_use]
pub(crate) fn shutdown_groups(periods: &[Period], pods: &[Pod]) -> Vec<Turn> {
    let mut all: Vec<Turn> =
        periods.iter().map(|period| Turn { seconds: period.seconds, pods: BTreeMap::new() }).collect();
    for pod in pods.iter().filter(|pod| !is_terminal(&pod.status)) {
        let group = periods.iter().rposition(|period| period.priority <= priority(pod)).unwrap_or(0);
        if let Some(turn) = all.get_mut(group) {
            let grace = turn.seconds.min(pod.termination_grace_period_seconds());
            turn.pods.insert(pod.metadata.uid.clone(), grace);
        }
    }
    all.retain(|turn| !turn.pods.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::api::decode::decode;

    fn pod(name: &str, priority: Option<i32>, grace: i64) -> Pod {
        let raw = json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"priority": priority, "terminationGracePeriodSeconds": grace, "containers": [{"name": "c"}]},
        });
        decode(raw).unwrap().object
    }

    fn period(priority: i32, seconds: i64) -> Period {
        Period { priority, seconds }
    }

    /// `20: app 20, quick 2`
    fn shown(turns: &[Turn]) -> Vec<String> {
        let pods = |turn: &Turn| -> Vec<String> {
            turn.pods.iter().map(|(uid, grace)| format!("{uid} {grace}")).collect()
        };
        turns.iter().map(|turn| format!("{}: {}", turn.seconds, pods(turn).join(", "))).collect()
    }

    #[test]
    fn the_simple_settings_are_two_groups_and_nothing_is_none() {
        assert_eq!(periods(30, 10, &[]), [period(0, 20), period(SYSTEM_CRITICAL, 10)]);
        assert!(periods(0, 0, &[]).is_empty());
        let listed = [period(1000, 5), period(0, 60), period(-5, 1)];
        assert_eq!(periods(0, 0, &listed), [period(-5, 1), period(0, 60), period(1000, 5)]);
        assert_eq!(total(&listed), 66);
        assert_eq!(total(&or_default_periods(&[])), 15);
        assert_eq!(or_default_periods(&listed), listed);
    }

    #[test]
    fn shutdown_runs_low_priorities_first_and_caps_pod_grace() {
        let periods = periods(30, 10, &[]);
        let pods = [
            pod("node", Some(2_000_001_000), 30),
            pod("app", None, 30),
            pod("quick", Some(7), 2),
            pod("below", Some(-9), 90),
        ];
        assert_eq!(
            shown(&shutdown_groups(&periods, &pods)),
            ["20: app 20, below 20, quick 2", "10: node 10"]
        );
    }

    #[test]
    fn priority_gap_joins_the_lower_group_and_empty_are_skipped() {
        let periods = [period(10, 1), period(1_000, 2), period(100_000, 3)];
        let mut over = pod("over", Some(1_000), 9);
        "Succeeded".clone_into(&mut over.status.phase);
        let pods = [pod("a", Some(99_999), 9), pod("b", Some(5), 9), over];
        assert_eq!(shown(&shutdown_groups(&periods, &pods)), ["1: b 1", "2: a 2"]);
        assert!(shutdown_groups(&[], &pods).is_empty());
    }
}
