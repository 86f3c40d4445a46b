//! What the fake apiserver issues and judges: tokens of service accounts, reviews.
//!
//! Owns the rules of token requests of nodes.

use std::time::Duration;

use serde_json::{Value, json};

use super::admission::node_of;
use super::answers::{Refusal, Target};
use super::world::{ReviewTable, World};

/// Shortest lifetime of a token, in seconds.
const SHORTEST_TOKEN: u64 = 600;

/// The answer to a request that creates no object; `None` for all others.
pub(super) fn answer(
    user: &str,
    target: &Target,
    body: &Value,
    world: &World,
) -> Option<Result<Value, Refusal>> {
    match (target.place.kind.2, target.part.as_str()) {
        ("serviceaccounts", "token") => Some(token(user, target, body, world)),
        ("tokenreviews", "") => Some(Ok(token_review(body, &world.reviews.borrow()))),
        ("subjectaccessreviews", "") => Some(Ok(access_review(body, &world.reviews.borrow()))),
        _ => None,
    }
}

/// NodeRestriction: a token for a node is bound to one of its pods. That a pod uses the account, the authorizer knows.
fn token(user: &str, target: &Target, body: &Value, world: &World) -> Result<Value, Refusal> {
    let objects = world.objects.borrow();
    if !objects.objects.contains_key(&target.place) {
        return Err(Refusal::not_found(target));
    }
    let bound = &body["spec"]["boundObjectRef"];
    if let Some(node) = node_of(user) {
        let refuse = |message: &str| Err(Refusal::forbidden(format!("node requested token {message}")));
        if bound["kind"] != "Pod" || bound["apiVersion"] != "v1" {
            return refuse("not bound to a pod");
        }
        let mut pods = objects.objects.iter().filter(|(place, _)| {
            place.kind.2 == "pods"
                && place.namespace == target.place.namespace
                && bound["name"] == *place.name
        });
        let Some((_, pod)) = pods.next() else {
            return Err(Refusal(404, "NotFound", format!("pods {} not found", bound["name"])));
        };
        if pod["metadata"]["uid"] != bound["uid"] {
            return refuse("with another UID than the pod's");
        }
        if pod["spec"]["nodeName"] != node {
            return refuse("bound to a pod scheduled on a different node");
        }
    }
    let seconds = body["spec"]["expirationSeconds"].as_u64().unwrap_or(3600).max(SHORTEST_TOKEN);
    let ends = world.clock.now().saturating_add(Duration::from_secs(seconds));
    let audience = body["spec"]["audiences"][0].as_str().unwrap_or("https://kubernetes.default.svc");
    let account = format!("{}:{}", target.place.namespace, target.place.name);
    let number = world.calls.borrow().len();
    let mut answer = body.clone();
    answer["kind"] = "TokenRequest".into();
    answer["apiVersion"] = "authentication.k8s.io/v1".into();
    let token = format!("token-{number}-{account}-{audience}");
    answer["status"] = json!({"token": token, "expirationTimestamp": ends.to_rfc3339()});
    Ok(answer)
}

fn token_review(body: &Value, table: &ReviewTable) -> Value {
    let known = body["spec"]["token"].as_str().and_then(|token| table.tokens.get(token));
    let mut answer = body.clone();
    answer["status"] = match known {
        Some((user, groups)) => json!({"authenticated": true, "user": {"username": user, "groups": groups}}),
        None => json!({"authenticated": false, "error": "invalid bearer token"}),
    };
    answer
}

fn access_review(body: &Value, table: &ReviewTable) -> Value {
    let spec = &body["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let asked = &spec["resourceAttributes"];
    let resource = match text(&asked["subresource"]) {
        part if part.is_empty() => text(&asked["resource"]),
        part => format!("{}/{part}", text(&asked["resource"])),
    };
    let allowed = table.allowed.contains(&(text(&spec["user"]), text(&asked["verb"]), resource));
    let mut answer = body.clone();
    answer["status"] = json!({"allowed": allowed});
    answer
}
