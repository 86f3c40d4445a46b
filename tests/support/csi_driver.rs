//! A CSI driver on a thread of its own: its volumes are tmpfs with one file, staged when they belong to a claim.

#![expect(clippy::disallowed_types, reason = "tests reach into a server that runs on another thread")]

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use edge_agent::platform::grpc::{self, Code, GrpcReply, Handler, Status, serve_connection};
use edge_agent::platform::proto::{csi, plugin_registration as registration};
use edge_agent::platform::sys::mount::{is_mount_point, mount_tmpfs, unmount};
use nix::mount::{MsFlags, mount};
use prost::Message;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::wait::wait_for;

/// Its name.
pub const DRIVER: &str = "csi.example.com";
/// The file of each volume has the volume's handle.
pub const FILE: &str = "handle";
const PATIENCE: Duration = Duration::from_secs(60);
/// Stages, measures, grows: of `NodeServiceCapability`.
const CAN: [i32; 3] = [1, 2, 3];

/// A driver that runs until it is dropped; what it has mounted stays.
pub struct CsiDriver {
    stop: Option<oneshot::Sender<()>>,
    calls: Arc<Mutex<Vec<(String, Value)>>>,
    thread: Option<JoinHandle<()>>,
}

impl CsiDriver {
    /// Registers with the agent of this `--root-dir`, which may start later.
    pub fn start(root: &Path) -> Self {
        let directory = root.join("plugins_registry");
        fs::create_dir_all(&directory).expect("make the registry");
        let (stop, stopped) = oneshot::channel();
        let calls = Arc::<Mutex<Vec<(String, Value)>>>::default();
        let log = Arc::clone(&calls);
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio");
            LocalSet::new().block_on(&runtime, run(directory, log, stopped));
        };
        let thread = std::thread::Builder::new().name("CSI driver".to_owned()).spawn(body).expect("a thread");
        Self { stop: Some(stop), calls, thread: Some(thread) }
    }

    /// What it was asked so far, oldest first, as names of calls and what matters of them; forgets it.
    pub fn calls(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut *self.calls.lock().expect("no panic"))
    }

    /// Waits for a call of this name and returns what matters of it; forgets all calls up to it.
    pub fn wait(&self, name: &str) -> Value {
        wait_for(&format!("the call {name}"), PATIENCE, || {
            let mut calls = self.calls.lock().expect("no panic");
            let found = calls.iter().position(|(called, _)| called == name);
            let found = found.ok_or_else(|| format!("{calls:?}"));
            found.map(|position| calls.drain(..=position).next_back().expect("it is there").1)
        })
    }
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has told why.
            let _ = thread.join();
        }
    }
}

async fn run(directory: PathBuf, calls: Arc<Mutex<Vec<(String, Value)>>>, stopped: oneshot::Receiver<()>) {
    let socket = directory.join("example-reg.sock");
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).expect("listen");
    let serve = async {
        loop {
            let (stream, _) = listener.accept().await.expect("accept");
            let calls = Arc::clone(&calls);
            let handler: Handler = Rc::new(move |request| {
                let calls = Arc::clone(&calls);
                Box::pin(async move {
                    let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                    let answer = match grpc::message(request).await {
                        Ok(message) => call(&name, &message, &calls),
                        Err(status) => Err(status),
                    };
                    grpc::response(answer.map(GrpcReply::One))
                })
            });
            tokio::task::spawn_local(serve_connection(stream, handler));
        }
    };
    // Losing the other arm is safe: the driver ends.
    tokio::select! {
        () = serve => {}
        _ = stopped => {}
    }
    let _ = fs::remove_file(&socket);
}

fn call(name: &str, message: &[u8], calls: &Mutex<Vec<(String, Value)>>) -> Result<Vec<u8>, Status> {
    let bad = |error: prost::DecodeError| Status::new(Code::InvalidArgument, error.to_string());
    let mut said = Value::Null;
    let answer = match name {
        "GetInfo" => registration::PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: String::new(),
            supported_versions: vec!["1.0.0".to_owned()],
        }
        .encode_to_vec(),
        "NotifyRegistrationStatus" => {
            let status = registration::RegistrationStatus::decode(message).map_err(bad)?;
            said = json!({ "error": status.error, "registered": status.plugin_registered });
            Vec::new()
        }
        "NodeGetInfo" => {
            let segments = [("topology.example.com/rack".to_owned(), "r1".to_owned())].into();
            let accessible_topology = Some(csi::Topology { segments });
            let (node_id, max_volumes_per_node) = ("id-1".to_owned(), 7);
            csi::NodeGetInfoResponse { node_id, max_volumes_per_node, accessible_topology }.encode_to_vec()
        }
        "NodeGetCapabilities" => {
            let can = |number: i32| csi::NodeServiceCapability { rpc: Some(csi::NodeRpc { r#type: number }) };
            csi::NodeGetCapabilitiesResponse { capabilities: CAN.map(can).into() }.encode_to_vec()
        }
        "NodeStageVolume" => {
            let request = csi::NodeStageVolumeRequest::decode(message).map_err(bad)?;
            fill(Path::new(&request.staging_target_path), &request.volume_id)?;
            said = json!({ "handle": request.volume_id, "path": request.staging_target_path,
                "secrets": request.secrets, "publish": request.publish_context });
            Vec::new()
        }
        "NodePublishVolume" => {
            let request = csi::NodePublishVolumeRequest::decode(message).map_err(bad)?;
            let target = Path::new(&request.target_path);
            fs::create_dir_all(target).map_err(failed)?;
            if request.staging_target_path.is_empty() {
                fill(target, &request.volume_id)?;
            } else if !is_mount_point(target).map_err(failed)? {
                let from = Some(request.staging_target_path.as_str());
                let bound = mount(from, target, None::<&str>, MsFlags::MS_BIND, None::<&str>);
                bound.map_err(|error| failed(error.into()))?;
            }
            said = json!({ "handle": request.volume_id, "path": request.target_path,
                "secrets": request.secrets, "context": request.volume_context });
            Vec::new()
        }
        "NodeUnpublishVolume" | "NodeUnstageVolume" => {
            let request = csi::VolumeAtPath::decode(message).map_err(bad)?;
            let target = Path::new(&request.path);
            if target.exists() && is_mount_point(target).map_err(failed)? {
                unmount(target).map_err(failed)?;
            }
            said = json!({ "handle": request.volume_id, "path": request.path });
            Vec::new()
        }
        "NodeGetVolumeStats" => {
            let usage = |unit, total, used| csi::VolumeUsage { available: total - used, total, used, unit };
            let usage = vec![usage(1, 4_000_000, 1_234_567), usage(2, 100, 23)];
            csi::NodeGetVolumeStatsResponse { usage }.encode_to_vec()
        }
        "NodeExpandVolume" => {
            let request = csi::NodeExpandVolumeRequest::decode(message).map_err(bad)?;
            let bytes = request.capacity_range.map(|range| range.required_bytes);
            said = json!({ "handle": request.volume_id, "bytes": bytes });
            Vec::new()
        }
        other => return Err(Status::new(Code::Unimplemented, format!("unknown call {other}"))),
    };
    calls.lock().expect("no panic").push((name.to_owned(), said));
    Ok(answer)
}

/// A file system of the volume's own, with its file; unless it is there.
fn fill(target: &Path, handle: &str) -> Result<(), Status> {
    fs::create_dir_all(target).map_err(failed)?;
    if !is_mount_point(target).map_err(failed)? {
        mount_tmpfs(target, Some(1 << 20)).map_err(failed)?;
        fs::write(target.join(FILE), handle).map_err(failed)?;
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: std::io::Error) -> Status {
    Status::new(Code::Unavailable, error.to_string())
}
