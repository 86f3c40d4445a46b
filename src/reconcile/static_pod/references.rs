//! What a pod that no apiserver stands behind may refer to. ConfigMaps, Secrets, pull secrets and claims are allowed:
//! they are local objects here (design 2.4); everything else is refused with upstream's words.
//!
//! Owns the list of refused references. Must not know whether a referenced object exists.

use crate::api::pod::{PodSpec, Volume, VolumeProjection};

/// # Errors
/// The first refused kind of object, in upstream's order.
pub(super) fn check(spec: &PodSpec) -> Result<(), &'static str> {
    if !spec.service_account_name.is_empty() || !spec.deprecated_service_account.is_empty() {
        return Err("serviceaccounts");
    }
    if !spec.resource_claims.is_empty() {
        return Err("resourceclaims");
    }
    spec.volumes.iter().try_for_each(check_volume)
}

fn check_volume(volume: &Volume) -> Result<(), &'static str> {
    if volume.csi.is_some() {
        return Err("csidrivers (via CSI volumes)");
    }
    if volume.glusterfs.is_some() {
        return Err("endpoints (via glusterFS volumes)");
    }
    if volume.ephemeral.is_some() {
        return Err("persistentvolumeclaims (via ephemeral volumes)");
    }
    if volume.azure_file.is_some() {
        return Err("secrets (via azureFile volumes)");
    }
    let projections = volume.projected.iter().flat_map(|projected| &projected.sources);
    projections.map(check_projection).collect()
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
