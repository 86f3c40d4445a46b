//! One step of a Job: its pods, what has become of them, and whether it is over (upstream: `syncJob`).
//!
//! Owns its pods and their finalizer, which is removed in the same write that counts the pod.
//!
//! Pure: what it returns depends on its arguments alone.

mod indexes;
mod manage;
mod policy;

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::fields::{Conditions, Said, counted, time};
use super::item::Item;
use super::pods::{PodView, TRACKING, is_tracked};
use super::world::World;
use crate::model::types::Timestamp;
use indexes::Indexes;
use policy::judge;

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
const UID_LABELS: [&str; 2] = ["batch.kubernetes.io/controller-uid", "controller-uid"];
const NAME_LABELS: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];
/// The value of `managedBy` that means this controller.
pub(crate) const CONTROLLER: &str = "kubernetes.io/job-controller";

const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";
const CRITERIA_MET: &str = "SuccessCriteriaMet";
const FAILURE_TARGET: &str = "FailureTarget";
const SUSPENDED: &str = "Suspended";
const PROBED: Option<&str> = Some("lastProbeTime");

/// Whether a Job is over, and how.
pub(super) fn finished(job: &Item) -> Option<&'static str> {
    let conditions = Conditions::of(job.body());
    [COMPLETE, FAILED].into_iter().find(|kind| conditions.is(kind, "True"))
}

/// When it was over.
fn finished_at(job: &Item) -> Option<Timestamp> {
    let kind = finished(job)?;
    time(Conditions::of(job.body()).get(kind)?, "/lastTransitionTime")
}

/// What the Job has come to, and why.
struct Outcome {
    is_success: bool,
    reason: &'static str,
    message: String,
}

struct JobStep<'s, 'e> {
    world: &'s mut World<'e>,
    job: &'s mut Item,
    pods: Vec<PodView>,
    conditions: Conditions,
    /// `None`: a work queue.
    completions: Option<i64>,
    is_indexed: bool,
    is_suspended: bool,
    /// A pod is replaced when it has ended, not when it begins to.
    replaces_late: bool,
    per_index: Option<i64>,
    succeeded: i64,
    failed: i64,
    done: Indexes,
    broken: Indexes,
}

pub(super) fn step(world: &mut World<'_>, job: &mut Item) {
    let managed_by = job.text("/spec/managedBy");
    if !managed_by.is_empty() && managed_by != CONTROLLER {
        return;
    }
    let pods = world.pods_of(job);
    if finished(job).is_some() || job.is_deleted() {
        for pod in pods {
            world.strip_finalizer(pod.uid(), TRACKING);
        }
        expire(world, job);
        return;
    }
    if !job.is_read_only {
        label_template(job);
    }
    let completions = job.at("/spec/completions").as_i64();
    let bound = completions.unwrap_or_default();
    let step = JobStep {
        pods,
        conditions: Conditions::of(job.body()),
        completions,
        is_indexed: job.text("/spec/completionMode") == "Indexed",
        is_suspended: job.at("/spec/suspend") == true,
        replaces_late: job.text("/spec/podReplacementPolicy") == "Failed"
            || job.at("/spec/podFailurePolicy").is_object(),
        per_index: job.at("/spec/backoffLimitPerIndex").as_i64(),
        succeeded: job.int("/status/succeeded", 0),
        failed: job.int("/status/failed", 0),
        done: Indexes::parse(job.text("/status/completedIndexes"), bound),
        broken: Indexes::parse(job.text("/status/failedIndexes"), bound),
        world,
        job,
    };
    step.run();
}

/// Removes a Job whose time after its end is over.
fn expire(world: &mut World<'_>, job: &mut Item) {
    let (Some(seconds), Some(end)) = (job.at("/spec/ttlSecondsAfterFinished").as_u64(), finished_at(job))
    else {
        return;
    };
    if job.is_deleted() || job.is_read_only {
        return;
    }
    let left = Duration::from_secs(seconds).saturating_sub(world.elapsed(end));
    if left.is_zero() {
        world.remove_item(job);
    } else {
        world.wake_in(left);
    }
}

/// The labels by which a Job finds its pods, unless it brings its own.
fn own_labels(job: &Item) -> Vec<(&'static str, String)> {
    let mut labels: Vec<_> = NAME_LABELS.map(|name| (name, job.name().to_owned())).into();
    if job.at("/spec/manualSelector") != true {
        labels.extend(UID_LABELS.map(|name| (name, job.object.uid.clone())));
    }
    labels
}

/// What an API server writes into a new Job (upstream: `generateSelector`).
fn label_template(job: &mut Item) {
    if job.at("/spec/manualSelector") == true || job.at("/spec/selector").is_object() {
        return;
    }
    let mut spec = job.at("/spec").clone();
    spec["selector"] = json!({"matchLabels": {UID_LABELS[0]: job.object.uid}});
    for (name, value) in own_labels(job) {
        spec["template"]["metadata"]["labels"][name] = json!(value);
    }
    job.set("spec", spec);
}

impl JobStep<'_, '_> {
    fn run(mut self) {
        if !self.is_suspended && self.job.text("/status/startTime").is_empty() {
            self.start();
        }
        let policy = self.job.at("/spec/podFailurePolicy").clone();
        let mut outcome = self.target(&policy);
        self.count_indexes(&policy);
        if outcome.is_none() {
            outcome = self.limits();
        }
        if outcome.is_none() && self.is_indexed {
            outcome = self.index_outcome();
        }
        self.count(&policy, outcome.as_ref());
        if outcome.is_none() {
            self.manage(&policy);
            outcome = self.complete();
        }
        self.show(outcome.as_ref());
    }

    fn start(&mut self) {
        let now = self.world.now.to_rfc3339();
        let mut status = self.status();
        status.insert("startTime".to_owned(), json!(now));
        self.job.set_status(status);
    }

    fn status(&self) -> Map<String, Value> {
        self.job.at("/status").as_object().cloned().unwrap_or_default()
    }

    fn is_failed(&self, pod: &PodView) -> bool {
        pod.phase() == "Failed" || (!self.replaces_late && pod.is_deleted && pod.phase() != "Succeeded")
    }

    fn index(&self, pod: &PodView) -> Option<i64> {
        let index: i64 = pod.annotation(INDEX)?.parse().ok()?;
        (0..self.completions.unwrap_or_default()).contains(&index).then_some(index)
    }

    fn active(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().filter(|pod| pod.is_active())
    }

    fn terminating(&self) -> usize {
        self.pods.iter().filter(|pod| pod.is_deleted && !pod.is_terminal()).count()
    }

    /// What an earlier step has found, or a rule about one of the pods.
    fn target(&self, policy: &Value) -> Option<Outcome> {
        for (kind, is_success) in [(CRITERIA_MET, true), (FAILURE_TARGET, false)] {
            if self.conditions.is(kind, "True") {
                let (reason, message) = (self.conditions.reason(kind), self.conditions.message(kind));
                return Some(Outcome {
                    is_success,
                    reason: known_reason(reason),
                    message: message.to_owned(),
                });
            }
        }
        let mut failed = self.pods.iter().filter(|pod| self.is_failed(pod));
        let message = failed.find_map(|pod| judge(policy, pod).fails_job)?;
        Some(Outcome { is_success: false, reason: "PodFailurePolicy", message })
    }

    /// Back-off and deadline.
    fn limits(&mut self) -> Option<Outcome> {
        let limit = self.job.int("/spec/backoffLimit", 6);
        let policy = self.job.at("/spec/podFailurePolicy");
        let news = self.pods.iter().filter(|pod| is_tracked(pod) && self.is_failed(pod));
        let news = news.filter(|pod| !judge(policy, pod).is_ignored).count();
        let failed = self.failed + i64::try_from(news).unwrap_or(i64::MAX);
        let restarts: i64 = match self.job.text("/spec/template/spec/restartPolicy") {
            "OnFailure" => {
                let live = self.pods.iter().filter(|pod| matches!(pod.phase(), "Running" | "Pending"));
                live.map(PodView::restarts).sum()
            }
            _ => 0,
        };
        if failed > limit || (restarts > 0 && restarts >= limit) {
            let message = "Job has reached the specified backoff limit".to_owned();
            return Some(Outcome { is_success: false, reason: "BackoffLimitExceeded", message });
        }
        let seconds = self.job.at("/spec/activeDeadlineSeconds").as_u64().filter(|_| !self.is_suspended)?;
        let since = time(self.job.body(), "/status/startTime")?;
        let left = Duration::from_secs(seconds).saturating_sub(self.world.elapsed_up(since));
        if !left.is_zero() {
            self.world.wake_in(left);
            return None;
        }
        let message = "Job was active longer than specified deadline".to_owned();
        Some(Outcome { is_success: false, reason: "DeadlineExceeded", message })
    }

    /// The indexes that have succeeded and failed.
    fn count_indexes(&mut self, policy: &Value) {
        if !self.is_indexed {
            return;
        }
        for pod in &self.pods {
            let Some(index) = self.index(pod).filter(|_| is_tracked(pod)) else { continue };
            if pod.phase() == "Succeeded" {
                self.done.insert(index);
            } else if let Some(limit) = self.per_index.filter(|_| self.is_failed(pod)) {
                let verdict = judge(policy, pod);
                let (failures, _) = failures_after(pod, &verdict);
                if verdict.fails_index || failures > limit {
                    self.broken.insert(index);
                }
            }
        }
        self.succeeded = self.done.total();
    }

    fn index_outcome(&self) -> Option<Outcome> {
        let completions = self.completions.unwrap_or_default();
        let failure =
            |reason, message: &str| Some(Outcome { is_success: false, reason, message: message.to_owned() });
        let broken = self.broken.total();
        if self.per_index.is_some() && broken > 0 {
            let most = self.job.at("/spec/maxFailedIndexes").as_i64();
            if most.is_some_and(|most| broken > most) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return failure("MaxFailedIndexesExceeded", message);
            }
            if broken + self.done.total() >= completions {
                return failure("FailedIndexes", "Job has failed indexes");
            }
        }
        let message = policy::success(self.job.at("/spec/successPolicy"), completions, &self.done)?;
        Some(Outcome { is_success: true, reason: "SuccessPolicy", message })
    }

    /// Counts the pods that have ended, each once; if the Job is over, also those that are still active, and deletes
    /// them.
    fn count(&mut self, policy: &Value, outcome: Option<&Outcome>) {
        let fails = outcome.is_some_and(|outcome| !outcome.is_success);
        for pod in self.pods.clone() {
            let is_failed = self.is_failed(&pod);
            let is_over = pod.phase() == "Succeeded" || is_failed;
            if is_tracked(&pod) && (outcome.is_some() || is_over) {
                if outcome.is_none() && is_failed && self.waits_for_successor(&pod) {
                    continue;
                }
                let is_valid = !self.is_indexed || self.index(&pod).is_some();
                if pod.phase() == "Succeeded" {
                    self.succeeded += i64::from(!self.is_indexed);
                } else if (is_failed || fails) && is_valid && !judge(policy, &pod).is_ignored {
                    self.failed += 1;
                }
                self.world.strip_finalizer(pod.uid(), TRACKING);
            }
            if outcome.is_some() && pod.is_active() {
                self.delete(&pod);
            }
        }
        self.refresh();
    }

    fn refresh(&mut self) {
        self.pods = self.world.pods_of(self.job);
    }

    /// The pod that follows takes over its count of failures.
    fn waits_for_successor(&self, pod: &PodView) -> bool {
        let Some(index) = self.index(pod).filter(|_| self.per_index.is_some()) else { return false };
        !self.broken.has(index)
            && !self.done.has(index)
            && self.active().all(|other| self.index(other) != Some(index))
            && self.last_failed(index).is_some_and(|last| last.uid() == pod.uid())
    }

    fn last_failed(&self, index: i64) -> Option<&PodView> {
        let failed = self.pods.iter().filter(|pod| self.index(pod) == Some(index) && self.is_failed(pod));
        failed.max_by_key(|pod| (pod.created(), pod.finished()))
    }

    fn delete(&mut self, pod: &PodView) {
        self.world.strip_finalizer(pod.uid(), TRACKING);
        self.world.delete_pod(pod.uid());
        self.world.normal(self.job, "SuccessfulDelete", format!("Deleted pod: {}", pod.name()));
    }

    fn complete(&self) -> Option<Outcome> {
        let is_complete = match self.completions {
            None => self.succeeded > 0,
            Some(completions) => self.succeeded >= completions,
        };
        (is_complete && self.active().next().is_none()).then(|| Outcome {
            is_success: true,
            reason: "CompletionsReached",
            message: "Reached expected number of succeeded pods".to_owned(),
        })
    }

    fn show(mut self, outcome: Option<&Outcome>) {
        let mut status = self.status();
        if let Some(outcome) = outcome {
            self.finish(outcome, &mut status);
        } else {
            self.note_suspension(&mut status);
        }
        let ready = self.active().filter(|pod| pod.is_ready()).count();
        let active = i64::try_from(self.active().count()).unwrap_or(i64::MAX);
        for field in ["active", "succeeded", "failed"] {
            status.remove(field);
        }
        status.extend(counted(&[("active", active), ("succeeded", self.succeeded), ("failed", self.failed)]));
        status.insert("ready".to_owned(), json!(ready));
        status.insert("terminating".to_owned(), json!(self.terminating()));
        status.insert("uncountedTerminatedPods".to_owned(), json!({}));
        if self.is_indexed {
            let done = self.done.to_string();
            if !done.is_empty() {
                status.insert("completedIndexes".to_owned(), json!(done));
            }
            if self.per_index.is_some() {
                status.insert("failedIndexes".to_owned(), json!(self.broken.to_string()));
            }
        }
        if !self.conditions.0.is_empty() {
            status.insert("conditions".to_owned(), json!(self.conditions.0));
        }
        self.job.set_status(status);
    }

    /// The target first; the end when nothing of it runs any more.
    fn finish(&mut self, outcome: &Outcome, status: &mut Map<String, Value>) {
        let Outcome { is_success, reason, message } = outcome;
        let now = self.world.now;
        let kinds = if *is_success { [CRITERIA_MET, COMPLETE] } else { [FAILURE_TARGET, FAILED] };
        let said = |kind| Said { kind, status: "True", reason, message };
        self.conditions.set(said(kinds[0]), PROBED, now);
        if self.terminating() > 0 || self.active().next().is_some() {
            return;
        }
        self.conditions.set(said(kinds[1]), PROBED, now);
        if *is_success {
            status.insert("completionTime".to_owned(), json!(now.to_rfc3339()));
            self.world.normal(self.job, "Completed", "Job completed".to_owned());
        } else {
            self.world.warn(self.job, reason, message.clone());
        }
    }

    fn note_suspension(&mut self, status: &mut Map<String, Value>) {
        let now = self.world.now;
        let said = |status, reason, message| Said { kind: SUSPENDED, status, reason, message };
        if self.is_suspended {
            if self.conditions.set(said("True", "JobSuspended", "Job suspended"), PROBED, now) {
                status.remove("startTime");
                self.world.normal(self.job, SUSPENDED, "Job suspended".to_owned());
            }
        } else if self.conditions.is(SUSPENDED, "True") {
            self.conditions.set(said("False", "JobResumed", "Job resumed"), PROBED, now);
            status.insert("startTime".to_owned(), json!(now.to_rfc3339()));
            self.world.normal(self.job, "Resumed", "Job resumed".to_owned());
        }
    }
}

/// How many failures of its index there have been with this pod: those that count, and those that do not.
fn failures_after(pod: &PodView, verdict: &policy::Verdict) -> (i64, i64) {
    let count = |name| pod.annotation(name).and_then(|count| count.parse::<i64>().ok()).unwrap_or_default();
    let (failures, ignored) = (count(FAILURES), count(IGNORED_FAILURES));
    if verdict.is_ignored { (failures, ignored + 1) } else { (failures + 1, ignored) }
}

/// Reasons of a condition that an earlier step has written.
fn known_reason(reason: &str) -> &'static str {
    const REASONS: [&str; 8] = [
        "BackoffLimitExceeded",
        "CompletionsReached",
        "DeadlineExceeded",
        "FailedIndexes",
        "MaxFailedIndexesExceeded",
        "PodFailurePolicy",
        "SuccessPolicy",
        "",
    ];
    REASONS.into_iter().find(|known| *known == reason).unwrap_or_default()
}

#[cfg(test)]
mod tests;
