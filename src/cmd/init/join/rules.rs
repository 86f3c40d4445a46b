//! Decisions of `agent join`, without effects.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::super::install;
use super::super::preflight::PreflightFinding;
use super::{AUTHORITY, BOOTSTRAP, KUBECONFIG};
use crate::codec::yaml::yaml_to_values;
use crate::model::types::Timestamp;

pub(super) const LOCAL_PODS: &str = "LocalPods";
pub(super) const CONFIG_HEADER: &str =
    "# Written by agent join: the cluster's kubelet-config over what was here.\n";
/// Tokens and certificates that were made just now are valid somewhat earlier; Kubernetes allows five minutes.
const MOST_SKEW: Duration = Duration::from_secs(300);
/// The flags that `join` sets, without their dashes.
const OWN_FLAGS: [&str; 4] = ["kubeconfig", "bootstrap-kubeconfig", "hostname-override", "link-profile"];

/// The host of `host:port`, without brackets.
pub(in crate::cmd) fn host(endpoint: &str) -> Option<&str> {
    let (host, _) = endpoint.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

/// A scheduler counts only the pods that it knows.
pub(super) fn local_pods(pods: &[String]) -> PreflightFinding {
    if pods.is_empty() {
        return PreflightFinding::ok(LOCAL_PODS, "none");
    }
    let message = format!(
        "pods of this node's own API use resources that the cluster does not see: {}",
        pods.join(", ")
    );
    PreflightFinding::error(LOCAL_PODS, format!("{} pods", pods.len()), message)
        .required("none")
        .fix("delete them, or make them static pods: agent get pods -o yaml")
        .command("agent delete pod NAME")
}

/// kubeadm's rule: a node of that name that works is another machine.
pub(in crate::cmd) fn is_free(node: &Value, name: &str) -> Result<(), String> {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    if !conditions.clone().any(|it| it["type"] == "Ready" && it["status"] == "True") {
        return Ok(());
    }
    Err(format!(
        "a Node with name {name:?} and status \"Ready\" already exists in the cluster. You must delete the existing \
         Node or change the name of this new joining Node"
    ))
}

/// The cluster's configuration over the one that is there, and what to say about it. What the cluster leaves empty does
/// not replace anything. The address that `agent init` writes keeps the API on this machine: with it, the cluster could
/// not reach the node.
pub(super) fn configuration(there: Option<Value>, cluster: &Value) -> (Value, Vec<String>) {
    let mut merged = there.filter(Value::is_object).unwrap_or_else(|| Value::Object(Map::new()));
    let mut notes = Vec::new();
    if merged["address"] == "127.0.0.1" && cluster["address"].as_str().unwrap_or_default().is_empty() {
        merged.as_object_mut().map(|members| members.remove("address"));
        notes.push(
            "Removing address: 127.0.0.1 from the configuration: the cluster has to reach this node"
                .to_owned(),
        );
        // Without it the agent's default would be the same address.
        merged["address"] = "0.0.0.0".into();
    }
    over(&mut merged, cluster);
    (merged, notes)
}

/// Without the `clientCAFile` the node's API would not be served. kubeadm writes the usual one on a node that joins.
pub(super) fn check_authority(merged: &Value, exists: &dyn Fn(&Path) -> bool) -> Result<(), String> {
    let file = merged["authentication"]["x509"]["clientCAFile"].as_str().unwrap_or_default();
    if file.is_empty() || exists(Path::new(file)) {
        return Ok(());
    }
    Err(format!(
        "the cluster's kubelet-config ConfigMap sets authentication.x509.clientCAFile to {file:?}, which this machine does \
         not have: copy the cluster's CA certificate there, or set the field to {AUTHORITY:?} (kubectl -n kube-system edit \
         configmap kubelet-config), and join again"
    ))
}

fn over(target: &mut Value, cluster: &Value) {
    let (Value::Object(members), Value::Object(given)) = (&mut *target, cluster) else {
        target.clone_from(cluster);
        return;
    };
    for (name, value) in given {
        match members.get_mut(name) {
            Some(_) if is_empty(value) => {}
            Some(there) => over(there, value),
            None => drop(members.insert(name.clone(), value.clone())),
        }
    }
}

/// As kubeadm writes what is not set: `""`, `0`, `0s`, `{}`.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => matches!(text.as_str(), "" | "0s"),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
        Value::Bool(_) => false,
    }
}

fn is_own(flag: &str) -> bool {
    let name = flag.trim_start_matches('-').split('=').next().unwrap_or_default();
    OWN_FLAGS.contains(&name)
}

/// The service's file with these flags instead of the ones that it has; the other lines stay.
fn with_flags(text: &str, flags: &[String]) -> String {
    let mut lines: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("AGENT_ARGS=")).collect();
    let own = install::defaults(flags);
    if lines.is_empty() {
        return own;
    }
    lines.extend(own.lines().filter(|line| line.starts_with("AGENT_ARGS=")));
    lines.into_iter().map(|line| [line, "\n"].concat()).collect()
}

/// The service's flags of a joined node; the others stay. `name`: not the host's.
pub(super) fn with_cluster(text: &str, name: Option<&str>, is_metered: bool) -> String {
    let mut flags = others(text, name.is_some());
    flags.push(format!("--bootstrap-kubeconfig={BOOTSTRAP}"));
    flags.push(format!("--kubeconfig={KUBECONFIG}"));
    flags.extend(name.map(|name| format!("--hostname-override={name}")));
    if is_metered {
        flags.push("--link-profile=metered".to_owned());
    }
    with_flags(text, &flags)
}

/// The service's flags of a node with further flags of its kubelet, which replace those of the same names.
pub(in crate::cmd::init) fn with_cluster_flags(text: &str, more: &[String]) -> String {
    let name_of = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    let is_replaced = |flag: &String| more.iter().any(|new| name_of(new) == name_of(flag));
    let mut flags = others(text, true);
    flags.retain(|flag| !is_replaced(flag));
    flags.push(format!("--bootstrap-kubeconfig={BOOTSTRAP}"));
    flags.push(format!("--kubeconfig={KUBECONFIG}"));
    flags.extend_from_slice(more);
    unmarked(text, with_flags(text, &flags))
}

/// A file of the user's stays one: without the mark by which `reset` knows those of `init`.
pub(in crate::cmd::init) fn unmarked(before: &str, made: String) -> String {
    let is_users = !before.trim().is_empty() && !before.contains(install::DEFAULTS_HEADER);
    match made.split_once('\n') {
        Some((first, rest)) if is_users && first.starts_with(install::DEFAULTS_HEADER) => rest.to_owned(),
        _ => made,
    }
}

/// What there is to say when this machine's clock and the server's differ: certificates and tokens have times.
pub(super) fn clock_warning(now: Timestamp, server: Option<Timestamp>) -> Option<String> {
    let server = server?;
    let difference = now.saturating_since(server).max(server.saturating_since(now));
    let side = if now > server { "ahead of" } else { "behind" };
    (difference > MOST_SKEW).then(|| {
        format!(
            "\t[WARNING Clock]: the clock of this machine ({}) is {} s {side} the API server's: certificates and tokens may \
             count as expired or as not valid yet; set the clock\n",
            now.to_rfc3339(),
            difference.as_secs()
        )
    })
}

/// The same file without the cluster; `None` when it has none.
pub(in crate::cmd::init) fn without_cluster(text: &str) -> Option<String> {
    let flags = others(text, false);
    (flags != install::service_flags(text)).then(|| with_flags(text, &flags))
}

/// The same file without some flags; `None` when it has none of them.
pub(in crate::cmd::init) fn without_flags(text: &str, is_unwanted: &dyn Fn(&str) -> bool) -> Option<String> {
    let mut flags = install::service_flags(text);
    let count = flags.len();
    flags.retain(|flag| !is_unwanted(flag));
    (flags.len() < count).then(|| with_flags(text, &flags))
}

/// The flags that do not belong to `join`. A name that the user has given stays, unless it is replaced.
fn others(text: &str, with_name: bool) -> Vec<String> {
    let (mut kept, mut skips) = (Vec::new(), false);
    for flag in install::service_flags(text) {
        let is_value = std::mem::take(&mut skips) && !flag.starts_with('-');
        let is_name = flag.starts_with("--hostname-override");
        if is_own(&flag) && (with_name || !is_name) {
            skips = !flag.contains('=');
        } else if !is_value {
            kept.push(flag);
        }
    }
    kept
}

/// Whether the kubeconfig names a client certificate that is there, or has one in it.
pub(super) fn has_certificate(kubeconfig: &str, exists: &dyn Fn(&Path) -> bool) -> bool {
    let values = yaml_to_values(kubeconfig, false).unwrap_or_default();
    let user = values.first().map_or(&Value::Null, |value| &value["users"][0]["user"]);
    user["client-certificate"].as_str().is_some_and(|path| exists(Path::new(path)))
        || user["client-certificate-data"].is_string()
}
