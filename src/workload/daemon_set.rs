//! One step of a DaemonSet: one pod, if this node is one of its nodes (upstream: `syncDaemonSet`).
//!
//! Owns whether the pod is there, and which template it has.
//!
//! Pure: what it returns depends on its arguments alone.

use std::time::Duration;

use serde_json::{Value, json};

use super::fields::{at, counted, list, scaled, selects};
use super::item::Item;
use super::pods::PodView;
use super::revisions::{self, HASH, Revision};
use super::template::{from_template, label};
use super::world::{BackOffTimes, World};
use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;
use crate::model::ordered::Sortable as _;

const RECREATE: BackOffTimes =
    BackOffTimes { first: Duration::from_secs(1), longest: Duration::from_secs(900) };

struct DaemonSetStep<'s, 'e> {
    world: &'s mut World<'e>,
    set: &'s mut Item,
    revision: Revision,
    min_ready: i64,
}

pub(super) fn step(world: &mut World<'_>, set: &mut Item) {
    let selector = set.at("/spec/selector").clone();
    world.claim_pods(set, |pod| selects(&selector, pod.labels()));
    let mut collisions = set.int("/status/collisionCount", 0);
    let Some(history) = revisions::ensure(world, set, &mut collisions) else { return };
    let Some(revision) = history.last().cloned() else { return };
    let min_ready = set.int("/spec/minReadySeconds", 0);
    let mut step = DaemonSetStep { world, set, revision, min_ready };
    let pod = step.pod();
    let sample = decode::<Pod>(pod.clone()).map(|decoded| decoded.object).unwrap_or_default();
    let (starts, stays) = step.world.env.daemon_fits(&sample);
    if !step.set.is_deleted() {
        step.manage(pod, starts, stays);
    }
    step.show(starts, collisions);
    let used: Vec<String> = step.pods().iter().map(|pod| pod.label(HASH).to_owned()).collect();
    let newest = step.revision.hash.clone();
    revisions::truncate(step.world, step.set, &history, |revision| {
        revision.hash == newest || used.contains(&revision.hash)
    });
}

impl DaemonSetStep<'_, '_> {
    /// The oldest first.
    fn pods(&self) -> Vec<PodView> {
        let mut pods = self.world.pods_of(self.set);
        pods.order_by_key(|pod| (pod.created(), pod.uid().clone()));
        pods
    }

    fn is_new(&self, pod: &PodView) -> bool {
        pod.label(HASH) == self.revision.hash
    }

    fn is_available(&mut self, pod: &PodView) -> bool {
        match pod.available_in(self.min_ready, self.world.now) {
            Some(left) if left.is_zero() => true,
            Some(left) => {
                self.world.wake_in(left);
                false
            }
            None => false,
        }
    }

    fn manage(&mut self, pod: Value, starts: bool, stays: bool) {
        self.clear_ended();
        let pods = self.pods();
        let running: Vec<&PodView> = pods.iter().filter(|pod| pod.is_active()).collect();
        let is_ending = pods.iter().any(|pod| pod.is_deleted && !pod.is_terminal());
        let has_ended = pods.iter().any(|pod| pod.is_terminal() && !pod.is_deleted);
        if !stays {
            for pod in running {
                self.delete(pod);
            }
            return;
        }
        let rolls = self.set.text("/spec/updateStrategy/type") != "OnDelete";
        let surges = rolls && scaled(self.set.at("/spec/updateStrategy/rollingUpdate/maxSurge"), 1, true) > 0;
        if running.is_empty() {
            // One that has failed is deleted after a pause.
            if starts && !has_ended && (surges || !is_ending) {
                self.create(pod);
            }
            return;
        }
        let old: Vec<&PodView> = running.iter().copied().filter(|pod| !self.is_new(pod)).collect();
        let new: Vec<&PodView> = running.iter().copied().filter(|pod| self.is_new(pod)).collect();
        if surges && !old.is_empty() {
            match new.first() {
                None if starts => self.create(pod),
                Some(new) if self.is_available(new) => old.into_iter().for_each(|pod| self.delete(pod)),
                _ => {}
            }
            return;
        }
        // All but the oldest.
        running[1..].iter().for_each(|pod| self.delete(pod));
        if rolls && !self.is_new(running[0]) {
            self.delete(running[0]);
        }
    }

    /// Deletes pods that have ended.
    fn clear_ended(&mut self) {
        for pod in self.pods().iter().filter(|pod| pod.is_terminal() && !pod.is_deleted) {
            let node = self.world.env.node_name().to_owned();
            let (namespace, name) = (&pod.pod.metadata.namespace, pod.name());
            if !self.world.may_retry(RECREATE) {
                return;
            }
            if pod.phase() == "Failed" {
                let message =
                    format!("Found failed daemon pod {namespace}/{name} on node {node}, will try to kill it");
                self.world.warn(self.set, "FailedDaemonPod", message);
            } else {
                let message = format!(
                    "Found succeeded daemon pod {namespace}/{name} on node {node}, will try to delete it"
                );
                self.world.normal(self.set, "SucceededDaemonPod", message);
            }
            self.delete(pod);
        }
    }

    fn delete(&mut self, pod: &PodView) {
        self.world.delete_pod(pod.uid());
        self.world.normal(self.set, "SuccessfulDelete", format!("Deleted pod: {}", pod.name()));
    }

    fn create(&mut self, mut pod: Value) {
        pod["spec"]["affinity"] = pinned(at(&pod, "/spec/affinity"), self.world.env.node_name());
        match self.world.create_pod(pod) {
            Ok(name) => self.world.normal(self.set, "SuccessfulCreate", format!("Created pod: {name}")),
            Err(why) => self.world.warn(self.set, "FailedCreate", format!("Error creating: {why}")),
        }
    }

    /// The pod for this node, with the tolerations that all daemons have.
    fn pod(&self) -> Value {
        let mut pod = from_template(self.set, self.set.at("/spec/template"));
        pod["metadata"]["generateName"] = json!(format!("{}-", self.set.name()));
        label(&mut pod, HASH, &self.revision.hash);
        let host_network = pod["spec"]["hostNetwork"] == true;
        let mut tolerations = list(&pod, "/spec/tolerations").to_vec();
        for (key, effect) in [
            ("not-ready", "NoExecute"),
            ("unreachable", "NoExecute"),
            ("disk-pressure", "NoSchedule"),
            ("memory-pressure", "NoSchedule"),
            ("pid-pressure", "NoSchedule"),
            ("unschedulable", "NoSchedule"),
            ("network-unavailable", "NoSchedule"),
        ] {
            let key = format!("node.kubernetes.io/{key}");
            if host_network || !key.ends_with("network-unavailable") {
                let toleration = json!({"key": key, "operator": "Exists", "effect": effect});
                if !tolerations.contains(&toleration) {
                    tolerations.push(toleration);
                }
            }
        }
        pod["spec"]["tolerations"] = json!(tolerations);
        pod
    }

    fn show(&mut self, starts: bool, collisions: i64) {
        let pods = self.pods();
        let running: Vec<&PodView> = pods.iter().filter(|pod| pod.is_active()).collect();
        let wanted = i64::from(starts);
        let runs = i64::from(!running.is_empty());
        let counts = |holds: bool| i64::from(starts && holds);
        let ready = counts(running.iter().any(|pod| pod.is_ready()));
        let updated = counts(running.iter().any(|pod| self.is_new(pod)));
        let mut is_available = false;
        for pod in &running {
            is_available |= self.is_available(pod);
        }
        let available = counts(is_available);
        let mut status = counted(&[
            ("observedGeneration", self.set.object.generation),
            ("updatedNumberScheduled", updated),
            ("numberAvailable", available),
            ("numberUnavailable", wanted - available),
            ("collisionCount", collisions),
        ]);
        for (name, number) in [
            ("desiredNumberScheduled", wanted),
            ("currentNumberScheduled", counts(runs > 0)),
            ("numberMisscheduled", runs - counts(runs > 0)),
            ("numberReady", ready),
        ] {
            status.insert(name.to_owned(), json!(number));
        }
        self.set.set_status(status);
    }
}

/// The affinity that pins a pod to a node, with its other parts (upstream: `ReplaceDaemonSetPodNodeNameNodeAffinity`).
fn pinned(affinity: &Value, node: &str) -> Value {
    let mut affinity = if affinity.is_object() { affinity.clone() } else { json!({}) };
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [term]});
    affinity
}

#[cfg(test)]
mod tests;
