//! Reviews: who am I, whose token is this, may I, may they.
//!
//! Owns the reviews' shapes.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::access::Access;
use super::path::RequestInfo;
use super::status::{self, Cause, Failure};
use super::{LocalApi, incoming, protobuf, text, write};
use crate::model::api::schema::Schema;
use crate::serve::rbac::{ObjectAttributes, texts};
use crate::serve::server::access::User;
use crate::serve::server::body::{self, Body};
use crate::serve::server::delegate::DelegatedRequest;

/// A review is a few lines and a token.
const MAX_BYTES: usize = 64 * 1024;

pub(super) async fn create(
    api: &LocalApi,
    wanted: &RequestInfo,
    visit: DelegatedRequest,
) -> Result<Response<Body>, Failure> {
    let DelegatedRequest { request, user, policy, .. } = visit;
    let resource = wanted.resource;
    let mut review = body_of(resource.kind, &resource.api_version(), request).await?;
    review["metadata"] = json!({"creationTimestamp": null});
    let access = api.access(policy, &user);
    review["status"] = match resource.plural {
        "selfsubjectreviews" => json!({"userInfo": user_info(&user)}),
        "selfsubjectrulesreviews" => access.rules(text(&review, "/spec/namespace")),
        "tokenreviews" => token_review(api, &review["spec"])?,
        "selfsubjectaccessreviews" => answer(wanted, &access, &review["spec"])?,
        _ => {
            let subject = subject(wanted, &review["spec"])?;
            answer(wanted, &api.access(policy, &subject), &review["spec"])?
        }
    };
    Ok(body::object(StatusCode::CREATED, &review))
}

/// The object that a request without stored effect carries, of this kind.
pub(super) async fn body_of(
    kind: &str,
    api_version: &str,
    request: hyper::Request<crate::serve::server::incoming::IncomingBody>,
) -> Result<Value, Failure> {
    let media = incoming::media_type(&request);
    let bytes = incoming::bytes(request, MAX_BYTES).await?;
    let mut object: Value = match media.as_str() {
        protobuf::CONTENT_TYPE => protobuf::review(api_version, kind, &bytes)
            .ok_or_else(|| status::bad_request("the body is not a Kubernetes protobuf object"))?,
        "" | "application/json" if bytes.is_empty() => json!({}),
        "" | "application/json" => serde_json::from_slice(&bytes)
            .map_err(|error| status::bad_request(format!("the body is not JSON: {error}")))?,
        _ => {
            return Err(status::unsupported_media_type(
                "application/json, application/vnd.kubernetes.protobuf",
            ));
        }
    };
    if !object.is_object() {
        return Err(status::bad_request("the body is not an object"));
    }
    write::is_of(&Schema::load(), api_version, kind, &object)?;
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    Ok(object)
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.all_groups()});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    if !user.extra.is_null() {
        info["extra"] = user.extra.clone();
    }
    info
}

/// `status` of a TokenReview: only tokens of this node's service accounts are known.
fn token_review(api: &LocalApi, spec: &Value) -> Result<Value, Failure> {
    let token = text(spec, "/token");
    if token.is_empty() {
        return Err(status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = texts(&spec["audiences"]);
    let wanted = (!audiences.is_empty()).then_some(audiences.as_slice());
    let judged = api.accounts.as_ref().and_then(|accounts| accounts.authenticate(token, wanted));
    Ok(match judged.unwrap_or_else(|| Err("invalid bearer token".to_owned())) {
        Ok((user, audiences)) => {
            json!({"authenticated": true, "user": user_info(&user), "audiences": audiences})
        }
        Err(why) => json!({"user": {}, "error": why}),
    })
}

/// `status` of an access review.
fn answer(wanted: &RequestInfo, access: &Access<'_>, spec: &Value) -> Result<Value, Failure> {
    let namespace = wanted.namespace.as_deref();
    let allowed = match (&spec["resourceAttributes"], &spec["nonResourceAttributes"]) {
        (asked @ Value::Object(_), Value::Null) => {
            let asked = attributes(asked);
            if namespace.is_some_and(|namespace| namespace != asked.namespace) {
                let message = format!("Invalid value: {:?}: must match metadata.namespace", asked.namespace);
                return Err(invalid(wanted, "spec.resourceAttributes.namespace", message));
            }
            access.may(&asked)
        }
        (Value::Null, asked @ Value::Object(_)) if namespace.is_none() => {
            access.may_path(text(asked, "/path"), text(asked, "/verb"))
        }
        _ => {
            return Err(status::bad_request(
                "spec: Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ));
        }
    };
    Ok(json!({"allowed": allowed}))
}

/// Whom an access review is about.
fn subject(wanted: &RequestInfo, spec: &Value) -> Result<User, Failure> {
    let (name, groups) = (text(spec, "/user"), texts(&spec["groups"]));
    if name.is_empty() && groups.is_empty() {
        let message = "Invalid value: \"\": at least one of user or group must be specified".to_owned();
        return Err(invalid(wanted, "spec.user", message));
    }
    Ok(User::of_node(name.to_owned(), groups))
}

fn invalid(wanted: &RequestInfo, field: &str, message: String) -> Failure {
    let cause = Cause { reason: "FieldValueInvalid".to_owned(), message, field: field.to_owned() };
    status::invalid(wanted.resource, "", &[cause])
}

fn attributes(asked: &Value) -> ObjectAttributes {
    let at = |field: &str| asked.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    ObjectAttributes {
        verb: at("verb"),
        group: at("group"),
        resource: at("resource"),
        subresource: at("subresource"),
        namespace: at("namespace"),
        name: at("name"),
    }
}
