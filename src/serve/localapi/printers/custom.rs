//! The columns that a CustomResourceDefinition asks for (upstream: `additionalPrinterColumns`).
//!
//! Owns their cells, and the part of JSONPath that they are written in. Pure.

use serde_json::{Value, json};

use super::super::{age, text};
use crate::model::types::Timestamp;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CustomColumn {
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: String,
    pub format: String,
    pub about: String,
    /// JSONPath, as `.spec.replicas`.
    pub path: String,
    pub priority: i64,
}

/// `columnDefinitions`.
pub(crate) fn definitions(columns: &[CustomColumn]) -> Vec<Value> {
    let name = json!({"name": "Name", "type": "string", "format": "name", "description": "Name, unique within a namespace.", "priority": 0});
    let shape = |column: &CustomColumn| json!({"name": column.name, "type": column.kind, "format": column.format, "description": column.about, "priority": column.priority});
    std::iter::once(name).chain(columns.iter().map(shape)).collect()
}

pub(crate) fn cells(columns: &[CustomColumn], object: &Value, now: Timestamp) -> Vec<Value> {
    let cell = |column: &CustomColumn| {
        let found = find(object, &column.path);
        match (found.as_slice(), column.kind.as_str()) {
            ([], _) => Value::Null,
            ([one], "integer") => one.as_i64().map_or(Value::Null, Value::from),
            ([one], "number") => one.as_f64().map_or(Value::Null, Value::from),
            ([one], "boolean") => one.as_bool().map_or(Value::Null, Value::from),
            ([one], "date") => match one.as_str() {
                Some(time) => json!(age::since_or_unknown(Timestamp::parse_rfc3339(time), now)),
                None => Value::Null,
            },
            (several, _) => json!(several.iter().map(|one| shown(one)).collect::<Vec<_>>().join(",")),
        }
    };
    std::iter::once(json!(text(object, "/metadata/name"))).chain(columns.iter().map(cell)).collect()
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The values at a JSONPath: `.a.b`, `.a\.b`, `['a']`, `[0]`, `[*]`, `[?(@.type=="Ready")]`. Nothing for any other path.
fn find<'a>(object: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![object];
    let mut rest = path.trim().trim_start_matches('{').trim_end_matches('}').trim_start_matches('$');
    while !rest.is_empty() {
        let Some((step, after)) = step(rest) else { return Vec::new() };
        found = found.into_iter().flat_map(|value| take(value, &step)).collect();
        rest = after;
    }
    found.retain(|value| !value.is_null());
    found
}

enum PathStep {
    Member(String),
    Index(i64),
    All,
    /// Items whose value at a path is this text.
    Where(String, String),
}

/// The first step of a path, and the rest.
fn step(path: &str) -> Option<(PathStep, &str)> {
    if let Some(rest) = path.strip_prefix('.') {
        let (mut name, mut end, mut escaped) = (String::new(), rest.len(), false);
        for (at, letter) in rest.char_indices() {
            match letter {
                '\\' if !escaped => {
                    escaped = true;
                    continue;
                }
                '.' | '[' if !escaped => {
                    end = at;
                    break;
                }
                letter => name.push(letter),
            }
            escaped = false;
        }
        let step = if name == "*" { PathStep::All } else { PathStep::Member(name) };
        return Some((step, &rest[end..]));
    }
    let inner = path.strip_prefix('[')?;
    if let Some(filter) = inner.strip_prefix("?(@") {
        let (condition, rest) = filter.split_once(")]")?;
        let (place, value) = condition.split_once("==")?;
        let value = value.trim().trim_matches(['"', '\'']);
        return Some((PathStep::Where(place.trim().to_owned(), value.to_owned()), rest));
    }
    let (word, rest) = inner.split_once(']')?;
    let step = match word {
        "*" => PathStep::All,
        word => match word.parse() {
            Ok(index) => PathStep::Index(index),
            Err(_) => PathStep::Member(word.trim_matches(['"', '\'']).to_owned()),
        },
    };
    Some((step, rest))
}

fn take<'a>(value: &'a Value, step: &PathStep) -> Vec<&'a Value> {
    match (step, value) {
        (PathStep::Member(name), Value::Object(members)) => members.get(name).into_iter().collect(),
        (PathStep::Index(index), Value::Array(items)) => {
            let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
            let at = if *index < 0 { length + index } else { *index };
            usize::try_from(at).ok().and_then(|at| items.get(at)).into_iter().collect()
        }
        (PathStep::All, Value::Array(items)) => items.iter().collect(),
        (PathStep::All, Value::Object(members)) => members.values().collect(),
        (PathStep::Where(place, wanted), Value::Array(items)) => {
            let is_wanted = |item: &&'a Value| find(item, place).iter().any(|found| shown(found) == *wanted);
            items.iter().filter(is_wanted).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_what_definitions_mean() {
        let object = json!({"metadata": {"name": "x", "annotations": {"a.b/c": "d"}},
            "spec": {"replicas": 2, "items": [{"name": "one"}, {"name": "two"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]}});
        for (path, expected) in [
            (".spec.replicas", "2"),
            ("$.spec.replicas", "2"),
            ("{.spec.replicas}", "2"),
            (".spec.items[*].name", "one,two"),
            (".spec.items[0].name", "one"),
            (".spec.items[-1].name", "two"),
            (".status.conditions[?(@.type==\"Ready\")].status", "True"),
            (".status.conditions[?(@.type=='Other')].status", "False"),
            (".metadata.annotations.a\\.b/c", "d"),
            (".metadata.annotations['a.b/c']", "d"),
            (".spec.none.deeper", ""),
            (".spec.items[", ""),
            ("spec", ""),
        ] {
            let found: Vec<String> = find(&object, path).into_iter().map(shown).collect();
            assert_eq!(found.join(","), expected, "{path}");
        }
    }

    #[test]
    fn cells_are_of_their_columns_type() {
        let column = |kind: &str, path: &str| CustomColumn {
            kind: kind.to_owned(),
            path: path.to_owned(),
            ..CustomColumn::default()
        };
        let columns = [
            column("integer", ".spec.n"),
            column("boolean", ".spec.n"),
            column("string", ".spec.n"),
            column("date", ".spec.at"),
            column("string", ".spec.none"),
            column("string", ".spec"),
        ];
        let object = json!({"metadata": {"name": "x"}, "spec": {"n": 3, "at": "2023-11-14T22:08:20Z"}});
        assert_eq!(
            cells(&columns, &object, Timestamp::from_secs(1_700_000_000)),
            [
                json!("x"),
                json!(3),
                Value::Null,
                json!("3"),
                json!("5m"),
                Value::Null,
                json!("{\"at\":\"2023-11-14T22:08:20Z\",\"n\":3}")
            ]
        );
        assert_eq!(definitions(&columns).len(), 7);
    }
}
