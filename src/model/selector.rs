//! `metav1.LabelSelector` as JSON: which labels it selects.
//!
//! Owns nothing.

use serde_json::Value;

use crate::model::api::pod::StringMap;
use crate::model::ordered::Ordered as _;

/// A map of texts, such as labels.
pub(crate) fn string_map(value: &Value) -> StringMap {
    let members = value.as_object().into_iter().flatten();
    members.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).into_map()
}

/// Whether a `metav1.LabelSelector` selects these labels. An empty one selects everything, an absent one nothing.
pub(crate) fn selects(selector: &Value, labels: &StringMap) -> bool {
    let Some(parts) = selector.as_object() else { return false };
    let equal = parts.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let holds = |requirement: &Value| {
        let value = labels.get(text(requirement, "key"));
        let is_listed =
            || value.is_some_and(|value| list(requirement, "values").iter().any(|listed| listed == value));
        match text(requirement, "operator") {
            "In" => is_listed(),
            "NotIn" => !is_listed(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    equal.into_iter().all(|(name, wanted)| labels.get(name).is_some_and(|value| wanted == value))
        && list(selector, "matchExpressions").iter().all(holds)
}

fn text<'v>(value: &'v Value, member: &str) -> &'v str {
    value.get(member).and_then(Value::as_str).unwrap_or_default()
}

fn list<'v>(value: &'v Value, member: &str) -> &'v [Value] {
    value.get(member).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_read_as_upstreams() {
        let labels = string_map(&json!({"app": "web", "tier": "front"}));
        for (selector, expected) in [
            (json!({}), true),
            (json!(null), false),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "web", "x": "y"}}), false),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["back", "front"]}]}),
                true,
            ),
            (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]}), false),
            (json!({"matchExpressions": [{"key": "new", "operator": "NotIn", "values": ["front"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false),
            (
                json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "z", "operator": "?"}]}),
                false,
            ),
        ] {
            assert_eq!(selects(&selector, &labels), expected, "{selector}");
        }
    }
}
