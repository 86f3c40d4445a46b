//! `agent status`: the running pods, the problems, and their causes.
//!
//! Owns the command's output.

use super::args::{CliOptions, Command, OutputFormat, UsageError};
use super::findings::{Finding, findings};
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, age, offline, print, table, to_json, to_yaml};
use crate::cluster::report::{ClusterReport, LinkReport, WaitingReport};
use crate::cmd::help;
use crate::model::api::pod::Pod;
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;
use crate::serve::localapi::pod_printer::columns;
use crate::serve::server::report::{AgentMode, ObjectCounts, SourceState};
use crate::serve::server::{AgentReport, ObjectDetail};
use crate::store::upgrade::rules::{UpgradePhase, summary};

use std::fmt::Write;

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let options = CliOptions::parse(Command::Status, arguments).map_err(CliError::Usage)?;
    if options.help {
        print(environment, &help::text("status"))?;
        return Ok(EXIT_OK);
    }
    if let Some(word) = options.words.first() {
        return Err(CliError::Usage(UsageError::Unexpected { given: word.clone() }));
    }
    let mut report = offline::report(&options, ObjectDetail::Counted, environment)?;
    report.pods.order_by_key(Pod::pod_ref);
    let findings = findings(&report, environment.now);
    let text = match options.output {
        OutputFormat::Json => to_json(&report)?,
        OutputFormat::Yaml => to_yaml(&report)?,
        OutputFormat::Text | OutputFormat::Name | OutputFormat::JsonPath => {
            render(&report, &findings, false, environment)
        }
        OutputFormat::Wide => render(&report, &findings, true, environment),
    };
    print(environment, &text)?;
    Ok(if findings.is_empty() || options.exit_zero { EXIT_OK } else { EXIT_FAILED })
}

fn render(report: &AgentReport, findings: &[Finding], wide: bool, environment: &Environment<'_>) -> String {
    let now = environment.now;
    let mut text = head(report, now);
    if !report.sources.is_empty() {
        text.push('\n');
        text.push_str(&table::render_painted(&source_rows(report, now), environment.colour));
    }
    text.push('\n');
    if report.pods.is_empty() {
        text.push_str("No pods.\n");
    } else {
        text.push_str(&table::render_painted(&pod_rows(&report.pods, wide, now), environment.colour));
    }
    text.push('\n');
    let paint = |code: &str, words: &str| {
        if environment.colour { format!("\u{1b}[{code}m{words}\u{1b}[0m") } else { words.to_owned() }
    };
    if findings.is_empty() {
        text.push_str(&paint("32", "All is well."));
        text.push('\n');
        return text;
    }
    text.push_str(&paint("31", "What is wrong:"));
    text.push('\n');
    for finding in findings {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  {}: {}",
            table::printable(&finding.subject),
            // Further lines of a message are indented below its first.
            finding.message.lines().map(table::printable).collect::<Vec<_>>().join("\n      ")
        );
    }
    text
}

fn head(report: &AgentReport, now: Timestamp) -> String {
    let node = if report.node_name.is_empty() { "<unknown>" } else { &report.node_name };
    let agent = match report.mode {
        AgentMode::Running => format!(
            "{} running (pid {}) for {}",
            report.version,
            report.pid,
            age::since_or_unknown(report.started_at, now)
        ),
        AgentMode::NotRunning => "not running".to_owned(),
    };
    let runtime = &report.runtime;
    let state = match (report.mode, runtime.ready) {
        (AgentMode::NotRunning, _) => "not checked",
        (_, true) => "ready",
        (_, false) => "not ready",
    };
    let name = [runtime.name.as_str(), &runtime.version, &runtime.endpoint]
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let runtime_line = format!("{name} ({state})");
    let counts = &report.object_counts;
    let objects = format!(
        "{} configmaps, {} secrets, {} persistentvolumeclaims",
        counts.config_maps, counts.secrets, counts.persistent_volume_claims
    );
    let mut rows = vec![
        ["Node:", node],
        ["Agent:", &agent],
        ["Runtime:", &runtime_line],
        ["Store:", &report.store.path],
    ];
    let cluster = report.cluster.as_ref().map(|cluster| cluster_line(cluster, now));
    if let Some(line) = &cluster {
        rows.push(["Cluster:", line]);
    }
    let root_dir = std::path::Path::new(&report.store.path).parent();
    let upgrade = root_dir
        .and_then(crate::store::upgrade::read)
        .filter(|record| record.phase != UpgradePhase::Upgraded);
    let upgrade = upgrade.map(|record| summary(&record));
    if let Some(line) = &upgrade {
        rows.push(["Upgrade:", line]);
    }
    if *counts != ObjectCounts::default() {
        rows.push(["Objects:", &objects]);
    }
    let rows: Vec<_> = rows.into_iter().map(|row| row.map(str::to_owned).to_vec()).collect();
    table::render(&rows)
}

/// The server, the link, the certificate, and what the server does not have yet.
fn cluster_line(cluster: &ClusterReport, now: Timestamp) -> String {
    let LinkReport { state, since, .. } = &cluster.link;
    let mut line = format!("{} {state}", cluster.server);
    if let Some(since) = since {
        let _ = write!(line, " for {}", age::since(*since, now));
    }
    if cluster.metered {
        line.push_str(", metered");
    }
    if let (Some(until), false) = (cluster.certificate.until, cluster.certificate.expired) {
        let day = |at: Timestamp| at.to_rfc3339().chars().take(10).collect::<String>();
        let _ = write!(line, ", certificate until {}", day(until));
        if let Some(renews) = cluster.certificate.renews {
            let _ = write!(line, " (renewed from {})", day(renews));
        }
    }
    let WaitingReport { pods, events } = cluster.waiting;
    if pods + events > 0 {
        let _ = write!(line, ", waiting to be sent: {pods} pods, {events} events");
    }
    line
}

/// The header and a row per pod.
pub(super) fn pod_rows(pods: &[Pod], wide: bool, now: Timestamp) -> Vec<Vec<String>> {
    let mut rows =
        vec![["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"].map(str::to_owned)];
    rows.extend(pods.iter().map(|pod| {
        let (pod_ref, cells) = (&pod.metadata, columns(pod, now));
        let [namespace, name] = [&pod_ref.namespace, &pod_ref.name].map(String::clone);
        [namespace, name, cells.ready, cells.status, cells.restarts, cells.age, cells.ip, cells.node]
    }));
    let shown = if wide { 8 } else { 6 };
    rows.into_iter().map(|row| row.into_iter().take(shown).collect()).collect()
}

fn source_rows(report: &AgentReport, now: Timestamp) -> Vec<Vec<String>> {
    let header = ["SOURCE", "STATE", "ANSWERED", "PODS", "PROBLEMS", "ORIGIN"].map(str::to_owned).to_vec();
    let rows = report.sources.iter().map(|source| {
        let state = match source.state {
            _ if report.mode == AgentMode::NotRunning => "stored",
            SourceState::Waiting => "waiting",
            SourceState::Ok => "ok",
            SourceState::Trial => "trial",
            SourceState::Failing => "failing",
        };
        let answered = match source.last_answer {
            Some(moment) => format!("{} ago", age::since(moment, now)),
            None => "<unknown>".to_owned(),
        };
        vec![
            source.name.clone(),
            state.to_owned(),
            answered,
            source.pods.to_string(),
            source.problems.len().to_string(),
            source.origin.clone(),
        ]
    });
    std::iter::once(header).chain(rows).collect()
}
