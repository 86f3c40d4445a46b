//! Registration of drivers, and what the API server shows of them.
//!
//! Owns the task that keeps CSINode, the Node's annotation and its topology labels right, and that unstages volumes no
//! pod uses. Upstream's kubelet ends when it cannot write CSINode; here the drivers work, and the task tries again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use super::{AGAIN, CsiNode, Driver, RESIZE, STORAGE, calls, disk_records, rules};
use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Content, Lane, Transport};
use crate::cluster::node::register::NodeFromServer;
use crate::devices::client::PluginClient;
use crate::devices::plugins::CsiPlugins;
use crate::model::back_off::Retry;
use crate::model::ordered::Ordered as _;
use crate::platform::rt;
use crate::pod::volume::csi::CsiVolume;

use rules::DriverInfo;

/// A driver may ask a cloud's metadata service first.
const INFO_LIMIT: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(300);

impl<T: Transport> CsiPlugins for CsiNode<T> {
    fn register(
        self: Rc<Self>,
        name: String,
        versions: Vec<String>,
        endpoint: PathBuf,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>>>> {
        Box::pin(async move {
            let failed = |why: &str| {
                let place = endpoint.display();
                format!(
                    "validation failed for CSI Driver {name} at endpoint {place}: kubernetes.io/csi: {why}"
                )
            };
            let version = rules::highest_version(&versions).ok_or_else(|| {
                failed(&format!("None of the versions specified {versions:?} are supported"))
            })?;
            if self.drivers.borrow().get(&name).is_some_and(|known| known.version > version) {
                let why =
                    "Another driver with the same name is already registered with a higher supported version";
                return Err(failed(why));
            }
            let client = PluginClient::new(endpoint.clone());
            let info = calls::info(&client, INFO_LIMIT).await.map_err(|error| error.message)?;
            let can = calls::capabilities(&client).await.map_err(|error| error.message)?;
            let can_expand = can.contains(&rules::EXPAND_VOLUME);
            if info.node_id.is_empty() {
                return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
            }
            log::info!(driver = name, endpoint:% = endpoint.display(), nodeID = info.node_id; "Registered CSI driver");
            self.gone.borrow_mut().remove(&name);
            self.drivers.borrow_mut().insert(name, Driver { client, version, info, can_expand });
            self.note_stale();
            Ok(())
        })
    }

    fn remove(&self, name: &str) {
        if self.drivers.borrow_mut().remove(name).is_some() {
            log::info!(driver = name; "Removed CSI driver");
            self.gone.borrow_mut().insert(name.to_owned());
            self.note_stale();
        }
    }
}

impl<T: Transport> CsiNode<T> {
    /// The Node as the server shows it: which volumes are attached, and whether it is another object than before.
    pub(crate) fn set_node(&self, node: &NodeFromServer) {
        self.set_attached(node.volumes_attached.iter().map(|(name, _)| name.clone()));
        let old = self.node_uid.replace(node.uid.clone());
        if old != node.uid {
            // Its CSINode went with the earlier one.
            self.note_stale();
        }
    }

    /// Writes what differs.
    async fn show_drivers(&self) -> Result<(), ApiError> {
        let drivers = {
            let infos = self.drivers.borrow();
            let info = |(name, driver): (&String, &Driver)| (name.clone(), driver.info.clone());
            infos.iter().map(info).into_map()
        };
        let gone = self.gone.borrow().clone();
        let Some((client, _)) = self.link.get() else { return Ok(()) };
        let is_stale = self.is_stale.take();
        if !is_stale || drivers.is_empty() && gone.is_empty() {
            return Ok(());
        }
        let shown = self.write_drivers(client, drivers, &gone).await;
        match &shown {
            Ok(()) => self.gone.borrow_mut().retain(|driver| !gone.contains(driver)),
            Err(_) => self.is_stale.set(true),
        }
        shown
    }

    async fn write_drivers(
        &self,
        client: &Client<T>,
        mut drivers: BTreeMap<String, DriverInfo>,
        gone: &BTreeSet<String>,
    ) -> Result<(), ApiError> {
        let name = self.parts.node_name.as_str();
        let of_node = ResourcePath::whole("", "nodes", name);
        let object = client.get(Lane::Main, &of_node, Accept::Json).await?;
        let (patch, refused) = rules::node_patch(&object, &drivers, gone);
        for (driver, why) in &refused {
            log::error!(driver = driver, err = why; "Left CSI driver out of the Node and its CSINode");
            drivers.remove(driver);
        }
        if let Some(patch) = patch {
            let of_status = of_node.with_part("status");
            client.patch(Lane::Main, &of_status, Content::StrategicMerge, &patch, Accept::Metadata).await?;
        }
        let node = (name, object["metadata"]["uid"].as_str().unwrap_or_default());
        let place = ResourcePath::whole(STORAGE, "csinodes", name);
        let mut current = match client.get(Lane::Main, &place, Accept::Json).await {
            Ok(object) => Some(object),
            Err(error) if error.kind == ApiErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if let Some(object) = current.take_if(|object| rules::is_of_other_node(object, node)) {
            log::info!("Deleting the CSINode of an earlier Node of this name");
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            client.delete(Lane::Main, &place, None, uid).await?;
        }
        match rules::csi_node(current.as_ref(), node, &drivers, gone) {
            Some(object) if current.is_some() => drop(client.replace(Lane::Main, &place, &object).await?),
            Some(object) => {
                let all = ResourcePath::whole(STORAGE, "csinodes", "");
                client.create(Lane::Main, &all, &object).await?;
            }
            None => {}
        }
        Ok(())
    }

    /// Unstages volumes that no pod has or waits for: a crash, or a driver that failed, has left them.
    async fn sweep(self: &Rc<Self>) -> Result<(), String> {
        let root = self.parts.root_dir.clone();
        let found = rt::blocking("list staged CSI volumes", move || disk_records(&root)).await;
        let mut result = Ok(());
        for (place, record) in found.map_err(|error| error.to_string())? {
            let is_staged = record.volume.is_empty() && self.driver(&record.driver).is_ok();
            let key = rules::unique_name(&record.driver, &record.handle);
            let is_used =
                self.in_use.borrow().get(&key).is_some_and(|places| places.iter().any(|each| *each != place));
            if !is_staged || is_used {
                continue;
            }
            let node = Rc::clone(self);
            let unstage = async move { node.unstage_unused(&record.driver, &record.handle).await };
            result = result.and(Rc::clone(self).attempt(key, unstage).await);
        }
        result
    }
}

/// Runs until it is dropped.
pub(super) async fn run<T: Transport>(node: Rc<CsiNode<T>>) {
    let mut retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
    let mut reported = String::new();
    loop {
        let shown = node.show_drivers().await.map_err(|error| format!("error updating CSINode: {error}"));
        let swept = node.sweep().await;
        node.drop_answers().await;
        node.resize_all().await;
        let resize = node.has_resizable().then_some(RESIZE);
        let republishes = |(volume, _): &(CsiVolume, _)| {
            node.republishes(volume.source["driver"].as_str().unwrap_or_default())
        };
        let again = node.published.borrow().values().any(republishes).then_some(AGAIN);
        let failed = match shown.and(swept) {
            Ok(()) => {
                retry = Retry::new(FIRST_RETRY, LONGEST_RETRY);
                reported.clear();
                None
            }
            Err(why) => {
                if why != reported {
                    log::warn!(err = why; "Failed to bring the CSI drivers of the node up to date, will retry");
                    reported = why;
                }
                Some(retry.delay_with(node.parts.dice.unit()))
            }
        };
        let pause = failed.into_iter().chain(again).chain(resize).min();
        // Losing the sleep is safe: the next round begins.
        tokio::select! {
            biased;
            () = node.wake.notified() => {}
            () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
        if again.is_some() {
            // Pods publish what is due.
            node.note_change();
        }
    }
}
