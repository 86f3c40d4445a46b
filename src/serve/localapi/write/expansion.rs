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
    match task.api.cluster.binding(claim) {
        Binding::Directory => {
            let (kind, name) = (ObjectKind::StorageClass, old.storage_class.clone()?);
            let (_, class) = config.find_object(&ObjectKey { kind, namespace: String::new(), name })?;
            if class.object.content.body()["allowVolumeExpansion"] == true {
                return None;
            }
        }
        Binding::Volume(_) => {}
        _ => return Some("Only bound persistent volume claims can be expanded"),
    }
    Some(
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
    )
}
