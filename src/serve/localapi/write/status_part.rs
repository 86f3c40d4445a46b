//! `update` and `patch` of the subresource `status`.
//!
//! Owns what such a request may change: the status, and nothing else.

use std::rc::Rc;

use hyper::StatusCode;
use serde_json::Value;

use super::change::{ChangedPart, accept, changeable, check_identity, check_preconditions};
use super::stored::StoredObject;
use super::{Decision, Task};
use crate::desired::pod_config::PodConfig;
use crate::desired::pod_config::edit::ApiChange;
use crate::model::objects::{LocalObject, ObjectContent};

/// Decides a change of an object's status. Field managers are not recorded for it.
pub(super) fn change(task: &Task, config: &PodConfig) -> Decision {
    let found = changeable(task, config, ChangedPart::Observed)?.ok_or_else(|| task.missing())?;
    let StoredObject::Object(old) = &found.kept else { return Err(task.missing()) };
    let mut value = accept(task, &found.base)?;
    let warnings = task.field_warnings(task.fit(&mut value)?)?;
    check_identity(task, &value)?;
    check_preconditions(task, &old.uid, &value, &found.version)?;
    let status = value.get_mut("status").map(Value::take).unwrap_or_default();
    let ObjectContent::Plain(body) = &old.content else { return Err(task.missing()) };
    let content = ObjectContent::Plain(body.with("status", status));
    let new = StoredObject::Object(Rc::new(LocalObject { content, ..LocalObject::clone(old) }));
    let object = task.render(&new);
    let change = if new == found.kept { ApiChange::default() } else { new.to_change() };
    let mut outcome = task.outcome(StatusCode::OK, &new, object, Vec::new());
    outcome.warnings = warnings;
    Ok((change, outcome))
}
