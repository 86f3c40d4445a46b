//! `nodeSelector`, required node affinity and the node's name.

use serde_json::Value;

use super::{NodeFacts, Rejection, failed_predicate};
use crate::model::api::pod::{Pod, StringMap};

const REQUIRED_TERMS: &str = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";

pub(super) fn check(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    let spec = &pod.spec;
    let selected = spec.node_selector.iter().all(|(name, value)| node.labels.get(name) == Some(value));
    let required = spec.affinity.as_ref().and_then(|affinity| affinity.pointer(REQUIRED_TERMS));
    if !selected || required.is_some_and(|required| !matches_node(required, &node.name, &node.labels)) {
        return Err(failed_predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"));
    }
    if !spec.node_name.is_empty() && spec.node_name != node.name {
        return Err(failed_predicate("NodeName", "node(s) didn't match the requested node name"));
    }
    Ok(())
}

/// Whether a node is one of those of a `v1.NodeSelector`. Terms are alternatives. An empty one matches nothing, and
/// neither does an invalid one.
pub(crate) fn matches_node(required: &Value, name: &str, labels: &StringMap) -> bool {
    let (fields, of_node) = (StringMap::from([("metadata.name".to_owned(), name.to_owned())]), labels);
    list(required, "nodeSelectorTerms").iter().any(|term| {
        let (labels, names) = (list(term, "matchExpressions"), list(term, "matchFields"));
        let empty = labels.is_empty() && names.is_empty();
        !empty
            && labels.iter().all(|requirement| matches(requirement, of_node) == Some(true))
            && names.iter().all(|requirement| matches_field(requirement, &fields))
    })
}

fn matches_field(requirement: &Value, fields: &StringMap) -> bool {
    let known = requirement["key"].as_str().is_some_and(|key| fields.contains_key(key));
    let operator = matches!(requirement["operator"].as_str(), Some("In" | "NotIn"));
    known && operator && matches(requirement, fields) == Some(true)
}

/// `None` when the requirement is invalid.
fn matches(requirement: &Value, labels: &StringMap) -> Option<bool> {
    let value = labels.get(requirement["key"].as_str()?);
    let wanted: Vec<&str> = list(requirement, "values").iter().filter_map(Value::as_str).collect();
    let listed = || value.is_some_and(|value| wanted.contains(&value.as_str()));
    match requirement["operator"].as_str()? {
        "In" if !wanted.is_empty() => Some(listed()),
        "NotIn" if !wanted.is_empty() => Some(!listed()),
        "Exists" if wanted.is_empty() => Some(value.is_some()),
        "DoesNotExist" if wanted.is_empty() => Some(value.is_none()),
        operator @ ("Gt" | "Lt") => {
            let [bound] = wanted.as_slice() else { return None };
            let bound: i64 = bound.parse().ok()?;
            let Some(number) = value.and_then(|value| value.parse::<i64>().ok()) else { return Some(false) };
            Some(if operator == "Gt" { number > bound } else { number < bound })
        }
        _ => None,
    }
}

fn list<'a>(object: &'a Value, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
