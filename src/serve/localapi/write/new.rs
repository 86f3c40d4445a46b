//! `create`.
//!
//! Owns names, and the preconditions of a creation.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::body::Content;
use super::stored::{self, StoredObject, owned};
use super::{Decision, Task, WriteOutcome, grant};
use crate::desired::kinds::definition_key;
use crate::desired::pod_config::PodConfig;
use crate::serve::localapi::implied;
use crate::serve::localapi::implied::ALWAYS;
use crate::serve::localapi::patch::managed::after_update;
use crate::serve::localapi::resource::Store;
use crate::serve::localapi::status::{self, Failure};
use crate::serve::localapi::text;

/// The letters and digits of generated names: upstream's, which cannot form words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;
/// Upstream's limit: with its suffix a generated name must be a valid label.
const MAX_GENERATED: usize = 63 - SUFFIX;

pub(super) fn create(task: &Task, config: &PodConfig) -> Decision {
    let Content::Object(object) = &task.content else {
        return Err(status::bad_request("the request body is not an object"));
    };
    let mut object = object.clone();
    let warnings = task.field_warnings(task.fit(&mut object)?)?;
    let name = name(task, &object)?;
    let given = text(&object, "/metadata/namespace");
    if task.wanted.resource.namespaced && !given.is_empty() && given != task.namespace() {
        return Err(status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if !text(&object, "/metadata/resourceVersion").is_empty() {
        return Err(status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let draft = task.draft(object, None)?;
    let kept = task.build(config, draft, &name)?;
    let object = task.render(&kept);
    let owned = owned(object.clone());
    let entries = after_update(Vec::new(), &Value::Null, &owned, task.shape(), &task.writer());
    insert(task, config, kept.with_entries(object, entries), warnings)
}

/// Adds a new object, unless it exists.
pub(super) fn insert(
    task: &Task,
    config: &PodConfig,
    (kept, object): (StoredObject, Value),
    warnings: Vec<String>,
) -> Decision {
    let (namespace, name) = kept.place();
    is_free(task, config, namespace, name)?;
    if let StoredObject::Object(object) = &kept {
        grant::check(task, None, object)?;
    }
    let outcome: WriteOutcome = task.outcome(StatusCode::CREATED, &kept, object, warnings);
    Ok((kept.to_change(), outcome))
}

fn is_free(task: &Task, config: &PodConfig, namespace: &str, name: &str) -> Result<(), Failure> {
    let (resource, store) = (task.wanted.resource, task.store());
    if let Store::Objects(kind) = store
        && kind.is_custom()
        && config.find_object(&definition_key(kind)).is_some_and(|(_, found)| found.object.deleted.is_some())
    {
        // It would never go; upstream's message.
        let mut refused = status::not_supported(resource, "create");
        "create not allowed while custom resource definition is terminating".clone_into(&mut refused.message);
        return Err(refused);
    }
    let mut taken = status::already_exists(resource, name);
    if let Some(found) = stored::find(config, store, namespace, name) {
        if found.kept.is_terminating() {
            taken.message = format!("object is being deleted: {}", taken.message);
        }
        if let Some(whose) = found.read_only {
            let message = taken.message;
            taken.message = format!("{message}: it {whose}");
        }
        return Err(taken);
    }
    // A terminating pod, the lease of the node, or what exists without having been created.
    let may_be_there = !matches!(store, Store::Objects(_)) || implied::is_implied_in(store, name);
    if may_be_there && task.api.find(store, namespace, name).is_some() {
        if store == Store::Pods {
            taken.message = format!("object is being deleted: {}", taken.message);
        }
        return Err(taken);
    }
    if !resource.namespaced {
        return Ok(());
    }
    let found = stored::find(config, Store::Namespaces, "", namespace);
    if found.as_ref().is_some_and(|found| found.kept.is_terminating()) {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        return Err(task.refused(name, &why));
    }
    // One that was not created exists while it is in use.
    let is_there = found.is_some()
        || ALWAYS.contains(&namespace)
        || config.is_namespace_in_use(namespace)
        || task.api.find(Store::Namespaces, "", namespace).is_some();
    if !is_there {
        let message = format!("namespaces \"{namespace}\" not found");
        return Err(Failure::new(404, "NotFound", message).about("", "namespaces", namespace));
    }
    Ok(())
}

pub(super) fn name(task: &Task, object: &Value) -> Result<String, Failure> {
    let name = text(object, "/metadata/name");
    let base = text(object, "/metadata/generateName");
    if !name.is_empty() || base.is_empty() {
        if name.is_empty() {
            let cause = status::Cause {
                reason: "FieldValueRequired".to_owned(),
                message: "Required value: name or generateName is required".to_owned(),
                field: "metadata.name".to_owned(),
            };
            return Err(status::invalid(task.wanted.resource, "", &[cause]));
        }
        return Ok(name.to_owned());
    }
    Ok(generated(base, &task.uid))
}

fn generated(base: &str, random: &str) -> String {
    let base: String = base.chars().take(MAX_GENERATED).collect();
    let digits: Vec<u32> = random.chars().filter_map(|digit| digit.to_digit(16)).collect();
    let letters = digits.chunks(4).take(SUFFIX).map(|four| {
        let number = four.iter().fold(0, |number, digit| number * 16 + digit) as usize;
        char::from(ALPHABET[number % ALPHABET.len()])
    });
    base.chars().chain(letters).collect()
}

pub(super) fn success(details: Value, code: StatusCode) -> Value {
    let mut value = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if code == StatusCode::CREATED {
        value["code"] = json!(code.as_u16());
    }
    if !details.is_null() {
        value["details"] = details;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::generated;

    #[test]
    fn generated_names_begin_as_asked_and_end_at_random() {
        let one = generated("web-", "0f8fad5b-d9cb-469f-a165-70867728950e");
        let other = generated("web-", "7c9e6679-7425-40de-944b-e07fc1f90ae7");
        assert_eq!((one.len(), other.len()), (9, 9));
        assert!(one.starts_with("web-") && one != other, "{one} {other}");
        assert_eq!(generated(&"x".repeat(300), "0f8fad5b-d9cb-469f-a165-70867728950e").len(), 63);
    }
}
