//! What a patch makes of an object: JSON Patch, JSON Merge Patch, strategic merge patch, server-side apply, and who owns
//! which field afterwards.
//!
//! Owns the algorithms and their bounds, over plain JSON; no input makes them panic or grow without bound.

pub mod apply;
pub mod fields;
pub mod json_patch;
pub mod managed;
pub mod merge_patch;
pub mod schema;
pub mod strategic;

use serde_json::Value;

/// Values nest no deeper, as what `serde_json` reads does: nothing that walks one recursively runs out of stack.
pub const MAX_DEPTH: usize = 128;

/// What an object may weigh as JSON: etcd's limit for a request.
pub const MAX_OBJECT_BYTES: usize = 1_572_864;

/// Why a patch was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// It is no patch of its kind (400).
    #[error("{0}")]
    Malformed(String),
    /// It does not fit the object (422).
    #[error("{0}")]
    Unprocessable(String),
    /// It, or what it makes, is too large (413).
    #[error("{0}")]
    TooLarge(String),
}

fn malformed<T>(message: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Malformed(message.into()))
}

fn unprocessable<T>(message: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Unprocessable(message.into()))
}

/// Levels of a value: one for a scalar.
fn depth(value: &Value) -> usize {
    match value {
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        _ => 1,
    }
}

/// The object, unless it has become too large or too deep to be kept.
///
/// # Errors
/// [`PatchError::TooLarge`].
pub fn bounded(object: Value) -> Result<Value, PatchError> {
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
