//! One table per object: a change to a valid pod, and its exact errors.

mod containers;
mod pods;
mod volumes;

use serde_json::{Value, json};

use super::*;
use crate::desired::defaults::default_pod;
use crate::model::api::decode::decode;

/// A valid pod with a second container, an init container and a volume, as the base of changes.
fn base() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "initContainers": [{"name": "i", "image": "x:1"}],
            "containers": [
                {"name": "c", "image": "x:1", "ports": [{"name": "http", "containerPort": 80}],
                 "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
                {"name": "d", "image": "x:1"},
            ],
        },
    })
}

fn errors_of(pod: Value) -> Vec<String> {
    let pod = default_pod(decode::<Pod>(pod).unwrap().object);
    validate_pod(&pod).iter().map(ToString::to_string).collect()
}

/// Sets `field` of the object at `pointer`; an empty pointer is the spec.
fn changed(pointer: &str, field: &str, value: Value) -> Vec<String> {
    let mut pod = base();
    let full = if pointer.starts_with("/metadata") { pointer.to_owned() } else { format!("/spec{pointer}") };
    pod.pointer_mut(&full).unwrap()[field] = value;
    errors_of(pod)
}

/// Rows of (field, value, the only error; empty for none). A text that ends in `…` is a prefix.
fn table(pointer: &str, rows: Vec<(&str, Value, &str)>) {
    for (field, value, expected) in rows {
        let shown = value.to_string();
        let errors = changed(pointer, field, value);
        let good = match expected.strip_suffix('…') {
            _ if expected.is_empty() => errors.is_empty(),
            Some(start) => errors.len() == 1 && errors[0].starts_with(start),
            None => errors == [expected],
        };
        assert!(good, "{pointer}/{field} = {shown}\n expected {expected:?}\n got {errors:#?}");
    }
}
