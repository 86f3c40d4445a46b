//! Applying patches: JSON Patch, JSON Merge Patch, strategic merge patch, server-side apply, and the
//! resulting field ownership.
//!
//! Owns the algorithms and their bounds, over plain JSON; no input makes them panic or grow without bound.

pub mod apply;
pub mod fields;
pub(crate) mod json_patch;
pub(in crate::serve) mod managed;
pub mod merge_patch;
pub mod schema;
pub(crate) mod strategic;

use serde_json::Value;

/// The maximum nesting, `serde_json`'s: recursive walks cannot overflow the stack.
pub(crate) const MAX_DEPTH: usize = 128;

/// The maximum size of an object as JSON: etcd's limit for a request.
pub(crate) const MAX_OBJECT_BYTES: usize = 1_572_864;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatchError {
    /// Not a valid patch of its kind (400).
    #[error("{0}")]
    Malformed(String),
    /// It does not fit the object (422).
    #[error("{0}")]
    Unprocessable(String),
    /// The patch, or its result, is too large (413).
    #[error("{0}")]
    TooLarge(String),
}

fn malformed<T>(message: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Malformed(message.into()))
}

fn unprocessable<T>(message: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Unprocessable(message.into()))
}

/// The levels of a value: one for a scalar.
fn depth(value: &Value) -> usize {
    match value {
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        _ => 1,
    }
}

/// Returns the object, unless it is too large or too deep to store.
pub(crate) fn bounded(object: Value) -> Result<Value, PatchError> {
    if depth(&object) > MAX_DEPTH {
        return Err(PatchError::TooLarge(format!("the object is nested deeper than {MAX_DEPTH} levels")));
    }
    let bytes = object.to_string().len();
    if bytes > MAX_OBJECT_BYTES {
        let message = format!("etcdserver: request is too large: {bytes} bytes, at most {MAX_OBJECT_BYTES}");
        return Err(PatchError::TooLarge(message));
    }
    Ok(object)
}

#[cfg(test)]
mod tests;
