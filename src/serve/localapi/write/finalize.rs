//! Objects that were deleted and have finalizers: they remain until the finalizers are removed.
//!
//! Owns the effect of a deletion on an object, and which of its fields may still change.

use super::Task;
use super::stored::{self, StoredObject};
use crate::desired::pod_config::PodConfig;
use crate::desired::pod_config::edit::ApiChange;
use crate::model::field_error::{FieldError, FieldErrorKind};
use crate::serve::localapi::resource::{RESOURCES, Store};
use crate::serve::localapi::status::Failure;

pub(super) fn namespaced() -> impl Iterator<Item = Store> {
    let is_kept = |store: &Store| matches!(store, Store::Pods | Store::Objects(_));
    RESOURCES.iter().filter(|resource| resource.namespaced).map(|resource| resource.store).filter(is_kept)
}

/// The effect of a new version of an object: a deleted one is removed with its last finalizer.
///
/// # Errors
/// It is deleted and would get another finalizer.
pub(super) fn change(
    task: &Task,
    config: &PodConfig,
    old: &StoredObject,
    new: &StoredObject,
) -> Result<ApiChange, Failure> {
    if !old.is_terminating() {
        return Ok(if new == old { ApiChange::default() } else { new.to_change() });
    }
    check_no_more(task, old, new)?;
    let is_namespace = task.store() == Store::Namespaces;
    if !new.finalizers().is_empty() || (is_namespace && has_more(config, task.name(), None)) {
        return Ok(if new == old { ApiChange::default() } else { new.to_change() });
    }
    let mut change = new.removed(None);
    // A namespace that waited for this object is removed with it.
    if let Some(found) = stored::find(config, Store::Namespaces, "", task.namespace())
        && let StoredObject::Object(namespace) = &found.kept
        && found.kept.is_terminating()
        && found.kept.finalizers().is_empty()
        && !has_more(config, task.namespace(), Some((task.store(), task.name())))
    {
        change.remove_objects.push(namespace.key.clone());
    }
    Ok(change)
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

/// Whether the namespace has objects that came through the API, other than `beside`.
fn has_more(config: &PodConfig, namespace: &str, beside: Option<(Store, &str)>) -> bool {
    namespaced().any(|store| {
        let ours = stored::api_objects(config, store, Some(namespace));
        ours.iter().any(|kept| beside != Some((store, kept.place().1)))
    })
}
