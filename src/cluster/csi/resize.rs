//! Volumes that have grown: the driver grows the file system on this node, and the claim says how far it is.
//!
//! Owns the claim's `status.allocatedResourceStatuses.storage` from `NodeResizePending` on, and with the end of the
//! resize its capacity and conditions (upstream's `NodeExpander`). A claim cannot be watched by a node: it is read when
//! its volume is published, and then from time to time.

use std::rc::Rc;

use serde_json::{Value, json};

use super::{ClusterCsi, Instant, RESIZE, rules};
use crate::cluster::client::error::ApiErrorKind;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Content, Lane, Transport};
use crate::model::api::quantity::Quantity;
use crate::pod::csi::rules::{EXPAND_VOLUME, MULTI_WRITER, STAGE_UNSTAGE, is_final, unique_name};
use crate::pod::csi::{calls, handle};
use crate::pod::events::EventType;
use crate::pod::volume::csi::CsiVolume;

impl<T: Transport> ClusterCsi<T> {
    /// Some volumes are of drivers that can resize them.
    pub(super) fn has_resizable(&self) -> bool {
        let drivers = self.drivers().drivers.borrow();
        let can = |driver: &Value| {
            driver.as_str().and_then(|name| drivers.get(name)).is_some_and(|driver| driver.can_expand)
        };
        let published = self.drivers().published.borrow();
        published.values().any(|(volume, _)| volume.claimed.is_some() && can(&volume.source["driver"]))
    }

    /// Resizes what waits for this node.
    pub(super) async fn resize_all(self: &Rc<Self>) {
        let now = Instant::now();
        if self.drivers().has_new.take() {
            // Its claim is read at once.
            self.resized.take();
        }
        let is_early = self.resized.get().is_some_and(|last| now.duration_since(last) < RESIZE);
        let is_online = self.link.get().is_some_and(|(_, is_online)| is_online());
        if is_early || !is_online || !self.has_resizable() {
            return;
        }
        self.resized.set(Some(now));
        let volumes: Vec<CsiVolume> =
            self.drivers().published.borrow().values().map(|(volume, _)| volume.clone()).collect();
        for volume in volumes.into_iter().filter(|volume| volume.claimed.is_some()) {
            let (pod, name) = (volume.pod.clone(), volume.name.clone());
            let driver = volume.source["driver"].as_str().unwrap_or_default();
            let key = unique_name(driver, &handle(&volume));
            let node = Rc::clone(self);
            let (kind, reason, message) =
                match self.drivers().attempt(key, async move { node.resize(&volume).await }).await {
                    Ok(false) => continue,
                    Ok(true) => {
                        let node = &self.drivers().node_name;
                        let done =
                            format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
                        (EventType::Normal, "FileSystemResizeSuccessful", done)
                    }
                    Err(why) => {
                        let why =
                            format!("NodeExpandVolume.NodeExpandVolume failed for volume {name:?} : {why}");
                        (EventType::Warning, "VolumeResizeFailed", why)
                    }
                };
            self.parts.events.event(&pod, None, kind, reason, &message);
        }
    }

    /// True when the driver has resized the volume now.
    async fn resize(&self, volume: &CsiVolume) -> Result<bool, String> {
        let (Some(claimed), Some((server, _))) = (&volume.claimed, self.link.get()) else { return Ok(false) };
        let path =
            ResourcePath::namespaced("", "persistentvolumeclaims", &volume.pod.namespace, &volume.claim);
        let claim = match server.get(Lane::Main, &path, Accept::Json).await {
            Ok(claim) => claim,
            // The next round reads it again.
            Err(error) if error.is_offline() || error.kind == ApiErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error.to_string()),
        };
        let status = &claim["status"]["allocatedResourceStatuses"]["storage"];
        if status != "NodeResizePending" && status != "NodeResizeInProgress" {
            return Ok(false);
        }
        let of_volume = ResourcePath::whole("", "persistentvolumes", &claimed.name);
        let object =
            server.get(Lane::Main, &of_volume, Accept::Json).await.map_err(|error| error.to_string())?;
        let size = object["spec"]["capacity"]["storage"].as_str().unwrap_or_default();
        let bytes = Quantity::parse(size).map(Quantity::value).map_err(|error| error.to_string())?;
        let driver = volume.source["driver"].as_str().unwrap_or_default();
        let client = self.drivers().driver(driver)?;
        let can = calls::capabilities(&client).await.map_err(|error| error.message)?;
        let can = |capability| can.contains(&capability);
        if !can(EXPAND_VOLUME) {
            return Err(format!("NodeExpand is not supported by the CSI driver {driver}"));
        }
        let source = &object["spec"]["csi"];
        let secrets = self
            .secret(&CsiVolume { source: source.clone(), ..volume.clone() }, "nodeExpandSecretRef")
            .await?;
        let of_status = path.with_part("status");
        let send = async |body: Value| {
            let kind = Content::StrategicMerge;
            let answer = server.patch(Lane::Main, &of_status, kind, &body, Accept::Metadata).await;
            answer.map_err(|error| format!("patchPVCStatus failed to patch PVC {:?}: {error}", volume.claim))
        };
        if status == "NodeResizePending" {
            let version = &claim["metadata"]["resourceVersion"];
            let begun = json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}});
            send(json!({"metadata": {"resourceVersion": version}, "status": begun})).await?;
        }
        let call = calls::CsiCall {
            handle: handle(volume),
            staging: if can(STAGE_UNSTAGE) {
                self.drivers().staging(driver, &handle(volume)).display().to_string()
            } else {
                String::new()
            },
            capability: calls::capability(volume, can(MULTI_WRITER), false),
            secrets,
            ..calls::CsiCall::default()
        };
        let Err(error) = calls::expand(&client, call, &volume.target, bytes).await else {
            let done = rules::resized(&claim, size);
            return send(done).await.map(|_| true);
        };
        if is_final(error.code) {
            let why = format!("failed to expand pvc with {}", error.message);
            // Reported by its caller either way.
            let _ = send(rules::not_resized(error.code, &why, self.parts.clock.now())).await;
        }
        Err(error.message)
    }
}
