//! What a pod refers to.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeSet;

use crate::model::api::pod::Pod;
use crate::model::objects::ObjectKey;

/// What a pod of the cluster needs before it can run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub objects: BTreeSet<ObjectKey>,
    /// Services of this namespace become variables.
    pub namespace: String,
}

#[must_use]
pub(crate) fn references(pod: &Pod) -> Needs {
    Needs { namespace: pod.metadata.namespace.clone(), objects: BTreeSet::new() }
}
