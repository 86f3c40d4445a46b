//! One step of a Deployment: which of its ReplicaSets grows and which shrinks (upstream: `syncDeployment`).
//!
//! Owns its ReplicaSets, their revisions and annotations, and its status.
//!
//! Pure: what it returns depends on its arguments alone.

mod revisions;
mod scaling;
mod status;

use serde_json::{Value, json};

use super::fields::{Conditions, Said, int, scaled, selects};
use super::item::Item;
use super::world::World;
use crate::desired::local_objects::REVISION;
use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;
use crate::model::objects::{ObjectKey, ObjectKind};
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;

const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
const HASH: &str = "pod-template-hash";
const PROGRESSING: &str = "Progressing";
/// The member of a condition that changes with each sign of progress.
const UPDATED: Option<&str> = Some("lastUpdateTime");
/// No deadline, no limit: the largest 32-bit number.
const NONE: i64 = 2_147_483_647;

/// The Deployment rolls back by itself when its new pods are not there at the deadline.
const ROLLBACK: &str = "workloads.agent.edge/rollback-at-deadline";
/// The ReplicaSets that it has left so.
const ROLLED_BACK: &str = "workloads.agent.edge/rolled-back";

/// What the arithmetic needs of a ReplicaSet.
#[derive(Clone, Debug)]
struct Set {
    key: ObjectKey,
    uid: String,
    created: Timestamp,
    replicas: i64,
    /// Of its status.
    actual: i64,
    ready: i64,
    available: i64,
    terminating: i64,
    revision: i64,
    /// Its status is of its newest version.
    is_observed: bool,
    is_deleted: bool,
}

/// What the Deployment wants, resolved.
struct Wanted {
    replicas: i64,
    recreate: bool,
    surge: i64,
    unavailable: i64,
    min_ready: i64,
    paused: bool,
    /// Seconds; `None`: none.
    deadline: Option<i64>,
    /// What two pods cannot have at a time, if that is why none is started before another has stopped.
    exclusive: Option<String>,
}

struct DeploymentStep<'s, 'e> {
    world: &'s mut World<'e>,
    item: &'s mut Item,
    wanted: Wanted,
    /// All that it manages, the oldest first.
    sets: Vec<Set>,
    /// The position of the one with the current template.
    new: Option<usize>,
    conditions: Conditions,
    /// How often the name of a new set was taken.
    collisions: i64,
}

pub(super) fn step(world: &mut World<'_>, item: &mut Item) {
    adopt(world, item);
    let wanted = wanted(world, item);
    let conditions = Conditions::of(item.body());
    let (sets, collisions) = (sets(world, item), item.int("/status/collisionCount", 0));
    let mut step = DeploymentStep { sets, new: None, world, item, wanted, conditions, collisions };
    if step.item.is_deleted() {
        step.find_new();
        step.show(false);
        return;
    }
    step.check_paused();
    if step.wanted.paused || step.is_scaling() {
        step.find_new();
        step.note_new();
        step.scale();
        if step.wanted.paused {
            step.clean_up();
        }
        step.show(false);
    } else if step.wanted.recreate {
        step.recreate();
    } else {
        step.roll();
    }
}

fn wanted(world: &World<'_>, item: &Item) -> Wanted {
    let replicas = item.replicas();
    let recreate = item.text("/spec/strategy/type") == "Recreate";
    let part = |name: &str| item.at(&format!("/spec/strategy/rollingUpdate/{name}")).clone();
    let (asked_surge, asked_unavailable) = (part("maxSurge"), part("maxUnavailable"));
    let mut surge = if recreate { 0 } else { scaled(&asked_surge, replicas, true) };
    let mut unavailable = if recreate { 0 } else { scaled(&asked_unavailable, replicas, false) };
    if !recreate && surge == 0 && unavailable == 0 {
        unavailable = 1;
    }
    let mut exclusive = None;
    // A percentage that comes to nothing is no decision against a gap.
    if !recreate && unavailable == 0 && replicas > 0 && asked_unavailable.as_i64() != Some(0) {
        exclusive = exclusive_part(world, item.at("/spec/template"));
        if exclusive.is_some() {
            (surge, unavailable) = (0, 1);
        }
    }
    let unavailable = unavailable.min(replicas);
    let deadline = item.int("/spec/progressDeadlineSeconds", NONE);
    Wanted {
        replicas,
        recreate,
        surge,
        unavailable,
        min_ready: item.int("/spec/minReadySeconds", 0),
        paused: item.at("/spec/paused") == true,
        deadline: (deadline != NONE).then_some(deadline),
        exclusive,
    }
}

fn exclusive_part(world: &World<'_>, template: &Value) -> Option<String> {
    let pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    world.env.exclusive(&decode::<Pod>(pod).ok()?.object)
}

/// Adopts ReplicaSets that its selector selects, and releases those that it does not select any more.
fn adopt(world: &mut World<'_>, item: &Item) {
    let selector = item.at("/spec/selector");
    let reference = item.reference();
    let namespace = &item.object.key.namespace;
    let mut news = Vec::new();
    for set in world.of_kind(ObjectKind::ReplicaSet, namespace).filter(|set| !set.is_read_only) {
        let is_selected = selects(selector, &set.object.labels);
        match set.owner() {
            Some(uid) if uid == item.object.uid && !is_selected => news.push((set.object.key.clone(), false)),
            None if is_selected && !set.is_deleted() && !item.is_deleted() => {
                news.push((set.object.key.clone(), true));
            }
            _ => {}
        }
    }
    for (key, adopts) in news {
        world.change(&key, |set| {
            let owners = &mut set.meta_mut().owner_references;
            owners.retain(|owner| owner.uid != reference.uid);
            if adopts {
                owners.push(reference.clone());
            }
        });
    }
}

fn sets(world: &World<'_>, item: &Item) -> Vec<Set> {
    let of = |key: ObjectKey| world.item(&key).map(Set::of);
    let mut sets: Vec<Set> = world.owned(ObjectKind::ReplicaSet, item).into_iter().filter_map(of).collect();
    sets.order_by_key(|set| (set.created, set.key.clone()));
    sets
}

impl Set {
    fn of(item: &Item) -> Self {
        let status = |name: &str| int(item.at("/status"), name, 0);
        Self {
            key: item.object.key.clone(),
            uid: item.object.uid.clone(),
            created: item.object.created,
            replicas: item.replicas(),
            actual: status("/replicas"),
            ready: status("/readyReplicas"),
            available: status("/availableReplicas"),
            terminating: status("/terminatingReplicas"),
            revision: revision(item),
            is_observed: status("/observedGeneration") >= item.object.generation,
            is_deleted: item.is_deleted(),
        }
    }
}

fn revision(item: &Item) -> i64 {
    item.annotation(REVISION).and_then(|revision| revision.parse().ok()).unwrap_or_default()
}

impl DeploymentStep<'_, '_> {
    fn total(&self) -> i64 {
        self.sets.iter().map(|set| set.replicas).sum()
    }

    fn available(&self) -> i64 {
        self.sets.iter().map(|set| set.available).sum()
    }

    fn old(&self) -> impl Iterator<Item = usize> + use<> {
        let new = self.new;
        (0..self.sets.len()).filter(move |at| Some(*at) != new)
    }

    fn check_paused(&mut self) {
        let reason = self.conditions.reason(PROGRESSING);
        if self.wanted.deadline.is_none() || reason == status::TIMED_OUT {
            return;
        }
        let was_paused = reason == status::PAUSED;
        let (reason, message) = match self.wanted.paused {
            true if !was_paused => (status::PAUSED, "Deployment is paused"),
            false if was_paused => ("DeploymentResumed", "Deployment is resumed"),
            _ => return,
        };
        let said = Said { kind: PROGRESSING, status: "Unknown", reason, message };
        self.conditions.set(said, UPDATED, self.world.now);
    }

    /// Replicas were asked for since the sets were made.
    fn is_scaling(&self) -> bool {
        let active = self.sets.iter().filter(|set| set.replicas > 0);
        active.filter_map(|set| self.world.item(&set.key)).any(|set| {
            let desired = set.annotation(DESIRED).and_then(|desired| desired.parse::<i64>().ok());
            desired.is_some_and(|desired| desired != self.wanted.replicas)
        })
    }

    fn roll(mut self) {
        self.find_new();
        self.ensure_new();
        if !self.grow_new() && !self.shrink_old() && self.is_complete() {
            self.clean_up();
        }
        self.show(true);
    }

    /// The new set up to what is wanted, or down to it.
    fn grow_new(&mut self) -> bool {
        let Some(new) = self.new else { return false };
        let replicas = self.sets[new].replicas;
        if replicas == self.wanted.replicas {
            return false;
        }
        let to =
            if replicas > self.wanted.replicas { self.wanted.replicas } else { self.new_replicas(replicas) };
        self.resize(new, to)
    }

    /// Upstream: `NewRSNewReplicas`.
    fn new_replicas(&self, replicas: i64) -> i64 {
        if self.wanted.recreate {
            return self.wanted.replicas;
        }
        let room = self.wanted.replicas + self.wanted.surge - self.total();
        if room <= 0 { replicas } else { replicas + room.min(self.wanted.replicas - replicas) }
    }

    /// Upstream: `reconcileOldReplicaSets`. First pods that are not healthy go, then those that are not needed.
    fn shrink_old(&mut self) -> bool {
        let Some(new) = self.new else { return false };
        if self.old().all(|at| self.sets[at].replicas == 0) {
            return false;
        }
        let least = self.wanted.replicas - self.wanted.unavailable;
        let new_unavailable = self.sets[new].replicas - self.sets[new].available;
        let mut budget = self.total() - least - new_unavailable;
        if budget <= 0 {
            return false;
        }
        let mut has_shrunk = false;
        for at in self.old() {
            let Set { replicas, available, .. } = self.sets[at];
            let unhealthy = (replicas - available).max(0).min(budget);
            if unhealthy > 0 {
                budget -= unhealthy;
                has_shrunk |= self.resize(at, replicas - unhealthy);
            }
        }
        let mut spare = self.available() - least;
        for at in self.old() {
            let replicas = self.sets[at].replicas;
            let goes = replicas.min(spare);
            if goes > 0 {
                spare -= goes;
                has_shrunk |= self.resize(at, replicas - goes);
            }
        }
        has_shrunk
    }

    fn recreate(mut self) {
        self.find_new();
        self.note_new();
        let mut has_shrunk = false;
        for at in self.old() {
            if self.sets[at].replicas > 0 {
                has_shrunk |= self.resize(at, 0);
            }
        }
        if !has_shrunk && !self.has_old_pods() {
            self.ensure_new();
            if !self.grow_new() && self.is_complete() {
                self.clean_up();
            }
        }
        self.show(true);
    }

    /// Pods of an older template are still there.
    fn has_old_pods(&self) -> bool {
        let old: Vec<&Set> = self.old().map(|at| &self.sets[at]).collect();
        let is_old = |uid: &str| old.iter().any(|set| set.uid == uid);
        let mut pods = self.world.pods();
        old.iter().any(|set| set.actual > 0)
            || pods.any(|pod| pod.owner().is_some_and(is_old) && !pod.is_terminal())
    }

    /// Scales a set, and says so. False when it has that size.
    fn resize(&mut self, at: usize, to: i64) -> bool {
        let from = self.sets[at].replicas;
        if from == to {
            return false;
        }
        self.sets[at].replicas = to;
        let key = self.sets[at].key.clone();
        self.annotate_size(&key);
        self.world.change(&key, |set| set.set_spec("replicas", json!(to)));
        let direction = if to > from { "up" } else { "down" };
        let message = format!("Scaled {direction} replica set {} from {from} to {to}", key.name);
        self.world.normal(self.item, "ScalingReplicaSet", message);
        true
    }

    /// What the Deployment wants, on a set: a later change is found by it.
    fn annotate_size(&mut self, key: &ObjectKey) {
        let (desired, most) = (self.wanted.replicas, self.wanted.replicas + self.wanted.surge);
        let is_so = self.world.item(key).is_none_or(|set| {
            set.annotation(DESIRED) == Some(&desired.to_string())
                && set.annotation(MAX) == Some(&most.to_string())
        });
        if !is_so {
            self.world.change(key, |set| {
                set.annotate(DESIRED, Some(&desired.to_string()));
                set.annotate(MAX, Some(&most.to_string()));
            });
        }
    }
}

fn template_of(item: &Item) -> &Value {
    item.at("/spec/template")
}

/// A template without the label of its hash.
fn without_hash(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH);
    }
    template
}

#[cfg(test)]
mod tests;
