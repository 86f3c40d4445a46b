//! Restart policy and crash-loop back-off arithmetic.
//!
//! Owns the numbers. Invariant: a back-off never shrinks except by being forgotten.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::api::pod::{Container, ContainerRestartRule, ContainerStatus, Pod, PodStatus};
use crate::model::back_off::{BackOff, BackOffLimits};
use crate::model::ordered::Ordered as _;
use crate::model::types::{ContainerName, Timestamp};

/// The action of a restart rule that restarts the whole pod in place.
const RESTART_ALL_CONTAINERS: &str = "RestartAllContainers";

/// After a run of this length since the last restart, a crash loop is over (upstream's fixed ten minutes).
pub(super) const FORGET_AFTER: Duration = Duration::from_secs(600);

/// Whether a container may start now, and which entry must be stored first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackOffDecision {
    /// Start, after storing this entry.
    Start(BackOff),
    Wait {
        /// The back-off in force.
        delay: Duration,
        remaining: Duration,
    },
}

/// Decides about a restart of a container whose last run ended at `finished_at`. The first restart is
/// immediate.
///
/// A clock that was set back must not block a container: an end that lies more than the whole delay in the
/// future is invalid, and counts as long past.
#[must_use]
pub(crate) fn back_off(
    entry: Option<BackOff>,
    finished_at: Timestamp,
    now: Timestamp,
    limits: BackOffLimits,
) -> BackOffDecision {
    let fresh = BackOff { delay: limits.after(None), updated: now };
    let Some(entry) = entry else { return BackOffDecision::Start(fresh) };
    // The runtime did not report the end of the run, but it was after its start.
    let finished_at = if finished_at.is_zero() { entry.updated } else { finished_at };
    if finished_at.saturating_since(entry.updated) > FORGET_AFTER {
        return BackOffDecision::Start(fresh);
    }
    let delay = entry.delay.min(limits.max);
    let ahead = finished_at.saturating_since(now);
    let remaining = if ahead > delay {
        Duration::ZERO
    } else {
        (delay + ahead).saturating_sub(now.saturating_since(finished_at)).min(delay)
    };
    if remaining.is_zero() {
        BackOffDecision::Start(BackOff { delay: limits.after(Some(delay)), updated: now })
    } else {
        BackOffDecision::Wait { delay, remaining }
    }
}

/// Whether a container that ended with `exit_code` is to run again: its own rules, then its own policy, then
/// the pod's.
#[must_use]
pub(super) fn restarts_after(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    let policy = container.restart_policy.as_ref().unwrap_or(&pod.spec.restart_policy);
    matching_rule(container, exit_code).is_some() || policy_restarts(policy, exit_code)
}

/// Whether a container that was killed for a failed probe is to run again. Its exit code is not known yet and
/// does not matter: it counts as failed.
#[must_use]
pub(super) fn restarts_after_kill(pod: &Pod, container: &Container) -> bool {
    container.restart_policy.as_ref().unwrap_or(&pod.spec.restart_policy) != "Never"
}

/// Whether this exit restarts the whole pod in place, by the first matching rule.
#[must_use]
pub(super) fn restarts_all(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL_CONTAINERS)
}

/// Whether any exit of this container could restart the whole pod in place.
#[must_use]
pub(super) fn may_restart_all(container: &Container) -> bool {
    container.restart_policy_rules.iter().any(|rule| rule.action == RESTART_ALL_CONTAINERS)
}

/// Rules are ignored without a restart policy of the container itself; validation requires one.
fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy.as_ref()?;
    container.restart_policy_rules.iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.contains(&exit_code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })
}

/// An empty policy means `Always`, as API defaulting does.
fn policy_restarts(policy: &str, exit_code: i32) -> bool {
    match policy {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// The restart count of each container's next instance by the last status, for those that have run. It counts
/// if the runtime has no record any more: the instance in the status has ended, with whatever result.
#[must_use]
pub(super) fn counts_after(status: Option<&PodStatus>) -> BTreeMap<ContainerName, u32> {
    let statuses = |status: &PodStatus| {
        let all = status.init_container_statuses.iter().chain(&status.container_statuses);
        let counts = all.chain(&status.ephemeral_container_statuses).map(|one| (one, next_count(one)));
        let counts = counts.filter(|(_, count)| *count > 0);
        counts.map(|(one, count)| (ContainerName::from(one.name.as_str()), count)).into_map()
    };
    status.map(statuses).unwrap_or_default()
}

fn next_count(status: &ContainerStatus) -> u32 {
    let shown = u32::try_from(status.restart_count).unwrap_or(0);
    if has_run(status) { shown.saturating_add(1) } else { shown }
}

/// Whether the instance in the status has run, or still does.
#[must_use]
pub(super) fn has_run(status: &ContainerStatus) -> bool {
    // While the container waits for its next run, its exit is the last state.
    let last = status.last_state.terminated.as_ref();
    let has_ended =
        last.is_some_and(|ended| !ended.container_id.is_empty() && ended.container_id == status.container_id);
    status.state.running.is_some() || status.state.terminated.is_some() || has_ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::pod::{ContainerRestartRule, ContainerRestartRuleOnExitCodes};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn back_off_starts_at_zero_then_doubles_from_10s_to_5m() {
        let mut now = Timestamp::from_secs(1000);
        let mut entry = None;
        let mut delays = Vec::new();
        for _ in 0..8 {
            let finished_at = now;
            loop {
                match back_off(entry, finished_at, now, BackOffLimits::default()) {
                    BackOffDecision::Start(next) => {
                        entry = Some(next);
                        break;
                    }
                    BackOffDecision::Wait { remaining, .. } => now = now.saturating_add(remaining),
                }
            }
            delays.push(now.saturating_since(finished_at).as_secs());
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn ten_minutes_of_good_running_forget_the_crash_loop() {
        let entry = Some(BackOff { delay: seconds(300), updated: Timestamp::from_secs(1000) });
        let finished = Timestamp::from_secs(1601);
        assert_eq!(
            back_off(entry, finished, finished, BackOffLimits::default()),
            BackOffDecision::Start(BackOff { delay: seconds(10), updated: finished })
        );
    }

    #[test]
    fn a_clock_set_back_never_makes_the_wait_longer_than_the_delay() {
        let entry = Some(BackOff { delay: seconds(40), updated: Timestamp::from_secs(9000) });
        let finished = Timestamp::from_secs(9010);
        let wait = |now| back_off(entry, finished, Timestamp::from_secs(now), BackOffLimits::default());
        assert_eq!(wait(9005), BackOffDecision::Wait { delay: seconds(40), remaining: seconds(40) });
        assert_eq!(wait(9020), BackOffDecision::Wait { delay: seconds(40), remaining: seconds(30) });
        assert!(matches!(wait(100), BackOffDecision::Start(next) if next.delay == seconds(80)));
    }

    #[test]
    fn a_container_policy_and_its_rules_come_before_the_pods() {
        let mut pod = Pod::default();
        let mut container = Container::default();
        assert!(restarts_after(&pod, &container, 0), "no policy means Always");
        pod.spec.restart_policy = "OnFailure".into();
        assert!(!restarts_after(&pod, &container, 0));
        assert!(restarts_after(&pod, &container, 1));
        container.restart_policy = Some("Never".into());
        assert!(!restarts_after(&pod, &container, 1));
        container.restart_policy_rules = vec![ContainerRestartRule {
            action: "Restart".into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes { operator: "In".into(), values: vec![42] }),
        }];
        assert!(restarts_after(&pod, &container, 42));
        assert!(!restarts_after(&pod, &container, 1));
    }
}
