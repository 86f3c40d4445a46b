//! The pods of a Job: how many run, which index each has, and how long one waits after failures.
//!
//! Pure: what it returns depends on its arguments alone.

use std::time::Duration;

use serde_json::{Value, json};

use super::indexes::Indexes;
use super::policy::judge;
use super::{FAILURES, IGNORED_FAILURES, INDEX, JobStep, failures_after, own_labels};
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;
use crate::workload::fields::at;
use crate::workload::pods::{PodView, TRACKING, first_to_go};
use crate::workload::template::{from_template, label};

const FIRST_DELAY: Duration = Duration::from_secs(10);
const LONGEST_DELAY: Duration = Duration::from_secs(600);

impl JobStep<'_, '_> {
    /// As many pods as are to run now (upstream: `manageJob`).
    pub(super) fn manage(&mut self, policy: &Value) {
        let active: Vec<PodView> = self.active().cloned().collect();
        if self.is_suspended {
            for pod in &active {
                self.delete(pod);
            }
            self.refresh();
            return;
        }
        let running = i64::try_from(active.len()).unwrap_or(i64::MAX);
        let parallelism = self.job.int("/spec/parallelism", 1);
        let wanted = match self.completions {
            None if self.succeeded > 0 => running,
            None => parallelism,
            Some(completions) => (completions - self.succeeded).min(parallelism).max(0),
        };
        let surplus = self.surplus(active, wanted);
        if !surplus.is_empty() {
            for pod in &surplus {
                self.delete(pod);
            }
            self.refresh();
            return;
        }
        let ending = if self.replaces_late { i64::try_from(self.terminating()).unwrap_or(0) } else { 0 };
        let missing = usize::try_from(wanted - running - ending).unwrap_or_default();
        if missing > 0 {
            self.fill(missing, policy);
            self.refresh();
        }
    }

    /// The pods to delete: those with an index that another has or that there is not, then those beyond `wanted`.
    fn surplus(&self, mut active: Vec<PodView>, wanted: i64) -> Vec<PodView> {
        let now = self.world.now;
        active.order_by(|one, other| first_to_go(one, other, now));
        let mut surplus = Vec::new();
        if self.is_indexed {
            let mut taken = Indexes::default();
            // The last to go keeps its index.
            for at in (0..active.len()).rev() {
                match self.index(&active[at]) {
                    Some(index) if !taken.has(index) => taken.insert(index),
                    _ => surplus.push(active.remove(at)),
                }
            }
        }
        let beyond = active.len().saturating_sub(usize::try_from(wanted).unwrap_or_default());
        surplus.extend(active.drain(..beyond));
        surplus
    }

    fn fill(&mut self, missing: usize, policy: &Value) {
        if self.per_index.is_none() && self.must_wait(self.global_delay()) {
            return;
        }
        if !self.is_indexed {
            for _ in 0..missing {
                if !self.create(None, policy) {
                    return;
                }
            }
            return;
        }
        let mut taken = self.done.clone();
        for pod in &self.pods {
            let is_ending = self.replaces_late && pod.is_deleted && !pod.is_terminal();
            if let Some(index) = self.index(pod).filter(|_| pod.is_active() || is_ending) {
                taken.insert(index);
            }
        }
        let bound = self.completions.unwrap_or_default();
        let free: Vec<i64> =
            taken.missing(bound).filter(|index| !self.broken.has(*index)).take(missing).collect();
        for index in free {
            if self.per_index.is_some() && self.must_wait(self.index_delay(index, policy)) {
                continue;
            }
            if !self.create(Some(index), policy) {
                return;
            }
        }
    }

    fn must_wait(&mut self, delay: Duration) -> bool {
        if !delay.is_zero() {
            self.world.wake_in(delay);
        }
        !delay.is_zero()
    }

    /// How long to wait after the failures since the last success.
    fn global_delay(&self) -> Duration {
        let mut ended: Vec<(Timestamp, bool)> = Vec::new();
        for pod in &self.pods {
            if pod.phase() == "Succeeded" || self.is_failed(pod) {
                ended.push((pod.finished(), pod.phase() == "Succeeded"));
            }
        }
        ended.order_by_key(|(at, _)| *at);
        let failures = ended.iter().rev().take_while(|(_, succeeded)| !succeeded).count();
        let last = ended.last().map_or(self.world.now, |(at, _)| *at);
        self.delay(i64::try_from(failures).unwrap_or(i64::MAX), last)
    }

    fn index_delay(&self, index: i64, policy: &Value) -> Duration {
        let Some(last) = self.last_failed(index) else { return Duration::ZERO };
        let (failures, ignored) = failures_after(last, &judge(policy, last));
        self.delay(failures + ignored, last.finished())
    }

    fn delay(&self, failures: i64, last: Timestamp) -> Duration {
        let Some(doublings) = failures.checked_sub(1).filter(|doublings| *doublings >= 0) else {
            return Duration::ZERO;
        };
        let factor = 2_u32.saturating_pow(u32::try_from(doublings).unwrap_or(u32::MAX));
        FIRST_DELAY.saturating_mul(factor).min(LONGEST_DELAY).saturating_sub(self.world.elapsed(last))
    }

    fn create(&mut self, index: Option<i64>, policy: &Value) -> bool {
        if !self.world.may_create() {
            return false;
        }
        let mut pod = from_template(self.job, self.job.at("/spec/template"));
        for (name, value) in own_labels(self.job) {
            label(&mut pod, name, &value);
        }
        let metadata = &mut pod["metadata"];
        let name = self.job.name();
        metadata["generateName"] = json!(format!("{name}-"));
        let mut finalizers = at(metadata, "/finalizers").as_array().cloned().unwrap_or_default();
        finalizers.push(json!(TRACKING));
        metadata["finalizers"] = json!(finalizers);
        if let Some(index) = index {
            // The end of the name stays whole: a random part follows.
            let end = format!("-{index}-");
            let base: String = name.chars().take(58_usize.saturating_sub(end.len())).collect();
            metadata["generateName"] = json!(format!("{base}{end}"));
            metadata["annotations"][INDEX] = json!(index.to_string());
            label(&mut pod, INDEX, &index.to_string());
            pod["spec"]["hostname"] = json!(format!("{name}-{index}"));
            add_index_variable(&mut pod);
            if self.per_index.is_some() {
                let last = self.last_failed(index);
                let (failures, ignored) =
                    last.map_or((0, 0), |last| failures_after(last, &judge(policy, last)));
                let annotations = &mut pod["metadata"]["annotations"];
                annotations[FAILURES] = json!(failures.to_string());
                if ignored > 0 {
                    annotations[IGNORED_FAILURES] = json!(ignored.to_string());
                }
            }
        }
        match self.world.create_pod(pod) {
            Ok(name) => {
                self.world.normal(self.job, "SuccessfulCreate", format!("Created pod: {name}"));
                true
            }
            Err(why) => {
                self.world.warn(self.job, "FailedCreate", format!("Error creating: {why}"));
                false
            }
        }
    }
}

/// `JOB_COMPLETION_INDEX` in all containers that do not set it.
fn add_index_variable(pod: &mut Value) {
    const NAME: &str = "JOB_COMPLETION_INDEX";
    let path = format!("metadata.labels['{INDEX}']");
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mut env = at(container, "/env").as_array().cloned().unwrap_or_default();
            if env.iter().all(|variable| variable["name"] != NAME) {
                env.push(
                    json!({"name": NAME, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}),
                );
                container["env"] = json!(env);
            }
        }
    }
}
