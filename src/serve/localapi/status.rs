//! Failures of the Kubernetes API, with the API server's messages and codes.
//!
//! Owns the shape of `Status`.

use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::resource::{Resource, qualified};
use crate::serve::server::body::{Body, object};

/// Why a request was not served: `v1.Status` with `status: Failure`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub code: u16,
    /// `reason`, one word.
    pub reason: &'static str,
    pub message: String,
    pub details: Value,
}

/// An error of one field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cause {
    /// `FieldValueInvalid`, `FieldManagerConflict`, ...
    pub reason: String,
    pub message: String,
    /// `spec.containers[0].image`.
    pub field: String,
}

impl Failure {
    #[must_use]
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: json!({}) }
    }

    /// Adds the object that the failure is about; `kind` is a resource or a kind, as upstream mixes them.
    #[must_use]
    pub(crate) fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        for (field, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                self.details[field] = value.into();
            }
        }
        self
    }

    #[must_use]
    pub(crate) fn because(mut self, causes: &[Cause]) -> Self {
        let shape = |cause: &Cause| {
            let fields = [("reason", &cause.reason), ("message", &cause.message), ("field", &cause.field)];
            let filled = fields.into_iter().filter(|(_, value)| !value.is_empty());
            Value::Object(filled.map(|(field, value)| (field.to_owned(), json!(value))).collect())
        };
        self.details["causes"] = causes.iter().map(shape).collect();
        self
    }

    #[must_use]
    pub(crate) fn to_value(&self) -> Value {
        let mut value = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if !self.details.as_object().is_none_or(Map::is_empty) || self.code == 404 {
            value["details"] = self.details.clone();
        }
        value
    }

    #[must_use]
    pub(crate) fn response(&self) -> Response<Body> {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = object(code, &self.to_value());
        if code == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[must_use]
pub(in crate::serve) fn no_such_path() -> Failure {
    Failure::new(404, "NotFound", "the server could not find the requested resource")
}

#[must_use]
pub(in crate::serve) fn method_not_allowed() -> Failure {
    let message = "the server does not allow this method on the requested resource";
    Failure::new(405, "MethodNotAllowed", message)
}

#[must_use]
pub(crate) fn not_supported(resource: &Resource, action: &str) -> Failure {
    let message = format!("{action} is not supported on resources of kind \"{}\"", resource.qualified());
    Failure::new(405, "MethodNotAllowed", message).about(resource.group, resource.plural, "")
}

#[must_use]
pub(crate) fn not_found(resource: &Resource, name: &str) -> Failure {
    let message = format!("{} \"{name}\" not found", resource.qualified());
    Failure::new(404, "NotFound", message).about(resource.group, resource.plural, name)
}

#[must_use]
pub(crate) fn already_exists(resource: &Resource, name: &str) -> Failure {
    let message = format!("{} \"{name}\" already exists", resource.qualified());
    Failure::new(409, "AlreadyExists", message).about(resource.group, resource.plural, name)
}

/// Another writer was faster. `why` is upstream's message, usually [`MODIFIED`].
#[must_use]
pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Failure {
    let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified());
    Failure::new(409, "Conflict", message).about(resource.group, resource.plural, name)
}

/// Upstream's message for a stale `resourceVersion`.
pub(in crate::serve) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// An invalid object. The messages of the causes do not repeat the field.
#[must_use]
pub(crate) fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Failure {
    let said: Vec<String> =
        causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    let said = match said.as_slice() {
        [only] => only.clone(),
        _ => format!("[{}]", said.join(", ")),
    };
    let kind = qualified(resource.kind, resource.group);
    Failure::new(422, "Invalid", format!("{kind} \"{name}\" is invalid: {said}"))
        .about(resource.group, resource.kind, name)
        .because(causes)
}

#[must_use]
pub(in crate::serve) fn bad_request(message: impl Into<String>) -> Failure {
    Failure::new(400, "BadRequest", message)
}

/// An authenticated user without the permission; [`super::access`] has the messages.
#[must_use]
pub(crate) fn forbidden(group: &str, plural: &str, name: &str, message: String) -> Failure {
    Failure::new(403, "Forbidden", message).about(group, plural, name)
}

#[must_use]
pub(in crate::serve) fn too_many_requests(message: impl Into<String>) -> Failure {
    let mut failure = Failure::new(429, "TooManyRequests", message);
    failure.details["retryAfterSeconds"] = json!(1);
    failure
}

/// The requested version is older than the history.
#[must_use]
pub(crate) fn expired(message: impl Into<String>) -> Failure {
    Failure::new(410, "Expired", message)
}

/// The requested version is in the future.
#[must_use]
pub(in crate::serve) fn too_large_version(asked: u64, current: u64) -> Failure {
    let cause = Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    };
    let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
    let mut failure = Failure::new(504, "Timeout", message).because(&[cause]);
    failure.details["retryAfterSeconds"] = json!(1);
    failure
}

/// The client accepts no form that is supported.
#[must_use]
pub(in crate::serve) fn not_acceptable() -> Failure {
    let message = "only the following media types are accepted: application/json";
    Failure::new(406, "NotAcceptable", message)
}

#[must_use]
pub(in crate::serve) fn unsupported_media_type(accepted: &str) -> Failure {
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: {accepted}"
    );
    Failure::new(415, "UnsupportedMediaType", message)
}

#[must_use]
pub(in crate::serve) fn too_large(limit: usize) -> Failure {
    Failure::new(413, "RequestEntityTooLarge", format!("limit is {limit}"))
}

/// The body did not arrive in time.
#[must_use]
pub(in crate::serve) fn too_slow() -> Failure {
    Failure::new(408, "Timeout", "timed out reading the request body")
}

/// An error of the agent or of the machine.
#[must_use]
pub(crate) fn internal(message: &str) -> Failure {
    let cause = Cause { message: message.to_owned(), ..Cause::default() };
    Failure::new(500, "InternalError", format!("Internal error occurred: {message}")).because(&[cause])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::localapi::resource::find;

    #[test]
    fn failures_read_as_an_apiservers() {
        let pods = find("", "v1", "pods").unwrap();
        assert_eq!(
            not_found(pods, "web").to_value(),
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "pods \"web\" not found", "reason": "NotFound",
                "details": {"name": "web", "kind": "pods"}, "code": 404})
        );
        let metrics = find("metrics.k8s.io", "v1beta1", "pods").unwrap();
        let missing = not_found(metrics, "web");
        assert_eq!(missing.message, "pods.metrics.k8s.io \"web\" not found");
        assert_eq!(missing.details["group"], "metrics.k8s.io");
        let cause = |field: &str, message: &str| Cause {
            reason: "FieldValueInvalid".to_owned(),
            message: message.to_owned(),
            field: field.to_owned(),
        };
        let one = invalid(pods, "web", &[cause("spec.a", "Required value")]);
        assert_eq!(one.message, "Pod \"web\" is invalid: spec.a: Required value");
        assert_eq!(one.details["causes"][0]["field"], "spec.a");
        let two = invalid(pods, "web", &[cause("a", "x"), cause("b", "y")]);
        assert_eq!(two.message, "Pod \"web\" is invalid: [a: x, b: y]");
        assert_eq!(
            conflict(pods, "web", MODIFIED).message,
            format!("Operation cannot be fulfilled on pods \"web\": {MODIFIED}")
        );
        assert_eq!(bad_request("x").to_value().get("details"), None);
    }
}
