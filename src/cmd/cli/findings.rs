//! Problems and their causes: from a report to a list of messages.
//!
//! Owns the judgement. Pure.

use std::time::Duration;

use super::age;
use crate::cluster::report::{ClusterReport, LinkReport};
use crate::model::api::pod::{ContainerStatus, Pod, PodCondition, PodStatus};
use crate::model::types::Timestamp;
use crate::serve::server::AgentReport;
use crate::serve::server::pki::plausible;
use crate::serve::server::report::{AgentMode, EventReport, SourceState};

/// A warning that has not been repeated for this long no longer explains why a pod waits.
const EVENT_AGE: Duration = Duration::from_secs(600);

/// Warnings about a pod that starts nevertheless: they never explain why one waits.
const HARMLESS: [&str; 3] = ["MissingClusterDNS", "DNSConfigForming", "FieldIgnored"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub subject: String,
    pub message: String,
}

/// All problems, the most general first.
pub(super) fn findings(report: &AgentReport, now: Timestamp) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |subject: &str, message: String| {
        findings.push(Finding { subject: subject.to_owned(), message });
    };
    let running = report.mode == AgentMode::Running;
    if !running {
        add("agent", "not running".to_owned());
    }
    if running && !report.runtime.ready {
        let runtime = &report.runtime;
        let since = runtime.since.map(|since| format!(" for {}", age::since(since, now))).unwrap_or_default();
        add("runtime", with_reason(&format!("{} is not ready{since}", runtime.endpoint), &runtime.message));
    }
    if !report.store.ok || !report.store.message.is_empty() {
        add("store", with_reason(&report.store.path, &report.store.message));
    }
    for pressure in &report.pressure {
        let since = age::since_or_unknown(pressure.since, now);
        add("node", format!("{} for {since}: {}", pressure.condition, pressure.message));
    }
    if now < plausible(now) {
        let reads = now.to_rfc3339();
        let waits =
            "certificates are treated as valid from this release's build date, and no deadline predates boot";
        add(
            "clock",
            format!(
                "the clock reads {reads}, which is before this release was built: until it is set, {waits}"
            ),
        );
    }
    for trouble in &report.serving {
        add("serving", trouble.clone());
    }
    for problem in &report.problems {
        add(&problem.subject, problem.message.clone());
    }
    if running && report.sources.is_empty() {
        add("sources", "no pod source is configured: set --manifest-dir or --manifest-url".to_owned());
    }
    for message in report.cluster.iter().flat_map(|cluster| cluster_troubles(cluster, now)) {
        add("cluster", message);
    }
    for source in &report.sources {
        let subject = format!("source {}", source.name);
        match source.state {
            SourceState::Waiting if running => {
                add(
                    &subject,
                    format!("no valid response from {} yet; keeping the stored pods", source.origin),
                );
            }
            SourceState::Failing => {
                let last = age::since_or_unknown(source.last_answer, now);
                add(
                    &subject,
                    format!(
                        "no valid response from {} for {last}; keeping the last good pods",
                        source.origin
                    ),
                );
            }
            SourceState::Waiting | SourceState::Ok | SourceState::Trial => {}
        }
        for problem in &source.problems {
            let since = age::since(problem.since, now);
            add(&problem.origin, format!("{} ({since} ago): {}", problem.reason, problem.message));
        }
    }
    for pod in &report.pods {
        let subject = format!("pod {}/{}", pod.metadata.namespace, pod.metadata.name);
        for message in pod_troubles(pod, &report.events, now) {
            add(&subject, message);
        }
    }
    findings
}

fn cluster_troubles(cluster: &ClusterReport, now: Timestamp) -> Vec<String> {
    let mut messages = Vec::new();
    let LinkReport { state, since, reason } = &cluster.link;
    let since = since.map(|since| format!(" for {}", age::since(since, now))).unwrap_or_default();
    match state.as_str() {
        "offline" => messages.push(with_reason(
            &format!("{} has not answered{since}; pods keep running", cluster.server),
            reason,
        )),
        "refused" => messages.push(with_reason(
            &format!("{} has given no valid answer{since}; pods keep running", cluster.server),
            reason,
        )),
        _ => {}
    }
    if !cluster.problem.is_empty() {
        messages.push(cluster.problem.clone());
    }
    if cluster.held_since.is_some() {
        messages.push(
            "the cluster was replaced or restored from a backup, and its answers are not believed yet; to \
             confirm it, run: agent source accept cluster"
                .to_owned(),
        );
    }
    let certificate = &cluster.certificate;
    if certificate.expired {
        let until = certificate.until.map(Timestamp::to_rfc3339).unwrap_or_default();
        messages.push(format!(
            "the client certificate expired at {until}; write new bootstrap credentials to the file of \
             --bootstrap-kubeconfig"
        ));
    } else if certificate.until.is_none() && !certificate.request.is_empty() {
        let name = &certificate.request;
        messages.push(format!(
            "the certificate signing request waits for its approval: kubectl certificate approve {name}"
        ));
    }
    if !certificate.problem.is_empty() {
        messages.push(with_reason("no new client certificate", &certificate.problem));
    }
    if cluster.insecure {
        messages.push(
            "the kubeconfig sets insecure-skip-tls-verify: anybody on the network can pose as the API server"
                .to_owned(),
        );
    }
    messages
}

fn pod_troubles(pod: &Pod, events: &[EventReport], now: Timestamp) -> Vec<String> {
    let status = &pod.status;
    if status.phase == "Succeeded" || pod.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    if status.phase == "Failed" {
        return vec![why_failed(status)];
    }
    let mut troubles = Vec::new();
    if !status.reason.is_empty() {
        // The pod-level cause: no resources, a volume, the sandbox.
        troubles.push(with_reason(&status.reason, &status.message));
    }
    let waits =
        |condition: &&PodCondition| condition.type_ == "PodResizePending" && condition.status == "True";
    let resize = status.conditions.iter().find(waits);
    troubles.extend(resize.map(|found| with_reason(&format!("resize: {}", found.reason), &found.message)));
    let init_done = |container: &ContainerStatus| {
        container.state.terminated.as_ref().is_some_and(|terminated| terminated.exit_code == 0)
    };
    let inits = status.init_container_statuses.iter().filter(|container| !init_done(container));
    troubles.extend(inits.filter_map(|container| container_trouble(container, false)));
    let running = status.phase == "Running";
    troubles.extend(
        status.container_statuses.iter().filter_map(|container| container_trouble(container, running)),
    );
    if troubles.is_empty() && matches!(status.phase.as_str(), "" | "Pending" | "Unknown") {
        troubles.extend(last_warning(pod, events, now));
    }
    troubles
}

/// One finding about a pod that has ended: the reason of the pod, otherwise those of its containers.
fn why_failed(status: &PodStatus) -> String {
    if !status.reason.is_empty() || !status.message.is_empty() {
        let word = if status.reason.is_empty() { "Failed" } else { &status.reason };
        return with_reason(word, &status.message);
    }
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    let containers: Vec<String> = all.filter_map(|container| container_trouble(container, false)).collect();
    with_reason("Failed", &containers.join("; "))
}

fn container_trouble(container: &ContainerStatus, must_be_ready: bool) -> Option<String> {
    let name = &container.name;
    let state = &container.state;
    if let Some(waiting) = &state.waiting {
        if matches!(waiting.reason.as_str(), "" | "ContainerCreating" | "PodInitializing") {
            return None;
        }
        let mut message = with_reason(&format!("container {name}: {}", waiting.reason), &waiting.message);
        if let Some(last) = &container.last_state.terminated {
            message.push_str(&ended(" (last run: ", &last.reason, last.exit_code, &last.message));
            message.push(')');
        }
        return Some(message);
    }
    if let Some(terminated) = &state.terminated {
        let ended = ended(": ", &terminated.reason, terminated.exit_code, &terminated.message);
        return (terminated.exit_code != 0).then(|| format!("container {name}{ended}"));
    }
    (must_be_ready && state.running.is_some() && !container.ready)
        .then(|| format!("container {name} is running but not ready"))
}

fn ended(lead: &str, reason: &str, exit_code: i32, message: &str) -> String {
    let word = if reason.is_empty() { "ended" } else { reason };
    with_reason(&format!("{lead}{word}, exit code {exit_code}"), message.trim_end())
}

/// A probable cause why a pod has not started yet.
fn last_warning(pod: &Pod, events: &[EventReport], now: Timestamp) -> Option<String> {
    let uid = pod.metadata.uid.as_str();
    let event = events.iter().rev().find(|event| {
        event.involved_object.uid == uid
            && event.type_ == "Warning"
            && !HARMLESS.contains(&event.reason.as_str())
            && event.last_timestamp.is_some_and(|last| now.saturating_since(last) < EVENT_AGE)
    })?;
    Some(with_reason(&event.reason, &event.message))
}

fn with_reason(text: &str, reason: &str) -> String {
    if reason.is_empty() { text.to_owned() } else { format!("{text}: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::server::report::{PressureReport, ProblemReport};

    fn messages(report: &AgentReport, now: i64) -> Vec<String> {
        let all = findings(report, Timestamp::from_secs(now));
        let of_interest = |finding: &Finding| matches!(finding.subject.as_str(), "node" | "clock");
        all.iter()
            .filter(|one| of_interest(one))
            .map(|one| format!("{}: {}", one.subject, one.message))
            .collect()
    }

    #[test]
    fn reported_problem_is_a_finding() {
        let problem =
            ProblemReport { subject: "/images/a.tar".to_owned(), message: "cannot be imported".to_owned() };
        let report = AgentReport { problems: vec![problem], ..AgentReport::default() };
        let expected =
            Finding { subject: "/images/a.tar".to_owned(), message: "cannot be imported".to_owned() };
        assert!(findings(&report, Timestamp::from_secs(1_795_040_000)).contains(&expected));
    }

    #[test]
    fn finished_pod_is_one_finding() {
        let pod = |status: serde_json::Value| {
            let pod =
                serde_json::json!({"metadata": {"name": "job", "namespace": "default"}, "status": status});
            crate::model::api::decode::decode::<Pod>(pod).unwrap().object
        };
        let ended = |name: &str, code: i32| serde_json::json!({"name": name, "state": {"terminated": {"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" }}}});
        let containers = serde_json::json!([ended("a", 3), ended("b", 0), ended("c", 4)]);
        let said = |status| pod_troubles(&pod(status), &[], Timestamp::from_secs(0));
        assert_eq!(
            said(serde_json::json!({"phase": "Failed", "containerStatuses": containers})),
            ["Failed: container a: Error, exit code 3; container c: Error, exit code 4"]
        );
        let evicted = serde_json::json!({"phase": "Failed", "reason": "Evicted", "message": "short of memory",
            "containerStatuses": containers});
        assert_eq!(said(evicted), ["Evicted: short of memory"]);
        let done = serde_json::json!({"phase": "Succeeded", "containerStatuses": [ended("a", 0)]});
        assert_eq!(said(done), Vec::<String>::new());
    }

    #[test]
    fn node_pressure_and_implausible_clock_are_findings() {
        let pressure = PressureReport {
            condition: "DiskPressure".to_owned(),
            message: "kubelet has disk pressure".to_owned(),
            since: Some(Timestamp::from_secs(1_795_040_000)),
        };
        let report = AgentReport { pressure: vec![pressure], ..AgentReport::default() };
        assert_eq!(
            messages(&report, 1_795_040_040),
            ["node: DiskPressure for 40s: kubelet has disk pressure"]
        );
        let said = messages(&AgentReport::default(), 70);
        assert!(
            said.len() == 1 && said[0].starts_with("clock: the clock reads 1970-01-01T00:01:10Z, "),
            "{said:?}"
        );
    }
}
