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

/// Removes the value at a path, if there is one.
pub(super) fn remove(tree: &mut Value, path: &str) {
    let (above, name) = path.rsplit_once('.').map_or((None, path), |(above, name)| (Some(above), name));
    let place = match above {
        Some(above) => above.split('.').try_fold(tree, |value, name| value.get_mut(name)),
        None => Some(tree),
    };
    if let Some(members) = place.and_then(Value::as_object_mut) {
        members.remove(name);
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
