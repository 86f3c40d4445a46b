//! Whether a pod may run on this node beside the others: upstream's order, reasons and texts.
//!
//! Owns the decision and the order of the waiting pods.
//!
//! Pure: what it returns depends on its arguments alone.

pub(crate) mod affinity;
mod fit;
mod sysctl;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::devices::rules::{NOT_ALLOWED, check_allowed};
use crate::managers::AdmissionRefusal;
use crate::managers::ledger::{AFFINITY, SMT, UNEXPECTED};
use crate::model::api::pod::{Container, Pod, PodCondition, PodStatus, ResourceList, StringMap};
use crate::model::containers::is_sidecar;
use crate::model::disruption::{EVICTED, Pressure};
use crate::model::node_changes::{Taint, is_evicted_by, unschedulable_reason};
use crate::model::ordered::Ordered as _;
use crate::model::provenance::{first_seen, is_of_cluster};
use crate::model::types::{PodUid, Timestamp};
use crate::pod::resources::{QosClass, is_critical, is_static, priority, qos_class};

pub(crate) use fit::{beyond_node, requested, shortage};

/// Upstream's `SupplementalGroupsPolicy` that a runtime has to support.
const STRICT: &str = "Strict";
/// The machine shuts down.
const NODE_SHUTDOWN: &str = "NodeShutdown";
const OS_LABEL: &str = "kubernetes.io/os";
const OS: &str = "linux";
/// Prefix of the annotations that chose AppArmor profiles before the field existed.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Prefix of the status message of a rejected pod; run-once and users recognise it by this.
pub(in crate::pod) const REJECTED_PREFIX: &str = "Pod was rejected: ";

/// Reason for a pod that a scheduler would not place.
const UNSCHEDULABLE: &str = "Unschedulable";
const POD_SCHEDULED: &str = "PodScheduled";
/// Reason of its event.
const FAILED_SCHEDULING: &str = "FailedScheduling";

/// Why a pod may not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Upstream's reason: `OutOfcpu`, `NodePorts`...
    pub reason: String,
    /// Upstream's text, without `Pod was rejected: `.
    pub message: String,
}

impl Rejection {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    /// The resource managers or a device plugin had not what an admitted pod asks for.
    #[must_use]
    pub(in crate::pod) fn of_allocation(refusal: AdmissionRefusal) -> Self {
        Self { reason: refusal.reason.to_owned(), message: refusal.message }
    }

    /// The status shows this rejection.
    #[must_use]
    pub(in crate::pod) fn is_in(&self, status: &PodStatus) -> bool {
        status.reason == self.reason && status.message == format!("{REJECTED_PREFIX}{}", self.message)
    }

    #[must_use]
    pub(in crate::pod) fn event_reason(&self) -> &str {
        if self.reason == UNSCHEDULABLE { FAILED_SCHEDULING } else { &self.reason }
    }
}

/// The facts about the node that decide which pods may run on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// `metadata.name` of the node.
    pub name: String,
    /// Labels of the node, well-known ones included.
    pub labels: StringMap,
    /// What all pods together may request: `cpu`, `memory`, `pods`... A resource that is not listed is not
    /// counted.
    pub allocatable: ResourceList,
    /// Major and minor version of the kernel.
    pub kernel: (u32, u32),
    /// `allowedUnsafeSysctls`: names, or prefixes that end in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// `--allowed-devices`: paths and CDI names, in which `*` stands for anything.
    pub allowed_devices: Vec<String>,
    /// The kernel enforces AppArmor profiles.
    pub apparmor: bool,
    /// The `runtimeClassName`s with which pods can have user namespaces; the empty name is the default
    /// handler. `None` until the runtime has reported its handlers.
    pub user_namespaces: Option<BTreeSet<String>>,
    /// The runtime honours `supplementalGroupsPolicy: Strict`; `None` until it has reported its features.
    pub supplemental_groups_policy: Option<bool>,
    pub pressure: BTreeSet<Pressure>,
    pub is_shutting_down: bool,
    /// TCP ports that the agent itself serves.
    pub agent_ports: Vec<OwnPort>,
    /// The node accepts no more pods of the API (`kubectl cordon`).
    pub unschedulable: bool,
    /// Pods of the API that do not tolerate these are not admitted.
    pub taints: Vec<Taint>,
    /// `cpuManagerPolicy: static` and `memoryManagerPolicy: Static`.
    pub static_policies: (bool, bool),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPort {
    pub address: String,
    pub port: i32,
    pub setting: &'static str,
}

/// Labels every node has, and those the configuration adds. `arch` is Go's word for it.
#[must_use]
pub fn node_labels(hostname: &str, arch: &str, configured: &StringMap) -> StringMap {
    let well_known = [
        ("beta.kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", OS),
        ("kubernetes.io/arch", arch),
        ("kubernetes.io/hostname", hostname),
        (OS_LABEL, OS),
    ];
    let mut labels: StringMap =
        well_known.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).into_map();
    labels.extend(configured.clone());
    labels
}

/// Go's name of an architecture, as images and node labels have it.
#[must_use]
pub(crate) fn go_arch(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Whether a pod that has no place yet may get one: the checks of a scheduler. A pod of the cluster had its scheduler, or
/// was bound without one: only taints that end pods keep it away, as upstream.
pub(in crate::pod) fn schedule(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    if is_of_cluster(pod) {
        let why = "node(s) had taints that the pod didn't tolerate";
        let is_kept_away = is_evicted_by(pod, &node.taints);
        return if is_kept_away { Err(failed_predicate("TaintToleration", why)) } else { Ok(()) };
    }
    let away = unschedulable_reason(pod, node.unschedulable, &node.taints);
    away.map_or(Ok(()), |message| Err(Rejection::new(UNSCHEDULABLE, message)))
}

/// Whether `pod` may run beside `others`, the admitted pods without itself.
pub fn admit(pod: &Pod, others: &[&Pod], node: &NodeFacts) -> Result<(), Rejection> {
    check_pressure(pod, node)?;
    sysctl::check(pod, node)?;
    check_os(pod, node)?;
    check_supplemental_groups(pod, node)?;
    fit::check(pod, others, node)?;
    affinity::check(pod, node)?;
    check_own_ports(pod, &node.agent_ports)?;
    check_ports(pod, others)?;
    check_apparmor(pod, node)?;
    check_user_namespace(pod, node)?;
    check_allowed(pod, &node.allowed_devices).map_err(|message| Rejection::new(NOT_ALLOWED, message))?;
    check_shutdown(node)
}

fn check_shutdown(node: &NodeFacts) -> Result<(), Rejection> {
    if node.is_shutting_down {
        return Err(Rejection::new(NODE_SHUTDOWN, "Pod was rejected as the node is shutting down."));
    }
    Ok(())
}

/// The pod can be admitted only after the runtime has reported its features.
#[must_use]
pub(in crate::pod) fn needs_runtime_features(pod: &Pod) -> bool {
    pod.spec.host_users == Some(false) || wants_strict_groups(pod)
}

/// Upstream's eviction handler: critical pods are always admitted; under memory pressure alone, also all pods
/// that request memory or tolerate it.
fn check_pressure(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    let only_memory = node.pressure.iter().eq(&[Pressure::Memory]);
    let may = || only_memory && (qos_class(pod) != QosClass::BestEffort || tolerates_memory_pressure(pod));
    if node.pressure.is_empty() || is_critical(pod) || may() {
        return Ok(());
    }
    let conditions: Vec<&str> = node.pressure.iter().map(|pressure| pressure.condition()).collect();
    Err(Rejection::new(EVICTED, format!("The node had condition: [{}]. ", conditions.join(" "))))
}

fn tolerates_memory_pressure(pod: &Pod) -> bool {
    pod.spec.tolerations.iter().any(|toleration| {
        let fits = |own: &str, taint: &str| own.is_empty() || own == taint;
        let exists = toleration.operator == "Exists";
        fits(&toleration.effect, "NoSchedule")
            && (toleration.key == "node.kubernetes.io/memory-pressure" || toleration.key.is_empty() && exists)
            && (exists || toleration.value.is_empty())
    })
}

fn check_os(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    if pod.spec.node_selector.get(OS_LABEL).is_some_and(|wanted| node.labels.get(OS_LABEL) != Some(wanted)) {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(Rejection::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    if pod.spec.os.as_ref().is_some_and(|os| os.name != OS) {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Rejection::new("PodOSNotSupported", message));
    }
    Ok(())
}

fn wants_strict_groups(pod: &Pod) -> bool {
    let security = pod.spec.security_context.as_ref();
    security.is_some_and(|security| security.supplemental_groups_policy.as_deref() == Some(STRICT))
}

fn check_supplemental_groups(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    if wants_strict_groups(pod) && node.supplemental_groups_policy == Some(false) {
        let message = format!("SupplementalGroupsPolicy={STRICT} is not supported in this node");
        return Err(Rejection::new("SupplementalGroupsPolicyNotSupported", message));
    }
    Ok(())
}

/// Address, protocol and number of a port of the node.
type HostPort<'a> = (&'a str, &'a str, i32);

const ANY_ADDRESS: &str = "0.0.0.0";

/// Whether a connection to one address may also reach the other.
#[must_use]
pub(in crate::pod) fn addresses_overlap(one: &str, other: &str) -> bool {
    let is_any = |address: &str| matches!(address, "" | ANY_ADDRESS | "::");
    is_any(one) || is_any(other) || one == other
}

/// A pod on a port of the agent would answer in its place, and receive the certificates and tokens of its
/// clients.
fn check_own_ports(pod: &Pod, own: &[OwnPort]) -> Result<(), Rejection> {
    let taken = |own: &&OwnPort| {
        host_ports(pod).any(|(address, protocol, number)| {
            protocol == "TCP" && number == own.port && addresses_overlap(address, &own.address)
        })
    };
    let Some(OwnPort { port, setting, .. }) = own.iter().find(taken) else { return Ok(()) };
    let why = format!(
        "host port {port}/TCP is used by the agent ({setting}); use another hostPort, or set {setting} to \
         another port"
    );
    Err(failed_predicate("NodePorts", &why))
}

/// A port of the node that the pod takes for itself: `80/TCP`. The ports of a pod on the host's network are the node's.
#[must_use]
pub(crate) fn exclusive_port(pod: &Pod) -> Option<String> {
    let own = pod.spec.containers.iter().flat_map(|container| &container.ports).find_map(|port| {
        let number = if pod.spec.host_network { port.container_port } else { port.host_port };
        let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
        (number > 0).then(|| format!("{number}/{protocol}"))
    });
    own.or_else(|| host_ports(pod).next().map(|(_, protocol, port)| format!("{port}/{protocol}")))
}

/// Whether a daemon may be started on this node, and whether one that runs may stay.
#[must_use]
pub(crate) fn daemon_placement(pod: &Pod, node: &NodeFacts) -> (bool, bool) {
    let fits = affinity::check(pod, node).is_ok();
    let is_open = unschedulable_reason(pod, node.unschedulable, &node.taints).is_none();
    (fits && is_open, fits && !is_evicted_by(pod, &node.taints))
}

fn host_ports(pod: &Pod) -> impl Iterator<Item = HostPort<'_>> {
    let sidecars = pod.spec.init_containers.iter().filter(|container| is_sidecar(container));
    sidecars.chain(&pod.spec.containers).flat_map(|container| &container.ports).filter_map(|port| {
        let address = if port.host_ip.is_empty() { ANY_ADDRESS } else { &port.host_ip };
        let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
        (port.host_port > 0).then_some((address, protocol, port.host_port))
    })
}

fn check_ports(pod: &Pod, others: &[&Pod]) -> Result<(), Rejection> {
    let used: BTreeSet<HostPort<'_>> = others.iter().flat_map(|other| host_ports(other)).into_set();
    let clashes = |(address, protocol, number): HostPort<'_>| {
        used.iter().any(|(other_address, other_protocol, other_number)| {
            addresses_overlap(address, other_address)
                && protocol == *other_protocol
                && number == *other_number
        })
    };
    if host_ports(pod).any(clashes) {
        return Err(failed_predicate(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    Ok(())
}

fn check_apparmor(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    if !node.apparmor && wants_apparmor(pod) {
        return Err(Rejection::new(
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ));
    }
    Ok(())
}

fn wants_apparmor(pod: &Pod) -> bool {
    let confined = |type_: &str| type_ != "Unconfined";
    let of_pod = pod.spec.security_context.as_ref().and_then(|security| security.app_armor_profile.as_ref());
    let of_container = |container: &Container| {
        let security = container.security_context.as_ref();
        let profile = security.and_then(|security| security.app_armor_profile.as_ref());
        profile.is_some_and(|profile| confined(&profile.type_))
    };
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let by_annotation = pod
        .metadata
        .annotations
        .iter()
        .any(|(name, profile)| name.starts_with(APPARMOR_ANNOTATION) && profile != "unconfined");
    of_pod.is_some_and(|profile| confined(&profile.type_))
        || containers.chain(&pod.spec.ephemeral_containers).any(of_container)
        || by_annotation
}

fn check_user_namespace(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    let handler = pod.spec.runtime_class_name.as_deref().unwrap_or_default();
    let unable = node.user_namespaces.as_ref().is_some_and(|able| !able.contains(handler));
    if pod.spec.host_users == Some(false) && unable {
        let message = format!("runtime handler {handler:?} does not support user namespaces");
        return Err(Rejection::new("PodFeatureUnsupported", message));
    }
    Ok(())
}

fn failed_predicate(name: &str, why: &str) -> Rejection {
    Rejection::new(name, format!("Predicate {name} failed: {why}"))
}

/// Sort key for pods that wait for room: higher priority first, then the one first seen earlier.
#[must_use]
pub(in crate::pod) fn waiting_order(pod: &Pod) -> (Reverse<i32>, Option<Timestamp>, PodUid) {
    (Reverse(priority(pod)), first_seen(pod), pod.metadata.uid.clone())
}

/// Prefixes of reasons that can pass when another pod ends or the node recovers. On a cluster a scheduler
/// keeps such pods away meanwhile, so that no kubelet rejects them.
const PASSING: [&str; 5] = ["OutOf", "NodePorts", EVICTED, NODE_SHUTDOWN, UNSCHEDULABLE];
/// Prefixes of reasons that can pass when the runtime reports other features, a device plugin answers
/// differently, or CPUs become free. No scheduler waits for that.
const PASSING_FOR_STATIC: [&str; 5] =
    ["SupplementalGroupsPolicyNotSupported", "PodFeatureUnsupported", UNEXPECTED, SMT, AFFINITY];

/// The pod's phase after a rejection: one whose reason can pass waits, and is tried again. Any other has
/// failed, as upstream. A pod of the cluster has failed in any case, since a controller replaces it; only one that
/// `had_place` before a restart waits for its plugins and its runtime.
#[must_use]
pub(in crate::pod) fn may_wait(pod: &Pod, rejection: &Rejection, had_place: bool) -> bool {
    let is_one_of = |reasons: &[&str]| reasons.iter().any(|known| rejection.reason.starts_with(known));
    if is_of_cluster(pod) {
        return had_place && (is_one_of(&PASSING) || is_one_of(&PASSING_FOR_STATIC));
    }
    is_one_of(&PASSING) || is_static(pod) && is_one_of(&PASSING_FOR_STATIC)
}

/// The status of a pod that was rejected: `Pending` while it waits, else `Failed`. A pod that the runtime
/// holds nothing of has no container statuses, as upstream.
#[must_use]
pub(in crate::pod) fn rejected_status(
    mut status: PodStatus,
    holds_containers: bool,
    rejection: &Rejection,
    waits: bool,
) -> PodStatus {
    (if waits { "Pending" } else { "Failed" }).clone_into(&mut status.phase);
    status.reason.clone_from(&rejection.reason);
    status.message = format!("{REJECTED_PREFIX}{}", rejection.message);
    if rejection.reason == UNSCHEDULABLE {
        for condition in status.conditions.iter_mut().filter(|condition| condition.type_ == POD_SCHEDULED) {
            "False".clone_into(&mut condition.status);
            condition.reason.clone_from(&rejection.reason);
            condition.message.clone_from(&rejection.message);
        }
    }
    if !holds_containers {
        status.container_statuses.clear();
        status.init_container_statuses.clear();
    }
    let is_ready =
        |condition: &&mut PodCondition| ["Ready", "ContainersReady"].contains(&condition.type_.as_str());
    for condition in status.conditions.iter_mut().filter(is_ready).filter(|_| !waits) {
        "PodFailed".clone_into(&mut condition.reason);
        condition.message.clear();
    }
    status
}

/// A pod that is still rejected keeps the transition time of its last status.
pub(in crate::pod) fn keep_transition(status: &mut PodStatus, last: Option<&PodStatus>) {
    let away = |condition: &&PodCondition| condition.type_ == POD_SCHEDULED && condition.status == "False";
    let since = last.and_then(|last| last.conditions.iter().find(away)?.last_transition_time);
    let now = status.conditions.iter_mut().find(|condition| away(&&**condition));
    if let (Some(now), Some(since)) = (now, since) {
        now.last_transition_time = Some(since);
    }
}

/// The pod was rejected, by its status: it waits, or has failed.
#[must_use]
pub(crate) fn is_rejected(status: &PodStatus) -> bool {
    matches!(status.phase.as_str(), "Pending" | "Failed") && status.message.starts_with(REJECTED_PREFIX)
}

/// The pod has failed without ever having had containers; this overrides the computed container statuses.
#[must_use]
pub(in crate::pod) fn failed_before_start(status: &PodStatus) -> bool {
    status.phase == "Failed" && is_rejected(status) && status.container_statuses.is_empty()
}

/// The pod was rejected in an earlier process, for a reason that may not hold for another one. A pod from a
/// file or a URL is admitted or rejected once per process (upstream), since nothing else recreates it. One of
/// the API stays failed.
#[must_use]
pub(in crate::pod) fn may_be_readmitted(pod: &Pod, remembered: &PodStatus) -> bool {
    is_static(pod) && remembered.phase == "Failed" && is_rejected(remembered)
}

/// The pod waits for room and has never run: its start time is not set.
#[must_use]
pub(in crate::pod) fn has_never_run(status: &PodStatus) -> bool {
    status.phase == "Pending" && is_rejected(status) && status.container_statuses.is_empty()
}

/// The pod held a place when the status was written: the runtime knew a container of it, and it had not
/// ended.
#[must_use]
pub(in crate::pod) fn was_admitted(status: &PodStatus) -> bool {
    let ended = matches!(status.phase.as_str(), "Succeeded" | "Failed");
    let mut containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    !ended && containers.any(|container| !container.container_id.is_empty())
}
