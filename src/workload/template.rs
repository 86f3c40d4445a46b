//! Templates of pods as they are compared.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::Value;

use super::fields::text;
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
