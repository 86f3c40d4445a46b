//! What tables are made of: where a cell comes from, and texts that several tables have.
//!
//! Owns no table. Pure.

use serde_json::{Value, json};

use super::super::scale::query;
use super::super::text;
use super::Column;
use crate::model::types::Timestamp;

/// Where a cell comes from.
#[derive(Clone, Copy)]
pub(super) enum Cell {
    Name,
    Age,
    /// The value at a place, and what stands for no value.
    At(&'static str, &'static str),
    /// A value that is computed.
    Of(fn(&Value) -> Value),
    /// A value that is computed, and changes with time.
    Timed(fn(&Value, Timestamp) -> Value),
}

/// A table's columns.
pub(super) type Table = &'static [(Column, Cell)];

pub(super) fn items<'a>(object: &'a Value, place: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(place).and_then(Value::as_array).into_iter().flatten()
}

/// The texts at a place of each item.
pub(super) fn words<'a>(items: impl Iterator<Item = &'a Value>, place: &str) -> Vec<&'a str> {
    items.map(|item| text(item, place)).filter(|text| !text.is_empty()).collect()
}

pub(super) fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

/// A number, 0 without one.
pub(super) fn count(object: &Value, place: &str) -> Value {
    json!(object.pointer(place).and_then(Value::as_i64).unwrap_or_default())
}

/// A label selector as a query.
pub(super) fn selector(selector: &Value) -> String {
    or_none(query(selector))
}
