//! Claims that are to grow (upstream: the admission plugin `PersistentVolumeClaimResize`, 1.36).
//!
//! Owns which may.

use super::Task;
use crate::desired::pod_config::PodConfig;
use crate::model::objects::volumes::Binding;
use crate::model::objects::{LocalObject, ObjectContent, ObjectKey, ObjectKind};

/// Why a claim may not ask for more, in upstream's words: only a directory can grow, and only if the StorageClass that
/// the claim names, should there be one, says so.
pub(super) fn refusal(
    task: &Task,
    config: &PodConfig,
    claim: &LocalObject,
    new: &LocalObject,
) -> Option<&'static str> {
    let (ObjectContent::Claim(old), ObjectContent::Claim(new)) = (&claim.content, &new.content) else {
        return None;
    };
    if new.storage <= old.storage {
        return None;
    }
    let name = match task.api.cluster.binding(claim) {
        Binding::Directory => Some(old.storage_class.clone()?),
        Binding::Volume(_) => None,
        _ => return Some("Only bound persistent volume claims can be expanded"),
    };
    let class = name.map(|name| {
        config.find_object(&ObjectKey { kind: ObjectKind::StorageClass, namespace: String::new(), name })
    });
    let allows = match class {
        // The directory of a claim whose class is not here.
        Some(None) => true,
        Some(Some((_, class))) => class.object.content.body()["allowVolumeExpansion"] == true,
        None => false,
    };
    (!allows).then_some(
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
    )
}
