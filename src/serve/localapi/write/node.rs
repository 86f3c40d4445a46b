//! Changes of the node: labels, annotations, taints, and whether it is schedulable.
//!
//! Owns the conversion from the object to the stored changes.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::change::{accept, check_identity, check_preconditions};
use super::{Decision, Task, WriteOutcome};
use crate::desired::pod_config::PodConfig;
use crate::desired::pod_config::edit::ApiChange;
use crate::model::field_error::{FieldError, FieldErrorKind};
use crate::model::node_changes::NodeWish;
use crate::serve::localapi::resource::Store;
use crate::serve::localapi::status::{self, Failure};
use crate::serve::localapi::text;

/// The fields that clients may change; all others are observed.
const MAY_CHANGE: [&str; 4] =
    ["/metadata/labels", "/metadata/annotations", "/spec/unschedulable", "/spec/taints"];

/// Decides an update or a patch of the node.
pub(super) fn change(task: &Task, config: &PodConfig) -> Decision {
    let shown = task.api.find(Store::Nodes, "", task.name()).ok_or_else(|| task.missing())?;
    let new = accept(task, &shown)?;
    check_identity(task, &new)?;
    let (uid, version) = (text(&shown, "/metadata/uid"), text(&shown, "/metadata/resourceVersion"));
    check_preconditions(task, uid, &new, version)?;
    if fixed(&new) != fixed(&shown) {
        let error = FieldError {
            path: "spec".to_owned(),
            kind: FieldErrorKind::Forbidden,
            value: String::new(),
            detail: "node updates may only change labels, annotations, taints, or unschedulable".to_owned(),
        };
        return Err(task.invalid(task.name(), &[error]));
    }
    let mut notes = config.notes().clone();
    let wished = notes.node.apply_desired(&task.api.cluster.node_base(), desired_node(&new)?);
    notes.node = wished.map_err(|errors| task.invalid(task.name(), &errors))?;
    let is_new = notes != *config.notes();
    let change = ApiChange { notes: is_new.then_some(notes), ..ApiChange::default() };
    let mut object = shown;
    for place in MAY_CHANGE {
        let (parent, field) = place.rsplit_once('/').unwrap_or_default();
        let Some(members) = object.pointer_mut(parent).and_then(Value::as_object_mut) else { continue };
        match new.pointer(place) {
            Some(value) => members.insert(field.to_owned(), value.clone()),
            None => members.remove(field),
        };
    }
    Ok((
        change,
        WriteOutcome {
            code: StatusCode::OK,
            object,
            is_kept: !task.dry_run,
            pod: None,
            warnings: Vec::new(),
        },
    ))
}

/// The part that clients may not change: `spec` and the node's identity. The status has a path of its own.
fn fixed(node: &Value) -> Value {
    let mut spec = node.get("spec").cloned().unwrap_or_else(|| json!({}));
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("unschedulable");
        spec.remove("taints");
    }
    spec
}

fn desired_node(node: &Value) -> Result<NodeWish, Failure> {
    fn part<T: serde::de::DeserializeOwned + Default>(node: &Value, place: &str) -> Result<T, Failure> {
        match node.pointer(place).filter(|part| !part.is_null()) {
            None => Ok(T::default()),
            Some(part) => serde_json::from_value(part.clone()).map_err(|error| {
                let field = place.trim_start_matches('/').replace('/', ".");
                status::bad_request(format!(
                    "Node in version \"v1\" cannot be handled as a Node: {field}: {error}"
                ))
            }),
        }
    }
    let [labels, annotations, unschedulable, taints] = MAY_CHANGE;
    Ok(NodeWish {
        labels: part(node, labels)?,
        annotations: part(node, annotations)?,
        unschedulable: part(node, unschedulable)?,
        taints: part(node, taints)?,
    })
}
