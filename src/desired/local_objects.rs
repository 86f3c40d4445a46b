//! ConfigMaps, Secrets and claims of this node: from a decoded document to a usable object, and from the
//! objects of all sources to the effective ones.
//!
//! Owns the precedence when two sources define the same object, and that an immutable object stays unchanged
//! until it is deleted. Invariant: a source that has not answered loses nothing.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::desired::validation::{refused_change, validate_object};
use crate::model::api::managed_fields::ManagedFields;
use crate::model::api::object::AnyObject;
use crate::model::field_error::FieldError;
use crate::model::objects::{LocalObject, ObjectContent, ObjectKey, ObjectKind, wire};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::source::SourceObject;
use crate::model::types::{PodSource, Timestamp};

/// Objects by key: of one source, or the effective ones.
pub(crate) type Objects = BTreeMap<ObjectKey, SourceObject>;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObjectSets {
    /// The admitted objects of each source; of one that has not answered since the start, those from the
    /// store.
    pub sources: BTreeMap<PodSource, Objects>,
    /// The findings of each source's last answer.
    findings: BTreeMap<PodSource, Vec<ObjectFinding>>,
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
    let mut object = accept(decoded)?;
    object.managed_fields = ManagedFields::default();
    // It is removed with its manifest.
    object.finalizers.clear();
    if object.key.kind == ObjectKind::Secret {
        object.annotations.remove(wire::LAST_APPLIED);
    }
    let ignored = ignored(&object);
    Ok((object, ignored))
}

/// Prepares a decoded object: defaults, base64, `stringData`, validation. A uid in the document is ignored.
pub(crate) fn accept(decoded: AnyObject) -> Result<LocalObject, InvalidObject> {
    // A copy for the validation, which checks fields that have no effect here.
    let written = decoded.clone();
    let (object, bad) = wire::local(decoded);
    let uid = wire::derived_uid(&object.key);
    let object = LocalObject { uid, created: Timestamp::default(), deleted: None, ..object };
    let errors = validate_object(&written, &object, &bad);
    if errors.is_empty() { Ok(object) } else { Err(InvalidObject { kind: object.key.kind, errors }) }
}

/// The fields of an object that are accepted and have no effect.
#[must_use]
pub(crate) fn ignored(object: &LocalObject) -> Vec<String> {
    match &object.content {
        ObjectContent::Claim(claim) => claim
            .storage_class
            .iter()
            .filter(|class| !class.is_empty())
            .map(|class| {
                format!("spec.storageClassName: {class:?} is ignored, claims use a directory on this node")
            })
            .collect(),
        _ => Vec::new(),
    }
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
        Self { sources, findings: BTreeMap::new() }
    }

    /// Merges the whole set of one source. Of two objects with the same key the first by origin is used; an
    /// immutable one keeps its content.
    #[must_use]
    pub(crate) fn merge(&self, source: PodSource, mut wanted: Vec<SourceObject>) -> Self {
        wanted.order_by(|left, right| {
            (&left.origin, &left.object.key).cmp(&(&right.origin, &right.object.key))
        });
        let mut merged = self.clone();
        let known = merged.sources.remove(&source).unwrap_or_default();
        let mut admitted = Objects::new();
        let mut findings = Vec::new();
        for new in wanted {
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
            let errors = match old {
                // What may change in the cluster, its server has decided.
                Some(old) if source != PodSource::Cluster => {
                    refused_change(&old.object.content, &new.object.content)
                }
                _ => Vec::new(),
            };
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
                _ => new,
            };
            admitted.insert(key, taken);
        }
        merged.sources.insert(source, admitted);
        merged.findings.insert(source, findings);
        merged
    }

    /// The effective object of this key.
    #[must_use]
    pub(crate) fn find(&self, key: &ObjectKey) -> Option<&SourceObject> {
        self.of_node().find_map(|(_, objects)| objects.get(key))
    }

    /// Without those of the cluster.
    fn of_node(&self) -> impl Iterator<Item = (&PodSource, &Objects)> {
        self.sources.iter().filter(|(source, _)| **source != PodSource::Cluster)
    }

    /// The effective objects. Of two sources that define the same one, the first in the order `file`, `http`,
    /// `api` has precedence.
    #[must_use]
    pub(crate) fn effective(&self) -> BTreeMap<ObjectKey, Rc<LocalObject>> {
        let shared = |(key, object): (&ObjectKey, &SourceObject)| (key.clone(), Rc::clone(&object.object));
        self.winners().into_iter().map(shared).into_map()
    }

    /// The objects of the cluster: those of this node with the same keys are other ones.
    #[must_use]
    pub(crate) fn of_cluster(&self) -> BTreeMap<ObjectKey, Rc<LocalObject>> {
        let objects = self.sources.get(&PodSource::Cluster).into_iter().flatten();
        objects.map(|(key, object)| (key.clone(), Rc::clone(&object.object))).into_map()
    }

    /// The same with their origins.
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
        let mut first: BTreeMap<&ObjectKey, (PodSource, &SourceObject)> = BTreeMap::new();
        for (source, objects) in self.of_node() {
            for (key, object) in objects {
                let Some((other, earlier)) = first.get(key) else {
                    first.insert(key, (*source, object));
                    continue;
                };
                findings.push(ObjectFinding {
                    origin: object.origin.clone(),
                    message: format!(
                        "{key} is defined by both {other} ({}) and {source} ({}); the first is used, delete \
                         one of them",
                        earlier.origin, object.origin
                    ),
                });
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests;
