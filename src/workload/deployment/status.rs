//! The status of a Deployment, its deadline, and the way back when that has passed.
//!
//! Pure: what it returns depends on its arguments alone.

use std::time::Duration;

use serde_json::json;

use super::{DeploymentStep, PROGRESSING, ROLLBACK, ROLLED_BACK, UPDATED, template_of};
use crate::workload::fields::{Conditions, Said, counted, list, time};
use crate::workload::image_update::{differ_in_digests, follows};

pub(super) const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub(super) const PAUSED: &str = "DeploymentPaused";
const AVAILABLE: &str = "NewReplicaSetAvailable";
/// How long a failed rollout is shown before it is rolled back.
const SHOWN: Duration = Duration::from_secs(5);
/// Templates that the annotation remembers as left.
const MAX_LEFT: usize = 5;

struct Counts {
    replicas: i64,
    updated: i64,
    ready: i64,
    available: i64,
    unavailable: i64,
    terminating: i64,
}

impl DeploymentStep<'_, '_> {
    fn counts(&self) -> Counts {
        let sum = |of: fn(&super::Set) -> i64| self.sets.iter().map(of).sum::<i64>();
        let available = sum(|set| set.available);
        Counts {
            replicas: sum(|set| set.actual),
            updated: self.new.map_or(0, |new| self.sets[new].actual),
            ready: sum(|set| set.ready),
            available,
            unavailable: (self.total() - available).max(0),
            terminating: sum(|set| set.terminating),
        }
    }

    /// By the status that it has (upstream: `DeploymentComplete`).
    pub(super) fn is_complete(&self) -> bool {
        let shown = |name: &str| self.item.int(&format!("/status/{name}"), 0);
        let wanted = self.wanted.replicas;
        shown("updatedReplicas") == wanted
            && shown("replicas") == wanted
            && shown("availableReplicas") == wanted
            && shown("observedGeneration") >= self.item.object.generation
    }

    /// Sets the status; `rolls`: with what is said of the progress.
    pub(super) fn show(mut self, rolls: bool) {
        let counts = self.counts();
        if rolls {
            self.judge(&counts);
        }
        let (status, reason, message) = if counts.available >= self.wanted.replicas - self.wanted.unavailable
        {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        self.conditions.set(Said { kind: "Available", status, reason, message }, UPDATED, self.world.now);
        let mut shown = counted(&[
            ("observedGeneration", self.item.object.generation),
            ("replicas", counts.replicas),
            ("updatedReplicas", counts.updated),
            ("readyReplicas", counts.ready),
            ("availableReplicas", counts.available),
            ("unavailableReplicas", counts.unavailable),
            ("collisionCount", self.collisions),
        ]);
        shown.insert("terminatingReplicas".to_owned(), json!(counts.terminating));
        shown.insert("conditions".to_owned(), json!(self.conditions.0));
        self.item.set_status(shown);
    }

    /// Upstream: `syncRolloutStatus`.
    fn judge(&mut self, counts: &Counts) {
        let Some(deadline) = self.wanted.deadline else {
            self.conditions.remove(PROGRESSING);
            self.take_failure();
            return;
        };
        let wanted = self.wanted.replicas;
        let is_over = counts.replicas == counts.updated && self.conditions.reason(PROGRESSING) == AVAILABLE;
        if !is_over {
            let subject = match self.new {
                Some(new) => format!("ReplicaSet {:?}", self.sets[new].key.name),
                None => format!("Deployment {:?}", self.item.name()),
            };
            let is_complete =
                counts.updated == wanted && counts.replicas == wanted && counts.available == wanted;
            let now = self.world.now;
            if is_complete {
                let message = format!("{subject} has successfully progressed.");
                let said = Said { kind: PROGRESSING, status: "True", reason: AVAILABLE, message: &message };
                self.conditions.set(said, UPDATED, now);
            } else if self.has_progressed(counts) {
                let message = format!("{subject} is progressing.{}", self.gap());
                let said = Said {
                    kind: PROGRESSING,
                    status: "True",
                    reason: "ReplicaSetUpdated",
                    message: &message,
                };
                self.conditions.replace(said, UPDATED, now);
            } else if self.is_timed_out(deadline) {
                let message = format!("{subject} has timed out progressing.");
                let said = Said { kind: PROGRESSING, status: "False", reason: TIMED_OUT, message: &message };
                self.conditions.set(said, UPDATED, now);
                self.roll_back();
            }
        }
        self.take_failure();
    }

    /// Why the old pod stops before the new one starts.
    fn gap(&self) -> String {
        let Some(what) = &self.wanted.exclusive else { return String::new() };
        let are_old = self.old().any(|at| self.sets[at].replicas + self.sets[at].actual > 0);
        if !are_old && self.sets.len() < 2 {
            return String::new();
        }
        format!(" An old pod is stopped before a new one is started: two pods cannot have {what}.")
    }

    /// Upstream: `DeploymentProgressing`.
    fn has_progressed(&self, counts: &Counts) -> bool {
        let shown = |name: &str| self.item.int(&format!("/status/{name}"), 0);
        let old = shown("replicas") - shown("updatedReplicas");
        counts.updated > shown("updatedReplicas")
            || counts.replicas - counts.updated < old
            || counts.ready > shown("readyReplicas")
            || counts.available > shown("availableReplicas")
    }

    fn is_timed_out(&mut self, deadline: i64) -> bool {
        let Some(condition) = self.conditions.get(PROGRESSING) else { return false };
        match self.conditions.reason(PROGRESSING) {
            AVAILABLE | PAUSED => return false,
            TIMED_OUT => return true,
            _ => {}
        }
        let since = time(condition, "/lastUpdateTime").unwrap_or(self.world.now);
        let allowed = Duration::from_secs(u64::try_from(deadline).unwrap_or_default());
        let left = allowed.saturating_sub(self.world.elapsed_up(since));
        if left.is_zero() {
            return true;
        }
        self.world.wake_in(left);
        false
    }

    /// The first of its sets that cannot create pods speaks for all.
    fn take_failure(&mut self) {
        const FAILURE: &str = "ReplicaFailure";
        let of_set = |at: usize| {
            let set = self.world.item(&self.sets[at].key)?;
            Conditions(list(set.body(), "/status/conditions").to_vec()).get(FAILURE).cloned()
        };
        let failure = self.new.and_then(of_set).or_else(|| self.old().find_map(of_set));
        match failure {
            None => self.conditions.remove(FAILURE),
            Some(failure) => {
                let text = |name: &str| crate::workload::fields::text(&failure, name);
                let said = Said {
                    kind: FAILURE,
                    status: text("/status"),
                    reason: text("/reason"),
                    message: text("/message"),
                };
                self.conditions.set(said, UPDATED, self.world.now);
            }
        }
    }

    /// Puts back the template of the set before, if the Deployment asks for that, or if nothing but digests of images
    /// that it follows is new. Each template is left once.
    fn roll_back(&mut self) {
        let asks = self.item.annotation(ROLLBACK) == Some("true");
        let may = (asks || follows(self.item)) && !self.item.is_read_only;
        let Some(new) = self.new.filter(|_| may).map(|new| self.sets[new].key.name.clone()) else { return };
        let left = self.item.annotation(ROLLED_BACK).unwrap_or_default().to_owned();
        let mut left: Vec<&str> = left.split(',').filter(|name| !name.is_empty()).collect();
        let since = self.conditions.get(PROGRESSING).and_then(|condition| time(condition, "/lastUpdateTime"));
        let shown = SHOWN.saturating_sub(self.world.elapsed_up(since.unwrap_or_default()));
        if left.contains(&new.as_str()) {
            return;
        }
        left.push(&new);
        let Some((name, revision, template)) = self.previous(&left) else { return };
        if !asks && !differ_in_digests(&template, template_of(self.item)) {
            return;
        }
        if !shown.is_zero() {
            // Clients that wait for the rollout have to see that it has failed.
            self.world.wake_in(shown);
            return;
        }
        let beyond = left.len().saturating_sub(MAX_LEFT);
        let text = left[beyond..].join(",");
        self.item.annotate(ROLLED_BACK, Some(&text));
        self.item.set_spec("template", template);
        let message = format!(
            "Rolled back deployment {:?} to revision {revision} ({name}): {new} has timed out progressing",
            self.item.name()
        );
        let said = Said { kind: PROGRESSING, status: "True", reason: "RolledBack", message: &message };
        self.conditions.replace(said, UPDATED, self.world.now);
        self.world.warn(self.item, "DeploymentRollback", message);
    }
}
