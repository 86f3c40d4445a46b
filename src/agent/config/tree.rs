//! Dotted paths in a JSON tree.
//!
//! Owns walking.

use serde_json::{Map, Value};

/// The value at a path; null counts as absent.
pub(super) fn get<'a>(tree: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(tree, |value, name| value.get(name)).filter(|value| !value.is_null())
}

/// Sets the value at a path, creating objects on the way.
pub(super) fn set(tree: &mut Value, path: &str, value: Value) {
    let mut place = tree;
    for name in path.split('.') {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(members) = place else { return };
        place = members.entry(name.to_owned()).or_insert(Value::Null);
    }
    *place = value;
}

/// Removes the value at a path, if there is one, and objects that are empty without it.
pub(super) fn remove(tree: &mut Value, path: &str) {
    let Some(members) = tree.as_object_mut() else { return };
    if let Some((name, rest)) = path.split_once('.') {
        let Some(below) = members.get_mut(name) else { return };
        remove(below, rest);
        if below.as_object().is_none_or(|left| !left.is_empty()) {
            return;
        }
        members.remove(name);
    } else {
        members.remove(path);
    }
}

/// How a patch mentions a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mention {
    None,
    Value,
    /// With null, at the path or above it.
    Null,
}

/// Whether and how `overlay` changes `path`.
pub(super) fn mention(overlay: &Value, path: &str) -> Mention {
    let mut value = overlay;
    for name in path.split('.') {
        match value.get(name) {
            None => return Mention::None,
            Some(Value::Null) => return Mention::Null,
            Some(next) => value = next,
        }
    }
    Mention::Value
}
