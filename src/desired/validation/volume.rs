//! Rules of volumes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::claim::claim_spec;
use super::env::{FieldUse, field_ref, resource_field_ref};
use crate::model::api::decode::decode;
use crate::model::api::object::PersistentVolumeClaim;
use crate::model::api::pod::{
    ConfigMapVolumeSource, DownwardApiVolumeFile, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath,
    NfsVolumeSource, Pod, ProjectedVolumeSource, SecretVolumeSource, Volume, VolumeProjection,
};
use crate::model::field_error::{Errors, Path};
use crate::model::names;
use crate::model::objects::retired::{self, Retired};
use crate::model::objects::wire::STORAGE;

/// Names of the pod's volumes, and whether each may be a block device.
pub(super) type Volumes<'a> = BTreeMap<&'a str, bool>;

pub(crate) const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;

/// Checks all volumes and returns their names.
pub(super) fn validate<'a>(volumes: &'a [Volume], at: &Path<'_>, errors: &mut Errors) -> Volumes<'a> {
    let mut known = Volumes::new();
    for (index, volume) in volumes.iter().enumerate() {
        let volume_at = at.index(index);
        let name_at = volume_at.child("name");
        errors.name(&name_at, &volume.name, names::dns_label);
        let may_be_block = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
        if known.insert(&volume.name, may_be_block).is_some() {
            errors.duplicate(&name_at, &volume.name);
        }
        one_source(volume, &volume_at, errors);
        source(volume, &volume_at, errors);
    }
    known
}

fn one_source(volume: &Volume, at: &Path<'_>, errors: &mut Errors) {
    let sources = [
        ("hostPath", volume.host_path.is_some()),
        ("emptyDir", volume.empty_dir.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("secret", volume.secret.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("projected", volume.projected.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("image", volume.image.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("csi", volume.csi.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
    ];
    only_one(&sources, at, errors);
}

/// Exactly one of these fields must be set.
fn only_one(fields: &[(&str, bool)], at: &Path<'_>, errors: &mut Errors) {
    let mut set = fields.iter().filter(|(_, is_set)| *is_set);
    if set.next().is_none() {
        errors.required(at, "must specify a volume type");
    }
    for (field, _) in set {
        errors.forbidden(&at.child(field), "may not specify more than 1 volume type");
    }
}

fn source(volume: &Volume, at: &Path<'_>, errors: &mut Errors) {
    if let Some(source) = &volume.host_path {
        host_path(source, &at.child("hostPath"), errors);
    }
    if let Some(source) = &volume.empty_dir {
        empty_dir(source, &at.child("emptyDir"), errors);
    }
    if let Some(source) = &volume.secret {
        secret(source, &at.child("secret"), errors);
    }
    if let Some(source) = &volume.config_map {
        config_map(source, &at.child("configMap"), errors);
    }
    if let Some(source) = &volume.downward_api {
        let source_at = at.child("downwardAPI");
        mode(source.default_mode, &source_at.child("defaultMode"), errors);
        downward_items(&source.items, None, &source_at.child("items"), errors);
    }
    if let Some(source) = &volume.projected {
        projected(source, &at.child("projected"), errors);
    }
    if let Some(source) = &volume.persistent_volume_claim {
        errors.present(&at.child("persistentVolumeClaim").child("claimName"), &source.claim_name);
    }
    if let Some(source) = &volume.nfs {
        nfs(source, &at.child("nfs"), errors);
    }
    if let Some(source) = &volume.csi {
        let driver = source["driver"].as_str().unwrap_or_default();
        errors.name(&at.child("csi").child("driver"), driver, names::dns_subdomain);
    }
    for (kind, source) in [("iscsi", &volume.iscsi), ("fc", &volume.fc)] {
        if let Some(source) = source {
            super::disk::validate((kind, source), (&volume.name, false), &at.child(kind), errors);
        }
    }
    if let Some(source) = &volume.image {
        let source_at = at.child("image");
        errors.present(&source_at.child("reference"), &source.reference);
        let policies = ["Always", "IfNotPresent", "Never"];
        errors.one_of(&source_at.child("pullPolicy"), &source.pull_policy, &policies);
    }
    if let Some(source) = &volume.ephemeral {
        ephemeral(source, &at.child("ephemeral"), errors);
    }
    for (kind, source) in retired::sources(volume) {
        check_retired(kind, source, &at.child(kind.field), errors);
    }
}

fn ephemeral(source: &Value, at: &Path<'_>, errors: &mut Errors) {
    let at = at.child("volumeClaimTemplate");
    let Some(template) = source.get("volumeClaimTemplate").filter(|template| template.is_object()) else {
        return errors.required(&at, "");
    };
    match decode::<PersistentVolumeClaim>(template.clone()) {
        Ok(decoded) => {
            let (metadata, spec) = (decoded.object.metadata, decoded.object.spec);
            super::labels(&metadata.labels, &at.child("metadata").child("labels"), errors);
            super::annotations(&metadata.annotations, &at.child("metadata").child("annotations"), errors);
            let storage = spec.resources.requests.get(STORAGE).copied().unwrap_or_default();
            claim_spec(&spec, storage, &at.child("spec"), errors);
        }
        Err(error) => errors.invalid(&at, &error.path, error.to_string()),
    }
}

/// The names of the claims of a pod's ephemeral volumes must be valid.
pub(super) fn claim_names(pod: &Pod, errors: &mut Errors) {
    let spec = Path::Root("spec");
    let volumes_at = spec.child("volumes");
    for (index, volume) in
        pod.spec.volumes.iter().enumerate().filter(|(_, volume)| volume.ephemeral.is_some())
    {
        let claim = format!("{}-{}", pod.metadata.name, volume.name);
        for why in names::dns_subdomain(&claim) {
            let at = volumes_at.index(index);
            errors.invalid(&at.child("name"), &volume.name, format!("PVC name {claim:?}: {why}"));
        }
    }
}

/// The API server's rules of a kind that no node sets up.
fn check_retired(kind: &Retired, source: &Value, at: &Path<'_>, errors: &mut Errors) {
    let text = |field: &str| source[field].as_str().unwrap_or_default();
    for pointer in kind.required {
        let found = source.pointer(pointer);
        let is_given = found.is_some_and(|value| match value {
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            _ => false,
        });
        if !is_given {
            let pairs = "must be a host:port pair or multiple pairs separated by commas";
            let detail = if *pointer == "/registry" { pairs } else { "" };
            errors.required(&at.child(&pointer[1..]), detail);
        }
    }
    match kind.field {
        "gitRepo" => {
            errors.all(&at.child("directory"), text("directory"), names::descending_path(text("directory")));
        }
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            let partition = source["partition"].as_i64().unwrap_or_default();
            if !(0..=255).contains(&partition) {
                errors.invalid_number(
                    &at.child("partition"),
                    partition,
                    "must be between 1 and 255, inclusive",
                );
            }
        }
        "flocker" => flocker(text("datasetName"), text("datasetUUID"), at, errors),
        "quobyte" => quobyte(text("registry"), text("tenant"), at, errors),
        "azureDisk" => azure_disk(source, at, errors),
        "flexVolume" => {
            for option in source["options"].as_object().into_iter().flat_map(|options| options.keys()) {
                let namespace = option.split_once('/').map_or(option.as_str(), |(namespace, _)| namespace);
                let normalized = format!(".{}", namespace.to_lowercase());
                if normalized.ends_with(".kubernetes.io") || normalized.ends_with(".k8s.io") {
                    let detail = "kubernetes.io and k8s.io namespaces are reserved";
                    errors.invalid(&at.child("options").key(option), option, detail);
                }
            }
        }
        "storageos" => {
            for field in ["volumeName", "volumeNamespace"] {
                if !text(field).is_empty() {
                    errors.all(&at.child(field), text(field), names::dns_label(text(field)));
                }
            }
        }
        _ => {}
    }
    let has_secret = matches!(kind.field, "cinder" | "storageos") && source["secretRef"].is_object();
    if has_secret && source["secretRef"]["name"].as_str().is_none_or(str::is_empty) {
        errors.required(&at.child("secretRef").child("name"), "");
    }
}

fn flocker(name: &str, uuid: &str, at: &Path<'_>, errors: &mut Errors) {
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => errors.required(at, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            let detail = "datasetName and datasetUUID can not be specified simultaneously";
            errors.invalid(at, "resource", detail);
        }
        _ => {}
    }
    if name.contains('/') {
        errors.invalid(&at.child("datasetName"), name, "must not contain '/'");
    }
}

fn quobyte(registry: &str, tenant: &str, at: &Path<'_>, errors: &mut Errors) {
    if registry.is_empty() {
        return;
    }
    if tenant.len() > 64 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        return errors.required(&at.child("tenant"), detail);
    }
    for pair in registry.split(',') {
        let is_pair = match pair.rsplit_once(':') {
            Some((host, _)) => !host.contains(':') || (host.starts_with('[') && host.ends_with(']')),
            None => false,
        };
        if !is_pair {
            let detail = "must be a host:port pair or multiple pairs separated by commas";
            errors.invalid(&at.child("registry"), registry, detail);
        }
    }
}

/// The default of `kind` is `Shared`.
fn azure_disk(source: &Value, at: &Path<'_>, errors: &mut Errors) {
    let text = |field: &str| source[field].as_str();
    errors.optional_of(&at.child("cachingMode"), text("cachingMode"), &["None", "ReadOnly", "ReadWrite"]);
    errors.optional_of(&at.child("kind"), text("kind"), &["Dedicated", "Managed", "Shared"]);
    let (start, form) = if text("kind") == Some("Managed") {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
    };
    let uri = text("diskURI").unwrap_or_default();
    if !uri.starts_with(start) {
        errors.not_supported(&at.child("diskURI"), uri, &[form]);
    }
}

fn host_path(source: &HostPathVolumeSource, at: &Path<'_>, errors: &mut Errors) {
    errors.name(&at.child("path"), &source.path, names::no_backsteps);
    errors.optional_of(&at.child("type"), Some(&source.type_), &HOST_PATH_TYPES);
}

fn empty_dir(source: &EmptyDirVolumeSource, at: &Path<'_>, errors: &mut Errors) {
    if source.size_limit.is_some_and(crate::model::api::quantity::Quantity::is_negative) {
        errors.forbidden(&at.child("sizeLimit"), "SizeLimit field must be a valid resource quantity");
    }
    // Upstream accepts an unknown medium and then fails to mount it; rejecting it here tells the user at
    // once.
    if !matches!(source.medium.as_str(), "" | "Memory" | "HugePages")
        && !source.medium.starts_with("HugePages-")
    {
        errors.not_supported(&at.child("medium"), &source.medium, &["", "HugePages", "Memory"]);
    }
}

fn secret(source: &SecretVolumeSource, at: &Path<'_>, errors: &mut Errors) {
    errors.present(&at.child("secretName"), &source.secret_name);
    mode(source.default_mode, &at.child("defaultMode"), errors);
    key_items(&source.items, None, &at.child("items"), errors);
}

fn config_map(source: &ConfigMapVolumeSource, at: &Path<'_>, errors: &mut Errors) {
    errors.present(&at.child("name"), &source.name);
    mode(source.default_mode, &at.child("defaultMode"), errors);
    key_items(&source.items, None, &at.child("items"), errors);
}

fn nfs(source: &NfsVolumeSource, at: &Path<'_>, errors: &mut Errors) {
    errors.present(&at.child("server"), &source.server);
    let path_at = at.child("path");
    errors.present(&path_at, &source.path);
    if !source.path.is_empty() && !source.path.starts_with('/') {
        errors.invalid(&path_at, &source.path, "must be an absolute path");
    }
}

fn mode(mode: Option<i32>, at: &Path<'_>, errors: &mut Errors) {
    if let Some(mode) = mode {
        errors.all_number(at, mode, names::file_mode(mode));
    }
}

/// Paths already used in a projected volume: two sources must not write the same file. Elsewhere the last
/// item wins (upstream).
type Paths = BTreeSet<String>;

fn claim_path(path: &str, paths: Option<&mut Paths>, at: &Path<'_>, errors: &mut Errors) {
    if path.is_empty() {
        return errors.required(at, "");
    }
    errors.all(at, path, names::projected_path(path));
    if paths.is_some_and(|paths| !paths.insert(path.to_owned())) {
        errors.invalid(at, path, "conflicting duplicate paths");
    }
}

fn key_items(items: &[KeyToPath], mut paths: Option<&mut Paths>, at: &Path<'_>, errors: &mut Errors) {
    for (index, item) in items.iter().enumerate() {
        let item_at = at.index(index);
        errors.present(&item_at.child("key"), &item.key);
        claim_path(&item.path, paths.as_deref_mut(), &item_at.child("path"), errors);
        mode(item.mode, &item_at.child("mode"), errors);
    }
}

fn downward_items(
    items: &[DownwardApiVolumeFile],
    mut paths: Option<&mut Paths>,
    at: &Path<'_>,
    errors: &mut Errors,
) {
    for (index, item) in items.iter().enumerate() {
        let item_at = at.index(index);
        claim_path(&item.path, paths.as_deref_mut(), &item_at.child("path"), errors);
        mode(item.mode, &item_at.child("mode"), errors);
        match (&item.field_ref, &item.resource_field_ref) {
            (None, None) => errors.required(&item_at, "one of fieldRef and resourceFieldRef is required"),
            (Some(_), Some(_)) => {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(&item_at, "resource", detail);
            }
            (Some(field), None) => field_ref(field, FieldUse::Volume, &item_at.child("fieldRef"), errors),
            (None, Some(resource)) => {
                let resource_at = item_at.child("resourceFieldRef");
                resource_field_ref(resource, FieldUse::Volume, &resource_at, errors);
            }
        }
    }
}

fn projected(source: &ProjectedVolumeSource, at: &Path<'_>, errors: &mut Errors) {
    mode(source.default_mode, &at.child("defaultMode"), errors);
    let mut paths = Paths::new();
    let sources_at = at.child("sources");
    for (index, projection) in source.sources.iter().enumerate() {
        let projection_at = sources_at.index(index);
        one_projection(projection, &projection_at, errors);
        check_projection(projection, &mut paths, &projection_at, errors);
    }
}

fn one_projection(projection: &VolumeProjection, at: &Path<'_>, errors: &mut Errors) {
    let kinds = [
        ("secret", projection.secret.is_some()),
        ("configMap", projection.config_map.is_some()),
        ("downwardAPI", projection.downward_api.is_some()),
        ("serviceAccountToken", projection.service_account_token.is_some()),
        ("clusterTrustBundle", projection.cluster_trust_bundle.is_some()),
        ("podCertificate", projection.pod_certificate.is_some()),
    ];
    only_one(&kinds, at, errors);
}

fn check_projection(projection: &VolumeProjection, paths: &mut Paths, at: &Path<'_>, errors: &mut Errors) {
    if let Some(secret) = &projection.secret {
        let secret_at = at.child("secret");
        errors.present(&secret_at.child("name"), &secret.name);
        key_items(&secret.items, Some(paths), &secret_at.child("items"), errors);
    }
    if let Some(config_map) = &projection.config_map {
        let config_at = at.child("configMap");
        errors.present(&config_at.child("name"), &config_map.name);
        key_items(&config_map.items, Some(paths), &config_at.child("items"), errors);
    }
    if let Some(downward) = &projection.downward_api {
        let downward_at = at.child("downwardAPI");
        downward_items(&downward.items, Some(paths), &downward_at.child("items"), errors);
    }
    if let Some(token) = &projection.service_account_token {
        let token_at = at.child("serviceAccountToken");
        claim_path(&token.path, Some(paths), &token_at.child("path"), errors);
        let seconds = token.expiration_seconds.unwrap_or(MIN_TOKEN_SECONDS);
        let seconds_at = token_at.child("expirationSeconds");
        if seconds < MIN_TOKEN_SECONDS {
            errors.invalid_number(&seconds_at, seconds, "may not specify a duration less than 10 minutes");
        } else if seconds > MAX_TOKEN_SECONDS {
            errors.invalid_number(
                &seconds_at,
                seconds,
                "may not specify a duration larger than 2^32 seconds",
            );
        }
    }
}
