//! `agent get`: a table like kubectl's, or the objects.
//!
//! Owns the command, its arguments, and its output of pods.

use serde_json::json;

use super::args::{CliOptions, Command, OutputFormat, UsageError};
use super::jsonpath::Template;
use super::{
    CliError, EXIT_FAILED, EXIT_OK, Environment, api, listing, objects, offline, print, table, to_json,
    to_yaml,
};
use crate::model::api::pod::Pod;
use crate::model::objects::ObjectKind;
use crate::model::types::Timestamp;
use crate::pod::lifecycle::show_end;
use crate::serve::localapi::pod_printer::columns;
use crate::serve::server::ObjectDetail;

use std::fmt::Write;

const HELP: &str = "\
List pods, ConfigMaps, Secrets, claims, events, nodes and namespaces of this node, as kubectl get does.

Usage: agent get RESOURCE [NAME...] [options]
       agent get RESOURCE/NAME... [options]

Options:
  -n, --namespace NAME      Namespace (default \"default\")
  -A, --all-namespaces      All namespaces
  -o, --output FORMAT       json, yaml, wide, name or jsonpath=TEMPLATE
  -w, --watch               Keep watching for changes
  -l, --selector LABELS     Only objects with these labels, such as app=web,tier!=db
      --field-selector F    Only objects with these fields, such as status.phase=Running
      --no-headers          Omit the header line
      --show-secrets        Show the values of Secrets instead of their lengths
      --socket PATH         Socket of the agent (default /run/agent/agent.sock)
      --root-dir DIR        The agent's root directory (default /var/lib/kubelet); pods, configmaps, secrets
                            and pvc are read from its store when the agent is not running
  -h, --help                Show this help

Exit status: 0 on success, 1 if something is not found or the agent cannot be reached, 2 for bad usage.
";

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let options = CliOptions::parse(Command::Get, arguments).map_err(CliError::Usage)?;
    if options.help {
        print(environment, HELP)?;
        return Ok(EXIT_OK);
    }
    if let Some(template) = &options.template {
        let wrong = |error| UsageError::Option { message: format!("jsonpath {template}: {error}") };
        Template::parse(template).map_err(wrong).map_err(CliError::Usage)?;
    }
    let first = options.words.first().map_or("", String::as_str);
    let is_stored = resource(first.split('/').next().unwrap_or_default()).is_some();
    let is_of_now = options.watch || options.template.is_some() || !options.selectors().is_empty();
    if !first.is_empty() && (!is_stored || is_of_now) {
        let (resource, names) = names(&options, api::resource).map_err(CliError::Usage)?;
        return listing::run(resource, &names, &options, environment);
    }
    let (resource, names) = names(&options, stored).map_err(CliError::Usage)?;
    if let Resource::Objects(kind) = resource {
        return objects::run(objects::ObjectCommand::Get, kind, &names, &options, environment);
    }
    let report = offline::report(&options, ObjectDetail::Counted, environment)?;
    let (pods, missing) = select(report.pods, &options, &names);
    if pods.is_empty()
        && names.is_empty()
        && matches!(options.output, OutputFormat::Text | OutputFormat::Wide)
    {
        let place = match (&options.namespace, options.all_namespaces) {
            (_, true) => "No resources found".to_owned(),
            (namespace, false) => {
                format!("No resources found in {} namespace.", namespace.as_deref().unwrap_or("default"))
            }
        };
        // As kubectl: on standard error, since it is not data.
        let _ = writeln!(environment.err, "{place}");
        return Ok(EXIT_OK);
    }
    if missing.is_empty() || !pods.is_empty() {
        print(environment, &render(&pods, &options, &names, (environment.now, environment.colour))?)?;
    }
    let namespace = options.namespace.unwrap_or_else(|| "default".to_owned());
    let mut missing = missing.into_iter();
    let Some(first) = missing.next() else { return Ok(EXIT_OK) };
    for name in missing {
        let error = CliError::NotFound { name, namespace: namespace.clone() };
        let _ = writeln!(environment.err, "error: {error}");
    }
    let error = CliError::NotFound { name: first, namespace };
    let _ = writeln!(environment.err, "error: {error}");
    Ok(EXIT_FAILED)
}

/// The requested resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Pods,
    /// ConfigMaps, Secrets or claims.
    Objects(ObjectKind),
}

/// A resource that is available without the agent, too.
pub(super) fn stored(word: &str) -> Result<Resource, UsageError> {
    resource(word).ok_or_else(|| UsageError::Resource { given: word.to_owned() })
}

fn resource(word: &str) -> Option<Resource> {
    match word {
        "pods" | "pod" | "po" => Some(Resource::Pods),
        _ => objects::kind(word).map(Resource::Objects),
    }
}

/// The requested resource and names: `pods a b`, `pod/a pod/b`, `secret/a`.
pub(super) fn names<T: PartialEq>(
    options: &CliOptions,
    resource: impl Fn(&str) -> Result<T, UsageError>,
) -> Result<(T, Vec<String>), UsageError> {
    let mut words = options.words.iter();
    let first = words.next().ok_or(UsageError::NoResource)?;
    let unknown = |word: &String| UsageError::Resource { given: word.clone() };
    let (kind, name) =
        first.split_once('/').map_or((first.as_str(), None), |(kind, name)| (kind, Some(name)));
    let asked = resource(kind)?;
    if name == Some("") {
        return Err(unknown(first));
    }
    let mut names: Vec<String> = name.map(str::to_owned).into_iter().collect();
    for word in words {
        match word.split_once('/') {
            Some((kind, name)) if resource(kind).is_ok_and(|kind| kind == asked) && !name.is_empty() => {
                names.push(name.to_owned());
            }
            None => names.push(word.clone()),
            _ => return Err(unknown(word)),
        }
    }
    if options.all_namespaces && !names.is_empty() {
        return Err(UsageError::NameInAllNamespaces);
    }
    Ok((asked, names))
}

/// The matching pods in order, and the names without a pod.
fn select(mut pods: Vec<Pod>, options: &CliOptions, names: &[String]) -> (Vec<Pod>, Vec<String>) {
    let namespace = options.namespace.as_deref().unwrap_or("default");
    pods.retain(|pod| options.all_namespaces || pod.metadata.namespace == namespace);
    pods.sort_by_key(Pod::pod_ref);
    if names.is_empty() {
        return (pods, Vec::new());
    }
    let missing =
        names.iter().filter(|name| !pods.iter().any(|pod| pod.metadata.name == **name)).cloned().collect();
    pods.retain(|pod| names.contains(&pod.metadata.name));
    (pods, missing)
}

fn render(
    pods: &[Pod],
    options: &CliOptions,
    names: &[String],
    (now, colour): (Timestamp, bool),
) -> Result<String, CliError> {
    let objects = || {
        let items: Vec<_> = pods.iter().map(with_kind).collect();
        match (names.len(), <[_; 1]>::try_from(items)) {
            (1, Ok([only])) => only,
            (_, Ok(items)) => list(&items),
            (_, Err(items)) => list(&items),
        }
    };
    match options.output {
        OutputFormat::Json | OutputFormat::JsonPath => to_json(&objects()),
        OutputFormat::Yaml => to_yaml(&objects()),
        OutputFormat::Name => Ok(pods.iter().fold(String::new(), |mut text, pod| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "pod/{}", pod.metadata.name);
            text
        })),
        OutputFormat::Text | OutputFormat::Wide => {
            let mut rows = pod_rows(pods, options.all_namespaces, options.output == OutputFormat::Wide, now);
            if options.no_headers {
                rows.remove(0);
            }
            Ok(table::render_painted(&rows, colour))
        }
    }
}

fn with_kind(pod: &Pod) -> serde_json::Value {
    let mut pod = pod.clone();
    show_end(&mut pod);
    "v1".clone_into(&mut pod.api_version);
    "Pod".clone_into(&mut pod.kind);
    json!(pod)
}

fn list(items: &[serde_json::Value]) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
}

/// The header and a row per pod.
pub(super) fn pod_rows(pods: &[Pod], namespaces: bool, wide: bool, now: Timestamp) -> Vec<Vec<String>> {
    let line = |namespace: String, rest: [String; 5], wide_cells: [String; 2]| {
        let mut row = if namespaces { vec![namespace] } else { vec![] };
        row.extend(rest);
        if wide {
            row.extend(wide_cells);
        }
        row
    };
    let header = line(
        "NAMESPACE".to_owned(),
        ["NAME", "READY", "STATUS", "RESTARTS", "AGE"].map(str::to_owned),
        ["IP", "NODE"].map(str::to_owned),
    );
    let rows = pods.iter().map(|pod| {
        let cells = columns(pod, now);
        let name = pod.metadata.name.clone();
        line(
            pod.metadata.namespace.clone(),
            [name, cells.ready, cells.status, cells.restarts, cells.age],
            [cells.ip, cells.node],
        )
    });
    std::iter::once(header).chain(rows).collect()
}
