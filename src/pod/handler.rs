//! The actions of probes and lifecycle hooks: an HTTP request, a TCP connection, a gRPC health check.
//!
//! Owns the requests and their limits. (Commands in containers are the runtime's: `Runtime::exec_sync`.)
//! Error messages are the kubelet's, so that events read the same.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::pod::target::HttpTarget;

mod dial;
mod grpc;
mod http;
#[cfg(test)]
mod tests;
mod tls;

pub(super) const PROBE_USER_AGENT: &str = "kube-probe/1.36";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpGet {
    /// The target; the certificate of TLS is not verified (upstream).
    pub target: HttpTarget,
    /// `User-Agent` unless the headers contain one.
    pub user_agent: &'static str,
}

impl HttpGet {
    /// `http://10.0.0.1:80/healthz`, as messages show it.
    #[must_use]
    pub(super) fn url(&self) -> String {
        http::RequestTarget::of(self).url()
    }

    /// The error message for a missing answer, in the kubelet's words: `Get "http://10.0.0.1:80/": EOF`.
    #[must_use]
    pub(super) fn explain(&self, error: &HandlerError) -> String {
        let url = self.url();
        match error {
            HandlerError::Timeout => {
                format!("Get {url:?}: {error} (Client.Timeout exceeded while awaiting headers)")
            }
            HandlerError::PlainHttp => format!("Get {url:?}: http: {error}"),
            HandlerError::Failed(_) => format!("Get {url:?}: {error}"),
            HandlerError::Body(_) => error.to_string(),
        }
    }
}

/// The answer to a [`HttpGet`], redirects to the same host followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HttpAnswer {
    /// Of the last response.
    pub status: u16,
    /// At most 10 KiB of it.
    pub body: String,
    /// Where a redirect to another host points; it was not followed.
    pub redirected_to: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandlerError {
    #[error("context deadline exceeded")]
    Timeout,
    #[error("server gave HTTP response to HTTPS client")]
    PlainHttp,
    /// The response body was cut off or timed out: upstream does not count that as a failure.
    #[error("{0}")]
    Body(String),
    /// Any other error, as a message.
    #[error("{0}")]
    Failed(String),
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`, by number.
pub(super) type ServingStatus = i32;

/// The one status of a healthy gRPC service.
pub(super) const SERVING: ServingStatus = 1;

/// Sends a request and reads the answer. No proxy, no keep-alive, no compression.
///
/// # Errors
/// No connection, no answer, or none in `timeout`, which covers everything up to the last byte of the last
/// redirect.
pub(crate) async fn http_get(request: &HttpGet, timeout: Duration) -> Result<HttpAnswer, HandlerError> {
    http::get(request, deadline(timeout)).await
}

/// Connects and hangs up.
pub(super) async fn tcp_connect(host: &str, port: u16, timeout: Duration) -> Result<(), HandlerError> {
    match timeout_at(deadline(timeout), dial::connect(host, port)).await {
        Ok(connected) => connected.map(drop),
        Err(_) => Err(HandlerError::Timeout),
    }
}

/// Asks a plaintext gRPC server for the health of `service`.
pub(super) async fn grpc_check(
    host: &str,
    port: u16,
    service: &str,
    timeout: Duration,
) -> Result<ServingStatus, HandlerError> {
    grpc::check(host, port, service, timeout).await
}

/// `NOT_SERVING`, for messages.
#[must_use]
pub(super) fn serving_status_name(status: ServingStatus) -> String {
    grpc::status_name(status)
}

/// `host:port`, with brackets around an IPv6 address.
#[must_use]
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn deadline(timeout: Duration) -> Instant {
    /// Practically unlimited, without overflow of a clock.
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
    Instant::now() + timeout.min(LONGEST)
}
