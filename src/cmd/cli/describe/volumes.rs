//! The volumes of a described pod.
//!
//! Owns their part of the page.

use super::super::tabs::Tabbed;
use super::{field, printable};
use crate::model::api::pod::{DownwardApiVolumeSource, Volume, VolumeProjection};

/// A field of a volume and its value.
type Row = (&'static str, String);

pub(super) fn describe(out: &mut Tabbed, volumes: &[Volume]) {
    if volumes.is_empty() {
        return out.line(0, "Volumes:\t<none>");
    }
    out.line(0, "Volumes:");
    for volume in volumes {
        out.line(1, &format!("{}:", printable(&volume.name)));
        let rows = rows(volume);
        if rows.is_empty() {
            out.line(2, "<unknown>");
        }
        for (name, value) in rows {
            field(out, 2, name, &value);
        }
        if let Some(source) = &volume.downward_api {
            items(out, source);
        }
    }
}

fn rows(volume: &Volume) -> Vec<Row> {
    let optional = |optional: Option<bool>| ("Optional", optional.unwrap_or(false).to_string());
    let kind = |text: &str| ("Type", text.to_owned());
    if let Some(source) = &volume.host_path {
        vec![
            kind("HostPath (bare host directory volume)"),
            ("Path", source.path.clone()),
            ("HostPathType", source.type_.clone()),
        ]
    } else if let Some(source) = &volume.empty_dir {
        let limit = source.size_limit.filter(|limit| !limit.is_zero());
        vec![
            kind("EmptyDir (a temporary directory that shares a pod's lifetime)"),
            ("Medium", source.medium.clone()),
            ("SizeLimit", limit.map_or("<unset>".to_owned(), |limit| limit.to_string())),
        ]
    } else if let Some(source) = &volume.secret {
        vec![
            kind("Secret (a volume populated by a Secret)"),
            ("SecretName", source.secret_name.clone()),
            optional(source.optional),
        ]
    } else if let Some(source) = &volume.config_map {
        vec![
            kind("ConfigMap (a volume populated by a ConfigMap)"),
            ("Name", source.name.clone()),
            optional(source.optional),
        ]
    } else if let Some(source) = &volume.nfs {
        vec![
            kind("NFS (an NFS mount that lasts the lifetime of a pod)"),
            ("Server", source.server.clone()),
            ("Path", source.path.clone()),
            ("ReadOnly", source.read_only.to_string()),
        ]
    } else if let Some(source) = &volume.persistent_volume_claim {
        vec![
            kind("PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)"),
            ("ClaimName", source.claim_name.clone()),
            ("ReadOnly", source.read_only.to_string()),
        ]
    } else if let Some(source) = &volume.image {
        vec![
            kind("Image (a container image or OCI artifact)"),
            ("Reference", source.reference.clone()),
            ("PullPolicy", source.pull_policy.clone()),
        ]
    } else if volume.downward_api.is_some() {
        vec![kind("DownwardAPI (a volume populated by information about the pod)")]
    } else if let Some(source) = &volume.projected {
        let mut rows = vec![kind("Projected (a volume that contains injected data from multiple sources)")];
        rows.extend(source.sources.iter().flat_map(projection));
        rows
    } else {
        Vec::new()
    }
}

fn projection(source: &VolumeProjection) -> Vec<Row> {
    let optional = |optional: Option<bool>| ("Optional", optional.unwrap_or(false).to_string());
    if let Some(secret) = &source.secret {
        vec![("SecretName", secret.name.clone()), optional(secret.optional)]
    } else if source.downward_api.is_some() {
        vec![("DownwardAPI", "true".to_owned())]
    } else if let Some(map) = &source.config_map {
        vec![("ConfigMapName", map.name.clone()), optional(map.optional)]
    } else if let Some(token) = &source.service_account_token {
        vec![("TokenExpirationSeconds", token.expiration_seconds.unwrap_or(3600).to_string())]
    } else {
        Vec::new()
    }
}

fn items(out: &mut Tabbed, source: &DownwardApiVolumeSource) {
    out.line(2, "Items:");
    for item in &source.items {
        let from = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => &field.field_path,
            (None, Some(resource)) => &resource.resource,
            (None, None) => continue,
        };
        out.line(3, &printable(&format!("{from} -> {}", item.path)));
    }
}
