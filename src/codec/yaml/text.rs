//! A JSON value as YAML, in kubectl's layout: block style, sequences not indented below their key.
//!
//! Owns quoting. A string that is not clearly safe as a plain scalar is quoted: parsers with YAML 1.1 rules
//! and with 1.2 rules must read the same value.

use std::fmt::Write;

use serde_json::Value;

/// A document with its final newline.
#[must_use]
pub(crate) fn to_string(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(members) if !members.is_empty() => members_of(members, 0, false, &mut text),
        Value::Array(items) if !items.is_empty() => items_of(items, 0, &mut text),
        scalar => {
            scalar_of(scalar, 0, &mut text);
            text.push('\n');
        }
    }
    text
}

fn indent(depth: usize, text: &mut String) {
    text.extend(std::iter::repeat_n("  ", depth));
}

/// `after_dash`: the first member is on the line of its `- `.
fn members_of(members: &serde_json::Map<String, Value>, depth: usize, after_dash: bool, text: &mut String) {
    for (position, (key, value)) in members.iter().enumerate() {
        if position > 0 || !after_dash {
            indent(depth, text);
        }
        if is_plain(key) {
            text.push_str(key);
        } else {
            quoted(key, text);
        }
        text.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                text.push('\n');
                members_of(inner, depth + 1, false, text);
            }
            Value::Array(items) if !items.is_empty() => {
                text.push('\n');
                items_of(items, depth, text);
            }
            scalar => {
                text.push(' ');
                scalar_of(scalar, depth + 1, text);
                text.push('\n');
            }
        }
    }
}

fn items_of(items: &[Value], depth: usize, text: &mut String) {
    for item in items {
        indent(depth, text);
        match item {
            Value::Object(members) if !members.is_empty() => {
                text.push_str("- ");
                members_of(members, depth + 1, true, text);
            }
            Value::Array(inner) if !inner.is_empty() => {
                text.push_str("-\n");
                items_of(inner, depth + 1, text);
            }
            scalar => {
                text.push_str("- ");
                scalar_of(scalar, depth + 1, text);
                text.push('\n');
            }
        }
    }
}

fn scalar_of(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::String(string) if is_plain(string) => text.push_str(string),
        Value::String(string) if is_literal(string) => literal(string, depth, text),
        Value::String(string) => quoted(string, text),
        Value::Object(_) => text.push_str("{}"),
        Value::Array(_) => text.push_str("[]"),
        Value::Null => text.push_str("null"),
        Value::Bool(_) | Value::Number(_) => {
            // Writing to a String cannot fail.
            let _ = write!(text, "{value}");
        }
    }
}

/// Whether every parser reads it as this string.
fn is_plain(string: &str) -> bool {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let mut characters = string.chars();
    let Some(first) = characters.next() else { return false };
    let dotted_number = first.is_ascii_digit()
        && string.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        && string.matches('.').count() > 1;
    if !(first.is_ascii_alphabetic() || matches!(first, '/' | '_') || dotted_number) {
        return false;
    }
    let safe = |c: char| c.is_ascii_alphanumeric() || "_./@+=,-:() ;\"'".contains(c);
    characters.all(safe)
        && !string.contains(": ")
        && !string.ends_with([':', ' '])
        && !WORDS.iter().any(|word| word.eq_ignore_ascii_case(string))
}

/// Whether a literal block preserves these lines.
fn is_literal(string: &str) -> bool {
    string.contains('\n')
        && !string.starts_with([' ', '\n', '\t'])
        && string.chars().all(|c| c == '\n' || (' '..='~').contains(&c))
        && string.lines().all(|line| !line.ends_with(' '))
        && !string.ends_with("\n\n")
}

fn literal(string: &str, depth: usize, text: &mut String) {
    text.push_str(if string.ends_with('\n') { "|" } else { "|-" });
    for line in string.lines() {
        text.push('\n');
        if !line.is_empty() {
            indent(depth, text);
            text.push_str(line);
        }
    }
}

fn quoted(string: &str, text: &mut String) {
    text.push('"');
    for c in string.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') =>
            {
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn yaml_of_a_pod_matches_kubectl() {
        let value = json!({
            "apiVersion": "v1",
            "metadata": {"annotations": {"kubernetes.io/config.source": "file", "n": "1"}, "labels": {}},
            "spec": {"containers": [{"args": ["-c", "echo: hi\nexit 1\n"], "image": "nginx:1.2", "name": "web"}]},
            "status": {"podIP": "10.0.0.1", "startTime": "2026-11-20T16:00:00Z", "ready": true, "x": "yes"},
        });
        let expected = "\
apiVersion: v1
metadata:
  annotations:
    kubernetes.io/config.source: file
    \"n\": \"1\"
  labels: {}
spec:
  containers:
  - args:
    - \"-c\"
    - |
      echo: hi
      exit 1
    image: nginx:1.2
    name: web
status:
  podIP: 10.0.0.1
  ready: true
  startTime: \"2026-11-20T16:00:00Z\"
  x: \"yes\"
";
        assert_eq!(to_string(&value), expected);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            "[ -~\n]{0,12}",
            ".{0,8}",
            "(yes|no|null|~|1e3|0x1F|1_000|12:30|2026-11-20|=|<<|- a|a #b|a: b|\\.inf|0o7|:a|a:)",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[ -~]{0,6}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back_as_the_same_value(value in any_value()) {
            let text = to_string(&value);
            let read: Value = serde_saphyr::from_str(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
            prop_assert_eq!(read, value, "{}", text);
        }
    }
}
