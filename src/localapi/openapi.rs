//! As much of OpenAPI as kubectl needs to know what a server understands: paths and their parameters, without the objects'
//! fields.
//!
//! Owns the document. Pure: everything is read from the table of resources.

use serde_json::{Map, Value, json};

use super::resource::{RESOURCES, Resource, Verb, group_version, groups};

/// Answers `/openapi/PATH`, if there is something.
#[must_use]
pub fn document(path: &str) -> Option<Value> {
    if path == "v3" {
        return Some(index());
    }
    let place = path.strip_prefix("v3/")?;
    let all = std::iter::once(("", "v1")).chain(groups());
    let (group, version) = all.into_iter().find(|(group, version)| place == root(group, version))?;
    Some(of_group(group, version))
}

/// `api/v1`, `apis/GROUP/VERSION`.
fn root(group: &str, version: &str) -> String {
    let prefix = if group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", group_version(group, version))
}

fn index() -> Value {
    let entry = |(group, version): (&str, &str)| {
        let root = root(group, version);
        let url = format!("/openapi/v3/{root}?hash={}", env!("CARGO_PKG_VERSION"));
        (root, json!({"serverRelativeURL": url}))
    };
    let paths: Map<String, Value> = std::iter::once(("", "v1")).chain(groups()).map(entry).collect();
    json!({"paths": paths})
}

fn of_group(group: &str, version: &str) -> Value {
    let mut paths = Map::new();
    for resource in RESOURCES.iter().filter(|resource| resource.group == group) {
        let place = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let many = format!("/{}{place}/{}", root(group, version), resource.plural);
        let one = format!("{many}/{{name}}");
        let operations = |table: &[(&str, Verb)]| -> Map<String, Value> {
            let has = |(_, verb): &&(&str, Verb)| resource.verbs.contains(verb);
            table
                .iter()
                .filter(has)
                .map(|(method, verb)| ((*method).to_owned(), operation(resource, *verb)))
                .collect()
        };
        let on_many = [("get", Verb::List), ("post", Verb::Create), ("delete", Verb::DeleteCollection)];
        let on_one =
            [("get", Verb::Get), ("put", Verb::Update), ("patch", Verb::Patch), ("delete", Verb::Delete)];
        paths.insert(many, Value::Object(operations(&on_many)));
        paths.insert(one, Value::Object(operations(&on_one)));
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": paths,
        "components": {"schemas": {}},
    })
}

fn operation(resource: &Resource, verb: Verb) -> Value {
    let words: &[&str] = match verb {
        Verb::Create | Verb::Update => &["dryRun", "fieldManager", "fieldValidation"],
        Verb::Patch => &["dryRun", "fieldManager", "fieldValidation", "force"],
        Verb::Delete | Verb::DeleteCollection => &["dryRun", "gracePeriodSeconds", "propagationPolicy"],
        _ => &[],
    };
    let parameters: Vec<Value> =
        words.iter().map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}})).collect();
    json!({
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": verb.as_str(),
        "x-kubernetes-group-version-kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_learn_that_a_patch_may_be_validated_here() {
        let index = document("v3").unwrap();
        assert!(index["paths"]["apis/metrics.k8s.io/v1beta1"].is_object());
        let core = document("v3/api/v1").unwrap();
        let patch = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
        assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
        assert!(
            patch["parameters"].as_array().unwrap().iter().any(|found| found["name"] == "fieldValidation")
        );
        assert!(core["paths"]["/api/v1/nodes/{name}"].get("patch").is_none());
        assert_eq!(document("v3/apis/apps/v1"), None);
        assert_eq!(document("v2"), None);
    }
}
