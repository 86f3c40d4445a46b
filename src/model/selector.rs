//! Label selectors as the API writes them (`LabelSelector`).
//!
//! Owns their meaning.

use serde_json::Value;

/// Whether a label selector selects these labels: none selects nothing, an empty one everything.
#[must_use]
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    let Some(_) = selector.as_object() else { return false };
    let equal = selector["matchLabels"].as_object();
    let rules = selector["matchExpressions"].as_array();
    equal.into_iter().flatten().all(|(name, value)| labels[name] == *value)
        && rules.into_iter().flatten().all(|rule| {
            let label = &labels[rule["key"].as_str().unwrap_or_default()];
            let is_listed = rule["values"].as_array().is_some_and(|values| values.contains(label));
            match rule["operator"].as_str() {
                Some("In") => is_listed,
                Some("NotIn") => !is_listed,
                Some("Exists") => !label.is_null(),
                Some("DoesNotExist") => label.is_null(),
                _ => false,
            }
        })
}
