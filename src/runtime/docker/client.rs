//! Docker Engine's HTTP API over its Unix socket: one connection for each call.
//!
//! Owns the requests, their time limits and what their failures mean.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;

use crate::codec::json;
use crate::platform::http::h1;
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::runtime::metered::Operation;
use crate::runtime::{ErrorKind, RuntimeError};

/// The versions of the API that this file and its neighbours speak, as minor numbers of version 1.
pub(super) const VERSIONS: std::ops::RangeInclusive<u32> = 40..=51;
/// The longest answer that is read: a list of a thousand containers takes two megabytes.
const MAX_ANSWER: usize = 64 << 20;
/// Calls under way at once: an engine that gets more answers none sooner.
const CALLS: usize = 64;
/// What stays as it is in a path or a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b':')
    .remove(b'@');

/// Escapes a part of a path or of a query.
pub(super) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// What is sent with a request.
pub(super) enum Payload<'a> {
    None,
    Json(&'a Value),
    Tar(Vec<u8>),
    /// No content, but a header: `X-Registry-Auth`.
    Auth(String),
}

pub(super) struct Client {
    socket: PathBuf,
    /// The minor number of the version in use.
    version: Cell<u32>,
    /// `runtimeRequestTimeout`.
    limit: Duration,
    turns: Semaphore,
}

impl Client {
    pub(super) fn new(socket: PathBuf, version: u32, limit: Duration) -> Self {
        Self { socket, version: Cell::new(version), limit, turns: Semaphore::new(CALLS) }
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn version(&self) -> u32 {
        self.version.get()
    }

    /// The version from now on: the engine may have been replaced.
    pub(super) fn set_version(&self, version: u32) {
        self.version.set(version);
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// A call by its CRI name, with the usual time limit.
    pub(super) async fn get(&self, call: &'static str, path: &str) -> Result<Value, RuntimeError> {
        self.call(call, Method::GET, path, Payload::None, self.limit).await
    }

    pub(super) async fn post(
        &self,
        call: &'static str,
        path: &str,
        content: Payload<'_>,
    ) -> Result<Value, RuntimeError> {
        self.call(call, Method::POST, path, content, self.limit).await
    }

    /// For objects that are to be gone.
    pub(super) async fn delete(&self, call: &'static str, path: &str) -> Result<Value, RuntimeError> {
        self.call(call, Method::DELETE, path, Payload::None, self.limit).await
    }

    /// Waits at most `limit`, once it is this call's turn.
    pub(super) async fn call(
        &self,
        call: &'static str,
        method: Method,
        path: &str,
        content: Payload<'_>,
        limit: Duration,
    ) -> Result<Value, RuntimeError> {
        let request = self.request(method, path, content);
        // A call that waits for a container's end must not keep others waiting.
        let _turn = if limit > self.limit { None } else { self.turns.acquire().await.ok() };
        let operation = Operation::begin(call);
        let answer = tokio::time::timeout(limit, Box::pin(self.answer(call, request))).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(RuntimeError::new(call, ErrorKind::Timeout, format!("no response within {limit:?}")))
        });
        operation.end(answer.is_err());
        answer
    }

    async fn answer(&self, call: &'static str, request: Request<Full<Bytes>>) -> Result<Value, RuntimeError> {
        let response = self.send(call, request).await?;
        let body = body(call, accepted(call, response).await?).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        // Some answers are a stream of objects, of which only the last says how it went.
        match json::parse_lean(&body) {
            Ok(value) => Ok(value),
            Err(_) => last_line(call, &body),
        }
    }

    /// A response that goes on for as long as it takes.
    pub(super) async fn open(
        &self,
        call: &'static str,
        method: Method,
        path: &str,
        content: Payload<'_>,
    ) -> Result<Response<Incoming>, RuntimeError> {
        let response = self.send(call, self.request(method, path, content)).await?;
        accepted(call, response).await
    }

    /// A connection that becomes a stream of bytes in both directions.
    pub(super) async fn hijack(
        &self,
        call: &'static str,
        path: &str,
        content: Payload<'_>,
    ) -> Result<TokioIo<Upgraded>, RuntimeError> {
        let mut request = self.request(Method::POST, path, content);
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        request.headers_mut().insert(UPGRADE, HeaderValue::from_static("tcp"));
        let sent = tokio::time::timeout(self.limit, Box::pin(self.send(call, request))).await;
        let response = sent.map_err(|_| {
            RuntimeError::new(call, ErrorKind::Timeout, "the engine does not open the stream")
        })??;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            accepted(call, response).await?;
            return Err(RuntimeError::new(call, ErrorKind::Refused, "the engine opens no stream"));
        }
        let upgraded = hyper::upgrade::on(response).await;
        upgraded.map(TokioIo::new).map_err(|error| broken(call, &error))
    }

    fn request(&self, method: Method, path: &str, content: Payload<'_>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = method;
        // Paths are made of escaped parts.
        *request.uri_mut() = format!("/v1.{}{path}", self.version.get()).parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("docker"));
        let (kind, body) = match content {
            Payload::None => return request,
            Payload::Json(value) => ("application/json", value.to_string().into()),
            Payload::Tar(bytes) => ("application/x-tar", bytes.into()),
            Payload::Auth(text) => {
                if let Ok(text) = HeaderValue::from_str(&text) {
                    headers.insert("x-registry-auth", text);
                }
                return request;
            }
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        *request.body_mut() = Full::new(body);
        request
    }

    async fn send(
        &self,
        call: &'static str,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, RuntimeError> {
        let absent = |error: std::io::Error| {
            let message = format!("connect to {}: {error}", self.socket.display());
            RuntimeError::new(call, ErrorKind::Unavailable, message)
        };
        let stream = UnixStream::connect(&self.socket).await.map_err(absent)?;
        send_on(stream, request).await.map_err(|error| broken(call, &error))
    }
}

/// Sends a request on a connection of its own, which lives as long as the answer.
pub(super) async fn send_on(
    stream: UnixStream,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, hyper::Error> {
    let (mut sender, connection) = h1::begin(Box::new(stream)).await?;
    rt::spawn("docker connection", connection.with_upgrades());
    sender.send_request(request).await
}

/// The connection broke in the middle: the call may have had its effect.
fn broken(call: &'static str, error: &hyper::Error) -> RuntimeError {
    RuntimeError::new(call, ErrorKind::Timeout, chain(error))
}

async fn body(call: &'static str, response: Response<Incoming>) -> Result<Bytes, RuntimeError> {
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    body.map(http_body_util::Collected::to_bytes)
        .map_err(|error| RuntimeError::new(call, ErrorKind::Timeout, error.to_string()))
}

/// The response, unless it is a refusal. `304` says that there is nothing to do.
async fn accepted(
    call: &'static str,
    response: Response<Incoming>,
) -> Result<Response<Incoming>, RuntimeError> {
    let status = response.status();
    if status.is_success() || status == StatusCode::NOT_MODIFIED {
        return Ok(response);
    }
    let body = body(call, response).await.unwrap_or_default();
    Err(refusal(call, status.as_u16(), &body))
}

fn refusal(call: &'static str, status: u16, body: &[u8]) -> RuntimeError {
    let said = json::parse_lean(body).ok();
    let message = said.as_ref().and_then(|said| said["message"].as_str().or(said["cause"].as_str()));
    let message = message.map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned);
    let kind = match status {
        404 => ErrorKind::NotFound,
        409 => ErrorKind::AlreadyExists,
        501 => ErrorKind::Unimplemented,
        502..=504 => ErrorKind::Unavailable,
        _ => ErrorKind::Refused,
    };
    let message =
        if message.is_empty() { format!("the engine answers with status {status}") } else { message };
    RuntimeError::new(call, kind, message)
}

/// The last object of an answer that reports progress; an error in it is the call's.
pub(super) fn last_line(call: &'static str, text: &[u8]) -> Result<Value, RuntimeError> {
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| json::parse_lean(line).ok());
    let mut last = Value::Null;
    for line in lines {
        if let Some(error) = line["error"].as_str() {
            return Err(RuntimeError::new(call, ErrorKind::Refused, error));
        }
        last = line;
    }
    Ok(last)
}

/// For calls that want an object gone.
pub(super) fn forgive_not_found<T>(answer: Result<T, RuntimeError>) -> Result<(), RuntimeError> {
    match answer {
        Err(error) if error.kind != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_words_and_status_become_the_error() {
        let gone = refusal("ContainerStatus", 404, br#"{"message":"No such container: a"}"#);
        assert_eq!((gone.kind, gone.message.as_str()), (ErrorKind::NotFound, "No such container: a"));
        assert!(forgive_not_found::<()>(Err(gone)).is_ok());
        let odd = refusal("Status", 500, b" no JSON \n");
        assert_eq!((odd.kind, odd.message.as_str()), (ErrorKind::Refused, "no JSON"));
        assert!(forgive_not_found::<()>(Err(odd)).is_err());
        assert_eq!(refusal("Status", 503, b"").message, "the engine answers with status 503");
    }

    #[test]
    fn an_error_within_progress_is_the_calls_error() {
        let text = b"{\"status\":\"Pulling\"}\r\n{\"errorDetail\":{},\"error\":\"manifest unknown\"}\r\n";
        assert_eq!(last_line("PullImage", text).unwrap_err().message, "manifest unknown");
        let text = b"{\"status\":\"Pulling\"}\n{\"status\":\"done\"}\n";
        assert_eq!(last_line("PullImage", text).expect("it went well")["status"], "done");
    }

    #[test]
    fn names_of_images_keep_their_form_in_a_path() {
        assert_eq!(escaped("docker.io/library/a:1@sha256:00"), "docker.io/library/a:1@sha256:00");
        assert_eq!(escaped("a b?c&d=\"{"), "a%20b%3Fc%26d%3D%22%7B");
    }
}
