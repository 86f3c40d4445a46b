//! Endpoints of the configuration into channels over Unix sockets.
//!
//! Owns the accepted forms.

use std::path::{Path, PathBuf};

use crate::platform::grpc::Channel;

/// What fits into a socket address, its final zero left out.
const MAX_SOCKET_PATH_BYTES: usize = 107;
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("{field} is empty; set the runtime's socket, such as unix:///run/containerd/containerd.sock")]
    Empty { field: &'static str },
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
    #[error("{field} {endpoint:?} is too long; a unix socket path has at most {MAX_SOCKET_PATH_BYTES} bytes")]
    TooLong { field: &'static str, endpoint: String },
}

/// A channel that connects on first use.
pub(super) fn channel(field: &'static str, endpoint: &str) -> Result<Channel, EndpointError> {
    let path = socket_path(field, endpoint)?;
    if !endpoint.contains(':') {
        log::warn!(field, endpoint; "Endpoint without scheme is deprecated; add the prefix unix://");
    }
    Ok(Channel::unix(path))
}

pub(crate) fn socket_path(field: &'static str, endpoint: &str) -> Result<PathBuf, EndpointError> {
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
