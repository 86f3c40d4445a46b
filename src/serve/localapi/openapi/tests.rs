//! The documents: complete, without dangling references, and the same in both forms of version 2.

use std::collections::BTreeMap;

use super::*;

fn answer(path: &str, binary: bool) -> Option<OpenApiDocument> {
    super::answer(&Described { catalog: &Catalog::default(), schemas: &[] }, path, binary)
}

fn names_hash(query: &str) -> bool {
    super::names_hash(&Described { catalog: &Catalog::default(), schemas: &[] }, query)
}

fn bytes(path: &str, binary: bool) -> Vec<u8> {
    let Some(OpenApiDocument::Document(document)) = answer(path, binary) else {
        panic!("no document at {path}")
    };
    read(*document)
}

fn read(mut document: Document) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(piece) = document.next_piece() {
        assert!(piece.len() < 2 * PIECE, "a piece of {} bytes", piece.len());
        whole.extend(piece);
    }
    whole
}

fn document(path: &str) -> Value {
    serde_json::from_slice(&bytes(path, false)).expect("JSON")
}

fn index() -> Value {
    let Some(OpenApiDocument::Index(index)) = answer("v3", false) else { panic!("no index") };
    index
}

fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str));
            members.values().for_each(|member| references(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn clients_learn_that_a_patch_may_be_validated_here() {
    let index = index();
    assert!(index["paths"]["apis/metrics.k8s.io/v1beta1"].is_object());
    let core = document("v3/api/v1");
    let patch = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|found| found["name"] == "fieldValidation"));
    assert!(patch["requestBody"]["content"]["application/strategic-merge-patch+json"].is_object());
    assert!(core["paths"]["/api/v1/nodes/{name}/status"].get("patch").is_none());
    assert!(answer("v3/apis/apps/v2", false).is_none());
    assert!(answer("v4", false).is_none());
}

#[test]
fn openapi_references_resolve_and_every_resource_has_its_paths() {
    let index = index();
    let groups = index["paths"].as_object().unwrap();
    let mut documents: Vec<(String, Value)> =
        groups.keys().map(|group| (group.clone(), document(&format!("v3/{group}")))).collect();
    documents.push(("v2".to_owned(), document("v2")));
    for (name, document) in &documents {
        let mut found = Vec::new();
        references(document, &mut found);
        assert!(found.len() > 10, "{name}: {found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{name}: {reference}");
        }
    }
    let (_, v2) = documents.last().unwrap();
    for resource in Catalog::default().all() {
        let named = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let root = root(resource.group, resource.version);
        let many = format!("/{root}{named}/{}", resource.plural);
        let one = format!("{many}/{{name}}");
        let (_, v3) = documents.iter().find(|(name, _)| *name == root).unwrap();
        for document in [v3, v2] {
            for (verb, path, method) in [
                (Verb::List, &many, "get"),
                (Verb::Create, &many, "post"),
                (Verb::DeleteCollection, &many, "delete"),
                (Verb::Get, &one, "get"),
                (Verb::Update, &one, "put"),
                (Verb::Patch, &one, "patch"),
                (Verb::Delete, &one, "delete"),
            ] {
                let is_there = document["paths"][path.as_str()].get(method).is_some();
                assert_eq!(is_there, resource.verbs.contains(&verb), "{method} {path}");
            }
            for part in resource.subresources {
                assert!(document["paths"][format!("{one}/{}", part.name)].is_object(), "{}", part.name);
            }
        }
    }
}

#[test]
fn fields_say_what_clients_merge_them_by() {
    let v3 = document("v3/api/v1");
    let schemas = &v3["components"]["schemas"];
    let spec = &schemas["io.k8s.api.core.v1.PodSpec"];
    assert_eq!(spec["required"], json!(["containers"]));
    let volumes = &spec["properties"]["volumes"];
    assert_eq!(volumes["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
    assert_eq!(volumes["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(volumes["items"], json!({"$ref": "#/components/schemas/io.k8s.api.core.v1.Volume"}));
    let ports = &schemas["io.k8s.api.core.v1.Container"]["properties"]["ports"];
    assert_eq!(ports["x-kubernetes-patch-merge-key"], "containerPort");
    assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["containerPort", "protocol"]));
    let protocol = &schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"];
    assert_eq!((&protocol["default"], &protocol["enum"]), (&json!("TCP"), &json!(["SCTP", "TCP", "UDP"])));
    assert_eq!(
        spec["properties"]["affinity"]["allOf"],
        json!([{"$ref": "#/components/schemas/io.k8s.api.core.v1.Affinity"}])
    );
    let quantity = "io.k8s.apimachinery.pkg.api.resource.Quantity";
    assert_eq!(schemas[quantity]["oneOf"], json!([{"type": "string"}, {"type": "number"}]));
    let v2 = document("v2");
    assert_eq!(v2["definitions"][quantity]["type"], "string");
    let port = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
    assert_eq!(v2["definitions"][port]["format"], "int-or-string");
    assert_eq!(
        v2["definitions"]["io.k8s.api.core.v1.PodList"]["x-kubernetes-group-version-kind"],
        json!([{"group": "", "version": "v1", "kind": "PodList"}])
    );
    assert_eq!(
        v2["definitions"]["io.k8s.api.core.v1.Secret"]["properties"]["data"],
        json!({"type": "object", "additionalProperties": {"type": "string", "format": "byte"},
            "description": "Secret data by key, base64-encoded."})
    );
}

#[test]
fn document_is_cacheable_only_when_its_hash_is_requested() {
    let index = index();
    let url = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap();
    let (path, query) = url.split_once('?').unwrap();
    assert_eq!(path, "/openapi/v3/api/v1");
    assert!(names_hash(query) && names_hash(&format!("{query}&timeout=32s")));
    assert!(!names_hash("") && !names_hash("hash=") && !names_hash("hash=0.0.1-12345678"));
}

#[test]
fn protobuf_openapi_is_served_only_when_preferred() {
    for (accept, binary) in [
        ("application/com.github.proto-openapi.spec.v2@v1.0+protobuf", true),
        ("application/com.github.proto-openapi.spec.v2.v1.0+protobuf", true),
        ("application/com.github.proto-openapi.spec.v2@v1.0+protobuf, application/json", true),
        ("application/json, application/com.github.proto-openapi.spec.v2@v1.0+protobuf", false),
        ("application/com.github.proto-openapi.spec.v3@v1.0+protobuf", false),
        ("*/*", false),
        ("", false),
    ] {
        assert_eq!(wants_binary(accept), binary, "{accept}");
    }
    let newer = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    assert!(
        ["", "*/*", "application/json;q=0.9", &format!("{newer}, application/json")]
            .into_iter()
            .all(takes_json)
    );
    assert!(![newer, "application/jsonl", "text/html"].into_iter().any(takes_json));
}

/// A message's fields by number. Unknown numbers remain in the map, so that the test notices them.
type Fields = BTreeMap<u8, Vec<Vec<u8>>>;

fn fields(mut bytes: &[u8]) -> Fields {
    fn varint(bytes: &mut &[u8]) -> usize {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let mut fields = Fields::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let content = match key & 7 {
            0 => vec![u8::try_from(varint(&mut bytes)).unwrap()],
            2 => {
                let length = varint(&mut bytes);
                let (content, rest) = bytes.split_at(length);
                bytes = rest;
                content.to_vec()
            }
            wire => panic!("wire type {wire}"),
        };
        fields.entry(u8::try_from(key >> 3).unwrap()).or_default().push(content);
    }
    fields
}

fn take(fields: &mut Fields, number: u8) -> Option<Vec<u8>> {
    let mut found = fields.remove(&number)?;
    assert_eq!(found.len(), 1, "field {number}");
    found.pop()
}

fn text(bytes: Vec<u8>) -> Value {
    Value::String(String::from_utf8(bytes).unwrap())
}

fn only(bytes: &[u8], number: u8) -> Vec<u8> {
    let mut fields = fields(bytes);
    let content = take(&mut fields, number).unwrap();
    assert!(fields.is_empty(), "{fields:?}");
    content
}

fn yaml(bytes: &[u8]) -> Value {
    serde_json::from_slice(&only(bytes, 2)).unwrap()
}

fn named(bytes: &[u8], read: fn(&[u8]) -> Value) -> (String, Value) {
    let mut fields = fields(bytes);
    let name = String::from_utf8(take(&mut fields, 1).unwrap()).unwrap();
    (name, read(&take(&mut fields, 2).unwrap()))
}

fn map(bytes: &[u8], number: u8, read: fn(&[u8]) -> Value) -> Value {
    let entries = fields(bytes).remove(&number).unwrap_or_default();
    Value::Object(entries.iter().map(|entry| named(entry, read)).collect())
}

/// The remaining fields must be extensions.
fn extensions(object: &mut Value, mut fields: Fields, number: u8) {
    for entry in fields.remove(&number).unwrap_or_default() {
        let (name, value) = named(&entry, yaml);
        object[name] = value;
    }
    assert!(fields.is_empty(), "{fields:?}");
}

fn read_schema(bytes: &[u8]) -> Value {
    let mut fields = fields(bytes);
    let mut schema = json!({});
    for (number, name) in [(1, "$ref"), (2, "format"), (4, "description")] {
        if let Some(content) = take(&mut fields, number) {
            schema[name] = text(content);
        }
    }
    if let Some(default) = take(&mut fields, 5) {
        schema["default"] = yaml(&default);
    }
    if let Some(required) = fields.remove(&19) {
        schema["required"] = required.into_iter().map(text).collect();
    }
    if let Some(words) = fields.remove(&20) {
        schema["enum"] = words.iter().map(|word| yaml(word)).collect();
    }
    for (number, name) in [(21, "additionalProperties"), (23, "items")] {
        if let Some(content) = take(&mut fields, number) {
            schema[name] = read_schema(&only(&content, 1));
        }
    }
    if let Some(content) = take(&mut fields, 22) {
        schema["type"] = text(only(&content, 1));
    }
    if let Some(content) = take(&mut fields, 25) {
        schema["properties"] = map(&content, 1, read_schema);
    }
    extensions(&mut schema, fields, 31);
    schema
}

fn read_parameter(bytes: &[u8]) -> Value {
    let mut kinds = fields(&only(bytes, 1));
    let mut parameter = json!({});
    let (numbers, content): (&[(u8, &str)], Vec<u8>) = match (take(&mut kinds, 1), take(&mut kinds, 2)) {
        (Some(body), None) => (&[(2, "name"), (3, "in")], body),
        (None, Some(other)) => {
            let mut places = fields(&other);
            match (take(&mut places, 3), take(&mut places, 4)) {
                (Some(query), None) => (&[(2, "in"), (4, "name"), (6, "type")], query),
                (None, Some(path)) => (&[(2, "in"), (4, "name"), (5, "type")], path),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    let mut fields = fields(&content);
    for (number, name) in numbers {
        parameter[*name] = text(take(&mut fields, *number).unwrap());
    }
    if parameter["in"] == "body" {
        parameter["schema"] = read_schema(&take(&mut fields, 5).unwrap());
    }
    if parameter["in"] == "path" {
        parameter["required"] = json!(take(&mut fields, 1).unwrap() == [1]);
    }
    assert!(fields.is_empty(), "{fields:?}");
    parameter
}

fn read_response(bytes: &[u8]) -> Value {
    let mut fields = fields(&only(bytes, 1));
    let mut response = json!({"description": text(take(&mut fields, 1).unwrap())});
    if let Some(schema) = take(&mut fields, 2) {
        response["schema"] = read_schema(&only(&schema, 1));
    }
    response
}

fn read_operation(bytes: &[u8]) -> Value {
    let mut fields = fields(bytes);
    let parameters = fields.remove(&8).unwrap_or_default();
    let responses = map(&take(&mut fields, 9).unwrap(), 1, read_response);
    let mut operation = json!({
        "parameters": parameters.iter().map(|parameter| read_parameter(parameter)).collect::<Vec<_>>(),
        "responses": responses,
    });
    if let Some(kinds) = fields.remove(&7) {
        operation["consumes"] = kinds.into_iter().map(text).collect();
    }
    extensions(&mut operation, fields, 13);
    operation
}

fn read_path(bytes: &[u8]) -> Value {
    let mut fields = fields(bytes);
    let mut item = json!({});
    for (number, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(operation) = take(&mut fields, number) {
            item[method] = read_operation(&operation);
        }
    }
    if let Some(parameters) = fields.remove(&9) {
        item["parameters"] = parameters.iter().map(|parameter| read_parameter(parameter)).collect();
    }
    assert!(fields.is_empty(), "{fields:?}");
    item
}

#[test]
fn the_binary_form_says_what_the_other_says() {
    let mut whole = fields(&bytes("v2", true));
    // A message in parts equals their concatenation.
    let (paths, definitions) = (whole.remove(&8).unwrap().concat(), whole.remove(&9).unwrap().concat());
    let info = fields(&take(&mut whole, 2).unwrap());
    let read = json!({
        "swagger": text(take(&mut whole, 1).unwrap()),
        "info": {"title": text(info[&1].concat()), "version": text(info[&2].concat())},
        "paths": map(&paths, 2, read_path),
        "definitions": map(&definitions, 1, read_schema),
    });
    assert!(whole.is_empty(), "{whole:?}");
    let expected = document("v2");
    for section in ["paths", "definitions"] {
        for (name, value) in expected[section].as_object().unwrap() {
            assert_eq!(read[section][name], *value, "{name}");
        }
    }
    assert_eq!(read, expected);
}

#[test]
fn a_definition_is_described_with_its_metadata_and_its_lists() {
    let body = json!({"spec": {"group": "edge.example", "scope": "Namespaced", "names": {"kind": "Probe", "plural": "probes"},
        "versions": [{"name": "v1", "served": true, "subresources": {"status": {}}}]}});
    let resources = crate::serve::localapi::definitions::resources(&body);
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object"}}});
    let schemas: Vec<(&'static Resource, Value)> =
        resources.iter().map(|one| (*one, schema.clone())).collect();
    let catalog = Catalog::new(true, &resources);
    let described = Described { catalog: &catalog, schemas: &schemas };
    let Some(OpenApiDocument::Document(document)) =
        super::answer(&described, "v3/apis/edge.example/v1", false)
    else {
        panic!("no document")
    };
    let document: Value = serde_json::from_slice(&read(*document)).unwrap();
    let mut found = Vec::new();
    references(&document, &mut found);
    for reference in found {
        assert!(document.pointer(reference.strip_prefix('#').unwrap()).is_some(), "{reference}");
    }
    let types = &document["components"]["schemas"];
    assert_eq!(types["example.edge.v1.Probe"]["x-kubernetes-group-version-kind"][0]["kind"], "Probe");
    assert!(types["example.edge.v1.ProbeList"].is_object());
    let path = &document["paths"]["/apis/edge.example/v1/namespaces/{namespace}/probes/{name}/status"];
    assert!(path["patch"].is_object());
    let none = Described { catalog: &catalog, schemas: &[] };
    assert_ne!(hash(&described), hash(&none));
}
