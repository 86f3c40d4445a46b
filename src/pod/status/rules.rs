//! Observed + spec -> `PodStatus`: phase, container states, conditions, addresses.
//!
//! Owns the content of a pod's status.
//!
//! Pure: what it returns depends on its arguments alone.

mod conditions;
mod containers;
mod phase;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::api::pod::{
    ContainerState, ContainerStateTerminated, ContainerStatus, IpHolder, Pod, PodStatus,
};
use crate::model::containers::{is_sidecar, is_terminal};
use crate::model::observed::ObservedPod;
use crate::model::types::{ContainerName, Timestamp};
use crate::pod::network::sort_pod_ips;
use crate::pod::plan::Blocked;
use crate::pod::prober::rules::ProbeResults;
use crate::pod::resources::qos_class;
pub(crate) use conditions::{add_client_conditions, is_client_owned};

/// Reason of a pod that was active for too long.
pub(in crate::pod) const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// Waiting and termination reason of containers whose pod restarts in place.
const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";

/// Upstream's condition of a pod that is ended by an external cause.
pub(in crate::pod) const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The inputs of a status besides the pod and its observation.
#[derive(Clone, Copy, Debug)]
pub(in crate::pod) struct StatusContext<'a> {
    pub now: Timestamp,
    /// For how long the machine has been up.
    pub up: Duration,
    /// The status before this one; after a restart of the agent, the stored one.
    pub previous: Option<&'a PodStatus>,
    /// Restart counts of an earlier life of the pod, of containers that have not started in this one.
    pub earlier_counts: &'a BTreeMap<ContainerName, u32>,
    /// Reason and message of the last failed start per container, removed when one succeeds.
    pub waiting: &'a BTreeMap<ContainerName, (String, String)>,
    /// From the newest plan.
    pub blocked: &'a [Blocked],
    /// Addresses of the node, primary first.
    pub node_ips: &'a [String],
    /// The pod has ended and its containers are stopped.
    pub terminal: bool,
    /// The scheme of container ids, for example `containerd`.
    pub runtime_name: &'a str,
    /// The pod comes from a file or URL: its phase is not changed when it is taken down.
    pub is_static: bool,
    pub probes: &'a ProbeResults,
}

/// The status of `pod`. Times are whole seconds.
#[must_use]
pub(in crate::pod) fn compute_pod_status(
    pod: &Pod,
    observed: &ObservedPod,
    context: &StatusContext<'_>,
) -> PodStatus {
    let now = whole_seconds(context.now);
    let start_time = context.previous.and_then(|previous| previous.start_time).map_or(now, whole_seconds);
    let mut status = PodStatus {
        observed_generation: pod.metadata.generation,
        qos_class: qos_class(pod).as_str().to_owned(),
        start_time: Some(start_time),
        ..PodStatus::default()
    };
    set_addresses(&mut status, pod, observed, context);
    containers::set_container_statuses(&mut status, pod, observed, context);
    set_phase(&mut status, pod, context, start_time);
    conditions::set_conditions(&mut status, pod, observed, context, now);
    // It is kept as long as the pod.
    status.conditions.shrink_to_fit();
    status
}

fn set_phase(status: &mut PodStatus, pod: &Pod, context: &StatusContext<'_>, start_time: Timestamp) {
    let phase = phase::phase(pod, status, context.terminal && !context.is_static, context.probes);
    phase.clone_into(&mut status.phase);
    if let Some(previous) = context.previous {
        if is_terminal(previous) {
            status.phase.clone_from(&previous.phase);
        }
        if status.phase == previous.phase {
            status.reason.clone_from(&previous.reason);
            status.message.clone_from(&previous.message);
        }
    }
    let left = deadline_left(pod, start_time, context.now, context.up);
    if !is_terminal(status) && left == Some(Duration::ZERO) {
        "Failed".clone_into(&mut status.phase);
        DEADLINE_EXCEEDED.clone_into(&mut status.reason);
        "Pod was active on the node longer than the specified deadline".clone_into(&mut status.message);
    }
}

/// The phase is terminal and no container runs: others may take the pod's place.
pub(crate) fn has_ended(status: &PodStatus) -> bool {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    let mut all = all.chain(&status.ephemeral_container_statuses);
    is_terminal(status) && all.all(|container| container.state.running.is_none())
}

/// Hides the terminal phase from clients of the API while containers of the pod still run. Upstream keeps the
/// phase from the API server for as long, because other components act upon it.
pub(crate) fn hide_early_end(status: &mut PodStatus) {
    if !is_terminal(status) || has_ended(status) {
        return;
    }
    let has_begun = status.container_statuses.iter().any(|container| container.state.waiting.is_none());
    (if has_begun { "Running" } else { "Pending" }).clone_into(&mut status.phase);
    status.reason.clear();
    status.message.clear();
    status.conditions.retain(|condition| condition.type_ != DISRUPTION_TARGET);
}

/// The containers that began to wait for their next run since the previous status: each is worth an event.
pub(in crate::pod) fn newly_backing_off<'a>(
    status: &'a PodStatus,
    last: Option<&'a PodStatus>,
) -> impl Iterator<Item = ContainerName> {
    let before = last.into_iter().flat_map(backing_off);
    let before: Vec<&str> = before.collect();
    backing_off(status).filter(move |name| !before.contains(name)).map(ContainerName::from)
}

fn backing_off(status: &PodStatus) -> impl Iterator<Item = &str> {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    let waits = |status: &&ContainerStatus| {
        status.state.waiting.as_ref().is_some_and(|waiting| waiting.reason == "CrashLoopBackOff")
    };
    all.filter(waits).map(|status| status.name.as_str())
}

/// How long the pod may still be active; zero when its deadline has passed, `None` without
/// `activeDeadlineSeconds`. No pod is active for longer than its machine is `up`: a machine that boots in
/// 1970 and sets its clock a minute later must not end every pod with a deadline (the kubelet does).
#[must_use]
pub(in crate::pod) fn deadline_left(
    pod: &Pod,
    start_time: Timestamp,
    now: Timestamp,
    up: Duration,
) -> Option<Duration> {
    let allowed = Duration::from_secs(u64::try_from(pod.spec.active_deadline_seconds?).unwrap_or(0));
    Some(allowed.saturating_sub(now.saturating_since(start_time).min(up)))
}

/// The last status of a pod without containers in the runtime: none may be shown as running (upstream:
/// TerminatePod). A static pod keeps its phase: it may come back under the same name at any time.
#[must_use]
pub(in crate::pod) fn final_status(pod: &Pod, mut status: PodStatus, is_static: bool) -> PodStatus {
    for container in &mut status.container_statuses {
        end(container);
    }
    for container in &mut status.ephemeral_container_statuses {
        if container.state.running.is_some() {
            end(container);
            container.started = None;
        }
    }
    for container in &mut status.init_container_statuses {
        let spec = pod.spec.init_containers.iter().find(|spec| spec.name == container.name);
        let has_run = container.state.running.is_some() || container.last_state.terminated.is_some();
        if spec.is_some_and(is_sidecar) || has_run {
            end(container);
        }
    }
    if !is_static && !is_terminal(&status) {
        "Failed".clone_into(&mut status.phase);
    }
    status
}

/// The last status of a pod that was deleted: nothing of it runs again, whatever its restart policy.
#[must_use]
pub(in crate::pod) fn deleted_status(pod: &Pod, status: PodStatus) -> PodStatus {
    let mut status = final_status(pod, status, true);
    if !is_terminal(&status) {
        let went_well = |container: &ContainerStatus| {
            container.state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0)
        };
        let phase = if status.container_statuses.iter().all(went_well) { "Succeeded" } else { "Failed" };
        phase.clone_into(&mut status.phase);
    }
    status
}

fn end(container: &mut ContainerStatus) {
    if container.state.terminated.is_none() {
        let unknown = unknown_termination("The container could not be located when the pod was terminated");
        container.state = ContainerState { terminated: Some(unknown), ..ContainerState::default() };
        container.ready = false;
        container.started = Some(false);
    }
}

/// The state of a container whose exit was not observed.
fn unknown_termination(message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: 137,
        reason: "ContainerStatusUnknown".to_owned(),
        message: message.to_owned(),
        ..ContainerStateTerminated::default()
    }
}

fn set_addresses(status: &mut PodStatus, pod: &Pod, observed: &ObservedPod, context: &StatusContext<'_>) {
    let holders = |ips: &[String]| ips.iter().map(|ip| IpHolder { ip: ip.clone() }).collect::<Vec<_>>();
    status.host_ips = holders(context.node_ips);
    status.pod_ips = if pod.spec.host_network {
        // A host-network pod has the node's addresses, also on a node without a cluster.
        holders(context.node_ips)
    } else {
        match observed.ready_sandbox().filter(|sandbox| !sandbox.ips.is_empty()) {
            Some(sandbox) => holders(&sort_pod_ips(&sandbox.ips, context.node_ips)),
            // Between two sandboxes, and until the status call, the last known addresses stay.
            None => context.previous.map(|previous| previous.pod_ips.clone()).unwrap_or_default(),
        }
    };
    let first = |ips: &[IpHolder]| ips.first().map(|holder| holder.ip.clone()).unwrap_or_default();
    status.host_ip = first(&status.host_ips);
    status.pod_ip = first(&status.pod_ips);
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_secs(time.as_nanos().div_euclid(1_000_000_000))
}

/// A time that the runtime reports; `None` if it is zero.
fn reported(time: Timestamp) -> Option<Timestamp> {
    if time.is_zero() { None } else { Some(whole_seconds(time)) }
}

/// Whether `new` is equal to `old` for all readers. Computed statuses carry their predecessor's transition
/// times, so only the fractions of seconds that storage drops are left to ignore.
#[must_use]
pub(in crate::pod) fn same_meaning(old: &PodStatus, new: &PodStatus) -> bool {
    let comparable = |status: &PodStatus| {
        let mut status = status.clone();
        status.start_time = status.start_time.map(whole_seconds);
        for condition in &mut status.conditions {
            condition.last_transition_time = condition.last_transition_time.map(whole_seconds);
            condition.last_probe_time = None;
        }
        let regular = status.container_statuses.iter_mut().chain(&mut status.init_container_statuses);
        for container in regular.chain(&mut status.ephemeral_container_statuses) {
            for state in [&mut container.state, &mut container.last_state] {
                if let Some(running) = &mut state.running {
                    running.started_at = running.started_at.map(whole_seconds);
                }
                if let Some(ended) = &mut state.terminated {
                    ended.started_at = ended.started_at.map(whole_seconds);
                    ended.finished_at = ended.finished_at.map(whole_seconds);
                }
            }
        }
        status
    };
    comparable(old) == comparable(new)
}
