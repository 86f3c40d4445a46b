//! The socket: accepting, HTTP/2, and which service a path belongs to.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use edge_agent::platform::proto::containerd_events::events_server::EventsServer;
use edge_agent::platform::proto::runtime::image_service_server::ImageServiceServer;
use edge_agent::platform::proto::runtime::runtime_service_server::RuntimeServiceServer;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

use super::services::Services;
use super::{Shared, Wanted};

/// The server's thread.
pub fn run(path: &Path, shared: &Arc<Shared>, wanted: watch::Receiver<Wanted>, opened: &watch::Sender<bool>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("start tokio");
    runtime.block_on(serve(path, shared, wanted, opened));
}

async fn serve(
    path: &Path,
    shared: &Arc<Shared>,
    mut wanted: watch::Receiver<Wanted>,
    opened: &watch::Sender<bool>,
) {
    loop {
        let now = *wanted.borrow_and_update();
        match now {
            Wanted::Gone => return,
            Wanted::Closed => {
                if wanted.changed().await.is_err() {
                    return;
                }
            }
            Wanted::Open => {
                let listener = UnixListener::bind(path).expect("bind the fake CRI socket");
                let mut connections = JoinSet::new();
                opened.send_replace(true);
                loop {
                    tokio::select! {
                        biased;
                        _ = wanted.changed() => break,
                        accepted = listener.accept() => {
                            let (stream, _) = accepted.expect("accept on the fake CRI socket");
                            connections.spawn(connection(stream, Services::new(Arc::clone(shared))));
                        }
                    }
                }
                drop(listener);
                connections.shutdown().await;
                std::fs::remove_file(path).expect("remove the fake CRI socket");
                opened.send_replace(false);
            }
        }
    }
}

async fn connection(stream: UnixStream, services: Services) {
    let runtime = RuntimeServiceServer::new(services.clone());
    let images = ImageServiceServer::new(services.clone());
    let events = EventsServer::new(services);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (mut runtime, mut images, mut events) = (runtime.clone(), images.clone(), events.clone());
        async move {
            let name = request.uri().path().split('/').nth(1).unwrap_or_default().to_owned();
            if name == <RuntimeServiceServer<Services> as NamedService>::NAME {
                runtime.call(request).await
            } else if name == <ImageServiceServer<Services> as NamedService>::NAME {
                images.call(request).await
            } else if name == <EventsServer<Services> as NamedService>::NAME {
                events.call(request).await
            } else {
                Ok::<_, Infallible>(
                    Status::unimplemented(format!("unknown service {name}")).into_http::<Body>(),
                )
            }
        }
    });
    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // A client that hangs up is no business of the server's.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
