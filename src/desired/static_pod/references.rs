//! The permitted references of a pod without an API server. ConfigMaps, Secrets, pull secrets, claims and CSIDrivers
//! are allowed: they are local objects here (design 2.4); everything else is refused with upstream's messages.
//!
//! Owns the list of refused references.

use crate::model::api::pod::{PodSpec, Volume, VolumeProjection};

/// Checks a pod from a manifest.
///
/// # Errors
/// The first refused kind of object, in upstream's order.
pub(super) fn check(spec: &PodSpec) -> Result<(), &'static str> {
    if !spec.service_account_name.is_empty() || !spec.deprecated_service_account.is_empty() {
        return Err("serviceaccounts");
    }
    check_all(spec, |_| false)
}

/// Checks a pod of the API, whose service account is checked elsewhere. Optional references are allowed.
pub(super) fn check_of_api(spec: &PodSpec) -> Result<(), &'static str> {
    check_all(spec, |projection| {
        let bundle = projection.cluster_trust_bundle.as_ref();
        projection.service_account_token.is_some() || bundle.is_some_and(|bundle| bundle["optional"] == true)
    })
}

fn check_all(spec: &PodSpec, is_harmless: fn(&VolumeProjection) -> bool) -> Result<(), &'static str> {
    if !spec.resource_claims.is_empty() {
        return Err("resourceclaims");
    }
    spec.volumes.iter().try_for_each(check_volume)?;
    let projected = spec.volumes.iter().flat_map(|volume| &volume.projected);
    let mut sources = projected.flat_map(|projected| &projected.sources);
    sources.try_for_each(|source| if is_harmless(source) { Ok(()) } else { check_projection(source) })
}

fn check_volume(volume: &Volume) -> Result<(), &'static str> {
    if volume.glusterfs.is_some() {
        return Err("endpoints (via glusterFS volumes)");
    }
    if volume.azure_file.is_some() {
        return Err("secrets (via azureFile volumes)");
    }
    Ok(())
}

fn check_projection(projection: &VolumeProjection) -> Result<(), &'static str> {
    if projection.service_account_token.is_some() {
        return Err("serviceaccounts (via projected volumes)");
    }
    if projection.cluster_trust_bundle.is_some() {
        return Err("clustertrustbundles");
    }
    if projection.pod_certificate.is_some() {
        return Err("podcertificates");
    }
    Ok(())
}
