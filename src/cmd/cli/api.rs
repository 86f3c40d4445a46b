//! Requests to the node's Kubernetes API over the socket.
//!
//! Owns paths and the parsing of answers.

use std::ops::ControlFlow;
use std::path::Path;

use hyper::Method;
use serde_json::Value;

use super::args::UsageError;
use super::table::printable;
use super::{CliError, Environment, client};
use crate::platform::logging::chain;
use crate::serve::localapi::resource::{Catalog, Resource, Verb, group_version};

pub(super) const OBJECTS: &str = "application/json";
/// Tables as the server computes them.
pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// The longest line of a watch: an object with its type; the largest objects have a megabyte and a half.
const MAX_LINE: usize = 4 * 1024 * 1024;

/// Finds a resource by `po`, `pod` or `pods`.
pub(super) fn resource(word: &str) -> Result<&'static Resource, UsageError> {
    let word = word.to_ascii_lowercase();
    let is_it = |resource: &&Resource| {
        resource.plural == word || resource.singular == word || resource.short_names.contains(&word.as_str())
    };
    listed().find(is_it).ok_or(UsageError::Unknown { given: word })
}

/// The resources that can be listed. A name that two groups have means the first one's.
pub(super) fn listed() -> impl Iterator<Item = &'static Resource> {
    let mut first: Vec<&'static Resource> = Vec::new();
    for resource in Catalog::default().all() {
        if !first.iter().any(|before| before.plural == resource.plural) {
            first.push(resource);
        }
    }
    first.into_iter().filter(|resource| resource.verbs.contains(&Verb::List))
}

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

/// `?a=b&c=d`, or nothing.
pub(super) fn query(parameters: &[(&'static str, String)]) -> String {
    let mut text = String::new();
    for (name, value) in parameters {
        text.extend([if text.is_empty() { "?" } else { "&" }, name, "=", &client::escaped(value)]);
    }
    text
}

/// Sends one request. A refusal is an error with the server's message.
pub(super) async fn fetch(socket: &Path, path: &str, accept: &'static str) -> Result<Value, CliError> {
    let mut body = Vec::new();
    let mut write = |piece: &[u8]| {
        body.extend_from_slice(piece);
        Ok(())
    };
    client::stream(socket, path, accept, &mut write).await.map_err(status_error)?;
    serde_json::from_slice(&body)
        .map_err(|error| CliError::Answer(format!("the agent's response is not JSON: {error}")))
}

/// The resource of a manifest's kind, if it is writable.
pub(super) fn of_kind(api_version: &str, kind: &str) -> Option<&'static Resource> {
    Catalog::default().all().find(|resource| {
        resource.kind == kind
            && resource.api_version() == api_version
            && resource.verbs.contains(&Verb::Patch)
    })
}

pub(super) struct Reply {
    pub code: u16,
    /// The object, or a `Status`.
    pub object: Value,
    /// Warnings about accepted but doubtful input.
    pub warnings: Vec<String>,
}

/// Sends one request. `content` is the media type of a body, and the body.
///
/// # Errors
/// There is no answer. A refusal is an answer: see [`Reply::accepted`].
pub(super) async fn request(
    socket: &Path,
    method: Method,
    path: &str,
    content: Option<(&'static str, &Value)>,
) -> Result<Reply, CliError> {
    let content = content.map(|(media_type, value)| (media_type, value.to_string().into_bytes()));
    let answer = client::send(socket, method, path, content).await?;
    let object = serde_json::from_slice(&answer.body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&answer.body).trim_end().to_owned()));
    Ok(Reply { code: answer.code.as_u16(), object, warnings: answer.warnings })
}

/// Asks the agent to do something; its answer, or why not.
pub(in crate::cmd) async fn post(socket: &Path, path: &str) -> Result<Value, String> {
    let answer = request(socket, Method::POST, path, None).await.and_then(Reply::accepted);
    answer.map(|reply| reply.object).map_err(|error| chain(&error))
}

/// Names of the objects in a namespace that match a label selector; all of them without one.
pub(super) async fn selected(
    socket: &Path,
    resource: &Resource,
    namespace: &str,
    selector: Option<&str>,
) -> Result<Vec<String>, CliError> {
    let labels: Vec<_> =
        selector.map(|selector| ("labelSelector", selector.to_owned())).into_iter().collect();
    let path = path(resource, Some(namespace), None) + &query(&labels);
    let list = fetch(socket, &path, OBJECTS).await?;
    let items = list["items"].as_array().into_iter().flatten();
    Ok(items.filter_map(|item| Some(item["metadata"]["name"].as_str()?.to_owned())).collect())
}

impl Reply {
    /// Prints the warnings, as kubectl does.
    pub(super) fn warn(&self, environment: &mut Environment<'_>) {
        for warning in &self.warnings {
            let _ = writeln!(environment.err, "Warning: {}", printable(warning));
        }
    }

    /// The reply, or the message of a refusal as an error.
    pub(super) fn accepted(self) -> Result<Self, CliError> {
        if self.code < 400 {
            return Ok(self);
        }
        let text = self.object.as_str().map_or_else(|| self.object.to_string(), str::to_owned);
        Err(status_error(CliError::Answer(text)))
    }
}

/// Watches objects, event by event, until the server ends the watch or `each` does.
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
        other => other.map_err(status_error),
    }
}

/// The message of a `Status`, with its reason as kubectl shows it.
fn status_error(error: CliError) -> CliError {
    let CliError::Answer(text) = &error else { return error };
    let Ok(status) = serde_json::from_str::<Value>(text) else { return error };
    let message = status["message"].as_str().unwrap_or("no reason given");
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
        let said = resource("gadgets").unwrap_err().to_string();
        let (start, all) = said.split_once("use one of ").unwrap();
        assert!(
            start.contains("gadgets") && all.starts_with("configmaps, ") && all.contains(", deployments, "),
            "{said}"
        );
        for name in all.split(", ") {
            assert_eq!(resource(name).unwrap().plural, name);
        }
    }
}
