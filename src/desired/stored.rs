//! The stored form of what the API holds: a pod or an object.
//!
//! Owns what a deletion makes of it. Pure.

use std::rc::Rc;

use crate::desired::change::ApiChange;
use crate::model::api::pod::Pod;
use crate::model::objects::{LocalObject, OwnerReference};
use crate::model::types::Timestamp;
use crate::pod::lifecycle::requested_termination;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoredObject {
    Pod(Rc<Pod>),
    Object(Rc<LocalObject>),
}

impl StoredObject {
    #[must_use]
    pub(crate) fn finalizers(&self) -> &[String] {
        match self {
            Self::Pod(pod) => &pod.metadata.finalizers,
            Self::Object(object) => &object.finalizers,
        }
    }

    pub(crate) fn finalizers_mut(&mut self) -> &mut Vec<String> {
        match self {
            Self::Pod(pod) => &mut Rc::make_mut(pod).metadata.finalizers,
            Self::Object(object) => &mut Rc::make_mut(object).finalizers,
        }
    }

    /// Whether it was deleted and finalizers keep it.
    #[must_use]
    pub(crate) fn is_terminating(&self) -> bool {
        match self {
            Self::Pod(pod) => pod.metadata.deletion_timestamp.is_some(),
            Self::Object(object) => object.deleted.is_some(),
        }
    }

    #[must_use]
    pub(crate) fn uid(&self) -> &str {
        match self {
            Self::Pod(pod) => pod.metadata.uid.as_str(),
            Self::Object(object) => &object.uid,
        }
    }

    /// Namespace and name.
    #[must_use]
    pub(crate) fn place(&self) -> (&str, &str) {
        match self {
            Self::Pod(pod) => (&pod.metadata.namespace, &pod.metadata.name),
            Self::Object(object) => (&object.key.namespace, &object.key.name),
        }
    }

    #[must_use]
    pub(crate) fn owners(&self) -> Vec<OwnerReference> {
        match self {
            Self::Pod(pod) => pod.metadata.owner_references.iter().map(OwnerReference::from_value).collect(),
            Self::Object(object) => object.owner_references.clone(),
        }
    }

    #[must_use]
    pub(crate) fn has_owners(&self) -> bool {
        match self {
            Self::Pod(pod) => !pod.metadata.owner_references.is_empty(),
            Self::Object(object) => !object.owner_references.is_empty(),
        }
    }

    /// Without references to owners of these uids.
    #[must_use]
    pub(crate) fn disowned(mut self, is_gone: impl Fn(&str) -> bool) -> Self {
        match &mut self {
            Self::Pod(pod) => Rc::make_mut(pod)
                .metadata
                .owner_references
                .retain(|owner| !owner["uid"].as_str().is_some_and(&is_gone)),
            Self::Object(object) => {
                Rc::make_mut(object).owner_references.retain(|owner| !is_gone(&owner.uid));
            }
        }
        self
    }

    /// The change that makes this the desired state.
    #[must_use]
    pub(crate) fn to_change(&self) -> ApiChange {
        match self {
            Self::Pod(pod) => ApiChange { put_pods: vec![Rc::clone(pod)], ..ApiChange::default() },
            Self::Object(object) => {
                ApiChange { put_objects: vec![Rc::clone(object)], ..ApiChange::default() }
            }
        }
    }

    /// The effect of a deletion: the object is removed, or gets a deletion timestamp. `grace` in seconds, `None`
    /// for the pod's own.
    #[must_use]
    pub(crate) fn removal(&self, grace: Option<i64>, now: Timestamp) -> ApiChange {
        if self.finalizers().is_empty() {
            return self.removed(grace);
        }
        let going = self.clone().deleted(grace, now);
        if going == *self { ApiChange::default() } else { going.to_change() }
    }

    /// The change that removes it, whatever its finalizers.
    #[must_use]
    pub(crate) fn removed(&self, grace: Option<i64>) -> ApiChange {
        match self {
            Self::Pod(pod) => {
                ApiChange { remove_pods: vec![(Rc::clone(pod), grace)], ..ApiChange::default() }
            }
            Self::Object(object) => {
                ApiChange { remove_objects: vec![object.key.clone()], ..ApiChange::default() }
            }
        }
    }

    /// Marks as deleted, or shortens the grace period.
    #[must_use]
    pub(crate) fn deleted(mut self, grace: Option<i64>, now: Timestamp) -> Self {
        match &mut self {
            Self::Pod(pod) => {
                let (since, grace) = requested_termination(pod, grace, now);
                let metadata = &mut Rc::make_mut(pod).metadata;
                metadata.deletion_timestamp = Some(since);
                metadata.deletion_grace_period_seconds = Some(grace);
            }
            Self::Object(object) if object.deleted.is_none() => {
                let object = Rc::make_mut(object);
                object.deleted = Some(now);
                object.generation += i64::from(object.generation > 0);
            }
            Self::Object(_) => {}
        }
        self
    }
}
