//! `agent ps`: containers rather than pods, as container engines list them.
//!
//! Owns the command and its columns.

use super::args::{CliOptions, Command, OutputFormat, UsageError};
use super::{CliError, EXIT_OK, Environment, age, offline, print, table, to_json, to_yaml};
use crate::cmd::help;
use crate::model::api::pod::{ContainerStatus, Pod};
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;
use crate::serve::server::ObjectDetail;

use serde_json::{Value, json};

/// The length of a shown id, as in container engines.
const ID: usize = 13;
/// The length of a shown image name.
const IMAGE: usize = 48;

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let options = CliOptions::parse(Command::Ps, arguments).map_err(CliError::Usage)?;
    if options.help {
        print(environment, &help::text("ps"))?;
        return Ok(EXIT_OK);
    }
    if let Some(word) = options.words.first() {
        return Err(CliError::Usage(UsageError::Unexpected { given: word.clone() }));
    }
    let mut report = offline::report(&options, ObjectDetail::Counted, environment)?;
    report.pods.retain(|pod| options.namespace.as_ref().is_none_or(|name| *name == pod.metadata.namespace));
    report.pods.order_by_key(Pod::pod_ref);
    let shown: Vec<_> = report
        .pods
        .iter()
        .flat_map(|pod| statuses(pod).map(move |status| (pod, status)))
        .filter(|(_, status)| options.all || status.state.running.is_some())
        .collect();
    let objects = || shown.iter().map(|(pod, status)| object(pod, status)).collect::<Vec<_>>();
    let text = match options.output {
        OutputFormat::Json => to_json(&objects())?,
        OutputFormat::Yaml => to_yaml(&objects())?,
        output => {
            let mut rows = rows(&shown, output == OutputFormat::Wide, environment.now);
            if options.no_headers {
                rows.remove(0);
            }
            table::render_painted(&rows, environment.colour)
        }
    };
    print(environment, &text)?;
    Ok(EXIT_OK)
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = &pod.status;
    status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .chain(&status.ephemeral_container_statuses)
}

fn object(pod: &Pod, status: &ContainerStatus) -> Value {
    json!({"namespace": pod.metadata.namespace, "pod": pod.metadata.name, "container": status})
}

fn rows(shown: &[(&Pod, &ContainerStatus)], wide: bool, now: Timestamp) -> Vec<Vec<String>> {
    let header = ["CONTAINER ID", "IMAGE", "NAMESPACE", "POD", "NAME", "STATUS", "RESTARTS"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (pod, status) in shown {
        let id = status.container_id.split_once("://").map_or("", |(_, id)| id);
        let cut = |text: &str, most: usize| match text.char_indices().nth(most) {
            Some((end, _)) if !wide => text[..end].to_owned(),
            _ => text.to_owned(),
        };
        rows.push(vec![
            cut(id, ID),
            cut(&status.image, IMAGE),
            pod.metadata.namespace.clone(),
            pod.metadata.name.clone(),
            status.name.clone(),
            state(status, now),
            status.restart_count.to_string(),
        ]);
    }
    rows
}

/// `Running 5m`, `CrashLoopBackOff`, `Completed 2h ago`, `Error (3) 5s ago`.
fn state(status: &ContainerStatus, now: Timestamp) -> String {
    let state = &status.state;
    if let Some(running) = &state.running {
        return format!("Running {}", age::since_or_unknown(running.started_at, now));
    }
    if let Some(ended) = &state.terminated {
        let reason = if ended.reason.is_empty() { "Terminated" } else { ended.reason.as_str() };
        let code = if ended.exit_code == 0 { String::new() } else { format!(" ({})", ended.exit_code) };
        return format!("{reason}{code} {} ago", age::since_or_unknown(ended.finished_at, now));
    }
    let waiting =
        state.waiting.as_ref().map(|waiting| waiting.reason.as_str()).filter(|reason| !reason.is_empty());
    waiting.unwrap_or("Waiting").to_owned()
}
