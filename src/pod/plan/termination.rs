//! Taking pods down: the order of stops, and what is removed afterwards.
//!
//! Owns the stop order.
//!
//! Pure: what it returns depends on its arguments alone.

use crate::model::api::pod::Pod;
use crate::model::containers::is_sidecar;
use crate::model::observed::{ObservedContainer, ObservedPod};
use crate::pod::plan::{Action, PodPlan, StopContainer};

/// Stops all containers of the pod that may be alive, then its ready sandboxes. Empty once nothing is left to
/// stop. Without a spec (an orphaned pod, known from the runtime alone) all containers stop together.
#[must_use]
pub(in crate::pod) fn compute_termination(
    pod: Option<&Pod>,
    observed: &ObservedPod,
    grace_seconds: i64,
) -> PodPlan {
    let mut actions = stop_all_containers(pod, observed, grace_seconds);
    for sandbox in observed.sandboxes.iter().filter(|sandbox| sandbox.ready) {
        actions.push(Action::StopSandbox { id: sandbox.id.clone() });
    }
    PodPlan { actions, ..PodPlan::default() }
}

/// Removes all records of a pod that has been stopped: containers, then sandboxes. Nothing is removed while a
/// container is alive.
#[must_use]
pub(in crate::pod) fn compute_teardown(observed: &ObservedPod) -> PodPlan {
    let mut actions = Vec::new();
    if observed.live_containers().next().is_none() {
        for container in &observed.containers {
            let (id, name) = (container.id.clone(), container.name.clone());
            actions.push(Action::RemoveContainer { id, name, keep_log: false });
        }
        for sandbox in &observed.sandboxes {
            // Includes sandboxes that are not ready: the network may still be held after a crash, and
            // stopping is idempotent.
            actions.push(Action::StopSandbox { id: sandbox.id.clone() });
            actions.push(Action::RemoveSandbox { id: sandbox.id.clone() });
        }
    }
    PodPlan { actions, ..PodPlan::default() }
}

/// The action that stops every live container, if there is one.
pub(crate) fn stop_all_containers(
    pod: Option<&Pod>,
    observed: &ObservedPod,
    grace_seconds: i64,
) -> Vec<Action> {
    let groups = stop_groups(pod, observed);
    if groups.is_empty() { Vec::new() } else { vec![Action::StopContainers { groups, grace_seconds }] }
}

/// All containers but sidecars at once, then sidecars in reverse order of the spec, one after another.
fn stop_groups(pod: Option<&Pod>, observed: &ObservedPod) -> Vec<Vec<StopContainer>> {
    let sidecars: Vec<&str> = pod.map_or_else(Vec::new, |pod| {
        let sidecars = pod.spec.init_containers.iter().filter(|container| is_sidecar(container));
        sidecars.map(|container| container.name.as_str()).collect()
    });
    let mains = observed
        .live_containers()
        .filter(|container| !sidecars.contains(&container.name.as_str()))
        .map(stop_container)
        .collect();
    let mut groups = vec![mains];
    for name in sidecars.iter().rev() {
        let instances = observed.live_containers().filter(|container| container.name.as_str() == *name);
        groups.push(instances.map(stop_container).collect());
    }
    groups.retain(|group: &Vec<StopContainer>| !group.is_empty());
    groups
}

/// Stopping a container because it is no longer wanted.
fn stop_container(container: &ObservedContainer) -> StopContainer {
    StopContainer {
        id: container.id.clone(),
        name: container.name.clone(),
        message: format!("Stopping container {}", container.name),
        grace_seconds: None,
    }
}
