//! The content of a volume made of objects: from a volume source, its pod and the objects to files with their
//! modes.
//!
//! Owns the rules (items, optional, modes, paths) and upstream's messages for missing parts.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use crate::model::api::pod::{
    Container, DownwardApiVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, ServiceAccountTokenProjection,
    Volume, VolumeProjection,
};
use crate::model::containers::all_containers;
use crate::model::objects::{
    Absence, ConfigMapData, ObjectData, ObjectKey, ObjectKind, ObjectLookup, Realm, TokenRequest,
};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::provenance::{is_from_api, realm};
use crate::pod::env::{EnvError, metadata_field, resource_value};
use crate::pod::resources::NodeCapacity;
use crate::pod::security::common_user;

/// Upstream's default for all these volumes.
const DEFAULT_MODE: u32 = 0o644;
/// Permissions of the pod's `fsGroup` on files of a read-only volume.
const GROUP_MODE: u32 = 0o440;
/// Permissions of credentials that one user, or the pod's `fsGroup`, reads.
const CREDENTIAL_MODE: u32 = 0o600;
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 255;

/// A file to write. Its `Debug` does not show the content: it may be secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ProjectedFile {
    pub data: Vec<u8>,
    pub mode: u32,
    /// The user that owns it; `None` for the agent's own.
    pub owner: Option<u32>,
}

impl fmt::Debug for ProjectedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes, mode {:o}", self.data.len(), self.mode)
    }
}

/// Files by path: relative, clean, descending, none below another.
pub(crate) type Payload = BTreeMap<String, ProjectedFile>;

/// The inputs of a payload besides the pod.
#[derive(Clone, Copy)]
pub(in crate::pod) struct ProjectionContext<'a> {
    /// Of all realms.
    pub objects: &'a dyn ObjectLookup,
    /// The limit that unlimited containers see.
    pub allocatable: &'a NodeCapacity,
}

/// A volume cannot be filled. Texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProjectionError {
    #[error("configmap {0:?} not found")]
    ConfigMapNotFound(String),
    #[error("secret {0:?} not found")]
    SecretNotFound(String),
    /// The API server has not given it, or refuses it.
    #[error("{0}")]
    Unread(String),
    #[error("configmap references non-existent config key: {0}")]
    ConfigKey(String),
    #[error("references non-existent secret key: {0}")]
    SecretKey(String),
    /// A field or resource that does not exist.
    #[error(transparent)]
    Value(#[from] EnvError),
    #[error("projected source {0} requires an API server, which this pod does not have")]
    NeedsApiserver(&'static str),
    #[error("projected source {0} is not supported by this node")]
    Unsupported(&'static str),
    /// A path that would leave the volume, or that no file can have.
    #[error("invalid path: {0}")]
    Path(String),
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<ProjectionError>),
}

/// True for the kinds of volumes whose content this module computes.
#[must_use]
pub(in crate::pod) fn is_projected(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

/// The content of a volume for which [`is_projected`]; nothing for others.
///
/// # Errors
/// The first missing or invalid source; for projected volumes, all of them.
pub(in crate::pod) fn project(
    pod: &Pod,
    volume: &Volume,
    context: &ProjectionContext<'_>,
) -> Result<Payload, ProjectionError> {
    let maker = |default_mode: Option<i32>| Maker {
        pod,
        context,
        default_mode: default_mode.map_or(DEFAULT_MODE, permissions),
    };
    let files = if let Some(source) = &volume.config_map {
        maker(source.default_mode).config_map(&source.name, &source.items, source.optional)?
    } else if let Some(source) = &volume.secret {
        maker(source.default_mode).secret(&source.secret_name, &source.items, source.optional)?
    } else if let Some(source) = &volume.downward_api {
        maker(source.default_mode).downward_api(&source.items)?
    } else if let Some(source) = &volume.projected {
        maker(source.default_mode).projected(source)?
    } else {
        Vec::new()
    };
    let group = pod.spec.security_context.as_ref().and_then(|security| security.fs_group);
    checked(files, if group.is_some() { GROUP_MODE } else { 0 })
}

/// The mount points of other volumes inside this one, relative to it. They are created beforehand: the
/// runtime cannot, as the volume is read-only.
#[must_use]
pub(in crate::pod) fn nested_mount_points(pod: &Pod, volume: &str) -> BTreeSet<String> {
    all_containers(pod).flat_map(|(container, _)| nested_in(container, volume)).into_set()
}

fn nested_in(container: &Container, volume: &str) -> Vec<String> {
    let clean = |path: &str| names_of(path).collect::<Vec<_>>().join("/");
    let mut all: Vec<String> = container.volume_mounts.iter().map(|mount| clean(&mount.mount_path)).collect();
    all.order_by(Ord::cmp);
    let ours = container.volume_mounts.iter().filter(|mount| mount.name == volume);
    let mut nested = Vec::new();
    for outer in ours.map(|mount| clean(&mount.mount_path)) {
        let inside = all.iter().filter_map(|path| path.strip_prefix(&outer)?.strip_prefix('/'));
        let mut last: Option<&str> = None;
        for path in inside.filter(|path| path.split('/').all(|name| name != "..")) {
            let is_deeper =
                last.and_then(|last| path.strip_prefix(last)).is_some_and(|rest| rest.starts_with('/'));
            if !is_deeper {
                last = Some(path);
                nested.push(path.to_owned());
            }
        }
    }
    nested
}

/// Path as written and file, in order: a later one replaces an earlier one of the same path.
type Files = Vec<(String, ProjectedFile)>;

struct Maker<'a> {
    pod: &'a Pod,
    context: &'a ProjectionContext<'a>,
    default_mode: u32,
}

impl Maker<'_> {
    fn objects(&self) -> &dyn ObjectLookup {
        self.context.objects.of(realm(self.pod))
    }

    /// What it means that the object is not there: only one that does not exist can be optional.
    fn absent(&self, kind: ObjectKind, name: &str, optional: bool) -> Result<(), ProjectionError> {
        let key = ObjectKey { kind, namespace: self.pod.metadata.namespace.clone(), name: name.to_owned() };
        match self.objects().absence(&key).message(kind) {
            Some(message) => Err(ProjectionError::Unread(message)),
            None if optional => Ok(()),
            None if kind == ObjectKind::ConfigMap => Err(ProjectionError::ConfigMapNotFound(key.name)),
            None => Err(ProjectionError::SecretNotFound(key.name)),
        }
    }

    fn config_map(
        &self,
        name: &str,
        items: &[KeyToPath],
        optional: Option<bool>,
    ) -> Result<Files, ProjectionError> {
        let optional = optional == Some(true);
        let found = self.objects().config_map(&self.pod.metadata.namespace, name);
        if found.is_none() {
            self.absent(ObjectKind::ConfigMap, name, optional)?;
        }
        let ConfigMapData { mut data, binary_data } = found.unwrap_or_default();
        for (key, value) in binary_data {
            data.entry(key).or_insert(value);
        }
        self.keys(data, items, optional, ProjectionError::ConfigKey)
    }

    fn secret(
        &self,
        name: &str,
        items: &[KeyToPath],
        optional: Option<bool>,
    ) -> Result<Files, ProjectionError> {
        let optional = optional == Some(true);
        let found = self.objects().secret(&self.pod.metadata.namespace, name);
        if found.is_none() {
            self.absent(ObjectKind::Secret, name, optional)?;
        }
        self.keys(found.unwrap_or_default(), items, optional, ProjectionError::SecretKey)
    }

    /// All keys under their own names, or those that `items` names.
    fn keys(
        &self,
        data: ObjectData,
        items: &[KeyToPath],
        optional: bool,
        missing: impl Fn(String) -> ProjectionError,
    ) -> Result<Files, ProjectionError> {
        if items.is_empty() {
            return Ok(data.into_iter().map(|(key, value)| (key, self.file(value, None))).collect());
        }
        let mut files = Files::new();
        for item in items {
            match data.get(&item.key) {
                Some(value) => files.push((item.path.clone(), self.file(value.clone(), item.mode))),
                None if optional => {}
                None => return Err(missing(item.key.clone())),
            }
        }
        Ok(files)
    }

    fn downward_api(&self, items: &[DownwardApiVolumeFile]) -> Result<Files, ProjectionError> {
        let mut files = Files::new();
        for item in items {
            let value = if let Some(field) = &item.field_ref {
                metadata_field(self.pod, &field.field_path)?
            } else if let Some(selector) = &item.resource_field_ref {
                resource_value(self.pod, None, selector, self.context.allocatable)?
            } else {
                continue;
            };
            files.push((item.path.clone(), self.file(value.into_bytes(), item.mode)));
        }
        Ok(files)
    }

    fn projected(&self, source: &ProjectedVolumeSource) -> Result<Files, ProjectionError> {
        let mut files = Files::new();
        let mut errors = Vec::new();
        for projection in &source.sources {
            match self.projection(projection) {
                Ok(more) => files.extend(more),
                Err(error) if errors.contains(&error) => {}
                Err(error) => errors.push(error),
            }
        }
        match errors.len() {
            0 => Ok(files),
            1 => Err(errors.remove(0)),
            _ => Err(ProjectionError::Several(errors)),
        }
    }

    fn projection(&self, projection: &VolumeProjection) -> Result<Files, ProjectionError> {
        if let Some(secret) = &projection.secret {
            self.secret(&secret.name, &secret.items, secret.optional)
        } else if let Some(config_map) = &projection.config_map {
            self.config_map(&config_map.name, &config_map.items, config_map.optional)
        } else if let Some(downward) = &projection.downward_api {
            self.downward_api(&downward.items)
        } else if let Some(source) = &projection.service_account_token {
            self.token(source)
        } else if let Some(bundle) = &projection.cluster_trust_bundle {
            self.trust_bundle(bundle)
        } else if projection.pod_certificate.is_some() {
            Err(match realm(self.pod) {
                Realm::Node => ProjectionError::NeedsApiserver("podCertificate"),
                Realm::Cluster => ProjectionError::Unsupported("podCertificate"),
            })
        } else {
            Ok(Files::new())
        }
    }

    fn token(&self, source: &ServiceAccountTokenProjection) -> Result<Files, ProjectionError> {
        if !is_from_api(self.pod) {
            return Err(ProjectionError::NeedsApiserver("serviceAccountToken"));
        }
        let account = &self.pod.spec.service_account_name;
        let why = match self.objects().token(&TokenRequest::of(self.pod, source)) {
            Ok(token) => return Ok(vec![(source.path.clone(), self.credential(token.as_bytes().to_vec()))]),
            Err(Absence::NotFound) => format!("failed to fetch token: serviceaccounts {account:?} not found"),
            Err(Absence::NotSynced) => {
                "failed to fetch token: timed out waiting for the condition".to_owned()
            }
            Err(Absence::Refused(message)) => message,
        };
        Err(ProjectionError::Unread(why))
    }

    fn trust_bundle(&self, source: &Value) -> Result<Files, ProjectionError> {
        let is_optional = source["optional"] == true;
        let path = source["path"].as_str().unwrap_or_default();
        if realm(self.pod) == Realm::Node {
            if !is_optional {
                return Err(ProjectionError::NeedsApiserver("clusterTrustBundle"));
            }
            return Ok(vec![(path.to_owned(), self.file(Vec::new(), None))]);
        }
        let why = match self.objects().trust_bundle(source) {
            Ok(certificates) => return Ok(vec![(path.to_owned(), self.credential(certificates))]),
            Err(Absence::NotFound) if is_optional => {
                return Ok(vec![(path.to_owned(), self.credential(Vec::new()))]);
            }
            Err(Absence::NotFound) => source["name"].as_str().map_or_else(
                || "combination of signerName and labelSelector matched zero ClusterTrustBundles".to_owned(),
                |name| {
                    format!(
                        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
                    )
                },
            ),
            Err(Absence::NotSynced) => "ClusterTrustBundle informer has not yet synced".to_owned(),
            Err(Absence::Refused(message)) => message,
        };
        Err(ProjectionError::Unread(why))
    }

    fn file(&self, data: Vec<u8>, mode: Option<i32>) -> ProjectedFile {
        ProjectedFile { data, mode: mode.map_or(self.default_mode, permissions), owner: None }
    }

    /// A file that only the pod's user may read, when its containers have one in common, or an `fsGroup`.
    fn credential(&self, data: Vec<u8>) -> ProjectedFile {
        let owner = common_user(self.pod).and_then(|user| u32::try_from(user).ok());
        let security = self.pod.spec.security_context.as_ref();
        let is_private = owner.is_some() || security.is_some_and(|security| security.fs_group.is_some());
        ProjectedFile { data, mode: if is_private { CREDENTIAL_MODE } else { self.default_mode }, owner }
    }
}

fn permissions(mode: i32) -> u32 {
    u32::try_from(mode).unwrap_or(DEFAULT_MODE) & 0o777
}

/// Cleans paths. Fails if one leaves the volume, or needs a file to be a directory.
fn checked(files: Files, extra_mode: u32) -> Result<Payload, ProjectionError> {
    let mut payload = Payload::new();
    for (path, file) in files {
        payload.insert(checked_path(&path)?, ProjectedFile { mode: file.mode | extra_mode, ..file });
    }
    for path in payload.keys() {
        let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        if let Some(parent) = parents.into_iter().find(|parent| payload.contains_key(*parent)) {
            return Err(ProjectionError::Path(format!("{path}: {parent} is also a file in this volume")));
        }
    }
    Ok(payload)
}

fn names_of(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !matches!(*name, "" | "."))
}

/// The path without empty names and dots. Rules and messages of upstream's atomic writer.
fn checked_path(path: &str) -> Result<String, ProjectionError> {
    let names: Vec<&str> = names_of(path).collect();
    let complaint = if path.is_empty() || (names.is_empty() && !path.starts_with('/')) {
        format!("must not be empty: {path:?}")
    } else if path.starts_with('/') {
        format!("must be relative path: {path}")
    } else if path.len() > MAX_PATH {
        format!("must be less than or equal to {MAX_PATH} characters")
    } else if names.contains(&"..") {
        format!("must not contain '..': {path}")
    } else if names.iter().any(|name| name.len() > MAX_NAME) {
        format!("filenames must be less than or equal to {MAX_NAME} characters")
    } else if names[0].starts_with("..") {
        format!("must not start with '..': {path}")
    } else if path.contains('\0') {
        "must not contain NUL".to_owned()
    } else {
        return Ok(names.join("/"));
    };
    Err(ProjectionError::Path(complaint))
}

#[cfg(test)]
mod tests;
