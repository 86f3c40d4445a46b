//! `update` and `patch`, of objects and of their subresources.
//!
//! Owns preconditions and the dispatch of patches by kind.

use std::rc::Rc;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::body::{Content, PatchKind};
use super::stored::{self, ExistingObject, StoredObject, owned};
use super::{Decision, Task, finalize, grant, new, options_failure};
use crate::desired::api_pod;
use crate::desired::pod_config::PodConfig;
use crate::desired::pod_config::edit::ApiChange;
use crate::model::api::decode::decode;
use crate::model::api::pod::{Pod, PodStatus};
use crate::model::api::schema::check::{Misfit, Unknown};
use crate::model::provenance::is_from_api;
use crate::pod::status::rules::add_client_conditions;
use crate::serve::localapi::access::{attributes_of, refusal};
use crate::serve::localapi::implied;
use crate::serve::localapi::patch::fields::misplaced;
use crate::serve::localapi::patch::managed::{self, ManagerEntry, after_update};
use crate::serve::localapi::patch::{PatchError, apply, bounded, json_patch, merge_patch, strategic};
use crate::serve::localapi::resource::{Store, Verb};
use crate::serve::localapi::status::{self, Cause, Failure, MODIFIED};
use crate::serve::localapi::text;
use crate::serve::rbac::ObjectAttributes;

/// A stored object that may be changed, and its representations.
pub(super) struct Changeable {
    pub kept: StoredObject,
    pub version: String,
    /// The part with field managers.
    owned: Value,
    /// In the version of the request.
    pub base: Value,
    /// The pod is no longer desired but still terminating.
    goes: bool,
}

/// Which part of an object a request changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangedPart {
    /// What clients and manifests write.
    Written,
    /// The status, also of an object that a manifest defines.
    Observed,
}

/// The object of this request; `None` if it does not exist.
pub(super) fn changeable(
    task: &Task,
    config: &PodConfig,
    part: ChangedPart,
) -> Result<Option<Changeable>, Failure> {
    let found = stored::find(config, task.store(), task.namespace(), task.name());
    let (kept, goes) = match found {
        Some(ExistingObject { read_only: Some(whose), .. }) if part == ChangedPart::Written => {
            return Err(task.read_only(task.name(), &whose));
        }
        Some(found) => (found.kept, false),
        None => match (find_terminating(task)?, implicit(task)?) {
            (Some(kept), _) => (kept, true),
            (None, Some(kept)) => (kept, false),
            (None, None) => return Ok(None),
        },
    };
    let mut base = task.render(&kept);
    let owned = owned(base.clone());
    task.complete(&kept, &mut base);
    let version = text(&base, "/metadata/resourceVersion").to_owned();
    Ok(Some(Changeable { kept, version, owned, base, goes }))
}

/// A pod of the API that is terminating and no longer desired, as it was stored.
fn find_terminating(task: &Task) -> Result<Option<StoredObject>, Failure> {
    if task.store() != Store::Pods {
        return Ok(None);
    }
    let Some(pod) = task.api.node.pod(task.namespace(), task.name(), None) else { return Ok(None) };
    task.check_realm(&pod)?;
    if !is_from_api(&pod) {
        let why =
            "the object's manifest on this node was removed or changed, and the object is being deleted";
        return Err(task.refused(task.name(), why));
    }
    let status = api_pod::stored_status(&pod);
    Ok(Some(StoredObject::Pod(Rc::new(Pod { status, ..pod }))))
}

/// A namespace, or another object that was not created explicitly, as it is shown: its first change creates it.
fn implicit(task: &Task) -> Result<Option<StoredObject>, Failure> {
    let store = task.store();
    let is_one = store == Store::Namespaces || implied::is_implied_in(store, task.name());
    let shown = if is_one { task.api.find(store, task.namespace(), task.name()) } else { None };
    shown.map(|shown| task.keep(shown)).transpose()
}

/// The object after an update or a patch of `base`. Field ownership is not considered.
pub(super) fn accept(task: &Task, base: &Value) -> Result<Value, Failure> {
    check_patch_options(task)?;
    match &task.content {
        Content::Object(object) => Ok(object.clone()),
        Content::Patch(PatchKind::Apply, wanted) => {
            check_applied(task, wanted)?;
            let applied = apply::apply(base, Vec::new(), wanted.clone(), task.shape(), &task.writer(), true);
            let applied = applied.map_err(|conflicts| status::internal(&conflicts.message()))?;
            bounded(applied.object).map_err(failure)
        }
        Content::Patch(kind, patch) => patched(task, *kind, base.clone(), patch.clone()),
    }
}

/// Decides a change of a pod's status: conditions that this node does not set belong to the client,
/// everything else is observed.
pub(super) fn change_status(task: &Task, config: &PodConfig) -> Decision {
    let Changeable { kept, version, base, goes, .. } =
        changeable(task, config, ChangedPart::Written)?.ok_or_else(|| task.missing())?;
    let StoredObject::Pod(old) = &kept else { return Err(task.missing()) };
    let mut value = accept(task, &base)?;
    check_identity(task, &value)?;
    check_preconditions(task, kept.uid(), &value, &version)?;
    let said = value.get_mut("status").map(Value::take).unwrap_or_default();
    let said = if said.is_null() { json!({}) } else { said };
    let said: PodStatus = decode(said).map_err(|error| cannot_handle(&error.to_string()))?.object;
    let new = api_pod::update_status(old, &said).map_err(|errors| task.invalid(task.name(), &errors))?;
    let written = StoredObject::Pod(Rc::new(new.clone()));
    let mut outcome = task.outcome(StatusCode::OK, &written, written.to_value(), Vec::new());
    if task.dry_run {
        let mut status = task.api.node.pod(task.namespace(), task.name(), None).unwrap_or_default().status;
        add_client_conditions(&mut status, &new);
        outcome.object["status"] = json!(status);
    }
    let change = if new == **old {
        ApiChange::default()
    } else if goes {
        ApiChange { update_terminating: vec![Rc::new(new)], ..ApiChange::default() }
    } else {
        written.to_change()
    };
    Ok((change, outcome))
}

fn cannot_handle(why: &str) -> Failure {
    status::bad_request(format!("Pod in version \"v1\" cannot be handled as a Pod: status.{why}"))
}

/// Decides an update or a patch.
pub(super) fn change(task: &Task, config: &PodConfig) -> Decision {
    check_patch_options(task)?;
    let Some(found) = changeable(task, config, ChangedPart::Written)? else { return absent(task, config) };
    let Changeable { kept: old, version, owned: old_owned, base, goes } = found;
    let (value, applied) = match &task.content {
        Content::Object(object) => (object.clone(), None),
        Content::Patch(PatchKind::Apply, wanted) => {
            let (object, entries) = applied(task, &old, &old_owned, wanted)?;
            (object, Some(entries))
        }
        Content::Patch(kind, patch) => (patched(task, *kind, base, patch.clone())?, None),
    };
    let found = Changeable { kept: old, version, owned: old_owned, base: Value::Null, goes };
    replace(task, config, found, value, applied)
}

/// Decides the replacement of an object by its new form. `applied`: the field managers after an apply.
pub(super) fn replace(
    task: &Task,
    config: &PodConfig,
    found: Changeable,
    mut value: Value,
    applied: Option<Vec<ManagerEntry>>,
) -> Decision {
    let Changeable { kept: old, version, owned: old_owned, goes, .. } = found;
    let lax = task.fit(&mut value)?;
    check_identity(task, &value)?;
    check_preconditions(task, old.uid(), &value, &version)?;
    let given_managers = given_managers(&value);
    let draft = task.draft(value, Some(&old))?;
    let warnings = task.field_warnings(lax)?;
    let new = task.rebuild(config, &old, draft)?;
    if let (StoredObject::Object(old), StoredObject::Object(new)) = (&old, &new) {
        grant::check(task, Some(old), new)?;
    }
    let object = task.render(&new);
    let entries = match applied {
        Some(entries) => entries,
        None => after_update(
            given_managers.unwrap_or_else(|| old.entries()),
            &old_owned,
            &owned(object.clone()),
            task.shape(),
            &task.writer(),
        ),
    };
    let (new, object) = new.with_entries(object, entries);
    let outcome = task.outcome(StatusCode::OK, &new, object, warnings);
    let change = match &new {
        StoredObject::Pod(pod) if goes => {
            finalize::check_no_more(task, &old, &new)?;
            let is_new = new != old;
            let update_terminating = is_new.then(|| Rc::clone(pod)).into_iter().collect();
            ApiChange { update_terminating, ..ApiChange::default() }
        }
        _ => finalize::change(task, &old, &new)?,
    };
    Ok((change, outcome))
}

/// Field managers given by the client: kubectl migrates its own fields this way when it begins to use
/// server-side apply. One empty entry removes all managers, as upstream.
fn given_managers(value: &Value) -> Option<Vec<ManagerEntry>> {
    let said = value.pointer("/metadata/managedFields")?.as_array().filter(|said| !said.is_empty())?;
    let entries = managed::read(said);
    let resets = said.iter().all(|entry| entry.as_object().is_some_and(serde_json::Map::is_empty));
    (entries.len() == said.len() || resets).then_some(entries)
}

/// Who may change an object may not yet create it.
fn check_creates(task: &Task) -> Result<(), Failure> {
    let asked = ObjectAttributes { verb: Verb::Create.as_str().to_owned(), ..attributes_of(&task.wanted) };
    let may_create = task.api.access(task.policy, &task.user).may(&asked);
    if may_create { Ok(()) } else { Err(refusal(&task.user, &asked)) }
}

/// The object does not exist: apply creates it.
fn absent(task: &Task, config: &PodConfig) -> Decision {
    if task.api.find(task.store(), task.namespace(), task.name()).is_some() {
        return Err(task.refused(task.name(), "the object is this node's own"));
    }
    let Content::Patch(PatchKind::Apply, wanted) = &task.content else { return Err(task.missing()) };
    if task.wanted.subresource.is_some() {
        return Err(task.missing());
    }
    check_creates(task)?;
    check_applied(task, wanted)?;
    let mut applied =
        apply::apply(&json!({}), Vec::new(), wanted.clone(), task.shape(), &task.writer(), true)
            .map_err(|conflicts| status::internal(&conflicts.message()))?;
    let warnings = task.field_warnings(task.fit(&mut applied.object)?)?;
    let draft = task.draft(applied.object, None)?;
    let kept = task.build(config, draft, task.name())?;
    let object = task.render(&kept);
    new::insert(task, config, kept.with_entries(object, applied.entries), warnings)
}

fn check_patch_options(task: &Task) -> Result<(), Failure> {
    let Content::Patch(kind, _) = &task.content else { return Ok(()) };
    let cause = |field: &str, reason: &str, message: &str| {
        let cause = Cause { reason: reason.to_owned(), message: message.to_owned(), field: field.to_owned() };
        Err(options_failure("PatchOptions", cause))
    };
    match kind {
        PatchKind::Apply if task.wanted.options.field_manager.is_empty() => {
            cause("fieldManager", "FieldValueRequired", "Required value: is required for apply patch")
        }
        PatchKind::Apply => Ok(()),
        _ if task.wanted.options.force => {
            cause("force", "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch")
        }
        _ => Ok(()),
    }
}

fn failure(error: PatchError) -> Failure {
    match error {
        PatchError::Malformed(message) => status::bad_request(message),
        PatchError::Unprocessable(message) => {
            let message =
                format!("the server rejected our request due to an error in our request: {message}");
            Failure::new(422, "Invalid", message)
        }
        PatchError::TooLarge(message) => Failure::new(413, "RequestEntityTooLarge", message),
    }
}

fn patched(task: &Task, kind: PatchKind, base: Value, patch: Value) -> Result<Value, Failure> {
    let result = match kind {
        PatchKind::Json => json_patch::apply(base, patch),
        PatchKind::Merge => Ok(merge_patch::apply(base, patch)),
        _ => strategic::apply(base, patch, task.shape()),
    };
    let value = result.and_then(bounded).map_err(failure)?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(status::bad_request("the patched document is not an object"))
    }
}

fn check_applied(task: &Task, wanted: &Value) -> Result<(), Failure> {
    if !wanted.is_object() {
        return Err(status::bad_request("the request body is not an object"));
    }
    let metadata = wanted.get("metadata");
    if metadata.and_then(|metadata| metadata.get("managedFields")).is_some_and(|fields| !fields.is_null()) {
        return Err(status::bad_request("metadata.managedFields must be nil"));
    }
    let (version, kind) = (task.api_version.as_str(), task.wanted.resource.kind);
    if text(wanted, "/kind") != kind || text(wanted, "/apiVersion") != version {
        return Err(status::bad_request(format!(
            "applied objects must have apiVersion {version} and kind {kind}"
        )));
    }
    check_identity(task, wanted)?;
    check_typed(task, wanted)
}

/// Upstream decodes an applied object strictly, whatever validation the client requests.
fn check_typed(task: &Task, wanted: &Value) -> Result<(), Failure> {
    let findings = task.check(&mut wanted.clone());
    let unknown =
        findings.unknown.iter().map(|Unknown { path, .. }| format!(".{path}: field not declared in schema"));
    let misfits = findings.misfits.iter().map(Misfit::as_typed_error);
    let errors: Vec<String> = misfits.chain(unknown).chain(misplaced(wanted, task.shape(), "")).collect();
    let said = match errors.as_slice() {
        [] => return Ok(()),
        [only] => only.clone(),
        several => format!("errors:\n  {}", several.join("\n  ")),
    };
    let (namespace, name, resource) = (task.namespace(), task.name(), task.wanted.resource);
    let message = format!(
        "failed to create typed patch object ({namespace}/{name}; {}/{}, Kind={}): {said}",
        resource.group, resource.version, resource.kind
    );
    Err(status::bad_request(message))
}

/// Server-side apply: the resulting object and its field managers.
fn applied(
    task: &Task,
    old: &StoredObject,
    live: &Value,
    wanted: &Value,
) -> Result<(Value, Vec<ManagerEntry>), Failure> {
    check_applied(task, wanted)?;
    let force = task.wanted.options.force;
    let mut wanted = wanted.clone();
    // A precondition, and not a managed field.
    let version = wanted
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
        .and_then(|metadata| metadata.remove("resourceVersion"));
    let result = apply::apply(live, old.entries(), wanted, task.shape(), &task.writer(), force);
    let applied = result.map_err(|conflicts| {
        let causes: Vec<Cause> = conflicts
            .0
            .iter()
            .map(|conflict| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {}", conflict.manager),
                field: conflict.path.clone(),
            })
            .collect();
        Failure::new(409, "Conflict", conflicts.message()).because(&causes)
    })?;
    let mut object = bounded(applied.object).map_err(failure)?;
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = version;
    }
    Ok((object, applied.entries))
}

/// Checks that the object is the one in the path.
pub(super) fn check_identity(task: &Task, value: &Value) -> Result<(), Failure> {
    let name = text(value, "/metadata/name");
    if name != task.name() && !(name.is_empty() && task.wanted.subresource.is_some()) {
        return Err(status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            task.name()
        )));
    }
    let namespace = text(value, "/metadata/namespace");
    if !namespace.is_empty() && namespace != task.namespace() {
        return Err(status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Checks `resourceVersion` and `uid`, where they are given.
pub(super) fn check_preconditions(
    task: &Task,
    uid: &str,
    value: &Value,
    version: &str,
) -> Result<(), Failure> {
    let resource = task.wanted.resource;
    let given = text(value, "/metadata/resourceVersion");
    if !given.is_empty() && given != version {
        return Err(status::conflict(resource, task.name(), MODIFIED));
    }
    let given = text(value, "/metadata/uid");
    if !given.is_empty() && given != uid {
        let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: {uid}");
        return Err(status::conflict(resource, task.name(), &why));
    }
    Ok(())
}
