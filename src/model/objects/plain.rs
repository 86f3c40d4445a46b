//! Objects that are kept as the JSON they were written in: everything that pods do not read.
//!
//! Owns their form in memory, and owner references.

use std::fmt;

use serde_json::{Map, Value, json};

use super::ObjectKind;
use crate::model::api::decode::{DecodeError, decode};
use crate::model::api::pod::ObjectMeta;

/// The members of an object beside `apiVersion`, `kind` and `metadata`, as compact JSON: as values they would take
/// ten times the memory. Of a kind of a definition with its `apiVersion`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PlainBody(Box<str>);

impl PlainBody {
    #[must_use]
    pub fn new(members: &Value) -> Self {
        match members {
            Value::Object(object) if !object.is_empty() => Self(members.to_string().into()),
            _ => Self::default(),
        }
    }

    /// Always an object.
    #[must_use]
    pub fn parse(&self) -> Value {
        match serde_json::from_str(&self.0) {
            Ok(members @ Value::Object(_)) => members,
            _ => json!({}),
        }
    }

    /// The body with another member; null removes it.
    #[must_use]
    pub fn with(&self, member: &str, value: Value) -> Self {
        let mut members = self.parse();
        match (value, members.as_object_mut()) {
            (Value::Null, Some(members)) => drop(members.remove(member)),
            (value, _) => members[member] = value,
        }
        Self::new(&members)
    }
}

impl fmt::Debug for PlainBody {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Such an object as decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainObject {
    pub kind: ObjectKind,
    pub metadata: ObjectMeta,
    /// As in [`PlainBody`].
    pub body: Value,
}

/// The object, and the fields of its metadata that these do not have.
pub(super) fn decode_plain(
    kind: ObjectKind,
    value: Value,
) -> Result<(PlainObject, Vec<String>), DecodeError> {
    let Value::Object(mut members) = value else {
        return Err(DecodeError { path: ".".to_owned(), message: "expected an object".to_owned() });
    };
    let below = |path: &str| format!("metadata.{path}");
    let metadata = members.remove("metadata").unwrap_or_else(|| json!({}));
    let decoded = decode::<ObjectMeta>(metadata)
        .map_err(|error| DecodeError { path: below(&error.path), message: error.message })?;
    members.remove("kind");
    if !kind.is_custom() {
        members.remove("apiVersion");
        drop_nulls(&mut members);
    }
    let object = PlainObject { kind, metadata: decoded.object, body: Value::Object(members) };
    Ok((object, decoded.unknown_fields.iter().map(|path| below(path)).collect()))
}

fn drop_nulls(members: &mut Map<String, Value>) {
    members.retain(|_, member| !member.is_null());
    for member in members.values_mut() {
        match member {
            Value::Object(members) => drop_nulls(members),
            Value::Array(items) => items.iter_mut().filter_map(Value::as_object_mut).for_each(drop_nulls),
            _ => {}
        }
    }
}

/// One of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    /// The owner manages the object.
    pub controller: bool,
    /// A foreground deletion of the owner waits for the object.
    pub block_owner_deletion: bool,
}

impl OwnerReference {
    #[must_use]
    pub fn from_value(value: &Value) -> Self {
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or_default();
        Self {
            api_version: text("apiVersion"),
            kind: text("kind"),
            name: text("name"),
            uid: text("uid"),
            controller: flag("controller"),
            block_owner_deletion: flag("blockOwnerDeletion"),
        }
    }

    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut value =
            json!({"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self.uid});
        for (name, flag) in
            [("controller", self.controller), ("blockOwnerDeletion", self.block_owner_deletion)]
        {
            if flag {
                value[name] = json!(true);
            }
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_parsed_as_it_was_written() {
        let body = json!({"spec": {"replicas": 2}, "status": {"replicas": 1}});
        let plain = PlainBody::new(&body);
        assert_eq!(plain.parse(), body);
        assert_eq!(plain.with("status", Value::Null).parse(), json!({"spec": {"replicas": 2}}));
        assert_eq!(plain.with("data", json!(1)).parse()["data"], 1);
        assert_eq!(
            (PlainBody::new(&json!({})), PlainBody::default().parse()),
            (PlainBody::default(), json!({}))
        );
    }

    #[test]
    fn nulls_are_dropped_but_of_a_custom_object() {
        let value = || json!({"apiVersion": "x/v1", "kind": "K", "metadata": {"name": "n"}, "spec": {"a": null, "b": [{"c": null}]}});
        let (plain, unknown) = decode_plain(ObjectKind::Ingress, value()).unwrap();
        assert_eq!((plain.body, unknown.len()), (json!({"spec": {"b": [{}]}}), 0));
        let custom = ObjectKind::custom("x", "K", "ks", true).unwrap();
        let (plain, _) = decode_plain(custom, value()).unwrap();
        assert_eq!(plain.body, json!({"apiVersion": "x/v1", "spec": {"a": null, "b": [{"c": null}]}}));
        let error = decode_plain(custom, json!({"metadata": {"labels": {"a": 1}}})).unwrap_err();
        assert_eq!(error.path, "metadata.labels.a");
    }
}
