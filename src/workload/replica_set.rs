//! One step of a ReplicaSet: as many pods as it wants (upstream: `syncReplicaSet`).
//!
//! Owns which pods are made and deleted, and its status. Pods that end are replaced after a pause that doubles: on one
//! node the next one may well end in the same way.
//!
//! Pure: what it returns depends on its arguments alone.

use std::time::Duration;

use serde_json::json;

use super::fields::{Conditions, Said, counted, selects, string_map};
use super::item::Item;
use super::pods::{PodView, first_to_go};
use super::template::from_template;
use super::world::World;
use crate::model::ordered::Sortable as _;

/// Failed pods that are kept for their logs and for the pause; older ones are deleted.
const KEPT_FAILED: usize = 6;
/// It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

pub(super) fn step(world: &mut World<'_>, set: &mut Item) {
    let selector = set.at("/spec/selector").clone();
    let pods = world.claim_pods(set, |pod| selects(&selector, pod.labels()));
    let mut active: Vec<PodView> = pods.iter().filter(|pod| pod.is_active()).cloned().collect();
    let mut failure = None;
    if !set.is_deleted() {
        let wanted = usize::try_from(set.replicas()).unwrap_or_default();
        if active.len() > wanted {
            remove(world, set, &mut active, wanted);
        } else if active.len() < wanted && !must_pause(world, set, &pods) {
            failure = fill(world, set, wanted - active.len());
            active = world.pods_of(set).into_iter().filter(PodView::is_active).collect();
        }
    }
    let terminating = pods.iter().filter(|pod| pod.is_deleted && !pod.is_terminal()).count();
    show(world, set, &active, terminating, failure);
}

fn remove(world: &mut World<'_>, set: &Item, active: &mut Vec<PodView>, wanted: usize) {
    let now = world.now;
    active.order_by(|one, other| first_to_go(one, other, now));
    for pod in active.drain(..active.len() - wanted) {
        world.delete_pod(pod.uid());
        world.normal(set, "SuccessfulDelete", format!("Deleted pod: {}", pod.name()));
    }
}

/// Whether the next pod has to wait, because earlier ones have ended. Deletes the oldest of those.
fn must_pause(world: &mut World<'_>, set: &Item, pods: &[PodView]) -> bool {
    let mut ended: Vec<&PodView> = pods
        .iter()
        .filter(|pod| pod.is_terminal() && !pod.is_deleted && pod.owner() == Some(&set.object.uid))
        .collect();
    ended.order_by_key(|pod| pod.finished());
    let beyond = ended.len().saturating_sub(KEPT_FAILED);
    for pod in ended.drain(..beyond) {
        world.delete_pod(pod.uid());
    }
    // The first one is replaced at once.
    let Some(last) = ended.last().filter(|_| ended.len() > 1) else { return false };
    let doublings = u32::try_from(ended.len() - 2).unwrap_or(u32::MAX);
    let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(doublings));
    let left = pause.saturating_sub(world.elapsed(last.finished()));
    if left.is_zero() {
        return false;
    }
    world.wake_in(left);
    true
}

/// Creates pods; returns why it cannot.
fn fill(world: &mut World<'_>, set: &Item, missing: usize) -> Option<String> {
    let mut pod = from_template(set, set.at("/spec/template"));
    pod["metadata"]["generateName"] = json!(format!("{}-", set.name()));
    for _ in 0..missing {
        if !world.may_create() {
            break;
        }
        match world.create_pod(pod.clone()) {
            Ok(name) => world.normal(set, "SuccessfulCreate", format!("Created pod: {name}")),
            Err(why) => {
                world.warn(set, "FailedCreate", format!("Error creating: {why}"));
                return Some(why);
            }
        }
    }
    None
}

fn show(
    world: &mut World<'_>,
    set: &mut Item,
    active: &[PodView],
    terminating: usize,
    failure: Option<String>,
) {
    let now = world.now;
    let labels = string_map(set.at("/spec/template/metadata/labels"));
    let min_ready = set.int("/spec/minReadySeconds", 0);
    let (mut full, mut ready, mut available) = (0, 0, 0);
    for pod in active {
        full += i64::from(labels.iter().all(|(name, value)| pod.labels().get(name) == Some(value)));
        let Some(left) = pod.available_in(min_ready, now) else { continue };
        ready += 1;
        if left.is_zero() {
            available += 1;
        } else {
            world.wake_in(left);
        }
    }
    let count = i64::try_from(active.len()).unwrap_or(i64::MAX);
    let mut conditions = Conditions::of(set.body());
    match failure {
        Some(why) if conditions.get("ReplicaFailure").is_none() => {
            let said = Said { kind: "ReplicaFailure", status: "True", reason: "FailedCreate", message: &why };
            conditions.set(said, None, now);
        }
        None if count == set.replicas() => conditions.remove("ReplicaFailure"),
        _ => {}
    }
    let mut status = counted(&[
        ("fullyLabeledReplicas", full),
        ("readyReplicas", ready),
        ("availableReplicas", available),
        ("observedGeneration", set.object.generation),
    ]);
    status.insert("replicas".to_owned(), json!(count));
    status.insert("terminatingReplicas".to_owned(), json!(terminating));
    if !conditions.0.is_empty() {
        status.insert("conditions".to_owned(), json!(conditions.0));
    }
    set.set_status(status);
}

#[cfg(test)]
mod tests;
