//! Layers to one configuration: defaults, `--config`, drop-ins, flags, and the origin of each setting.
//!
//! Owns precedence and both default sets.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::args::Args;
use super::error::{API_VERSION, ConfigError, KIND};
use super::fields::{BASELINE, EVICTION_DEFAULTS, FIELDS, SettingField};
use super::load::{Loaded, config_file, drop_ins, merge_patch};
use super::tree::{self, Mention};

use crate::model::ordered::Ordered as _;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The kubelet's default.
    Default,
    /// The agent's default, with the reason for the difference.
    AgentDefault(&'static str),
    /// The `--config` file.
    File(PathBuf),
    /// A file of `--config-dir`.
    DropIn(PathBuf),
    /// A flag, by the spelling used.
    Flag(String),
}

impl Origin {
    #[must_use]
    pub(in crate::agent) fn is_explicit(&self) -> bool {
        !matches!(self, Self::Default | Self::AgentDefault(_))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::AgentDefault(why) => write!(formatter, "agent default (differs from the kubelet): {why}"),
            Self::File(path) => write!(formatter, "file {}", path.display()),
            Self::DropIn(path) => write!(formatter, "drop-in {}", path.display()),
            Self::Flag(name) => write!(formatter, "flag --{name}"),
        }
    }
}

/// Origin of every field by its path, and of every other flag as `--name`.
pub(crate) type Provenance = BTreeMap<String, Origin>;

#[derive(Debug)]
pub(super) struct Layered {
    pub(super) document: Value,
    pub(super) provenance: Provenance,
    pub(super) warnings: Vec<String>,
}

/// Merges flags over drop-ins over the file over defaults.
pub(super) fn layer(args: &Args) -> Result<Layered, ConfigError> {
    let path = |name: &str| args.value(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let mut layered = match path("config") {
        Some(file) => from_file(config_file(Path::new(file))?),
        None => baseline(),
    };
    if let Some(directory) = path("config-dir") {
        for drop_in in drop_ins(Path::new(directory))? {
            apply_drop_in(&mut layered, drop_in);
        }
        apply_defaults(&mut layered.document);
    }
    apply_flags(&mut layered, args);
    apply_agent_defaults(&mut layered, is_joined(args));
    Ok(layered)
}

/// The kubelet's values before any file: the flag baseline.
pub(super) fn baseline() -> Layered {
    let mut document = json!({ "apiVersion": API_VERSION, "kind": KIND });
    for (path, text) in BASELINE {
        if let Some(value) = super::fields::by_path(path).and_then(|field| field.kind.parse(text, None).ok())
        {
            tree::set(&mut document, path, value);
        }
    }
    apply_defaults(&mut document);
    let provenance = FIELDS.iter().map(|field| (field.path.to_owned(), Origin::Default)).into_map();
    Layered { document, provenance, warnings: Vec::new() }
}

fn from_file(loaded: Loaded) -> Layered {
    let Loaded { path, value, warnings } = loaded;
    let mut document = json!({});
    merge_patch(&mut document, &value);
    let mut provenance = Provenance::new();
    for field in FIELDS {
        let said = tree::get(&document, field.path).is_some_and(|value| !counts_as_absent(field, value));
        let origin = if said { Origin::File(path.clone()) } else { Origin::Default };
        provenance.insert(field.path.to_owned(), origin);
    }
    apply_defaults(&mut document);
    fill_eviction(&mut document);
    Layered { document, provenance, warnings }
}

fn counts_as_absent(field: &SettingField, value: &Value) -> bool {
    !field.keeps_zero() && field.kind.is_zero(value)
}

/// Fills missing fields with the file's defaults; a plain zero counts as missing.
fn apply_defaults(document: &mut Value) {
    let update_frequency = tree::get(document, "nodeStatusUpdateFrequency").cloned();
    let report_frequency = tree::get(document, "nodeStatusReportFrequency").cloned();
    let parallel = tree::get(document, "maxParallelImagePulls").and_then(Value::as_i64).unwrap_or(0);
    if tree::get(document, "serializeImagePulls").is_none() {
        tree::set(document, "serializeImagePulls", Value::Bool(parallel < 2));
    }
    let unset = |path: &str, value: &Option<Value>| {
        let field = super::fields::by_path(path);
        value.as_ref().is_none_or(|value| field.is_some_and(|field| counts_as_absent(field, value)))
    };
    if unset("nodeStatusReportFrequency", &report_frequency)
        && !unset("nodeStatusUpdateFrequency", &update_frequency)
    {
        tree::set(document, "nodeStatusReportFrequency", update_frequency.unwrap_or_default());
    }
    for field in FIELDS {
        let missing = tree::get(document, field.path).is_none_or(|value| counts_as_absent(field, value));
        // A default that is itself zero need not be set.
        let Some(default) = field.default.filter(|_| missing) else { continue };
        if let Ok(value) = field.kind.parse(default, None) {
            tree::set(document, field.path, value);
        }
    }
}

/// The hard eviction thresholds of a `--config` file: all of them when it has none, the missing ones when it
/// requests that.
fn fill_eviction(document: &mut Value) {
    let merge = tree::get(document, "mergeDefaultEvictionSettings") == Some(&Value::Bool(true));
    let mut thresholds = match tree::get(document, "evictionHard") {
        None => Map::new(),
        Some(Value::Object(members)) if merge => members.clone(),
        Some(_) => return,
    };
    for (signal, threshold) in EVICTION_DEFAULTS {
        thresholds.entry(signal).or_insert_with(|| Value::String(threshold.to_owned()));
    }
    tree::set(document, "evictionHard", Value::Object(thresholds));
}

fn apply_drop_in(layered: &mut Layered, drop_in: Loaded) {
    let Loaded { path, value, warnings } = drop_in;
    merge_patch(&mut layered.document, &value);
    layered.warnings.extend(warnings);
    for field in FIELDS {
        let origin = match tree::mention(&value, field.path) {
            Mention::None => continue,
            Mention::Value
                if tree::get(&value, field.path).is_some_and(|value| counts_as_absent(field, value)) =>
            {
                Origin::Default
            }
            Mention::Value => Origin::DropIn(path.clone()),
            Mention::Null => Origin::Default,
        };
        layered.provenance.insert(field.path.to_owned(), origin);
    }
}

fn apply_flags(layered: &mut Layered, args: &Args) {
    for (name, given) in &args.given {
        let origin = Origin::Flag(given.spelled.clone());
        let Some(field) = FIELDS.iter().find(|field| field.flag == *name) else {
            layered.provenance.insert(format!("--{name}"), origin);
            continue;
        };
        if field.path == "featureGates" {
            let mut gates = tree::get(&layered.document, field.path).cloned().unwrap_or_default();
            merge_patch(&mut gates, &given.value);
            tree::set(&mut layered.document, field.path, gates);
        } else {
            tree::set(&mut layered.document, field.path, given.value.clone());
        }
        layered.provenance.insert(field.path.to_owned(), origin);
    }
}

pub(super) const EMBEDDED: &str = "embedded";

/// Whether the node belongs to a cluster.
pub(super) fn is_joined(args: &Args) -> bool {
    args.value("kubeconfig").and_then(Value::as_str).is_some_and(|path| !path.is_empty())
}

/// Who is let in when the user says nothing: setting, value, reason. A file enables no access that it does not name. A
/// node of a cluster (`--kubeconfig`) opens its port to those whom the cluster allows, and to no one else.
pub(super) fn access_defaults(is_joined: bool) -> [(&'static str, Value, &'static str); 5] {
    let (address, mode) = if is_joined {
        (
            ("0.0.0.0", "the cluster reaches the API of its node"),
            ("Webhook", "the cluster decides about access"),
        )
    } else {
        (
            ("127.0.0.1", "the API is reachable from other machines only when an address is set"),
            ("Local", "access is decided by the groups of certificates and tokens"),
        )
    };
    let tokens = if is_joined { "the cluster knows its tokens" } else { "there is no cluster to ask" };
    [
        ("authentication.anonymous.enabled", json!(false), "requests need a client certificate or a token"),
        ("readOnlyPort", json!(0), "there is no unauthenticated port"),
        ("address", json!(address.0), address.1),
        ("authentication.webhook.enabled", json!(is_joined), tokens),
        ("authorization.mode", json!(mode.0), mode.1),
    ]
}

/// The defaults that differ from the kubelet's, each only if the user has not set the field.
pub(super) fn apply_agent_defaults(layered: &mut Layered, is_joined: bool) {
    let mut settle = |path: &str, value: Value, why: &'static str| {
        let silent = layered.provenance.get(path).is_none_or(|origin| !origin.is_explicit());
        if silent && tree::get(&layered.document, path) != Some(&value) {
            tree::set(&mut layered.document, path, value);
            layered.provenance.insert(path.to_owned(), Origin::AgentDefault(why));
        }
    };
    settle("failCgroupV1", json!(false), "hosts with cgroup v1 are accepted");
    settle("failSwapOn", json!(false), "hosts with swap are accepted");
    settle("contentType", json!("application/json"), "the agent sends JSON to the API server");
    settle("enableProfilingHandler", json!(false), "there is no Go runtime to profile");
    settle("hairpinMode", json!("hairpin-veth"), "each port of the built-in bridge is in hairpin mode");
    settle("makeIPTablesUtilChains", json!(false), "the agent makes no iptables chains");
    settle("containerRuntimeEndpoint", json!(EMBEDDED), "no separate container runtime is needed");
    for (path, value, why) in access_defaults(is_joined) {
        settle(path, value, why);
    }
    let parallel = tree::get(&layered.document, "maxParallelImagePulls").and_then(Value::as_i64).unwrap_or(0);
    if parallel >= 2 && layered.provenance.get("serializeImagePulls") == Some(&Origin::Default) {
        // The kubelet's own default depends on the other field, which a later layer may have set.
        tree::set(&mut layered.document, "serializeImagePulls", Value::Bool(false));
    }
}
