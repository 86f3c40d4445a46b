//! Service accounts of this node: tokens for pods and clients, and who it is that shows one.
//!
//! Owns the signing key, the current tokens of pods, and the tokens that were verified lately. Nothing of it is on the
//! disk but the key, which is made with the first token.

pub mod claims;
pub mod jwt;

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};

use crate::cluster::tokens::rules::{Token, due, renew_at};
use crate::desired::service_account::DEFAULT;
use crate::model::api::pod::Pod;
use crate::model::objects::{
    Absence, ConfigMapData, LocalObject, LocalObjects, NodeFacts, ObjectContent, ObjectKind, TokenRequest,
};
use crate::model::types::{PodUid, Timestamp};
use crate::node::object::{namespace_uid, node_uid, uid};
use crate::platform::clock::Clock;
use crate::platform::logging::chain;
use crate::platform::sys::node::random_uid;
use crate::pod::lifecycle::end_of;
use crate::pod::status::StatusManager;
use crate::serve::rbac::account_user;
use crate::serve::server::access::User;
use crate::serve::server::pki::{self, Authority, plausible};

use claims::{Bound, Holder, NewToken, ObjectRef};
use jwt::SigningKey;

/// The type of a Secret that keeps a token, its annotations, and the key of the token.
pub(crate) const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
pub(crate) const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
pub(crate) const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
pub(crate) const SECRET_TOKEN: &str = "token";

/// Tokens whose signature is not verified again: some hundred bytes each, for as many clients at a time.
const MOST_VERIFIED: usize = 32;
/// An object that was deleted longer ago ends its tokens (upstream's leeway for clocks).
const DELETED_FOR: Duration = Duration::from_secs(60);
/// Two tokens that are due a moment after each other are renewed together.
const TOGETHER: Duration = Duration::from_secs(60);

pub(crate) struct AccountsConfig {
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
    pub node_name: String,
    /// `clusterDomain`; empty for the default.
    pub cluster_domain: String,
}

/// The domain of cluster names where none is configured.
pub(crate) const CLUSTER_DOMAIN: &str = "cluster.local";

pub(crate) struct Accounts {
    config: AccountsConfig,
    /// Who issues tokens, and whom they are for if nothing else is said.
    issuer: String,
    objects: Rc<LocalObjects>,
    statuses: Rc<StatusManager>,
    clock: Clock,
    key: OnceCell<SigningKey>,
    root_ca: OnceCell<ConfigMapData>,
    /// Why there are no certificates, as it was reported last.
    root_ca_trouble: RefCell<String>,
    issued: RefCell<BTreeMap<TokenRequest, IssuedToken>>,
    verified: RefCell<VecDeque<VerifiedToken>>,
    /// Changes when pods are to get other tokens.
    changes: watch::Sender<u64>,
    /// Whether there are pods with tokens.
    carried: watch::Sender<bool>,
    /// The times of the tokens have changed.
    wakes: Notify,
}

/// The token of a pod.
struct IssuedToken {
    token: Token,
    account_uid: String,
}

struct VerifiedToken {
    digest: [u8; 32],
    holder: Rc<Holder>,
}

/// A token of this node, judged.
pub(crate) type Judged = Result<(User, Vec<String>), String>;

impl Accounts {
    #[must_use]
    pub(crate) fn new(
        config: AccountsConfig,
        objects: Rc<LocalObjects>,
        statuses: Rc<StatusManager>,
        clock: Clock,
    ) -> Rc<Self> {
        let domain = Some(config.cluster_domain.as_str()).filter(|domain| !domain.is_empty());
        let issuer = format!("https://kubernetes.default.svc.{}", domain.unwrap_or(CLUSTER_DOMAIN));
        Rc::new(Self {
            config,
            issuer,
            objects,
            statuses,
            clock,
            key: OnceCell::new(),
            root_ca: OnceCell::new(),
            root_ca_trouble: RefCell::default(),
            issued: RefCell::default(),
            verified: RefCell::default(),
            changes: watch::Sender::new(0),
            carried: watch::Sender::new(false),
            wakes: Notify::new(),
        })
    }

    #[must_use]
    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Changes when pods are to get other tokens.
    #[must_use]
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether there are pods with tokens; an ended one may count for an hour.
    #[must_use]
    pub(crate) fn carried(&self) -> watch::Receiver<bool> {
        self.carried.subscribe()
    }

    /// Renews the tokens of pods; runs as long as the process. Without such pods it does nothing.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            let next = self.next_renewal();
            tokio::select! {
                biased;
                // Both are cancel safe: the times are read again.
                () = self.wakes.notified() => {}
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => self.renew(),
            }
        }
    }

    fn next_renewal(&self) -> Option<Duration> {
        let now = self.now();
        let wait = |IssuedToken { token, .. }: &IssuedToken| {
            if due(token, now, 0.0) { Duration::ZERO } else { renew_at(token, 0.0).saturating_since(now) }
        };
        self.issued.borrow().values().map(wait).min()
    }

    /// Drops the tokens that are due: the volumes that have them ask for others.
    fn renew(&self) {
        let soon = self.now().saturating_add(TOGETHER);
        let is_current = |request: &TokenRequest, issued: &mut IssuedToken| {
            self.find_pod(&request.namespace, &request.pod.name, request.pod.uid.as_str()).is_some()
                && !due(&issued.token, soon, 0.0)
        };
        self.issued.borrow_mut().retain(is_current);
        self.note_carried();
        self.changes.send_modify(|version| *version += 1);
    }

    fn note_carried(&self) {
        let is_carried = !self.issued.borrow().is_empty();
        self.carried.send_if_modified(|carried| std::mem::replace(carried, is_carried) != is_carried);
    }

    /// The clock, unless it is obviously wrong.
    fn now(&self) -> Timestamp {
        plausible(self.clock.now())
    }

    fn find_pod(&self, namespace: &str, name: &str, uid: &str) -> Option<Pod> {
        self.statuses.find(namespace, name, Some(&PodUid::from(uid)))
    }

    /// The account of this name: one that was created, or `default`.
    #[must_use]
    pub(crate) fn account(&self, namespace: &str, name: &str) -> Option<ObjectRef> {
        let found = self.objects.get(ObjectKind::ServiceAccount, namespace, name);
        let uid = match found {
            Some(found) if self.is_gone(found.deleted) => return None,
            Some(found) => found.uid.clone(),
            None if name == DEFAULT => self.implied_uid("ServiceAccount", namespace),
            None => return None,
        };
        Some(ObjectRef { name: name.to_owned(), uid })
    }

    /// The uid of what every namespace has without its having been created: another one in a namespace that was deleted
    /// and created again, and the same when a namespace that was only in use is stored.
    #[must_use]
    pub(crate) fn implied_uid(&self, kind: &str, namespace: &str) -> String {
        let of = self.objects.get(ObjectKind::Namespace, "", namespace);
        let of = of.map_or_else(|| namespace_uid(namespace), |of| of.uid.clone());
        uid(&[kind, "\0", &of].concat())
    }

    fn is_gone(&self, deleted: Option<Timestamp>) -> bool {
        deleted.is_some_and(|deleted| self.clock.now().saturating_since(deleted) > DELETED_FOR)
    }

    /// The certificates that clients of this node's API trust, as the ConfigMap `kube-root-ca.crt` has them.
    pub(crate) fn root_ca_data(&self) -> Option<ConfigMapData> {
        if self.root_ca.get().is_none() {
            match Authority::open(&self.config.cert_dir, &self.config.node_name) {
                Ok(authority) => {
                    let certificate = authority.certificate().as_bytes().to_vec();
                    let data = [("ca.crt".to_owned(), certificate)].into();
                    let _ = self.root_ca.set(ConfigMapData { data, ..ConfigMapData::default() });
                }
                Err(error) => {
                    let trouble = chain(&error);
                    if self.root_ca_trouble.replace(trouble.clone()) != trouble {
                        log::warn!(err = trouble; "No certificates of the API for pods");
                    }
                }
            }
        }
        self.root_ca.get().cloned()
    }

    /// The key that signs tokens; with `creates` it is made if there is none.
    fn key(&self, creates: bool) -> Result<Option<&SigningKey>, String> {
        if self.key.get().is_none() {
            let file = pki::token_key(&self.config.cert_dir, creates).map_err(|error| chain(&error))?;
            let Some(file) = file else { return Ok(None) };
            let key = SigningKey::from_pkcs8(&file).ok_or_else(|| {
                let file = pki::token_key_file(&self.config.cert_dir);
                format!("{}: no key for tokens; remove it to generate another one", file.display())
            })?;
            let _ = self.key.set(key);
        }
        Ok(self.key.get())
    }

    /// A token with these claims.
    ///
    /// # Errors
    /// The key cannot be read or made.
    pub(crate) fn sign(&self, claims: &Value) -> Result<String, String> {
        let key = self.key(true)?.ok_or("no key for tokens")?;
        key.sign(claims).ok_or_else(|| "sign the token".to_owned())
    }

    /// A new token, with the end of its time as the answer shows it.
    pub(crate) fn issue(&self, mut token: NewToken<'_>) -> Result<(String, Timestamp), String> {
        let now = self.now();
        if token.audiences.is_empty() {
            token.audiences.push(self.issuer.clone());
        }
        token.id = random_uid().map_err(|error| error.to_string())?;
        let seconds = u64::try_from(token.seconds).unwrap_or_default();
        let text = self.sign(&claims::claims(&token, &self.issuer, seconds_of(now)))?;
        Ok((text, now.saturating_add(Duration::from_secs(seconds))))
    }

    /// This node, as tokens of its pods name it.
    #[must_use]
    pub(crate) fn node(&self) -> ObjectRef {
        ObjectRef { name: self.config.node_name.clone(), uid: node_uid(&self.config.node_name) }
    }

    /// The token that a Secret of the right type keeps.
    pub(crate) fn legacy_token(
        &self,
        namespace: &str,
        account: &ObjectRef,
        secret: &str,
    ) -> Result<String, String> {
        self.sign(&claims::legacy_claims(namespace, account, secret))
    }

    /// Where the public keys are.
    pub(crate) fn openid_configuration(&self) -> Value {
        let keys = [&self.issuer, "/openid/v1/jwks"].concat();
        json!({
            "issuer": self.issuer,
            "jwks_uri": keys,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [jwt::ALGORITHM],
        })
    }

    /// The public keys (RFC 7517); none before the first token.
    pub(crate) fn jwks(&self) -> Result<Value, String> {
        let key = self.key(false)?;
        Ok(json!({"keys": key.into_iter().map(SigningKey::jwk).collect::<Vec<_>>()}))
    }

    /// Who shows this token; with `audiences`, whom it must be for, instead of this API. `None`: it is no token of this
    /// node.
    pub(crate) fn authenticate(&self, token: &str, audiences: Option<&[String]>) -> Option<Judged> {
        let holder = self.verified(token)?;
        let own = [self.issuer.clone()];
        let judged = holder.check_audiences(audiences.unwrap_or(&own)).and_then(|audiences| {
            self.check(&holder, token)?;
            Ok((Self::user(&holder), audiences))
        });
        Some(judged)
    }

    fn verified(&self, token: &str) -> Option<Rc<Holder>> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let mut verified = self.verified.borrow_mut();
        if let Some(known) = verified.iter().find(|known| known.digest == digest) {
            return Some(Rc::clone(&known.holder));
        }
        // A key that cannot be read has been reported where it was needed.
        let key = self.key(false).ok()??;
        let holder = Rc::new(claims::read(&key.verify(token)?, &self.issuer)?);
        verified.truncate(MOST_VERIFIED - 1);
        verified.push_front(VerifiedToken { digest, holder: Rc::clone(&holder) });
        Some(holder)
    }

    /// Upstream's messages for tokens that no longer count.
    fn check(&self, holder: &Holder, token: &str) -> Result<(), String> {
        if let Err(why) = holder.check_times(seconds_of(self.now())) {
            // The clock was set: what this process has issued to a pod counts as long as the pod has it.
            if !self.issued.borrow().values().any(|issued| &*issued.token.value == token) {
                return Err(why.to_owned());
            }
            self.wakes.notify_one();
        }
        let Holder { namespace, account, .. } = holder;
        let Some(found) = self.account(namespace, &account.name) else {
            return Err(format!("service account {namespace}/{} has been deleted", account.name));
        };
        if found.uid != account.uid {
            return Err(format!(
                "service account UID ({}) does not match claim ({})",
                found.uid, account.uid
            ));
        }
        let is_kept = match &holder.bound {
            Some(Bound::Pod(pod)) => {
                self.find_pod(namespace, &pod.name, &pod.uid).is_some_and(|pod| !self.is_gone(end_of(&pod)))
            }
            Some(Bound::Secret(secret)) => {
                self.secret(namespace, &secret.name).is_some_and(|found| found.uid == secret.uid)
            }
            Some(Bound::Node(node)) => *node == self.node(),
            None => true,
        };
        let is_in_secret = holder.secret.as_ref().is_none_or(|secret| {
            self.secret(namespace, secret).is_some_and(|secret| has_token(&secret, token))
        });
        if is_kept && is_in_secret {
            Ok(())
        } else {
            Err("service account token has been invalidated".to_owned())
        }
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Rc<LocalObject>> {
        self.objects.get(ObjectKind::Secret, namespace, name).filter(|secret| !self.is_gone(secret.deleted))
    }

    fn user(holder: &Holder) -> User {
        let Holder { namespace, account, .. } = holder;
        let groups = account_groups(namespace);
        let user = User::of_node(account_user(namespace, &account.name), groups.to_vec());
        User { uid: account.uid.clone(), extra: holder.extra(), ..user }
    }
}

/// The groups of all accounts in a namespace.
pub(crate) fn account_groups(namespace: &str) -> [String; 3] {
    let of = "system:serviceaccounts";
    [of.to_owned(), [of, ":", namespace].concat(), "system:authenticated".to_owned()]
}

fn has_token(secret: &LocalObject, token: &str) -> bool {
    matches!(&secret.content, ObjectContent::Secret { secret_type, data, .. }
        if secret_type == SECRET_TYPE && data.get(SECRET_TOKEN).is_some_and(|kept| kept == token.as_bytes()))
}

fn seconds_of(time: Timestamp) -> i64 {
    time.as_nanos() / 1_000_000_000
}

impl NodeFacts for Accounts {
    fn token(&self, request: &TokenRequest) -> Result<Rc<str>, Absence> {
        let Some(account) = self.account(&request.namespace, &request.account) else {
            return Err(Absence::NotFound);
        };
        if let Some(known) = self.issued.borrow().get(request)
            && known.account_uid == account.uid
            && !due(&known.token, self.now(), 0.0)
        {
            return Ok(Rc::clone(&known.token.value));
        }
        let account_uid = account.uid.clone();
        let pod = ObjectRef { name: request.pod.name.clone(), uid: request.pod.uid.to_string() };
        let wanted = NewToken {
            namespace: &request.namespace,
            account,
            audiences: Some(request.audience.clone()).filter(|it| !it.is_empty()).into_iter().collect(),
            seconds: request.seconds,
            bound: Some(Bound::Pod(pod)),
            node: Some(self.node()),
            id: String::new(),
        };
        let issued =
            self.issue(wanted).map_err(|why| Absence::Refused(format!("failed to fetch token: {why}")));
        let (value, expires) = issued?;
        let value: Rc<str> = value.into();
        let received = self.now();
        let token = Token { value: Rc::clone(&value), received, expires, seconds: request.seconds };
        self.issued.borrow_mut().insert(request.clone(), IssuedToken { token, account_uid });
        self.note_carried();
        self.wakes.notify_one();
        Ok(value)
    }

    fn root_ca(&self) -> Option<ConfigMapData> {
        self.root_ca_data()
    }

    fn generation(&self) -> u64 {
        *self.changes.borrow()
    }
}

#[cfg(test)]
mod tests;
