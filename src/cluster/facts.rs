//! What the cluster has shown beside pods and their objects: tokens, Services, trust bundles, and why an object is
//! not there.
//!
//! Owns these facts; the tasks of objects and tokens write them. Restored from the store before the first pod starts,
//! so that a node that boots without its cluster runs its pods.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cluster::tokens::rules::{self, Token};
use crate::codec::base64;
use crate::model::objects::service_variables::{ServiceFacts, from_server, to_row, variables};
use crate::model::objects::{Absence, ClusterFacts, ObjectKey, TokenRequest};
use crate::model::ordered::Ordered as _;
use crate::model::selector::{selects, string_map};
use crate::model::types::PodRef;
use crate::platform::x509;
use crate::store::{ClusterKey, ClusterRow};

/// Kinds of rows. Values of tokens are secret.
pub(crate) use crate::store::TOKEN;
pub(crate) const SERVICES: &str = "Services";
pub(crate) const BUNDLES: &str = "ClusterTrustBundles";

/// The Node authorizer learns of a new pod a moment later than this node: a 403 sooner than this is no answer.
pub(crate) const GRAPH_LAG: Duration = Duration::from_secs(10);

/// A row of the store. Deliberately without `Debug`: tokens are among them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FactRow {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// Of a token the pod's; else empty.
    pub uid: String,
    pub value: Vec<u8>,
}

/// The facts among the rows of the store.
pub(crate) fn fact_rows(rows: &[ClusterRow]) -> Vec<FactRow> {
    let fact = |row: &ClusterRow| {
        let ClusterKey { kind, namespace, name } = row.key.clone();
        FactRow { kind, namespace, name, uid: row.uid.clone(), value: row.value.clone() }
    };
    rows.iter().map(fact).collect()
}

/// What is to be done to the store.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum FactChange {
    Put(FactRow),
    Gone { kind: &'static str, namespace: String, name: String },
}

/// Services that are read together: of a namespace, or the one of this name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServiceScope {
    pub namespace: String,
    /// Empty for all of the namespace.
    pub name: String,
}

impl ServiceScope {
    pub(crate) fn all(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: String::new() }
    }

    /// `default/kubernetes`: variables of every pod.
    pub(crate) fn master() -> Self {
        Self { namespace: "default".to_owned(), name: "kubernetes".to_owned() }
    }
}

/// The token of a request, and what a pod gets.
#[derive(Clone)]
pub(crate) struct TokenFact {
    pub token: Option<Token>,
    pub given: Result<Rc<str>, Absence>,
}

pub(crate) struct Facts {
    known: RefCell<KnownFacts>,
    generation: watch::Sender<u64>,
}

#[derive(Default)]
struct KnownFacts {
    /// Objects that the server does not give; of others without an answer there is none.
    absent: BTreeMap<ObjectKey, Absence>,
    tokens: BTreeMap<TokenRequest, TokenFact>,
    /// Those that have been read.
    services: BTreeMap<ServiceScope, Vec<ServiceFacts>>,
    /// As [`reduced`]; `None` before they are read, or why they cannot be.
    bundles: Option<Result<Vec<Value>, String>>,
}

impl Facts {
    /// As the rows of the store say. Rows of another form are left out: the cluster will show them again.
    pub(crate) fn restored(rows: &[FactRow]) -> Rc<Self> {
        let mut known = KnownFacts::default();
        for row in rows {
            let Ok(value) = serde_json::from_slice::<Value>(&row.value) else { continue };
            match (row.kind.as_str(), &value) {
                (TOKEN, _) => {
                    if let (Some(request), Some(token)) = (request_of(row), rules::from_row(&value)) {
                        let given = Ok(Rc::clone(&token.value));
                        known.tokens.insert(request, TokenFact { token: Some(token), given });
                    }
                }
                (SERVICES, Value::Array(services)) => {
                    let scope = ServiceScope { namespace: row.namespace.clone(), name: row.name.clone() };
                    known.services.insert(scope, services.iter().filter_map(from_server).collect());
                }
                (BUNDLES, Value::Array(bundles)) => known.bundles = Some(Ok(bundles.clone())),
                _ => {}
            }
        }
        Rc::new(Self { known: RefCell::new(known), generation: watch::Sender::new(0) })
    }

    fn change(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Why an object is not there; `None` when it is.
    pub(crate) fn set_absence(&self, key: &ObjectKey, absence: Option<Absence>) -> bool {
        let absent = &mut self.known.borrow_mut().absent;
        if absent.get(key) == absence.as_ref() {
            return false;
        }
        match absence {
            Some(absence) => drop(absent.insert(key.clone(), absence)),
            None => drop(absent.remove(key)),
        }
        self.change();
        true
    }

    /// Forgets why other objects are not there.
    pub(crate) fn retain_absences(&self, keys: &BTreeSet<ObjectKey>) {
        self.known.borrow_mut().absent.retain(|key, _| keys.contains(key));
    }

    pub(crate) fn token_fact(&self, request: &TokenRequest) -> Option<TokenFact> {
        self.known.borrow().tokens.get(request).cloned()
    }

    pub(crate) fn token_requests(&self) -> Vec<TokenRequest> {
        self.known.borrow().tokens.keys().cloned().collect()
    }

    /// `None`: no pod needs it any more.
    pub(crate) fn set_token(&self, request: &TokenRequest, fact: Option<TokenFact>) {
        let tokens = &mut self.known.borrow_mut().tokens;
        match fact {
            Some(fact) => {
                let given = fact.given.clone();
                let old = tokens.insert(request.clone(), fact);
                if old.is_some_and(|old| old.given == given) {
                    return;
                }
            }
            None => drop(tokens.remove(request)),
        }
        self.change();
    }

    pub(crate) fn service_scopes(&self) -> Vec<ServiceScope> {
        self.known.borrow().services.keys().cloned().collect()
    }

    /// Whether the Services of a pod's variables have been read.
    pub(crate) fn has_services(&self, namespace: &str, links: bool) -> bool {
        let services = &self.known.borrow().services;
        let has_master = services.contains_key(&ServiceScope::master())
            || services.contains_key(&ServiceScope::all(&ServiceScope::master().namespace));
        has_master && (!links || services.contains_key(&ServiceScope::all(namespace)))
    }

    /// Changes the Services of a scope, which counts as read from now on. Returns what the store has to write.
    pub(crate) fn change_services(
        &self,
        scope: &ServiceScope,
        change: impl FnOnce(&mut Vec<ServiceFacts>),
    ) -> Option<FactChange> {
        let services = &mut self.known.borrow_mut().services;
        let old = services.get(scope);
        let mut new = old.cloned().unwrap_or_default();
        change(&mut new);
        if old == Some(&new) {
            return None;
        }
        let value = Value::Array(new.iter().map(to_row).collect());
        services.insert(scope.clone(), new);
        self.change();
        Some(put(SERVICES, &scope.namespace, &scope.name, "", &value))
    }

    /// Services that no pod needs.
    pub(crate) fn drop_services(&self, scope: &ServiceScope) -> Option<FactChange> {
        self.known.borrow_mut().services.remove(scope)?;
        let ServiceScope { namespace, name } = scope.clone();
        Some(FactChange::Gone { kind: SERVICES, namespace, name })
    }

    pub(crate) fn bundles(&self) -> Option<Result<Vec<Value>, String>> {
        self.known.borrow().bundles.clone()
    }

    /// Returns what the store has to write.
    pub(crate) fn set_bundles(&self, bundles: Option<Result<Vec<Value>, String>>) -> Option<FactChange> {
        let known = &mut self.known.borrow_mut().bundles;
        if *known == bundles {
            return None;
        }
        let row = match (&bundles, &known) {
            (Some(Ok(bundles)), _) => Some(put(BUNDLES, "", "", "", &Value::Array(bundles.clone()))),
            (_, Some(Ok(_))) => {
                Some(FactChange::Gone { kind: BUNDLES, namespace: String::new(), name: String::new() })
            }
            _ => None,
        };
        *known = bundles;
        self.change();
        row
    }
}

impl ClusterFacts for Facts {
    fn absence(&self, key: &ObjectKey) -> Absence {
        self.known.borrow().absent.get(key).cloned().unwrap_or(Absence::NotSynced)
    }

    fn token(&self, request: &TokenRequest) -> Result<Rc<str>, Absence> {
        let known = self.known.borrow();
        known.tokens.get(request).map_or(Err(Absence::NotSynced), |fact| fact.given.clone())
    }

    fn trust_bundle(&self, source: &Value) -> Result<Vec<u8>, Absence> {
        match &self.known.borrow().bundles {
            None => Err(Absence::NotSynced),
            Some(Err(why)) => Err(Absence::Refused(why.clone())),
            Some(Ok(bundles)) => anchors(bundles, source).map_err(Absence::Refused),
        }
    }

    fn service_variables(&self, namespace: &str, links: bool) -> Result<Vec<(String, String)>, Absence> {
        if !self.has_services(namespace, links) {
            return Err(Absence::NotSynced);
        }
        let known = self.known.borrow();
        let master = ServiceScope::master().namespace;
        let near = |scope: &ServiceScope| scope.namespace == namespace || scope.namespace == master;
        let services = known.services.iter().filter(|(scope, _)| near(scope));
        let services: Vec<ServiceFacts> = services.flat_map(|(_, all)| all.iter().cloned()).collect();
        Ok(variables(&services, namespace, links))
    }

    fn generation(&self) -> u64 {
        *self.generation.borrow()
    }
}

fn put(kind: &str, namespace: &str, name: &str, uid: &str, value: &Value) -> FactChange {
    FactChange::Put(FactRow {
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        value: value.to_string().into_bytes(),
    })
}

/// The row of a token.
pub(crate) fn token_row(request: &TokenRequest, token: &Token) -> FactChange {
    let uid = request.pod.uid.to_string();
    put(TOKEN, &request.namespace, &rules::row_name(request), &uid, &rules::to_row(token))
}

/// The removal of that row.
pub(crate) fn token_gone(request: &TokenRequest) -> FactChange {
    FactChange::Gone { kind: TOKEN, namespace: request.namespace.clone(), name: rules::row_name(request) }
}

/// The request whose [`rules::row_name`] a row has.
fn request_of(row: &FactRow) -> Option<TokenRequest> {
    let mut parts = row.name.splitn(4, '/');
    let (name, account) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let seconds = parts.next()?.parse().ok()?;
    let (namespace, uid) = (row.namespace.clone(), row.uid.as_str().into());
    let audience = parts.next()?.to_owned();
    let pod = PodRef { namespace: namespace.clone(), name, uid };
    Some(TokenRequest { namespace, account, pod, audience, seconds })
}

/// What projections need of a ClusterTrustBundle.
pub(crate) fn reduced(bundle: &Value) -> Value {
    let (metadata, spec) = (&bundle["metadata"], &bundle["spec"]);
    json!({
        "metadata": { "name": metadata["name"], "labels": metadata["labels"] },
        "spec": { "signerName": spec["signerName"], "trustBundle": spec["trustBundle"] },
    })
}

/// The certificates that a projection selects, each once, with upstream's messages. Sorted, which upstream's are not on
/// purpose: a file that does not change is not written.
fn anchors(bundles: &[Value], source: &Value) -> Result<Vec<u8>, String> {
    let is_optional = source["optional"] == true;
    let chosen: Vec<&Value> = match (source["name"].as_str(), source["signerName"].as_str()) {
        (Some(name), _) => bundles.iter().filter(|bundle| bundle["metadata"]["name"] == name).collect(),
        (None, Some(signer)) => {
            let selector = &source["labelSelector"];
            let is_chosen = |bundle: &&Value| {
                bundle["spec"]["signerName"] == signer
                    && selects(selector, &string_map(&bundle["metadata"]["labels"]))
            };
            bundles.iter().filter(is_chosen).collect()
        }
        (None, None) => {
            return Err(
                "ClusterTrustBundle projection requires either name or signerName to be set".to_owned()
            );
        }
    };
    if chosen.is_empty() && !is_optional {
        return Err(match source["name"].as_str() {
            Some(name) => format!(
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
            ),
            None => "combination of signerName and labelSelector matched zero ClusterTrustBundles".to_owned(),
        });
    }
    let text = |bundle: &&Value| bundle["spec"]["trustBundle"].as_str().unwrap_or_default().to_owned();
    let found = chosen.iter().flat_map(|bundle| x509::pem_blocks(&text(bundle), "CERTIFICATE")).into_set();
    let mut pem = String::new();
    for certificate in found {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = base64::encode(&certificate);
        for line in encoded.as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    Ok(pem.into_bytes())
}

#[cfg(test)]
mod tests;
