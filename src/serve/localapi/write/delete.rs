//! `delete`, `deletecollection` and evictions.
//!
//! Owns grace periods, preconditions and dependent deletions.

use std::collections::BTreeSet;
use std::rc::Rc;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::body::Content;
use super::new::success;
use super::stored::{self, StoredObject};
use super::{Decision, Task, WriteOutcome, account, is_of};
use crate::desired::garbage::{self, FOREGROUND, ORPHAN};
use crate::desired::kinds::{CLEANUP, defined_kind};
use crate::desired::pod_config::PodConfig;
use crate::desired::pod_config::edit::ApiChange;
use crate::desired::pod_config::notes::Mirror;
use crate::model::api::decode::decode;
use crate::model::api::managed_fields::ManagedFields;
use crate::model::api::pod::{Pod, StringMap};
use crate::model::objects::{ConfigMapData, LocalObject, ObjectContent, ObjectKind, PlainBody, wire};
use crate::model::ordered::Ordered as _;
use crate::model::provenance::is_of_cluster;
use crate::model::types::{PodSource, PodUid, Timestamp};
use crate::node::object::uid;
use crate::pod::lifecycle::{requested_termination, restore_start, show_end};
use crate::serve::localapi::implied;
use crate::serve::localapi::implied::ALWAYS;
use crate::serve::localapi::resource::Store;
use crate::serve::localapi::selector::Selector;
use crate::serve::localapi::shape::own;
use crate::serve::localapi::status::{self, Failure};
use crate::serve::localapi::text;

/// Options from the body; the query supplies those that are absent.
struct DeletionOptions {
    grace: Option<i64>,
    /// Empty for the kind's default.
    propagation: String,
    uid: String,
    version: String,
}

impl DeletionOptions {
    fn of(task: &Task) -> Result<Self, Failure> {
        let Content::Object(body) = &task.content else { return Err(task.missing()) };
        let (version, kind) =
            if task.is_eviction() { ("policy/v1", "Eviction") } else { ("v1", "DeleteOptions") };
        is_of(task.types(), version, kind, body)?;
        let body = if task.is_eviction() { body.get("deleteOptions").unwrap_or(&Value::Null) } else { body };
        let policy = text(body, "/propagationPolicy");
        if !matches!(policy, "" | "Orphan" | "Background" | "Foreground") {
            return Err(status::bad_request(format!("propagationPolicy: Unsupported value: {policy:?}")));
        }
        let grace = body.get("gracePeriodSeconds").and_then(Value::as_i64);
        let propagation = match (policy, body.get("orphanDependents").and_then(Value::as_bool)) {
            ("", Some(true)) => "Orphan",
            ("", Some(false)) => "Background",
            ("", None) => &task.wanted.options.propagation_policy,
            (policy, _) => policy,
        };
        Ok(Self {
            grace: grace
                .or(task.wanted.options.grace_period_seconds)
                .map(|grace| if grace < 0 { 1 } else { grace }),
            propagation: propagation.to_owned(),
            uid: text(body, "/preconditions/uid").to_owned(),
            version: text(body, "/preconditions/resourceVersion").to_owned(),
        })
    }
}

impl Task {
    fn is_eviction(&self) -> bool {
        self.wanted.subresource.is_some_and(|part| part.name == "eviction")
    }
}

pub(super) fn one(task: &Task, config: &PodConfig) -> Decision {
    let options = DeletionOptions::of(task)?;
    let store = task.store();
    let shown = task.api.find(store, task.namespace(), task.name());
    let Some(found) = stored::find(config, store, task.namespace(), task.name()) else {
        return match shown {
            Some(shown) if store == Store::Pods => shorten_grace(task, &options, shown),
            Some(shown) if store == Store::Namespaces => {
                check(task, &options, &shown)?;
                namespace(task, config, &shown)
            }
            Some(shown) if implied::is_implied_in(store, task.name()) => {
                check(task, &options, &shown)?;
                renew(task, config, &shown)
            }
            Some(shown) if is_made_by_controllers(store) => {
                check(task, &options, &shown)?;
                Ok(not_deleted(task))
            }
            Some(_) => Err(task.refused(task.name(), "the object is this node's own")),
            None => Err(task.missing()),
        };
    };
    if let Some(whose) = &found.read_only {
        return match (&found.kept, shown) {
            (StoredObject::Pod(pod), Some(shown)) if !is_of_cluster(pod) => {
                mirror(task, config, &options, &pod.metadata.uid, shown)
            }
            _ => Err(task.read_only(task.name(), whose)),
        };
    }
    let shown = shown.unwrap_or_else(|| found.kept.to_value());
    check(task, &options, &shown)?;
    if store == Store::Namespaces {
        return namespace(task, config, &shown);
    }
    if implied::is_implied_in(store, task.name()) && found.kept.finalizers().is_empty() {
        return renew(task, config, &shown);
    }
    let (change, kept) = removal(task, config, &options, &found.kept);
    let stays = !kept.finalizers().is_empty() && !task.is_eviction() && !task.dry_run;
    let object = match &found.kept {
        _ if task.is_eviction() => success(Value::Null, StatusCode::CREATED),
        StoredObject::Pod(pod) => show_terminating(task, shown, pod, options.grace),
        StoredObject::Object(_) if stays => task.render(&kept.deleted(None, task.now)),
        StoredObject::Object(_) => deleted(task, &shown),
    };
    let code = if task.is_eviction() { StatusCode::CREATED } else { StatusCode::OK };
    let warnings = orphaned_by_default(task, &options).map(str::to_owned).into_iter().collect();
    Ok((change, WriteOutcome { code, object, is_kept: stays, pod: None, warnings }))
}

/// Upstream keeps the pods of Jobs by default, as its first releases did.
fn orphans_by_default(task: &Task) -> bool {
    task.store() == Store::Objects(ObjectKind::Job)
}

fn orphaned_by_default(task: &Task, options: &DeletionOptions) -> Option<&'static str> {
    (orphans_by_default(task) && options.propagation.is_empty()).then_some(
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
    )
}

fn propagation<'a>(task: &Task, options: &'a DeletionOptions, kept: &StoredObject) -> &'a str {
    let has = |finalizer: &str| kept.finalizers().iter().any(|one| one == finalizer);
    match options.propagation.as_str() {
        "" if has(FOREGROUND) => "Foreground",
        "" if has(ORPHAN) || orphans_by_default(task) => "Orphan",
        given => given,
    }
}

/// The deletion of an object and what becomes of its dependents; and the object with the finalizers that remain.
fn removal(
    task: &Task,
    config: &PodConfig,
    options: &DeletionOptions,
    kept: &StoredObject,
) -> (ApiChange, StoredObject) {
    let (change, mut going) = removals(task, config, options, std::slice::from_ref(kept));
    (change, going.pop().unwrap_or_else(|| kept.clone()))
}

/// The same of several objects: all dependents are looked up once.
fn removals(
    task: &Task,
    config: &PodConfig,
    options: &DeletionOptions,
    all: &[StoredObject],
) -> (ApiChange, Vec<StoredObject>) {
    let of = |wanted: &str| {
        let those = all.iter().filter(|kept| propagation(task, options, kept) == wanted);
        those.map(|kept| kept.uid().to_owned()).into_set()
    };
    let (orphaning, waiting) = (of("Orphan"), garbage::blocked(config, &of("Foreground")));
    let mut change = ApiChange::default();
    let mut left = Vec::new();
    for kept in all {
        if let StoredObject::Object(object) = kept {
            change.remove_objects.extend(account::secrets_of(config, object));
        }
        let (removed, going) = single_removal(task, config, options, kept, &waiting);
        change.join(removed);
        left.push(going);
    }
    (garbage::orphans(config, &orphaning, change), left)
}

fn single_removal(
    task: &Task,
    config: &PodConfig,
    options: &DeletionOptions,
    kept: &StoredObject,
    waiting: &BTreeSet<String>,
) -> (ApiChange, StoredObject) {
    let mut change = ApiChange::default();
    let mut going = kept.clone();
    going.finalizers_mut().retain(|one| one != FOREGROUND && one != ORPHAN);
    if waiting.contains(kept.uid()) {
        going.finalizers_mut().push(FOREGROUND.to_owned());
    }
    if let StoredObject::Object(object) = kept
        && object.key.kind == ObjectKind::CustomResourceDefinition
    {
        for one in
            defined_kind(&object.content.body()).into_iter().flat_map(|kind| stored::of_kind(config, kind))
        {
            change.join(one.removal(None, task.now));
        }
        going.finalizers_mut().retain(|one| one != CLEANUP);
        going.finalizers_mut().push(CLEANUP.to_owned());
    }
    change.join(going.removal(options.grace, task.now));
    (change, going)
}

/// What the agent itself makes for Services: `kubernetes`, `kube-dns`, and slices.
fn is_made_by_controllers(store: Store) -> bool {
    matches!(store, Store::Objects(ObjectKind::Service | ObjectKind::Endpoints | ObjectKind::EndpointSlice))
}

/// The answer to the deletion of such an object, which stays. It names no uid: with one, kubectl would wait for the end of the
/// object.
fn not_deleted(task: &Task) -> (ApiChange, WriteOutcome) {
    let warning = format!(
        "{} {:?} was not deleted: the agent creates this object, and keeps it as long as it is needed",
        task.wanted.resource.qualified(),
        task.name()
    );
    let (code, object) = (StatusCode::OK, deleted(task, &Value::Null));
    (ApiChange::default(), WriteOutcome { code, object, is_kept: false, pod: None, warnings: vec![warning] })
}

/// What every namespace has comes back at once, as another object; a role that every API server has cannot go, but what
/// a client has made of it can.
fn renew(task: &Task, config: &PodConfig, shown: &Value) -> Decision {
    let object = deleted(task, shown);
    let kept = task.keep(shown.clone())?;
    let StoredObject::Object(kept) = kept else { return Err(task.missing()) };
    let change = match renewal(task, config, &kept) {
        Some(change) => change,
        None if task.api.is_stored(&kept.key) => {
            ApiChange { remove_objects: vec![kept.key.clone()], ..ApiChange::default() }
        }
        None => return Err(task.refused(task.name(), "every API server has it: it cannot be deleted")),
    };
    let (code, warnings) = (StatusCode::OK, Vec::new());
    Ok((change, WriteOutcome { code, object, is_kept: false, pod: None, warnings }))
}

/// Another object in place of what every namespace has, and without the Secrets with tokens of the one before; `None`:
/// it is not such an object.
fn renewal(task: &Task, config: &PodConfig, kept: &Rc<LocalObject>) -> Option<ApiChange> {
    let key = &kept.key;
    let is_one = matches!(key.kind, ObjectKind::ServiceAccount | ObjectKind::ConfigMap)
        && implied::is_implied(key.kind, &key.name)
        && kept.finalizers.is_empty();
    if !is_one {
        return None;
    }
    let fresh = LocalObject {
        // A deletion of several has one uid.
        uid: uid(&[task.uid.as_str(), "\0", &key.namespace].concat()),
        created: task.now,
        labels: StringMap::new(),
        annotations: StringMap::new(),
        managed_fields: ManagedFields::default(),
        owner_references: Vec::new(),
        content: empty(&kept.content),
        key: key.clone(),
        ..LocalObject::clone(kept)
    };
    let remove_objects = account::secrets_of(config, kept);
    Some(ApiChange { put_objects: vec![Rc::new(fresh)], remove_objects, ..ApiChange::default() })
}

/// What the namespaces of this request have without its having been stored.
fn not_stored(task: &Task) -> Vec<Rc<LocalObject>> {
    let Store::Objects(kind @ (ObjectKind::ServiceAccount | ObjectKind::ConfigMap)) = task.store() else {
        return Vec::new();
    };
    let shown = implied::beside(&task.api, kind, &task.api.cluster.objects_of(kind));
    let objects = shown.into_iter().filter_map(|shown| wire::from_value(kind, shown).ok());
    let is_here = |namespace: &str| task.wanted.namespace.as_deref().is_none_or(|wanted| wanted == namespace);
    objects.filter(|object| is_here(&object.key.namespace)).map(Rc::new).collect()
}

fn empty(content: &ObjectContent) -> ObjectContent {
    match content {
        ObjectContent::ConfigMap { .. } => {
            ObjectContent::ConfigMap { data: ConfigMapData::default(), immutable: false }
        }
        _ => ObjectContent::Plain(PlainBody::default()),
    }
}

/// Decides the deletion of all selected objects that came through the API.
pub(super) fn many(task: &Task, config: &PodConfig) -> Decision {
    let options = DeletionOptions::of(task)?;
    let wanted = &task.wanted;
    let selector =
        Selector::parse(wanted.resource, &wanted.options.label_selector, &wanted.options.field_selector)?;
    let (mut selected, mut renewed) = (Vec::new(), ApiChange::default());
    let mut items = Vec::new();
    let implied = not_stored(task).into_iter().map(StoredObject::Object);
    let stored = stored::api_objects(config, task.store(), wanted.namespace.as_deref());
    for kept in stored.into_iter().chain(implied) {
        let (namespace, name) = kept.place();
        let shown = task.api.find(task.store(), namespace, name).unwrap_or_else(|| kept.to_value());
        if selector.matches(&shown) {
            items.push(own(wanted.resource, &shown));
            let renewal = match &kept {
                StoredObject::Object(object) => renewal(task, config, object),
                StoredObject::Pod(_) => None,
            };
            match renewal {
                Some(renewal) => renewed.join(renewal),
                None => selected.push(kept),
            }
        }
    }
    let (mut change, _) = removals(task, config, &options, &selected);
    change.join(renewed);
    let kind = format!("{}List", wanted.resource.kind);
    let object = json!({"kind": kind, "apiVersion": task.api_version, "metadata": {}, "items": items});
    Ok((
        change,
        WriteOutcome { code: StatusCode::OK, object, is_kept: false, pod: None, warnings: Vec::new() },
    ))
}

fn check(task: &Task, options: &DeletionOptions, shown: &Value) -> Result<(), Failure> {
    let conflict = |what: &str, given: &str, found: &str| {
        let why =
            format!("Precondition failed: {what} in precondition: {given}, {what} in object meta: {found}");
        Err(status::conflict(task.wanted.resource, task.name(), &why))
    };
    let (uid, version) = (text(shown, "/metadata/uid"), text(shown, "/metadata/resourceVersion"));
    if !options.uid.is_empty() && options.uid != uid {
        return conflict("UID", &options.uid, uid);
    }
    if !options.version.is_empty() && options.version != version {
        return conflict("ResourceVersion", &options.version, version);
    }
    Ok(())
}

fn show_terminating(task: &Task, mut shown: Value, pod: &Pod, grace: Option<i64>) -> Value {
    let mut pod = pod.clone();
    let (since, grace) = requested_termination(&pod, grace, task.now);
    pod.metadata.deletion_timestamp = Some(since);
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    show_end(&mut pod);
    let metadata = &mut shown["metadata"];
    metadata["deletionTimestamp"] = json!(pod.metadata.deletion_timestamp.map(Timestamp::to_rfc3339));
    metadata["deletionGracePeriodSeconds"] = json!(grace);
    shown
}

/// The mirror pod of a static pod: deleting it recreates it at once with a new uid, as a kubelet does. The
/// pod keeps running.
fn mirror(
    task: &Task,
    config: &PodConfig,
    options: &DeletionOptions,
    uid: &PodUid,
    mut shown: Value,
) -> Decision {
    check(task, options, &shown)?;
    let mut notes = config.notes().clone();
    notes.mirrors.insert(uid.clone(), Mirror { uid: task.uid.clone(), created: task.now });
    shown["metadata"]["deletionTimestamp"] = json!(task.now.to_rfc3339());
    shown["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    let (code, object) = if task.is_eviction() {
        (StatusCode::CREATED, success(Value::Null, StatusCode::CREATED))
    } else {
        (StatusCode::OK, shown)
    };
    let change = ApiChange { notes: Some(notes), ..ApiChange::default() };
    Ok((change, WriteOutcome { code, object, is_kept: false, pod: None, warnings: Vec::new() }))
}

/// A pod that is already terminating: its grace period may be shortened.
fn shorten_grace(task: &Task, options: &DeletionOptions, shown: Value) -> Decision {
    check(task, options, &shown)?;
    let mut pod: Pod = decode(shown.clone()).map_err(|error| status::internal(&error.to_string()))?.object;
    task.check_realm(&task.api.node.pod(task.namespace(), task.name(), None).unwrap_or_default())?;
    restore_start(&mut pod);
    let answer = show_terminating(task, shown, &pod, options.grace);
    let change = ApiChange { remove_pods: vec![(Rc::new(pod), options.grace)], ..ApiChange::default() };
    let (code, object) = if task.is_eviction() {
        (StatusCode::CREATED, success(Value::Null, StatusCode::CREATED))
    } else {
        (StatusCode::OK, answer)
    };
    Ok((change, WriteOutcome { code, object, is_kept: false, pod: None, warnings: Vec::new() }))
}

pub(super) fn deleted(task: &Task, shown: &Value) -> Value {
    let details = json!({
        "name": task.name(),
        "kind": task.wanted.resource.plural,
        "uid": text(shown, "/metadata/uid"),
    });
    success(details, StatusCode::OK)
}

fn is_in_manifests(config: &PodConfig, name: &str) -> bool {
    config
        .pods_by_source()
        .map(|(source, pod)| (source, pod.pod.metadata.namespace.as_str()))
        .chain(
            config.objects_by_source().map(|(source, object)| (source, object.object.key.namespace.as_str())),
        )
        .any(|(source, namespace)| namespace == name && source != PodSource::Api)
}

/// Deleting a namespace deletes its objects that came through the API.
fn namespace(task: &Task, config: &PodConfig, shown: &Value) -> Decision {
    let name = task.name();
    if ALWAYS.contains(&name) {
        return Err(task.refused(name, "this namespace may not be deleted"));
    }
    let mut change = ApiChange::default();
    if is_in_manifests(config, name) {
        // As with mirror pods: objects of manifests stay, and the namespace gets a new uid.
        let mut notes = config.notes().clone();
        notes.namespaces.retain(|name, _| is_in_manifests(config, name));
        notes.namespaces.insert(name.to_owned(), task.now);
        change.notes = Some(notes);
    }
    for kept in stored::in_namespace(config, name) {
        change.join(kept.removal(None, task.now));
    }
    if let Some(found) = stored::find(config, Store::Namespaces, "", name) {
        // It goes with the last object in it, as upstream.
        change.join(found.kept.deleted(None, task.now).to_change());
    }
    let mut object = shown.clone();
    object["metadata"]["deletionTimestamp"] = json!(task.now.to_rfc3339());
    object["status"]["phase"] = json!("Terminating");
    Ok((
        change,
        WriteOutcome { code: StatusCode::OK, object, is_kept: false, pod: None, warnings: Vec::new() },
    ))
}
