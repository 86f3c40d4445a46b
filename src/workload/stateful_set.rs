//! One step of a StatefulSet: pods with ordinals, each with its claims (upstream: `updateStatefulSet`).
//!
//! Owns their order. A pod of a superseded template that is not ready is replaced at once: upstream waits for it.
//!
//! Pure: what it returns depends on its arguments alone.

use std::time::Duration;

use serde_json::{Value, json};

use super::fields::{at, counted, list, selects, text};
use super::item::Item;
use super::pods::PodView;
use super::revisions::{self, HASH, Revision};
use super::template::{from_template, label};
use super::world::{BackOffTimes, World};
use crate::model::objects::{ObjectKey, ObjectKind};
use crate::model::ordered::Sortable as _;

/// Between pods of the same name that fail.
const RECREATE: BackOffTimes =
    BackOffTimes { first: Duration::from_secs(10), longest: Duration::from_secs(300) };

struct StatefulSetStep<'s, 'e> {
    world: &'s mut World<'e>,
    set: &'s mut Item,
    current: Revision,
    update: Revision,
    /// One pod at a time.
    is_ordered: bool,
    /// Pods of another template are replaced.
    rolls: bool,
    start: i64,
    replicas: i64,
    /// Ordinals below keep the current revision.
    partition: i64,
    min_ready: i64,
}

pub(super) fn step(world: &mut World<'_>, set: &mut Item) {
    let selector = set.at("/spec/selector").clone();
    let name = set.name().to_owned();
    world.claim_pods(set, |pod| selects(&selector, pod.labels()) && ordinal(&name, pod.name()).is_some());
    let mut collisions = set.int("/status/collisionCount", 0);
    let Some(history) = revisions::ensure(world, set, &mut collisions) else { return };
    let Some(update) = history.last().cloned() else { return };
    let shown = set.text("/status/currentRevision");
    let current = history.iter().find(|revision| revision.name() == shown).unwrap_or(&update).clone();
    let rolls = set.text("/spec/updateStrategy/type") != "OnDelete";
    let start = set.int("/spec/ordinals/start", 0);
    let mut step = StatefulSetStep {
        is_ordered: set.text("/spec/podManagementPolicy") != "Parallel",
        rolls,
        start,
        replicas: set.replicas(),
        partition: if rolls {
            start + set.int("/spec/updateStrategy/rollingUpdate/partition", 0)
        } else {
            start
        },
        min_ready: set.int("/spec/minReadySeconds", 0),
        current,
        update,
        world,
        set,
    };
    if !step.set.is_deleted() {
        step.manage();
        step.keep_claims();
    }
    let live = step.show(collisions);
    revisions::truncate(step.world, step.set, &history, |revision| {
        live.iter().any(|name| name == revision.name())
    });
}

/// The number at the end of a pod's name.
fn ordinal(set: &str, pod: &str) -> Option<i64> {
    let digits = pod.strip_prefix(set)?.strip_prefix('-')?;
    let ordinal: i64 = digits.parse().ok()?;
    (ordinal.to_string() == digits && ordinal >= 0).then_some(ordinal)
}

impl StatefulSetStep<'_, '_> {
    fn pods(&self) -> Vec<(i64, PodView)> {
        let name = self.set.name();
        let pods = self.world.pods_of(self.set).into_iter();
        let mut pods: Vec<(i64, PodView)> =
            pods.filter_map(|pod| Some((ordinal(name, pod.name())?, pod))).collect();
        pods.order_by_key(|(ordinal, _)| *ordinal);
        pods
    }

    fn end(&self) -> i64 {
        self.start + self.replicas
    }

    fn manage(&mut self) {
        let pods = self.pods();
        for ordinal in self.start..self.end() {
            let at = pods.partition_point(|(known, _)| *known < ordinal);
            let Some((_, pod)) = pods.get(at).filter(|(known, _)| *known == ordinal) else {
                if !self.world.may_create() || !self.create(ordinal) || self.is_ordered {
                    return;
                }
                continue;
            };
            if !self.settle(ordinal, pod) && self.is_ordered {
                return;
            }
        }
        let (start, end) = (self.start, self.end());
        for (_, pod) in pods.iter().rev().filter(|(ordinal, _)| *ordinal < start || *ordinal >= end) {
            if !pod.is_deleted {
                self.delete(pod);
            }
            if self.is_ordered {
                return;
            }
        }
        if self.rolls {
            self.roll(&pods);
        }
    }

    /// Whether the pod of this ordinal is as it should be, apart from its revision.
    fn settle(&mut self, ordinal: i64, pod: &PodView) -> bool {
        if pod.is_deleted {
            return false;
        }
        if pod.is_terminal() {
            if self.world.may_retry(RECREATE) {
                let (reason, what) = match pod.phase() {
                    "Failed" => ("RecreatingFailedPod", "failed"),
                    _ => ("RecreatingTerminatedPod", "terminated"),
                };
                let key = &self.set.object.key;
                let (namespace, name) = (&key.namespace, &key.name);
                let message =
                    format!("StatefulSet {namespace}/{name} is recreating {what} Pod {}", pod.name());
                self.world.warn(self.set, reason, message);
                self.delete(pod);
            }
            return false;
        }
        match pod.available_in(self.min_ready, self.world.now).filter(|_| pod.phase() == "Running") {
            Some(left) if left.is_zero() => true,
            Some(left) => {
                self.world.wake_in(left);
                false
            }
            None => {
                // It may never become ready, and the template that would help comes after it.
                if self.rolls && ordinal >= self.partition && pod.label(HASH) != self.update.name() {
                    self.delete(pod);
                }
                false
            }
        }
    }

    /// The highest pod of another revision goes, once all above it are available.
    fn roll(&mut self, pods: &[(i64, PodView)]) {
        let (from, end) = (self.partition.max(self.start), self.end());
        for (_, pod) in pods.iter().rev().filter(|(ordinal, _)| (from..end).contains(ordinal)) {
            if pod.label(HASH) != self.update.name() && !pod.is_deleted {
                self.delete(pod);
                return;
            }
            let is_available =
                pod.available_in(self.min_ready, self.world.now).is_some_and(|left| left.is_zero());
            if pod.is_deleted || !is_available {
                return;
            }
        }
    }

    fn delete(&mut self, pod: &PodView) {
        self.world.delete_pod(pod.uid());
        let message = format!("delete Pod {} in StatefulSet {} successful", pod.name(), self.set.name());
        self.world.normal(self.set, "SuccessfulDelete", message);
    }

    /// False when it is refused: the next ones would be, too.
    fn create(&mut self, ordinal: i64) -> bool {
        let name = format!("{}-{ordinal}", self.set.name());
        if self.world.pod_named(&self.set.object.key.namespace, &name).is_some_and(|pod| pod.is_deleted) {
            // One of this name, of another owner, is about to go.
            self.world.wait_for_others();
            return true;
        }
        if !self.create_claims(ordinal, &name) {
            return false;
        }
        let revision = if ordinal < self.partition { &self.current } else { &self.update };
        let mut pod = from_template(self.set, &revision.template);
        pod["metadata"]["name"] = json!(name);
        label(&mut pod, HASH, revision.name());
        label(&mut pod, "statefulset.kubernetes.io/pod-name", &name);
        label(&mut pod, "apps.kubernetes.io/pod-index", &ordinal.to_string());
        pod["spec"]["hostname"] = json!(name);
        let service = self.set.text("/spec/serviceName");
        if !service.is_empty() {
            pod["spec"]["subdomain"] = json!(service);
        }
        let templates = list(self.set.body(), "/spec/volumeClaimTemplates");
        if !templates.is_empty() {
            let names: Vec<&str> =
                templates.iter().map(|template| text(template, "/metadata/name")).collect();
            let mut volumes: Vec<Value> = names
                .iter()
                .map(|template| {
                    json!({"name": template, "persistentVolumeClaim": {"claimName": format!("{template}-{name}")}})
                })
                .collect();
            let own = list(&pod, "/spec/volumes").iter();
            volumes.extend(own.filter(|volume| !names.contains(&text(volume, "/name"))).cloned());
            pod["spec"]["volumes"] = json!(volumes);
        }
        let set_name = self.set.name();
        match self.world.create_pod(pod) {
            Ok(_) => {
                let message = format!("create Pod {name} in StatefulSet {set_name} successful");
                self.world.normal(self.set, "SuccessfulCreate", message);
                true
            }
            Err(why) => {
                let message = format!("create Pod {name} in StatefulSet {set_name} failed error: {why}");
                self.world.warn(self.set, "FailedCreate", message);
                false
            }
        }
    }

    fn create_claims(&mut self, ordinal: i64, pod: &str) -> bool {
        let namespace = self.set.object.key.namespace.clone();
        for template in list(self.set.body(), "/spec/volumeClaimTemplates").to_vec() {
            let name = format!("{}-{}-{ordinal}", text(&template, "/metadata/name"), self.set.name());
            let known = self.world.get(ObjectKind::PersistentVolumeClaim, &namespace, &name);
            if known.is_some() {
                continue;
            }
            let mut claim = json!({"metadata": at(&template, "/metadata"), "spec": at(&template, "/spec")});
            claim["metadata"]["name"] = json!(name);
            claim["metadata"]["namespace"] = json!(namespace);
            let labels = self.set.at("/spec/selector/matchLabels").as_object().cloned().unwrap_or_default();
            for (label, value) in labels {
                claim["metadata"]["labels"][label] = value;
            }
            let owners = if self.goes_with_set() { vec![self.set.reference()] } else { Vec::new() };
            let set_name = self.set.name();
            if let Err(why) = self.world.create_claim(claim, owners) {
                let message = format!(
                    "create Claim {name} for Pod {pod} in StatefulSet {set_name} failed error: {why}"
                );
                self.world.warn(self.set, "FailedCreate", message);
                return false;
            }
            let message = format!("create Claim {name} Pod {pod} in StatefulSet {set_name} success");
            self.world.normal(self.set, "SuccessfulCreate", message);
        }
        true
    }

    /// Claims are deleted with the StatefulSet.
    fn goes_with_set(&self) -> bool {
        self.set.text("/spec/persistentVolumeClaimRetentionPolicy/whenDeleted") == "Delete"
    }

    /// What the retention policy says of the claims: their owner, and those of ordinals that there are no more.
    fn keep_claims(&mut self) {
        let namespace = self.set.object.key.namespace.clone();
        let templates = list(self.set.body(), "/spec/volumeClaimTemplates");
        let prefixes: Vec<String> = templates
            .iter()
            .map(|template| format!("{}-{}", text(template, "/metadata/name"), self.set.name()))
            .collect();
        if prefixes.is_empty() {
            return;
        }
        let selector = json!({"matchLabels": self.set.at("/spec/selector/matchLabels")});
        let claims = self.world.of_kind(ObjectKind::PersistentVolumeClaim, &namespace);
        let own = claims.filter(|claim| !claim.is_read_only && selects(&selector, &claim.object.labels));
        let found: Vec<(i64, ObjectKey, bool)> = own
            .filter_map(|claim| {
                let ordinal = prefixes.iter().find_map(|prefix| ordinal(prefix, claim.name()))?;
                let is_owned = claim.owner() == Some(&self.set.object.uid);
                Some((ordinal, claim.object.key.clone(), is_owned))
            })
            .collect();
        let goes = self.set.text("/spec/persistentVolumeClaimRetentionPolicy/whenScaled") == "Delete";
        let (start, end, wants) = (self.start, self.end(), self.goes_with_set());
        let reference = self.set.reference();
        for (ordinal, key, is_owned) in found {
            let pod = format!("{}-{ordinal}", self.set.name());
            if goes && !(start..end).contains(&ordinal) {
                if self.world.pod_named(&namespace, &pod).is_none() {
                    self.world.remove(&key);
                }
            } else if is_owned != wants {
                self.world.change(&key, |claim| {
                    let owners = &mut claim.meta_mut().owner_references;
                    owners.retain(|owner| owner.uid != reference.uid);
                    if wants {
                        owners.push(reference.clone());
                    }
                });
            }
        }
    }

    /// Sets the status; returns the names of the revisions that are in use.
    fn show(&mut self, collisions: i64) -> Vec<String> {
        let pods = self.pods();
        let now = self.world.now;
        let (mut ready, mut available, mut current, mut updated) = (0, 0, 0, 0);
        let mut live = vec![self.current.name().to_owned(), self.update.name().to_owned()];
        for (_, pod) in &pods {
            live.push(pod.label(HASH).to_owned());
            if let Some(left) = pod.available_in(self.min_ready, now).filter(|_| pod.phase() == "Running") {
                ready += 1;
                available += i64::from(left.is_zero());
                if !left.is_zero() && !pod.is_deleted {
                    self.world.wake_in(left);
                }
            }
            if !pod.is_deleted {
                current += i64::from(pod.label(HASH) == self.current.name());
                updated += i64::from(pod.label(HASH) == self.update.name());
            }
        }
        let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
        let mut shown = self.current.name().to_owned();
        if self.rolls && updated == self.replicas && count == self.replicas && ready == self.replicas {
            // Upstream: `completeRollingUpdate`.
            self.update.name().clone_into(&mut shown);
            current = updated;
        }
        let mut status = counted(&[
            ("observedGeneration", self.set.object.generation),
            ("readyReplicas", ready),
            ("currentReplicas", current),
            ("updatedReplicas", updated),
        ]);
        status.insert("replicas".to_owned(), json!(count));
        status.insert("availableReplicas".to_owned(), json!(available));
        status.insert("collisionCount".to_owned(), json!(collisions));
        status.insert("currentRevision".to_owned(), json!(shown));
        status.insert("updateRevision".to_owned(), json!(self.update.name()));
        self.set.set_status(status);
        live
    }
}

#[cfg(test)]
mod tests;
