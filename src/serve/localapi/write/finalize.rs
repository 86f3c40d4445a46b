//! Objects that were deleted and have finalizers: they remain until the finalizers are removed.
//!
//! Owns the effect of a deletion on an object, and which of its fields may still change.

use super::Task;
use super::stored::StoredObject;
use crate::desired::pod_config::edit::ApiChange;
use crate::model::field_error::{FieldError, FieldErrorKind};
use crate::model::objects::ObjectKind;
use crate::serve::localapi::resource::Store;
use crate::serve::localapi::status::Failure;

/// The effect of a new version of an object: a deleted one is removed with its last finalizer.
///
/// # Errors
/// It is deleted and would get another finalizer.
pub(super) fn change(task: &Task, old: &StoredObject, new: &StoredObject) -> Result<ApiChange, Failure> {
    if !old.is_terminating() {
        return Ok(if new == old { ApiChange::default() } else { new.to_change() });
    }
    check_no_more(task, old, new)?;
    let is_emptied_first =
        matches!(task.store(), Store::Namespaces | Store::Objects(ObjectKind::CustomResourceDefinition));
    if new.finalizers().is_empty() && !is_emptied_first {
        return Ok(new.removed(None));
    }
    // A namespace or a definition goes with the last object in it.
    Ok(if new == old { ApiChange::default() } else { new.to_change() })
}

/// A deleted object must not get further finalizers.
pub(super) fn check_no_more(task: &Task, old: &StoredObject, new: &StoredObject) -> Result<(), Failure> {
    let added: Vec<&String> = new.finalizers().iter().filter(|one| !old.finalizers().contains(one)).collect();
    if !added.is_empty() {
        let words: Vec<String> = added.iter().map(|one| format!("{one:?}")).collect();
        let error = FieldError {
            path: "metadata.finalizers".to_owned(),
            kind: FieldErrorKind::Forbidden,
            value: String::new(),
            detail: format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                words.join(", ")
            ),
        };
        return Err(task.invalid(task.name(), &[error]));
    }
    Ok(())
}
