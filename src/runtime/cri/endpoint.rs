//! Endpoints of the configuration into channels over Unix sockets.
//!
//! Owns the accepted forms and the connection's settings.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// The kubelet's shortest connect timeout. A socket whose owner accepts no connections must not hang a call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pings detect a runtime that hangs during a call without a time limit. gRPC servers in Go disconnect
/// clients that ping more often than every five minutes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(330);
/// How long an answer to a ping may take.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(30);
/// What fits into a socket address, its final zero left out.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Requests to one channel are queued in front of the connection; few can be under way in one agent.
const QUEUE_LENGTH: usize = 64;

/// Why an endpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("{field} is empty; set the runtime's socket, such as unix:///run/containerd/containerd.sock")]
    Empty { field: &'static str },
    /// Neither `unix` nor a bare path.
    #[error(
        "{field} {endpoint:?} has scheme {scheme:?}; only unix sockets are supported, such as \
         unix:///run/crio/crio.sock"
    )]
    Scheme {
        field: &'static str,
        endpoint: String,
        /// What stands before the colon.
        scheme: String,
    },
    #[error("{field} {endpoint:?} is not an absolute path; use unix:///path/to/the.sock")]
    NotAbsolute { field: &'static str, endpoint: String },
    /// Longer than a socket address.
    #[error("{field} {endpoint:?} is too long; a unix socket path has at most {MAX_SOCKET_PATH_BYTES} bytes")]
    TooLong { field: &'static str, endpoint: String },
}

/// A channel that connects on first use.
pub(super) fn channel(field: &'static str, endpoint: &str) -> Result<Channel, EndpointError> {
    let path = socket_path(field, endpoint)?;
    if !endpoint.contains(':') {
        log::warn!(field, endpoint; "Endpoint without scheme is deprecated; add the prefix unix://");
    }
    Ok(unix_channel(path))
}

/// A channel to the server on the socket; it connects on first use.
#[must_use]
pub(crate) fn unix_channel(path: PathBuf) -> Channel {
    Endpoint::from_static("http://localhost")
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .buffer_size(QUEUE_LENGTH)
        .connect_with_connector_lazy(UnixConnector { path })
}

fn socket_path(field: &'static str, endpoint: &str) -> Result<PathBuf, EndpointError> {
    let owned = || endpoint.to_owned();
    let path = match endpoint.split_once(':') {
        _ if endpoint.is_empty() => return Err(EndpointError::Empty { field }),
        _ if endpoint.starts_with('/') => endpoint,
        Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
        Some((scheme, _)) => {
            return Err(EndpointError::Scheme { field, endpoint: owned(), scheme: scheme.to_owned() });
        }
        None => endpoint,
    };
    if !Path::new(path).is_absolute() {
        return Err(EndpointError::NotAbsolute { field, endpoint: owned() });
    }
    if path.len() > MAX_SOCKET_PATH_BYTES {
        return Err(EndpointError::TooLong { field, endpoint: owned() });
    }
    Ok(PathBuf::from(path))
}

/// Opens the socket, regardless of the URI that is requested.
struct UnixConnector {
    path: PathBuf,
}

impl tower_service::Service<Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let path = self.path.clone();
        Box::pin(async move {
            let connected = UnixStream::connect(&path).await.map_err(|error| {
                io::Error::new(error.kind(), format!("connect to {}: {error}", path.display()))
            });
            connected.map(TokioIo::new)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_urls_and_bare_paths_name_sockets_and_nothing_else_does() {
        let path = |endpoint| socket_path("containerRuntimeEndpoint", endpoint);
        for accepted in ["unix:///run/a.sock", "/run/a.sock", "unix:/run/a.sock"] {
            assert_eq!(path(accepted), Ok(PathBuf::from("/run/a.sock")), "{accepted}");
        }
        let message = |endpoint| path(endpoint).unwrap_err().to_string();
        assert!(message("").contains("containerRuntimeEndpoint is empty"));
        assert!(message("tcp://127.0.0.1:1").contains("scheme \"tcp\""));
        assert!(message("npipe:////./pipe/x").contains("scheme \"npipe\""));
        assert!(message("unix://run/a.sock").contains("absolute"));
        assert!(message("run/a.sock").contains("absolute"));
        assert!(message(&format!("unix:///{}", "x".repeat(107))).contains("too long"));
    }
}
