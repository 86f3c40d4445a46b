//! `agent get`: a table like kubectl's, or the objects.
//!
//! Owns the command and its arguments.

use super::args::{CliOptions, Command, UsageError};
use super::jsonpath::Template;
use super::{CliError, EXIT_OK, Environment, api, listing, print};

const HELP: &str = "\
List pods, ConfigMaps, Secrets, claims, events, nodes, namespaces and other objects of this node, as kubectl get
does.

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
      --show-managed-fields Keep metadata.managedFields in json and yaml
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
    let (resource, names) = names(&options, api::resource).map_err(CliError::Usage)?;
    if !names.is_empty() && !options.selectors().is_empty() {
        // kubectl's message and exit code.
        return Err(CliError::Answer("name cannot be provided when a selector is specified".to_owned()));
    }
    listing::run(resource, &names, &options, environment)
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
