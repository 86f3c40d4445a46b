//! From the bytes of a manifest to decoded objects: encoding, JSON or YAML, several documents, lists, kinds.
//!
//! Owns what counts as a manifest. The last good version is not kept here: a broken document is reported
//! beside the good ones. The only user of YAML among the sources.

mod hint;
mod static_pods;

use std::cell::OnceCell;

use serde_json::Value;

use crate::codec::yaml::yaml_documents;
use crate::model::api::decode::decode;
use crate::model::api::pod::Pod;
use crate::model::api::schema::Schema;
use crate::model::api::schema::check::{Unknown, check};
use crate::model::objects::wire::decode_object;
use crate::model::objects::{AnyObject, ObjectKind};

pub(super) use static_pods::{Ignored, parse};
pub use static_pods::{ParsedManifest, parse_manifest};

/// A manifest larger than this is refused; upstream's limit for files and URLs.
pub(super) const MAX_MANIFEST_BYTES: usize = 10 * 1024 * 1024;
/// Objects read from one manifest; a node runs a few hundred pods at most.
const MAX_OBJECTS: usize = 5_000;
/// Warnings and problems kept of one manifest; more would not help the user.
const MAX_NOTES: usize = 100;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// Pods that decoded, in order, neither defaulted nor validated.
    pub pods: Vec<ManifestPod>,
    /// Objects that decoded, in order, not validated.
    pub objects: Vec<ManifestObject>,
    /// Documents or list items that are invalid.
    pub problems: Vec<ManifestNote>,
    /// Ignored fields of the valid ones.
    pub warnings: Vec<ManifestNote>,
}

/// A decoded pod and its place in the manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct ManifestPod {
    pub pod: Pod,
    /// For example `document 2`, `document 1, items[3]`; empty when the manifest holds just this one object.
    pub place: String,
}

/// A decoded object and its place in the manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct ManifestObject {
    pub kind: ObjectKind,
    pub object: AnyObject,
    /// As in [`ManifestPod`].
    pub place: String,
}

/// A problem or a warning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestNote {
    /// As in [`ManifestPod`]; the message begins with the line number where it is known.
    pub place: String,
    /// `metadata.name` of the object, where it can be read: its last good version is kept.
    pub name: Option<String>,
    pub message: String,
}

impl std::fmt::Display for ManifestNote {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.place.is_empty() {
            formatter.write_str(&self.message)
        } else {
            write!(formatter, "{}: {}", self.place, self.message)
        }
    }
}

struct Raw {
    place: String,
    value: Value,
}

/// The table of types, loaded for the first object. Manifests that are read together share it; it is not kept
/// for longer, since it is large.
#[derive(Default)]
pub(crate) struct Types(OnceCell<Schema>);

/// Shared by the checks of all objects of a manifest.
struct Checks<'t> {
    types: &'t Types,
    /// The manifest, for the line number of a field.
    text: &'t str,
}

/// Decodes a single manifest. Never fails as a whole: invalid documents are in `problems`.
#[must_use]
pub fn decode_manifest(bytes: &[u8]) -> Manifest {
    Types::default().decode(bytes)
}

impl Types {
    /// As [`decode_manifest`].
    pub(crate) fn decode(&self, bytes: &[u8]) -> Manifest {
        let mut manifest = Manifest::default();
        let read = readable_text(bytes).and_then(|text| {
            let checks = Checks { types: self, text };
            if manifest.add_json(&checks, text)? { Ok(()) } else { manifest.add_yaml(&checks, text) }
        });
        if let Err(message) = read {
            manifest.problem(String::new(), None, message);
        }
        manifest
    }
}

/// The text of the manifest, or an error message.
fn readable_text(bytes: &[u8]) -> Result<&str, String> {
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(format!(
            "the manifest is {} bytes, more than the limit of {MAX_MANIFEST_BYTES}; split it into several",
            bytes.len()
        ));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err("the manifest is UTF-16; save it as UTF-8".to_owned());
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if let Some(offset) = bytes.iter().position(|byte| *byte == 0) {
        return Err(format!("the manifest is binary data, not YAML or JSON (NUL byte at offset {offset})"));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let offset = error.valid_up_to();
        let line = bytes[..offset].split(|byte| *byte == b'\n').count();
        format!(
            "the manifest is not UTF-8 text: byte {:#04x} at offset {offset} (line {line}); save it as UTF-8",
            bytes.get(offset).copied().unwrap_or_default()
        )
    })
}

impl Manifest {
    fn add_yaml(&mut self, checks: &Checks<'_>, text: &str) -> Result<(), String> {
        let mut documents = yaml_documents(text).peekable();
        let Some(first) = documents.next() else {
            let message =
                "the manifest has only comments or empty documents; write a Pod into it, or remove it";
            return Err(message.to_owned());
        };
        let alone = documents.peek().is_none();
        for document in std::iter::once(first).chain(documents) {
            let place = if alone { String::new() } else { format!("document {}", document.number) };
            for message in document.warnings {
                self.warning(place.clone(), None, message);
            }
            match document.value {
                Ok(value) => self.add_document(checks, Raw { place, value }),
                Err(error) => self.problem(place, None, error.to_string()),
            }
        }
        Ok(())
    }

    /// False when the text does not look like JSON. Flow style YAML begins with a brace, too: text that is
    /// not valid JSON is then parsed as YAML.
    fn add_json(&mut self, checks: &Checks<'_>, text: &str) -> Result<bool, String> {
        if !text.trim_start().starts_with(['{', '[']) {
            return Ok(false);
        }
        let values = match crate::codec::json::parse(text) {
            Ok(values) => values,
            Err(error) => {
                self.add_yaml(checks, text)?;
                // Invalid as both: it was most likely meant as JSON, whose parser gives the better message.
                if let (true, Some(problem)) =
                    (self.pods.is_empty() && self.objects.is_empty(), self.problems.first_mut())
                {
                    problem.message = format!("{} (read as JSON: {error})", problem.message);
                }
                return Ok(true);
            }
        };
        let alone = values.len() == 1;
        for (position, parsed) in values.into_iter().enumerate() {
            if parsed.value.is_array() {
                let message =
                    "the manifest is a bare list; write an object of kind List with these as its items";
                return Err(message.to_owned());
            }
            let place = if alone { String::new() } else { format!("document {}", position + 1) };
            for field in parsed.duplicates {
                let message = format!("duplicate field {field:?}, the last one is used");
                self.warning(place.clone(), None, message);
            }
            self.add_document(checks, Raw { place, value: parsed.value });
        }
        Ok(true)
    }

    fn problem(&mut self, place: String, name: Option<String>, message: String) {
        if self.problems.len() < MAX_NOTES {
            self.problems.push(ManifestNote { place, name, message });
        }
    }

    fn warning(&mut self, place: String, name: Option<String>, message: String) {
        if self.warnings.len() < MAX_NOTES {
            self.warnings.push(ManifestNote { place, name, message });
        }
    }

    /// Dispatches one document by its kind.
    fn add_document(&mut self, checks: &Checks<'_>, raw: Raw) {
        let kind = match object_kind(&raw.value) {
            Ok(kind) => kind,
            Err(message) => return self.problem(raw.place, object_name(&raw.value), message),
        };
        match kind {
            DocumentKind::List => self.add_list(checks, raw),
            _ => self.add_object(checks, raw, kind),
        }
    }

    fn add_list(&mut self, checks: &Checks<'_>, mut raw: Raw) {
        let of_pods = raw.value.get("kind").and_then(Value::as_str) == Some("PodList");
        let items = match raw.value.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            None | Some(Value::Null) => Vec::new(),
            Some(_) => return self.problem(raw.place, None, "items: must be a list".to_owned()),
        };
        for (index, mut value) in items.into_iter().enumerate() {
            let place = match &raw.place[..] {
                "" => format!("items[{index}]"),
                outer => format!("{outer}, items[{index}]"),
            };
            if of_pods {
                imply_pod(&mut value);
            }
            match object_kind(&value) {
                Ok(DocumentKind::List) => {
                    self.problem(
                        place,
                        None,
                        "a list inside a list is not supported; put its items into the outer one".to_owned(),
                    );
                }
                Ok(kind) => self.add_object(checks, Raw { place, value }, kind),
                Err(message) => self.problem(place, object_name(&value), message),
            }
        }
    }

    fn add_object(&mut self, checks: &Checks<'_>, raw: Raw, kind: DocumentKind) {
        let name = object_name(&raw.value);
        if self.pods.len() + self.objects.len() >= MAX_OBJECTS {
            let message = format!("more than {MAX_OBJECTS} objects in one manifest; split it into several");
            return self.problem(raw.place, name, message);
        }
        let Raw { place, mut value } = raw;
        let is_secret = matches!(kind, DocumentKind::Local(ObjectKind::Secret));
        let wrong = |words: String| {
            let message = hint::wrong_type(&words);
            if is_secret { hint::without_values(&message) } else { message }
        };
        let (version, name_of_kind) = match kind {
            DocumentKind::Local(kind) => (kind.api_version(), kind.as_str()),
            DocumentKind::Pod | DocumentKind::List => ("v1".to_owned(), "Pod"),
        };
        let schema = checks.types.0.get_or_init(Schema::load);
        let mut unknown = Vec::new();
        if let Some(of) = schema.of_kind(&version, name_of_kind) {
            let findings = check(schema, of, &mut value);
            if let Some(misfit) = findings.misfits.first() {
                let line = hint::line_of(checks.text, &misfit.path);
                let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
                return self.problem(place, name, format!("{line}{}", wrong(misfit.to_string())));
            }
            unknown = findings.unknown;
        }
        let decoded = match kind {
            DocumentKind::Local(kind) => decode_object(kind, value).map(|(object, unknown)| {
                self.objects.push(ManifestObject { kind, object, place: place.clone() });
                unknown
            }),
            DocumentKind::Pod | DocumentKind::List => decode::<Pod>(value).map(|decoded| {
                self.pods.push(ManifestPod { pod: decoded.object, place: place.clone() });
                decoded.unknown_fields
            }),
        };
        match decoded {
            Ok(more) => {
                unknown.extend(more.into_iter().map(|path| Unknown { path, meant: None }));
                for field in unknown {
                    self.warning(place.clone(), name.clone(), hint::unknown_field(&field));
                }
            }
            Err(error) => self.problem(place, name, wrong(error.to_string())),
        }
    }
}

/// The kind of a document, as far as it is handled.
#[derive(Clone, Copy)]
enum DocumentKind {
    Pod,
    List,
    Local(ObjectKind),
}

/// Items of a `PodList` may omit `apiVersion` and `kind`.
fn imply_pod(item: &mut Value) {
    if let Value::Object(members) = item {
        members.entry("apiVersion").or_insert_with(|| Value::from("v1"));
        members.entry("kind").or_insert_with(|| Value::from("Pod"));
    }
}

fn object_name(value: &Value) -> Option<String> {
    value.get("metadata")?.get("name")?.as_str().map(str::to_owned)
}

fn object_kind(value: &Value) -> Result<DocumentKind, String> {
    const KINDS: &str =
        "only Pod, PodList, List and Kubernetes' own kinds that docs/manifests.md lists are supported";
    let Value::Object(members) = value else {
        return Err(format!(
            "expected an object, found {}; a manifest is a mapping with apiVersion, kind, metadata and spec",
            type_name(value)
        ));
    };
    let text = |field: &str| match members.get(field) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => Err(format!("{field}: must be a string, not {}", type_name(other))),
    };
    let (version, kind) = (text("apiVersion")?, text("kind")?);
    if kind.is_empty() {
        return Err("kind is missing; write kind: Pod".to_owned());
    }
    // A kind of that name in another group, such as a Service of Knative, is another kind.
    let group = version.rsplit_once('/').map_or("", |(group, _)| group);
    let is_foreign = |known: &ObjectKind| group.contains('.') && known.group() != group;
    let local = ObjectKind::from_name(kind).filter(|kind| kind.is_in_manifests() && !is_foreign(kind));
    let (known, wanted) = match (kind, local) {
        ("Pod", _) => (DocumentKind::Pod, "v1".to_owned()),
        ("PodList" | "List", _) => (DocumentKind::List, "v1".to_owned()),
        (_, Some(kind)) => (DocumentKind::Local(kind), kind.api_version()),
        _ => return Err(format!("kind {kind:?} of apiVersion {version:?} is not supported: {KINDS}")),
    };
    match version {
        version if version == wanted => Ok(known),
        "" => Err(format!("apiVersion is missing; write apiVersion: {wanted} for kind {kind}")),
        _ => Err(format!("apiVersion {version:?} does not have kind {kind}; write apiVersion: {wanted}")),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

#[cfg(test)]
mod tests;
