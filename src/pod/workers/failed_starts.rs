//! Starts that failed and when they may be tried again: keeps a failing container from being retried on every
//! event it causes itself.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::devices::rules::NOT_FOUND;
use crate::model::types::{ContainerName, Timestamp};
use crate::pod::plan::{Action, PodPlan};

/// Reasons of starts that fail for a missing ConfigMap, Secret or key, in volumes or variables.
const OBJECT_REASONS: [&str; 2] = ["FailedMount", "CreateContainerConfigError"];
/// No failure holds anything back for longer: back-offs end at five minutes.
const LONGEST_HOLD: Duration = Duration::from_secs(300);

/// A failure that delays the next start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pod) struct FailedStart {
    /// A Kubernetes waiting reason.
    pub reason: &'static str,
    /// For the status.
    pub message: String,
    /// No retry before this; `None`: no retry before the pod changes.
    pub until: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::pod) struct FailedStarts {
    pub containers: BTreeMap<ContainerName, FailedStart>,
    /// Of the pod as a whole: sandbox, volumes.
    pub pod: Option<FailedStart>,
    pub resize: Option<FailedStart>,
}

impl FailedStarts {
    /// Removes from the plan what must not be retried yet, and requeues the pod for when it may be.
    #[must_use]
    pub(in crate::pod) fn hold_back(&self, mut plan: PodPlan, now: Timestamp) -> PodPlan {
        let mut wake: Option<Duration> = plan.requeue_after;
        let mut is_held = |held: &FailedStart| match held.until {
            // No hold is longer than this: the clock was set back since.
            Some(until) if until <= now || until.saturating_since(now) > LONGEST_HOLD => false,
            Some(until) => {
                let left = until.saturating_since(now);
                wake = Some(wake.map_or(left, |wake| wake.min(left)));
                true
            }
            None => true,
        };
        let resize_held = self.resize.as_ref().is_some_and(&mut is_held);
        let pod_held = self.pod.as_ref().is_some_and(&mut is_held);
        if pod_held {
            hold_back_sandbox(&mut plan);
        }
        plan.actions.retain(|action| match action {
            Action::ResizeContainer(_) => !resize_held,
            Action::StartContainer(start) => {
                !pod_held && !self.containers.get(&start.name).is_some_and(&mut is_held)
            }
            _ => true,
        });
        plan.requeue_after = wake;
        plan
    }

    /// Drops failures of actions that the plan no longer contains: a pod that runs has no failure, whatever
    /// failed before.
    pub(in crate::pod) fn retain_planned(&mut self, plan: &PodPlan) {
        if plan.actions.is_empty() {
            self.pod = None;
        }
        if !plan.actions.iter().any(|action| matches!(action, Action::ResizeContainer(_))) {
            self.resize = None;
        }
        let wanted = |name: &ContainerName| {
            plan.actions
                .iter()
                .any(|action| matches!(action, Action::StartContainer(start) if start.name == *name))
        };
        self.containers.retain(|name, _| wanted(name));
    }

    /// Objects have changed: starts that failed for want of one are retried at once.
    pub(in crate::pod) fn objects_changed(&mut self) {
        let may_wait_for_object =
            |held: &FailedStart| held.until.is_some() && OBJECT_REASONS.contains(&held.reason);
        self.pod = self.pod.take().filter(|held| !may_wait_for_object(held));
        self.containers.retain(|_, held| !may_wait_for_object(held));
    }

    /// A device has appeared: starts that failed for want of one are retried at once.
    pub(in crate::pod) fn device_appeared(&mut self) {
        let waits = |held: &FailedStart| held.reason == NOT_FOUND;
        self.pod = self.pod.take().filter(|held| !waits(held));
        self.containers.retain(|_, held| !waits(held));
    }

    pub(in crate::pod) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The stop of the sandbox being replaced waits with the new one: it was done before the try that failed.
fn hold_back_sandbox(plan: &mut PodPlan) {
    let is_creation = |action: &Action| matches!(action, Action::CreateSandbox { .. });
    let Some(position) = plan.actions.iter().position(is_creation) else { return };
    let before = plan.actions[..position].last();
    let first = position - usize::from(matches!(before, Some(Action::StopSandbox { .. })));
    plan.actions.drain(first..=position);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::containers::ContainerKind;
    use crate::pod::plan::StartContainer;

    fn start(name: &str) -> Action {
        let name = ContainerName::from(name);
        Action::StartContainer(StartContainer {
            name,
            kind: ContainerKind::Regular,
            attempt: 0,
            back_off: None,
        })
    }

    fn held(until: Option<i64>) -> FailedStart {
        FailedStart {
            reason: "CreateContainerError",
            message: String::new(),
            until: until.map(Timestamp::from_secs),
        }
    }

    #[test]
    fn a_device_that_appears_lets_those_go_on_that_wait_for_one() {
        let mut starts = FailedStarts::default();
        starts.containers.insert("bad".into(), held(None));
        starts.containers.insert("deviceless".into(), FailedStart { reason: NOT_FOUND, ..held(None) });
        starts.pod = Some(FailedStart { reason: NOT_FOUND, ..held(None) });
        starts.device_appeared();
        assert_eq!(starts.pod, None);
        assert_eq!(starts.containers.keys().map(ContainerName::as_str).collect::<Vec<_>>(), ["bad"]);
    }

    #[test]
    fn a_failed_start_waits_for_its_time_and_the_others_go_on() {
        let mut starts = FailedStarts::default();
        starts.containers.insert("bad".into(), held(Some(20)));
        let plan = PodPlan { actions: vec![start("bad"), start("good")], ..PodPlan::default() };
        let early = starts.hold_back(plan.clone(), Timestamp::from_secs(15));
        assert_eq!(early.actions, [start("good")]);
        assert_eq!(early.requeue_after, Some(Duration::from_secs(5)));
        let late = starts.hold_back(plan.clone(), Timestamp::from_secs(20));
        assert_eq!(late, plan);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_hold_anything_for_years() {
        let mut starts = FailedStarts { pod: Some(held(Some(4_000_000_000))), ..FailedStarts::default() };
        starts.containers.insert("bad".into(), held(Some(4_000_000_000)));
        let plan = PodPlan { actions: vec![start("bad")], ..PodPlan::default() };
        let shortly = starts.hold_back(plan.clone(), Timestamp::from_secs(3_999_999_700));
        assert!(shortly.actions.is_empty(), "five minutes may be meant");
        assert_eq!(starts.hold_back(plan.clone(), Timestamp::from_secs(1_795_190_400)), plan);
    }

    #[test]
    fn what_only_a_changed_manifest_can_mend_is_not_tried_again() {
        let mut starts = FailedStarts::default();
        starts.containers.insert("bad".into(), held(None));
        let plan = PodPlan { actions: vec![start("bad")], ..PodPlan::default() };
        let kept = starts.hold_back(plan, Timestamp::from_secs(1_000_000));
        assert!(kept.actions.is_empty() && kept.requeue_after.is_none());
    }

    #[test]
    fn a_failure_is_forgotten_when_nothing_is_left_to_do_about_it() {
        let mut starts = FailedStarts { pod: Some(held(Some(30))), ..FailedStarts::default() };
        starts.containers.insert("bad".into(), held(None));
        starts.containers.insert("good".into(), held(Some(30)));
        starts.retain_planned(&PodPlan { actions: vec![start("bad")], ..PodPlan::default() });
        assert!(starts.pod.is_some(), "something is still to be done");
        assert_eq!(starts.containers.keys().map(ContainerName::as_str).collect::<Vec<_>>(), ["bad"]);
        starts.retain_planned(&PodPlan::default());
        assert_eq!(starts, FailedStarts::default());
    }

    #[test]
    fn failed_resize_waits_its_back_off_and_ends_with_its_plan() {
        let resize = Action::ResizeContainer(crate::pod::plan::ResizeContainer {
            id: "1".into(),
            name: "c".into(),
            resource: "cpu",
            resources: crate::model::api::pod::ResourceRequirements::default(),
        });
        let mut starts = FailedStarts { resize: Some(held(Some(30))), ..FailedStarts::default() };
        let plan = PodPlan { actions: vec![resize, start("other")], ..PodPlan::default() };
        let early = starts.hold_back(plan.clone(), Timestamp::from_secs(10));
        assert_eq!(early.actions, [start("other")]);
        assert_eq!(early.requeue_after, Some(Duration::from_secs(20)));
        assert_eq!(starts.hold_back(plan.clone(), Timestamp::from_secs(30)).actions, plan.actions);
        starts.retain_planned(&PodPlan::default());
        assert_eq!(starts.resize, None);
    }

    #[test]
    fn a_changed_object_ends_the_waiting_for_objects_alone() {
        let held = |reason, until: Option<i64>| FailedStart { reason, ..held(until) };
        let mut starts = FailedStarts { pod: Some(held("FailedMount", Some(30))), ..FailedStarts::default() };
        starts.containers.insert("config".into(), held("CreateContainerConfigError", Some(30)));
        starts.containers.insert("image".into(), held("ErrImagePull", Some(30)));
        starts.objects_changed();
        assert!(starts.pod.is_none());
        assert_eq!(starts.containers.keys().map(ContainerName::as_str).collect::<Vec<_>>(), ["image"]);
        starts.pod = Some(held("FailedMount", None));
        starts.objects_changed();
        assert!(starts.pod.is_some(), "only another manifest can mend it");
    }

    #[test]
    fn failed_sandbox_holds_back_starts_but_not_stops() {
        let starts = FailedStarts { pod: Some(held(Some(30))), ..FailedStarts::default() };
        let stop = |id: &str| Action::StopSandbox { id: id.into() };
        let plan = PodPlan {
            actions: vec![stop("older"), stop("dead"), Action::CreateSandbox { attempt: 1 }, start("c")],
            ..PodPlan::default()
        };
        let kept = starts.hold_back(plan.clone(), Timestamp::from_secs(10));
        assert_eq!(kept.actions, [stop("older")], "what is in its place has been stopped before");
        assert_eq!(starts.hold_back(plan.clone(), Timestamp::from_secs(30)), plan);
        assert_eq!(kept.requeue_after, Some(Duration::from_secs(20)));
    }
}
