//! From raw JSON to a typed object, by one road: the same `Deserializer` stack for every type and every caller, because
//! each further one would compile all visitors once more.
//!
//! Owns the strictness of decoding. Must not know files, YAML or what the object is for.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// A typed object and what the raw one carried beyond it.
#[derive(Debug)]
pub struct Decoded<T> {
    /// The object.
    pub object: T,
    /// Paths of fields that the type does not have, for example `spec.containers[0].imagee`.
    pub unknown_fields: Vec<String>,
}

/// A field does not fit its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct DecodeError {
    /// Where, for example `spec.containers[0].ports[0].containerPort`.
    pub path: String,
    /// What is wrong with the value there.
    pub message: String,
}

/// Decodes `value`. A null member counts as absent, as in Go. Unknown fields are collected, not refused: the caller
/// decides how strict to be.
///
/// # Errors
/// The first field whose value does not fit.
pub fn decode<T: DeserializeOwned>(mut value: Value) -> Result<Decoded<T>, DecodeError> {
    prune_nulls(&mut value);
    let mut unknown_fields = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    let mut note_unknown = |path: serde_ignored::Path<'_>| unknown_fields.push(field_path(&path));
    let strict = serde_ignored::Deserializer::new(tracked, &mut note_unknown);
    match T::deserialize(strict) {
        Ok(object) => Ok(Decoded { object, unknown_fields }),
        Err(error) => Err(DecodeError { path: track.path().to_string(), message: error.to_string() }),
    }
}

/// `a.0.b` as serde_ignored prints it becomes `a[0].b`, the form of Kubernetes' field errors.
fn field_path(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", field_path(parent)),
        Path::Map { parent, key } => match field_path(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            field_path(parent)
        }
    }
}

fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod::Pod;
    use serde_json::json;

    #[test]
    fn unknown_fields_are_named_by_path_and_nulls_count_as_absent() {
        let decoded = decode::<Pod>(json!({
            "metadata": {"name": "web", "creationTimestamp": null, "nick": 1},
            "spec": {"containers": [{"name": "c", "imagee": "x", "env": null}]},
        }))
        .unwrap();
        assert_eq!(decoded.object.metadata.name, "web");
        assert_eq!(decoded.unknown_fields, ["metadata.nick", "spec.containers[0].imagee"]);
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_with_its_path() {
        let error = decode::<Pod>(json!({"spec": {"containers": [{"ports": [{"containerPort": "80"}]}]}}))
            .unwrap_err();
        assert_eq!(error.path, "spec.containers[0].ports[0].containerPort");
        assert!(error.message.contains("expected i32"), "{}", error.message);
    }
}
