//! ConfigMaps, Secrets and claims of this node: from a decoded document to a usable object, and from the
//! objects of all sources to the effective ones.
//!
//! Owns the precedence when two sources define the same object, and that an immutable object stays unchanged
//! until it is deleted. Invariant: a source that has not answered loses nothing.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;

use crate::desired::kinds::addresses::{ServiceRanges, Taken, assign};
use crate::desired::kinds::{rules, warning};
use crate::desired::validation::{self, validate_object};
use crate::model::api::managed_fields::ManagedFields;
use crate::model::field_error::{Errors, FieldError};
use crate::model::objects::{AnyObject, LocalObject, ObjectContent, ObjectKey, ObjectKind, PlainBody, wire};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::source::SourceObject;
use crate::model::types::{PodSource, Timestamp};

/// Deprecated by upstream, and not acted on here.
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
/// Written by the controller of Deployments.
/// On a Deployment and its ReplicaSets.
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";

/// Objects by key: of one source, or the effective ones.
pub(crate) type Objects = BTreeMap<ObjectKey, SourceObject>;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObjectSets {
    /// The admitted objects of each source; of one that has not answered since the start, those from the
    /// store.
    pub sources: BTreeMap<PodSource, Objects>,
    /// The findings of each source's last answer.
    findings: BTreeMap<PodSource, Vec<ObjectFinding>>,
    /// What Services may have; `None` where they get nothing.
    pub services: Option<ServiceRanges>,
}

/// A problem of the objects that the user must fix; reason `FailedValidation`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectFinding {
    /// The file or URL that defines it.
    pub origin: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("invalid {}: {}", kind.as_str(), .errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
pub struct InvalidObject {
    pub kind: ObjectKind,
    /// At least one.
    pub errors: Vec<FieldError>,
}

/// Prepares an object of a manifest: as [`accept`], without the fields that only an API keeps. An annotation
/// that repeats the values of a Secret is dropped. Also returns the fields that are accepted and have no
/// effect.
pub(super) fn prepare(decoded: AnyObject) -> Result<(LocalObject, Vec<String>), InvalidObject> {
    let mut decoded = decoded;
    if let AnyObject::Plain(plain) = &mut decoded
        && let Some(members) = plain.body.as_object_mut()
    {
        // It is observed, and no part of a manifest.
        members.remove("status");
    }
    let mut object = accept(decoded)?;
    object.managed_fields = ManagedFields::default();
    // It is removed with its manifest.
    object.finalizers.clear();
    object.owner_references.clear();
    match object.key.kind {
        ObjectKind::Secret => drop(object.annotations.remove(wire::LAST_APPLIED)),
        ObjectKind::Namespace => {
            object.labels.insert("kubernetes.io/metadata.name".to_owned(), object.key.name.clone());
        }
        _ => {}
    }
    let ignored = ignored(&object);
    Ok((object, ignored))
}

/// Prepares a decoded object: defaults, base64, `stringData`, validation. A uid in the document is ignored.
pub(crate) fn accept(decoded: AnyObject) -> Result<LocalObject, InvalidObject> {
    let mut decoded = decoded;
    if let AnyObject::Plain(plain) = &mut decoded {
        (rules(plain.kind).defaults)(&mut plain.body);
    }
    // A copy for the validation, which checks fields that have no effect here.
    let written = decoded.clone();
    let (object, bad) = wire::local(decoded);
    let uid = wire::derived_uid(&object.key);
    let object = LocalObject { uid, created: Timestamp::default(), deleted: None, ..object };
    let mut errors = validate_object(&written, &object, &bad);
    if let AnyObject::Plain(plain) = &written {
        let mut more = Errors::default();
        (rules(plain.kind).validate)(&object, &plain.body, &mut more);
        errors.extend(more.0);
    }
    if errors.is_empty() { Ok(object) } else { Err(InvalidObject { kind: object.key.kind, errors }) }
}

/// What is accepted of an object and has no effect.
#[must_use]
pub(crate) fn ignored(object: &LocalObject) -> Vec<String> {
    match &object.content {
        ObjectContent::Plain(_) => warning(object).into_iter().map(str::to_owned).collect(),
        ObjectContent::Claim(claim) => claim
            .storage_class
            .iter()
            .filter(|class| !class.is_empty())
            .map(|class| {
                format!(
                    "spec.storageClassName: {class:?} has no effect without a PersistentVolume or a StorageClass of it: the claim uses a directory of this node"
                )
            })
            .collect(),
        _ if object.key.kind == ObjectKind::ServiceAccount
            && object.annotations.get(ENFORCE).is_some_and(|value| value == "true") =>
        {
            vec![format!(
                "metadata.annotations[{ENFORCE}] has no effect: pods of the account may use every Secret of its namespace"
            )]
        }
        _ => Vec::new(),
    }
}

/// Why an object may not replace the existing one of its key; empty when it may.
#[must_use]
pub(crate) fn refused_change(old: &LocalObject, new: &LocalObject) -> Vec<FieldError> {
    let (ObjectContent::Plain(was), ObjectContent::Plain(becomes)) = (&old.content, &new.content) else {
        return validation::refused_change(&old.content, &new.content);
    };
    if was == becomes {
        return Vec::new();
    }
    let mut errors = Errors::default();
    (rules(new.key.kind).validate_update)(&was.parse(), &becomes.parse(), &mut errors);
    errors.0
}

/// Whether two objects are equal except for the time of their first observation.
#[must_use]
pub(crate) fn is_same(known: &LocalObject, new: &LocalObject) -> bool {
    known.content == new.content
        && known.key == new.key
        && known.uid == new.uid
        && known.labels == new.labels
        && known.annotations == new.annotations
        && known.managed_fields == new.managed_fields
        && known.finalizers == new.finalizers
        && known.owner_references == new.owner_references
        && known.deleted == new.deleted
}

/// The object to keep when `known` exists and `new` is delivered: the same `Rc` while nothing has changed,
/// since the source and the set share it; otherwise the new object with the creation time of its first
/// observation.
#[must_use]
pub(crate) fn carry(known: Option<&Rc<LocalObject>>, new: LocalObject, now: Timestamp) -> Rc<LocalObject> {
    match known {
        Some(known) if is_same(known, &new) => Rc::clone(known),
        Some(known) => Rc::new(LocalObject { created: known.created, ..new }),
        None if new.created == Timestamp::default() => Rc::new(LocalObject { created: now, ..new }),
        None => Rc::new(new),
    }
}

impl ObjectSets {
    #[must_use]
    pub(crate) fn remembered(stored: impl IntoIterator<Item = (PodSource, Vec<SourceObject>)>) -> Self {
        let by_key = |objects: Vec<SourceObject>| {
            objects.into_iter().map(|object| (object.object.key.clone(), object)).into_map()
        };
        let sources = stored.into_iter().map(|(source, objects)| (source, by_key(objects))).into_map();
        Self { sources, findings: BTreeMap::new(), services: None }
    }

    /// As [`Self::replace`].
    #[cfg(test)]
    fn merge(&self, source: PodSource, wanted: Vec<SourceObject>) -> Self {
        let mut merged = self.clone();
        merged.replace(source, wanted);
        merged
    }

    /// Replaces the whole set of one source. Of two objects with the same key the first by origin is used; an
    /// immutable one keeps its content.
    pub(crate) fn replace(&mut self, source: PodSource, mut wanted: Vec<SourceObject>) {
        wanted.order_by(|left, right| {
            (&left.origin, &left.object.key).cmp(&(&right.origin, &right.object.key))
        });
        let has_services = wanted.iter().any(|new| new.object.key.kind == ObjectKind::Service);
        // What this delivery leaves out has freed its addresses and ports.
        let kept = wanted.iter().map(|new| &new.object.key).into_set();
        if let Some(known) = self.sources.get_mut(&source) {
            known.retain(|key, _| kept.contains(key));
        }
        let ranges = self.services.clone().filter(|_| has_services && source != PodSource::Cluster);
        let mut services = ranges.map(|ranges| (self.taken(&ranges), ranges));
        let known = self.sources.remove(&source).unwrap_or_default();
        let mut admitted = Objects::new();
        let mut findings = Vec::new();
        for mut new in wanted {
            let key = new.object.key.clone();
            if let Some(first) = admitted.get(&key) {
                let message = format!(
                    "{key} is defined more than once, ignoring this one ({} is used); delete one of them",
                    first.origin
                );
                findings.push(ObjectFinding { origin: new.origin, message });
                continue;
            }
            let old = known.get(&key);
            let mut errors = Vec::new();
            if let Some((taken, ranges)) = services.as_mut().filter(|_| key.kind == ObjectKind::Service) {
                let mut object = LocalObject::clone(&new.object);
                errors = assign(&mut object, old.map(|old| &*old.object), taken, ranges);
                taken.add(&object);
                new.object = Rc::new(object);
            }
            if old.is_none() && !errors.is_empty() {
                let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
                let message = format!("{key} cannot be created: {}", texts.join(", "));
                findings.push(ObjectFinding { origin: new.origin, message });
                continue;
            }
            let refused = match old {
                // What may change in the cluster, its server has decided.
                Some(old) if source != PodSource::Cluster => refused_change(&old.object, &new.object),
                _ => Vec::new(),
            };
            errors.extend(refused);
            let taken = match old {
                Some(old) if !errors.is_empty() => {
                    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
                    let message = format!(
                        "{key} cannot be changed, keeping its last version: {}; delete it first, or use \
                         another name",
                        texts.join(", ")
                    );
                    findings.push(ObjectFinding { origin: new.origin.clone(), message });
                    SourceObject { object: Rc::clone(&old.object), origin: new.origin }
                }
                Some(old) => SourceObject { object: with_observed(&old.object, new.object), ..new },
                None => new,
            };
            admitted.insert(key, taken);
        }
        self.sources.insert(source, admitted);
        self.findings.insert(source, findings);
    }

    /// The addresses and ports that Services have.
    pub(crate) fn taken(&self, ranges: &ServiceRanges) -> Taken {
        Taken::by(
            self.of_node().flat_map(|(_, objects)| objects.values().map(|found| &*found.object)),
            ranges,
        )
    }

    /// Puts one object, which its writer has validated.
    pub(crate) fn put(&mut self, source: PodSource, object: SourceObject) {
        self.sources.entry(source).or_default().insert(object.object.key.clone(), object);
    }

    pub(crate) fn remove(&mut self, source: PodSource, key: &ObjectKey) {
        if let Some(objects) = self.sources.get_mut(&source) {
            objects.remove(key);
        }
    }

    /// The objects of one source.
    pub(crate) fn of_source(&self, source: PodSource) -> impl Iterator<Item = &SourceObject> {
        self.sources.get(&source).into_iter().flat_map(BTreeMap::values)
    }

    /// The effective object of this key.
    #[must_use]
    pub(crate) fn find(&self, key: &ObjectKey) -> Option<&SourceObject> {
        self.locate(key).map(|(_, object)| object)
    }

    /// The same with its source.
    #[must_use]
    pub(crate) fn locate(&self, key: &ObjectKey) -> Option<(PodSource, &SourceObject)> {
        self.of_node().find_map(|(source, objects)| Some((*source, objects.get(key)?)))
    }

    /// Without those of the cluster.
    fn of_node(&self) -> impl Iterator<Item = (&PodSource, &Objects)> {
        self.sources.iter().filter(|(source, _)| **source != PodSource::Cluster)
    }

    /// The effective objects. Of two sources that define the same one, the first in the order `file`, `http`,
    /// `api` has precedence.
    #[must_use]
    pub(crate) fn winners(&self) -> BTreeMap<&ObjectKey, &SourceObject> {
        let mut winners = BTreeMap::new();
        for (key, object) in self.of_node().flat_map(|(_, objects)| objects) {
            winners.entry(key).or_insert(object);
        }
        winners
    }

    /// All current findings, complete each time.
    #[must_use]
    pub(crate) fn findings(&self) -> Vec<ObjectFinding> {
        let mut findings: Vec<ObjectFinding> = self.findings.values().flatten().cloned().collect();
        let sources: Vec<(&PodSource, &Objects)> = self.of_node().collect();
        for (at, (source, objects)) in sources.iter().enumerate().skip(1) {
            for (other, earlier) in &sources[..at] {
                for (key, object, first) in in_both(objects, earlier) {
                    let is_first = sources[..at].iter().find(|(_, known)| known.contains_key(key));
                    if is_first.is_some_and(|(first, _)| first != other) {
                        continue;
                    }
                    findings.push(ObjectFinding {
                        origin: object.origin.clone(),
                        message: format!(
                            "{key} is defined by both {other} ({}) and {source} ({}); the first is used, delete \
                             one of them",
                            first.origin, object.origin
                        ),
                    });
                }
            }
        }
        findings
    }
}

/// The keys of both sets, with the object of each. The smaller one is walked.
fn in_both<'a>(
    one: &'a Objects,
    other: &'a Objects,
) -> Vec<(&'a ObjectKey, &'a SourceObject, &'a SourceObject)> {
    if one.len() <= other.len() {
        one.iter().filter_map(|(key, object)| Some((key, object, other.get(key)?))).collect()
    } else {
        other.iter().filter_map(|(key, object)| Some((key, one.get(key)?, object))).collect()
    }
}

/// Keeps the status of the earlier version of an object, if it is no part of what is written, and counts changes of the
/// rest in the generation.
pub(crate) fn keep_observed(old: &LocalObject, new: &mut LocalObject, keeps_status: bool) {
    let (ObjectContent::Plain(was), ObjectContent::Plain(body)) = (&old.content, &new.content) else {
        return;
    };
    let (mut was, mut becomes) = (was.parse(), body.parse());
    let mut status = Value::Null;
    if keeps_status {
        let taken =
            |members: &mut Value| members.as_object_mut().and_then(|members| members.remove("status"));
        let (old_status, new_status) = (taken(&mut was), taken(&mut becomes));
        // That of a definition follows from the rest.
        let is_derived = old.key.kind == ObjectKind::CustomResourceDefinition;
        status = if is_derived { new_status } else { old_status }.unwrap_or_default();
    }
    if old.key.kind.has_generation() {
        new.generation = old.generation + i64::from(was != becomes);
    }
    if !status.is_null() {
        becomes["status"] = status;
    }
    new.content = ObjectContent::Plain(PlainBody::new(&becomes));
}

/// A new version of an object from the same source, with what this node has observed of it: its status, and how
/// often its spec has changed. The same `Rc` if nothing has changed.
fn with_observed(old: &Rc<LocalObject>, new: Rc<LocalObject>) -> Rc<LocalObject> {
    if !matches!(new.content, ObjectContent::Plain(_)) {
        return new;
    }
    let mut object = LocalObject::clone(&new);
    keep_observed(old, &mut object, true);
    if let Some(revision) = old.annotations.get(REVISION) {
        object.annotations.entry(REVISION.to_owned()).or_insert_with(|| revision.clone());
    }
    if object == **old { Rc::clone(old) } else { Rc::new(object) }
}

#[cfg(test)]
mod tests;
