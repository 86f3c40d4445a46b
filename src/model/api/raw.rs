//! JSON that is passed on and seldom read, as compact text: a tree of values would take ten times its memory.
//!
//! Owns that form.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A value as its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawJson(Box<str>);

impl RawJson {
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl From<&Value> for RawJson {
    fn from(value: &Value) -> Self {
        Self(value.to_string().into())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self::from(&value))
    }
}

#[cfg(test)]
mod tests {
    use super::RawJson;
    use serde_json::{Value, from_value, json};

    #[test]
    fn a_value_comes_out_as_it_went_in() {
        let written =
            json!({ "linux": { "uid": 0, "supplementalGroups": [1, "\"\u{e4}"] }, "none": Value::Null });
        let raw: RawJson = from_value(written.clone()).unwrap();
        assert_eq!((raw.value(), json!(raw)), (written.clone(), written));
    }
}
