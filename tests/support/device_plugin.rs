//! A device plugin on a thread of its own: it registers, tells of its devices, and gives `/dev/fuse` under another name.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use edge_agent::devices::client::PluginClient;
use edge_agent::platform::grpc::{self, Code, GrpcReply, Status};
use edge_agent::platform::grpc::{Handler, serve_connection};
use edge_agent::platform::proto::device_plugin as wire;
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::LocalSet;

use super::wait::wait_until;

/// What it gives devices of.
pub const RESOURCE: &str = "acme.com/sensor";
/// An id that ends in `@` and a number is near that NUMA node.
fn near(id: &str) -> Option<wire::TopologyInfo> {
    let id = id.rsplit_once('@')?.1.parse().ok()?;
    Some(wire::TopologyInfo { nodes: vec![wire::NumaNode { id }] })
}

/// Devices whose ids begin so are listed as healthy, and refused when they are asked for.
pub const REFUSED: &str = "refused";
/// For the agent's socket to be there, and for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ids and whether each is healthy.
type List = Vec<(String, bool)>;

/// A plugin that runs until it is dropped.
pub struct DevicePlugin {
    list: Option<watch::Sender<List>>,
    /// What it was asked, oldest first.
    pub asked: mpsc::Receiver<String>,
    thread: Option<JoinHandle<()>>,
}

fn list(devices: &[(&str, bool)]) -> List {
    devices.iter().map(|(id, healthy)| ((*id).to_owned(), *healthy)).collect()
}

impl DevicePlugin {
    /// Registers with the agent of this directory.
    pub fn start(directory: &Path, devices: &[(&str, bool)]) -> Self {
        let (directory, (sender, receiver)) = (directory.to_owned(), watch::channel(list(devices)));
        wait_until("the agent's socket for plugins", PATIENCE, || directory.join("kubelet.sock").exists());
        let (said, asked) = mpsc::channel();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
            LocalSet::new().block_on(&runtime, run(directory, receiver, said));
        };
        let thread =
            std::thread::Builder::new().name("device plugin".to_owned()).spawn(body).expect("a thread");
        Self { list: Some(sender), asked, thread: Some(thread) }
    }

    /// Tells of other devices.
    pub fn set(&self, devices: &[(&str, bool)]) {
        self.list.as_ref().expect("it runs").send_replace(list(devices));
    }
}

impl Drop for DevicePlugin {
    fn drop(&mut self) {
        self.list = None;
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has told why.
            let _ = thread.join();
        }
    }
}

async fn run(directory: PathBuf, mut lists: watch::Receiver<List>, said: mpsc::Sender<String>) {
    let socket = directory.join("acme.sock");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).expect("listen");
    let (for_calls, served) = (lists.clone(), said);
    let serve = tokio::task::spawn_local(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accept");
            let (lists, said) = (for_calls.clone(), served.clone());
            let handler: Handler = Rc::new(move |request| {
                let (lists, said) = (lists.clone(), said.clone());
                Box::pin(async move {
                    let path = request.uri().path().to_owned();
                    let answer = match grpc::message(request).await {
                        Ok(message) => call(&path, &message, lists, &said),
                        Err(status) => Err(status),
                    };
                    grpc::response(answer)
                })
            });
            tokio::task::spawn_local(serve_connection(stream, handler));
        }
    });
    let request = wire::RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: "acme.sock".to_owned(),
        resource_name: RESOURCE.to_owned(),
        // What counts is what it says when it is asked.
        options: None,
    };
    let agent = PluginClient::new(directory.join("kubelet.sock"));
    let path = "/v1beta1.Registration/Register";
    agent.call(path, request.encode_to_vec(), PATIENCE).await.expect("register");
    while lists.changed().await.is_ok() {}
    serve.abort();
}

fn call(
    path: &str,
    message: &[u8],
    mut lists: watch::Receiver<List>,
    said: &mpsc::Sender<String>,
) -> Result<GrpcReply, Status> {
    // Nobody may be listening any more.
    let say = |words: String| drop(said.send(words));
    let answer = match path.trim_start_matches("/v1beta1.DevicePlugin/") {
        "GetDevicePluginOptions" => {
            let (pre_start_required, get_preferred_allocation_available) = (true, true);
            wire::DevicePluginOptions { pre_start_required, get_preferred_allocation_available }
                .encode_to_vec()
        }
        "ListAndWatch" => {
            let (sink, answer) = grpc::stream();
            tokio::task::spawn_local(async move {
                loop {
                    let device = |(id, healthy): &(String, bool)| wire::Device {
                        id: id.clone(),
                        health: if *healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
                        topology: near(id),
                    };
                    let devices = lists.borrow_and_update().iter().map(device).collect();
                    let list = wire::ListAndWatchResponse { devices };
                    if sink.send(Ok(list.encode_to_vec())).await.is_err() || lists.changed().await.is_err() {
                        return;
                    }
                }
            });
            return Ok(answer);
        }
        "GetPreferredAllocation" => {
            let request = wire::PreferredAllocationRequest::decode(message).expect("a request");
            let asked = request.container_requests.into_iter().next().expect("one container");
            // The last ones, so that a test sees that it was heard.
            let wanted = usize::try_from(asked.allocation_size).expect("a size");
            let ids: Vec<String> = asked.available_device_i_ds.into_iter().rev().take(wanted).collect();
            let first = wire::ContainerPreferredAllocationResponse { device_i_ds: ids };
            wire::PreferredAllocationResponse { container_responses: vec![first] }.encode_to_vec()
        }
        "Allocate" => {
            let request = wire::AllocateRequest::decode(message).expect("a request");
            let ids = request.container_requests.into_iter().next().expect("one container").devices_ids;
            say(format!("allocate {}", ids.join(" ")));
            if ids.iter().any(|id| id.starts_with(REFUSED)) {
                return Err(Status::new(Code::Unavailable, format!("{} does not answer", ids.join(" "))));
            }
            let device = wire::DeviceSpec {
                container_path: "/dev/acme".to_owned(),
                host_path: "/dev/fuse".to_owned(),
                permissions: "rw".to_owned(),
            };
            let first = wire::ContainerAllocateResponse {
                envs: [("ACME".to_owned(), ids.join(" "))].into(),
                devices: vec![device],
                ..wire::ContainerAllocateResponse::default()
            };
            wire::AllocateResponse { container_responses: vec![first] }.encode_to_vec()
        }
        "PreStartContainer" => {
            let request = wire::PreStartContainerRequest::decode(message).expect("a request");
            say(format!("start {}", request.devices_ids.join(" ")));
            wire::PreStartContainerResponse::default().encode_to_vec()
        }
        other => return Err(Status::new(Code::Unimplemented, other.to_owned())),
    };
    Ok(GrpcReply::One(answer))
}
