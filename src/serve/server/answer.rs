//! The kubelet's API: what each resource answers.
//!
//! Owns the answers and their codes, upstream's where it has them.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Collected, Limited};
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::body::{Body, allowing, failure, object, response, text};
use super::node::{SharedNode, StreamKind, StreamServer};
use super::report::{ObjectDetail, ProblemReport};
use super::route::{ContainerTarget, LogOptions, PodName, Refused, Route};
use super::system_logs::{self, is_log_query};
use super::{logs, measured, proxy};
use crate::model::api::pod::{Container, ObjectMeta, Pod, PodSpec, PodStatus};
use crate::model::observed::{ContainerStateKind, ObservedContainer};
use crate::model::provenance::{is_from_api, show_source};
use crate::model::types::{ContainerId, ContainerName};
use crate::platform::clock::Clock;
use crate::platform::logging;
use crate::pod::executor::port_conflicts::port_conflicts;
use crate::pod::lifecycle::show_end;
use crate::serve::server::incoming::IncomingBody;
use crate::serve::streaming::{self, Action};

/// Which optional resources a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// `enableDebuggingHandlers`: logs, commands, configuration.
    pub debugging: bool,
    /// The agent's own resources: on the local socket only, which only root can open.
    pub agent_resources: bool,
    /// `/logs`.
    pub system_logs: SystemLogs,
    /// Upstream's name of the server in metrics; empty where requests are not counted.
    pub server_type: &'static str,
}

/// How much of `/logs` is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemLogs {
    Off,
    /// `enableSystemLogHandler`: files.
    Files,
    /// `enableSystemLogQuery`: and queries.
    Queries,
}

/// Status code and message of a failure in plain text, as upstream's.
pub(crate) type Failed = (StatusCode, String);

/// Answers a request. `held` is kept for as long as a stream lives. Needs a `LocalSet`, and a connection
/// served with upgrades.
pub(crate) async fn answer(
    request: Request<IncomingBody>,
    route: Result<Route, Refused>,
    node: &SharedNode,
    served: Served,
    clock: &Clock,
    held: impl Sized + 'static,
) -> Response<Body> {
    let counted = measured::Counted::begin(request.method(), &route, served.server_type);
    let response = answered(request, route, node, served, clock, held).await;
    counted.end(response.body().is_stream() || response.status() == StatusCode::SWITCHING_PROTOCOLS);
    response
}

async fn answered(
    request: Request<IncomingBody>,
    route: Result<Route, Refused>,
    node: &SharedNode,
    served: Served,
    clock: &Clock,
    held: impl Sized + 'static,
) -> Response<Body> {
    let route = match route {
        Ok(route) => route,
        Err(refused) => return refusal(refused),
    };
    if !served.debugging && is_debugging(&route) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n");
    }
    let answered = outcome(request, route, node, served, clock, held).await;
    answered.unwrap_or_else(|(code, message)| text(code, format!("{message}\n")))
}

/// As [`answer`], for callers that format failures themselves. They have already checked whether debugging
/// handlers are enabled.
pub(crate) async fn outcome(
    request: Request<IncomingBody>,
    route: Route,
    node: &SharedNode,
    served: Served,
    clock: &Clock,
    held: impl Sized + 'static,
) -> Result<Response<Body>, Failed> {
    match route {
        Route::Health(check) => {
            Ok(health(node, "healthz", &check, request.uri().query().unwrap_or_default()))
        }
        Route::Pods => Ok(object(StatusCode::OK, &pod_list(node.pods()))),
        Route::RunningPods => running_pods(node).await,
        Route::Verbosity => set_verbosity(node, request).await,
        Route::Configz => Ok(object(StatusCode::OK, &json!({ "kubeletconfig": node.configuration() }))),
        Route::Flagz => Ok(text(StatusCode::OK, flagz(node))),
        Route::Statusz => Ok(text(StatusCode::OK, statusz(node, clock))),
        Route::Summary { only_cpu_and_memory } => measured::summary(node, !only_cpu_and_memory).await,
        Route::Metrics(page) => Ok(measured::page(node, page).await),
        Route::SystemLogs { .. } if served.system_logs == SystemLogs::Off => {
            Ok(text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.\n"))
        }
        Route::SystemLogs { query, .. }
            if served.system_logs == SystemLogs::Queries && is_log_query(&query) =>
        {
            system_logs::query(&query).await
        }
        Route::SystemLogs { path, .. } => Ok(system_logs::file(Path::new(system_logs::ROOT), &path).await),
        Route::ContainerLogs(container, options) => {
            let log = container_log(node, clock, &container, &options).await?;
            if !streaming::wants_websocket(request.headers()) {
                return Ok(log);
            }
            match log.into_body() {
                Body::Pieces(pieces) => {
                    let (action, idle_timeout) = (Action::Output(pieces), node.stream_idle_timeout());
                    let answer = streaming::respond(request.map(drop), action, idle_timeout, held);
                    Ok(answer.map(Body::Whole))
                }
                whole @ (Body::Whole(_) | Body::Held { .. }) => Ok(Response::new(whole)),
            }
        }
        Route::Exec(container, command, streams) => {
            let wanted = |id| StreamKind::Exec(id, command, streams);
            stream(request, node, running(node, &container).await.map(wanted), held).await
        }
        Route::Attach(container, streams) => {
            let wanted = |id| StreamKind::Attach(id, streams);
            stream(request, node, running(node, &container).await.map(wanted), held).await
        }
        Route::PortForward(pod, ports) => {
            let wanted =
                find_pod(node, &pod).map(|pod| StreamKind::PortForward(pod.metadata.uid.clone(), ports));
            stream(request, node, wanted, held).await
        }
        Route::Run(container, command) => run(node, &container, command).await,
        Route::Checkpoint(container, timeout) => checkpoint(node, clock, &container, timeout).await,
        Route::AgentStatus(query) if served.agent_resources => {
            let mut report = node.report(ObjectDetail::from_query(&query));
            for (pod, conflict) in port_conflicts(&report.pods).await {
                let message = format!("HostPortConflict: {conflict}");
                report.problems.push(ProblemReport { subject: format!("pod {pod}"), message });
            }
            Ok(object(StatusCode::OK, &report))
        }
        Route::AgentRestart(pod, containers) if served.agent_resources => {
            restart(node, &pod, containers).await
        }
        Route::AcceptSource(name) if served.agent_resources => match node.accept_source(&name).await {
            Ok(words) => Ok(text(StatusCode::OK, format!("{words}\n"))),
            Err(why) => Err((StatusCode::CONFLICT, why)),
        },
        Route::LeaveCluster { forgets } if served.agent_resources => {
            match node.leave_cluster(forgets).await {
                Ok(waits) => Ok(object(StatusCode::OK, &waits)),
                Err(why) => Err((StatusCode::CONFLICT, why)),
            }
        }
        Route::AgentStatus(_)
        | Route::AgentRestart(..)
        | Route::AcceptSource(_)
        | Route::LeaveCluster { .. } => Ok(refusal(Refused::NotFound)),
    }
}

/// The answers are upstream's.
async fn set_verbosity(node: &SharedNode, request: Request<IncomingBody>) -> Result<Response<Body>, Failed> {
    const MOST_BYTES: usize = 16;
    if node.configuration()["enableDebugFlagsHandler"] != true {
        return Ok(text(StatusCode::METHOD_NOT_ALLOWED, "flags endpoint is disabled.\n"));
    }
    let body = Limited::new(request.into_body(), MOST_BYTES).collect().await;
    let bytes = body.map(Collected::to_bytes).unwrap_or_default();
    let given = String::from_utf8_lossy(&bytes).trim().to_owned();
    let verbosity = given.parse().map_err(|_| {
        (StatusCode::BAD_REQUEST, format!("failed to set klog.logging.verbosity: {given:?} is not a number"))
    })?;
    logging::set_verbosity(verbosity);
    Ok(text(StatusCode::OK, format!("successfully set klog.logging.verbosity to {given}")))
}

fn is_debugging(route: &Route) -> bool {
    !matches!(
        route,
        Route::Health(_)
            | Route::Pods
            | Route::Summary { .. }
            | Route::Metrics(_)
            | Route::AgentStatus(_)
            | Route::AgentRestart(..)
            | Route::AcceptSource(_)
            | Route::LeaveCluster { .. }
    )
}

fn refusal(refused: Refused) -> Response<Body> {
    match refused {
        Refused::NotFound => {
            let message = "the server could not find the requested resource";
            failure(StatusCode::NOT_FOUND, "NotFound", message)
        }
        Refused::Method(wanted) => {
            let message = "the server does not allow this method on the requested resource";
            allowing(failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message), wanted)
        }
        Refused::Invalid(code, message) => {
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST);
            text(code, format!("{message}\n"))
        }
        Refused::NotServed(why) => text(StatusCode::NOT_IMPLEMENTED, format!("{why}\n")),
    }
}

/// `v1.PodList`. Items of a list carry no `kind` and `apiVersion`, as upstream's.
fn pod_list(pods: Vec<Pod>) -> Value {
    let bare = |mut pod: Pod| {
        show_end(&mut pod);
        show_source(&mut pod);
        pod.api_version.clear();
        pod.kind.clear();
        json!(pod)
    };
    let items: Vec<Value> = pods.into_iter().filter(is_listed).map(bare).collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

/// Upstream lists its configured pods: a static pod leaves `/pods` with its manifest, before it has ended; a
/// pod of the API leaves with its object.
fn is_listed(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() || is_from_api(pod)
}

pub(in crate::serve) const HEALTH_CHECKS: [&str; 4] = ["ping", "log", "syncloop", "device-plugin"];

/// Answers `/healthz`, or `what`, an alias of it: one check, or all of them.
pub(crate) fn health(node: &SharedNode, what: &str, check: &str, query: &str) -> Response<Body> {
    let verbose = query.split('&').any(|word| word == "verbose" || word.starts_with("verbose="));
    let checks = HEALTH_CHECKS.map(|name| {
        let state = match name {
            "syncloop" => node.loop_health(),
            "device-plugin" => node.plugin_health(),
            _ => Ok(()),
        };
        (name, state)
    });
    let wanted = checks.iter().filter(|(name, _)| check.is_empty() || check == *name);
    wanted.clone().for_each(|(name, state)| measured::count_health(name, state.is_ok(), what));
    let trouble: Vec<&str> =
        wanted.clone().filter(|(_, state)| state.is_err()).map(|(name, _)| *name).collect();
    if trouble.is_empty() && !verbose {
        return text(StatusCode::OK, "ok");
    }
    let mut lines = String::new();
    for (name, state) in wanted {
        match state {
            Ok(()) => lines += &["[+]", name, " ok\n"].concat(),
            Err(reason) => lines += &["[-]", name, " failed: ", reason, "\n"].concat(),
        }
    }
    let (code, end) = if trouble.is_empty() {
        (StatusCode::OK, "passed")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "failed")
    };
    let what = if check.is_empty() { what.to_owned() } else { format!("{what}/{check}") };
    text(code, format!("{lines}{what} check {end}\n"))
}

/// The runtime's running pods in upstream's shape: names, images, ids, and nothing of the pods' specs.
async fn running_pods(node: &SharedNode) -> Result<Response<Body>, Failed> {
    let all = node.containers(None).await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error))?;
    let mut pods: Vec<Pod> = Vec::new();
    for found in all.iter().filter(|found| found.state == ContainerStateKind::Running) {
        let container =
            Container { name: found.name.to_string(), image: found.image.clone(), ..Container::default() };
        match pods.iter_mut().find(|pod| pod.metadata.uid == found.pod.uid) {
            Some(pod) => pod.spec.containers.push(container),
            None => pods.push(Pod {
                metadata: ObjectMeta {
                    name: found.pod.name.clone(),
                    namespace: found.pod.namespace.clone(),
                    uid: found.pod.uid.clone(),
                    ..ObjectMeta::default()
                },
                spec: PodSpec { containers: vec![container], ..PodSpec::default() },
                status: PodStatus { phase: "Running".to_owned(), ..PodStatus::default() },
                ..Pod::default()
            }),
        }
    }
    Ok(object(StatusCode::OK, &pod_list(pods)))
}

fn flagz(node: &SharedNode) -> String {
    let mut text = "\nagent flagz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\n".to_owned();
    for (name, value) in node.flags() {
        text += &[&name, "=", &value, "\n"].concat();
    }
    text
}

fn statusz(node: &SharedNode, clock: &Clock) -> String {
    let report = node.report(ObjectDetail::Counted);
    let started = report.started_at.unwrap_or_default();
    let up = clock.now().saturating_since(started).as_secs();
    format!(
        "\nagent statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nAgent version: {}\nRuntime: {} {}\nNode: {}\n",
        started.to_rfc3339(),
        up / 3600,
        up / 60 % 60,
        up % 60,
        report.version,
        report.runtime.name,
        report.runtime.version,
        report.node_name,
    )
}

fn find_pod(node: &SharedNode, wanted: &PodName) -> Result<Pod, Failed> {
    node.pod(&wanted.namespace, &wanted.name, wanted.uid.as_ref()).ok_or_else(|| {
        (
            StatusCode::NOT_FOUND,
            format!("pod {:?} not found in namespace {:?}", wanted.name, wanted.namespace),
        )
    })
}

fn find_container(node: &SharedNode, wanted: &ContainerTarget) -> Result<Pod, Failed> {
    let pod = find_pod(node, &wanted.pod)?;
    let spec = &pod.spec;
    let known = spec
        .containers
        .iter()
        .chain(&spec.init_containers)
        .chain(&spec.ephemeral_containers)
        .any(|found| found.name == wanted.container.as_str());
    if !known {
        let message =
            format!("container {:?} not found in pod {:?}", wanted.container.as_str(), wanted.pod.name);
        return Err((StatusCode::NOT_FOUND, message));
    }
    Ok(pod)
}

/// Restarts regular containers, or all of them if none is named.
async fn restart(
    node: &SharedNode,
    wanted: &PodName,
    mut containers: Vec<ContainerName>,
) -> Result<Response<Body>, Failed> {
    let pod = find_pod(node, wanted)?;
    let name = &wanted.name;
    let known: Vec<ContainerName> =
        pod.spec.containers.iter().map(|container| container.name.as_str().into()).collect();
    if let Some(unknown) = containers.iter().find(|container| !known.contains(container)) {
        let message = format!("pod {name:?} has no restartable container {:?}", unknown.as_str());
        return Err((StatusCode::NOT_FOUND, message));
    }
    if containers.is_empty() {
        containers = known;
    }
    let phase = pod.status.phase.as_str();
    if matches!(phase, "Succeeded" | "Failed") || pod.metadata.deletion_timestamp.is_some() {
        let state = if pod.metadata.deletion_timestamp.is_some() { "Terminating" } else { phase };
        let message = format!("pod {name:?} is {state}: its containers cannot be restarted");
        return Err((StatusCode::CONFLICT, message));
    }
    let failed = |message| (StatusCode::SERVICE_UNAVAILABLE, message);
    node.restart(pod.metadata.uid.clone(), containers).await.map_err(failed)?;
    Ok(text(StatusCode::OK, String::new()))
}

async fn container_log(
    node: &SharedNode,
    clock: &Clock,
    wanted: &ContainerTarget,
    options: &LogOptions,
) -> Result<Response<Body>, Failed> {
    let pod = find_container(node, wanted)?;
    let name = &wanted.container;
    let bad = |message| (StatusCode::BAD_REQUEST, message);
    let id = logs::instance(&pod.status, &wanted.pod.name, name.as_str(), options.previous).map_err(bad)?;
    let failed = |message| (StatusCode::INTERNAL_SERVER_ERROR, message);
    let Some(found) = node.container(id.clone()).await.map_err(failed)? else {
        let message = format!("container {:?} in pod {:?} is not available", name.as_str(), wanted.pod.name);
        return Err((StatusCode::BAD_REQUEST, message));
    };
    let path = std::path::PathBuf::from(&found.log_path);
    let log = match logs::open(path, options, clock.now()).await {
        Ok(log) => log,
        Err(error) => {
            return Err(failed(format!("failed to open log file {:?}: {error}", found.log_path)));
        }
    };
    let (pieces, body) = Body::in_pieces();
    let node = Rc::clone(node);
    crate::platform::rt::spawn("log", async move {
        let ended = async || {
            // An error of the runtime does not mean that the container has ended.
            let found = node.container(id.clone()).await;
            found.is_ok_and(|found| found.is_none_or(|found| is_over(&found)))
        };
        log.send(pieces, ended).await;
    });
    Ok(response(StatusCode::OK, "text/plain; charset=utf-8", body))
}

fn is_over(found: &ObservedContainer) -> bool {
    found.state == ContainerStateKind::Exited
}

async fn running(node: &SharedNode, wanted: &ContainerTarget) -> Result<ContainerId, Failed> {
    let pod = find_container(node, wanted)?;
    let containers = node.containers(Some(pod.metadata.uid.clone())).await;
    let containers = containers.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error))?;
    let runs = |found: &&ObservedContainer| {
        found.name == wanted.container && found.state == ContainerStateKind::Running
    };
    let message = || format!("container not found ({:?})", wanted.container.as_str());
    // Upstream's status code and message.
    containers
        .iter()
        .find(runs)
        .map(|found| found.id.clone())
        .ok_or_else(|| (StatusCode::INTERNAL_SERVER_ERROR, message()))
}

async fn stream(
    request: Request<IncomingBody>,
    node: &SharedNode,
    wanted: Result<StreamKind, Failed>,
    held: impl Sized + 'static,
) -> Result<Response<Body>, Failed> {
    let idle_timeout = node.stream_idle_timeout();
    let begun = node.stream(wanted?).await.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error))?;
    match begun {
        StreamServer::Agent(action) => {
            Ok(streaming::respond(request.map(drop), action, idle_timeout, held).map(Body::Whole))
        }
        StreamServer::Runtime(url) => proxy::proxy_stream(request, &url, idle_timeout, held)
            .await
            .map_err(|error| (StatusCode::BAD_GATEWAY, error)),
    }
}

async fn run(
    node: &SharedNode,
    wanted: &ContainerTarget,
    command: Vec<String>,
) -> Result<Response<Body>, Failed> {
    let failed = |message| (StatusCode::INTERNAL_SERVER_ERROR, message);
    let id = running(node, wanted).await?;
    let output = node.run(id, command.clone()).await.map_err(failed)?;
    if output.code == 0 {
        return Ok(text(StatusCode::OK, output.text));
    }
    let said = String::from_utf8_lossy(&output.text).into_owned();
    let words = command.join(" ");
    Err(failed(format!("command '{words}' exited with {}: {said}", output.code)))
}

/// The name of the archive and the message are upstream's.
async fn checkpoint(
    node: &SharedNode,
    clock: &Clock,
    wanted: &ContainerTarget,
    timeout: Option<Duration>,
) -> Result<Response<Body>, Failed> {
    let (pod, container) = (&wanted.pod, &wanted.container);
    let failed = |why: String| {
        let message = format!("checkpointing of {}/{}/{container} failed ({why})", pod.namespace, pod.name);
        (StatusCode::INTERNAL_SERVER_ERROR, message)
    };
    let id = running(node, wanted).await.map_err(|(code, why)| match code {
        StatusCode::NOT_FOUND => (code, why),
        _ => failed(why),
    })?;
    let now = clock.now().to_rfc3339();
    let archive = format!("checkpoint-{}_{}-{container}-{now}.tar", pod.name, pod.namespace);
    let path = node.checkpoint(id, archive, timeout).await.map_err(failed)?;
    Ok(object(StatusCode::OK, &json!({ "items": [path] })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use crate::model::provenance::CONFIG_SOURCE_ANNOTATION;

    #[test]
    fn a_static_pod_leaves_the_list_with_its_manifest() {
        let pod = |name: &str, source: &str, deleted: Option<&str>| {
            let metadata = json!({"name": name, "annotations": {CONFIG_SOURCE_ANNOTATION: source},
                "deletionTimestamp": deleted});
            decode::<Pod>(json!({ "metadata": metadata })).unwrap().object
        };
        let when = Some("2026-11-23T08:00:00Z");
        let pods = vec![
            pod("runs", "file", None),
            pod("removed", "file", when),
            pod("unlisted", "http", when),
            pod("deleted", "api", when),
        ];
        let list = pod_list(pods);
        let names: Vec<_> =
            list["items"].as_array().unwrap().iter().map(|pod| pod["metadata"]["name"].clone()).collect();
        assert_eq!(names, ["runs", "deleted"]);
    }
}
