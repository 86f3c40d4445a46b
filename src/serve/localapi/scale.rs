//! The subresource `scale`: a few fields of an object in the form of `autoscaling/v1`.
//!
//! Owns where they are. Pure.

use crate::model::ordered::Sortable as _;
use serde_json::{Value, json};

use super::text;

/// The places of the fields of one kind, as JSON pointers.
pub(super) struct ScalePlaces {
    pub replicas: String,
    status_replicas: String,
    /// Of a selector in text; empty when the object has a label selector at `spec.selector`, or none.
    selector: String,
}

impl ScalePlaces {
    /// Of a resource; `definition` is its version in a CustomResourceDefinition.
    pub(super) fn of(definition: Option<&Value>) -> Self {
        let Some(definition) = definition else {
            let [replicas, status_replicas] = ["/spec/replicas", "/status/replicas"].map(str::to_owned);
            return Self { replicas, status_replicas, selector: String::new() };
        };
        let at = |name: &str| pointer(text(definition, &format!("/subresources/scale/{name}")));
        Self {
            replicas: at("specReplicasPath"),
            status_replicas: at("statusReplicasPath"),
            selector: match at("labelSelectorPath") {
                none if none.is_empty() => "/none".to_owned(),
                place => place,
            },
        }
    }

    /// The scale of an object.
    pub(super) fn show(&self, object: &Value) -> Value {
        let count = |place: &str| object.pointer(place).and_then(Value::as_i64).unwrap_or_default();
        let mut metadata = json!({});
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = object.pointer("/metadata").and_then(|metadata| metadata.get(field)) {
                metadata[field] = value.clone();
            }
        }
        let selector = match self.selector.as_str() {
            "" => query(&object["spec"]["selector"]),
            place => text(object, place).to_owned(),
        };
        let mut scale = json!({
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": metadata,
            "spec": {"replicas": count(&self.replicas)},
            "status": {"replicas": count(&self.status_replicas)},
        });
        if !selector.is_empty() {
            scale["status"]["selector"] = json!(selector);
        }
        scale
    }
}

/// `.spec.replicas` as a JSON pointer.
fn pointer(path: &str) -> String {
    path.replace('.', "/")
}

/// A label selector as a query.
pub(super) fn query(selector: &Value) -> String {
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let mut parts: Vec<String> =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    for requirement in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let key = text(requirement, "/key");
        let values = requirement["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut values: Vec<&str> = values.collect();
        values.order_by(Ord::cmp);
        let values = values.join(",");
        parts.push(match text(requirement, "/operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_shows_the_fields_of_its_object() {
        let object = json!({"metadata": {"name": "web", "namespace": "a", "uid": "u", "labels": {}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]}},
            "status": {"replicas": 2}});
        assert_eq!(
            ScalePlaces::of(None).show(&object),
            json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web", "namespace": "a", "uid": "u"},
                "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "app=web,k"}})
        );
        let definition = json!({"subresources": {"scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size",
            "labelSelectorPath": ".status.selector"}}});
        let object = json!({"spec": {"size": 4, "selector": {"matchLabels": {"a": "b"}}}, "status": {"size": 1, "selector": "x=y"}});
        let scale = ScalePlaces::of(Some(&definition)).show(&object);
        assert_eq!(
            (&scale["spec"]["replicas"], &scale["status"]),
            (&json!(4), &json!({"replicas": 1, "selector": "x=y"}))
        );
    }
}
