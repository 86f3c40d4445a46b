//! The conditions of a pod, in upstream's order.

use super::StatusContext;
use crate::model::api::pod::{ContainerStatus, Pod, PodCondition, PodStatus};
use crate::model::containers::{all_containers, is_sidecar};
use crate::model::observed::ObservedPod;
use crate::model::types::Timestamp;
use crate::pod::plan::triggers;
use crate::pod::restart::may_restart_all;

const RESTARTING_ALL: &str = "AllContainersRestarting";
const OWNED: [&str; 6] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled", RESTARTING_ALL];

/// Set elsewhere by the node, and copied from one status to the next.
const CARRIED: [&str; 3] = ["DisruptionTarget", "PodResizePending", "PodResizeInProgress"];

/// A condition that clients of the API own: this node neither sets nor changes it.
#[must_use]
pub(crate) fn is_client_owned(type_: &str) -> bool {
    !OWNED.contains(&type_) && !CARRIED.contains(&type_)
}

/// Adds the conditions that clients have set, which are those of the wanted pod, to a status.
pub(crate) fn add_client_conditions(status: &mut PodStatus, pod: &Pod) {
    let foreign = pod.status.conditions.iter().filter(|condition| is_client_owned(&condition.type_));
    let mut conditions: Vec<PodCondition> = foreign.cloned().collect();
    conditions.extend(
        std::mem::take(&mut status.conditions).into_iter().filter(|own| !is_client_owned(&own.type_)),
    );
    status.conditions = conditions;
}

/// Status, reason, message.
type ConditionVerdict = (bool, &'static str, String);

pub(super) fn set_conditions(
    status: &mut PodStatus,
    pod: &Pod,
    observed: &ObservedPod,
    context: &StatusContext<'_>,
    now: Timestamp,
) {
    let before = context.previous.map(|previous| previous.conditions.as_slice()).unwrap_or_default();
    let carried = before.iter().filter(|condition| CARRIED.contains(&condition.type_.as_str()));
    status.conditions = carried.cloned().collect();
    add_client_conditions(status, pod);
    let foreign = std::mem::take(&mut status.conditions);
    let containers_ready = containers_ready(pod, status);
    let ready = ready(pod, &containers_ready, &foreign);
    let mut verdicts: Vec<ConditionVerdict> = vec![
        (sandbox_ready(pod, status, observed), "", String::new()),
        initialized(pod, status),
        ready,
        containers_ready,
        (true, "", String::new()),
    ];
    if all_containers(pod).any(|(container, _)| may_restart_all(container)) {
        verdicts.push(restarting_all(pod, status, observed));
    }
    status.conditions = foreign;
    for (type_, (holds, reason, message)) in OWNED.into_iter().zip(verdicts) {
        let text = if holds { "True" } else { "False" };
        let unchanged = before.iter().find(|old| old.type_ == type_ && old.status == text);
        status.conditions.push(PodCondition {
            type_: type_.to_owned(),
            status: text.to_owned(),
            observed_generation: pod.metadata.generation,
            last_transition_time: unchanged.and_then(|old| old.last_transition_time).or(Some(now)),
            reason: reason.to_owned(),
            message,
            ..PodCondition::default()
        });
    }
}

/// The pod has a sandbox with its network, and needs no new one.
fn sandbox_ready(pod: &Pod, status: &PodStatus, observed: &ObservedPod) -> bool {
    let ready = observed.sandboxes.iter().filter(|sandbox| sandbox.ready).count();
    // The status remembers addresses that this observation, made without a status call, may lack.
    let has_network = pod.spec.host_network || !status.pod_ips.is_empty();
    ready == 1 && observed.sandboxes.first().is_some_and(|newest| newest.ready) && has_network
}

fn initialized(pod: &Pod, status: &PodStatus) -> ConditionVerdict {
    let statuses = &status.init_container_statuses;
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in &pod.spec.init_containers {
        match find(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(found) if is_sidecar(container) && found.started == Some(true) => {}
            Some(found) if !is_sidecar(container) && found.ready => {}
            Some(_) => incomplete.push(container.name.as_str()),
        }
    }
    if status.phase == "Succeeded" && unknown.is_empty() {
        return (true, "PodCompleted", String::new());
    }
    if statuses.is_empty() && !unknown.is_empty() {
        return (false, "UnknownContainerStatuses", String::new());
    }
    let started = status.container_statuses.iter().any(|container| {
        let has_ended = container.state.terminated.is_some() || container.last_state.terminated.is_some();
        container.state.running.is_some() || has_ended
    });
    let message = listed(&[("unknown", &unknown), ("incomplete", &incomplete)]);
    if started || message.is_empty() {
        return (true, "", String::new());
    }
    (false, "ContainersNotInitialized", message)
}

fn containers_ready(pod: &Pod, status: &PodStatus) -> ConditionVerdict {
    if status.container_statuses.is_empty() && status.phase != "Failed" {
        return (false, "UnknownContainerStatuses", String::new());
    }
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = pod.spec.init_containers.iter().filter(|container| is_sidecar(container));
    for container in sidecars.chain(&pod.spec.containers) {
        let all = [&status.init_container_statuses, &status.container_statuses];
        match all.into_iter().find_map(|statuses| find(statuses, &container.name)) {
            None => unknown.push(container.name.as_str()),
            Some(found) if !found.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    match status.phase.as_str() {
        "Succeeded" if unknown.is_empty() => return (false, "PodCompleted", String::new()),
        "Failed" if unknown.is_empty() || status.container_statuses.is_empty() => {
            return (false, "PodFailed", String::new());
        }
        _ => {}
    }
    let message = listed(&[("unknown", &unknown), ("unready", &unready)]);
    if message.is_empty() { (true, "", message) } else { (false, "ContainersNotReady", message) }
}

fn ready(pod: &Pod, containers_ready: &ConditionVerdict, foreign: &[PodCondition]) -> ConditionVerdict {
    if !containers_ready.0 {
        return containers_ready.clone();
    }
    let mut problems = Vec::new();
    for gate in &pod.spec.readiness_gates {
        let name = &gate.condition_type;
        match foreign.iter().find(|condition| condition.type_ == *name) {
            None => problems
                .push(format!("corresponding condition of pod readiness gate {name:?} does not exist.")),
            Some(condition) if condition.status != "True" => problems.push(format!(
                "the status of pod readiness gate {name:?} is not \"True\", but {}",
                condition.status
            )),
            Some(_) => {}
        }
    }
    if problems.is_empty() {
        (true, "", String::new())
    } else {
        (false, "ReadinessGatesNotReady", problems.join(", "))
    }
}

/// True from the exit that triggers the restart until the last record is removed.
fn restarting_all(pod: &Pod, status: &PodStatus, observed: &ObservedPod) -> ConditionVerdict {
    match status.phase.as_str() {
        "Succeeded" => (false, "PodCompleted", String::new()),
        "Failed" => (false, "PodFailed", String::new()),
        _ if triggers(pod, observed).next().is_some() => {
            (true, "RestartAllContainersStarted", "container exited with restart policy rule".to_owned())
        }
        _ => (false, "", String::new()),
    }
}

/// The same by the pod's last status.
pub(super) fn is_restarting_all(status: &PodStatus) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == RESTARTING_ALL && condition.status == "True")
}

/// `containers with unready status: [a b], ...`; empty when all lists are.
fn listed(groups: &[(&str, &Vec<&str>)]) -> String {
    let told = groups.iter().filter(|(_, names)| !names.is_empty());
    let told: Vec<String> =
        told.map(|(what, names)| format!("containers with {what} status: [{}]", names.join(" "))).collect();
    told.join(", ")
}

fn find<'a>(statuses: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == name)
}
