//! What can go wrong with a request to the apiserver, and what an answer means.
//!
//! Pure: an answer in, an error out. Owns the mapping of answers to kinds.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

/// Longest part of an answer that an error repeats.
const SHOWN_TEXT: usize = 200;
/// What the apiserver answers, as text, for a group or version that it does not serve.
const NOT_SERVED: &str = "404 page not found";

/// A request got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LinkError {
    pub kind: LinkErrorKind,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkErrorKind {
    /// No connection: nothing was sent.
    Dial,
    /// The server's certificate was refused, or ours by the server: nothing was sent.
    Tls,
    /// There is no token or certificate to send: nothing was sent.
    Credentials,
    /// The time limit of the request. The server may have done what it asked for.
    TimedOut,
    /// The connection ended. The server may have done what the request asked for.
    Lost,
}

/// What callers distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiErrorKind {
    Unreachable,
    /// TLS: the server is not this cluster's, or it does not accept our certificate.
    Tls,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    /// The version asked for is no longer kept: list again.
    Gone,
    /// The server understands the request and will never accept it.
    Invalid,
    TooMany,
    /// The server failed, or a proxy in front of it did not reach it.
    Server,
    /// A web page, a redirect: a captive portal, a proxy, another server.
    NotAnApiserver,
    /// Our own limit of requests per second: nothing was sent.
    NoTurn,
}

/// A request that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub kind: ApiErrorKind,
    /// HTTP's status; 0 without an answer.
    pub status: u16,
    /// `Status.reason`; empty without one.
    pub reason: String,
    pub message: String,
    pub retry_after: Option<Duration>,
}

impl std::error::Error for ApiError {}

impl fmt::Display for ApiError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            0 => formatter.write_str(&self.message),
            status => write!(formatter, "{} (HTTP status {status})", self.message),
        }
    }
}

impl ApiError {
    /// An error that no answer caused.
    pub(crate) fn new(kind: ApiErrorKind, message: impl Into<String>) -> Self {
        Self { kind, status: 0, reason: String::new(), message: message.into(), retry_after: None }
    }

    /// A request that got no answer.
    pub(crate) fn of_link(error: LinkError) -> Self {
        let kind = match error.kind {
            LinkErrorKind::Tls => ApiErrorKind::Tls,
            LinkErrorKind::Credentials => ApiErrorKind::Unauthorized,
            LinkErrorKind::Dial | LinkErrorKind::TimedOut | LinkErrorKind::Lost => ApiErrorKind::Unreachable,
        };
        Self::new(kind, error.message)
    }

    /// What an answer with a status other than 2xx says. `body` may be cut off.
    pub(crate) fn of_answer(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let parsed: Option<Value> = serde_json::from_slice(body).ok();
        match parsed.filter(|value| value["kind"] == "Status") {
            Some(value) => Self::of_status(&value, status, retry_after),
            None => Self::of_text(status, retry_after, body),
        }
    }

    /// What a `Status` says: an answer's body, or the object of an ERROR event.
    pub(crate) fn of_status(value: &Value, status: u16, retry_after: Option<Duration>) -> Self {
        let code = value["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code > 0);
        let status = code.unwrap_or(status);
        let reason = value["reason"].as_str().unwrap_or_default();
        let kind = match (status, reason) {
            (410, _) | (_, "Gone" | "Expired") => ApiErrorKind::Gone,
            (409, "AlreadyExists") => ApiErrorKind::AlreadyExists,
            (409, _) => ApiErrorKind::Conflict,
            (401, _) => ApiErrorKind::Unauthorized,
            (403, _) => ApiErrorKind::Forbidden,
            (404, _) => ApiErrorKind::NotFound,
            (429, _) => ApiErrorKind::TooMany,
            (400..500, _) => ApiErrorKind::Invalid,
            _ => ApiErrorKind::Server,
        };
        let delay = value["details"]["retryAfterSeconds"].as_u64().filter(|seconds| *seconds > 0);
        let message = value["message"].as_str().filter(|message| !message.is_empty()).unwrap_or(reason);
        Self {
            kind,
            status,
            reason: reason.to_owned(),
            message: message.to_owned(),
            retry_after: retry_after.or(delay.map(Duration::from_secs)),
        }
    }

    fn of_text(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN_TEXT)]);
        let text = text.trim();
        let kind = match status {
            // A 404 without a Status never says that an object is gone.
            404 if text == NOT_SERVED => ApiErrorKind::Invalid,
            // The apiserver's own limits answer with text; so do load balancers without a server behind them.
            429 => ApiErrorKind::TooMany,
            500.. => ApiErrorKind::Server,
            _ => ApiErrorKind::NotAnApiserver,
        };
        let message = match kind {
            ApiErrorKind::NotAnApiserver => "the answer is not a Kubernetes API server's".to_owned(),
            _ if text.is_empty() || text.starts_with('<') => "the server gave no reason".to_owned(),
            _ => text.to_owned(),
        };
        Self { kind, status, reason: String::new(), message, retry_after }
    }

    /// An answer that cannot be read.
    pub(crate) fn not_an_apiserver(status: u16, message: &str) -> Self {
        Self { status, ..Self::new(ApiErrorKind::NotAnApiserver, message) }
    }

    /// No valid answer: the apiserver says nothing about any object, so nothing may change.
    pub(crate) fn is_offline(&self) -> bool {
        matches!(
            self.kind,
            ApiErrorKind::Unreachable
                | ApiErrorKind::Tls
                | ApiErrorKind::Unauthorized
                | ApiErrorKind::NotAnApiserver
                | ApiErrorKind::Server
        )
    }
}
