//! The stored form of an object that came through the API: a pod, or one of the local objects.
//!
//! Owns the conversion between JSON and the stored form.

use std::rc::Rc;

use serde_json::{Value, json};

use super::body::{Content, PatchKind};
use super::custom;
use super::{LocalApi, Task, WriteOutcome, account, expansion};
use crate::desired::api_pod::{self, Part};
use crate::desired::garbage::Owners as _;
use crate::desired::kinds::{carry_over, unacted};
use crate::desired::local_objects::{accept, ignored, keep_observed, refused_change};
use crate::desired::pod_config::PodConfig;
use crate::desired::priority;
pub(super) use crate::desired::stored::StoredObject;
use crate::model::api::decode::decode;
use crate::model::api::managed_fields::ManagedFields;
use crate::model::api::pod::Pod;
use crate::model::objects::retired;
use crate::model::objects::volumes::{Binding, claim_spec};
use crate::model::objects::wire::{self, Values};
use crate::model::objects::{AnyObject, LocalObject, ObjectKey, ObjectKind};
use crate::model::provenance::LOCAL_ANNOTATIONS;
use crate::model::types::{PodSource, PodUid, Timestamp};
use crate::pod::runtime_class;
use crate::pod::scheduling::{place, unscheduled};
use crate::serve::localapi::patch::managed::{self, ManagerEntry};
use crate::serve::localapi::resource::Store;
use crate::serve::localapi::shape::own;
use crate::serve::localapi::status::{self, Cause, Failure};
use crate::serve::localapi::{autoscaler, definitions, objects, text};

/// An existing object, and why it may not be written.
pub(super) struct ExistingObject {
    pub(super) kept: StoredObject,
    pub(super) read_only: Option<String>,
}

pub(super) fn local_kind(store: Store) -> Option<ObjectKind> {
    match store {
        Store::Objects(kind) => Some(kind),
        Store::Namespaces => Some(ObjectKind::Namespace),
        Store::Leases => Some(ObjectKind::Lease),
        _ => None,
    }
}

/// Of an object with a manifest, or of the cluster: whose it is.
fn read_only(source: PodSource, origin: &str) -> Option<String> {
    match source {
        PodSource::Api => None,
        PodSource::Cluster => Some("belongs to the cluster".to_owned()),
        PodSource::File | PodSource::Http => Some(format!("is defined by manifest {origin} of this node")),
    }
}

/// The object of this name, from any source.
pub(super) fn find(config: &PodConfig, store: Store, namespace: &str, name: &str) -> Option<ExistingObject> {
    if let Some(kind) = local_kind(store) {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let (source, found) = config.find_object(&key)?;
        let kept = StoredObject::Object(Rc::clone(&found.object));
        return Some(ExistingObject { kept, read_only: read_only(source, &found.origin) });
    }
    let (source, found) = config.find_pod(namespace, name)?;
    Some(ExistingObject {
        kept: StoredObject::Pod(Rc::clone(&found.pod)),
        read_only: read_only(source, &found.origin),
    })
}

/// Everything in a namespace that came through the API.
pub(super) fn in_namespace(config: &PodConfig, namespace: &str) -> Vec<StoredObject> {
    let mut members = config.members();
    members.retain(|member| member.place().0 == namespace);
    members
}

/// The objects of a kind that came through the API.
pub(super) fn of_kind(config: &PodConfig, kind: ObjectKind) -> Vec<StoredObject> {
    let of_api = config
        .objects_by_source()
        .filter(|(source, found)| *source == PodSource::Api && found.object.key.kind == kind);
    of_api.map(|(_, found)| StoredObject::Object(Rc::clone(&found.object))).collect()
}

/// The objects of a store that came through the API, in one namespace or in all.
pub(super) fn api_objects(config: &PodConfig, store: Store, namespace: Option<&str>) -> Vec<StoredObject> {
    let is_here = |found: &str| namespace.is_none_or(|namespace| namespace == found);
    match local_kind(store) {
        Some(kind) => config
            .objects_by_source()
            .filter(|(source, found)| {
                *source == PodSource::Api
                    && found.object.key.kind == kind
                    && is_here(&found.object.key.namespace)
            })
            .map(|(_, found)| StoredObject::Object(Rc::clone(&found.object)))
            .collect(),
        None => config
            .pods_by_source()
            .filter(|(source, found)| *source == PodSource::Api && is_here(&found.pod.metadata.namespace))
            .map(|(_, found)| StoredObject::Pod(Rc::clone(&found.pod)))
            .collect(),
    }
}

impl StoredObject {
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Pod(pod) => objects::render(pod),
            Self::Object(object) => wire::to_value(object, Values::Shown),
        }
    }

    pub(super) fn entries(&self) -> Vec<ManagerEntry> {
        managed::read(&self.managed_fields().entries())
    }

    fn managed_fields(&self) -> &ManagedFields {
        match self {
            Self::Pod(pod) => &pod.metadata.managed_fields,
            Self::Object(object) => &object.managed_fields,
        }
    }

    /// Replaces the field managers, in the object and in its JSON.
    pub(super) fn with_entries(self, mut value: Value, entries: Vec<ManagerEntry>) -> (Self, Value) {
        let entries = managed::write(entries);
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            if !entries.is_empty() {
                metadata.insert("managedFields".to_owned(), json!(entries));
            }
        }
        let fields = ManagedFields::new(entries);
        let kept = match self {
            Self::Pod(mut pod) => {
                Rc::make_mut(&mut pod).metadata.managed_fields = fields;
                Self::Pod(pod)
            }
            Self::Object(mut object) => {
                Rc::make_mut(&mut object).managed_fields = fields;
                Self::Object(object)
            }
        };
        (kept, value)
    }

    /// Warnings about what is accepted and has no effect.
    pub(super) fn warnings(&self, api: &LocalApi) -> Vec<String> {
        match self {
            Self::Pod(pod) => {
                let mut warnings = unscheduled(&pod.spec);
                warnings.extend(retired::warnings(&pod.spec.volumes));
                warnings
            }
            Self::Object(object) if has_class(api, object) => Vec::new(),
            Self::Object(object) => ignored(object),
        }
    }
}

/// The class of a claim has an effect here.
fn has_class(api: &LocalApi, object: &LocalObject) -> bool {
    let class = claim_spec(object).and_then(|claim| claim.storage_class.as_deref());
    let is_known = |class| {
        api.cluster.objects_of(ObjectKind::StorageClass).iter().any(|known| known.object.key.name == class)
    };
    class.is_some_and(|class| api.cluster.binding(object) != Binding::Directory || is_known(class))
}

/// The part with field managers: without status, and without this node's own annotations of a pod.
pub(super) fn owned(mut value: Value) -> Value {
    if let Some(members) = value.as_object_mut() {
        members.remove("status");
    }
    let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) else { return value };
    metadata.remove("managedFields");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !LOCAL_ANNOTATIONS.contains(&name.as_str()));
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    value
}

/// Why a definition may not have its names: an earlier one of its group has them.
fn definition_conflict(config: &PodConfig, object: &LocalObject) -> Option<String> {
    if object.key.kind != ObjectKind::CustomResourceDefinition {
        return None;
    }
    let (new, mut conflict) = (object.content.body(), None);
    for (_, known) in config.objects_by_source() {
        if known.object.key.kind != object.key.kind || known.object.key == object.key {
            continue;
        }
        let known_body = known.object.content.body();
        if text(&known_body, "/spec/group") != text(&new, "/spec/group") {
            continue;
        }
        for field in ["kind", "listKind", "singular"] {
            let place = format!("/spec/names/{field}");
            if text(&known_body, &place) == text(&new, &place) {
                let name = &known.object.key.name;
                conflict =
                    Some(format!("names.{field} {:?} is already in use by {name}", text(&new, &place)));
            }
        }
    }
    conflict
}

/// A decoded object before defaulting.
pub(super) enum Draft {
    Pod(Box<Pod>),
    Object(Box<AnyObject>),
}

/// The errors that lenient decoding ignores.
pub(super) struct Lax(Vec<String>);

/// The characters of a patch that an error message quotes.
const PATCH_SHOWN: usize = 1024;

impl Task {
    /// Removes from a whole object the fields that its type does not have, and returns the errors of strict
    /// decoding, in upstream's words. The `apiVersion` and `kind` must match the request or be absent; the
    /// status is checked too, though no client may write it.
    pub(super) fn fit(&self, value: &mut Value) -> Result<Lax, Failure> {
        let resource = self.wanted.resource;
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let expected = self.api_version.as_str();
        if !api_version.is_empty() && api_version != expected {
            return Err(status::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({expected})"
            )));
        }
        if !kind.is_empty() && kind != resource.kind {
            return Err(status::bad_request(format!(
                "{kind} in version {expected:?} cannot be handled as a {}: it is another kind",
                resource.kind
            )));
        }
        let findings = self.check(value);
        if let Some(misfit) = findings.misfits.first() {
            return Err(self.undecodable(misfit.as_json_error()));
        }
        let unknown = findings.unknown.iter().map(|unknown| format!("unknown field {:?}", unknown.path));
        let twice = self.duplicates.iter().map(|field| format!("duplicate field {field:?}"));
        Ok(Lax(unknown.chain(twice).collect()))
    }

    /// Whether the status has a path of its own, or none that clients may write.
    fn ignores_status(&self) -> bool {
        !self.wanted.resource.is_custom() || self.wanted.resource.subresource("status").is_some()
    }

    fn is_autoscaler_of_v1(&self) -> bool {
        self.store() == Store::Objects(ObjectKind::HorizontalPodAutoscaler)
            && self.wanted.resource.version == "v1"
    }

    /// The JSON of a stored object, in the version of the request.
    pub(super) fn render(&self, kept: &StoredObject) -> Value {
        own(self.wanted.resource, &kept.to_value())
    }

    /// Decodes an object after [`fit`](Self::fit). `old` is the stored object that it replaces.
    pub(super) fn draft(&self, mut value: Value, old: Option<&StoredObject>) -> Result<Draft, Failure> {
        if let Some(members) = value.as_object_mut().filter(|_| self.ignores_status()) {
            members.remove("status");
        }
        if self.is_autoscaler_of_v1() {
            value = autoscaler::to_v2(value, &old.map(StoredObject::to_value).unwrap_or_default());
        }
        let decoded = match local_kind(self.store()) {
            None => decode::<Pod>(value)
                .map(|decoded| Draft::Pod(Box::new(decoded.object)))
                .map_err(|error| error.to_string()),
            Some(kind) => wire::decode_object(kind, value)
                .map(|(object, _)| Draft::Object(Box::new(object)))
                // The value may be secret and must not be logged.
                .map_err(|error| match kind {
                    ObjectKind::Secret => format!("{}: invalid value", error.path),
                    _ => error.to_string(),
                }),
        };
        decoded.map_err(|why| self.undecodable(&why))
    }

    /// The failure for an input, or a patch's result, that is not an object of its kind.
    fn undecodable(&self, why: &str) -> Failure {
        let kind = self.wanted.resource.kind;
        let Content::Patch(form, patch) = &self.content else {
            let version = &self.api_version;
            return status::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
            ));
        };
        if *form == PatchKind::Apply {
            return status::bad_request(why);
        }
        let patch: String = patch.to_string().chars().take(PATCH_SHOWN).collect();
        let message = format!("Invalid value: {patch:?}: {why}");
        let cause = Cause {
            reason: "FieldValueInvalid".to_owned(),
            message: message.clone(),
            field: "patch".to_owned(),
        };
        Failure::new(422, "Invalid", format!(" \"\" is invalid: patch: {message}")).because(&[cause])
    }

    /// The warnings about unknown and duplicate fields that the client asked for.
    pub(super) fn field_warnings(&self, lax: Lax) -> Result<Vec<String>, Failure> {
        match self.wanted.options.field_validation.as_str() {
            "Strict" if !lax.0.is_empty() => {
                Err(self.undecodable(&format!("strict decoding error: {}", lax.0.join(", "))))
            }
            // Upstream's default.
            "Warn" | "" => Ok(lax.0),
            _ => Ok(Vec::new()),
        }
    }

    /// A new object in its stored form.
    pub(super) fn build(
        &self,
        config: &PodConfig,
        draft: Draft,
        name: &str,
    ) -> Result<StoredObject, Failure> {
        match draft {
            Draft::Pod(mut pod) => {
                name.clone_into(&mut pod.metadata.name);
                self.namespace().clone_into(&mut pod.metadata.namespace);
                config.admit_account(&mut pod, &self.uid).map_err(|why| self.refused(name, &why))?;
                let features = self.api.cluster.node().features;
                let handlers = features.iter().flat_map(|features| &features.handlers);
                let class = runtime_class::class_of(&pod).and_then(|class| config.runtime_class(class));
                runtime_class::admit(&mut pod, class, handlers.map(|handler| handler.name.as_str()))
                    .map_err(|why| self.refused(name, &why))?;
                priority::admit(&mut pod.spec, &config.priority_classes())
                    .map_err(|why| self.refused(name, &why))?;
                let uid = PodUid::from(self.uid.as_str());
                let pod = api_pod::create(*pod, self.api.node.name(), uid, self.now);
                pod.map(|pod| StoredObject::Pod(Rc::new(pod))).map_err(|errors| self.invalid(name, &errors))
            }
            Draft::Object(written) => {
                let mut object = self.accept(*written, name)?;
                let unacted = unacted(object.key.kind).filter(|_| !self.api.options.keeps_unacted);
                if let Some(why) = unacted {
                    return Err(self.refused(name, &format!("{why} (--unacted-kinds=refuse)")));
                }
                if let Some(why) = definition_conflict(config, &object) {
                    return Err(status::conflict(self.wanted.resource, name, &why));
                }
                object.uid.clone_from(&self.uid);
                object.generation = i64::from(object.key.kind.has_generation());
                object.created = self.now;
                if object.key.kind == ObjectKind::Namespace {
                    object.labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
                }
                account::fill(self, &mut object)?;
                config.assign_addresses(&mut object, None).map_err(|errors| self.invalid(name, &errors))?;
                Ok(StoredObject::Object(Rc::new(object)))
            }
        }
    }

    /// The stored form of an object that is shown and not stored.
    pub(super) fn keep(&self, shown: Value) -> Result<StoredObject, Failure> {
        let (uid, created) =
            (text(&shown, "/metadata/uid").to_owned(), text(&shown, "/metadata/creationTimestamp"));
        let created = Timestamp::parse_rfc3339(created).unwrap_or(self.now);
        // What a client has made of a built-in role is another object than that role.
        let is_role = matches!(
            local_kind(self.store()),
            Some(ObjectKind::ClusterRole | ObjectKind::ClusterRoleBinding)
        );
        let uid = if is_role { self.uid.clone() } else { uid };
        let Draft::Object(written) = self.draft(shown, None)? else { return Err(self.missing()) };
        Ok(StoredObject::Object(Rc::new(LocalObject { uid, created, ..self.accept(*written, self.name())? })))
    }

    fn accept(&self, written: AnyObject, name: &str) -> Result<LocalObject, Failure> {
        let mut written = written;
        let metadata = written.metadata_mut();
        name.clone_into(&mut metadata.name);
        self.namespace().clone_into(&mut metadata.namespace);
        metadata.managed_fields = ManagedFields::default();
        let misfits = match (&self.definition, &written) {
            (Some(definition), AnyObject::Plain(plain)) => {
                custom::validate(&definitions::schema(definition), &plain.body)
            }
            _ => Vec::new(),
        };
        let object = accept(written).map_err(|invalid| self.invalid(name, &invalid.errors))?;
        if misfits.is_empty() { Ok(object) } else { Err(self.invalid(name, &misfits)) }
    }

    /// The stored form of the object that replaces `old`.
    pub(super) fn rebuild(
        &self,
        config: &PodConfig,
        old: &StoredObject,
        draft: Draft,
    ) -> Result<StoredObject, Failure> {
        let name = self.name();
        match (old, draft) {
            (StoredObject::Pod(old), Draft::Pod(new)) => {
                let part = match self.wanted.subresource.map(|part| part.name) {
                    Some("resize") => Part::Resize,
                    Some("ephemeralcontainers") => Part::EphemeralContainers,
                    _ => Part::Itself,
                };
                let pod = api_pod::update(old, *new, part);
                let placed = pod.map(|mut pod| {
                    place(&mut pod.spec, self.api.node.name());
                    pod
                });
                placed
                    .map(|pod| StoredObject::Pod(Rc::new(pod)))
                    .map_err(|errors| self.invalid(name, &errors))
            }
            (StoredObject::Object(old), Draft::Object(mut written)) => {
                if let AnyObject::Plain(plain) = &mut *written {
                    carry_over(plain.kind, &old.content.body(), &mut plain.body);
                }
                let mut object = self.accept(*written, name)?;
                config
                    .assign_addresses(&mut object, Some(old))
                    .map_err(|errors| self.invalid(name, &errors))?;
                object.uid.clone_from(&old.uid);
                object.created = old.created;
                object.deleted = old.deleted;
                object.managed_fields = old.managed_fields.clone();
                account::fill(self, &mut object)?;
                keep_observed(old, &mut object, self.ignores_status());
                if let Some(why) = expansion::refusal(self, config, old, &object) {
                    return Err(self.refused(name, why));
                }
                let errors = refused_change(old, &object);
                if errors.is_empty() {
                    Ok(StoredObject::Object(Rc::new(object)))
                } else {
                    Err(self.invalid(name, &errors))
                }
            }
            _ => Err(status::internal("an object has changed its kind")),
        }
    }

    /// Puts what is observed of a stored object into its JSON: version, times, status.
    pub(super) fn complete(&self, kept: &StoredObject, object: &mut Value) {
        let (namespace, name) = kept.place();
        match kept {
            StoredObject::Pod(pod) => {
                if let Some(found) = self.api.node.pod(namespace, name, Some(&pod.metadata.uid)) {
                    objects::complete(&self.api, found, object);
                }
            }
            StoredObject::Object(kept) => {
                let found = self.api.find(self.store(), namespace, name);
                let Some(mut shown) = found.filter(|found| text(found, "/metadata/uid") == kept.uid) else {
                    return;
                };
                for field in ["resourceVersion", "creationTimestamp", "deletionTimestamp"] {
                    if let Some(value) = shown["metadata"].get_mut(field) {
                        object["metadata"][field] = value.take();
                    }
                }
                if let Some(status) = shown.get_mut("status") {
                    object["status"] = status.take();
                }
            }
        }
    }

    /// The answer with a stored object and its JSON.
    pub(super) fn outcome(
        &self,
        code: hyper::StatusCode,
        kept: &StoredObject,
        mut object: Value,
        mut warnings: Vec<String>,
    ) -> WriteOutcome {
        warnings.extend(kept.warnings(&self.api));
        let pod = match kept {
            StoredObject::Pod(pod) => Some(Rc::clone(pod)),
            StoredObject::Object(_) => None,
        };
        if self.dry_run {
            // Clients compare the answer with what they read.
            self.complete(kept, &mut object);
        }
        WriteOutcome { code, object, is_kept: !self.dry_run, pod, warnings }
    }
}
