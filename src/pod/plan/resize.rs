//! In-place resize: the resources that running containers were given, the desired ones, and the steps between
//! them.
//!
//! Owns the steps, the conditions and the messages of their events.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Action, PlanContext, ResizeContainer, StopContainer};
use crate::model::api::decode::decode;
use crate::model::api::pod::{Container, Pod, PodCondition, PodStatus, ResourceList, ResourceRequirements};
use crate::model::api::quantity::Quantity;
use crate::model::containers::is_sidecar;
use crate::model::labels::CONTAINER_RESOURCES;
use crate::model::observed::{ContainerStateKind, ObservedContainer, ObservedPod};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::types::{ContainerId, Timestamp};
use crate::pod::resources::{QosClass, qos_class};

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";
/// Resources that can be changed in place.
const RESIZABLE: [&str; 2] = ["memory", "cpu"];

/// The resources that containers were given: at creation, or by a resize since.
pub(crate) type Actuated = BTreeMap<ContainerId, ResourceRequirements>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingResize {
    /// `Deferred` when there may be room later, `Infeasible` when there never will be.
    pub reason: &'static str,
    pub message: String,
}

impl PendingResize {
    /// There is no room now.
    #[must_use]
    pub(in crate::pod) fn deferred(message: String) -> Self {
        Self { reason: "Deferred", message }
    }

    /// It cannot be done on this node or not at all.
    #[must_use]
    pub(in crate::pod) fn infeasible(message: String) -> Self {
        Self { reason: "Infeasible", message }
    }
}

/// The value of the annotation with the resources at a container's creation.
#[must_use]
pub(crate) fn annotation(container: &Container) -> String {
    let resources = &container.resources;
    json!({"limits": resizable(&resources.limits), "requests": resizable(&resources.requests)}).to_string()
}

fn resizable(list: &ResourceList) -> ResourceList {
    list.iter()
        .filter(|(name, _)| RESIZABLE.contains(&name.as_str()))
        .map(|(name, amount)| (name.clone(), *amount))
        .into_map()
}

/// The resources that a container was given, as far as known: its last status includes resizes, its
/// annotation only the creation.
#[must_use]
pub(crate) fn remembered(
    record: &ObservedContainer,
    last: Option<&PodStatus>,
) -> Option<ResourceRequirements> {
    let statuses =
        last.into_iter().flat_map(|last| last.init_container_statuses.iter().chain(&last.container_statuses));
    let is_its_own = |id: &str| id.split_once("://").is_some_and(|(_, id)| id == record.id.as_str());
    let told = statuses
        .filter(|status| is_its_own(&status.container_id))
        .find_map(|status| status.resources.clone());
    let made = || {
        let text = record.annotations.get(CONTAINER_RESOURCES)?;
        decode(serde_json::from_str(text).ok()?).ok().map(|decoded| decoded.object)
    };
    told.or_else(made)
}

/// The pod with the resources that the newest instance of each container was given.
#[must_use]
pub(in crate::pod) fn as_actuated(pod: &Pod, observed: &ObservedPod, actuated: &Actuated) -> Pod {
    let mut pod = pod.clone();
    let spec = &mut pod.spec;
    for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
        let newest = observed.container(&container.name.as_str().into());
        if let Some(given) = newest.and_then(|record| actuated.get(&record.id)) {
            for (own, given) in [
                (&mut container.resources.limits, &given.limits),
                (&mut container.resources.requests, &given.requests),
            ] {
                own.retain(|name, _| !RESIZABLE.contains(&name.as_str()));
                own.extend(resizable(given));
            }
        }
    }
    pod
}

/// The pod with the larger of the current and the desired resources of each running container.
#[must_use]
pub(crate) fn widest(allocated: &Pod, observed: &ObservedPod, actuated: &Actuated) -> Pod {
    let of_running = observed.live_containers().filter_map(|record| actuated.get_key_value(&record.id));
    let actuated = of_running.map(|(id, given)| (id.clone(), given.clone())).into_map();
    let mut pod = as_actuated(allocated, observed, &actuated);
    let spec = &mut pod.spec;
    let wanted = allocated.spec.init_containers.iter().chain(&allocated.spec.containers);
    for (own, wanted) in spec.init_containers.iter_mut().chain(&mut spec.containers).zip(wanted) {
        for (own, wanted) in [
            (&mut own.resources.limits, &wanted.resources.limits),
            (&mut own.resources.requests, &wanted.resources.requests),
        ] {
            for (name, amount) in own {
                *amount = wanted.get(name).map_or(*amount, |wanted| *wanted.max(amount));
            }
        }
    }
    pod
}

/// Why the running pod can never be resized as wanted. The texts are the API's. `static_policies`: those of the CPU and
/// the memory manager, whose pods keep what they were given.
#[must_use]
pub(crate) fn infeasible(current: &Pod, wanted: &Pod, static_policies: (bool, bool)) -> Option<String> {
    if qos_class(current) != qos_class(wanted) {
        return Some("Pod QOS Class may not change as a result of resizing".to_owned());
    }
    let managers =
        [("cpu", "CPU", "static", static_policies.0), ("memory", "Memory", "Static", static_policies.1)];
    for (resource, manager, policy, is_static) in managers {
        if is_static
            && qos_class(wanted) == QosClass::Guaranteed
            && requests_differ(current, wanted, resource)
        {
            return Some(format!(
                "Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy \"{policy}\""
            ));
        }
    }
    let containers = |pod: &Pod| -> Vec<ResourceRequirements> {
        let spec = &pod.spec;
        spec.init_containers.iter().chain(&spec.containers).map(|each| each.resources.clone()).collect()
    };
    let lost = |before: &ResourceList, after: &ResourceList| {
        RESIZABLE.iter().any(|name| before.contains_key(*name) && !after.contains_key(*name))
    };
    containers(current).iter().zip(&containers(wanted)).find_map(|(before, after)| {
        if lost(&before.limits, &after.limits) {
            Some("resource limits cannot be removed".to_owned())
        } else if lost(&before.requests, &after.requests) {
            Some("resource requests cannot be removed".to_owned())
        } else {
            None
        }
    })
}

fn requests_differ(current: &Pod, wanted: &Pod, resource: &str) -> bool {
    let requests = |pod: &Pod| -> Vec<Option<Quantity>> {
        let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        all.map(|each| each.resources.requests.get(resource).copied()).collect()
    };
    requests(current) != requests(wanted)
}

/// A running container and its current resources, if they differ from the desired ones.
struct Change<'a> {
    container: &'a Container,
    record: &'a ObservedContainer,
    given: &'a ResourceRequirements,
}

impl Change<'_> {
    fn affects(&self, resource: &str) -> bool {
        let wanted = &self.container.resources;
        self.given.limits.get(resource) != wanted.limits.get(resource)
            || self.given.requests.get(resource) != wanted.requests.get(resource)
    }

    fn needs_restart(&self) -> bool {
        self.container
            .resize_policy
            .iter()
            .any(|policy| policy.restart_policy == "RestartContainer" && self.affects(&policy.resource_name))
    }

    fn grows(&self, resource: &str) -> bool {
        match (self.given.limits.get(resource), self.container.resources.limits.get(resource)) {
            (Some(given), Some(wanted)) => given < wanted,
            (given, _) => given.is_some(),
        }
    }
}

fn change<'a>(
    container: &'a Container,
    observed: &'a ObservedPod,
    actuated: &'a Actuated,
) -> Option<Change<'a>> {
    let record = observed.container(&container.name.as_str().into())?;
    let given = actuated.get(&record.id).filter(|_| record.state == ContainerStateKind::Running)?;
    let change = Change { container, record, given };
    RESIZABLE.iter().any(|resource| change.affects(resource)).then_some(change)
}

fn changes<'a>(
    pod: &'a Pod,
    observed: &'a ObservedPod,
    actuated: &'a Actuated,
) -> impl Iterator<Item = Change<'a>> {
    let sidecars = pod.spec.init_containers.iter().filter(|container| is_sidecar(container));
    sidecars.chain(&pod.spec.containers).filter_map(|container| change(container, observed, actuated))
}

/// The message of the event when a running container must be restarted for its new resources.
pub(super) fn needs_restart(
    container: &Container,
    observed: &ObservedPod,
    actuated: &Actuated,
) -> Option<String> {
    let change = change(container, observed, actuated)?;
    change.needs_restart().then(|| format!("Container {} resize requires restart", container.name))
}

/// The steps of all resizes of a pod: memory before cpu, and of each resource first what shrinks, then what
/// grows. A sidecar that needs a restart is stopped; it is started again like any that ended.
pub(super) fn steps(pod: &Pod, observed: &ObservedPod, context: &PlanContext) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut in_place: Vec<(Change<'_>, ResourceRequirements)> = Vec::new();
    for change in changes(pod, observed, &context.actuated) {
        if !change.needs_restart() {
            let given = change.given.clone();
            in_place.push((change, given));
        } else if pod.spec.init_containers.iter().any(|init| init.name == change.container.name) {
            let stop = StopContainer {
                id: change.record.id.clone(),
                name: change.record.name.clone(),
                message: format!("Container {} resize requires restart", change.container.name),
                grace_seconds: None,
            };
            let grace_seconds = pod.termination_grace_period_seconds();
            actions.push(Action::StopContainers { groups: vec![vec![stop]], grace_seconds });
        }
    }
    for resource in RESIZABLE {
        in_place.order_by_key(|(change, _)| change.grows(resource));
        for (change, given) in in_place.iter_mut().filter(|(change, _)| change.affects(resource)) {
            let wanted = &change.container.resources;
            for (own, new) in [(&mut given.limits, &wanted.limits), (&mut given.requests, &wanted.requests)] {
                own.remove(resource);
                own.extend(new.get_key_value(resource).map(|(name, amount)| (name.clone(), *amount)));
            }
            actions.push(Action::ResizeContainer(ResizeContainer {
                id: change.record.id.clone(),
                name: change.record.name.clone(),
                resource,
                resources: given.clone(),
            }));
        }
    }
    actions
}

/// The inputs for the resize fields of a status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResizeView<'a> {
    /// The pod with the resources that there is room for.
    pub allocated: &'a Pod,
    /// The resources that containers were given.
    pub actuated: &'a Actuated,
    pub pending: Option<&'a PendingResize>,
    /// Why the last try to resize failed.
    pub error: Option<&'a str>,
    pub previous: Option<&'a PodStatus>,
    pub now: Timestamp,
}

/// Writes allocated and actuated resources and both conditions into a status.
pub(crate) fn show(status: &mut PodStatus, observed: &ObservedPod, view: &ResizeView<'_>) {
    let spec = &view.allocated.spec;
    for container in spec.init_containers.iter().chain(&spec.containers) {
        let own = status.init_container_statuses.iter_mut().chain(&mut status.container_statuses);
        let Some(shown) = own.into_iter().find(|shown| shown.name == container.name) else { continue };
        let newest = observed.container(&container.name.as_str().into());
        let Some(given) = newest.and_then(|record| view.actuated.get(&record.id)) else { continue };
        shown.allocated_resources.clone_from(&container.resources.requests);
        if let Some(resources) = &mut shown.resources {
            for (own, given) in
                [(&mut resources.limits, &given.limits), (&mut resources.requests, &given.requests)]
            {
                own.retain(|name, _| !RESIZABLE.contains(&name.as_str()));
                own.extend(resizable(given));
            }
        }
    }
    status.conditions.retain(|condition| ![PENDING, IN_PROGRESS].contains(&condition.type_.as_str()));
    let in_progress = changes(view.allocated, observed, view.actuated).next().is_some();
    let error = view.error.unwrap_or_default();
    let error_reason = if error.is_empty() { "" } else { "Error" };
    let told = [
        view.pending.map(|pending| (PENDING, pending.reason, pending.message.as_str())),
        in_progress.then_some((IN_PROGRESS, error_reason, error)),
    ];
    let conditions: Vec<PodCondition> = told
        .into_iter()
        .flatten()
        .map(|(type_, reason, message)| {
            let before = view.previous.and_then(|previous| condition(previous, type_));
            PodCondition {
                type_: type_.to_owned(),
                status: "True".to_owned(),
                observed_generation: view.allocated.metadata.generation,
                last_transition_time: before
                    .and_then(|before| before.last_transition_time)
                    .or(Some(view.now)),
                reason: reason.to_owned(),
                message: message.to_owned(),
                ..PodCondition::default()
            }
        })
        .collect();
    status.conditions.splice(0..0, conditions);
}

fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// An event about a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResizeNews {
    /// A `Warning` rather than `Normal`.
    pub warning: bool,
    /// `ResizeStarted`, `ResizeCompleted`, `ResizeDeferred`, `ResizeInfeasible` or `ResizeError`.
    pub reason: String,
    pub message: String,
}

/// The events for the changes between two statuses. `wanted` is the pod of the manifest, `allocated` the one
/// there is room for.
#[must_use]
pub(crate) fn events_between(
    before: &PodStatus,
    after: &PodStatus,
    wanted: &Pod,
    allocated: &Pod,
) -> Vec<ResizeNews> {
    let mut news = Vec::new();
    let mut tell = |warning, reason: &str, what: &str, pod: &Pod, error: &str| {
        let message = format!("Pod resize {what}: {}", summary(pod, error));
        news.push(ResizeNews { warning, reason: reason.to_owned(), message });
    };
    if let Some(pending) = condition(after, PENDING) {
        let told = condition(before, PENDING)
            .is_some_and(|before| (&before.reason, &before.message) == (&pending.reason, &pending.message));
        if !told {
            tell(true, &format!("Resize{}", pending.reason), &pending.reason, wanted, &pending.message);
        }
    }
    match (condition(before, IN_PROGRESS), condition(after, IN_PROGRESS)) {
        (None, Some(_)) => tell(false, "ResizeStarted", "started", allocated, ""),
        (Some(_), None) => tell(false, "ResizeCompleted", "completed", allocated, ""),
        (Some(before), Some(after)) if !after.message.is_empty() && before.message != after.message => {
            tell(true, "ResizeError", "error", allocated, &after.message);
        }
        _ => {}
    }
    news
}

/// Upstream's JSON: fields in this order, empty ones left out.
fn summary(pod: &Pod, error: &str) -> String {
    let list = |containers: Vec<&Container>| {
        let entries = containers.into_iter().map(|container| {
            let resources = serde_json::to_string(&container.resources).unwrap_or_default();
            format!("{{\"name\":{},\"resources\":{resources}}}", json!(container.name))
        });
        entries.collect::<Vec<_>>().join(",")
    };
    let spec = &pod.spec;
    let init = list(spec.init_containers.iter().filter(|container| is_sidecar(container)).collect());
    let regular = list(spec.containers.iter().collect());
    let mut parts = Vec::new();
    for (name, entries) in [("initContainers", init), ("containers", regular)] {
        if !entries.is_empty() {
            parts.push(format!("\"{name}\":[{entries}]"));
        }
    }
    parts.push(format!("\"generation\":{}", pod.metadata.generation));
    if !error.is_empty() {
        parts.push(format!("\"error\":{}", json!(error)));
    }
    format!("{{{}}}", parts.join(","))
}

#[cfg(test)]
mod tests;
