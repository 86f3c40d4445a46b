//! Objects of CustomResourceDefinitions against their structural schema: what is pruned, filled in and refused.
//!
//! Owns the rules that are followed: types, required fields, enumerations, bounds, defaults and pruning. Patterns, formats,
//! combinations of schemas and CEL are not. Pure.

use serde_json::{Map, Value};

use crate::model::api::schema::check::{Findings, Unknown};
use crate::model::field_error::{FieldError, FieldErrorKind};

/// Notes kept for one object.
const MAX_NOTES: usize = 100;

/// Removes the fields that the schema does not have, and fills in its defaults.
pub(super) fn fit(schema: &Value, object: &mut Value) -> Findings {
    let mut findings = Findings::default();
    if let Some(members) = object.as_object_mut() {
        prune_members(schema, members, true, "", &mut findings.unknown);
        fill_members(schema, members);
    }
    findings
}

fn property<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    schema.get("properties")?.get(name)
}

fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// The schema of a member that is not among the properties; true: any value.
fn additional(schema: &Value) -> Option<&Value> {
    schema.get("additionalProperties").filter(|additional| additional.is_object())
}

fn prune_members(
    schema: &Value,
    members: &mut Map<String, Value>,
    is_object: bool,
    path: &str,
    unknown: &mut Vec<Unknown>,
) {
    let keeps = keeps_unknown(schema) || schema["additionalProperties"] == true;
    members.retain(|name, value| {
        if is_object && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            return true;
        }
        let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match property(schema, name).or_else(|| additional(schema)) {
            Some(schema) => {
                prune(schema, value, &at, unknown);
                true
            }
            None if keeps => true,
            None => {
                if unknown.len() < MAX_NOTES {
                    unknown.push(Unknown { path: at, meant: None });
                }
                false
            }
        }
    });
}

fn prune(schema: &Value, value: &mut Value, path: &str, unknown: &mut Vec<Unknown>) {
    match value {
        Value::Object(members) => {
            let is_object = schema["x-kubernetes-embedded-resource"] == true;
            prune_members(schema, members, is_object, path, unknown);
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            for (index, item) in items.iter_mut().enumerate() {
                prune(schema, item, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

fn fill_members(schema: &Value, members: &mut Map<String, Value>) {
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    for (name, property) in properties {
        let is_null = members.get(name).is_some_and(Value::is_null) && property["nullable"] != true;
        if let Some(default) = property.get("default")
            && (is_null || !members.contains_key(name))
        {
            members.insert(name.clone(), default.clone());
        }
        if let Some(value) = members.get_mut(name) {
            fill(property, value);
        }
    }
    if let Some(additional) = additional(schema) {
        for (name, value) in members.iter_mut() {
            if property(schema, name).is_none() {
                fill(additional, value);
            }
        }
    }
}

fn fill(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => fill_members(schema, members),
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    fill(schema, item);
                }
            }
        }
        _ => {}
    }
}

/// What is wrong with an object's members beside its metadata, in upstream's words.
pub(super) fn validate(schema: &Value, body: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut body = body.clone();
    if let Some(members) = body.as_object_mut() {
        members.remove("apiVersion");
    }
    check(schema, &body, "", &mut errors);
    errors
}

fn check(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if errors.len() >= MAX_NOTES {
        return;
    }
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if let Some(wanted) = misfit(schema, value) {
        let why = format!("{path} in body must be of type {wanted}: {:?}", type_name(value));
        errors.push(invalid(path, FieldErrorKind::Invalid, format!("{:?}", type_name(value)), why));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let words: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        let why = format!("supported values: {}", words.join(", "));
        errors.push(invalid(path, FieldErrorKind::NotSupported, value.to_string(), why));
    }
    match value {
        Value::Object(members) => members_fit(schema, members, path, errors),
        Value::Array(items) => {
            bounded(schema, ("minItems", "maxItems"), items.len(), "items", path, errors);
            if let Some(schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    check(schema, item, &format!("{path}[{index}]"), errors);
                }
            }
        }
        Value::String(text) => {
            bounded(schema, ("minLength", "maxLength"), text.chars().count(), "chars long", path, errors);
        }
        Value::Number(number) => number_fits(schema, number.as_f64().unwrap_or_default(), path, errors),
        _ => {}
    }
}

fn members_fit(schema: &Value, members: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for name in
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    {
        let is_metadata = path.is_empty() && matches!(name, "apiVersion" | "kind" | "metadata");
        if !members.contains_key(name) && !is_metadata {
            errors.push(invalid(&below(name), FieldErrorKind::Required, String::new(), String::new()));
        }
    }
    bounded(schema, ("minProperties", "maxProperties"), members.len(), "properties", path, errors);
    for (name, value) in members {
        if let Some(schema) = property(schema, name).or_else(|| additional(schema)) {
            check(schema, value, &below(name), errors);
        }
    }
}

fn bounded(
    schema: &Value,
    (least, most): (&str, &str),
    found: usize,
    unit: &str,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let bound =
        |name: &str| schema.get(name).and_then(Value::as_u64).and_then(|bound| usize::try_from(bound).ok());
    if let Some(least) = bound(least).filter(|least| found < *least) {
        let why = format!("{path} in body should have at least {least} {unit}");
        errors.push(invalid(path, FieldErrorKind::Invalid, found.to_string(), why));
    }
    if let Some(most) = bound(most).filter(|most| found > *most) {
        let why = format!("may not be more than {most} {unit}");
        errors.push(invalid(path, FieldErrorKind::TooLong, String::new(), why));
    }
}

fn number_fits(schema: &Value, number: f64, path: &str, errors: &mut Vec<FieldError>) {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let (no_less, no_more) = (schema["exclusiveMinimum"] == true, schema["exclusiveMaximum"] == true);
    if let Some(least) = bound("minimum").filter(|least| number < *least || (no_less && number <= *least)) {
        let words = if no_less { "greater than" } else { "greater than or equal to" };
        let why = format!("{path} in body should be {words} {least}");
        errors.push(invalid(path, FieldErrorKind::Invalid, number.to_string(), why));
    }
    if let Some(most) = bound("maximum").filter(|most| number > *most || (no_more && number >= *most)) {
        let words = if no_more { "less than" } else { "less than or equal to" };
        let why = format!("{path} in body should be {words} {most}");
        errors.push(invalid(path, FieldErrorKind::Invalid, number.to_string(), why));
    }
}

/// The type that a value should have and has not.
fn misfit<'s>(schema: &'s Value, value: &Value) -> Option<&'s str> {
    if schema["x-kubernetes-int-or-string"] == true {
        return (!(value.is_string() || is_integer(value))).then_some("integer or string");
    }
    let wanted = schema.get("type").and_then(Value::as_str)?;
    let fits = match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => is_integer(value),
        "number" => value.is_number(),
        _ => true,
    };
    (!fits).then_some(wanted)
}

fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn invalid(path: &str, kind: FieldErrorKind, value: String, detail: String) -> FieldError {
    let path = if path.is_empty() { "<nil>" } else { path };
    FieldError { path: path.to_owned(), kind, value, detail }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "required": ["spec"], "properties": {
            "spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "mode": {"type": "string", "enum": ["fast", "slow"], "default": "slow"},
                "port": {"x-kubernetes-int-or-string": true},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "items": {"type": "array", "maxItems": 2, "items": {"type": "object", "properties": {
                    "name": {"type": "string", "minLength": 2}, "on": {"type": "boolean", "default": true}}}},
                "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
                "maybe": {"type": "string", "nullable": true},
            }},
        }})
    }

    #[test]
    fn unknown_fields_are_pruned_and_defaults_filled_in() {
        let mut object = json!({"apiVersion": "x/v1", "kind": "K", "metadata": {"name": "n"}, "odd": 1, "spec": {
            "size": 1, "sice": 2, "labels": {"a": "b"}, "free": {"any": {"thing": 1}},
            "items": [{"name": "ab", "nam": "x"}], "template": {"kind": "Pod", "metadata": {}, "x": 1}}});
        let findings = fit(&schema(), &mut object);
        let unknown: Vec<&str> = findings.unknown.iter().map(|unknown| unknown.path.as_str()).collect();
        assert_eq!(unknown, ["odd", "spec.items[0].nam", "spec.sice"]);
        assert_eq!(
            object,
            json!({"apiVersion": "x/v1", "kind": "K", "metadata": {"name": "n"}, "spec": {
                "size": 1, "mode": "slow", "labels": {"a": "b"}, "free": {"any": {"thing": 1}},
                "items": [{"name": "ab", "on": true}], "template": {"kind": "Pod", "metadata": {}, "x": 1}}})
        );
        let mut free = json!({"odd": {"deep": 1}});
        assert_eq!(
            fit(&json!({"x-kubernetes-preserve-unknown-fields": true}), &mut free),
            Findings::default()
        );
        assert_eq!(free, json!({"odd": {"deep": 1}}));
    }

    #[test]
    fn one_row_per_rule() {
        for (spec, expected) in [
            (json!({"size": 3}), vec![]),
            (json!({"size": 3, "port": "http", "maybe": null}), vec![]),
            (json!({}), vec!["spec.size: Required value"]),
            (
                json!({"size": "3"}),
                vec![
                    "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
                ],
            ),
            (
                json!({"size": 0}),
                vec!["spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"],
            ),
            (
                json!({"size": 10}),
                vec!["spec.size: Invalid value: 10: spec.size in body should be less than or equal to 9"],
            ),
            (
                json!({"size": 1, "mode": "odd"}),
                vec!["spec.mode: Unsupported value: \"odd\": supported values: \"fast\", \"slow\""],
            ),
            (
                json!({"size": 1, "port": true}),
                vec![
                    "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer or string: \"boolean\"",
                ],
            ),
            (
                json!({"size": 1, "labels": {"a": 1}}),
                vec![
                    "spec.labels.a: Invalid value: \"integer\": spec.labels.a in body must be of type string: \"integer\"",
                ],
            ),
            (
                json!({"size": 1, "items": [{"name": "x"}]}),
                vec![
                    "spec.items[0].name: Invalid value: 1: spec.items[0].name in body should have at least 2 chars long",
                ],
            ),
            (
                json!({"size": 1, "items": [{}, {}, {}]}),
                vec!["spec.items: Too long: may not be more than 2 items"],
            ),
        ] {
            let errors = validate(&schema(), &json!({"apiVersion": "x/v1", "spec": spec}));
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected, "{spec}");
        }
        assert_eq!(validate(&schema(), &json!({})).len(), 1);
    }
}
