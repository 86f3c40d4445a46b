//! Rules of resource requirements: names, signs, requests against limits, huge pages, pod-level resources.

use crate::desired::defaults::is_pod_level;
use crate::model::api::pod::{PodSpec, ResourceList, ResourceRequirements};
use crate::model::api::quantity::Quantity;
use crate::model::field_error::{Errors, Path};
use crate::model::names;

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

pub(super) fn validate_list(list: &ResourceList, at: &Path<'_>, errors: &mut Errors) {
    for (name, amount) in list {
        let amount_at = at.key(name);
        resource_name(name, &amount_at, errors);
        if amount.is_negative() {
            errors.invalid(&amount_at, &amount.to_string(), NOT_NEGATIVE);
        }
        if !is_overcommittable(name) && !is_whole(*amount) {
            errors.invalid(&amount_at, &amount.to_string(), "must be an integer");
        }
    }
}

fn resource_name(name: &str, at: &Path<'_>, errors: &mut Errors) {
    let complaints = names::qualified_name(name);
    if complaints.is_empty() && !name.contains('/') && !is_standard(name) {
        errors.invalid(at, name, "must be a standard resource for containers");
    }
    errors.all(at, name, complaints);
}

fn is_standard(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// Only these may have a request below their limit; huge pages and devices are allocated whole.
fn is_overcommittable(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
}

fn is_whole(amount: Quantity) -> bool {
    amount == Quantity::from_units(amount.value())
}

pub(super) fn validate(resources: &ResourceRequirements, at: &Path<'_>, errors: &mut Errors) {
    validate_list(&resources.limits, &at.child("limits"), errors);
    validate_list(&resources.requests, &at.child("requests"), errors);
    let requests = at.child("requests");
    for (name, request) in &resources.requests {
        let request_at = requests.key(name);
        match resources.limits.get(name) {
            Some(limit) if !is_overcommittable(name) && request != limit => {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.invalid(&request_at, &request.to_string(), detail);
            }
            Some(limit) if request > limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.invalid(&request_at, &request.to_string(), detail);
            }
            None if !is_overcommittable(name) => {
                errors.required(&at.child("limits"), "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    let both = || resources.limits.keys().chain(resources.requests.keys());
    let has_pages = both().any(|name| name.starts_with("hugepages-"));
    if has_pages && !both().any(|name| name == "cpu" || name == "memory") {
        errors.forbidden(at, "HugePages require cpu or memory");
    }
}

/// The resources of the pod as a whole.
pub(super) fn validate_pod_level(spec: &PodSpec, at: &Path<'_>, errors: &mut Errors) {
    let Some(resources) = &spec.resources else { return };
    validate(resources, at, errors);
    if !resources.claims.is_empty() {
        errors.forbidden(&at.child("claims"), "claims cannot be set for Resources at pod-level");
    }
    for (field, list) in [("limits", &resources.limits), ("requests", &resources.requests)] {
        for name in list.keys().filter(|name| !is_pod_level(name)) {
            errors.not_supported(&at.child(field).key(name), name, &["cpu", "hugepages-", "memory"]);
        }
    }
    let mut sums = ResourceList::new();
    for container in &spec.containers {
        for (name, amount) in &container.resources.requests {
            let sum = sums.get(name).map_or(*amount, |before| before.saturating_add(*amount));
            sums.insert(name.clone(), sum);
        }
    }
    for (name, sum) in sums {
        if let Some(request) = resources.requests.get(&name)
            && sum > *request
        {
            let detail = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.invalid(&at.child("requests").key(&name), &request.to_string(), detail);
        }
    }
    let containers = Path::Root("spec");
    for (index, container) in spec.containers.iter().enumerate() {
        for (name, limit) in &container.resources.limits {
            if let Some(most) = resources.limits.get(name)
                && limit > most
            {
                let list_at = containers.child("containers");
                let container_at = list_at.index(index);
                let resources_at = container_at.child("resources");
                let limits_at = resources_at.child("limits");
                let detail = format!("must be less than or equal to pod limits of {most}");
                errors.invalid(&limits_at.key(name), &limit.to_string(), detail);
            }
        }
    }
}
