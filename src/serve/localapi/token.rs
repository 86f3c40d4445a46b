//! `serviceaccounts/NAME/token`: a token on request (upstream: `TokenREST`, 1.36).
//!
//! Owns the checks of the request and their messages.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::path::RequestInfo;
use super::status::{self, Cause, Failure};
use super::{LocalApi, review, text};
use crate::desired::service_account::name_of;
use crate::model::objects::ObjectKind;
use crate::serve::accounts::Accounts;
use crate::serve::accounts::claims::{Bound, NewToken, ObjectRef};
use crate::serve::localapi::resource::{Catalog, Resource, Store};
use crate::serve::rbac::texts;
use crate::serve::server::body::{self, Body};
use crate::serve::server::delegate::DelegatedRequest;

const VERSION: &str = "authentication.k8s.io/v1";
const DEFAULT_SECONDS: i64 = 3600;
const LEAST_SECONDS: i64 = 600;
const MOST_SECONDS: i64 = 1 << 32;

pub(super) async fn create(
    api: &LocalApi,
    wanted: &RequestInfo,
    visit: DelegatedRequest,
) -> Result<Response<Body>, Failure> {
    let (namespace, name) =
        (wanted.namespace.as_deref().unwrap_or_default(), wanted.name.as_deref().unwrap_or_default());
    let is_dry_run = !wanted.options.dry_run.is_empty();
    let user = visit.user.name.clone();
    let mut request = review::body_of("TokenRequest", VERSION, visit.request).await?;
    let accounts = api.accounts.as_deref().ok_or_else(|| status::not_found(wanted.resource, name))?;
    // A namespace that does not exist has no `default` either.
    let known = api.find(wanted.resource.store, namespace, name);
    let account = known.and_then(|_| accounts.account(namespace, name));
    let account = account.ok_or_else(|| status::not_found(wanted.resource, name))?;
    let spec = &mut request["spec"];
    let seconds = seconds(spec)?;
    let mut audiences = texts(&spec["audiences"]);
    if audiences.is_empty() {
        audiences.push(accounts.issuer().to_owned());
    }
    spec["audiences"] = json!(audiences);
    spec["expirationSeconds"] = json!(seconds);
    let bound = bound(api, accounts, (namespace, name), &spec["boundObjectRef"])?;
    let node = matches!(bound, Some(Bound::Pod(_))).then(|| accounts.node());
    let token = NewToken { namespace, account, audiences, seconds, bound, node, id: String::new() };
    let issued =
        if is_dry_run { None } else { Some(accounts.issue(token).map_err(|why| status::internal(&why))?) };
    let (token, expires) = issued.unwrap_or_default();
    request["status"] = json!({"token": token, "expirationTimestamp": expires});
    request["metadata"] =
        json!({"name": name, "namespace": namespace, "creationTimestamp": api.clock.now().to_rfc3339()});
    if !is_dry_run {
        log::info!(user = user, serviceAccount = format!("{namespace}/{name}"); "Issued a token");
    }
    Ok(body::object(StatusCode::CREATED, &request))
}

fn seconds(spec: &Value) -> Result<i64, Failure> {
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    let why = if seconds < LEAST_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MOST_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(seconds);
    };
    let cause = Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: format!("Invalid value: {seconds}: {why}"),
        field: "spec.expirationSeconds".to_owned(),
    };
    let message =
        format!("TokenRequest.authentication.k8s.io \"\" is invalid: {}: {}", cause.field, cause.message);
    Err(Failure::new(422, "Invalid", message)
        .about("authentication.k8s.io", "TokenRequest", "")
        .because(&[cause]))
}

/// The object that the token is to be bound to.
fn bound(
    api: &LocalApi,
    accounts: &Accounts,
    (namespace, account): (&str, &str),
    reference: &Value,
) -> Result<Option<Bound>, Failure> {
    if reference.is_null() {
        return Ok(None);
    }
    let (kind, name, uid) = (text(reference, "/kind"), text(reference, "/name"), text(reference, "/uid"));
    let not_found = |store: Store| {
        let resource: Option<&Resource> = Catalog::default().all().find(|resource| resource.store == store);
        resource.map_or_else(status::no_such_path, |resource| status::not_found(resource, name))
    };
    let (found, bind): (ObjectRef, fn(ObjectRef) -> Bound) = match (text(reference, "/apiVersion"), kind) {
        ("" | "v1", "Pod") => {
            let pod = api.node.pod(namespace, name, None).ok_or_else(|| not_found(Store::Pods))?;
            let of_pod = name_of(&pod);
            if of_pod != account {
                return Err(status::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            (ObjectRef { name: name.to_owned(), uid: pod.metadata.uid.to_string() }, Bound::Pod)
        }
        ("" | "v1", "Secret") => {
            let store = Store::Objects(ObjectKind::Secret);
            let secret = api.find(store, namespace, name).ok_or_else(|| not_found(store))?;
            let uid = text(&secret, "/metadata/uid").to_owned();
            (ObjectRef { name: name.to_owned(), uid }, Bound::Secret)
        }
        ("" | "v1", "Node") => {
            let node = accounts.node();
            if node.name != name {
                return Err(not_found(Store::Nodes));
            }
            (node, Bound::Node)
        }
        (version, _) => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            return Err(status::bad_request(format!(
                "cannot bind token to object of type {group}/{version}, Kind={kind}"
            )));
        }
    };
    if !uid.is_empty() && uid != found.uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        let message = format!("Operation cannot be fulfilled on {kind} \"{name}\": {why}");
        return Err(Failure::new(409, "Conflict", message).about("", kind, name));
    }
    Ok(Some(bind(found)))
}
