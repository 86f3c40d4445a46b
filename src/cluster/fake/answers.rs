//! What the fake apiserver understands of a request, and the bodies of its errors.
//!
//! Owns no state.

use std::fmt::Write;

use serde_json::{Value, json};

use super::objects::{KindRow, ObjectPlace, kind_of_plural};
use crate::cluster::client::transport::{ApiRequest, Method};

/// A request that was not carried out: status, reason, message.
#[derive(Clone, Debug)]
pub(super) struct Refusal(pub u16, pub &'static str, pub String);

impl Refusal {
    pub(super) fn not_found(target: &Target) -> Self {
        Self(404, "NotFound", format!("{} {:?} not found", target.place.kind.2, target.place.name))
    }

    pub(super) fn forbidden(message: String) -> Self {
        Self(403, "Forbidden", message)
    }

    pub(super) fn conflict(target: &Target, message: &str) -> Self {
        let (plural, name) = (target.place.kind.2, &target.place.name);
        let text = format!("Operation cannot be fulfilled on {plural} {name:?}: {message}");
        Self(409, "Conflict", text)
    }

    pub(super) fn invalid(target: &Target, message: &str) -> Self {
        let (kind, name) = (target.place.kind.0, &target.place.name);
        Self(422, "Invalid", format!("{kind} {name:?} is invalid: {message}"))
    }

    pub(super) fn status(&self) -> Value {
        let Self(code, reason, message) = self;
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "code": code})
    }
}

/// What a request is about.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The name is empty for a collection, the namespace for all of them.
    pub place: ObjectPlace,
    pub part: String,
    /// get, list, watch, create, update, patch, delete.
    pub verb: &'static str,
    query: Vec<(String, String)>,
}

impl Target {
    /// `None` for a path that the server does not serve.
    pub(super) fn of(method: Method, path: &str) -> Option<Self> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let steps: Vec<String> = path.trim_start_matches('/').split('/').map(decoded).collect();
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        let (group, rest) = match steps.as_slice() {
            ["api", "v1", rest @ ..] => ("v1".to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let kind: KindRow = kind_of_plural(&group, rest.first()?)?;
        let member = |text: &str| {
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            (decoded(name), decoded(value))
        };
        let query: Vec<_> = query.split('&').filter(|text| !text.is_empty()).map(member).collect();
        let name = (*rest.get(1).unwrap_or(&"")).to_owned();
        let is_watch = query.iter().any(|(name, value)| name == "watch" && value == "true");
        let verb = match method {
            Method::Get if is_watch => "watch",
            Method::Get if name.is_empty() => "list",
            Method::Get => "get",
            Method::Post => "create",
            Method::Put => "update",
            Method::Patch => "patch",
            Method::Delete => "delete",
        };
        let place = ObjectPlace { kind, namespace: namespace.to_owned(), name };
        Some(Self { place, part: (*rest.get(2).unwrap_or(&"")).to_owned(), verb, query })
    }

    /// A member of the query; empty without one.
    pub(super) fn query(&self, name: &str) -> &str {
        self.query.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// The name in the path, or the one that the field selector names.
    pub(super) fn selected_name(&self) -> &str {
        if !self.place.name.is_empty() {
            return &self.place.name;
        }
        self.selected("metadata.name")
    }

    /// The value that the field selector wants.
    pub(super) fn selected(&self, field: &str) -> &str {
        let terms = self.query("fieldSelector").split(',');
        terms
            .filter_map(|term| term.split_once('='))
            .find(|(name, _)| *name == field)
            .map_or("", |(_, value)| value)
    }
}

/// The object that a body holds.
pub(super) fn body(request: &ApiRequest) -> Value {
    request.body.as_ref().and_then(|(_, bytes)| serde_json::from_slice(bytes).ok()).unwrap_or_default()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        if let (b'%', Some(byte)) = (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// The name that a `generateName` becomes.
pub(super) fn generated(prefix: &str, number: u64) -> String {
    let mut name = prefix.to_owned();
    let _ = write!(name, "{number:05x}");
    name
}
