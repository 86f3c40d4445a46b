//! Settings of the kubelet that change nothing here: which, why, and what is done when one is set.
//!
//! Owns that list. A setting without a row acts.

use serde_json::Value;

use super::args::Args;
use super::error::Findings;
use super::fields::FIELDS;
use super::resolve::{Layered, Origin, layer};
use super::tree;

/// A setting without an effect.
#[derive(Debug)]
pub(super) struct NoEffect {
    /// Path of the field, or flag with its dashes.
    name: &'static str,
    /// Another value than the one in force is an error. Otherwise upstream ignores the setting, too.
    is_refused: bool,
    pub(super) why: &'static str,
}

impl NoEffect {
    /// For the table of all settings.
    #[cfg(test)]
    pub(super) fn told(&self) -> String {
        let kind = if self.is_refused { "another value is refused" } else { "none" };
        format!("{kind}: {}", self.why)
    }
}

const fn refused(name: &'static str, why: &'static str) -> NoEffect {
    NoEffect { name, is_refused: true, why }
}

const fn ignored(name: &'static str, why: &'static str) -> NoEffect {
    NoEffect { name, is_refused: false, why }
}

const GO_RUNTIME: &str = "it profiles the runtime of Go programs; use perf";
const LOGS_UNBUFFERED: &str = "logs are written to stderr line by line";
const NO_TRACES: &str = "the agent exports no traces";
const UNUSED_BIT: &str = "the kubelet has not used this bit since v1.28";

static NO_EFFECT: &[NoEffect] = &[
    refused("enableContentionProfiling", GO_RUNTIME),
    refused("enableProfilingHandler", GO_RUNTIME),
    refused("contentType", "the agent sends JSON to the API server"),
    refused("showHiddenMetricsForVersion", "no metric is hidden"),
    refused("tracing.endpoint", NO_TRACES),
    refused("tracing.samplingRatePerMillion", NO_TRACES),
    refused("logging.options.text.splitStream", LOGS_UNBUFFERED),
    refused("logging.options.text.infoBufferSize", LOGS_UNBUFFERED),
    refused("logging.options.json.splitStream", LOGS_UNBUFFERED),
    refused("logging.options.json.infoBufferSize", LOGS_UNBUFFERED),
    refused(
        "hairpinMode",
        "each port of the built-in bridge is in hairpin mode; CNI plugins have their own setting",
    ),
    refused("qosReserved", "memory is not reserved by QoS class"),
    refused("memoryReservationPolicy", "memory is not protected"),
    refused(
        "makeIPTablesUtilChains",
        "rules of Services are nftables' own; the agent makes no iptables chains",
    ),
    ignored("iptablesMasqueradeBit", UNUSED_BIT),
    ignored("iptablesDropBit", UNUSED_BIT),
    refused("--experimental-mounter-path", "the agent mounts by system calls and runs no mounter"),
];

/// The row of a field or flag.
pub(super) fn of(name: &str) -> Option<&'static NoEffect> {
    NO_EFFECT.iter().find(|row| row.name == name)
}

/// Looks for settings by the user that have no effect. Those that ask for the kubelet's default, or that upstream
/// ignores, get a line of the log each.
///
/// # Errors
/// Those that ask for something else.
pub(super) fn check(args: &Args, layered: &Layered) -> Result<Vec<String>, Findings> {
    // The configuration of an agent without any argument; layering neither files nor flags cannot fail.
    let silent = layer(&Args::default()).map(|layered| layered.document).unwrap_or_default();
    let (mut lines, mut findings) = (Vec::new(), Findings::default());
    for row in NO_EFFECT {
        let Some(origin) = layered.provenance.get(row.name).filter(|origin| origin.is_explicit()) else {
            continue;
        };
        let (given, in_force, default) = if let Some(flag) = row.name.strip_prefix("--") {
            (args.value(flag).cloned(), Some(Value::from("")), None)
        } else {
            let field = FIELDS.iter().find(|field| field.path == row.name);
            let default = field.and_then(|field| field.kind.parse(field.default?, None).ok());
            (tree::get(&layered.document, row.name).cloned(), tree::get(&silent, row.name).cloned(), default)
        };
        // A zero may be a number or a text.
        let is = |other: &Option<Value>| match (&given, other) {
            (Some(given), Some(other)) => shown(given) == shown(other),
            (given, other) => given.is_none() && other.is_none(),
        };
        if is(&in_force) {
            continue;
        }
        if row.is_refused && !is(&default) {
            findings.add(row.name, refusal(&given.unwrap_or_default(), row.why));
        } else {
            lines.push(format!("{} ({origin}) has no effect: {}", row.name, row.why));
        }
    }
    if findings.0.is_empty() { Ok(lines) } else { Err(findings) }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn refusal(given: &Value, why: &str) -> String {
    format!("{given} is not supported: {why}; remove it")
}

/// What `--help` and `agent config --explain` add to such a setting.
pub(super) fn note(name: &str, origin: Option<&Origin>) -> String {
    match of(name) {
        // The reason is there already.
        Some(_) if matches!(origin, Some(Origin::AgentDefault(_))) => {
            "; no other value is supported".to_owned()
        }
        Some(row) if row.is_refused => format!("; no other value is supported: {}", row.why),
        Some(row) => format!("; no effect: {}", row.why),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::config::flags::FLAGS;

    #[test]
    fn each_row_names_a_setting_once_with_a_reason() {
        let named = |name: &str| {
            FIELDS.iter().any(|field| field.path == name)
                || FLAGS.iter().any(|flag| name == format!("--{}", flag.name))
        };
        for row in NO_EFFECT {
            assert!(named(row.name) && !row.why.is_empty(), "{}", row.name);
            assert_eq!(NO_EFFECT.iter().filter(|other| other.name == row.name).count(), 1, "{}", row.name);
        }
        assert!(FIELDS.iter().all(|field| of(field.path).is_none() || !field.is_reloaded()));
    }
}
