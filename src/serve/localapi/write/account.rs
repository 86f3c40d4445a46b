//! Secrets that keep a token of a service account (type `kubernetes.io/service-account-token`): filled when they are
//! written, and gone with their account (upstream: the controller `serviceaccount-token`).
//!
//! Owns both.

use std::rc::Rc;

use super::Task;
use crate::desired::pod_config::PodConfig;
use crate::model::objects::{LocalObject, ObjectContent, ObjectKey, ObjectKind};
use crate::model::types::PodSource;
use crate::serve::accounts::{ACCOUNT_NAME, ACCOUNT_UID, SECRET_TOKEN, SECRET_TYPE};
use crate::serve::localapi::status::{self, Failure};

/// Gives such a Secret its token, the certificates and the namespace, if its account exists and it has none.
pub(super) fn fill(task: &Task, object: &mut LocalObject) -> Result<(), Failure> {
    let LocalObject { key, annotations, content, .. } = object;
    let ObjectContent::Secret { secret_type, data, .. } = content else { return Ok(()) };
    if secret_type != SECRET_TYPE || data.contains_key(SECRET_TOKEN) {
        return Ok(());
    }
    let Some(accounts) = &task.api.accounts else { return Ok(()) };
    let name = annotations.get(ACCOUNT_NAME).map(String::as_str).unwrap_or_default();
    let Some(account) = accounts.account(&key.namespace, name) else { return Ok(()) };
    let token = accounts.legacy_token(&key.namespace, &account, &key.name);
    let token = token.map_err(|why| status::internal(&why))?;
    annotations.insert(ACCOUNT_UID.to_owned(), account.uid);
    data.insert(SECRET_TOKEN.to_owned(), token.into_bytes());
    data.insert("namespace".to_owned(), key.namespace.clone().into_bytes());
    data.extend(accounts.root_ca_data().unwrap_or_default().data);
    Ok(())
}

/// The Secrets that keep tokens of this account.
pub(super) fn secrets_of(config: &PodConfig, account: &Rc<LocalObject>) -> Vec<ObjectKey> {
    if account.key.kind != ObjectKind::ServiceAccount {
        return Vec::new();
    }
    let is_of = |secret: &LocalObject| {
        let is_here = secret.key.namespace == account.key.namespace && secret.finalizers.is_empty();
        let is_tokens = matches!(&secret.content, ObjectContent::Secret { secret_type, .. } if secret_type == SECRET_TYPE);
        is_here && is_tokens && secret.annotations.get(ACCOUNT_UID) == Some(&account.uid)
    };
    let of_api = config.objects_by_source().filter(|(source, _)| *source == PodSource::Api);
    of_api.filter(|(_, found)| is_of(&found.object)).map(|(_, found)| found.object.key.clone()).collect()
}
