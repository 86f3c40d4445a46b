//! What a service account means for a pod that names it (upstream: the admission plugin `ServiceAccount`, 1.36).
//!
//! Owns the volume with the credentials, and which pods get it.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::Value;

use crate::model::api::pod::{
    ConfigMapVolumeSource, Container, DownwardApiVolumeFile, DownwardApiVolumeSource, KeyToPath,
    LocalObjectReference, ObjectFieldSelector, Pod, ProjectedVolumeSource, ServiceAccountTokenProjection,
    Volume, VolumeMount, VolumeProjection,
};
use crate::model::objects::{LocalObject, ROOT_CA};

/// The account of pods that name none. It exists in every namespace.
pub(crate) const DEFAULT: &str = "default";

/// Where a program looks for its credentials.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access-";
/// Upstream's time of a token that admission has added: an hour, and seven seconds that tell it from others.
pub(crate) const TOKEN_SECONDS: i64 = 3607;
const MODE: i32 = 0o644;
/// The letters and digits of generated names: upstream's, which cannot form words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 5;

/// The part of a ServiceAccount that pods take over.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodAccount {
    automount: Option<bool>,
    pull_secrets: Vec<LocalObjectReference>,
}

impl PodAccount {
    #[must_use]
    pub(crate) fn of(account: &LocalObject) -> Self {
        let body = account.content.body();
        let secrets = body["imagePullSecrets"].as_array().into_iter().flatten();
        let reference =
            |secret: &Value| Some(LocalObjectReference { name: secret["name"].as_str()?.to_owned() });
        Self {
            automount: body["automountServiceAccountToken"].as_bool(),
            pull_secrets: secrets.filter_map(reference).collect(),
        }
    }
}

/// The account that a pod names.
#[must_use]
pub(crate) fn name_of(pod: &Pod) -> &str {
    let spec = &pod.spec;
    [spec.service_account_name.as_str(), spec.deprecated_service_account.as_str()]
        .into_iter()
        .find(|name| !name.is_empty())
        .unwrap_or(DEFAULT)
}

/// Upstream's message for a pod whose account does not exist.
#[must_use]
pub(crate) fn not_found(pod: &Pod) -> String {
    let (namespace, name) = (&pod.metadata.namespace, name_of(pod));
    format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found")
}

/// Gives a new pod the account it names: name, pull secrets, and the volume with its credentials. The volume is named
/// after `uid`, the pod's.
pub(crate) fn admit(pod: &mut Pod, account: &PodAccount, uid: &str) {
    let name = name_of(pod).to_owned();
    let spec = &mut pod.spec;
    spec.deprecated_service_account.clone_from(&name);
    spec.service_account_name = name;
    if spec.image_pull_secrets.is_empty() {
        spec.image_pull_secrets.clone_from(&account.pull_secrets);
    }
    if spec.automount_service_account_token.or(account.automount) == Some(false) {
        return;
    }
    let known = spec.volumes.iter().find(|volume| volume.name.starts_with(VOLUME));
    let volume = known.map_or_else(|| [VOLUME, &suffix(uid)].concat(), |known| known.name.clone());
    let is_new = known.is_none();
    let mut is_mounted = false;
    for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
        is_mounted |= mount(container, &volume);
    }
    if is_new && is_mounted {
        spec.volumes.push(credentials(volume));
    }
}

/// Mounts the credentials; not over what the container mounts there itself.
fn mount(container: &mut Container, volume: &str) -> bool {
    if container.volume_mounts.iter().any(|mount| mount.mount_path == MOUNT_PATH) {
        return false;
    }
    container.volume_mounts.push(VolumeMount {
        name: volume.to_owned(),
        read_only: true,
        mount_path: MOUNT_PATH.to_owned(),
        ..VolumeMount::default()
    });
    true
}

fn credentials(name: String) -> Volume {
    let token = ServiceAccountTokenProjection {
        path: "token".to_owned(),
        expiration_seconds: Some(TOKEN_SECONDS),
        ..ServiceAccountTokenProjection::default()
    };
    let item = KeyToPath { key: "ca.crt".to_owned(), path: "ca.crt".to_owned(), mode: None };
    let ca = ConfigMapVolumeSource {
        name: ROOT_CA.to_owned(),
        items: vec![item],
        ..ConfigMapVolumeSource::default()
    };
    let field =
        ObjectFieldSelector { api_version: "v1".to_owned(), field_path: "metadata.namespace".to_owned() };
    let namespace = DownwardApiVolumeFile {
        path: "namespace".to_owned(),
        field_ref: Some(field),
        ..DownwardApiVolumeFile::default()
    };
    let namespace = DownwardApiVolumeSource { items: vec![namespace], default_mode: None };
    let sources = vec![
        VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() },
        VolumeProjection { config_map: Some(ca), ..VolumeProjection::default() },
        VolumeProjection { downward_api: Some(namespace), ..VolumeProjection::default() },
    ];
    let projected = ProjectedVolumeSource { sources, default_mode: Some(MODE) };
    Volume { name, projected: Some(projected), ..Volume::default() }
}

/// From the end of a random uid: generated names of pods come from its beginning.
fn suffix(uid: &str) -> String {
    let digits: Vec<u32> = uid.chars().rev().filter_map(|digit| digit.to_digit(16)).collect();
    let letter = |four: &[u32]| {
        let number = four.iter().fold(0, |number, digit| number * 16 + digit) as usize;
        char::from(ALPHABET[number % ALPHABET.len()])
    };
    digits.chunks(4).take(SUFFIX).map(letter).collect()
}

#[cfg(test)]
mod tests;
