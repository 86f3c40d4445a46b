//! A device plugin that does what no plugin should: each of its answers is chosen by the test.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use edge_agent::devices::client::PluginClient;
use edge_agent::platform::grpc::{self, Code, GrpcReply, Status};
use edge_agent::platform::grpc::{Handler, serve_connection};
use edge_agent::platform::proto::device_plugin as wire;
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// For an answer; calls that never end are given up by the agent, and this is longer.
const PATIENCE: Duration = Duration::from_secs(90);

/// What it answers.
pub enum Say {
    /// One message.
    One(Vec<u8>),
    /// Nothing, for ever.
    Never,
    /// One message of a stream that stays open.
    Open(Vec<u8>),
    /// Messages as fast as they are taken, until there is none.
    Stream(Box<dyn FnMut() -> Option<Vec<u8>>>),
}

/// Its answers by the name of the call.
pub type Script = Arc<dyn Fn(&str) -> Say + Send + Sync>;

/// A list of good devices.
pub fn list(ids: impl IntoIterator<Item = String>) -> Vec<u8> {
    let device = |id| wire::Device { id, health: "Healthy".to_owned(), topology: None };
    wire::ListAndWatchResponse { devices: ids.into_iter().map(device).collect() }.encode_to_vec()
}

/// A plugin that runs until it is dropped.
pub struct HostilePlugin {
    directory: PathBuf,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HostilePlugin {
    /// Listens on this socket in the agent's directory of plugins.
    pub fn start(directory: &Path, socket: &str, script: Script) -> Self {
        let path = directory.join(socket);
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
            let serve = async {
                let listener = UnixListener::bind(&path).expect("listen");
                ready.send(()).expect("the test waits");
                tokio::task::spawn_local(accept(listener, script));
                let _ = ended.await;
            };
            LocalSet::new().block_on(&runtime, serve);
        };
        let thread =
            std::thread::Builder::new().name("hostile plugin".to_owned()).spawn(body).expect("a thread");
        is_ready.recv().expect("it listens");
        Self { directory: directory.to_owned(), end: Some(end), thread: Some(thread) }
    }

    /// Registers it for a resource, or anything for anything.
    pub fn register(&self, resource: &str, socket: &str) -> Result<(), String> {
        register(&self.directory, resource, socket)
    }
}

impl Drop for HostilePlugin {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has told why.
            let _ = thread.join();
        }
    }
}

/// Says to the agent that a plugin is there.
pub fn register(directory: &Path, resource: &str, socket: &str) -> Result<(), String> {
    let request = wire::RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: socket.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
    let call = async {
        let agent = PluginClient::new(directory.join("kubelet.sock"));
        agent.call("/v1beta1.Registration/Register", request.encode_to_vec(), PATIENCE).await
    };
    runtime.block_on(call).map(drop)
}

async fn accept(listener: UnixListener, script: Script) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let script = Arc::clone(&script);
        let handler: Handler = Rc::new(move |request| {
            let script = Arc::clone(&script);
            Box::pin(async move {
                let path = request.uri().path().to_owned();
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                let answer = match grpc::message(request).await {
                    Ok(_) => answer(script(&name)).await,
                    Err(status) => Err(status),
                };
                grpc::response(answer)
            })
        });
        tokio::task::spawn_local(serve_connection(stream, handler));
    }
}

async fn answer(say: Say) -> Result<GrpcReply, Status> {
    match say {
        Say::One(message) => Ok(GrpcReply::One(message)),
        Say::Never => {
            std::future::pending::<()>().await;
            Err(Status::new(Code::Unknown, "never"))
        }
        Say::Open(message) => {
            let (sink, answer) = grpc::stream();
            tokio::task::spawn_local(async move {
                if sink.send(Ok(message)).await.is_ok() {
                    sink.closed().await;
                }
            });
            Ok(answer)
        }
        Say::Stream(mut next) => {
            let (sink, answer) = grpc::stream();
            tokio::task::spawn_local(async move {
                while let Some(message) = next() {
                    if sink.send(Ok(message)).await.is_err() {
                        return;
                    }
                    // Streams of one thread take turns.
                    tokio::task::yield_now().await;
                }
            });
            Ok(answer)
        }
    }
}
