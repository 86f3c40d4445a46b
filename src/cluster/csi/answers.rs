//! What the API server says of drivers, attachments and Secrets, and what it has said: a node that boots without its
//! cluster mounts its volumes again.
//!
//! Owns the rows of kind `CSI` in the store. A volume's row goes with its last user.

use serde_json::{Value, json};

use super::{ClusterCsi, SOON, STORAGE, rules};
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::node::register::NodeFromServer;
use crate::cluster::tokens::rules::{Token, body, due, from_answer};
use crate::codec::base64;
use crate::model::api::pod::StringMap;
use crate::model::objects::{Realm, TokenRequest};
use crate::pod::csi::rules::{
    attachment_name, check_lifecycle, driver_of, needs_attach, no_secret, secret_of, unique_name,
};
use crate::pod::csi::{CsiFacts, handle};
use crate::pod::volume::csi::CsiVolume;
use crate::store::{CSI, ClusterKey, ClusterRow};

impl<T: Transport> ClusterCsi<T> {
    /// All that has to be known to mount a volume. What is read is kept.
    pub(super) async fn facts_of(&self, volume: &CsiVolume) -> Result<CsiFacts, String> {
        if volume.realm == Realm::Node {
            return Err("CSI drivers of a cluster mount no volumes for static pods".to_owned());
        }
        let name = volume.source["driver"].as_str().unwrap_or_default();
        let (handle, is_claimed) = (handle(volume), volume.claimed.is_some());
        let driver = self.driver_object(name).await?;
        check_lifecycle(name, &driver, !is_claimed)?;
        let publish_context = if is_claimed && needs_attach(&driver) {
            self.publish_context(name, &handle).await?
        } else {
            StringMap::new()
        };
        let stage_secrets = self.secret(volume, "nodeStageSecretRef").await?;
        let publish_secrets = self.secret(volume, "nodePublishSecretRef").await?;
        self.keep_answers(name, is_claimed.then(|| unique_name(name, &handle))).await;
        Ok(CsiFacts { driver, publish_context, stage_secrets, publish_secrets })
    }

    /// A volume that the agent itself attaches. While the cluster does not answer, its controller cannot: a node that boots
    /// has what it had.
    pub(super) async fn attach_disk(&self, volume: &CsiVolume) -> Result<StringMap, String> {
        let text = |member: &str| volume.source[member].as_str().unwrap_or_default();
        let (driver, unique) = (text("driver"), unique_name(text("driver"), text("volumeHandle")));
        let is_online = self.link.get().is_some_and(|(_, is_online)| is_online());
        if volume.realm == Realm::Cluster && is_online {
            self.check_attached(&unique).await?;
        }
        let secret = self.secret(volume, "secretRef").await?;
        let places = self.drivers().in_use.borrow().get(&unique).cloned().unwrap_or_default();
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        self.answers.borrow_mut().entry(unique.clone()).or_insert_with(|| json!({}))["places"] =
            places.into();
        self.keep_answers(driver, Some(unique)).await;
        Ok(secret)
    }

    /// An object of the server, reduced to what is used of it; null when there is none. While the server gives no answer,
    /// as it was last read.
    async fn read(
        &self,
        path: &ResourcePath,
        (key, member): (&str, &str),
        reduce: fn(&Value) -> Value,
    ) -> Result<Value, ApiError> {
        let known = self.answers.borrow().get(key).and_then(|known| known.get(member)).cloned();
        let unreachable = || ApiError::new(ApiErrorKind::Unreachable, "the cluster has not been reached yet");
        let answer = match self.link.get() {
            Some((_, is_online)) if known.is_some() && !is_online() => Err(unreachable()),
            Some((client, _)) => client.get(Lane::Main, path, Accept::Json).await,
            None => Err(unreachable()),
        };
        let object = match answer {
            Ok(object) => reduce(&object),
            Err(error) if error.kind == ApiErrorKind::NotFound => Value::Null,
            Err(error) => return known.ok_or(error),
        };
        self.answers.borrow_mut().entry(key.to_owned()).or_insert_with(|| json!({}))[member] = object.clone();
        Ok(object)
    }

    /// Before the driver is called: what has been read is needed when the node boots without its cluster.
    pub(super) async fn keep_answers(&self, driver: &str, volume: Option<String>) {
        let row = |name: &String| {
            let (key, answers) = (ClusterKey::new(CSI, "", name), self.answers.borrow());
            let value = answers.get(name)?.to_string().into_bytes();
            Some(ClusterRow { key, uid: String::new(), value })
        };
        let rows = [Some(driver.to_owned()), volume].iter().flatten().filter_map(row).collect();
        // Reported by the store.
        let _ = self.parts.store.put_cluster(rows, Vec::new()).await;
    }

    /// Forgets what is known of volumes that are not in use.
    pub(super) async fn drop_answers(&self) {
        let is_unused = |name: &&String| {
            driver_of(name) != name.as_str() && !self.drivers().in_use.borrow().contains_key(*name)
        };
        let unused: Vec<String> = self.answers.borrow().keys().filter(is_unused).cloned().collect();
        if unused.is_empty() {
            return;
        }
        self.answers.borrow_mut().retain(|name, _| !unused.contains(name));
        let gone = unused.iter().map(|name| ClusterKey::new(CSI, "", name)).collect();
        let _ = self.parts.store.put_cluster(Vec::new(), gone).await;
    }

    /// The CSIDriver object, null without one.
    pub(super) async fn driver_object(&self, name: &str) -> Result<Value, String> {
        let path = ResourcePath::whole(STORAGE, "csidrivers", name);
        let object = self.read(&path, (name, "driver"), |object| json!({"spec": object["spec"]})).await;
        object.map_err(|error| format!("failed to get CSIDriver {name:?}: {error}"))
    }

    /// Only a volume that the controller knows to be in use is mounted, and only while it is attached: it may be
    /// detaching one that has just lost its last user.
    async fn check_attached(&self, unique: &str) -> Result<(), String> {
        if !self.soon(|| self.reported.borrow().contains(unique)).await {
            let why = "Volume has not been added to the list of VolumesInUse in the node's volume status";
            return Err(format!("{why} for volume {unique:?}"));
        }
        if !self.soon(|| self.attached.borrow().contains(unique)).await {
            return Err(rules::not_attached(unique));
        }
        if let Some((client, is_online)) = self.link.get()
            && is_online()
            && let Ok(node) = {
                let path = ResourcePath::whole("", "nodes", &self.drivers().node_name);
                client.get(Lane::Main, &path, Accept::Json).await
            }
        {
            // What the watch shows may be older than the post.
            self.set_node(&NodeFromServer::of(&node));
            if !self.attached.borrow().contains(unique) {
                return Err(rules::not_attached(unique));
            }
        }
        Ok(())
    }

    pub(super) async fn publish_context(&self, driver: &str, handle: &str) -> Result<StringMap, String> {
        let unique = unique_name(driver, handle);
        self.check_attached(&unique).await?;
        let name = attachment_name(handle, driver, &self.drivers().node_name);
        let path = ResourcePath::whole(STORAGE, "volumeattachments", &name);
        let reduce = |object: &Value| {
            let metadata = &object["metadata"];
            json!({"metadata": {"deletionTimestamp": metadata["deletionTimestamp"]}, "status": object["status"]})
        };
        let attachment = self.read(&path, (&unique, "attachment"), reduce).await;
        rules::publish_context(&attachment.map_err(|error| error.to_string())?, &unique)
    }

    /// Waits a moment for something that comes with a change.
    async fn soon(&self, holds: impl Fn() -> bool) -> bool {
        let mut changes = self.drivers().changed();
        let held = async { while !holds() && changes.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(SOON, held).await;
        holds()
    }

    /// The Secret that a member of the volume's source names; empty without one.
    pub(super) async fn secret(&self, volume: &CsiVolume, member: &str) -> Result<StringMap, String> {
        let Some((namespace, name)) = secret_of(volume, member) else { return Ok(StringMap::new()) };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if let (None, Some(data)) =
            (&volume.claimed, self.parts.objects.of(volume.realm).secret(namespace, name))
        {
            return Ok(data.iter().map(|(key, value)| (key.clone(), text(value))).collect());
        }
        let driver = volume.source["driver"].as_str().unwrap_or_default();
        let key = unique_name(driver, &handle(volume));
        let path = ResourcePath::namespaced("", "secrets", namespace, name);
        let answer = self.read(&path, (&key, member), |object| json!({"data": object["data"]})).await;
        let failed = |why: &str| no_secret((namespace, name), why);
        let object = answer.map_err(|error| failed(&error.to_string()))?;
        if object.is_null() {
            return Err(failed(&format!("secrets {name:?} not found")));
        }
        let decode = |value: &Value| base64::decode(value.as_str()?).map(|bytes| text(&bytes));
        let data = object["data"].as_object().into_iter().flatten();
        Ok(data.filter_map(|(key, value)| Some((key.clone(), decode(value)?))).collect())
    }

    /// A token, the same one until it is to be renewed.
    pub(super) async fn token_for(&self, request: &TokenRequest) -> Result<Token, String> {
        let (known, now) = (self.tokens.borrow().get(request).cloned(), self.parts.clock.now());
        if let Some(token) = known.clone().filter(|token| !due(token, now, self.parts.dice.unit())) {
            return Ok(token);
        }
        let Some((client, _)) = self.link.get() else {
            return Err("the cluster has not been reached yet".to_owned());
        };
        let path = ResourcePath::namespaced("", "serviceaccounts", &request.namespace, &request.account);
        match client.create(Lane::Main, &path.with_part("token"), &body(request)).await {
            Ok(answer) => {
                let token = from_answer(&answer, request, now)?;
                self.tokens.borrow_mut().insert(request.clone(), token.clone());
                Ok(token)
            }
            Err(error) => known
                .filter(|token| error.is_offline() || now <= token.expires)
                .ok_or_else(|| error.to_string()),
        }
    }
}
