//! One GET over a connection of its own, redirects included.
//!
//! Owns the bytes of the request and the bounds of the answer.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio::time::{Instant, timeout_at};

use super::dial::{self, system_error_text};
use super::{HandlerError, HttpAnswer, HttpGet, authority, tls};
use crate::platform::http::h1::{self, H1Connection};
use crate::platform::http::h2::Io;
use crate::pod::target::HttpTarget;

/// Of the body; the rest is not read.
const MAX_BODY_BYTES: usize = 10 * 1024;
/// Of the head of an answer.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Requests in a row, redirects among them, as Go's client has it.
const MAX_REQUESTS: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestTarget {
    https: bool,
    host: String,
    port: u16,
    /// Begins with a slash; only bytes that may stand in a request line.
    path: String,
}

impl RequestTarget {
    pub(super) fn of(request: &HttpGet) -> Self {
        let HttpTarget { https, host, port, path, .. } = &request.target;
        let path = path.split('#').next().unwrap_or_default();
        Self {
            https: *https,
            host: host.clone(),
            port: *port,
            path: escape(&if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }),
        }
    }

    pub(super) fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", authority(&self.host, self.port), self.path)
    }

    /// The target of a `Location` header relative to this one; `None` when it is not a URL for a probe.
    pub(super) fn follow(&self, location: &str) -> Option<Self> {
        let location = location.split('#').next().unwrap_or_default();
        let scheme = if self.https { "https" } else { "http" };
        if let Some(rest) = location.strip_prefix("//") {
            return absolute(scheme, rest);
        }
        if let Some((scheme, rest)) = location.split_once("://")
            && scheme.bytes().all(|byte| byte.is_ascii_alphabetic())
        {
            return absolute(&scheme.to_ascii_lowercase(), rest);
        }
        let own_path = self.path.split('?').next().unwrap_or_default();
        let path = match location.chars().next() {
            None => self.path.clone(),
            Some('/') => without_dots(location),
            Some('?') => format!("{own_path}{location}"),
            Some(_) => {
                let directory = &own_path[..=own_path.rfind('/').unwrap_or_default()];
                without_dots(&format!("{directory}{location}"))
            }
        };
        Some(Self { path: escape(&path), ..self.clone() })
    }
}

fn absolute(scheme: &str, rest: &str) -> Option<RequestTarget> {
    let https = match scheme {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (place, path) = rest.split_at(end);
    let place = place.rsplit('@').next().unwrap_or_default();
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port),
        None => place.split_at(place.find(':').unwrap_or(place.len())),
    };
    let port = match port.strip_prefix(':').unwrap_or_default() {
        "" => Some(if https { 443 } else { 80 }),
        port => port.parse().ok(),
    };
    let path = if path.starts_with('/') { without_dots(path) } else { format!("/{path}") };
    Some(RequestTarget { https, host: host.to_owned(), port: port?, path: escape(&path) })
}

/// `/a/../b/./c` is `/b/c`; the query is left alone.
fn without_dots(path: &str) -> String {
    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        parts.push("");
    }
    format!("/{}{query}", parts.join("/"))
}

/// What cannot stand in a request line is written as `%20`.
fn escape(path: &str) -> String {
    const NOT_IN_A_PATH: AsciiSet = CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`');
    utf8_percent_encode(path, &NOT_IN_A_PATH).to_string()
}

pub(super) async fn get(request: &HttpGet, deadline: Instant) -> Result<HttpAnswer, HandlerError> {
    let mut target = RequestTarget::of(request);
    let mut host_header = request.target.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
    for _ in 0..MAX_REQUESTS {
        let begun =
            timeout_at(deadline, begin(&target, request, host_header.map(|(_, value)| value.as_str())));
        let (mut link, response) = begun.await.map_err(|_| HandlerError::Timeout)??;
        let location = redirect(&response);
        let next = match &location {
            Some(location) => Some(target.follow(location).ok_or_else(|| unsupported(location))?),
            None => None,
        };
        match next {
            Some(next) if next.host == request.target.host => {
                // The manifest's `Host` header is sent on relative redirects only, as with Go's client.
                if location.is_some_and(|location| location.contains("://")) {
                    host_header = None;
                }
                target = next;
            }
            elsewhere => {
                let status = response.status().as_u16();
                let redirected_to = elsewhere.map(|target| target.url());
                let body = match timeout_at(deadline, link.carry(read_body(response.into_body()))).await {
                    Ok(body) => body?,
                    Err(_) => return Err(body_timeout()),
                };
                return Ok(HttpAnswer { status, body, redirected_to });
            }
        }
    }
    Err(HandlerError::Failed(format!("stopped after {MAX_REQUESTS} redirects")))
}

fn unsupported(location: &str) -> HandlerError {
    HandlerError::Failed(format!("unsupported protocol scheme in redirect to {location:?}"))
}

fn body_timeout() -> HandlerError {
    let words = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
    HandlerError::Body(words.to_owned())
}

fn redirect(response: &Response<Incoming>) -> Option<String> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?;
    Some(String::from_utf8_lossy(location.as_bytes()).into_owned()).filter(|location| !location.is_empty())
}

/// Up to the head of the answer.
async fn begin(
    target: &RequestTarget,
    request: &HttpGet,
    host_header: Option<&str>,
) -> Result<(Link, Response<Incoming>), HandlerError> {
    let message = compose(target, request, host_header)?;
    let stream = dial::connect(&target.host, target.port).await?;
    let stream: Io =
        if target.https { Box::new(tls::connect(&target.host, stream).await?) } else { Box::new(stream) };
    let mut settings = http1::Builder::new();
    settings.title_case_headers(true).max_buf_size(MAX_HEAD_BYTES);
    let begun = h1::begin_with(&settings, stream).await;
    let (mut sender, connection) = begun.map_err(|error| explain(&error))?;
    let mut link = Link { connection: Some(connection), trouble: None };
    match link.carry(sender.send_request(message)).await {
        Ok(response) => Ok((link, response)),
        Err(error) => Err(explain(link.trouble.as_ref().unwrap_or(&error))),
    }
}

fn compose(
    target: &RequestTarget,
    request: &HttpGet,
    host_header: Option<&str>,
) -> Result<Request<Full<Bytes>>, HandlerError> {
    let host = match host_header {
        Some(host) if !host.is_empty() => host.to_owned(),
        _ => authority(&target.host, target.port),
    };
    let mut message = Request::new(Full::default());
    *message.uri_mut() = target.path.parse().map_err(|error| HandlerError::Failed(format!("{error}")))?;
    let headers = message.headers_mut();
    headers.insert(HOST, header_value("Host", &host)?);
    for (name, value) in &request.target.headers {
        let known = HeaderName::from_bytes(name.as_bytes());
        let known = known.map_err(|_| HandlerError::Failed(format!("invalid header field name {name:?}")))?;
        // The manifest cannot set the framing headers of the message, as in Go.
        if !matches!(known.as_str(), "host" | "content-length" | "transfer-encoding" | "trailer") {
            headers.append(known, header_value(name, value)?);
        }
    }
    default_header(headers, USER_AGENT, request.user_agent);
    default_header(headers, ACCEPT, "*/*");
    headers.entry(CONNECTION).or_insert(HeaderValue::from_static("close"));
    Ok(message)
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, HandlerError> {
    HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| HandlerError::Failed(format!("invalid header field value for {name:?}")))
}

/// The default unless the manifest gives one; an empty one means none.
fn default_header(headers: &mut HeaderMap, name: HeaderName, default: &'static str) {
    match headers.get(&name) {
        Some(value) if value.is_empty() => {
            headers.remove(name);
        }
        Some(_) => {}
        None => {
            headers.insert(name, HeaderValue::from_static(default));
        }
    }
}

async fn read_body(mut incoming: Incoming) -> Result<String, HandlerError> {
    let mut body = Vec::new();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|error| HandlerError::Body(error_text(&error)))?;
        if let Some(data) = frame.data_ref() {
            let room = MAX_BODY_BYTES - body.len();
            body.extend_from_slice(&data[..data.len().min(room)]);
        }
        if body.len() == MAX_BODY_BYTES {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// A connection that is polled together with each wait on it, without a task of its own. It closes when
/// dropped.
struct Link {
    connection: Option<H1Connection>,
    trouble: Option<hyper::Error>,
}

impl Link {
    async fn carry<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Some(connection) = &mut self.connection
                && let Poll::Ready(end) = Pin::new(connection).poll(context)
            {
                self.connection = None;
                self.trouble = end.err();
            }
            work.as_mut().poll(context)
        })
        .await
    }
}

fn explain(error: &hyper::Error) -> HandlerError {
    HandlerError::Failed(error_text(error))
}

fn error_text(error: &hyper::Error) -> String {
    if error.is_incomplete_message() {
        return "EOF".to_owned();
    }
    if error.is_parse() {
        return format!("net/http: HTTP/1.x transport connection broken: malformed HTTP response: {error}");
    }
    match error.source().and_then(|source| source.downcast_ref::<io::Error>()) {
        Some(source) => format!("read tcp: {}", system_error_text(source)),
        None => error.to_string(),
    }
}
