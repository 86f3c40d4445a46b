//! Why a request failed, in messages that name the server and, where there is one, the fix.
//!
//! Owns the translation of ureq's and rustls' errors.

use std::io;
use std::path::PathBuf;

use rustls::pki_types::pem;
use rustls::{AlertDescription, CertificateError};

use super::Request;

/// A request without an answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("start the HTTP thread")]
    Thread {
        #[source]
        source: io::Error,
    },
    #[error("the HTTP thread has stopped")]
    Stopped,
    #[error("{url}: the scheme must be http or https")]
    Scheme { url: String },
    #[error("{url}: not a valid request: {reason}; check the URL and the configured headers")]
    Invalid { url: String, reason: String },
    #[error("read trusted certificates from {}", path.display())]
    ReadAuthorities {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("parse trusted certificates in {}: {source:?}", path.display())]
    ParseAuthorities { path: PathBuf, source: pem::Error },
    #[error("{} contains no PEM certificate", path.display())]
    EmptyAuthorities { path: PathBuf },
    #[error("read the client certificate or key {}", path.display())]
    ReadKey {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} contains no PEM private key", path.display())]
    Key { path: PathBuf },
    #[error("no trusted certificates on this system: install ca-certificates or set SSL_CERT_FILE")]
    NoAuthorities,
    #[error("{url}: cannot resolve the host name; check the name and the DNS servers in /etc/resolv.conf")]
    Resolve { url: String },
    #[error("{url}: connection refused; is the server running on that port?")]
    Refused { url: String },
    #[error("{url}: connection failed")]
    Connection {
        url: String,
        #[source]
        source: io::Error,
    },
    #[error("{url}: no complete response within {seconds} s")]
    Timeout { url: String, seconds: u64 },
    #[error(
        "{url}: only {bytes} bytes received in {seconds} s, less than the minimum of {least} bytes per second"
    )]
    Slow {
        url: String,
        bytes: u64,
        /// The window in seconds.
        seconds: u64,
        least: u64,
    },
    #[error("{url}: more than 10 redirects; check the server for a redirect loop")]
    TooManyRedirects { url: String },
    /// From https to http: the next hop could be read and changed on the way.
    #[error("{url}: redirect from https to unencrypted {target} not followed; serve it over https")]
    Downgrade { url: String, target: String },
    #[error("{url}: the body is longer than the limit of {limit} bytes")]
    TooLong { url: String, limit: usize },
    #[error("{url}: the connection was closed before the answer was complete")]
    Truncated { url: String },
    #[error("{url}: the server sent content encoding {encoding:?}, which was not requested")]
    Encoded { url: String, encoding: String },
    #[error("{url}: TLS: {reason}")]
    Tls { url: String, reason: TlsError },
    #[error(
        "{url}: the proxy did not connect: {reason}; check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY"
    )]
    Proxy { url: String, reason: String },
    #[error("{url}: not a valid HTTP response: {reason}")]
    Protocol { url: String, reason: String },
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TlsError {
    #[error("the server's certificate has expired; renew it, or correct this machine's clock")]
    Expired,
    #[error("the server's certificate is not valid yet; this machine's clock is probably behind")]
    NotYetValid,
    #[error(
        "the server's certificate is signed by an unknown authority; add that authority to the trusted ones"
    )]
    UnknownIssuer,
    #[error("the server's certificate is not for this host name")]
    WrongName,
    /// A CA certificate, used for a server: what `openssl req -x509` makes by default.
    #[error(
        "the server's certificate is a CA certificate (CA:TRUE) and cannot be used by a server; issue one \
         with basicConstraints CA:FALSE"
    )]
    Authority,
    #[error("the server's certificate is not acceptable: {0:?}")]
    Certificate(CertificateError),
    #[error("the server rejected the client certificate, or requires one and none is configured: {0:?}")]
    ClientRefused(AlertDescription),
    #[error("the server does not speak TLS on this port; is it an http:// URL?")]
    NotTls,
    #[error("{0}")]
    Handshake(String),
}

/// The URL without a password, for logs and messages.
#[must_use]
pub(crate) fn shown_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

pub(super) fn explain(error: ureq::Error, request: &Request) -> HttpError {
    let url = shown_url(&request.url);
    match error {
        ureq::Error::HostNotFound => HttpError::Resolve { url },
        ureq::Error::Timeout(_) => timeout(request),
        ureq::Error::TooManyRedirects => HttpError::TooManyRedirects { url },
        ureq::Error::Rustls(error) => HttpError::Tls { url, reason: explain_tls(error) },
        ureq::Error::Tls(reason) => HttpError::Tls { url, reason: TlsError::Handshake(reason.to_owned()) },
        ureq::Error::Io(error) => explain_io(error, request),
        ureq::Error::BadUri(reason) => HttpError::Invalid { url, reason },
        ureq::Error::Http(error) => HttpError::Invalid { url, reason: error.to_string() },
        ureq::Error::InvalidProxyUrl => HttpError::Proxy { url, reason: "not a proxy URL".to_owned() },
        ureq::Error::ConnectProxyFailed(reason) => HttpError::Proxy { url, reason },
        other => HttpError::Protocol { url, reason: other.to_string() },
    }
}

pub(super) fn explain_body(error: io::Error, request: &Request) -> HttpError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return HttpError::Truncated { url: shown_url(&request.url) };
    }
    explain(ureq::Error::from(error), request)
}

fn explain_io(error: io::Error, request: &Request) -> HttpError {
    let url = shown_url(&request.url);
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return HttpError::Tls { url, reason: explain_tls(tls.clone()) };
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => HttpError::Refused { url },
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => timeout(request),
        io::ErrorKind::UnexpectedEof => HttpError::Truncated { url },
        // The standard library's resolver has no error kind of its own.
        _ if error.to_string().contains("failed to lookup address") => HttpError::Resolve { url },
        _ => HttpError::Connection { url, source: error },
    }
}

pub(super) fn timeout(request: &Request) -> HttpError {
    HttpError::Timeout { url: shown_url(&request.url), seconds: request.timeout_total.as_secs() }
}

pub(super) fn explain_tls(error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsError::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TlsError::NotYetValid
            }
            CertificateError::UnknownIssuer => TlsError::UnknownIssuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsError::WrongName
            }
            // The verifier's error type is of another crate; only its name is visible here.
            other if format!("{other:?}").contains("CaUsedAsEndEntity") => TlsError::Authority,
            other => TlsError::Certificate(other),
        },
        // The server's alerts; except for versions and ciphers, they can only refuse the client certificate.
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied),
        ) => TlsError::ClientRefused(alert),
        rustls::Error::InvalidMessage(_) => TlsError::NotTls,
        other => TlsError::Handshake(other.to_string()),
    }
}
