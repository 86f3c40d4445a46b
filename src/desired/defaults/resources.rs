//! Defaulting of resource lists: rounding, requests from limits, and the pod's own resources from its
//! containers'.
//!
//! Owns the arithmetic of defaults.

use crate::model::api::pod::{Container, PodSpec, ResourceList, ResourceRequirements};
use crate::model::api::quantity::Quantity;

/// Rounds every amount up to thousandths, as the API stores them.
pub(super) fn round(list: &mut ResourceList) {
    for amount in list.values_mut() {
        *amount = amount.rounded_up_to_milli();
    }
}

/// A limit without a request becomes the request, too.
pub(super) fn default_requests(resources: &mut ResourceRequirements) {
    for (name, limit) in &resources.limits {
        resources.requests.entry(name.clone()).or_insert(*limit);
    }
}

/// Pod-level resources, only if the pod sets any: huge page limits are the sum over the containers; a missing
/// request is the containers' total request, or otherwise the pod's limit.
pub(super) fn default_pod_level(spec: &mut PodSpec) {
    let Some(mut pod) = spec.resources.take() else { return };
    round(&mut pod.limits);
    round(&mut pod.requests);
    let limits = aggregate(spec, |resources| &resources.limits);
    for (name, sum) in limits.into_iter().filter(|(name, _)| name.starts_with("hugepages-")) {
        pod.limits.entry(name).or_insert(sum);
    }
    let requests = aggregate(spec, |resources| &resources.requests);
    for (name, sum) in requests.into_iter().filter(|(name, _)| is_pod_level(name)) {
        pod.requests.entry(name).or_insert(sum);
    }
    default_requests(&mut pod);
    spec.resources = Some(pod);
}

pub(crate) fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// The pod's peak demand: containers and sidecars together, or one init container beside the sidecars started
/// before it.
fn aggregate(spec: &PodSpec, list: impl Fn(&ResourceRequirements) -> &ResourceList) -> ResourceList {
    let mut sidecars = ResourceList::new();
    let mut peak = ResourceList::new();
    for container in &spec.init_containers {
        if is_sidecar(container) {
            add(&mut sidecars, list(&container.resources));
            raise(&mut peak, &sidecars);
        } else {
            let mut moment = sidecars.clone();
            add(&mut moment, list(&container.resources));
            raise(&mut peak, &moment);
        }
    }
    let mut steady = sidecars;
    for container in &spec.containers {
        add(&mut steady, list(&container.resources));
    }
    raise(&mut peak, &steady);
    peak
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn add(total: &mut ResourceList, more: &ResourceList) {
    for (name, amount) in more {
        let sum = total.get(name).map_or(*amount, |before| before.saturating_add(*amount));
        total.insert(name.clone(), sum);
    }
}

fn raise(peak: &mut ResourceList, moment: &ResourceList) {
    for (name, amount) in moment {
        let before = peak.entry(name.clone()).or_insert_with(|| Quantity::from_units(0));
        if *before < *amount {
            *before = *amount;
        }
    }
}
