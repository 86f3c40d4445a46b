//! The rules of CustomResourceDefinitions (upstream: `ValidateCustomResourceDefinition`), and their status.
//!
//! Owns them. Pure.

use serde_json::{Value, json};

use super::KindRules;
use crate::model::field_error::{Errors, Path};
use crate::model::names::{dns_label, dns_subdomain};
use crate::model::objects::{LocalObject, ObjectKind};

pub(super) const RULES: KindRules = KindRules { defaults, validate, validate_update };

fn text<'a>(body: &'a Value, pointer: &str) -> &'a str {
    body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn versions(body: &Value) -> impl Iterator<Item = &Value> {
    body.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten()
}

/// Names that follow from others; and the status, since names are accepted at once.
fn defaults(body: &mut Value) {
    let kind = text(body, "/spec/names/kind").to_owned();
    if let Some(spec) = body.get_mut("spec").and_then(Value::as_object_mut) {
        spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
        if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
            names.entry("singular").or_insert_with(|| json!(kind.to_lowercase()));
            names.entry("listKind").or_insert_with(|| json!(format!("{kind}List")));
        }
    }
    let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "reason": reason, "message": message});
    let storage =
        versions(body).find(|version| version["storage"] == true).map(|version| version["name"].clone());
    body["status"] = json!({
        "acceptedNames": body["spec"]["names"],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "storedVersions": storage.into_iter().collect::<Vec<_>>(),
    });
}

/// The kind that a definition defines.
pub(super) fn kind(body: &Value) -> Option<ObjectKind> {
    let at = |pointer: &str| text(body, pointer);
    let is_namespaced = at("/spec/scope") == "Namespaced";
    ObjectKind::custom(at("/spec/group"), at("/spec/names/kind"), at("/spec/names/plural"), is_namespaced)
}

/// What does not happen with a definition.
pub(super) fn unacted(body: &Value) -> Option<&'static str> {
    (text(body, "/spec/conversion/strategy") == "Webhook").then_some(
        "spec.conversion: this node calls no conversion webhooks: objects are served in every version with the fields they were written with",
    )
}

fn validate(object: &LocalObject, body: &Value, errors: &mut Errors) {
    let spec = Path::Root("spec");
    let (group, plural) = (text(body, "/spec/group"), text(body, "/spec/names/plural"));
    errors.name(&spec.child("group"), group, dns_subdomain);
    if !group.is_empty() && !group.contains('.') {
        errors.invalid(&spec.child("group"), group, "should be a domain with at least one dot");
    }
    let names = spec.child("names");
    errors.name(&names.child("plural"), plural, dns_label);
    let kind = text(body, "/spec/names/kind");
    errors.name(&names.child("kind"), kind, |kind| dns_label(&kind.to_lowercase()));
    let wanted = format!("{plural}.{group}");
    if object.key.name != wanted {
        let why = "must be spec.names.plural+\".\"+spec.group";
        errors.invalid(&Path::Root("metadata").child("name"), &object.key.name, why);
    }
    errors.one_of(&spec.child("scope"), text(body, "/spec/scope"), &["Cluster", "Namespaced"]);
    let at = spec.child("versions");
    let stored = versions(body).filter(|version| version["storage"] == true).count();
    if stored != 1 {
        errors.invalid_number(&at, json!([]), "must have exactly one version marked as storage version");
    }
    let mut known: Vec<&str> = Vec::new();
    for (index, version) in versions(body).enumerate() {
        let at = at.index(index);
        let name = text(version, "/name");
        errors.name(&at.child("name"), name, dns_label);
        if known.contains(&name) {
            errors.duplicate(&at.child("name"), name);
        }
        known.push(name);
        let schema = at.child("schema");
        if version.pointer("/schema/openAPIV3Schema").is_none() {
            errors.required(&schema.child("openAPIV3Schema"), "schemas are required");
        } else if text(version, "/schema/openAPIV3Schema/type") != "object" {
            let schema = schema.child("openAPIV3Schema");
            errors.invalid(
                &schema.child("type"),
                text(version, "/schema/openAPIV3Schema/type"),
                "must be object at the root",
            );
        }
    }
    if body.pointer("/spec/preserveUnknownFields") == Some(&json!(true)) {
        let why = "must be false or omitted: use x-kubernetes-preserve-unknown-fields: true in the schema";
        errors.invalid_number(&spec.child("preserveUnknownFields"), true, why);
    }
}

fn validate_update(old: &Value, new: &Value, errors: &mut Errors) {
    for (pointer, path) in [("/spec/group", "group"), ("/spec/scope", "scope")] {
        if text(old, pointer) != text(new, pointer) {
            errors.invalid(&Path::Root("spec").child(path), text(new, pointer), "field is immutable");
        }
    }
    let spec = Path::Root("spec");
    let names = spec.child("names");
    for field in ["plural", "kind"] {
        let pointer = format!("/spec/names/{field}");
        if text(old, &pointer) != text(new, &pointer) {
            errors.invalid(&names.child(field), text(new, &pointer), "field is immutable");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::objects::wire;

    fn errors_of(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut body = json!({"spec": {"group": "edge.example", "scope": "Namespaced", "names": {"kind": "Gauge", "plural": "gauges"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        change(&mut body);
        defaults(&mut body);
        let mut whole = body.clone();
        whole["metadata"] = json!({"name": "gauges.edge.example"});
        let object = wire::from_value(ObjectKind::CustomResourceDefinition, whole).unwrap();
        let mut errors = Errors::default();
        validate(&object, &body, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_row_per_rule() {
        for (place, value, expected) in [
            ("/spec/scope", json!("Namespaced"), vec![]),
            (
                "/spec/scope",
                json!("Node"),
                vec![
                    "spec.scope: Unsupported value: \"Node\": supported values: \"Cluster\", \"Namespaced\"",
                ],
            ),
            (
                "/spec/names/plural",
                json!("meters"),
                vec![
                    "metadata.name: Invalid value: \"gauges.edge.example\": must be spec.names.plural+\".\"+spec.group",
                ],
            ),
            (
                "/spec/versions/0/storage",
                json!(false),
                vec![
                    "spec.versions: Invalid value: []: must have exactly one version marked as storage version",
                ],
            ),
            (
                "/spec/versions/0/schema",
                json!({}),
                vec!["spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required"],
            ),
        ] {
            let errors = errors_of(|body| *body.pointer_mut(place).unwrap() = value.clone());
            assert_eq!(errors, expected, "{place}");
        }
        let webhook = json!({"spec": {"conversion": {"strategy": "Webhook"}}});
        assert!(unacted(&webhook).is_some() && unacted(&json!({})).is_none());
    }

    #[test]
    fn a_definition_is_established_at_once() {
        let mut body = json!({"spec": {"names": {"kind": "Gauge", "plural": "gauges"}, "versions": [{"name": "v1", "storage": true}]}});
        defaults(&mut body);
        assert_eq!(
            (&body["spec"]["names"]["singular"], &body["spec"]["names"]["listKind"]),
            (&json!("gauge"), &json!("GaugeList"))
        );
        assert_eq!(body["status"]["conditions"][1]["type"], "Established");
        assert_eq!(body["status"]["storedVersions"], json!(["v1"]));
    }

    #[test]
    fn names_and_scope_are_immutable() {
        let old =
            json!({"spec": {"group": "a.b", "scope": "Cluster", "names": {"plural": "x", "kind": "X"}}});
        let mut new = old.clone();
        new["spec"]["scope"] = json!("Namespaced");
        new["spec"]["names"]["kind"] = json!("Y");
        let mut errors = Errors::default();
        validate_update(&old, &new, &mut errors);
        let paths: Vec<&str> = errors.0.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(paths, ["spec.scope", "spec.names.kind"]);
    }
}
