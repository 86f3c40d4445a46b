//! The embedded runtime served as CRI v1: for crictl, a stock kubelet, and other CRI clients.
//!
//! Owns the socket's connections and the table of calls. What a call means is in `runtime_service` and
//! `image_service`; they ask the runtime and keep no state.

mod image_service;
mod messages;
mod runtime_service;
mod select;
mod stats;
pub(crate) mod streams;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;

use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use tokio::net::{UnixListener, UnixStream};

use crate::platform::bind::{BindError, bind};
use crate::platform::grpc::{Handler, serve_connection};
use crate::platform::rt::connections;
use crate::runtime::embedded::runtime::EmbeddedRuntime;
use crate::runtime::{ErrorKind, RuntimeError};
use crate::serve::streaming::server::Announcer;

use crate::platform::grpc::{AnswerBody, Code, GrpcReply, Status, unary};

/// Root and its group: access to this socket amounts to root on the node.
const SOCKET_MODE: u32 = 0o660;
/// A kubelet holds two connections, tools one each; test suites open some for each of their hundreds of cases
/// and close none.
const MAX_CONNECTIONS: usize = 512;

#[derive(Clone)]
pub(crate) struct CriServer {
    runtime: EmbeddedRuntime,
    streams: Announcer,
}

impl CriServer {
    /// Serves `runtime`; streams are announced on `streams`.
    #[must_use]
    pub(crate) fn new(runtime: EmbeddedRuntime, streams: Announcer) -> Self {
        Self { runtime, streams }
    }

    /// Serves until the future is dropped, and ends all connections then. Needs a `LocalSet`.
    pub(crate) async fn serve(self, listener: UnixListener) {
        let accept = async || listener.accept().await.map(|(stream, _)| stream);
        connections::serve("the CRI socket", MAX_CONNECTIONS, accept, |stream, place| {
            let server = self.clone();
            async move {
                server.serve_connection(stream).await;
                drop(place);
            }
        })
        .await;
    }

    async fn serve_connection(self, stream: UnixStream) {
        let server = Rc::new(self);
        let answer: Handler = Rc::new(move |request| {
            let server = Rc::clone(&server);
            Box::pin(async move { server.answer(request).await })
        });
        serve_connection(stream, answer).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let path = request.uri().path().to_owned();
        let answer = match crate::platform::grpc::message(request).await {
            Ok(message) => self.call(&path, message).await,
            Err(status) => Err(status),
        };
        match &answer {
            Ok(_) => log::debug!(call = path; "CRI call succeeded"),
            Err(status) => log::debug!(call = path, err = status.message; "CRI call failed"),
        }
        crate::platform::grpc::response(answer)
    }

    async fn call(&self, path: &str, message: Bytes) -> Result<GrpcReply, Status> {
        if let Some(name) = path.strip_prefix("/runtime.v1.ImageService/") {
            return self.image_call(name, message).await;
        }
        let Some(name) = path.strip_prefix("/runtime.v1.RuntimeService/") else { return unknown(path) };
        // Each call's future is boxed: this one stays small.
        match name {
            "Version" => Box::pin(unary(message, |request| self.version(request))).await,
            "Status" => Box::pin(unary(message, |request| self.status(request))).await,
            "RuntimeConfig" => Box::pin(unary(message, |request| self.runtime_config(request))).await,
            "UpdateRuntimeConfig" => {
                Box::pin(unary(message, |request| self.update_runtime_config(request))).await
            }
            "RunPodSandbox" => Box::pin(unary(message, |request| self.run_pod_sandbox(request))).await,
            "StopPodSandbox" => Box::pin(unary(message, |request| self.stop_pod_sandbox(request))).await,
            "RemovePodSandbox" => Box::pin(unary(message, |request| self.remove_pod_sandbox(request))).await,
            "PodSandboxStatus" => Box::pin(unary(message, |request| self.pod_sandbox_status(request))).await,
            "ListPodSandbox" => Box::pin(unary(message, |request| self.list_pod_sandbox(request))).await,
            "StreamPodSandboxes" => self.stream_pod_sandboxes(message),
            "CreateContainer" => Box::pin(unary(message, |request| self.create_container(request))).await,
            "StartContainer" => Box::pin(unary(message, |request| self.start_container(request))).await,
            "StopContainer" => Box::pin(unary(message, |request| self.stop_container(request))).await,
            "RemoveContainer" => Box::pin(unary(message, |request| self.remove_container(request))).await,
            "ContainerStatus" => Box::pin(unary(message, |request| self.container_status(request))).await,
            "ListContainers" => Box::pin(unary(message, |request| self.list_containers(request))).await,
            "StreamContainers" => self.stream_containers(message),
            "UpdateContainerResources" => {
                Box::pin(unary(message, |request| self.update_container_resources(request))).await
            }
            "ReopenContainerLog" => {
                Box::pin(unary(message, |request| self.reopen_container_log(request))).await
            }
            "ExecSync" => Box::pin(unary(message, |request| self.exec_sync(request))).await,
            "Exec" => Box::pin(unary(message, |request| self.exec(request))).await,
            "Attach" => Box::pin(unary(message, |request| self.attach(request))).await,
            "PortForward" => Box::pin(unary(message, |request| self.port_forward(request))).await,
            "GetContainerEvents" => Ok(self.container_events()),
            "ContainerStats" => Box::pin(unary(message, |request| self.container_stats(request))).await,
            "ListContainerStats" => {
                Box::pin(unary(message, |request| self.list_container_stats(request))).await
            }
            "StreamContainerStats" => Box::pin(self.stream_container_stats(message)).await,
            "PodSandboxStats" => Box::pin(unary(message, |request| self.pod_sandbox_stats(request))).await,
            "ListPodSandboxStats" => {
                Box::pin(unary(message, |request| self.list_pod_sandbox_stats(request))).await
            }
            "StreamPodSandboxStats" => Box::pin(self.stream_pod_sandbox_stats(message)).await,
            // CheckpointContainer. UpdatePodSandboxResources: pods' cgroups are the kubelet's own. Metrics: a
            // kubelet that gets a part of cAdvisor's metrics would show only that part, and collects all of
            // them itself when there are none.
            _ => unknown(path),
        }
    }
}

/// Creates the socket. A stale one is replaced.
pub(crate) async fn listen(path: &Path) -> Result<UnixListener, BindError> {
    let listener = bind(path).await?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))
        .map_err(|source| BindError::File { action: "set the mode of", path: path.to_owned(), source })?;
    Ok(listener)
}

fn unknown(path: &str) -> Result<GrpcReply, Status> {
    Err(Status::new(Code::Unimplemented, format!("{path} is not implemented by this runtime")))
}

/// The runtime's failures in gRPC's codes, as containerd uses them.
fn failed(error: RuntimeError) -> Status {
    let code = match error.kind {
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Timeout => Code::DeadlineExceeded,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::Unimplemented => Code::Unimplemented,
        ErrorKind::Refused => Code::Unknown,
    };
    Status::new(code, error.message)
}
