//! Parsing of requests into routes.
//!
//! Owns the paths of the kubelet's API and their parameters. Pure: a path and a query in, a route or an error out.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::model::types::{ContainerName, PodUid, Timestamp};
use crate::serve::streaming::Streams;

/// Parameters, in the order given, decoded.
pub(in crate::serve) type Parameters = Vec<(String, String)>;

/// A pod, as named in a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodName {
    pub namespace: String,
    pub name: String,
    /// The pod's uid; any if absent.
    pub uid: Option<PodUid>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerTarget {
    pub pod: PodName,
    pub container: ContainerName,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// Continue at the end of the log.
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    /// Only this many lines from the end.
    pub tail: Option<u64>,
    /// Only lines written within this duration.
    pub since: Option<Duration>,
    pub since_time: Option<Timestamp>,
    pub limit_bytes: Option<u64>,
}

/// A resource of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/healthz` and the check it names, empty for all.
    Health(String),
    /// `/pods`: the desired pods.
    Pods,
    /// `/runningpods`: the running pods.
    RunningPods,
    /// `/debug/flags/v`: sets the verbosity of the log.
    Verbosity,
    /// `/configz`.
    Configz,
    /// `/flagz`.
    Flagz,
    /// `/statusz`.
    Statusz,
    /// `/stats/summary`; with `only_cpu_and_memory=true` less of it.
    Summary {
        /// Only CPU time and memory.
        only_cpu_and_memory: bool,
    },
    /// `/logs`: the machine's own logs, a file below `/var/log`.
    SystemLogs {
        /// The path below it, decoded.
        path: String,
        query: Parameters,
    },
    /// `/metrics` and what is below.
    Metrics(Page),
    /// `/containerLogs/...`.
    ContainerLogs(ContainerTarget, LogOptions),
    /// `/exec/...`.
    Exec(ContainerTarget, Vec<String>, Streams),
    /// `/attach/...`.
    Attach(ContainerTarget, Streams),
    /// `/portForward/...`, and the ports in a WebSocket's request.
    PortForward(PodName, Vec<u16>),
    /// `/run/...`: a command whose output is the response.
    Run(ContainerTarget, Vec<String>),
    /// `/checkpoint/...`, and how long it may take.
    Checkpoint(ContainerTarget, Option<Duration>),
    /// `/agent/v1/status`, the agent's own, and its query.
    AgentStatus(String),
    /// `/agent/v1/restart/...`, the agent's own: these containers of a pod, or all of them if none is named.
    AgentRestart(PodName, Vec<ContainerName>),
    /// `/agent/v1/sources/NAME/accept`, the agent's own: accepts the source's current answer as intended.
    AcceptSource(String),
    /// `/agent/v1/cluster/leave`, the agent's own: one round of draining, or with `forget=true` the end.
    LeaveCluster { forgets: bool },
}

/// A page of Prometheus metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// `/metrics`: about this program.
    Agent,
    /// `/metrics/resource`: CPU and memory.
    Resource,
    /// `/metrics/cadvisor`: everything of containers.
    Cadvisor,
    /// `/metrics/probes`.
    Probes,
    /// `/metrics/slis`: health.
    Slis,
}

/// Why a request matches no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NotFound,
    /// The path accepts only these methods.
    Method(&'static str),
    /// Invalid parameters: the status code and the reason.
    Invalid(u16, String),
    /// A path of upstream's that this program does not serve, and why.
    NotServed(&'static str),
}

pub(crate) fn route(method: &str, path: &str, query: &str) -> Result<Route, Refused> {
    let parts = segments(path);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let get = |route: Route| {
        if matches!(method, "GET" | "HEAD") { Ok(route) } else { Err(Refused::Method("GET, HEAD")) }
    };
    let streams = || {
        if matches!(method, "GET" | "POST") { Ok(()) } else { Err(Refused::Method("GET, POST")) }
    };
    match parts.as_slice() {
        ["healthz"] => get(Route::Health(String::new())),
        ["healthz", check @ ("ping" | "log" | "syncloop" | "device-plugin")] => {
            get(Route::Health((*check).to_owned()))
        }
        ["pods"] => get(Route::Pods),
        ["runningpods"] => get(Route::RunningPods),
        ["configz"] => get(Route::Configz),
        ["flagz"] => get(Route::Flagz),
        ["statusz"] => get(Route::Statusz),
        ["stats", "summary"] => {
            streams()?;
            let only_cpu_and_memory = only_cpu_and_memory(&parameters(query))?;
            Ok(Route::Summary { only_cpu_and_memory })
        }
        ["logs", rest @ ..] => get(Route::SystemLogs { path: rest.join("/"), query: parameters(query) }),
        ["metrics"] => get(Route::Metrics(Page::Agent)),
        ["metrics", "resource"] => get(Route::Metrics(Page::Resource)),
        ["metrics", "cadvisor"] => get(Route::Metrics(Page::Cadvisor)),
        ["metrics", "probes"] => get(Route::Metrics(Page::Probes)),
        ["metrics", "slis"] => get(Route::Metrics(Page::Slis)),
        ["agent", "v1", "status"] => get(Route::AgentStatus(query.to_owned())),
        ["agent", "v1", "restart", rest @ ..] => {
            if method != "POST" {
                return Err(Refused::Method("POST"));
            }
            let containers = values(&parameters(query), "container");
            Ok(Route::AgentRestart(pod_name(rest)?, containers.into_iter().map(Into::into).collect()))
        }
        ["agent", "v1", "sources", name, "accept"] => match method {
            "POST" => Ok(Route::AcceptSource((*name).to_owned())),
            _ => Err(Refused::Method("POST")),
        },
        ["agent", "v1", "cluster", "leave"] => match method {
            "POST" => Ok(Route::LeaveCluster { forgets: query == "forget=true" }),
            _ => Err(Refused::Method("POST")),
        },
        ["containerLogs", rest @ ..] => {
            let container = target(rest, false)?;
            get(Route::ContainerLogs(container, log_options(&parameters(query))?))
        }
        ["exec", rest @ ..] => {
            streams()?;
            let parameters = parameters(query);
            let command = values(&parameters, "command");
            if command.is_empty() {
                return Err(Refused::Invalid(
                    400,
                    "you must specify at least one `command=` parameter".to_owned(),
                ));
            }
            Ok(Route::Exec(target(rest, true)?, command, requested_streams(&parameters)?))
        }
        ["attach", rest @ ..] => {
            streams()?;
            Ok(Route::Attach(target(rest, true)?, requested_streams(&parameters(query))?))
        }
        ["portForward", rest @ ..] => {
            streams()?;
            Ok(Route::PortForward(pod_name(rest)?, ports(&parameters(query))?))
        }
        ["run", rest @ ..] => {
            if method != "POST" {
                return Err(Refused::Method("POST"));
            }
            let command: Vec<String> = values(&parameters(query), "cmd")
                .iter()
                .flat_map(|command| command.split(' '))
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect();
            if command.is_empty() {
                return Err(Refused::Invalid(400, "you must specify the `cmd=` parameter".to_owned()));
            }
            Ok(Route::Run(target(rest, true)?, command))
        }
        ["checkpoint", rest @ ..] => {
            if method != "POST" {
                return Err(Refused::Method("POST"));
            }
            Ok(Route::Checkpoint(target(rest, false)?, timeout(&parameters(query))?))
        }
        ["debug", "flags", "v"] if method == "PUT" => Ok(Route::Verbosity),
        ["debug", "flags", "v"] => Err(Refused::Method("PUT")),
        ["debug", ..] => Err(Refused::NotServed(
            "profiling is not supported; use perf for CPU, /proc/PID/smaps_rollup for memory",
        )),
        _ => Err(Refused::NotFound),
    }
}

/// The segments of a path, decoded; a trailing slash is ignored.
#[must_use]
pub(crate) fn segments(path: &str) -> Vec<String> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let parts = path.strip_prefix('/').unwrap_or_default().split('/');
    parts.map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned()).collect()
}

/// Splits and decodes a query.
#[must_use]
pub(crate) fn parameters(query: &str) -> Parameters {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
        .collect()
}

#[must_use]
pub(crate) fn values(parameters: &Parameters, name: &str) -> Vec<String> {
    parameters.iter().filter(|(found, _)| found == name).map(|(_, value)| value.clone()).collect()
}

fn pod_name(parts: &[&str]) -> Result<PodName, Refused> {
    let (namespace, name, uid) = match parts {
        [namespace, name] => (namespace, name, None),
        [namespace, name, uid] => (namespace, name, Some((*uid).into())),
        _ => return Err(Refused::NotFound),
    };
    if namespace.is_empty() || name.is_empty() {
        return Err(Refused::Invalid(400, "the path has no pod: must contain NAMESPACE/NAME".to_owned()));
    }
    Ok(PodName { namespace: (*namespace).to_owned(), name: (*name).to_owned(), uid })
}

fn target(parts: &[&str], with_uid: bool) -> Result<ContainerTarget, Refused> {
    let (container, pod) = parts.split_last().ok_or(Refused::NotFound)?;
    if pod.len() > 2 && !with_uid {
        return Err(Refused::NotFound);
    }
    let pod = pod_name(pod)?;
    if container.is_empty() {
        return Err(Refused::Invalid(400, "the path has no container".to_owned()));
    }
    Ok(ContainerTarget { pod, container: (*container).into() })
}

/// As upstream: the last value counts, and one that is no number is not found.
fn timeout(parameters: &Parameters) -> Result<Option<Duration>, Refused> {
    let Some(seconds) = values(parameters, "timeout").pop() else { return Ok(None) };
    let refused = |_| Refused::Invalid(404, "cannot parse value of timeout parameter".to_owned());
    seconds.parse().map(|seconds| Some(Duration::from_secs(seconds))).map_err(refused)
}

/// As upstream: anything but "1" and "true" is false.
fn flag(parameters: &Parameters, name: &str) -> bool {
    values(parameters, name).first().is_some_and(|value| matches!(value.as_str(), "1" | "true"))
}

/// As upstream parses it, with Go's spellings of booleans.
fn only_cpu_and_memory(parameters: &Parameters) -> Result<bool, Refused> {
    match values(parameters, "only_cpu_and_memory").first().map(String::as_str) {
        None | Some("" | "0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some(other) => {
            Err(Refused::Invalid(400, format!("only_cpu_and_memory: {other:?} must be true or false")))
        }
    }
}

/// The requested streams, in the kubelet's parameter names or in Kubernetes'.
///
/// # Errors
/// None is requested.
pub(in crate::serve) fn requested_streams(parameters: &Parameters) -> Result<Streams, Refused> {
    // The kubelet's own parameter names and, as API server clients send them, Kubernetes'.
    let either = |one, other| flag(parameters, one) || flag(parameters, other);
    let tty = flag(parameters, "tty");
    let streams = Streams {
        stdin: either("input", "stdin"),
        stdout: either("output", "stdout"),
        stderr: either("error", "stderr") && !tty,
        tty,
    };
    if !(streams.stdin || streams.stdout || streams.stderr) {
        let message = "you must specify at least 1 of stdin, stdout, stderr";
        return Err(Refused::Invalid(400, message.to_owned()));
    }
    Ok(streams)
}

/// The ports in a WebSocket's request.
pub(crate) fn ports(parameters: &Parameters) -> Result<Vec<u16>, Refused> {
    let named = ["port", "ports"].map(|name| values(parameters, name)).concat();
    named
        .iter()
        .flat_map(|list| list.split(','))
        .filter(|port| !port.is_empty())
        .map(|port| match port.parse() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(Refused::Invalid(400, format!("invalid port {port:?}: must be between 1 and 65535"))),
        })
        .collect()
}

pub(in crate::serve) fn log_options(parameters: &Parameters) -> Result<LogOptions, Refused> {
    let only = |name: &str| values(parameters, name).first().cloned();
    let number = |name: &str, least: i64| -> Result<Option<u64>, Refused> {
        let Some(text) = only(name) else { return Ok(None) };
        let value: i64 = text
            .parse()
            .map_err(|_| Refused::Invalid(400, format!("{name}: {text:?} must be an integer")))?;
        if value < least {
            let message = format!("{name}: Invalid value: {value}: must be greater than or equal to {least}");
            return Err(Refused::Invalid(422, message));
        }
        Ok(u64::try_from(value).ok())
    };
    let flagged = |name: &str| -> Result<bool, Refused> {
        match only(name).as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("" | "true" | "1") => Ok(true),
            Some(other) => Err(Refused::Invalid(400, format!("{name}: {other:?} must be true or false"))),
        }
    };
    // Upstream's older form: `tail=all`, or a number.
    let tail = match only("tail").as_deref() {
        Some("all") => None,
        Some(_) => number("tail", 0)?,
        None => number("tailLines", 0)?,
    };
    let since_time = match only("sinceTime") {
        None => None,
        Some(text) => Some(Timestamp::parse_rfc3339(&text).ok_or_else(|| {
            Refused::Invalid(400, format!("sinceTime: {text:?} must be a time such as 2026-01-31T12:00:00Z"))
        })?),
    };
    let since = number("sinceSeconds", 1)?.map(Duration::from_secs);
    if since.is_some() && since_time.is_some() {
        let message = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        return Err(Refused::Invalid(422, message.to_owned()));
    }
    Ok(LogOptions {
        follow: flagged("follow")?,
        previous: flagged("previous")?,
        timestamps: flagged("timestamps")?,
        tail,
        since,
        since_time,
        limit_bytes: number("limitBytes", 1)?,
    })
}

#[cfg(test)]
mod tests;
