//! The sockets that device plugins and their monitors use: `device-plugins/kubelet.sock`, `plugins_registry`,
//! and the pod resources API.
//!
//! Owns the sockets and their protocols. The state of the plugins is in `devices`. An unused socket costs
//! nothing.

mod pod_resources;
mod registry;

use std::future::ready;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use hyper::Request;
use hyper::body::{Bytes, Incoming};
use prost::Message;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

pub(crate) use pod_resources::OwnResources;

use crate::devices::DeviceManager;
use crate::model::api::pod::Pod;
use crate::platform::bind::{BindError, bind};
use crate::platform::grpc::{self, Code, GrpcReply, Handler, Status, decoded, serve_connection};
use crate::platform::logging::chain;
use crate::platform::proto::device_plugin as wire;
use crate::platform::rt::{self, connections};

/// A plugin needs one for a moment; monitors keep one open.
const MAX_CONNECTIONS: usize = 32;
const SOCKET: &str = "kubelet.sock";
/// Sockets are root's, as upstream.
const DIRECTORY_MODE: u32 = 0o750;

/// Where a node's plugins are.
#[must_use]
pub(crate) fn directory(root: &Path) -> PathBuf {
    root.join("device-plugins")
}

/// Listens on all sockets. Removes the plugins' sockets first, which makes the plugins register again;
/// upstream starts in the same way. Without `csi`, CSI drivers are rejected.
pub(crate) async fn start(
    root: &Path,
    devices: &DeviceManager,
    pods: Rc<dyn Fn() -> Vec<Pod>>,
    owned: pod_resources::Owned,
    csi: Option<Rc<dyn CsiPlugins>>,
) -> Result<Vec<JoinHandle<()>>, BindError> {
    let plugins = directory(root);
    // Before the first registration is possible: any socket that appears later belongs to a live plugin.
    if std::os::unix::net::UnixStream::connect(plugins.join(SOCKET)).is_err() {
        forget_sockets(&plugins);
    }
    let registration = listen(&plugins.join(SOCKET)).await?;
    let resources = listen(&root.join("pod-resources/kubelet.sock")).await?;
    let manager = devices.clone();
    let register = move |path: String, message: Bytes| -> Answering {
        let (manager, plugins) = (manager.clone(), plugins.clone());
        Box::pin(async move {
            match path.as_str() {
                "/v1beta1.Registration/Register" => register(&manager, &plugins, message).await,
                _ => Err(Status::new(Code::Unimplemented, format!("unknown method {path}"))),
            }
        })
    };
    let about = pod_resources::PodResources::new(devices.clone(), pods, owned);
    Ok(vec![
        rt::spawn("device plugin socket", serve("the device plugin socket", registration, Rc::new(register))),
        rt::spawn(
            "pod resources socket",
            serve(
                "the pod resources socket",
                resources,
                Rc::new(move |path: String, message: Bytes| -> Answering {
                    Box::pin(ready(about.answer(&path, message)))
                }),
            ),
        ),
        rt::spawn("plugin registry", registry::watch(root.join("plugins_registry"), devices.clone(), csi)),
    ])
}

/// What receives the CSI drivers of the plugin registry.
pub(crate) trait CsiPlugins {
    /// A driver listens on `endpoint`. The error goes to the plugin.
    fn register(
        self: Rc<Self>,
        name: String,
        versions: Vec<String>,
        endpoint: PathBuf,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>>>>;
    /// The driver removed its socket.
    fn remove(&self, name: &str);
}

/// The answer to one call, on its way.
type Answering = Pin<Box<dyn Future<Output = Result<GrpcReply, Status>>>>;
/// Answers one call: path and message.
type Calls = Rc<dyn Fn(String, Bytes) -> Answering>;

async fn listen(path: &Path) -> Result<UnixListener, BindError> {
    if let Some(parent) = path.parent()
        && let Err(error) = crate::platform::sys::dir::make_dir(parent, DIRECTORY_MODE)
    {
        // Then the bind below fails too, and its error is returned.
        log::debug!(path:% = parent.display(), err:% = error; "Failed to create directory");
    }
    bind(path).await
}

async fn serve(name: &'static str, listener: UnixListener, calls: Calls) {
    let accept = async || listener.accept().await.map(|(stream, _)| stream);
    connections::serve(name, MAX_CONNECTIONS, accept, |stream, place| {
        let calls = Rc::clone(&calls);
        async move {
            let answer: Handler = Rc::new(move |request| Box::pin(answer(Rc::clone(&calls), request)));
            serve_connection(stream, answer).await;
            drop(place);
        }
    })
    .await;
}

async fn answer(calls: Calls, request: Request<Incoming>) -> hyper::Response<grpc::AnswerBody> {
    let path = request.uri().path().to_owned();
    let answer = match grpc::message(request).await {
        Ok(message) => calls(path, message).await,
        Err(status) => Err(status),
    };
    grpc::response(answer)
}

async fn register(devices: &DeviceManager, directory: &Path, message: Bytes) -> Result<GrpcReply, Status> {
    let request: wire::RegisterRequest = decoded(message)?;
    let name = Path::new(&request.endpoint);
    let refused = |why: String| {
        let why = grpc::shortened(&why);
        log::warn!(resource = grpc::shortened(&request.resource_name), err = why; "Rejected device plugin registration");
        Status::new(Code::Unknown, why)
    };
    if name.file_name() != Some(name.as_os_str()) {
        return Err(refused(format!("endpoint {:?} is not a file name", request.endpoint)));
    }
    let (versions, socket) = ([request.version.clone()], directory.join(name));
    devices.register(&request.resource_name, &versions, socket).await.map_err(refused)?;
    Ok(GrpcReply::One(wire::Empty {}.encode_to_vec()))
}

/// Removes sockets of plugins that were registered with an earlier agent.
fn forget_sockets(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket
            && entry.file_name() != SOCKET
            && let Err(error) = std::fs::remove_file(entry.path())
        {
            log::warn!(path:% = entry.path().display(), err:% = chain(&error); "Failed to remove stale \
                 plugin socket");
        }
    }
}
