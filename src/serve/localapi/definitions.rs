//! CustomResourceDefinitions: the resources that they add to this API.
//!
//! Owns the reading of a definition. Pure.

use serde_json::{Value, json};

use super::printers::CustomColumn;
use super::resource::{CustomResource, Resource, custom};
use super::text;

/// The resources of a definition, one for each version that is served.
pub(super) fn resources(body: &Value) -> Vec<&'static Resource> {
    let at = |pointer: &str| text(body, pointer).to_owned();
    let list = |name: &str| {
        let items = body.pointer("/spec/names").and_then(|names| names.get(name)).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let versions = body.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let served = versions.filter(|version| version["served"] == true);
    let resource = |version: &Value| {
        custom(&CustomResource {
            group: at("/spec/group"),
            version: text(version, "/name").to_owned(),
            plural: at("/spec/names/plural"),
            singular: at("/spec/names/singular"),
            kind: at("/spec/names/kind"),
            short_names: list("shortNames"),
            categories: list("categories"),
            namespaced: text(body, "/spec/scope") == "Namespaced",
            has_status: version.pointer("/subresources/status").is_some(),
            has_scale: version.pointer("/subresources/scale").is_some(),
        })
    };
    served.filter_map(resource).collect()
}

/// The members of a version.
pub(super) fn version(mut body: Value, name: &str) -> Option<Value> {
    let versions = body.pointer_mut("/spec/versions")?.as_array_mut()?;
    versions.iter_mut().find(|version| version["name"] == name).map(Value::take)
}

/// The schema of a version's objects; of one without a schema any object.
pub(super) fn schema(version: &Value) -> Value {
    let schema = version.pointer("/schema/openAPIV3Schema").cloned();
    schema.unwrap_or_else(|| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
}

/// The columns that a version prints besides the name.
pub(super) fn columns(version: &Value) -> Vec<CustomColumn> {
    let Some(columns) = version.get("additionalPrinterColumns").and_then(Value::as_array) else {
        return vec![CustomColumn {
            name: "Age".to_owned(),
            kind: "date".to_owned(),
            path: ".metadata.creationTimestamp".to_owned(),
            ..CustomColumn::default()
        }];
    };
    let column = |column: &Value| {
        let at = |pointer: &str| text(column, pointer).to_owned();
        CustomColumn {
            name: at("/name"),
            kind: at("/type"),
            format: at("/format"),
            about: at("/description"),
            path: at("/jsonPath"),
            priority: column["priority"].as_i64().unwrap_or_default(),
        }
    };
    columns.iter().map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_made_of_each_version_that_is_served() {
        let body = json!({"spec": {
            "group": "edge.example", "scope": "Cluster",
            "names": {"kind": "Meter", "plural": "meters", "singular": "meter", "shortNames": ["mt"], "categories": ["all"]},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                    "additionalPrinterColumns": [{"name": "Value", "type": "integer", "jsonPath": ".spec.value", "priority": 1}]},
                {"name": "v1beta1", "served": true, "storage": false},
                {"name": "v1alpha1", "served": false, "storage": false},
            ],
        }});
        let found: Vec<String> = resources(&body).iter().map(|found| found.version.to_owned()).collect();
        assert_eq!(found, ["v1", "v1beta1"]);
        let first = resources(&body)[0];
        assert_eq!((first.short_names, first.namespaced, first.subresources.len()), (&["mt"][..], false, 1));
        let newest = version(body.clone(), "v1").unwrap();
        assert_eq!(schema(&newest), json!({"type": "object"}));
        let columns_of =
            |version: &Value| columns(version).into_iter().map(|column| column.path).collect::<Vec<_>>();
        assert_eq!(columns_of(&newest), [".spec.value"]);
        assert_eq!(columns_of(&version(body.clone(), "v1beta1").unwrap()), [".metadata.creationTimestamp"]);
        assert_eq!(version(body, "v2"), None);
    }
}
