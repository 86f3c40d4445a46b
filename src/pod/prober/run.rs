//! One run of a probe: its action, up to three tries, and the kubelet's messages for the result.
//!
//! Owns the time limits.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::place::{ProbeAddress, Speed};
use crate::model::api::pod::Pod;
use crate::model::containers::find_container;
use crate::model::types::{ContainerId, go_duration};
use crate::pod::handler::{
    HandlerError, HttpGet, PROBE_USER_AGENT, SERVING, authority, grpc_check, http_get, serving_status_name,
    tcp_connect,
};
use crate::pod::prober::rules::{ProbeResult, ProbeTarget, probe_target};
use crate::pod::target::HttpTarget;
use crate::runtime::{ErrorKind, Runtime};

/// Tries in a row when a run has no result.
const MAX_TRIES: usize = 3;
/// Bytes of a command's output that messages contain.
const MAX_OUTPUT_BYTES: usize = 10 * 1024;
/// A runtime that has not ended a command this long after its timeout counts as not responding.
const EXEC_GRACE: Duration = Duration::from_secs(2);

/// The inputs of a run.
pub(super) struct Job {
    pub place: Rc<ProbeAddress>,
    pub id: ContainerId,
    pub pod: Rc<Pod>,
    /// Empty while unknown.
    pub pod_ip: Rc<str>,
    pub speed: Speed,
}

/// The outcome of a run, with its duration and slot.
pub(super) struct Ended {
    pub place: Rc<ProbeAddress>,
    pub id: ContainerId,
    /// Of the place it took.
    pub speed: Speed,
    pub took: Duration,
    pub answer: ProbeOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProbeOutcome {
    Success,
    /// A success with a warning, which is reported as an event.
    Warning(String),
    Failure(String),
    /// No result: the probe could not be sent, or its answer was incomplete. It does not count.
    Error {
        /// Upstream's name of the state.
        state: &'static str,
        words: String,
        /// Another try may be worth it.
        is_passing: bool,
    },
}

impl ProbeOutcome {
    pub(in crate::pod) fn result(&self) -> Option<ProbeResult> {
        match self {
            Self::Success | Self::Warning(_) => Some(ProbeResult::Success),
            Self::Failure(_) => Some(ProbeResult::Failure),
            Self::Error { .. } => None,
        }
    }

    /// Reason and message of an event, without the kind of the probe.
    pub(in crate::pod) fn complaint(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Success => None,
            Self::Warning(words) => Some(("ProbeWarning", format!("warning: {words}"))),
            Self::Failure(words) => Some(("Unhealthy", format!("failed: {words}"))),
            Self::Error { state, words, .. } => {
                Some(("Unhealthy", format!("errored and resulted in {state} state: {words}")))
            }
        }
    }
}

/// Runs the probe; bounded by the timeouts of all tries.
pub(super) async fn run<R: Runtime>(runtime: Rc<R>, job: Job) -> Ended {
    let began = Instant::now();
    let mut answer = run_handler(&*runtime, &job).await;
    for _ in 1..MAX_TRIES {
        if !matches!(answer, ProbeOutcome::Error { is_passing: true, .. }) {
            break;
        }
        answer = run_handler(&*runtime, &job).await;
    }
    Ended { place: job.place, id: job.id, speed: job.speed, took: began.elapsed(), answer }
}

async fn run_handler<R: Runtime>(runtime: &R, job: &Job) -> ProbeOutcome {
    let found = find_container(&job.pod, &job.place.container);
    let probe = found.and_then(|(container, _)| Some((container, job.place.kind.of(container)?)));
    let Some((container, probe)) = probe else { return error("the container has no probe of this type") };
    let limit = Duration::from_secs(u64::try_from(probe.timeout_seconds).unwrap_or_default().max(1));
    match probe_target(probe, container, &job.pod_ip) {
        // Boxed: a task is as large as its largest branch, and most probes are small.
        Ok(ProbeTarget::Exec(command)) => Box::pin(exec(runtime, &job.id, &command, limit)).await,
        Ok(ProbeTarget::HttpGet(target)) => Box::pin(get(target, limit)).await,
        Ok(ProbeTarget::TcpSocket { host, port }) => connect(&host, port, limit).await,
        Ok(ProbeTarget::Grpc { host, port, service }) => {
            Box::pin(check_health(&host, port, &service, limit)).await
        }
        Err(words) => error(&words),
    }
}

/// An error that another try would repeat.
fn error(words: &str) -> ProbeOutcome {
    ProbeOutcome::Error { state: "unknown", words: words.to_owned(), is_passing: false }
}

async fn exec<R: Runtime>(
    runtime: &R,
    id: &ContainerId,
    command: &[String],
    limit: Duration,
) -> ProbeOutcome {
    let began = Instant::now();
    let call = runtime.exec_sync(id, command, Some(limit));
    match timeout(limit + EXEC_GRACE, call).await {
        Ok(Ok(ended)) if ended.exit_code == 0 => ProbeOutcome::Success,
        Ok(Ok(ended)) => {
            let shown = &ended.output[..ended.output.len().min(MAX_OUTPUT_BYTES)];
            ProbeOutcome::Failure(String::from_utf8_lossy(shown).into_owned())
        }
        // A connection that broke has no answer either, but sooner.
        Ok(Err(failed)) if failed.kind == ErrorKind::Timeout && began.elapsed() >= limit => {
            let limit = go_duration(limit);
            ProbeOutcome::Failure(format!(
                "command timed out: {:?} timed out after {limit}",
                command.join(" ")
            ))
        }
        Ok(Err(failed)) => ProbeOutcome::Error { state: "unknown", words: failed.message, is_passing: true },
        Err(_) => error("the container runtime does not respond"),
    }
}

async fn get(target: HttpTarget, limit: Duration) -> ProbeOutcome {
    let request = HttpGet { target, user_agent: PROBE_USER_AGENT };
    match http_get(&request, limit).await {
        Ok(answer) => match answer.status {
            200..300 => ProbeOutcome::Success,
            300..400 => {
                ProbeOutcome::Warning(format!("Probe terminated redirects, Response body: {}", answer.body))
            }
            status => ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        },
        Err(HandlerError::Body(words)) => ProbeOutcome::Error { state: "failure", words, is_passing: true },
        Err(error) => ProbeOutcome::Failure(request.explain(&error)),
    }
}

async fn connect(host: &str, port: u16, limit: Duration) -> ProbeOutcome {
    match tcp_connect(host, port, limit).await {
        Ok(()) => ProbeOutcome::Success,
        Err(HandlerError::Timeout) => {
            ProbeOutcome::Failure(format!("dial tcp {}: i/o timeout", authority(host, port)))
        }
        Err(error) => ProbeOutcome::Failure(error.to_string()),
    }
}

async fn check_health(host: &str, port: u16, service: &str, limit: Duration) -> ProbeOutcome {
    match grpc_check(host, port, service, limit).await {
        Ok(SERVING) => ProbeOutcome::Success,
        Ok(status) => {
            let name = serving_status_name(status);
            ProbeOutcome::Failure(format!("service unhealthy (responded with {name:?})"))
        }
        Err(error) => ProbeOutcome::Failure(error.to_string()),
    }
}
