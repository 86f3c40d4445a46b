//! The embedded runtime served as CRI: alone (`agent cri`), or beside the kubelet on a node of a cluster, where kubeadm
//! and crictl ask for it.
//!
//! Owns the order of start and stop. Pods keep running when it exits; the next process restores them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::agent::config::{CriFlags, Resolved};
use crate::agent::kubelet::embedded::{ENDPOINT, ImageProblems, import_images};
use crate::agent::kubelet::setup::configs;
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::rt::notify::{Notifier, NotifyError};
use crate::platform::rt::{self, shutdown};
use crate::platform::sys::inherited;
use crate::runtime::embedded::network::subnet::SubnetError;
use crate::runtime::embedded::runtime::{EmbeddedRuntime, OpenError};
use crate::serve::cri::{self, CriServer};
use crate::serve::server::BindError;
use crate::serve::streaming::server::{ListenError, Server};

#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// `--listen`.
    #[error("--listen {0:?}: must be unix:///path or an absolute path")]
    Endpoint(String),
    #[error("--stream-address {0:?}: must be address:port, such as 127.0.0.1:0")]
    StreamAddress(String),
    #[error("podCIDR")]
    PodCidr(#[source] SubnetError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Streams(#[from] ListenError),
    #[error(transparent)]
    Listen(#[from] BindError),
    #[error(transparent)]
    Notify(#[from] NotifyError),
    #[error("install signal handlers")]
    Signals(#[source] std::io::Error),
    #[error("create directory {path:?}")]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Serves until it is asked to stop.
///
/// # Errors
/// The reason it cannot start; once it runs, there is none.
pub async fn run(resolved: &Resolved, flags: &CriFlags, notify_socket: Option<&str>) -> Result<(), CriError> {
    let (trigger, shutdown) = shutdown::channel();
    rt::spawn("signals", shutdown::watch_signals(trigger).map_err(CriError::Signals)?);
    let notifier = Notifier::connect(notify_socket)?;
    serve_until(resolved, flags, &notifier, shutdown.requested()).await
}

/// Serves until `end` is done; returns its result.
///
/// # Errors
/// The reason it cannot start.
pub(crate) async fn serve_until<T>(
    resolved: &Resolved,
    flags: &CriFlags,
    notifier: &Notifier,
    end: impl Future<Output = T>,
) -> Result<T, CriError> {
    let socket = socket_path(&flags.listen)?;
    let address: SocketAddr =
        flags.stream_address.parse().map_err(|_| CriError::StreamAddress(flags.stream_address.clone()))?;
    let config = configs::embedded(resolved).map_err(CriError::PodCidr)?;
    let root = &resolved.flags.root_dir;
    std::fs::create_dir_all(root).map_err(|source| CriError::Directory { path: root.clone(), source })?;
    // The runtime first: if another agent has locked it, that agent's socket is left alone.
    let runtime = Box::pin(EmbeddedRuntime::open(config, Clock::System)).await?;
    // With socket activation the client waits already.
    let passed = inherited::listener(&socket).and_then(|listener| UnixListener::from_std(listener).ok());
    let is_own = passed.is_none();
    let listener = match passed {
        Some(listener) => listener,
        None => cri::listen(&socket).await?,
    };
    let images = import_images(resolved.flags.images_dir.clone(), &runtime, ImageProblems::default()).await;
    let serving = serve(runtime, listener, is_own.then_some(&*socket), address)?;
    log::info!(socket:% = socket.display(); "Serving CRI");
    notifier.ready();
    let ended = end.await;
    notifier.stopping();
    images.abort();
    // New clients fail to connect from here on. After a crash the next agent replaces the socket that is
    // left.
    serving.abort();
    let _ = serving.await;
    Ok(ended)
}

/// Serves the runtime of a kubelet of a cluster; pods do not depend on it, so an error is logged.
pub(super) async fn serve_beside(resolved: &Resolved, runtime: &EmbeddedRuntime) -> Option<JoinHandle<()>> {
    let path = cri_socket(resolved)?;
    let started = start_cri_socket(runtime.clone(), &path).await;
    started
        .inspect_err(|error| {
            log::warn!(socket:% = path.display(), err = chain(error); "Failed to serve CRI, continuing without");
        })
        .ok()
}

/// Serves `runtime` on a socket beside the kubelet that uses it. The socket is removed when the task is aborted; pods do
/// not depend on it.
///
/// # Errors
/// It cannot listen there.
pub(crate) async fn start_cri_socket(
    runtime: EmbeddedRuntime,
    path: &Path,
) -> Result<JoinHandle<()>, CriError> {
    let listener = cri::listen(path).await?;
    let serving = serve(runtime, listener, Some(path), SocketAddr::from(([127, 0, 0, 1], 0)))?;
    log::info!(socket:% = path.display(); "Serving CRI");
    Ok(serving)
}

/// The socket that a kubelet with this configuration serves: a node of a cluster with the embedded runtime has one,
/// unless `--cri-socket` is empty.
pub(crate) fn cri_socket(resolved: &Resolved) -> Option<PathBuf> {
    let (flags, kubelet) = (&resolved.flags, &resolved.kubelet);
    let is_joined = !flags.kubeconfig.is_empty() || !flags.bootstrap_kubeconfig.is_empty();
    let serves = is_joined && !kubelet.run_once && kubelet.container_runtime_endpoint == ENDPOINT;
    socket_path(&flags.cri_socket).ok().filter(|_| serves)
}

/// `socket` is removed at the end.
fn serve(
    runtime: EmbeddedRuntime,
    listener: UnixListener,
    socket: Option<&Path>,
    address: SocketAddr,
) -> Result<JoinHandle<()>, CriError> {
    let streams = Server::bind(address)?;
    let server = CriServer::new(runtime, streams.announcer());
    let socket = socket.map(|socket| ServedSocket(socket.to_owned()));
    Ok(rt::spawn("CRI socket", async move {
        let _socket = socket;
        tokio::join!(streams.serve(), server.serve(listener));
    }))
}

/// Removes the socket when its server ends.
struct ServedSocket(PathBuf);

impl Drop for ServedSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn socket_path(listen: &str) -> Result<PathBuf, CriError> {
    let path = Path::new(listen.strip_prefix("unix://").unwrap_or(listen));
    if path.is_absolute() { Ok(path.to_owned()) } else { Err(CriError::Endpoint(listen.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_a_path_with_or_without_its_scheme() {
        for listen in ["unix:///run/a.sock", "/run/a.sock"] {
            assert_eq!(socket_path(listen).ok(), Some(PathBuf::from("/run/a.sock")));
        }
        for listen in ["", "run/a.sock", "tcp://127.0.0.1:1", "unix://a"] {
            assert!(socket_path(listen).is_err(), "{listen}");
        }
    }
}
