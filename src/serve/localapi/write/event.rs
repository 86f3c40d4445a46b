//! Events that clients report and count.
//!
//! Owns the checks. Nothing is stored on the disk, and no other writer has to be waited for.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::change::{accept, check_identity, check_preconditions};
use super::delete::deleted;
use super::new::name as named;
use super::{Task, WriteOutcome};
use crate::serve::localapi::client_events::{MAX_BYTES, to_core};
use crate::serve::localapi::objects::new_event;
use crate::serve::localapi::resource::{Store, Verb};
use crate::serve::localapi::status::{self, Failure};
use crate::serve::localapi::text;

/// Writes a client's event. Those of the agent itself are read-only.
pub(super) fn write(task: &Task) -> Result<WriteOutcome, Failure> {
    let events = &task.api.client_events;
    let place = (task.namespace(), task.name());
    let outcome =
        |code, object, is_kept, warnings| WriteOutcome { code, object, is_kept, pod: None, warnings };
    let known = events.find(place.0, place.1, task.now);
    match task.wanted.verb {
        Verb::Create => {
            let (mut event, warnings, name) = new(task)?;
            if task.api.find(Store::Events, task.namespace(), &name).is_some() {
                return Err(status::already_exists(task.wanted.resource, &name));
            }
            let metadata = &mut event["metadata"];
            metadata["name"] = json!(name);
            metadata["namespace"] = json!(task.namespace());
            metadata["uid"] = json!(task.uid);
            metadata["creationTimestamp"] = json!(task.now.to_rfc3339());
            put(task, &name, &event)?;
            Ok(outcome(StatusCode::CREATED, event, !task.dry_run, warnings))
        }
        Verb::Update | Verb::Patch => {
            let Some(known) = known else { return Err(absent(task)) };
            let base = task.own_form(&known);
            let mut event = accept(task, &base)?;
            let warnings = task.field_warnings(task.fit(&mut event)?)?;
            check_identity(task, &event)?;
            let uid = text(&base, "/metadata/uid").to_owned();
            let version = task.api.find(Store::Events, place.0, place.1).unwrap_or_default();
            check_preconditions(task, &uid, &event, text(&version, "/metadata/resourceVersion"))?;
            for field in ["uid", "namespace", "creationTimestamp"] {
                event["metadata"][field] = base["metadata"][field].clone();
            }
            put(task, place.1, &event)?;
            Ok(outcome(StatusCode::OK, event, !task.dry_run, warnings))
        }
        _ => {
            let Some(known) = known else { return Err(absent(task)) };
            if !task.dry_run {
                events.remove(place.0, place.1);
            }
            Ok(outcome(StatusCode::OK, deleted(task, &known), false, Vec::new()))
        }
    }
}

fn new(task: &Task) -> Result<(Value, Vec<String>, String), Failure> {
    let mut event = accept(task, &Value::Null)?;
    let warnings = task.field_warnings(task.fit(&mut event)?)?;
    let name = named(task, &event)?;
    let given = text(&event, "/metadata/namespace");
    if !given.is_empty() && given != task.namespace() {
        return Err(status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok((event, warnings, name))
}

fn absent(task: &Task) -> Failure {
    match task.api.find(Store::Events, task.namespace(), task.name()) {
        Some(_) => task.refused(task.name(), "the event is this node's own"),
        None => task.missing(),
    }
}

fn put(task: &Task, name: &str, event: &Value) -> Result<(), Failure> {
    let mut event =
        if task.wanted.resource.group.is_empty() { event.clone() } else { to_core(event.clone()) };
    event["apiVersion"] = json!("v1");
    event["kind"] = json!("Event");
    if let Some(metadata) = event["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    if event.to_string().len() > MAX_BYTES {
        return Err(status::too_large(MAX_BYTES));
    }
    if !task.dry_run {
        task.api.client_events.put((task.namespace(), name), &event, task.now);
    }
    Ok(())
}

impl Task {
    /// An event in the form of the group that was asked.
    pub(super) fn own_form(&self, event: &Value) -> Value {
        if self.wanted.resource.group.is_empty() { event.clone() } else { new_event(event) }
    }
}
