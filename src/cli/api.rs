//! The node's Kubernetes API, asked over the socket.
//!
//! Owns paths and what is read from answers. Must not know how they are shown.

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::Value;

use super::args::UsageError;
use super::{CliError, client};
use crate::localapi::resource::{RESOURCES, Resource, Verb, group_version};

/// Objects as they are.
pub(super) const OBJECTS: &str = "application/json";
/// Columns as the server makes them.
pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// A line of a watch is an object with its type; the largest objects have a megabyte and a half.
const MAX_LINE: usize = 4 * 1024 * 1024;

/// What somebody calls `po`, `pod` or `pods`.
pub(super) fn resource(word: &str) -> Result<&'static Resource, UsageError> {
    let word = word.to_ascii_lowercase();
    let is_it = |resource: &&Resource| {
        resource.plural == word || resource.singular == word || resource.short_names.contains(&word.as_str())
    };
    let mut shown = RESOURCES.iter().filter(|resource| resource.verbs.contains(&Verb::List));
    shown.find(is_it).ok_or(UsageError::Unknown { given: word })
}

/// The path of many, or of one.
pub(super) fn path(resource: &Resource, namespace: Option<&str>, name: Option<&str>) -> String {
    let mut path = String::from(if resource.group.is_empty() { "/api/" } else { "/apis/" });
    path += &group_version(resource.group, resource.version);
    if let Some(namespace) = namespace.filter(|_| resource.namespaced) {
        path.extend(["/namespaces/", &client::escaped(namespace)]);
    }
    path.extend(["/", resource.plural]);
    if let Some(name) = name {
        path.extend(["/", &client::escaped(name)]);
    }
    path
}

/// Asks once. What is refused is an error in the server's words.
pub(super) async fn fetch(socket: &Path, path: &str, accept: &'static str) -> Result<Value, CliError> {
    let mut body = Vec::new();
    let mut write = |piece: &[u8]| {
        body.extend_from_slice(piece);
        Ok(())
    };
    client::stream(socket, path, accept, &mut write).await.map_err(words)?;
    serde_json::from_slice(&body)
        .map_err(|error| CliError::Answer(format!("the answer is not JSON: {error}")))
}

/// Hears what becomes of objects, event by event, until the server ends it or `each` does.
pub(super) async fn watch(
    socket: &Path,
    path: &str,
    accept: &'static str,
    mut each: impl FnMut(Value) -> Result<ControlFlow<()>, CliError>,
) -> Result<(), CliError> {
    let (mut line, mut result) = (Vec::new(), Ok(()));
    let mut write = |piece: &[u8]| {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                break;
            }
            let event = serde_json::from_slice(&line).unwrap_or_default();
            line.clear();
            match each(event) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return Err(std::io::ErrorKind::Interrupted.into()),
                Err(error) => {
                    result = Err(error);
                    return Err(std::io::ErrorKind::Interrupted.into());
                }
            }
        }
        if line.len() > MAX_LINE { Err(std::io::ErrorKind::InvalidData.into()) } else { Ok(()) }
    };
    match client::stream(socket, path, accept, &mut write).await {
        Err(CliError::Output(error)) if error.kind() == std::io::ErrorKind::Interrupted => result,
        other => other.map_err(words),
    }
}

/// The message of a `Status`, with its reason as kubectl shows it.
fn words(error: CliError) -> CliError {
    let CliError::Answer(text) = &error else { return error };
    let Ok(status) = serde_json::from_str::<Value>(text) else { return error };
    let message = status["message"].as_str().unwrap_or("no reason was given");
    match status["reason"].as_str() {
        Some(reason) if !reason.is_empty() => {
            CliError::Answer(format!("from the agent ({reason}): {message}"))
        }
        _ => CliError::Answer(message.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_called_as_for_kubectl_and_have_the_apis_paths() {
        assert_eq!(
            path(resource("po").unwrap(), Some("a b"), Some("web")),
            "/api/v1/namespaces/a%20b/pods/web"
        );
        assert_eq!(path(resource("Nodes").unwrap(), Some("default"), None), "/api/v1/nodes");
        assert_eq!(path(resource("events").unwrap(), None, None), "/api/v1/events");
        let said = resource("deployments").unwrap_err().to_string();
        assert!(said.contains("deployments") && said.contains("pods") && said.contains("nodes"), "{said}");
    }
}
