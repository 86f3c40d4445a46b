//! `agent restart` and `agent stop`: replacements for Kubernetes' controllers on a single box.
//!
//! Owns the commands.

use std::time::Duration;

use hyper::Method;
use serde_json::Value;
use tokio::time::Instant;

use super::args::{Common, Has, Own, UsageError, duration, text, value};
use super::target::{self, FoundPod};
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, api, print, to_yaml, wait};
use crate::cmd::help;
use crate::model::api::pod::Pod;
use crate::platform::rt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Restart,
    Stop,
}

#[derive(Debug)]
struct RestartArgs {
    common: Common,
    containers: Vec<String>,
    timeout: Duration,
    pods: Vec<String>,
}

fn parse(act: Act, arguments: &[String]) -> Result<RestartArgs, UsageError> {
    let mut wanted = RestartArgs {
        common: Common::default(),
        containers: Vec::new(),
        timeout: Duration::from_secs(120),
        pods: Vec::new(),
    };
    wanted.common = Common::parse(arguments, Has::Namespace, &mut |own, parser| {
        match own {
            Own::Option("-c" | "--container") if act == Act::Restart => {
                wanted.containers.push(text(value(parser)?));
            }
            Own::Option("--timeout") => wanted.timeout = duration(parser, "--timeout", "60s")?.to_std(),
            Own::Word(word) => wanted.pods.push(word.to_owned()),
            Own::Option(_) => return Ok(false),
        }
        Ok(true)
    })?;
    if wanted.pods.is_empty() && !wanted.common.help {
        let message = if act == Act::Restart {
            "missing pod name: agent restart POD"
        } else {
            "missing pod name: agent stop POD"
        };
        return Err(UsageError::Option { message: message.to_owned() });
    }
    Ok(wanted)
}

pub(super) fn run(act: Act, arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(act, arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text(if act == Act::Restart { "restart" } else { "stop" }))?;
        return Ok(EXIT_OK);
    }
    rt::run(act_on(act, &wanted, environment)).map_err(CliError::Runtime)?
}

async fn act_on(act: Act, wanted: &RestartArgs, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let deadline = Instant::now() + wanted.timeout;
    let mut code = EXIT_OK;
    for name in &wanted.pods {
        let found = target::find(&wanted.common.socket, wanted.common.one_namespace(), name).await;
        let done = match (found, act) {
            (Ok(found), Act::Restart) => restart(wanted, &found, deadline, environment).await,
            (Ok(found), Act::Stop) => stop(wanted, &found, deadline, environment).await,
            (Err(error), _) => Err(error),
        };
        match done {
            Ok(()) => {}
            Err(error @ (CliError::Client(_) | CliError::Output(_))) => return Err(error),
            Err(error) => {
                let _ = writeln!(environment.err, "error: {error}");
                code = EXIT_FAILED;
            }
        }
    }
    Ok(code)
}

async fn restart(
    wanted: &RestartArgs,
    found: &FoundPod,
    deadline: Instant,
    environment: &mut Environment<'_>,
) -> Result<(), CliError> {
    let socket = &wanted.common.socket;
    let is_meant =
        |name: &str| wanted.containers.is_empty() || wanted.containers.iter().any(|given| given == name);
    let before: Vec<(String, String)> = found
        .pod()
        .spec
        .containers
        .iter()
        .filter(|container| is_meant(&container.name))
        .map(|container| (container.name.clone(), instance(found.pod(), &container.name)))
        .collect();
    let containers: Vec<_> = wanted.containers.iter().map(|name| ("container", name.clone())).collect();
    let path = format!("/agent/v1/restart/{}{}", found.path(), api::query(&containers));
    api::request(socket, Method::POST, &path, None).await?.accepted()?;
    let is_again = |object: Option<&Value>| {
        let statuses = object.and_then(|object| object["status"]["containerStatuses"].as_array());
        let runs_anew = |(name, earlier): &(String, String)| {
            statuses.into_iter().flatten().any(|status| {
                status["name"] == name.as_str()
                    && status["state"]["running"].is_object()
                    && status["containerID"] != earlier.as_str()
            })
        };
        before.iter().all(runs_anew)
    };
    let place = (found.pod().metadata.namespace.as_str(), found.name());
    let resource = api::resource("pods").map_err(CliError::Usage)?;
    if !wait::until(socket, resource, place, false, deadline, &is_again).await? {
        let message = format!(
            "timed out waiting for pod {:?} to run again: see agent describe pod {}",
            found.name(),
            found.name()
        );
        return Err(CliError::Answer(message));
    }
    let names: Vec<&str> = before.iter().map(|(name, _)| name.as_str()).collect();
    print(environment, &format!("pod/{} restarted ({})\n", found.name(), names.join(", ")))
}

/// The id of the container's current instance.
fn instance(pod: &Pod, name: &str) -> String {
    let found = pod.status.container_statuses.iter().find(|status| status.name == name);
    found.map(|status| status.container_id.clone()).unwrap_or_default()
}

async fn stop(
    wanted: &RestartArgs,
    found: &FoundPod,
    deadline: Instant,
    environment: &mut Environment<'_>,
) -> Result<(), CliError> {
    if let Some(origin) = found.manifest() {
        return Err(CliError::Answer(format!(
            "pod {:?} is defined by {origin}, and runs as long as that exists\n{}",
            found.name(),
            found.stop_hint()
        )));
    }
    let socket = &wanted.common.socket;
    let resource = api::resource("pods").map_err(CliError::Usage)?;
    let place = (found.pod().metadata.namespace.as_str(), found.name());
    let path = api::path(resource, Some(place.0), Some(place.1));
    let object = api::request(socket, Method::GET, &path, None).await?.accepted()?.object;
    let uid = object["metadata"]["uid"].clone();
    // Printed before anything is deleted: if the output fails, the pod stays.
    print(environment, &format!("---\n{}", to_yaml(&as_manifest(object))?))?;
    api::request(socket, Method::DELETE, &path, None).await?.accepted()?;
    let is_gone = |object: Option<&Value>| object.is_none_or(|object| object["metadata"]["uid"] != uid);
    if !wait::until(socket, resource, place, true, deadline, &is_gone).await? {
        return Err(CliError::Answer(format!(
            "timed out waiting for pod {:?} to terminate; it is still Terminating",
            found.name()
        )));
    }
    let _ = writeln!(
        environment.err,
        "pod/{} stopped and deleted; start it again with agent apply -f and the manifest above",
        found.name()
    );
    Ok(())
}

/// A manifest as a user would write it, as far as the API shows it: without status, and without the node's
/// additions.
pub(super) fn as_manifest(mut object: Value) -> Value {
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| {
            matches!(field.as_str(), "name" | "namespace" | "labels" | "annotations" | "finalizers")
        });
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| {
                !name.starts_with("kubernetes.io/config.")
                    && !name.starts_with("kubectl.kubernetes.io/last-applied")
            });
        }
        metadata.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("nodeName");
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn printed_manifest_has_what_a_user_writes() {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "x", "uid": "u", "resourceVersion": "7", "managedFields": [{}],
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"run": "a"},
                "annotations": {"kubernetes.io/config.source": "api"}},
            "spec": {"nodeName": "edge", "containers": [{"name": "a"}]},
            "status": {"phase": "Running"},
        });
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "x", "labels": {"run": "a"}},
            "spec": {"containers": [{"name": "a"}]},
        });
        assert_eq!(as_manifest(object), expected);
    }

    #[test]
    fn commands_want_a_pod_and_their_own_options() {
        let said = |act, line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            parse(act, &words).map(drop).map_err(|error| error.to_string())
        };
        assert!(said(Act::Restart, "").unwrap_err().contains("agent restart POD"));
        assert!(said(Act::Stop, "web -c main").unwrap_err().contains("-c"));
        assert!(said(Act::Restart, "web -c main -c side --timeout 5s").is_ok());
    }
}
