//! Reviews: who am I, may I.
//!
//! Owns the reviews' shapes.

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::access::{self, ObjectAttributes};
use super::path::RequestInfo;
use super::status::{self, Failure};
use super::{incoming, protobuf, text, write};
use crate::model::api::schema::Schema;
use crate::serve::server::body::{self, Body};
use crate::serve::server::delegate::DelegatedRequest;

/// A review is a few lines.
const MAX_BYTES: usize = 64 * 1024;

pub(super) async fn create(wanted: &RequestInfo, visit: DelegatedRequest) -> Result<Response<Body>, Failure> {
    let DelegatedRequest { request, user, policy, .. } = visit;
    let kind = incoming::media_type(&request);
    let bytes = incoming::bytes(request, MAX_BYTES).await?;
    let mut review: Value = match kind.as_str() {
        protobuf::CONTENT_TYPE => {
            protobuf::review(&wanted.resource.api_version(), wanted.resource.kind, &bytes)
                .ok_or_else(|| status::bad_request("the body is not a Kubernetes protobuf object"))?
        }
        "" | "application/json" if bytes.is_empty() => json!({}),
        "" | "application/json" => serde_json::from_slice(&bytes)
            .map_err(|error| status::bad_request(format!("the body is not JSON: {error}")))?,
        _ => {
            return Err(status::unsupported_media_type(
                "application/json, application/vnd.kubernetes.protobuf",
            ));
        }
    };
    if !review.is_object() {
        return Err(status::bad_request("the body is not an object"));
    }
    let api_version = wanted.resource.api_version();
    write::is_of(&Schema::load(), &api_version, wanted.resource.kind, &review)?;
    review["apiVersion"] = json!(api_version);
    review["kind"] = json!(wanted.resource.kind);
    review["metadata"] = json!({"creationTimestamp": null});
    review["status"] = match wanted.resource.plural {
        "selfsubjectreviews" => {
            json!({"userInfo": {"username": user.name, "groups": access::groups(&user)}})
        }
        "selfsubjectrulesreviews" => access::rules(policy, &user),
        _ => {
            let allowed = if let Some(asked) = review.pointer("/spec/resourceAttributes") {
                access::may(policy, &user, &attributes(asked))
            } else if let Some(asked) = review.pointer("/spec/nonResourceAttributes") {
                access::may_path(policy, &user, text(asked, "/path"), text(asked, "/verb"))
            } else {
                return Err(status::bad_request(
                    "spec: Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified",
                ));
            };
            json!({"allowed": allowed})
        }
    };
    Ok(body::object(StatusCode::CREATED, &review))
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
