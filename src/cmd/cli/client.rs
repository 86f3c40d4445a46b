//! One request to the running agent over its socket.
//!
//! Owns the connection, its timeout and its bounds.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE, WARNING};
use hyper::upgrade::Upgraded;
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::net::UnixStream;

use super::CliError;
use crate::model::api::decode::{DecodeError, decode};
use crate::platform::http::h1;
use crate::serve::server::{AgentReport, ObjectDetail};

/// Sufficient, since the agent answers from memory.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Sufficient for far more than a thousand pods.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The longest body of an error response that is read, in bytes.
const MAX_WORDS: usize = 64 * 1024;

/// The agent did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("the agent is not running: no process listens on {}", path.display())]
    NotRunning { path: PathBuf },
    #[error("no permission to use {}: run this as root", path.display())]
    Permission { path: PathBuf },
    #[error("connect to {}", path.display())]
    Connect { path: PathBuf, source: io::Error },
    /// The peer does not speak HTTP as expected.
    #[error("send the request to {}", path.display())]
    Http { path: PathBuf, source: hyper::Error },
    #[error("the agent did not answer on {} within {} seconds", path.display(), TIMEOUT.as_secs())]
    Timeout { path: PathBuf },
    #[error("the agent on {} responded with status {code}", path.display())]
    Refused { path: PathBuf, code: StatusCode },
    #[error("read the response from {}: {message}", path.display())]
    Body { path: PathBuf, message: String },
    #[error("the response from {} is not JSON", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    /// The answer has a different shape: the agent is of another release.
    #[error("the response from {} has an unexpected format", path.display())]
    Decode { path: PathBuf, source: DecodeError },
}

pub(crate) async fn fetch_report(path: &Path, detail: ObjectDetail) -> Result<AgentReport, ClientError> {
    let resource = match detail.as_query() {
        "" => "/agent/v1/status".to_owned(),
        query => format!("/agent/v1/status?{query}"),
    };
    let body = match tokio::time::timeout(TIMEOUT, fetch(path, &resource)).await {
        Ok(result) => result?,
        Err(_) => return Err(ClientError::Timeout { path: path.to_owned() }),
    };
    let value = serde_json::from_slice(&body)
        .map_err(|source| ClientError::Json { path: path.to_owned(), source })?;
    decode(value)
        .map(|decoded| decoded.object)
        .map_err(|source| ClientError::Decode { path: path.to_owned(), source })
}

async fn fetch(path: &Path, resource: &str) -> Result<Bytes, ClientError> {
    let answer = exchange(path, request(resource)).await?;
    if answer.code != StatusCode::OK {
        return Err(ClientError::Refused { path: path.to_owned(), code: answer.code });
    }
    Ok(answer.body)
}

pub(super) struct ClientResponse {
    pub code: StatusCode,
    /// Texts of `Warning` headers.
    pub warnings: Vec<String>,
    pub body: Bytes,
}

/// Sends a request that changes something; `content` is the media type of a body, and the body.
pub(super) async fn send(
    path: &Path,
    method: Method,
    resource: &str,
    content: Option<(&'static str, Vec<u8>)>,
) -> Result<ClientResponse, CliError> {
    let mut request = request(resource);
    *request.method_mut() = method;
    if let Some((media_type, body)) = content {
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        *request.body_mut() = body.into();
    }
    let timed_out = |_| ClientError::Timeout { path: path.to_owned() };
    let answer = tokio::time::timeout(TIMEOUT, exchange(path, request)).await.map_err(timed_out);
    answer.and_then(|answer| answer).map_err(CliError::Client)
}

async fn exchange(path: &Path, request: Request<Full<Bytes>>) -> Result<ClientResponse, ClientError> {
    let http = |source| ClientError::Http { path: path.to_owned(), source };
    let stream = UnixStream::connect(path).await.map_err(|source| connect_error(path, source))?;
    let (mut sender, connection) = h1::begin(Box::new(stream)).await.map_err(http)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(http)?;
        let (code, warnings) = (response.status(), warnings(response.headers()));
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes);
        let failed = |message: String| ClientError::Body { path: path.to_owned(), message };
        Ok(ClientResponse { code, warnings, body: body.map_err(|error| failed(error.to_string()))? })
    };
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        // If the connection ends early, the exchange ends too, with the more useful error.
        result = &mut exchange => result,
        _ = &mut connection => exchange.await,
    }
}

/// `299 - "text"`, with its quotes and backslashes escaped.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let texts = headers.get_all(WARNING).iter().filter_map(|value| value.to_str().ok());
    let quoted = texts.filter_map(|text| text.split_once('"')?.1.rsplit_once('"'));
    quoted.map(|(text, _)| text.replace("\\\"", "\"").replace("\\\\", "\\")).collect()
}

/// Reads a response and passes it on piece by piece. An error response is an error with the agent's message.
pub(super) async fn stream(
    path: &Path,
    resource: &str,
    accept: &'static str,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), CliError> {
    let mut request = request(resource);
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
    let http = |source| CliError::Client(ClientError::Http { path: path.to_owned(), source });
    let stream = UnixStream::connect(path).await;
    let stream = stream.map_err(|source| CliError::Client(connect_error(path, source)))?;
    let (mut sender, connection) = h1::begin(Box::new(stream)).await.map_err(http)?;
    let exchange = async {
        let answered = tokio::time::timeout(TIMEOUT, sender.send_request(request)).await;
        let timed_out = |_| CliError::Client(ClientError::Timeout { path: path.to_owned() });
        let mut response = answered.map_err(timed_out)?.map_err(http)?;
        if response.status() != StatusCode::OK {
            let body = Limited::new(response.into_body(), MAX_WORDS).collect().await;
            let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            return Err(CliError::Answer(String::from_utf8_lossy(&body).trim_end().to_owned()));
        }
        while let Some(frame) = response.frame().await {
            if let Ok(piece) = frame.map_err(http)?.into_data() {
                write(&piece).map_err(CliError::Output)?;
            }
        }
        Ok(())
    };
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        result = &mut exchange => result,
        _ = &mut connection => exchange.await,
    }
}

/// Upgrades to a connection that speaks SPDY/3.1 with `protocol`. Needs a `LocalSet`.
pub(super) async fn upgrade(
    path: &Path,
    resource: &str,
    protocol: &'static str,
) -> Result<TokioIo<Upgraded>, CliError> {
    let http = |source| CliError::Client(ClientError::Http { path: path.to_owned(), source });
    let stream = UnixStream::connect(path).await;
    let stream = stream.map_err(|source| CliError::Client(connect_error(path, source)))?;
    let (mut sender, connection) = h1::begin(Box::new(stream)).await.map_err(http)?;
    crate::platform::rt::spawn("connection", connection.with_upgrades());
    let mut request = request(resource);
    *request.method_mut() = Method::POST;
    let headers = request.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert("x-stream-protocol-version", HeaderValue::from_static(protocol));
    // The agent may have to ask the runtime, which takes longer.
    let response = sender.send_request(request).await.map_err(http)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return hyper::upgrade::on(response).await.map(TokioIo::new).map_err(http);
    }
    let code = response.status();
    let body = Limited::new(response.into_body(), MAX_WORDS).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let words = String::from_utf8_lossy(&body).trim_end().to_owned();
    Err(if words.is_empty() {
        CliError::Client(ClientError::Refused { path: path.to_owned(), code })
    } else {
        CliError::Answer(words)
    })
}

/// A percent-encoded part of a path or a query.
pub(super) fn escaped(text: &str) -> String {
    const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');
    utf8_percent_encode(text, &PLAIN).to_string()
}

fn request(resource: &str) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = resource.parse().unwrap_or_default();
    request.headers_mut().insert(HOST, HeaderValue::from_static("agent"));
    request
}

fn connect_error(path: &Path, source: io::Error) -> ClientError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning { path },
        io::ErrorKind::PermissionDenied => ClientError::Permission { path },
        _ => ClientError::Connect { path, source },
    }
}
