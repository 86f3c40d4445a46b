//! Why a pull failed, in the wording of other runtimes, and never with a secret in it.
//!
//! Owns the messages.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::platform::http::{HttpError, TlsError};
use crate::runtime::embedded::images::ImageError;

/// The kind of a failure, for callers that decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullErrorKind {
    /// No such image, tag or platform.
    NotFound,
    /// The registry wants (other) credentials.
    Denied,
    /// The registry cannot be reached or does not answer properly: a later attempt may succeed.
    Unavailable,
    /// Its content is not what it should be, or exceeds a limit.
    Invalid,
    /// The reference or the hosts configuration is invalid.
    Configuration,
    /// The policy wants a signature that the image does not have.
    Signature,
    Storage,
}

#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("couldn't parse image reference {image:?}: {problem}")]
    Reference {
        image: String,
        /// What is wrong with it.
        problem: String,
    },
    #[error("{}: {problem}", path.display())]
    Hosts {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The policy file, or a key that it names, is invalid.
    #[error("{}: {problem}", path.display())]
    Policy {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The policy refuses the image. The first word is the kubelet's reason.
    #[error("SignatureValidationFailed: {reference}: {reason}")]
    Signature { reference: String, reason: String },
    #[error("failed to resolve reference {reference:?}")]
    Resolve {
        reference: String,
        #[source]
        source: Box<PullError>,
    },
    #[error("failed to pull and unpack image {reference:?}")]
    Unpack {
        reference: String,
        #[source]
        source: Box<PullError>,
    },
    #[error("{mirrors}, and then")]
    AfterMirrors {
        mirrors: String,
        #[source]
        source: Box<PullError>,
    },
    #[error("{what}: not found")]
    NotFound {
        /// A reference or digest.
        what: String,
    },
    #[error("pull access denied, repository does not exist or may require authorization: {reason}")]
    Denied {
        /// The server's message.
        reason: String,
    },
    #[error(
        "failed to do request: {url}: tls: failed to verify certificate: x509: {reason}; set its CA in \
         {host}/hosts.toml of a registry hosts directory (ca = \"…\")"
    )]
    Certificate {
        url: String,
        host: String,
        /// In Go's wording.
        reason: String,
    },
    #[error("failed to do request")]
    Request(#[source] HttpError),
    #[error("unexpected status from {method} request to {url}: {status}{reason}")]
    Status {
        /// GET, HEAD, POST.
        method: &'static str,
        /// Without its query.
        url: String,
        status: u16,
        /// The server's message, after a colon.
        reason: String,
    },
    #[error("{url}: {problem}")]
    Redirect {
        /// Where it came from.
        url: String,
        problem: &'static str,
    },
    #[error("{what}: {problem}")]
    Invalid {
        what: String,
        /// What is wrong.
        problem: String,
    },
    #[error("no match for platform in manifest: {wanted} is not among {offered}: not found")]
    Platform {
        /// `linux/arm/v7`.
        wanted: String,
        offered: String,
    },
    #[error(transparent)]
    Store(ImageError),
    #[error("cancelled because another layer failed")]
    Cancelled,
    #[error("interrupted; complete layers are kept for the next attempt")]
    Interrupted,
    #[error("{what}")]
    System {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("no data received for {seconds} s")]
    Stuck { seconds: u64 },
    #[error("the pull helper exited without a result ({how}): it may have been OOM killed")]
    Died { how: String },
    #[error("{message}")]
    InChild { kind: PullErrorKind, message: String },
}

impl PullError {
    #[must_use]
    pub fn kind(&self) -> PullErrorKind {
        match self {
            Self::Reference { .. } | Self::Hosts { .. } | Self::Policy { .. } => PullErrorKind::Configuration,
            Self::Signature { .. } => PullErrorKind::Signature,
            Self::Resolve { source, .. }
            | Self::Unpack { source, .. }
            | Self::AfterMirrors { source, .. } => source.kind(),
            Self::NotFound { .. } | Self::Platform { .. } => PullErrorKind::NotFound,
            Self::Denied { .. } => PullErrorKind::Denied,
            Self::Certificate { .. }
            | Self::Request(_)
            | Self::Status { .. }
            | Self::Redirect { .. }
            | Self::Cancelled
            | Self::Interrupted
            | Self::Stuck { .. }
            | Self::Died { .. } => PullErrorKind::Unavailable,
            Self::Invalid { .. } => PullErrorKind::Invalid,
            Self::Store(_) | Self::System { .. } => PullErrorKind::Storage,
            Self::InChild { kind, .. } => *kind,
        }
    }

    /// From a request without an answer.
    pub(super) fn from_http(error: HttpError, authority: &str) -> Self {
        let HttpError::Tls { url, reason } = error else { return Self::Request(error) };
        let host = authority.to_owned();
        let reason = match reason {
            TlsError::UnknownIssuer => "certificate signed by unknown authority".to_owned(),
            TlsError::NotTls => {
                let url = format!("{url}: http: server gave HTTP response to HTTPS client");
                return Self::Redirect {
                    url,
                    problem: "configure it as http://… in hosts.toml if this is intended",
                };
            }
            other => other.to_string(),
        };
        Self::Certificate { url, host, reason }
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Request(HttpError::Refused { .. }))
    }

    /// True when a server that was reached refused the request, as far as a HEAD can give the reason.
    pub(super) fn is_answer(&self) -> bool {
        match self {
            Self::NotFound { .. } | Self::Denied { .. } => true,
            Self::Status { status, .. } => matches!(status, 400..=499) && *status != 429,
            Self::AfterMirrors { source, .. } => source.is_answer(),
            _ => false,
        }
    }

    /// True when too little arrived to continue with this server.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self, Self::Request(HttpError::Slow { .. }))
    }

    /// True when the same request may succeed at once or soon.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Request(error) => matches!(
                error,
                HttpError::Connection { .. }
                    | HttpError::Timeout { .. }
                    | HttpError::Truncated { .. }
                    | HttpError::Protocol { .. }
            ),
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }
}

pub(super) fn invalid(what: impl Into<String>, problem: impl Into<String>) -> PullError {
    PullError::Invalid { what: what.into(), problem: problem.into() }
}

/// Longer messages of a server are cut.
const MAX_WORDS: usize = 300;

/// `: CODE: message` of the errors that a registry sends, or nothing.
pub(super) fn error_message(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let first = value.get("errors").and_then(|errors| errors.get(0)).unwrap_or(&Value::Null);
    let (code, message) = (text(first, "code"), text(first, "message"));
    let words = match (code.is_empty(), message.is_empty()) {
        (false, false) => format!(": {code}: {message}"),
        (false, true) => format!(": {code}"),
        (true, false) => format!(": {message}"),
        (true, true) => match text(&value, "details") {
            details if details.is_empty() => return String::new(),
            details => format!(": {details}"),
        },
    };
    words.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(MAX_WORDS).collect()
}
