//! `agent describe node`: the machine, its conditions, its pods and their requests, as kubectl prints it.
//!
//! Owns the page.

use crate::model::ordered::Sortable as _;
use serde_json::Value;

use super::{Tabbed, event_table, field, several, time};
use crate::cmd::cli::args::{CliOptions, UsageError};
use crate::cmd::cli::table::printable;
use crate::cmd::cli::{CliError, EXIT_FAILED, EXIT_OK, Environment, age, api, get, offline, print};
use crate::model::api::pod::{Pod, ResourceList};
use crate::model::api::quantity::Quantity;
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;
use crate::platform::rt;
use crate::pod::resources::{pod_limits, pod_requests};
use crate::serve::server::ObjectDetail;
use crate::serve::server::report::AgentReport;

const ROLE: &str = "node-role.kubernetes.io/";

/// Whether the argument names nodes, perhaps with a name behind it: `no`, `node/NAME`.
pub(super) fn is_meant(word: &str) -> bool {
    matches!(word.split('/').next(), Some("node" | "nodes" | "no"))
}

pub(super) fn run(options: &CliOptions, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let meant = |word: &str| {
        is_meant(word).then_some(()).ok_or_else(|| UsageError::Resource { given: word.to_owned() })
    };
    let ((), names) = get::names(options, meant).map_err(CliError::Usage)?;
    // Only the running agent knows its node; the store is not read.
    let list = rt::run(api::fetch(&options.socket, "/api/v1/nodes", api::OBJECTS));
    let list = list.map_err(CliError::Runtime)??;
    let report = offline::report(options, ObjectDetail::Counted, environment)?;
    let node = &list["items"][0];
    let own = text(node, "/metadata/name");
    let (mut code, mut is_shown) = (EXIT_OK, names.is_empty());
    for name in names {
        if own.starts_with(name.as_str()) {
            is_shown = true;
        } else {
            let _ =
                writeln!(environment.err, "error: nodes {name:?} not found; there is: {}", printable(own));
            code = EXIT_FAILED;
        }
    }
    if is_shown {
        print(environment, &page(node, &report, environment.now))?;
    }
    Ok(code)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn texts<'a>(value: &'a Value, pointer: &str) -> Vec<(&'a str, &'a str)> {
    let members = value.pointer(pointer).and_then(Value::as_object);
    members
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default()))
        .collect()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn when(value: &Value, name: &str) -> String {
    let given = value[name].as_str().unwrap_or_default();
    Timestamp::parse_rfc3339(given).map_or_else(|| given.to_owned(), time)
}

pub(super) fn page(node: &Value, report: &AgentReport, now: Timestamp) -> String {
    let mut out = Tabbed::default();
    let name = text(node, "/metadata/name");
    field(&mut out, 0, "Name", name);
    let labels = texts(node, "/metadata/labels");
    let roles: Vec<&str> = labels.iter().filter_map(|(label, _)| label.strip_prefix(ROLE)).collect();
    field(&mut out, 0, "Roles", &if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") });
    several(&mut out, "Labels", labels.iter().map(|(name, value)| format!("{name}={value}")).collect());
    let annotations = texts(node, "/metadata/annotations");
    several(
        &mut out,
        "Annotations",
        annotations.iter().map(|(name, value)| format!("{name}: {value}")).collect(),
    );
    field(&mut out, 0, "CreationTimestamp", &when(&node["metadata"], "creationTimestamp"));
    let taint = |taint: &Value| {
        let (key, value, effect) = (text(taint, "/key"), text(taint, "/value"), text(taint, "/effect"));
        if value.is_empty() { format!("{key}:{effect}") } else { format!("{key}={value}:{effect}") }
    };
    several(&mut out, "Taints", list(node, "/spec/taints").iter().map(taint).collect());
    let is_cordoned = node["spec"]["unschedulable"] == true;
    field(&mut out, 0, "Unschedulable", if is_cordoned { "true" } else { "false" });
    conditions(&mut out, node);
    out.line(0, "Addresses:");
    for address in list(node, "/status/addresses") {
        field(&mut out, 1, text(address, "/type"), text(address, "/address"));
    }
    for (title, place) in [("Capacity", "/status/capacity"), ("Allocatable", "/status/allocatable")] {
        out.line(0, &format!("{title}:"));
        for (name, amount) in texts(node, place) {
            field(&mut out, 1, name, amount);
        }
    }
    out.line(0, "System Info:");
    for (title, name) in INFO {
        let value = text(node, &format!("/status/nodeInfo/{name}"));
        if !value.is_empty() {
            field(&mut out, 1, title, value);
        }
    }
    let networks: Vec<&str> = list(node, "/spec/podCIDRs").iter().filter_map(Value::as_str).collect();
    if let Some(first) = networks.first() {
        field(&mut out, 0, "PodCIDR", first);
        field(&mut out, 0, "PodCIDRs", &networks.join(","));
    }
    exclusive(&mut out, report);
    pod_table(&mut out, node, &report.pods, now);
    let own = report.events.iter().filter(|event| event.involved_object.kind == "Node");
    event_table(&mut out, own.collect(), now);
    out.finish()
}

const INFO: [(&str, &str); 9] = [
    ("Machine ID", "machineID"),
    ("System UUID", "systemUUID"),
    ("Boot ID", "bootID"),
    ("Kernel Version", "kernelVersion"),
    ("OS Image", "osImage"),
    ("Operating System", "operatingSystem"),
    ("Architecture", "architecture"),
    ("Container Runtime Version", "containerRuntimeVersion"),
    ("Kubelet Version", "kubeletVersion"),
];

fn row(out: &mut Tabbed, cells: &[&str]) {
    out.line(1, &cells.iter().map(|cell| printable(cell)).collect::<Vec<_>>().join("\t"));
}

fn headed(out: &mut Tabbed, cells: &[&str]) {
    row(out, cells);
    let lines: Vec<String> = cells.iter().map(|cell| "-".repeat(cell.len())).collect();
    out.line(1, &lines.join("\t"));
}

fn conditions(out: &mut Tabbed, node: &Value) {
    out.line(0, "Conditions:");
    headed(out, &["Type", "Status", "LastHeartbeatTime", "LastTransitionTime", "Reason", "Message"]);
    for condition in list(node, "/status/conditions") {
        let (seen, since) = (when(condition, "lastHeartbeatTime"), when(condition, "lastTransitionTime"));
        let at = |pointer| text(condition, pointer);
        row(out, &[at("/type"), at("/status"), &seen, &since, at("/reason"), at("/message")]);
    }
}

/// Which container has which CPUs and which memory to itself.
fn exclusive(out: &mut Tabbed, report: &AgentReport) {
    let tables: [(&str, &[&str], &[String]); 2] = [
        ("CPUs:", &["CPU", "Core", "Socket", "NUMA Node", "Used By"], &report.cpus),
        ("Exclusive Memory:", &["Container", "Type", "Bytes", "NUMA Nodes"], &report.memory),
    ];
    for (title, heads, lines) in tables.into_iter().filter(|(.., lines)| !lines.is_empty()) {
        out.line(0, title);
        headed(out, heads);
        for line in lines {
            row(out, &line.split('\t').collect::<Vec<_>>());
        }
    }
}

/// The resources of every node; others follow by name.
const USUAL: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

fn pod_table(out: &mut Tabbed, node: &Value, pods: &[Pod], now: Timestamp) {
    let allocatable: ResourceList = texts(node, "/status/allocatable")
        .into_iter()
        .filter_map(|(name, amount)| Some((name.to_owned(), Quantity::parse(amount).ok()?)))
        .into_map();
    let mut own: Vec<&Pod> =
        pods.iter().filter(|pod| !matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")).collect();
    own.order_by_key(|pod| pod.pod_ref());
    out.line(0, &format!("Non-terminated Pods:\t({} in total)", own.len()));
    headed(
        out,
        &["Namespace", "Name", "CPU Requests", "CPU Limits", "Memory Requests", "Memory Limits", "Age"],
    );
    let (mut requested, mut limited) = (ResourceList::new(), ResourceList::new());
    for pod in own {
        let (requests, limits) = (pod_requests(pod), pod_limits(pod));
        let part = |name: &str, amounts: &ResourceList| share(name, amounts, &allocatable);
        let born = pod.metadata.creation_timestamp.or(pod.status.start_time);
        row(
            out,
            &[
                &pod.metadata.namespace,
                &pod.metadata.name,
                &part("cpu", &requests),
                &part("cpu", &limits),
                &part("memory", &requests),
                &part("memory", &limits),
                &age::since_or_unknown(born, now),
            ],
        );
        for (sums, amounts) in [(&mut requested, requests), (&mut limited, limits)] {
            for (name, amount) in amounts {
                // The sum has the notation of the first amount.
                let sum = sums.get(&name).map_or(amount, |sum| sum.saturating_add(amount));
                sums.insert(name, sum);
            }
        }
    }
    out.line(0, "Allocated resources:");
    out.line(1, "(Total limits may be over 100 percent, i.e., overcommitted.)");
    headed(out, &["Resource", "Requests", "Limits"]);
    let others =
        allocatable.keys().map(String::as_str).filter(|name| !USUAL.contains(name) && *name != "pods");
    for name in USUAL.into_iter().chain(others) {
        let (requests, limits) = (share(name, &requested, &allocatable), share(name, &limited, &allocatable));
        row(out, &[name, &requests, &limits]);
    }
}

/// An amount, and its percentage of the allocatable one.
fn share(name: &str, amounts: &ResourceList, allocatable: &ResourceList) -> String {
    let amount = amounts.get(name).copied().unwrap_or(Quantity::from_units(0));
    let counted = |amount: Quantity| if name == "cpu" { amount.milli_value() } else { amount.value() };
    let percent = match allocatable.get(name).map(|all| counted(*all)) {
        None | Some(0) => 0,
        Some(all) => i128::from(counted(amount)) * 100 / i128::from(all),
    };
    format!("{amount} ({percent}%)")
}
