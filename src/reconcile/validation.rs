//! The rules an apiserver applies when a pod is created (upstream: `ValidatePodCreate`), for everything the types hold.
//!
//! Owns the order of the parts. Expects a defaulted pod; reports every broken rule, never only the first.

mod field;

pub use field::{FieldError, FieldErrorKind};

use crate::api::pod::Pod;

/// Everything that is wrong with a defaulted pod; empty when it may run.
#[must_use]
pub fn validate_pod(pod: &Pod) -> Vec<FieldError> {
    let mut errors = field::Errors::default();
    let root = field::Path::Root("spec");
    if pod.spec.containers.is_empty() {
        errors.required(&root.child("containers"), "");
    }
    errors.0
}
