//! Whether the node has room for a pod's requests.

use super::{NodeFacts, Rejection};
use crate::devices::allocation::is_extended;
use crate::model::api::pod::{Pod, ResourceList};
use crate::model::api::quantity::Quantity;
use crate::pod::resources::pod_requests;

/// Upstream's order of checks; the other resources follow by name.
const FIRST: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

pub(super) fn check(pod: &Pod, others: &[&Pod], node: &NodeFacts) -> Result<(), Rejection> {
    if let Some(pods) = node.allocatable.get("pods") {
        let used = i64::try_from(others.len()).unwrap_or(i64::MAX);
        if used >= pods.value() {
            return Err(out_of("pods", 1, used, pods.value()));
        }
    }
    let wanted = pod_requests(pod);
    let used = used_by(others);
    let rest = wanted.keys().map(String::as_str).filter(|name| !FIRST.contains(name));
    for name in FIRST.into_iter().chain(rest) {
        // The capacity of a resource without a (registered) plugin is zero.
        let nothing = is_extended(name).then(Quantity::default);
        let capacity = node.allocatable.get(name).copied().or(nothing);
        let (Some(wanted), Some(capacity)) = (wanted.get(name), capacity) else { continue };
        let used = used.get(name).copied().unwrap_or_default();
        if !wanted.is_zero() && used.saturating_add(*wanted) > capacity {
            return Err(out_of(name, amount(name, *wanted), amount(name, used), amount(name, capacity)));
        }
    }
    Ok(())
}

/// What the node lacks to run the pod beside the others: all resources, in the units of upstream's messages.
#[must_use]
pub(crate) fn shortage(pod: &Pod, others: &[&Pod], node: &NodeFacts) -> Vec<(String, i64)> {
    let lacks = |(name, capacity): (&String, &Quantity)| {
        let wanted = requested(pod, name);
        let used = others.iter().fold(0_i64, |sum, other| sum.saturating_add(requested(other, name)));
        let missing = used.saturating_add(wanted).saturating_sub(amount(name, *capacity));
        (wanted > 0 && missing > 0).then(|| (name.clone(), missing))
    };
    node.allocatable.iter().filter_map(lacks).collect()
}

/// What a pod takes of a resource.
#[must_use]
pub(crate) fn requested(pod: &Pod, name: &str) -> i64 {
    match name {
        "pods" => 1,
        name => pod_requests(pod).get(name).map_or(0, |quantity| amount(name, *quantity)),
    }
}

/// Why the node as a whole is too small for the pod, in upstream's words for a resize.
#[must_use]
pub(crate) fn beyond_node(pod: &Pod, node: &NodeFacts) -> Option<String> {
    pod_requests(pod).into_iter().find_map(|(name, wanted)| {
        let capacity = *node.allocatable.get(&name)?;
        let (requested, has) = (amount(&name, wanted), amount(&name, capacity));
        (wanted > capacity).then(|| {
            format!("Node didn't have enough capacity: {name}, requested: {requested}, capacity: {has}")
        })
    })
}

fn used_by(pods: &[&Pod]) -> ResourceList {
    let mut sums = ResourceList::new();
    for pod in pods {
        for (name, asked) in pod_requests(pod) {
            let sum = sums.entry(name).or_default();
            *sum = sum.saturating_add(asked);
        }
    }
    sums
}

/// In the unit of upstream's message: thousandths of a CPU, bytes, pieces.
fn amount(name: &str, quantity: Quantity) -> i64 {
    if name == "cpu" { quantity.milli_value() } else { quantity.value() }
}

fn out_of(resource: &str, requested: i64, used: i64, capacity: i64) -> Rejection {
    let message = format!(
        "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
    );
    Rejection::new(&format!("OutOf{resource}"), message)
}
