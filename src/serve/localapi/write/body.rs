//! Bodies of requests that write.
//!
//! Owns their size limit and the accepted formats.

use hyper::Request;
use serde_json::{Value, json};

use crate::codec::json::parse_one;
use crate::codec::yaml::yaml_to_values;
use crate::serve::localapi::path::RequestInfo;
use crate::serve::localapi::resource::Verb;
use crate::serve::localapi::status::{self, Failure};
use crate::serve::localapi::{incoming, protobuf};
use crate::serve::server::incoming::IncomingBody;

const MAX_BYTES: usize = 3 * 1024 * 1024;

const OBJECTS: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const PATCHES: &str = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml, application/strategic-merge-patch+json";

const CUSTOM_PATCHES: &str =
    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// An object; for a deletion its options, empty if absent.
    Object(Value),
    Patch(PatchKind, Value),
}

impl Content {
    /// Deletion options in the body may request a dry run.
    pub(super) fn is_dry_run(&self) -> bool {
        let Self::Object(object) = self else { return false };
        let options = object.get("deleteOptions").unwrap_or(object);
        options.get("dryRun").and_then(Value::as_array).is_some_and(|values| values.contains(&json!("All")))
    }
}

/// Reads a body, and finds members that appear twice in one object.
pub(super) async fn read(
    wanted: &RequestInfo,
    request: Request<IncomingBody>,
) -> Result<(Content, Vec<String>), Failure> {
    let kind = incoming::media_type(&request);
    let patch = match (wanted.verb, kind.as_str()) {
        (Verb::Patch, "application/json-patch+json") => Some(PatchKind::Json),
        (Verb::Patch, "application/merge-patch+json") => Some(PatchKind::Merge),
        (Verb::Patch, "application/strategic-merge-patch+json") if !wanted.resource.is_custom() => {
            Some(PatchKind::Strategic)
        }
        (Verb::Patch, "application/apply-patch+yaml") => Some(PatchKind::Apply),
        (Verb::Patch, _) if wanted.resource.is_custom() => {
            return Err(status::unsupported_media_type(CUSTOM_PATCHES));
        }
        (Verb::Patch, _) => return Err(status::unsupported_media_type(PATCHES)),
        (_, "" | "application/json" | "application/yaml") => None,
        (_, protobuf::CONTENT_TYPE) if protobuf::reads(wanted) => None,
        _ => return Err(status::unsupported_media_type(OBJECTS)),
    };
    let bytes = incoming::bytes(request, MAX_BYTES).await?;
    let is_deletion = matches!(wanted.verb, Verb::Delete | Verb::DeleteCollection);
    if bytes.is_empty() && is_deletion {
        return Ok((Content::Object(json!({})), Vec::new()));
    }
    if kind == protobuf::CONTENT_TYPE {
        let object = protobuf::read(&bytes).ok_or_else(|| {
            status::bad_request(
                "error decoding the request body: it is no message of this kind in Kubernetes' binary form",
            )
        })?;
        return Ok((Content::Object(object), Vec::new()));
    }
    let is_yaml = kind.ends_with("yaml");
    let (value, duplicates) = parse(&bytes, is_yaml)
        .map_err(|why| status::bad_request(format!("error decoding the request body: {why}")))?;
    match patch {
        Some(kind) => Ok((Content::Patch(kind, value), duplicates)),
        None if value.is_object() => Ok((Content::Object(value), duplicates)),
        None => Err(status::bad_request("the request body is not an object")),
    }
}

/// Bodies declared as YAML are usually JSON, which is parsed faster.
fn parse(bytes: &[u8], is_yaml: bool) -> Result<(Value, Vec<String>), String> {
    let wrong = match parse_one(bytes) {
        Ok(parsed) => return Ok((parsed.value, parsed.duplicates)),
        Err(error) => error.to_string(),
    };
    if !is_yaml {
        return Err(wrong);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let documents = yaml_to_values(text, true).map_err(|error| error.to_string())?;
    match <[Value; 1]>::try_from(documents) {
        Ok([only]) => Ok((only, Vec::new())),
        Err(others) => Err(format!("{} documents, expected one", others.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_are_read_and_yaml_only_where_it_was_said() {
        let alone = Ok((json!({"a": 1}), Vec::new()));
        assert_eq!(parse(b"{\"a\": 1}", false), alone);
        assert_eq!(parse(b"{\"a\": 1}", true), alone);
        assert_eq!(parse(b"a: 1\n", true), alone);
        let twice = parse(b"{\"a\": [{\"b\": 1, \"b\": 2}], \"c\": {\"d\": 0}, \"a\": 3}", false);
        assert_eq!(twice, Ok((json!({"a": 3, "c": {"d": 0}}), vec!["a[0].b".to_owned(), "a".to_owned()])));
        assert!(parse(b"a: 1\n", false).is_err());
        assert!(parse(b"a: 1\n---\nb: 2\n", true).unwrap_err().contains("2 documents"));
        assert!(parse(b"\xff", true).is_err());
    }
}
