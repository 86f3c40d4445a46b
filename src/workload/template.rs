//! Templates of pods: how they are compared, and the pods that are made from them.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::{Value, json};

use super::fields::{at, text};
use super::image_update::pin_images;
use super::item::Item;
use crate::desired::kinds::default_template;

/// The templates differ in nothing but defaults: another version of the agent may fill in more of them.
pub(super) fn same_meaning(one: &Value, other: &Value) -> bool {
    let image = |template| text(template, "/spec/containers/0/image");
    image(one) == image(other) && with_defaults(one) == with_defaults(other)
}

fn with_defaults(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(members) = template.as_object_mut() {
        members.remove("$patch");
    }
    default_template(&mut template);
    template
}

/// A pod as a template wants it, owned by `owner`, without a name.
pub(super) fn from_template(owner: &Item, template: &Value) -> Value {
    let of_template = at(template, "/metadata");
    let mut metadata = json!({
        "namespace": owner.object.key.namespace,
        "ownerReferences": [owner.reference().to_value()],
    });
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = of_template.get(field) {
            metadata[field] = value.clone();
        }
    }
    let mut pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": at(template, "/spec")});
    pin_images(&mut pod, owner);
    pod
}

/// Sets a label of a pod that is being made.
pub(super) fn label(pod: &mut Value, name: &str, value: &str) {
    pod["metadata"]["labels"][name] = json!(value);
}
