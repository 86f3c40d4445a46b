//! Output of the resolved configuration: YAML, the table of origins, and the `FLAG:` lines.
//!
//! Owns printing and masking.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::args::Args;
use super::fields::FIELDS;
use super::flags::{FLAGS, Family};
use super::resolve::{Origin, apply_agent_defaults, baseline, is_joined};
use super::value::ValueKind;
use super::{Resolved, effects, gates, tree};

use crate::model::ordered::Ordered as _;

/// Replaces a secret.
const MASK: &str = "<masked>";

/// The document with every header value masked.
pub(super) fn masked(document: &Value) -> Value {
    let mut document = document.clone();
    if let Some(headers) = document.get_mut("staticPodURLHeader") {
        mask_headers(headers);
    }
    document
}

fn mask_headers(headers: &mut Value) {
    for values in headers.as_object_mut().into_iter().flat_map(|headers| headers.values_mut()) {
        if let Value::Array(values) = values {
            values.fill(Value::String(MASK.to_owned()));
        } else {
            *values = Value::String(MASK.to_owned());
        }
    }
}

/// `FLAG: --name="value"`, alphabetical: the given value, otherwise the agent's default.
pub(super) fn flag_dump(args: &Args) -> Vec<String> {
    let mut defaults = baseline();
    apply_agent_defaults(&mut defaults, is_joined(args));
    let defaults = defaults.document;
    let mut values: BTreeMap<&str, String> = BTreeMap::new();
    for field in FIELDS.iter().filter(|field| !field.flag.is_empty()) {
        let value = args.value(field.flag).or_else(|| tree::get(&defaults, field.path));
        let text = match value {
            Some(value) if field.kind == ValueKind::MultiMap => {
                let mut value = value.clone();
                mask_headers(&mut value);
                field.kind.render(&value)
            }
            Some(value) => field.kind.render(value),
            None => String::new(),
        };
        values.insert(field.flag, text);
    }
    for flag in FLAGS {
        let text = match args.value(flag.name) {
            Some(_) if flag.name == "storage-driver-password" => MASK.to_owned(),
            Some(value) => flag.kind.render(value),
            None => {
                flag.kind.parse(flag.default, None).map(|value| flag.kind.render(&value)).unwrap_or_default()
            }
        };
        values.insert(flag.name, text);
    }
    values.into_iter().map(|(name, value)| format!("FLAG: --{name}={value:?}")).collect()
}

/// One line for each setting.
pub(super) fn table(resolved: &Resolved) -> String {
    let document = masked(&resolved.document());
    let mut text = String::new();
    let origin = |key: &str| resolved.provenance.get(key).unwrap_or(&Origin::Default);
    let mut line = |name: &str, value: &str, origin: &Origin| {
        let note = match name.strip_prefix("featureGates.") {
            Some(gate) if gates::is_fixed(gate) => "; locked to this value".to_owned(),
            Some(gate) if gates::is_of_others(gate) => {
                "; no effect: not a gate of the kubelet on Linux".to_owned()
            }
            _ => effects::note(name, Some(origin)),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name} = {value}  # {origin}{note}");
    };
    for field in FIELDS {
        let value = tree::get(&document, field.path).map_or_else(|| "(unset)".to_owned(), Value::to_string);
        line(field.path, &value, origin(field.path));
        let gates = document.get(field.path).filter(|_| field.path == "featureGates");
        for (name, on) in gates.and_then(Value::as_object).into_iter().flatten() {
            line(&format!("featureGates.{name}"), &on.to_string(), origin(field.path));
        }
    }
    let values = flag_values(resolved);
    for flag in FLAGS.iter().filter(|flag| flag.family != Family::Cadvisor) {
        if matches!(flag.name, "help" | "version") {
            continue;
        }
        let key = format!("--{}", flag.name);
        let value = values.get(flag.name).cloned().unwrap_or_default();
        line(&key, &value, origin(&key));
    }
    text
}

/// The values of the `FLAG:` lines by name: they have every flag in its own syntax.
pub(super) fn flag_values(resolved: &Resolved) -> BTreeMap<&str, String> {
    let pairs = resolved.flag_dump.iter().filter_map(|line| line.strip_prefix("FLAG: --")?.split_once('='));
    pairs.map(|(name, value)| (name, value.to_owned())).into_map()
}

/// A document as block YAML. Strings are quoted as JSON unless they are clearly words, so that none changes
/// its type.
pub(super) fn yaml(document: &Value) -> String {
    let mut text = String::new();
    write_members(&mut text, document, 0);
    text
}

fn write_members(text: &mut String, value: &Value, depth: usize) {
    for (name, value) in value.as_object().into_iter().flatten() {
        indent(text, depth);
        text.push_str(&scalar(&Value::String(name.clone())));
        text.push(':');
        write_value(text, value, depth);
    }
}

/// After a colon: on the same line when short, otherwise below and indented.
fn write_value(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            text.push('\n');
            write_members(text, value, depth + 1);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            for item in items {
                indent(text, depth);
                // A nested object in flow form: JSON is YAML.
                let item = if item.is_object() || item.is_array() { item.to_string() } else { scalar(item) };
                let _ = writeln!(text, "- {item}");
            }
        }
        other => {
            let _ = writeln!(text, " {}", scalar(other));
        }
    }
}

fn indent(text: &mut String, depth: usize) {
    text.extend(std::iter::repeat_n("  ", depth));
}

fn scalar(value: &Value) -> String {
    let Value::String(word) = value else { return value.to_string() };
    let plain = word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && word.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-".contains(letter))
        && !matches!(
            word.to_ascii_lowercase().as_str(),
            "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n" | "null" | "inf" | "nan"
        );
    if plain { word.clone() } else { value.to_string() }
}
