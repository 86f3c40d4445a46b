//! What a token of a service account says, and whether it counts (upstream: `pkg/serviceaccount`, 1.36).
//!
//! Owns the claims, the times and the messages.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::{Value, json};

use crate::desired::service_account::TOKEN_SECONDS;
use crate::serve::rbac::{account_user, texts};

/// A pod's own token is issued for a year, and clients are asked to renew it after [`TOKEN_SECONDS`] (upstream).
const EXTENDED: i64 = 365 * 24 * 3600;
/// Clocks differ (upstream).
const LEEWAY: i64 = 60;
/// The issuer of tokens in Secrets.
const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
const LEGACY: &str = "kubernetes.io/serviceaccount/";
const PRIVATE: &str = "kubernetes.io";

/// A name, and the uid that tells an object from a later one of that name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectRef {
    pub name: String,
    pub uid: String,
}

impl ObjectRef {
    fn of(value: &Value) -> Option<Self> {
        let text = |member: &str| value[member].as_str().map(str::to_owned);
        Some(Self { name: text("name")?, uid: text("uid")? })
    }

    fn to_value(&self) -> Value {
        json!({"name": self.name, "uid": self.uid})
    }
}

/// The object whose deletion ends a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Pod(ObjectRef),
    Secret(ObjectRef),
    Node(ObjectRef),
}

/// A token to be made.
#[derive(Clone, Debug)]
pub(crate) struct NewToken<'a> {
    pub namespace: &'a str,
    pub account: ObjectRef,
    pub audiences: Vec<String>,
    pub seconds: i64,
    pub bound: Option<Bound>,
    /// The node of the pod that it is bound to.
    pub node: Option<ObjectRef>,
    /// `jti`.
    pub id: String,
}

/// `now` in seconds since the epoch.
#[must_use]
pub(crate) fn claims(token: &NewToken<'_>, issuer: &str, now: i64) -> Value {
    let is_own = token.audiences == [issuer];
    let is_pods = matches!(token.bound, Some(Bound::Pod(_)));
    let is_extended = is_own && is_pods && token.seconds == TOKEN_SECONDS;
    let mut private = json!({"namespace": token.namespace, "serviceaccount": token.account.to_value()});
    match &token.bound {
        Some(Bound::Pod(pod)) => private["pod"] = pod.to_value(),
        Some(Bound::Secret(secret)) => private["secret"] = secret.to_value(),
        Some(Bound::Node(node)) => private["node"] = node.to_value(),
        None => {}
    }
    if let Some(node) = &token.node {
        private["node"] = node.to_value();
    }
    if is_extended {
        private["warnafter"] = json!(now.saturating_add(token.seconds));
    }
    let seconds = if is_extended { EXTENDED } else { token.seconds };
    json!({
        "aud": token.audiences,
        "exp": now.saturating_add(seconds),
        "iat": now,
        "iss": issuer,
        "jti": token.id,
        PRIVATE: private,
        "nbf": now,
        "sub": account_user(token.namespace, &token.account.name),
    })
}

/// The claims of a token that a Secret keeps: it counts as long as both exist.
#[must_use]
pub(crate) fn legacy_claims(namespace: &str, account: &ObjectRef, secret: &str) -> Value {
    let mut claims = json!({"iss": LEGACY_ISSUER, "sub": account_user(namespace, &account.name)});
    for (name, value) in [
        ("namespace", namespace),
        ("secret.name", secret),
        ("service-account.name", &account.name),
        ("service-account.uid", &account.uid),
    ] {
        claims[[LEGACY, name].concat()] = json!(value);
    }
    claims
}

/// What a token says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub namespace: String,
    pub account: ObjectRef,
    pub bound: Option<Bound>,
    /// The node of the pod.
    pub node: Option<ObjectRef>,
    pub id: String,
    pub audiences: Vec<String>,
    /// The token is the value of this Secret.
    pub secret: Option<String>,
    times: Option<(i64, i64)>,
}

/// What signed claims say; `None`: they are of another form.
#[must_use]
pub(crate) fn read(claims: &Value, issuer: &str) -> Option<Holder> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let holder = if claims["iss"] == LEGACY_ISSUER {
        let legacy = |name: &str| text(&claims[[LEGACY, name].concat()]);
        Holder {
            namespace: legacy("namespace")?,
            account: ObjectRef { name: legacy("service-account.name")?, uid: legacy("service-account.uid")? },
            bound: None,
            node: None,
            id: String::new(),
            // Only for this API.
            audiences: vec![issuer.to_owned()],
            secret: Some(legacy("secret.name")?),
            times: None,
        }
    } else if claims["iss"] == issuer {
        let private = &claims[PRIVATE];
        let (pod, secret) = (ObjectRef::of(&private["pod"]), ObjectRef::of(&private["secret"]));
        let node = ObjectRef::of(&private["node"]);
        let is_node_bound = pod.is_none() && secret.is_none();
        Holder {
            namespace: text(&private["namespace"])?,
            account: ObjectRef::of(&private["serviceaccount"])?,
            bound: pod
                .map(Bound::Pod)
                .or_else(|| secret.map(Bound::Secret))
                .or_else(|| node.clone().map(Bound::Node)),
            node: node.filter(|_| !is_node_bound),
            id: text(&claims["jti"]).unwrap_or_default(),
            audiences: texts(&claims["aud"]),
            secret: None,
            times: Some((claims["nbf"].as_i64()?, claims["exp"].as_i64()?)),
        }
    } else {
        return None;
    };
    let is_subject = claims["sub"] == account_user(&holder.namespace, &holder.account.name).as_str();
    is_subject.then_some(holder)
}

impl Holder {
    /// # Errors
    /// Upstream's message when the token is too old or too new.
    pub(crate) fn check_times(&self, now: i64) -> Result<(), &'static str> {
        match self.times {
            Some((_, expires)) if now.saturating_sub(LEEWAY) > expires => {
                Err("service account token has expired")
            }
            Some((since, _)) if now.saturating_add(LEEWAY) < since => {
                Err("service account token is not valid yet")
            }
            _ => Ok(()),
        }
    }

    /// Those of the wanted audiences that the token is for.
    ///
    /// # Errors
    /// Upstream's message when it is for none.
    pub(crate) fn check_audiences(&self, wanted: &[String]) -> Result<Vec<String>, String> {
        let found: Vec<String> =
            self.audiences.iter().filter(|audience| wanted.contains(audience)).cloned().collect();
        if found.is_empty() {
            let quoted = |list: &[String]| {
                let words: Vec<String> = list.iter().map(|word| format!("{word:?}")).collect();
                format!("[{}]", words.join(" "))
            };
            return Err(format!(
                "token audiences {} is invalid for the target audiences {}",
                quoted(&self.audiences),
                quoted(wanted)
            ));
        }
        Ok(found)
    }

    /// `extra` of the user.
    #[must_use]
    pub(crate) fn extra(&self) -> Value {
        let mut extra = json!({});
        let mut put = |name: &str, value: &str| {
            if !value.is_empty() {
                extra[["authentication.kubernetes.io/", name].concat()] = json!([value]);
            }
        };
        if !self.id.is_empty() {
            put("credential-id", &["JTI=", &self.id].concat());
        }
        let of_pod = match &self.bound {
            Some(Bound::Pod(pod)) => Some(("pod", pod)),
            _ => None,
        };
        let of_node = match &self.bound {
            Some(Bound::Node(node)) => Some(node),
            _ => self.node.as_ref(),
        };
        for (kind, object) in of_pod.into_iter().chain(of_node.map(|node| ("node", node))) {
            put(&[kind, "-name"].concat(), &object.name);
            put(&[kind, "-uid"].concat(), &object.uid);
        }
        extra
    }
}
