//! Rules of the spec of a claim (upstream: `ValidatePersistentVolumeClaimSpec`), which a pod's template of one has, too.

use std::collections::BTreeSet;

use crate::model::api::object::PersistentVolumeClaimSpec;
use crate::model::api::quantity::Quantity;
use crate::model::field_error::{Errors, Path};
use crate::model::names;
use crate::model::objects::volumes::ACCESS_MODES;
use crate::model::objects::wire::STORAGE;
use crate::model::ordered::Ordered as _;

pub(super) fn claim_spec(
    wire: &PersistentVolumeClaimSpec,
    storage: Quantity,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    let modes = at.child("accessModes");
    if wire.access_modes.is_empty() {
        errors.required(&modes, "at least 1 access mode is required");
    }
    for mode in &wire.access_modes {
        errors.one_of(&modes, mode, &ACCESS_MODES);
    }
    let modes_used: BTreeSet<&str> = wire.access_modes.iter().map(String::as_str).into_set();
    if modes_used.contains("ReadWriteOncePod") && modes_used.len() > 1 {
        errors.forbidden(&modes, "may not use ReadWriteOncePod with other access modes");
    }
    let resources = at.child("resources");
    if !wire.resources.requests.contains_key(STORAGE) {
        errors.required(&resources.key(STORAGE), "");
    } else if storage.value() <= 0 {
        errors.invalid(&resources.key(STORAGE), &storage.to_string(), "must be greater than zero");
    }
    if let Some(class) = wire.storage_class_name.as_ref().filter(|class| !class.is_empty()) {
        errors.all(&at.child("storageClassName"), class, names::dns_subdomain(class));
    }
    errors.optional_of(&at.child("volumeMode"), wire.volume_mode.as_deref(), &["Filesystem"]);
    if !wire.volume_name.is_empty() {
        errors.name(&at.child("volumeName"), &wire.volume_name, names::dns_subdomain);
    }
    let unsupported = [
        ("selector", &wire.selector),
        ("dataSource", &wire.data_source),
        ("dataSourceRef", &wire.data_source_ref),
    ];
    for (field, _) in unsupported.into_iter().filter(|(_, value)| value.is_some()) {
        errors
            .forbidden(&at.child(field), "no volume of this node is found or filled by it; remove the field");
    }
}
