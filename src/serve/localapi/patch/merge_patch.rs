//! JSON Merge Patch (RFC 7386).
//!
//! Owns the one function.

use serde_json::{Map, Value};

/// Merges `patch` into `target`: null removes, objects merge by member, anything else replaces.
#[must_use]
pub(crate) fn apply(target: Value, patch: Value) -> Value {
    let Value::Object(changes) = patch else { return patch };
    let mut members = match target {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    for (name, change) in changes {
        if change.is_null() {
            members.remove(&name);
        } else {
            let old = members.remove(&name).unwrap_or(Value::Null);
            members.insert(name, apply(old, change));
        }
    }
    Value::Object(members)
}
