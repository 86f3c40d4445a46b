//! The local API on a Unix socket: what runs, for `agent status` and `agent get`.
//!
//! Owns connections, their limits and the three routes. Must not know how a report is gathered: it gets a function.

pub mod bind;
pub mod report;

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};

use crate::rt::connections::{self, Place};

pub use bind::{BindError, bind};
pub use report::{AgentReport, ObjectDetail};

/// Where the shell listens unless it is told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/agent/agent.sock";

/// More than people and scripts on one box need; each costs a buffer.
const MAX_CONNECTIONS: usize = 64;
/// A client that does not say what it wants makes room for others.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// One request and its answer; a client that does not read makes room too.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// hyper's least.
const BUFFER_BYTES: usize = 8192;
/// Our own client sends one.
const MAX_HEADERS: usize = 32;

/// Makes a report when somebody asks.
pub type Reporter = Rc<dyn Fn(ObjectDetail) -> AgentReport>;

/// Serves until the future is dropped, and ends all connections then. Needs a `LocalSet`.
pub async fn serve(listener: UnixListener, reporter: Reporter) {
    let accept = async || listener.accept().await.map(|(stream, _)| stream);
    connections::serve("the local socket", MAX_CONNECTIONS, accept, |stream, place| {
        serve_connection(stream, Rc::clone(&reporter), place)
    })
    .await;
}

async fn serve_connection(stream: UnixStream, reporter: Reporter, _place: Place) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = respond(&request, &reporter);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(BUFFER_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        // A client's mistake or impatience; nobody has to act.
        Ok(Err(error)) => log::debug!(err:% = error; "Local connection ended early"),
        Err(_) => log::debug!("Local connection took too long"),
    }
}

fn respond(request: &Request<Incoming>, reporter: &Reporter) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !matches!(path, "/healthz" | "/pods" | "/api/v1/pods" | "/agent/v1/status") {
        return failure(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource",
        );
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let message = "the server does not allow this method on the requested resource";
        let mut response = failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    if !request.body().is_end_stream() {
        let message = "a request to this server has no body";
        return failure(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message);
    }
    match path {
        "/healthz" => response(StatusCode::OK, "text/plain; charset=utf-8", Bytes::from_static(b"ok")),
        "/agent/v1/status" => {
            let detail = ObjectDetail::from_query(request.uri().query().unwrap_or_default());
            json_response(StatusCode::OK, &reporter(detail))
        }
        _ => json_response(StatusCode::OK, &pod_list(reporter(ObjectDetail::Counted))),
    }
}

/// `v1.PodList`. Items of a list carry no kind of their own, as upstream's `/pods`.
fn pod_list(report: AgentReport) -> serde_json::Value {
    let items: Vec<_> = report
        .pods
        .into_iter()
        .map(|mut pod| {
            pod.api_version.clear();
            pod.kind.clear();
            json!(pod)
        })
        .collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

fn failure(code: StatusCode, reason: &str, message: &str) -> Response<Full<Bytes>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    });
    json_response(code, &status)
}

fn json_response(code: StatusCode, object: &impl serde::Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_vec(object) {
        Ok(body) => response(code, "application/json", Bytes::from(body)),
        Err(error) => {
            log::error!(err:% = error; "Failed to encode a report");
            response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", Bytes::new())
        }
    }
}

fn response(code: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests;
