//! Rules of scheduling fields: affinity, topology spread, scheduling gates (upstream: `validateAffinity`,
//! `validateTopologySpreadConstraints`, `validateSchedulingGates`, `ValidateLabelSelector`).
//!
//! Expects values of the right types, and treats others as empty.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::model::field_error::{Errors, Path};
use crate::model::names;

const NOT_AN_OPERATOR: &str = "not a valid selector operator";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn items<'v>(object: &'v Value, field: &str) -> &'v [Value] {
    object.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn texts<'v>(object: &'v Value, field: &str) -> Vec<&'v str> {
    items(object, field).iter().filter_map(Value::as_str).collect()
}

pub(super) fn affinity(affinity: &Value, at: &Path<'_>, errors: &mut Errors) {
    if let Some(nodes) = affinity.get("nodeAffinity") {
        node_affinity(nodes, &at.child("nodeAffinity"), errors);
    }
    for field in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = affinity.get(field) else { continue };
        let at = at.child(field);
        let (required, preferred) = (at.child(REQUIRED), at.child(PREFERRED));
        for (index, term) in items(pods, REQUIRED).iter().enumerate() {
            pod_term(term, &required.index(index), errors);
        }
        for (index, weighted) in items(pods, PREFERRED).iter().enumerate() {
            let at = preferred.index(index);
            weight(weighted, &at, errors);
            let term = weighted.get("podAffinityTerm").unwrap_or(&Value::Null);
            pod_term(term, &at.child("podAffinityTerm"), errors);
        }
    }
}

fn weight(weighted: &Value, at: &Path<'_>, errors: &mut Errors) {
    let weight = weighted.get("weight").and_then(Value::as_i64).unwrap_or_default();
    if !(1..=100).contains(&weight) {
        errors.invalid_number(&at.child("weight"), weight, "must be in the range 1-100");
    }
}

fn node_affinity(nodes: &Value, at: &Path<'_>, errors: &mut Errors) {
    if let Some(required) = nodes.get(REQUIRED) {
        let at = at.child(REQUIRED);
        let at = at.child("nodeSelectorTerms");
        let terms = items(required, "nodeSelectorTerms");
        if terms.is_empty() {
            errors.required(&at, "must have at least one node selector term");
        }
        for (index, term) in terms.iter().enumerate() {
            node_term(term, true, &at.index(index), errors);
        }
    }
    let preferred = at.child(PREFERRED);
    for (index, weighted) in items(nodes, PREFERRED).iter().enumerate() {
        let at = preferred.index(index);
        weight(weighted, &at, errors);
        let term = weighted.get("preference").unwrap_or(&Value::Null);
        node_term(term, false, &at.child("preference"), errors);
    }
}

fn node_term(term: &Value, values_are_labels: bool, at: &Path<'_>, errors: &mut Errors) {
    let labels = at.child("matchExpressions");
    for (index, requirement) in items(term, "matchExpressions").iter().enumerate() {
        node_requirement(requirement, values_are_labels, &labels.index(index), errors);
    }
    let fields = at.child("matchFields");
    for (index, requirement) in items(term, "matchFields").iter().enumerate() {
        let (at, values) = (fields.index(index), texts(requirement, "values"));
        match text(requirement, "operator") {
            "In" | "NotIn" if values.len() != 1 => errors.required(
                &at.child("values"),
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            ),
            "In" | "NotIn" => {}
            other => errors.invalid(&at.child("operator"), other, NOT_AN_OPERATOR),
        }
        match text(requirement, "key") {
            "metadata.name" => {
                for (index, name) in values.iter().enumerate() {
                    let values_at = at.child("values");
                    errors.all(&values_at.index(index), name, names::dns_subdomain(name));
                }
            }
            other => errors.invalid(&at.child("key"), other, "not a valid field selector key"),
        }
    }
}

fn node_requirement(requirement: &Value, values_are_labels: bool, at: &Path<'_>, errors: &mut Errors) {
    let values = texts(requirement, "values");
    let values_at = at.child("values");
    match text(requirement, "operator") {
        "Gt" | "Lt" if values.len() == 1 => {}
        "Gt" | "Lt" => {
            errors.required(&values_at, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        operator => operator_and_values(operator, &values, at, errors),
    }
    let key = text(requirement, "key");
    errors.all(&at.child("key"), key, names::qualified_name(key));
    if values_are_labels {
        label_values(&values, &values_at, errors);
    }
}

fn operator_and_values(operator: &str, values: &[&str], at: &Path<'_>, errors: &mut Errors) {
    let values_at = at.child("values");
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&values_at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.forbidden(&values_at, detail);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.invalid(&at.child("operator"), other, NOT_AN_OPERATOR),
    }
}

fn label_values(values: &[&str], at: &Path<'_>, errors: &mut Errors) {
    for (index, value) in values.iter().enumerate() {
        errors.all(&at.index(index), value, names::label_value(value));
    }
}

fn label_selector(selector: Option<&Value>, at: &Path<'_>, errors: &mut Errors) {
    let Some(selector) = selector else { return };
    let labels_at = at.child("matchLabels");
    for (name, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        errors.all(&labels_at, name, names::qualified_name(name));
        errors.all(&labels_at, value, names::label_value(value));
    }
    let expressions = at.child("matchExpressions");
    for (index, requirement) in items(selector, "matchExpressions").iter().enumerate() {
        let (at, values) = (expressions.index(index), texts(requirement, "values"));
        operator_and_values(text(requirement, "operator"), &values, &at, errors);
        let key = text(requirement, "key");
        errors.all(&at.child("key"), key, names::qualified_name(key));
        label_values(&values, &at.child("values"), errors);
    }
}

fn pod_term(term: &Value, at: &Path<'_>, errors: &mut Errors) {
    for field in ["labelSelector", "namespaceSelector"] {
        label_selector(term.get(field), &at.child(field), errors);
    }
    for name in texts(term, "namespaces") {
        errors.all(&at.child("namespace"), name, names::dns_label(name));
    }
    label_keys(term, "matchLabelKeys", at, errors);
    label_keys(term, "mismatchLabelKeys", at, errors);
    let mismatching = texts(term, "mismatchLabelKeys");
    for (index, key) in texts(term, "matchLabelKeys").into_iter().enumerate() {
        if mismatching.contains(&key) {
            let keys_at = at.child("matchLabelKeys");
            let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.invalid(&keys_at.index(index), key, detail);
        }
    }
    let (key, key_at) = (text(term, "topologyKey"), at.child("topologyKey"));
    if key.is_empty() {
        errors.required(&key_at, "can not be empty");
    }
    errors.all(&key_at, key, names::qualified_name(key));
}

/// `matchLabelKeys` and `mismatchLabelKeys`: keys of the pod's own labels that are added to a label selector.
fn label_keys(object: &Value, field: &str, at: &Path<'_>, errors: &mut Errors) {
    let (keys, keys_at) = (texts(object, field), at.child(field));
    if keys.is_empty() {
        return;
    }
    if object.get("labelSelector").is_none() {
        return errors.forbidden(&keys_at, "must not be specified when labelSelector is not set");
    }
    for (index, key) in keys.into_iter().enumerate() {
        errors.all(&keys_at.index(index), key, names::qualified_name(key));
    }
}

pub(super) fn topology_spread(constraints: &[Value], at: &Path<'_>, errors: &mut Errors) {
    for (index, constraint) in constraints.iter().enumerate() {
        let at = at.index(index);
        let number = |field: &str| constraint.get(field).and_then(Value::as_i64);
        let skew = number("maxSkew").unwrap_or_default();
        if skew <= 0 {
            errors.invalid_number(&at.child("maxSkew"), skew, "must be greater than zero");
        }
        let key = text(constraint, "topologyKey");
        if key.is_empty() {
            errors.required(&at.child("topologyKey"), "can not be empty");
        } else {
            errors.all(&at.child("topologyKey"), key, names::qualified_name(key));
        }
        let action = text(constraint, "whenUnsatisfiable");
        if action.is_empty() {
            errors.required(&at.child("whenUnsatisfiable"), "can not be empty");
        } else {
            errors.one_of(&at.child("whenUnsatisfiable"), action, &["DoNotSchedule", "ScheduleAnyway"]);
        }
        let is_same =
            |other: &Value| text(other, "topologyKey") == key && text(other, "whenUnsatisfiable") == action;
        if constraints[index + 1..].iter().any(is_same) {
            let pair = at.child("{topologyKey, whenUnsatisfiable}");
            errors.duplicate(&pair, &format!("{{{key}, {action}}}"));
        }
        if let Some(domains) = number("minDomains") {
            let at = at.child("minDomains");
            if domains <= 0 {
                errors.invalid_number(&at, domains, "must be greater than 0");
            }
            if action != "DoNotSchedule" {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.invalid_number(&at, domains, detail);
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let policy = constraint.get(field).and_then(Value::as_str);
            errors.optional_of(&at.child(field), policy, &["Honor", "Ignore"]);
        }
        label_keys(constraint, "matchLabelKeys", &at, errors);
        let selector = constraint.get("labelSelector");
        let selected = selector.and_then(|selector| selector.get("matchLabels"));
        for (index, key) in texts(constraint, "matchLabelKeys").into_iter().enumerate() {
            let by_expression = selector.is_some_and(|selector| {
                items(selector, "matchExpressions").iter().any(|expression| text(expression, "key") == key)
            });
            if by_expression || selected.is_some_and(|labels| labels.get(key).is_some()) {
                let keys_at = at.child("matchLabelKeys");
                let detail = "exists in both matchLabelKeys and labelSelector";
                errors.invalid(&keys_at.index(index), key, detail);
            }
        }
        label_selector(selector, &at.child("labelSelector"), errors);
    }
}

pub(super) fn gates(gates: &[Value], at: &Path<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, gate) in gates.iter().enumerate() {
        let name = text(gate, "name");
        errors.all(&at.index(index), name, names::qualified_name(name));
        if !seen.insert(name) {
            errors.duplicate(&at.index(index), name);
        }
    }
}
