//! `metadata.managedFields` in their stored form: text, because as values they would take ten times the
//! memory of the object.
//!
//! Owns that form.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::record::plain;

/// The list, as compact JSON; empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedFields(Box<str>);

impl ManagedFields {
    #[must_use]
    pub fn new(entries: Vec<Value>) -> Self {
        if entries.is_empty() { Self::default() } else { Self(Value::Array(entries).to_string().into()) }
    }

    #[must_use]
    pub fn entries(&self) -> Vec<Value> {
        match serde_json::from_str(&self.0) {
            Ok(Value::Array(entries)) => entries,
            _ => Vec::new(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for ManagedFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Value::Array(self.entries()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ManagedFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::new)
    }
}

plain! { ManagedFields }

#[cfg(test)]
mod tests {
    use crate::model::api::decode::decode;
    use crate::model::api::pod::Pod;
    use serde_json::json;

    #[test]
    fn entries_come_out_as_they_went_in() {
        let written = json!({"metadata": {"name": "p", "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]}});
        let pod = decode::<Pod>(written.clone()).unwrap().object;
        assert_eq!(json!(pod)["metadata"], written["metadata"]);
        assert_eq!(json!(Pod::default())["metadata"].get("managedFields"), None);
    }
}
