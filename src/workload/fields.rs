//! Reading objects that are JSON: fields, amounts that are numbers or percentages, conditions.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::{Map, Value, json};

pub(super) use crate::model::selector::{selects, string_map};
use crate::model::types::Timestamp;

static NULL: Value = Value::Null;

pub(super) fn at<'v>(value: &'v Value, pointer: &str) -> &'v Value {
    value.pointer(pointer).unwrap_or(&NULL)
}

pub(super) fn int(value: &Value, pointer: &str, default: i64) -> i64 {
    at(value, pointer).as_i64().unwrap_or(default)
}

pub(super) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    at(value, pointer).as_str().unwrap_or_default()
}

pub(super) fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    at(value, pointer).as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn time(value: &Value, pointer: &str) -> Option<Timestamp> {
    Timestamp::parse_rfc3339(text(value, pointer))
}

/// An amount given as a number or as a percentage of `total`.
pub(super) fn scaled(amount: &Value, total: i64, rounds_up: bool) -> i64 {
    if let Some(number) = amount.as_i64() {
        return number;
    }
    let percent = amount.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok()).unwrap_or(0);
    let product = percent.saturating_mul(total);
    if rounds_up { product.saturating_add(99) / 100 } else { product / 100 }
}

/// The conditions of an object's status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conditions(pub Vec<Value>);

/// What a condition says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said<'t> {
    pub kind: &'t str,
    /// `True`, `False` or `Unknown`.
    pub status: &'t str,
    pub reason: &'t str,
    pub message: &'t str,
}

impl Conditions {
    pub(super) fn of(body: &Value) -> Self {
        Self(list(body, "/status/conditions").to_vec())
    }

    pub(super) fn get(&self, kind: &str) -> Option<&Value> {
        self.0.iter().find(|condition| condition["type"] == kind)
    }

    pub(super) fn is(&self, kind: &str, status: &str) -> bool {
        self.get(kind).is_some_and(|condition| condition["status"] == status)
    }

    pub(super) fn reason(&self, kind: &str) -> &str {
        self.get(kind).map_or("", |condition| text(condition, "/reason"))
    }

    pub(super) fn message(&self, kind: &str) -> &str {
        self.get(kind).map_or("", |condition| text(condition, "/message"))
    }

    pub(super) fn remove(&mut self, kind: &str) {
        self.0.retain(|condition| condition["type"] != kind);
    }

    /// Sets a condition; one with the same status and reason stays as it is, one with the same status keeps the time of
    /// its transition (upstream: `SetDeploymentCondition`). `updated` is the member with the time of the last change.
    pub(super) fn set(&mut self, said: Said<'_>, updated: Option<&str>, now: Timestamp) -> bool {
        let known = self.get(said.kind);
        let is_same = |field: &str, value: &str| known.is_some_and(|known| text(known, field) == value);
        if is_same("/status", said.status) && is_same("/reason", said.reason) {
            return false;
        }
        self.replace(said, updated, now);
        true
    }

    /// As [`Self::set`], whatever was said before.
    pub(super) fn replace(&mut self, said: Said<'_>, updated: Option<&str>, now: Timestamp) {
        let now = json!(now.to_rfc3339());
        let known = self.get(said.kind).filter(|known| known["status"] == said.status);
        let since = known.map_or(&now, |known| &known["lastTransitionTime"]).clone();
        let mut condition = json!({"type": said.kind, "status": said.status, "lastTransitionTime": since});
        if let Some(updated) = updated {
            condition[updated] = now;
        }
        for (field, value) in [("reason", said.reason), ("message", said.message)] {
            if !value.is_empty() {
                condition[field] = json!(value);
            }
        }
        self.remove(said.kind);
        self.0.push(condition);
    }
}

/// A status of these numbers, without those that are zero, as Go writes it.
pub(super) fn counted(numbers: &[(&str, i64)]) -> Map<String, Value> {
    let shown = numbers.iter().filter(|(_, number)| *number != 0);
    shown.map(|(name, number)| ((*name).to_owned(), json!(number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_up_or_down() {
        for (amount, total, up, down) in [
            (json!("25%"), 10, 3, 2),
            (json!("25%"), 4, 1, 1),
            (json!("25%"), 1, 1, 0),
            (json!("100%"), 7, 7, 7),
            (json!("1%"), 0, 0, 0),
            (json!(3), 1, 3, 3),
            (json!(null), 5, 0, 0),
        ] {
            assert_eq!((scaled(&amount, total, true), scaled(&amount, total, false)), (up, down), "{amount}");
        }
    }

    #[test]
    fn a_condition_keeps_its_transition_while_its_status_stays() {
        let mut conditions = Conditions::default();
        let (first, second) = (Timestamp::from_secs(100), Timestamp::from_secs(200));
        let said = |reason| Said { kind: "Progressing", status: "True", reason, message: "m" };
        assert!(conditions.set(said("A"), Some("lastUpdateTime"), first));
        assert!(!conditions.set(said("A"), Some("lastUpdateTime"), second));
        assert!(conditions.set(said("B"), Some("lastUpdateTime"), second));
        let condition = conditions.get("Progressing").unwrap();
        assert_eq!(time(condition, "/lastTransitionTime"), Some(first));
        assert_eq!(time(condition, "/lastUpdateTime"), Some(second));
        assert!(conditions.set(Said { status: "False", ..said("B") }, None, second));
        assert_eq!(time(conditions.get("Progressing").unwrap(), "/lastTransitionTime"), Some(second));
    }
}
