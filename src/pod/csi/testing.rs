//! A driver in the process, behind a real socket.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use prost::Message;
use serde_json::{Value, json};

use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;
use crate::platform::grpc::{self, Code, GrpcReply, Handler, Status, serve_connection};
use crate::platform::proto::csi as wire;
use crate::platform::sys::mount;

pub(crate) const DRIVER: &str = "csi.example.com";

/// What the driver does, and what it was asked.
#[derive(Default)]
pub(crate) struct FakeDriver {
    pub capabilities: Vec<i32>,
    /// By the name of a call.
    pub fails: BTreeMap<&'static str, Code>,
    pub calls: Vec<String>,
    pub staged: Option<wire::NodeStageVolumeRequest>,
    pub published: Option<wire::NodePublishVolumeRequest>,
    pub expanded: Option<wire::NodeExpandVolumeRequest>,
    /// A call of this name is answered once it is notified.
    pub gate: Option<(&'static str, Rc<tokio::sync::Notify>)>,
}

pub(crate) type SharedDriver = Rc<RefCell<FakeDriver>>;

fn answer(driver: &mut FakeDriver, path: &str, message: &[u8]) -> Result<GrpcReply, Status> {
    let name = path.rsplit('/').next().unwrap_or_default();
    driver.calls.push(name.to_owned());
    if let Some(code) = driver.fails.get(name) {
        return Err(Status::new(*code, "simulated"));
    }
    let reply = match name {
        "NodeGetInfo" => {
            let segments = [("topology.example.com/rack".to_owned(), "r1".to_owned())].into();
            let accessible_topology = Some(wire::Topology { segments });
            let (node_id, max_volumes_per_node) = ("id-1".to_owned(), 7);
            wire::NodeGetInfoResponse { node_id, max_volumes_per_node, accessible_topology }.encode_to_vec()
        }
        "NodeGetCapabilities" => {
            let can = driver
                .capabilities
                .iter()
                .map(|number| wire::NodeServiceCapability { rpc: Some(wire::NodeRpc { r#type: *number }) });
            wire::NodeGetCapabilitiesResponse { capabilities: can.collect() }.encode_to_vec()
        }
        "NodeStageVolume" => {
            driver.staged = Some(wire::NodeStageVolumeRequest::decode(message).unwrap());
            Vec::new()
        }
        "NodeExpandVolume" => {
            driver.expanded = Some(wire::NodeExpandVolumeRequest::decode(message).unwrap());
            Vec::new()
        }
        "NodeGetVolumeStats" => {
            let usage = |unit, total, used| wire::VolumeUsage { available: total - used, total, used, unit };
            wire::NodeGetVolumeStatsResponse { usage: vec![usage(1, 100, 30), usage(2, 10, 4)] }
                .encode_to_vec()
        }
        "NodePublishVolume" => {
            let request = wire::NodePublishVolumeRequest::decode(message).unwrap();
            let target = Path::new(&request.target_path);
            if !target.exists() {
                std::fs::create_dir(target).unwrap();
                mount::mount_tmpfs(target, Some(1 << 20)).unwrap();
            }
            driver.published = Some(request);
            Vec::new()
        }
        "NodeUnpublishVolume" => {
            let request = wire::VolumeAtPath::decode(message).unwrap();
            if mount::is_mount_point(Path::new(&request.path)).unwrap() {
                mount::unmount(Path::new(&request.path)).unwrap();
            }
            Vec::new()
        }
        _ => Vec::new(),
    };
    Ok(GrpcReply::One(reply))
}

pub(crate) fn serve(driver: &SharedDriver, socket: &Path) {
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    let driver = Rc::clone(driver);
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let driver = Rc::clone(&driver);
            let handler: Handler = Rc::new(move |request| {
                let driver = Rc::clone(&driver);
                Box::pin(async move {
                    let path = request.uri().path().to_owned();
                    let message = grpc::message(request).await;
                    let gate = driver.borrow().gate.clone().filter(|(name, _)| path.ends_with(name));
                    if let Some((_, gate)) = gate {
                        gate.notified().await;
                    }
                    grpc::response(message.and_then(|bytes| answer(&mut driver.borrow_mut(), &path, &bytes)))
                })
            });
            tokio::task::spawn_local(serve_connection(stream, handler));
        }
    });
}

pub(crate) fn pod(uid: &str, volume: &Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": uid},
        "spec": {"volumes": [volume], "serviceAccountName": "app", "containers": [{"name": "a"}]},
    });
    decode::<Pod>(pod).unwrap().object
}

pub(crate) fn inline(uid: &str) -> Pod {
    pod(uid, &json!({"name": "data", "csi": {"driver": DRIVER, "volumeAttributes": {"size": "1"}}}))
}

pub(crate) fn claimed(uid: &str) -> Pod {
    pod(uid, &json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}}))
}

/// Waits for the task.
pub(crate) async fn until(what: impl Fn() -> bool) {
    for _ in 0..400 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not come");
}
