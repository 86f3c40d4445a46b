//! What differs between the configuration in force and another one, and what a running agent takes over of it.
//!
//! Owns the comparison.

use serde_json::Value;

use super::fields::{FIELDS, by_path};
use super::resolve::{Origin, Provenance};
use super::tree;

/// Fields whose default stands for what suits the machine or a feature gate: given, the same value means itself.
const BY_ORIGIN: [&str; 2] = ["cgroupDriver", "crashLoopBackOff.maxContainerRestartPeriod"];

/// The changed fields by their paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ConfigChanges {
    /// A running agent takes their new values over.
    pub at_once: Vec<&'static str>,
    /// Their new values are in force after the agent's next start.
    pub at_restart: Vec<&'static str>,
}

/// A configuration as a file says it.
pub(super) fn written(document: &Value, provenance: &Provenance) -> Value {
    let mut document = document.clone();
    for path in BY_ORIGIN {
        if !provenance.get(path).is_some_and(Origin::is_explicit) {
            tree::remove(&mut document, path);
        }
    }
    document
}

/// Compares with `start`, the configuration at the start of the process, and `last`, the one that was taken over last.
pub(super) fn changes(start: &Value, last: &Value, new: &Value) -> ConfigChanges {
    let mut changes = ConfigChanges::default();
    for field in FIELDS {
        let value = tree::get(new, field.path);
        if field.is_reloaded() {
            if value != tree::get(last, field.path) {
                changes.at_once.push(field.path);
            }
        } else if value != tree::get(start, field.path) {
            changes.at_restart.push(field.path);
        }
    }
    changes
}

/// The configuration at the start with those fields of the new one that a running agent takes over.
pub(super) fn taken_over(start: &Value, new: &Value) -> Value {
    let mut document = start.clone();
    for field in FIELDS.iter().filter(|field| field.is_reloaded()) {
        match tree::get(new, field.path) {
            Some(value) => tree::set(&mut document, field.path, value.clone()),
            None => tree::remove(&mut document, field.path),
        }
    }
    for field in BY_ORIGIN.into_iter().filter_map(by_path) {
        // Not written at the start: its default.
        let default = field.default.filter(|_| tree::get(&document, field.path).is_none());
        if let Some(Ok(value)) = default.map(|default| field.kind.parse(default, None)) {
            tree::set(&mut document, field.path, value);
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_those_since_the_start_or_since_the_last_reload() {
        let start =
            json!({"port": 1, "maxPods": 10, "clusterDNS": ["10.0.0.1"], "logging": {"verbosity": 0}});
        let last = json!({"port": 1, "maxPods": 9, "clusterDNS": ["10.0.0.2"], "logging": {"verbosity": 0}});
        let new = json!({"port": 2, "maxPods": 10, "clusterDNS": ["10.0.0.2"], "logging": {"verbosity": 4}});
        let expected = ConfigChanges { at_once: vec!["logging.verbosity"], at_restart: vec!["port"] };
        assert_eq!(changes(&start, &last, &new), expected);
        assert_eq!(changes(&start, &start, &start), ConfigChanges::default());
    }

    #[test]
    fn what_needs_a_restart_stays_as_it_was_at_the_start() {
        let start =
            json!({"port": 1, "podLogsDir": "/a", "clusterDNS": ["10.0.0.1"], "logging": {"verbosity": 0}});
        let new = json!({"port": 2, "podLogsDir": "/b", "logging": {"verbosity": 4, "format": "json"}});
        let expected = json!({"port": 1, "podLogsDir": "/a", "logging": {"verbosity": 4}, "cgroupDriver": "cgroupfs",
            "crashLoopBackOff": {"maxContainerRestartPeriod": "5m0s"}});
        assert_eq!(taken_over(&start, &new), expected);
    }
}
