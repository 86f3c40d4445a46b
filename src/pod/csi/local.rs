//! CSI on a node without a cluster: CSIDrivers, Secrets and tokens are those of the node itself.
//!
//! Owns nothing: the objects are in the store, so that a node that boots mounts its volumes again as soon as the driver's
//! pod has registered.

use std::ffi::OsStr;
use std::future::ready;
use std::rc::Rc;

use serde_json::{Value, json};

use super::{CsiFacts, CsiRound, CsiServer, rules};
use crate::codec::base64;
use crate::model::api::pod::StringMap;
use crate::model::objects::{
    Absence, LocalObjects, NodeObjects, ObjectKind, ObjectLookup as _, Realm, TokenRequest,
};
use crate::model::types::Timestamp;
use crate::pod::volume::csi::{CsiAnswer, CsiVolume};

pub(crate) struct LocalCsi {
    objects: Rc<LocalObjects>,
    /// The same, with Secrets and tokens.
    lookup: Rc<NodeObjects>,
}

impl LocalCsi {
    pub(crate) fn new(objects: Rc<LocalObjects>, lookup: Rc<NodeObjects>) -> Rc<Self> {
        Rc::new(Self { objects, lookup })
    }

    /// The CSIDriver object, null without one.
    fn driver(&self, name: &str) -> Value {
        let found = self.objects.get(ObjectKind::CSIDriver, "", name);
        found.map_or(Value::Null, |object| json!({"spec": object.content.body()["spec"]}))
    }

    fn facts_of(&self, volume: &CsiVolume) -> Result<CsiFacts, String> {
        if volume.realm == Realm::Cluster {
            return Err("no CSI driver can be called yet".to_owned());
        }
        let name = volume.source["driver"].as_str().unwrap_or_default();
        let driver = self.driver(name);
        let is_claimed = volume.claimed.is_some();
        rules::check_lifecycle(name, &driver, !is_claimed)?;
        if is_claimed && rules::needs_attach(&driver) {
            return Err(format!(
                "no controller attaches volumes on a node without a cluster: if volumes of driver {name} need no \
                 attaching, create a CSIDriver {name} with attachRequired: false"
            ));
        }
        let stage_secrets = self.secret(volume, "nodeStageSecretRef")?;
        let publish_secrets = self.secret(volume, "nodePublishSecretRef")?;
        Ok(CsiFacts { driver, stage_secrets, publish_secrets, ..CsiFacts::default() })
    }

    /// The Secret that a member of the volume's source names; empty without one.
    fn secret(&self, volume: &CsiVolume, member: &str) -> Result<StringMap, String> {
        let Some((namespace, name)) = rules::secret_of(volume, member) else { return Ok(StringMap::new()) };
        let data = self
            .lookup
            .of(Realm::Node)
            .secret(namespace, name)
            .ok_or_else(|| rules::no_secret((namespace, name), &format!("secrets {name:?} not found")))?;
        Ok(data
            .iter()
            .map(|(key, value)| (key.clone(), String::from_utf8_lossy(value).into_owned()))
            .collect())
    }

    fn token_of(&self, request: &TokenRequest) -> Result<(Rc<str>, Timestamp), String> {
        let token = self.lookup.of(Realm::Node).token(request).map_err(|absence| match absence {
            Absence::Refused(why) => why,
            _ => format!("serviceaccounts {:?} not found", request.account),
        })?;
        let claims = token.split('.').nth(1).and_then(base64::decode_url);
        let claims: Value = claims.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let end = claims["exp"].as_i64().ok_or("the token has no end")?;
        Ok((token, Timestamp::from_secs(end)))
    }
}

impl CsiServer for LocalCsi {
    fn facts(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<CsiFacts> {
        Box::pin(ready(self.facts_of(&volume)))
    }

    fn attach(self: Rc<Self>, volume: CsiVolume) -> CsiAnswer<StringMap> {
        Box::pin(ready(self.secret(&volume, "secretRef")))
    }

    fn token(self: Rc<Self>, request: TokenRequest) -> CsiAnswer<(Rc<str>, Timestamp)> {
        Box::pin(ready(self.token_of(&request)))
    }

    fn republishes(&self, driver: &str) -> bool {
        self.driver(driver)["spec"]["requiresRepublish"] == true
    }

    fn forget(&self, _uid: &OsStr) {}

    fn round(self: Rc<Self>) -> CsiRound {
        Box::pin(ready((Ok(()), None)))
    }
}

#[cfg(test)]
mod tests;
