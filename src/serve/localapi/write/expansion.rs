//! Claims that are to grow (upstream: the admission plugin `PersistentVolumeClaimResize`, 1.36).
//!
//! Pure: what it returns depends on its arguments alone.

use crate::desired::pod_config::PodConfig;
use crate::model::objects::{LocalObject, ObjectContent, ObjectKey, ObjectKind};

/// Why a claim may not grow: the StorageClass that it names is here and does not allow it. A claim without one is a
/// directory, which can.
pub(super) fn refusal(config: &PodConfig, old: &LocalObject, new: &LocalObject) -> Option<&'static str> {
    let (ObjectContent::Claim(old), ObjectContent::Claim(new)) = (&old.content, &new.content) else {
        return None;
    };
    if new.storage <= old.storage {
        return None;
    }
    let (kind, name) = (ObjectKind::StorageClass, old.storage_class.clone()?);
    let (_, class) = config.find_object(&ObjectKey { kind, namespace: String::new(), name })?;
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
               support resize";
    (class.object.content.body()["allowVolumeExpansion"] != true).then_some(why)
}
