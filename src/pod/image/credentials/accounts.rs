//! Service accounts of pods for credential providers (upstream: KEP-4412): what a program gets of a pod's account, and
//! for whom its response holds.
//!
//! Owns `tokenAttributes`.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::model::names::qualified_name;
use crate::model::objects::TokenRequest;
use crate::model::types::PodRef;
use crate::pod::image::records::hash;

pub(crate) type AccountAnswer<T> = Pin<Box<dyn Future<Output = Result<T, String>>>>;

/// The service accounts of a cluster.
pub(crate) trait ServiceAccounts {
    /// Whether there are answers.
    fn is_online(&self) -> bool;
    fn account(&self, namespace: &str, name: &str) -> AccountAnswer<Value>;
    /// A token of the account with this uid.
    fn token(self: Rc<Self>, request: TokenRequest, uid: &str) -> AccountAnswer<Rc<str>>;
}

/// The pod that needs an image.
#[derive(Clone, Copy)]
pub(in crate::pod) struct Puller<'a> {
    pub pod: &'a PodRef,
    /// Its service account in the cluster; empty without one.
    pub account: &'a str,
}

#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TokenAttributes {
    service_account_token_audience: String,
    cache_type: String,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Vec<String>,
    optional_service_account_annotation_keys: Vec<String>,
}

/// What a program gets. Deliberately without `Debug`.
pub(super) struct AccountToken {
    pub token: Rc<str>,
    pub annotations: Map<String, Value>,
    /// As the records of pulls have it.
    pub account: Value,
    /// The responses for one are not given to another.
    pub cache_key: String,
    /// The response may be the token itself.
    pub may_echo: bool,
}

/// Why a program is not run.
pub(super) enum NotRun {
    /// It is not for this pod.
    Skipped(String),
    Failed(String),
}

const TOKEN: &str = "Token";
const SERVICE_ACCOUNT: &str = "ServiceAccount";

impl TokenAttributes {
    /// The first field that is wrong, and why.
    pub(super) fn check(&self, is_v1: bool) -> Result<(), String> {
        let (required, optional) =
            (&self.required_service_account_annotation_keys, &self.optional_service_account_annotation_keys);
        if !is_v1 {
            return Err(": is only supported for credentialprovider.kubelet.k8s.io/v1".to_owned());
        }
        if self.service_account_token_audience.is_empty() {
            return Err(".serviceAccountTokenAudience: Required value".to_owned());
        }
        if ![TOKEN, SERVICE_ACCOUNT].contains(&self.cache_type.as_str()) {
            return Err(format!(".cacheType {:?}: must be {SERVICE_ACCOUNT} or {TOKEN}", self.cache_type));
        }
        let Some(is_needed) = self.require_service_account else {
            return Err(".requireServiceAccount: Required value".to_owned());
        };
        if !is_needed && !required.is_empty() {
            return Err(
                ".requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"
                    .to_owned(),
            );
        }
        let keys: Vec<&String> = required.iter().chain(optional).collect();
        for (position, key) in keys.iter().enumerate() {
            if let Some(why) = qualified_name(&key.to_lowercase()).into_iter().next() {
                return Err(format!(": annotation key {key:?}: {why}"));
            }
            if keys[..position].contains(key) {
                return Err(format!(": annotation key {key:?} is listed twice"));
            }
        }
        Ok(())
    }

    /// What the program gets of the pod's account; `None` when it is run without one.
    pub(super) async fn token(
        &self,
        accounts: Option<&Rc<dyn ServiceAccounts>>,
        puller: Puller<'_>,
    ) -> Result<Option<AccountToken>, NotRun> {
        let is_needed = self.require_service_account == Some(true);
        let (Puller { pod, account: name }, Some(accounts)) = (puller, accounts) else {
            let why = "tokenAttributes.requireServiceAccount: pods have service accounts only on a node of a cluster";
            return if is_needed { Err(NotRun::Failed(why.to_owned())) } else { Ok(None) };
        };
        if name.is_empty() {
            let why = "the pod has no service account";
            return if is_needed { Err(NotRun::Skipped(why.to_owned())) } else { Ok(None) };
        }
        let namespace = &pod.namespace;
        let failed = |why: String| NotRun::Failed(format!("service account {namespace}/{name}: {why}"));
        let object = accounts.account(namespace, name).await.map_err(failed)?;
        let metadata = &object["metadata"];
        let annotations = self.annotations(&metadata["annotations"])?;
        let uid = metadata["uid"].as_str().unwrap_or_default();
        let request = TokenRequest {
            namespace: namespace.clone(),
            account: name.to_owned(),
            pod: pod.clone(),
            audience: self.service_account_token_audience.clone(),
            seconds: TokenRequest::SECONDS,
        };
        let token = Rc::clone(accounts).token(request, uid).await.map_err(failed)?;
        let account = json!({"uid": uid, "namespace": namespace, "name": name});
        let may_echo = self.cache_type == TOKEN;
        let cache_key =
            if may_echo { hash(token.as_bytes()) } else { json!([account, annotations]).to_string() };
        Ok(Some(AccountToken { token, annotations, account, cache_key, may_echo }))
    }

    /// Those of the account that the program gets.
    fn annotations(&self, all: &Value) -> Result<Map<String, Value>, NotRun> {
        let mut found = Map::new();
        for key in &self.required_service_account_annotation_keys {
            // A way for single accounts to opt in.
            let Some(value) = all.get(key) else {
                return Err(NotRun::Skipped(format!("required annotation {key} not found")));
            };
            found.insert(key.clone(), value.clone());
        }
        for key in &self.optional_service_account_annotation_keys {
            found.extend(all.get(key).map(|value| (key.clone(), value.clone())));
        }
        Ok(found)
    }
}
