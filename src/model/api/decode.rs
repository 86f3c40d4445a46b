//! From raw JSON to a typed object: the same reader for every type and every caller.
//!
//! Owns the strictness of decoding.

use serde_json::{Error, Value};

use super::record::Member;
use super::walk::{Track, Walk};

/// A typed object, and the fields of the raw one that its type does not have.
#[derive(Debug)]
pub struct Decoded<T> {
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
    pub message: String,
}

/// Decodes `value`. A null member counts as absent, as in Go. Unknown fields are collected, not refused: the
/// caller decides how strict to be.
pub fn decode<T: Member + Default>(value: Value) -> Result<Decoded<T>, DecodeError> {
    let mut object = T::default();
    let unknown_fields = read(value, &mut |walk| object.read(walk))?;
    Ok(Decoded { object, unknown_fields })
}

/// Hands over `value` and returns the fields that were not read.
pub(crate) fn read(
    mut value: Value,
    read: &mut dyn FnMut(Walk<'_>) -> Result<(), Error>,
) -> Result<Vec<String>, DecodeError> {
    prune_nulls(&mut value);
    let track = Track::default();
    match read(Walk { value, track: &track }) {
        Ok(()) => Ok(track.into_unknown()),
        Err(error) => Err(DecodeError { path: track.path(), message: error.to_string() }),
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::api::pod::Pod;
    use crate::model::api::record::{Shown, plain};
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

    #[test]
    fn what_is_read_is_what_the_json_library_reads() {
        type Odd = BTreeMap<String, (Option<i64>, Vec<Words>, Value)>;
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        enum Words {
            First,
            Second(String),
        }
        plain! { (Option<i64>, Vec<Words>, Value): _value => Shown::Null; }
        let good =
            json!({"a": [1, ["first", {"second": "x"}], {"deep": [1.5, "y", true]}], "b": [-7, [], 0]});
        let ours = decode::<Odd>(good.clone()).unwrap();
        assert_eq!(ours.object, serde_json::from_value::<Odd>(good).unwrap());
        assert!(ours.unknown_fields.is_empty());
        for bad in [
            json!({"a": [1, ["third"], 0]}),
            json!({"a": [1, []]}),
            json!({"a": "x"}),
            json!([1]),
            json!({"a": [1.5, [], 0]}),
        ] {
            let error = decode::<Odd>(bad.clone()).unwrap_err();
            let library = serde_json::from_value::<Odd>(bad).unwrap_err().to_string();
            assert_eq!(error.message, library, "{error}");
        }
        let error = decode::<Odd>(json!({"a": [1, [], 0, 4]})).unwrap_err();
        assert_eq!(error.to_string(), "a: 1 elements more than expected");
        assert_eq!(decode::<Odd>(json!(7)).unwrap_err().path, ".");
    }
}
