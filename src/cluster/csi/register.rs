//! What the API server shows of drivers.
//!
//! Owns CSINode, the Node's annotation and its topology labels. Upstream's kubelet ends when it cannot write CSINode; here
//! the drivers work, and the task of `pod::csi` tries again.

use std::collections::{BTreeMap, BTreeSet};

use super::{ClusterCsi, STORAGE, rules};
use crate::cluster::client::Client;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Content, Lane, Transport};
use crate::cluster::node::register::NodeFromServer;
use crate::model::ordered::Ordered as _;
use crate::pod::csi::drivers::Driver;
use crate::pod::csi::rules::DriverInfo;

impl<T: Transport> ClusterCsi<T> {
    /// The Node as the server shows it: which volumes are attached, and whether it is another object than before.
    pub(crate) fn set_node(&self, node: &NodeFromServer) {
        self.set_attached(node.volumes_attached.iter().map(|(name, _)| name.clone()));
        let old = self.node_uid.replace(node.uid.clone());
        if old != node.uid {
            // Its CSINode went with the earlier one.
            self.drivers().note_stale();
        }
    }

    /// Writes what differs.
    pub(super) async fn show_drivers(&self) -> Result<(), ApiError> {
        let drivers = {
            let infos = self.drivers().drivers.borrow();
            let info = |(name, driver): (&String, &Driver)| (name.clone(), driver.info.clone());
            infos.iter().map(info).into_map()
        };
        let gone = self.drivers().gone.borrow().clone();
        let Some((client, _)) = self.link.get() else { return Ok(()) };
        let is_stale = self.drivers().is_stale.take();
        if !is_stale || drivers.is_empty() && gone.is_empty() {
            return Ok(());
        }
        let shown = self.write_drivers(client, drivers, &gone).await;
        match &shown {
            Ok(()) => self.drivers().gone.borrow_mut().retain(|driver| !gone.contains(driver)),
            Err(_) => self.drivers().is_stale.set(true),
        }
        shown
    }

    async fn write_drivers(
        &self,
        client: &Client<T>,
        mut drivers: BTreeMap<String, DriverInfo>,
        gone: &BTreeSet<String>,
    ) -> Result<(), ApiError> {
        let name = self.drivers().node_name.as_str();
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
}
