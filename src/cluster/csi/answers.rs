//! What the API server says of drivers, attachments and Secrets, and what it has said: a node that boots without its
//! cluster mounts its volumes again.
//!
//! Owns the rows of kind `CSI` in the store. A volume's row goes with its last user.

use serde_json::{Map, Value, json};

use super::calls::CsiCall;
use super::{CsiNode, SOON, STORAGE, handle, rules};
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, Lane, Transport};
use crate::cluster::node::register::NodeFromServer;
use crate::cluster::tokens::rules::{Token, body, due, from_answer};
use crate::codec::base64;
use crate::model::api::pod::StringMap;
use crate::model::objects::TokenRequest;
use crate::pod::volume::csi::CsiVolume;
use crate::store::{CSI, ClusterKey, ClusterRow};

impl<T: Transport> CsiNode<T> {
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
            rules::driver_of(name) != name.as_str() && !self.in_use.borrow().contains_key(*name)
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
    pub(super) async fn publish_context(&self, driver: &str, handle: &str) -> Result<StringMap, String> {
        let unique = rules::unique_name(driver, handle);
        if !self.soon(|| self.reported.borrow().contains(&unique)).await {
            let why = "Volume has not been added to the list of VolumesInUse in the node's volume status";
            return Err(format!("{why} for volume {unique:?}"));
        }
        if !self.soon(|| self.attached.borrow().contains(&unique)).await {
            return Err(rules::not_attached(&unique));
        }
        if let Some((client, is_online)) = self.link.get()
            && is_online()
            && let Ok(node) = {
                let path = ResourcePath::whole("", "nodes", &self.parts.node_name);
                client.get(Lane::Main, &path, Accept::Json).await
            }
        {
            // What the watch shows may be older than the post.
            self.set_node(&NodeFromServer::of(&node));
            if !self.attached.borrow().contains(&unique) {
                return Err(rules::not_attached(&unique));
            }
        }
        let name = rules::attachment_name(handle, driver, &self.parts.node_name);
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
        let mut changes = self.changed();
        let held = async { while !holds() && changes.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(SOON, held).await;
        holds()
    }

    /// The Secret that a member of the volume's source names; empty without one.
    pub(super) async fn secret(&self, volume: &CsiVolume, member: &str) -> Result<StringMap, String> {
        let reference = &volume.source[member];
        let Some(name) = reference["name"].as_str().filter(|name| !name.is_empty()) else {
            return Ok(StringMap::new());
        };
        // An inline volume has the Secrets of its pod's namespace only.
        let namespace = match &volume.claimed {
            Some(_) => reference["namespace"].as_str().unwrap_or_default(),
            None => &volume.pod.namespace,
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if let (None, Some(data)) =
            (&volume.claimed, self.parts.objects.of(volume.realm).secret(namespace, name))
        {
            return Ok(data.iter().map(|(key, value)| (key.clone(), text(value))).collect());
        }
        let driver = volume.source["driver"].as_str().unwrap_or_default();
        let key = rules::unique_name(driver, &handle(volume));
        let path = ResourcePath::namespaced("", "secrets", namespace, name);
        let answer = self.read(&path, (&key, member), |object| json!({"data": object["data"]})).await;
        let failed = |why: &dyn std::fmt::Display| {
            format!("failed to find the secret {name} in the namespace {namespace} with error: {why}")
        };
        let object = answer.map_err(|error| failed(&error))?;
        if object.is_null() {
            return Err(failed(&format!("secrets {name:?} not found")));
        }
        let decode = |value: &Value| base64::decode(value.as_str()?).map(|bytes| text(&bytes));
        let data = object["data"].as_object().into_iter().flatten();
        Ok(data.filter_map(|(key, value)| Some((key.clone(), decode(value)?))).collect())
    }

    /// Tokens that the driver asks for by `tokenRequests`.
    pub(super) async fn add_tokens(
        &self,
        object: &Value,
        volume: &CsiVolume,
        call: &mut CsiCall,
    ) -> Result<(), String> {
        let wanted = object["spec"]["tokenRequests"].as_array().into_iter().flatten();
        let mut tokens = Map::new();
        for each in wanted {
            let request = TokenRequest {
                namespace: volume.pod.namespace.clone(),
                account: volume.account.clone(),
                pod: volume.pod.clone(),
                audience: each["audience"].as_str().unwrap_or_default().to_owned(),
                seconds: each["expirationSeconds"].as_i64().unwrap_or(3600),
            };
            let token = self.token(&request).await?;
            let expires = token.expires.to_rfc3339();
            let token = json!({"token": *token.value, "expirationTimestamp": expires});
            tokens.insert(request.audience, token);
        }
        if !tokens.is_empty() {
            let into = if object["spec"]["serviceAccountTokenInSecrets"] == true {
                &mut call.secrets
            } else {
                &mut call.context
            };
            let key = "csi.storage.k8s.io/serviceAccount.tokens".to_owned();
            into.insert(key, Value::from(tokens).to_string());
        }
        Ok(())
    }

    /// A token, the same one until it is to be renewed.
    async fn token(&self, request: &TokenRequest) -> Result<Token, String> {
        let (known, now) = (self.tokens.borrow().get(request).cloned(), self.parts.clock.now());
        if let Some(token) = known.clone().filter(|token| !due(token, now, self.parts.dice.unit())) {
            return Ok(token);
        }
        let failed = |why: &str| format!("failed to get service account token: {why}");
        let Some((client, _)) = self.link.get() else {
            return Err(failed("the cluster has not been reached yet"));
        };
        let path = ResourcePath::namespaced("", "serviceaccounts", &request.namespace, &request.account);
        match client.create(Lane::Main, &path.with_part("token"), &body(request)).await {
            Ok(answer) => {
                let token = from_answer(&answer, request, now).map_err(|why| failed(&why))?;
                self.tokens.borrow_mut().insert(request.clone(), token.clone());
                Ok(token)
            }
            Err(error) => known
                .filter(|token| error.is_offline() || now <= token.expires)
                .ok_or_else(|| failed(&error.to_string())),
        }
    }
}
