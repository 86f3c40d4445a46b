//! `agent describe`: everything about a pod or the node on one page, as kubectl prints it.
//!
//! Owns the command and the page's outline. The contents of Secrets are not on a pod's page.

mod containers;
mod node;
mod other;
#[cfg(test)]
mod tests;
mod volumes;

use crate::cmd::help;
use crate::model::ordered::Sortable as _;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::args::{CliOptions, Command, UsageError};
use super::table::printable;
use super::tabs::Tabbed;
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, age, api, get, objects, offline, print};
use crate::model::api::pod::{Pod, PodStatus, Toleration};
use crate::model::provenance::is_from_api;
use crate::model::types::Timestamp;
use crate::platform::rt;
use crate::pod::resources::qos_class;
use crate::serve::localapi::resource::Store;
use crate::serve::server::report::EventReport;
use crate::serve::server::{AgentReport, ObjectDetail};

/// Longest annotation on one line (kubectl's).
const MAX_ANNOTATION: usize = 140;
/// The source of events of a node's pods (upstream).
const COMPONENT: &str = "kubelet";

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let options = CliOptions::parse(Command::Describe, arguments).map_err(CliError::Usage)?;
    if options.help {
        print(environment, &help::text("describe"))?;
        return Ok(EXIT_OK);
    }
    if options.words.first().is_some_and(|word| node::is_meant(word)) {
        return node::run(&options, environment);
    }
    let (resource, names) = get::names(&options, api::resource).map_err(|error| match error {
        UsageError::NoResource => CliError::Usage(UsageError::NothingToDescribe),
        other => CliError::Usage(other),
    })?;
    if let Some(kind) = objects::reported_kind(resource) {
        return objects::describe(resource, kind, &names, &options, environment);
    }
    if resource.store != Store::Pods {
        return rt::run(other::show(resource, &names, &options, environment)).map_err(CliError::Runtime)?;
    }
    let mut report = offline::report(&options, ObjectDetail::Counted, environment)?;
    let namespace = options.namespace.as_deref().unwrap_or("default");
    report.pods.retain(|pod| options.all_namespaces || pod.metadata.namespace == namespace);
    report.pods.order_by_key(Pod::pod_ref);
    if report.pods.is_empty() && names.is_empty() {
        let place = if options.all_namespaces { String::new() } else { format!(" in {namespace} namespace") };
        let _ = writeln!(environment.err, "No resources found{place}.");
        return Ok(EXIT_OK);
    }
    let mut pages = Vec::new();
    let mut missing = Vec::new();
    if names.is_empty() {
        pages.extend(&report.pods);
    }
    for name in names {
        let found = find(&report.pods, &name);
        if found.is_empty() {
            missing.push(name);
        }
        pages.extend(found);
    }
    let pages: Vec<String> = pages.into_iter().map(|pod| page(pod, &report, environment.now)).collect();
    print(environment, &pages.join("\n\n"))?;
    for name in &missing {
        let known: Vec<&str> = report.pods.iter().map(|pod| pod.metadata.name.as_str()).collect();
        let there = if known.is_empty() {
            "there are no pods".to_owned()
        } else {
            format!("existing pods: {}", known.join(", "))
        };
        let _ = writeln!(
            environment.err,
            "error: pods {name:?} not found in namespace {namespace:?}; {}",
            printable(&there)
        );
    }
    Ok(if missing.is_empty() { EXIT_OK } else { EXIT_FAILED })
}

/// The pod of that name, otherwise all with that prefix (kubectl).
fn find<'a>(pods: &'a [Pod], name: &str) -> Vec<&'a Pod> {
    let exact: Vec<&Pod> = pods.iter().filter(|pod| pod.metadata.name == name).collect();
    if exact.is_empty() {
        pods.iter().filter(|pod| pod.metadata.name.starts_with(name)).collect()
    } else {
        exact
    }
}

fn page(pod: &Pod, report: &AgentReport, now: Timestamp) -> String {
    let mut out = Tabbed::default();
    head(&mut out, pod, now);
    containers::describe(&mut out, pod);
    conditions(&mut out, pod);
    volumes::describe(&mut out, &pod.spec.volumes);
    let class = if pod.status.qos_class.is_empty() { qos_class(pod).as_str() } else { &pod.status.qos_class };
    field(&mut out, 0, "QoS Class", class);
    let selectors = pod.spec.node_selector.iter().map(|(name, value)| format!("{name}={value}"));
    several(&mut out, "Node-Selectors", selectors.collect());
    tolerations(&mut out, &pod.spec.tolerations);
    let metadata = &pod.metadata;
    let name = format!("{}/{}", metadata.namespace, metadata.name);
    let problems = report.sources.iter().flat_map(|source| &source.problems);
    let problems: Vec<String> = problems
        .filter(|problem| problem.pod == name)
        .map(|problem| format!("{}: {}: {}", problem.reason, problem.origin, problem.message))
        .collect();
    if !problems.is_empty() {
        several(&mut out, "Problems", problems);
    }
    let own = report.events.iter().filter(|event| {
        let object = &event.involved_object;
        let is_named =
            object.kind == "Pod" && object.namespace == metadata.namespace && object.name == metadata.name;
        // A changed static pod has a new uid; an API pod with a different uid is a different pod.
        is_named && (object.uid == metadata.uid.as_str() || !is_from_api(pod))
    });
    event_table(&mut out, own.collect(), now);
    out.finish()
}

/// A name and a value, without control characters and tabs.
fn field(out: &mut Tabbed, level: usize, name: &str, value: &str) {
    out.line(level, &format!("{}:\t{}", printable(name), printable(value)));
}

fn head(out: &mut Tabbed, pod: &Pod, now: Timestamp) {
    let (metadata, spec, status) = (&pod.metadata, &pod.spec, &pod.status);
    field(out, 0, "Name", &metadata.name);
    field(out, 0, "Namespace", &metadata.namespace);
    if let Some(priority) = spec.priority {
        field(out, 0, "Priority", &priority.to_string());
    }
    let optional = [
        ("Priority Class Name", spec.priority_class_name.as_str()),
        ("Runtime Class Name", spec.runtime_class_name.as_deref().unwrap_or_default()),
        ("Service Account", &spec.service_account_name),
    ];
    for (name, value) in optional.into_iter().filter(|(_, value)| !value.is_empty()) {
        field(out, 0, name, value);
    }
    let node = format!("{}/{}", spec.node_name, status.host_ip);
    field(out, 0, "Node", if spec.node_name.is_empty() { "<none>" } else { &node });
    if let Some(start) = status.start_time {
        field(out, 0, "Start Time", &time(start));
    }
    several(out, "Labels", metadata.labels.iter().map(|(name, value)| format!("{name}={value}")).collect());
    several(out, "Annotations", annotation_lines(pod));
    standing(out, pod, now);
    let profile = spec.security_context.as_ref().and_then(|security| security.seccomp_profile.as_ref());
    if let Some(profile) = profile {
        field(out, 0, "SeccompProfile", &profile.type_);
        if let Some(path) = &profile.localhost_profile {
            field(out, 0, "LocalhostProfile", path);
        }
    }
    field(out, 0, "IP", &status.pod_ip);
    if status.pod_ips.is_empty() {
        field(out, 0, "IPs", "<none>");
    } else {
        out.line(0, "IPs:");
        for holder in &status.pod_ips {
            field(out, 1, "IP", &holder.ip);
        }
    }
    if let Some(resources) = &spec.resources {
        out.line(0, "Resources:");
        containers::resources(out, resources, 1);
    }
}

/// Phase, reason and message.
fn standing(out: &mut Tabbed, pod: &Pod, now: Timestamp) {
    let status = &pod.status;
    let ended = matches!(status.phase.as_str(), "Succeeded" | "Failed");
    match pod.metadata.deletion_timestamp {
        Some(since) if !ended => {
            field(out, 0, "Status", &format!("Terminating (lasts {})", age::since(since, now)));
            let own = pod.termination_grace_period_seconds();
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(own);
            field(out, 0, "Termination Grace Period", &format!("{grace}s"));
        }
        _ => field(out, 0, "Status", &status.phase),
    }
    for (name, value) in [("Reason", &status.reason), ("Message", &status.message)] {
        if !value.is_empty() {
            field(out, 0, name, value);
        }
    }
}

/// A title with several lines beside it.
fn several(out: &mut Tabbed, title: &str, lines: Vec<String>) {
    if lines.is_empty() {
        return out.line(0, &format!("{title}:\t<none>"));
    }
    let mut title = format!("{title}:");
    for line in lines {
        out.line(0, &format!("{title}\t{}", printable(&line)));
        title.clear();
    }
}

fn annotation_lines(pod: &Pod) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, value) in &pod.metadata.annotations {
        let value = value.trim_end_matches('\n');
        if name.len() + value.len() + 2 <= MAX_ANNOTATION && !value.contains('\n') {
            lines.push(format!("{name}: {value}"));
            continue;
        }
        lines.push(format!("{name}:"));
        lines.extend(value.split('\n').map(|part| match part.char_indices().nth(MAX_ANNOTATION - 2) {
            Some((end, _)) => format!("  {}...", &part[..end]),
            None => format!("  {part}"),
        }));
    }
    lines
}

fn conditions(out: &mut Tabbed, pod: &Pod) {
    let PodStatus { conditions, .. } = &pod.status;
    let status_of = |name: &str| {
        let found = conditions.iter().find(|condition| condition.type_ == name);
        found.map_or("<none>", |condition| condition.status.as_str())
    };
    let gates = pod.spec.readiness_gates.iter().map(|gate| gate.condition_type.as_str());
    let gates: Vec<(&str, &str)> = gates.map(|gate| (gate, status_of(gate))).collect();
    let told = conditions.iter().map(|condition| (condition.type_.as_str(), condition.status.as_str()));
    for (title, rows) in [("Readiness Gates", gates), ("Conditions", told.collect())] {
        if rows.is_empty() {
            continue;
        }
        out.line(0, &format!("{title}:"));
        out.line(1, "Type\tStatus");
        for (type_, status) in rows {
            out.line(1, &format!("{}\t{}", printable(type_), printable(status)));
        }
    }
}

fn tolerations(out: &mut Tabbed, tolerations: &[Toleration]) {
    let mut sorted: Vec<&Toleration> = tolerations.iter().collect();
    sorted.order_by(|one, other| one.key.cmp(&other.key));
    several(out, "Tolerations", sorted.into_iter().map(toleration_line).collect());
}

fn toleration_line(toleration: &Toleration) -> String {
    let marked =
        |mark: &str, part: &str| if part.is_empty() { String::new() } else { format!("{mark}{part}") };
    let Toleration { key, operator, value, effect, .. } = toleration;
    let what = format!("{key}{}{}", marked("=", value), marked(":", effect));
    let exists = match operator.as_str() {
        "Exists" if value.is_empty() && what.is_empty() => "op=Exists",
        "Exists" if value.is_empty() => " op=Exists",
        _ => "",
    };
    let time = toleration.toleration_seconds.map(|seconds| format!(" for {seconds}s"));
    format!("{what}{exists}{}", time.unwrap_or_default())
}

fn event_table(out: &mut Tabbed, mut own: Vec<&EventReport>, now: Timestamp) {
    if own.is_empty() {
        return out.line(0, "Events:\t<none>");
    }
    own.order_by_key(|event| event.last_timestamp);
    out.line(0, "Events:");
    out.line(1, "Type\tReason\tAge\tFrom\tMessage");
    out.line(1, "----\t------\t----\t----\t-------");
    for event in own {
        let path = &event.involved_object.field_path;
        let message = event.message.trim();
        let message = if path.is_empty() { message.to_owned() } else { format!("{path}: {message}") };
        let cells = [event.type_.as_str(), &event.reason, &event_age(event, now), COMPONENT, &message];
        out.line(1, &cells.map(printable).join("\t"));
    }
}

fn event_age(event: &EventReport, now: Timestamp) -> String {
    let first = age::since_or_unknown(event.first_timestamp, now);
    if event.count > 1 {
        let last = age::since_or_unknown(event.last_timestamp, now);
        format!("{last} (x{} over {first})", event.count)
    } else {
        first
    }
}

/// `Tue, 14 Nov 2023 22:13:20 +0000`, always in UTC.
fn time(moment: Timestamp) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(moment.as_nanos()))
        .ok()
        .and_then(|moment| moment.format(&Rfc2822).ok())
        .unwrap_or_else(|| moment.to_string())
}
