//! `update` and `patch` of the subresource `scale`.
//!
//! Owns the way from a scale to its object.

use serde_json::{Value, json};

use super::body::{Content, PatchKind};
use super::change::{ChangedPart, accept, changeable, check_identity, check_preconditions, replace};
use super::{Decision, Task, is_of};
use crate::desired::pod_config::PodConfig;
use crate::model::field_error::{FieldError, FieldErrorKind};
use crate::serve::localapi::scale::ScalePlaces;
use crate::serve::localapi::status;
use crate::serve::localapi::text;

/// Decides a change of the number of replicas.
pub(super) fn change(task: &Task, config: &PodConfig) -> Decision {
    let found = changeable(task, config, ChangedPart::Written)?.ok_or_else(|| task.missing())?;
    let places = ScalePlaces::of(task.definition.as_ref());
    let shown = places.show(&found.base);
    if matches!(task.content, Content::Patch(PatchKind::Apply, _)) {
        return Err(status::unsupported_media_type(
            "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json",
        ));
    }
    let scale = accept(task, &shown)?;
    is_of(task.types(), "autoscaling/v1", "Scale", &scale)?;
    check_identity(task, &scale)?;
    check_preconditions(task, found.kept.uid(), &scale, &found.version)?;
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or_default();
    if replicas < 0 {
        let error = FieldError {
            path: "spec.replicas".to_owned(),
            kind: FieldErrorKind::Invalid,
            value: replicas.to_string(),
            detail: "must be greater than or equal to 0".to_owned(),
        };
        return Err(task.invalid(text(&scale, "/metadata/name"), &[error]));
    }
    let mut value = found.base.clone();
    put(&mut value, &places.replicas, json!(replicas));
    let (change, mut outcome) = replace(task, config, found, value, None)?;
    outcome.object = places.show(&outcome.object);
    Ok((change, outcome))
}

/// Sets the value at a JSON pointer, with the objects above it.
fn put(object: &mut Value, pointer: &str, value: Value) {
    let (above, name) = pointer.rsplit_once('/').unwrap_or_default();
    let mut place = object;
    for step in above.split('/').skip(1) {
        if !place[step].is_object() {
            place[step] = json!({});
        }
        place = &mut place[step];
    }
    place[name] = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_set_where_its_pointer_says() {
        let mut object = json!({"spec": {"a": 1}});
        put(&mut object, "/spec/replicas", json!(3));
        put(&mut object, "/spec/deep/er", json!(4));
        assert_eq!(object, json!({"spec": {"a": 1, "replicas": 3, "deep": {"er": 4}}}));
    }
}
