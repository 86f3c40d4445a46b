//! OpenAPI of what this API serves, versions 2 and 3: what `kubectl explain` shows, and what clients check
//! objects and patches by.
//!
//! Owns the documents' shapes. They are generated on request from the table of resources and the table of
//! types, piece by piece while they are sent; nothing is kept.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use super::gnostic;
use super::resource::{Catalog, Resource, Verb, group_version};
use crate::model::api::schema::{self, Field, Schema, Type, inner};

/// A piece is sent once it has this many bytes.
const PIECE: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Form {
    /// Version 2 as JSON.
    V2,
    /// Version 2 in gnostic's binary form.
    V2Binary,
    /// Version 3 as JSON.
    V3,
}

/// The resource at a path below `/openapi/`.
pub(in crate::serve) enum OpenApiDocument {
    /// The list of version 3's documents.
    Index(Value),
    Document(Box<Document>),
}

/// What the documents describe.
pub(in crate::serve) struct Described<'a> {
    pub catalog: &'a Catalog,
    /// The schemas of resources of definitions.
    pub schemas: &'a [(&'static Resource, Value)],
}

/// A document that is being generated.
pub(in crate::serve) struct Document {
    form: Form,
    schema: Schema,
    paths: Vec<ApiPath>,
    types: Vec<usize>,
    /// Names and definitions of types that CustomResourceDefinitions define; in version 3 only.
    custom: Vec<(String, Value)>,
    at: usize,
    closed: bool,
}

/// A path: its resource, subresource, and whether it names one object.
struct ApiPath {
    resource: &'static Resource,
    part: Option<usize>,
    scope: Scope,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Everywhere,
    Many,
    One,
}

/// Whether the client wants the binary form of version 2, under kubectl's older or newer name of it.
#[must_use]
pub(in crate::serve) fn wants_binary(accept: &str) -> bool {
    let first = accept.split([',', ';']).next().unwrap_or_default().trim();
    first.starts_with("application/com.github.proto-openapi.spec.v2") && first.ends_with("+protobuf")
}

/// Version 3 is available as JSON only: no known client requests another form. Without `Accept` any form will
/// do.
#[must_use]
pub(in crate::serve) fn takes_json(accept: &str) -> bool {
    let takes = |form: &str| {
        matches!(
            form.split(';').next().unwrap_or_default().trim(),
            "" | "*/*" | "application/*" | "application/json"
        )
    };
    accept.split(',').any(takes)
}

/// Answers `/openapi/PATH`; `None` for an unknown path. `binary` applies to version 2.
#[must_use]
pub(in crate::serve) fn answer(
    described: &Described<'_>,
    path: &str,
    binary: bool,
) -> Option<OpenApiDocument> {
    match path {
        "v3" => Some(OpenApiDocument::Index(index(described))),
        "v2" => {
            let form = if binary { Form::V2Binary } else { Form::V2 };
            Some(OpenApiDocument::Document(Box::new(Document::new(described, form, None))))
        }
        _ => {
            let place = path.strip_prefix("v3/")?;
            let mut all = described.catalog.group_versions().into_iter();
            let of = all.find(|(group, version)| place == root(group, version))?;
            Some(OpenApiDocument::Document(Box::new(Document::new(described, Form::V3, Some(of)))))
        }
    }
}

/// `api/v1`, `apis/GROUP/VERSION`.
fn root(group: &str, version: &str) -> String {
    let prefix = if group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", group_version(group, version))
}

/// Changes with the release, with the table of types and with definitions.
fn hash(described: &Described<'_>) -> String {
    let hash = format!("{}-{}", env!("CARGO_PKG_VERSION"), schema::hash());
    if !described.schemas.is_empty() {
        let mut hasher = DefaultHasher::new();
        for (resource, schema) in described.schemas {
            (resource.qualified(), resource.version, schema.to_string()).hash(&mut hasher);
        }
        return format!("{hash}-{:016x}", hasher.finish());
    }
    hash
}

/// Whether the query has the document's hash, so that clients may cache the answer.
#[must_use]
pub(in crate::serve) fn names_hash(described: &Described<'_>, query: &str) -> bool {
    let asked = query.split('&').find_map(|part| part.strip_prefix("hash="));
    asked.is_some_and(|asked| asked == hash(described))
}

fn index(described: &Described<'_>) -> Value {
    let hash = hash(described);
    let entry = |(group, version): (&str, &str)| {
        let root = root(group, version);
        let url = format!("/openapi/v3/{root}?hash={hash}");
        (root, json!({"serverRelativeURL": url}))
    };
    let paths: Map<String, Value> = described.catalog.group_versions().into_iter().map(entry).collect();
    json!({"paths": paths})
}

impl Document {
    fn new(described: &Described<'_>, form: Form, of: Option<(&str, &str)>) -> Self {
        let schema = Schema::load();
        let mut paths = Vec::new();
        let mut roots = Vec::new();
        let is_described = |resource: &&Resource| {
            of.is_none_or(|(group, version)| (resource.group, resource.version) == (group, version))
        };
        for resource in described.catalog.all().filter(is_described) {
            let place = |part, scope| ApiPath { resource, part, scope };
            if resource.namespaced && resource.verbs.contains(&Verb::List) {
                paths.push(place(None, Scope::Everywhere));
            }
            paths.push(place(None, Scope::Many));
            if resource.verbs.iter().any(|verb| acts_on_one(*verb)) {
                paths.push(place(None, Scope::One));
            }
            paths.extend((0..resource.subresources.len()).map(|part| place(Some(part), Scope::One)));
            let kind = schema.of_kind(&resource.api_version(), resource.kind);
            roots.extend(kind);
            roots.extend(kind.and_then(|kind| schema.list_of(kind)));
            let parts = resource.subresources.iter().map(|part| part.kind);
            roots.extend(
                parts.filter_map(|(group, version, kind)| {
                    schema.of_kind(&group_version(group, version), kind)
                }),
            );
        }
        for kind in ["DeleteOptions", "Status", "WatchEvent"] {
            roots.extend(schema.of_kind("v1", kind));
        }
        let schemas = described.schemas.iter().filter(|(resource, _)| of.is_some() && is_described(resource));
        let custom: Vec<_> = schemas.flat_map(|(resource, schema)| custom_types(resource, schema)).collect();
        if !custom.is_empty() {
            roots.extend(
                schema.types().filter(|of| matches!(of.short_name().as_str(), "ObjectMeta" | "ListMeta")),
            );
        }
        let types = match of {
            Some(_) => schema.closure(&roots).into_iter().collect(),
            None => (0..schema.types().count()).collect(),
        };
        Self { form, schema, paths, types, custom, at: 0, closed: false }
    }

    #[must_use]
    pub(in crate::serve) fn content_type(&self) -> &'static str {
        match self.form {
            Form::V2Binary => "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
            _ => "application/json",
        }
    }

    fn head(&self) -> &'static [u8] {
        match self.form {
            Form::V2 => br#"{"swagger":"2.0","info":{"title":"Kubernetes","version":"v1.36.0"},"paths":{"#,
            Form::V2Binary => b"",
            Form::V3 => br#"{"openapi":"3.0.0","info":{"title":"Kubernetes","version":"v1.36.0"},"paths":{"#,
        }
    }

    /// The next piece; `None` at the end.
    pub(in crate::serve) fn next_piece(&mut self) -> Option<Vec<u8>> {
        if self.closed {
            return None;
        }
        let mut piece = Vec::with_capacity(PIECE);
        if self.at == 0 {
            piece.extend(self.head());
            if self.form == Form::V2Binary {
                let info = json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.0"}});
                gnostic::document(&mut piece, &info);
            }
        }
        while piece.len() < PIECE {
            let (first_type, first_custom) = (self.paths.len(), self.paths.len() + self.types.len());
            let all = first_custom + self.custom.len();
            let is_json = self.form != Form::V2Binary;
            if self.at == first_type && is_json {
                let between: &[u8] = match self.form {
                    Form::V3 => br#"},"components":{"schemas":{"#,
                    _ => br#"},"definitions":{"#,
                };
                piece.extend(between);
            }
            if self.at == all {
                let end: &[u8] = match self.form {
                    Form::V2 => b"}}",
                    Form::V2Binary => b"",
                    Form::V3 => b"}}}",
                };
                piece.extend(end);
                self.closed = true;
                break;
            }
            let (section, name, value) = match self.paths.get(self.at) {
                Some(place) => {
                    let (name, value) = self.path(place);
                    ("paths", name, value)
                }
                None if self.at >= first_custom => {
                    let (name, definition) = &mut self.custom[self.at - first_custom];
                    ("definitions", name.clone(), definition.take())
                }
                None => match self.schema.nth(self.types[self.at - first_type]) {
                    Some(of) => ("definitions", of.full_name(), self.definition(of)),
                    None => return None,
                },
            };
            if is_json {
                if self.at != 0 && self.at != first_type {
                    piece.push(b',');
                }
                piece.extend(Value::from(name).to_string().into_bytes());
                piece.push(b':');
                piece.extend(value.to_string().into_bytes());
            } else {
                gnostic::document(&mut piece, &json!({section: {name: value}}));
            }
            self.at += 1;
        }
        Some(piece)
    }

    fn is_v3(&self) -> bool {
        self.form == Form::V3
    }

    fn refer(&self, to: Type<'_>) -> Value {
        let place = if self.is_v3() { "components/schemas" } else { "definitions" };
        json!({"$ref": format!("#/{place}/{}", to.full_name())})
    }

    /// A reference to a type of a definition, or to that of its lists.
    fn custom_reference(&self, of: (&str, &str, &str), is_list: bool) -> Option<Value> {
        let name = format!("{}{}", custom_name(of), if is_list { "List" } else { "" });
        let known = self.custom.iter().find(|(known, _)| *known == name)?;
        Some(json!({"$ref": format!("#/components/schemas/{}", known.0)}))
    }

    fn definition(&self, of: Type<'_>) -> Value {
        let mut definition = match of.scalar() {
            Some(scalar) => self.scalar(scalar),
            None => self.object(of),
        };
        if !of.text.is_empty() {
            definition["description"] = json!(of.text);
        }
        if of.is_atomic() {
            definition["x-kubernetes-map-type"] = json!("atomic");
        }
        if of.is_kind() && !of.group_version.is_empty() {
            let (group, version) = of.group_version.split_once('/').unwrap_or(("", of.group_version));
            definition["x-kubernetes-group-version-kind"] = json!([kind(group, version, &of.short_name())]);
        }
        definition
    }

    /// Several alternatives are for version 3 only.
    fn scalar(&self, scalar: &str) -> Value {
        let (alternatives, format) = scalar.split_once('/').unwrap_or((scalar, ""));
        if alternatives == "any" {
            return json!({});
        }
        let mut types = alternatives.split('|').map(|alternative| json!({"type": alternative}));
        let mut value = match (types.next(), alternatives.contains('|') && self.is_v3()) {
            (Some(first), true) => json!({"oneOf": std::iter::once(first).chain(types).collect::<Vec<_>>()}),
            (first, _) => first.unwrap_or_default(),
        };
        if !format.is_empty() {
            value["format"] = json!(format);
        }
        value
    }

    fn object(&self, of: Type<'_>) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in of.fields() {
            properties.insert(field.name.to_owned(), self.property(of, &field));
            if field.is_required {
                required.push(field.name);
            }
        }
        let mut object = json!({"type": "object", "properties": properties});
        if !required.is_empty() {
            object["required"] = json!(required);
        }
        object
    }

    fn property(&self, of: Type<'_>, field: &Field<'_>) -> Value {
        let mut property = self.value(of, field, field.shape);
        // In version 3, siblings of a reference are ignored.
        if self.is_v3() && property.get("$ref").is_some() && !field.text.is_empty() {
            property = json!({"allOf": [property]});
        }
        let mut put = |name: &str, value: Value| property[name] = value;
        if !field.text.is_empty() {
            put("description", json!(field.text));
        }
        if let Some(default) = field.mark("default") {
            put("default", json!(default));
        }
        for word in ["atomic", "granular"].into_iter().filter(|word| field.has(word)) {
            put("x-kubernetes-map-type", json!(word));
        }
        if !field.shape.starts_with("[]") {
            return property;
        }
        let keys = field.mark("by").or_else(|| field.mark("keys"));
        let merge_key = field.mark("by").or_else(|| field.mark("patch"));
        if let Some(key) = merge_key.and_then(|keys| keys.split(',').next()) {
            put("x-kubernetes-patch-merge-key", json!(key));
        }
        if merge_key.is_some() || field.has("union") {
            let strategy = if field.has("retain") { "merge,retainKeys" } else { "merge" };
            put("x-kubernetes-patch-strategy", json!(strategy));
        }
        let is_set = field.has("set") || field.has("union");
        if let Some(keys) = keys {
            put("x-kubernetes-list-map-keys", keys.split(',').collect());
        }
        let list_type = if keys.is_some() {
            "map"
        } else if is_set {
            "set"
        } else {
            "atomic"
        };
        put("x-kubernetes-list-type", json!(list_type));
        property
    }

    fn value(&self, of: Type<'_>, field: &Field<'_>, shape: &str) -> Value {
        if let Some(item) = shape.strip_prefix("[]") {
            return json!({"type": "array", "items": self.value(of, field, item)});
        }
        if let Some(entry) = shape.strip_prefix("{}") {
            return json!({"type": "object", "additionalProperties": self.value(of, field, entry)});
        }
        let mut value = match shape {
            "bool" => json!({"type": "boolean"}),
            "int32" | "int64" => json!({"type": "integer", "format": shape}),
            "double" => json!({"type": "number", "format": shape}),
            "bytes" => json!({"type": "string", "format": "byte"}),
            name => match self.schema.named(of, inner(name)) {
                Some(named) => return self.refer(named),
                None => json!({"type": "string"}),
            },
        };
        if let Some(words) = field.mark("enum") {
            value["enum"] = words.split(',').collect();
        }
        value
    }

    fn path(&self, place: &ApiPath) -> (String, Value) {
        let resource = place.resource;
        let mut path = format!("/{}", root(resource.group, resource.version));
        let mut parameters = Vec::new();
        if resource.namespaced && place.scope != Scope::Everywhere {
            path += "/namespaces/{namespace}";
            parameters.push(self.parameter("namespace", "path"));
        }
        path = format!("{path}/{}", resource.plural);
        if place.scope == Scope::One {
            path += "/{name}";
            parameters.push(self.parameter("name", "path"));
        }
        let part = place.part.map(|part| &resource.subresources[part]);
        let mut kind = (resource.group, resource.version, resource.kind);
        let mut verbs = resource.verbs;
        if let Some(part) = part {
            path = format!("{path}/{}", part.name);
            verbs = part.verbs;
            kind.2 = part.kind.2;
            if !part.kind.1.is_empty() {
                kind = part.kind;
            }
        }
        let mut item = Map::new();
        for verb in verbs {
            let (method, on_many) = match verb {
                Verb::List => ("get", true),
                Verb::Create => ("post", part.is_none()),
                Verb::DeleteCollection => ("delete", true),
                Verb::Get => ("get", false),
                Verb::Update => ("put", false),
                Verb::Patch => ("patch", false),
                Verb::Delete => ("delete", false),
                Verb::Watch => continue,
            };
            let fits = match place.scope {
                Scope::Everywhere => *verb == Verb::List,
                Scope::Many => on_many,
                Scope::One => !on_many,
            };
            if fits {
                item.insert(method.to_owned(), self.operation(*verb, method, kind));
            }
        }
        if !parameters.is_empty() {
            item.insert("parameters".to_owned(), Value::Array(parameters));
        }
        (path, Value::Object(item))
    }

    fn parameter(&self, name: &str, place: &str) -> Value {
        let kind = match name {
            "limit" | "timeoutSeconds" | "gracePeriodSeconds" => "integer",
            "watch" | "force" | "allowWatchBookmarks" | "sendInitialEvents" => "boolean",
            _ => "string",
        };
        let mut parameter = json!({"name": name, "in": place});
        if place == "path" {
            parameter["required"] = json!(true);
        }
        if self.is_v3() {
            parameter["schema"] = json!({"type": kind});
        } else {
            parameter["type"] = json!(kind);
        }
        parameter
    }

    fn operation(&self, verb: Verb, method: &str, (group, version, name): (&str, &str, &str)) -> Value {
        let words: &[&str] = match verb {
            Verb::Create | Verb::Update => &["dryRun", "fieldManager", "fieldValidation"],
            Verb::Patch => &["dryRun", "fieldManager", "fieldValidation", "force"],
            Verb::Delete | Verb::DeleteCollection => &["dryRun", "gracePeriodSeconds", "propagationPolicy"],
            Verb::List => &LIST_PARAMETERS,
            _ => &[],
        };
        let mut parameters: Vec<Value> = words.iter().map(|name| self.parameter(name, "query")).collect();
        let of_kind = |version: &str, name: &str| self.schema.of_kind(version, name).map(|of| self.refer(of));
        let of = self.schema.of_kind(&group_version(group, version), name);
        let list = of.filter(|_| verb == Verb::List).and_then(|of| self.schema.list_of(of));
        let custom = self.custom_reference((group, version, name), verb == Verb::List);
        let answer = match method {
            "delete" => of_kind("v1", "Status"),
            _ => list.or(of).map(|of| self.refer(of)).or_else(|| custom.clone()),
        };
        let takes = match verb {
            Verb::Create | Verb::Update => of.map(|of| self.refer(of)).or(custom),
            Verb::Delete | Verb::DeleteCollection => of_kind("v1", "DeleteOptions"),
            _ => None,
        };
        let mut operation = json!({});
        if verb == Verb::Patch || takes.is_some() {
            let body = takes.unwrap_or_else(|| json!({"type": "object"}));
            let kinds: &[&str] = if verb == Verb::Patch { &PATCHES } else { &["application/json"] };
            if self.is_v3() {
                let content: Map<String, Value> =
                    kinds.iter().map(|kind| ((*kind).to_owned(), json!({"schema": body}))).collect();
                operation["requestBody"] = json!({"content": content});
            } else {
                operation["consumes"] = json!(kinds);
                parameters.push(json!({"name": "body", "in": "body", "schema": body}));
            }
        }
        let mut response = json!({"description": "OK"});
        if let Some(answer) = answer {
            if self.is_v3() {
                response["content"] = json!({"application/json": {"schema": answer}});
            } else {
                response["schema"] = answer;
            }
        }
        operation["parameters"] = Value::Array(parameters);
        operation["responses"] = json!({"200": response});
        let action = match verb {
            Verb::Create | Verb::Update => method,
            verb => verb.as_str(),
        };
        operation["x-kubernetes-action"] = json!(action);
        operation["x-kubernetes-group-version-kind"] = kind(group, version, name);
        operation
    }
}

/// `io.example.v1.Gauge`: as upstream names types of definitions.
fn custom_name((group, version, kind): (&str, &str, &str)) -> String {
    let parts: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.{kind}", parts.join("."))
}

/// The type of a resource of a definition, and that of its lists.
fn custom_types(resource: &Resource, schema: &Value) -> [(String, Value); 2] {
    let place = |name: &str| format!("#/components/schemas/{name}");
    let meta = |name: &str| json!({"$ref": place(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"))});
    let name = custom_name((resource.group, resource.version, resource.kind));
    let shape = |mut definition: Value, metadata: &str, of: &str| {
        let properties = definition
            .as_object_mut()
            .map(|members| members.entry("properties").or_insert_with(|| json!({})));
        if let Some(properties) = properties {
            properties["apiVersion"] =
                json!({"type": "string", "description": "API group and version of this object."});
            properties["kind"] = json!({"type": "string", "description": "Kind of this object."});
            properties["metadata"] = meta(metadata);
        }
        definition["x-kubernetes-group-version-kind"] = json!([kind(resource.group, resource.version, of)]);
        definition
    };
    let list = json!({"type": "object", "description": "A list of objects.", "required": ["items"],
        "properties": {"items": {"type": "array", "items": {"$ref": place(&name)}}}});
    let of_list = format!("{}List", resource.kind);
    let list = (format!("{name}List"), shape(list, "ListMeta", &of_list));
    [(name, shape(schema.clone(), "ObjectMeta", resource.kind)), list]
}

const LIST_PARAMETERS: [&str; 10] = [
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];

const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

fn acts_on_one(verb: Verb) -> bool {
    matches!(verb, Verb::Get | Verb::Update | Verb::Patch | Verb::Delete)
}

fn kind(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

#[cfg(test)]
mod tests;
