//! The objects that `init` puts into a cluster: their texts, where they belong, the encryption of the certificates among them.
//!
//! Pure: names and values in, objects out. The texts are in `templates/objects.yaml`, which says how they are written.

use ring::aead;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cluster::client::request::ResourcePath;
use crate::cmd::cli::yaml;
use crate::codec::base64;
use crate::codec::hex;
use crate::codec::packed;
use crate::codec::yaml::yaml_to_values;

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/templates.z"));

/// Kind, group, plural, whether its objects have namespaces.
const KINDS: [(&str, &str, &str, bool); 10] = [
    ("ConfigMap", "", "configmaps", true),
    ("Secret", "", "secrets", true),
    ("Service", "", "services", true),
    ("ServiceAccount", "", "serviceaccounts", true),
    ("Deployment", "apps", "deployments", true),
    ("DaemonSet", "apps", "daemonsets", true),
    ("ClusterRole", RBAC, "clusterroles", false),
    ("ClusterRoleBinding", RBAC, "clusterrolebindings", false),
    ("Role", RBAC, "roles", true),
    ("RoleBinding", RBAC, "rolebindings", true),
];
const RBAC: &str = "rbac.authorization.k8s.io";

/// kubeadm's mark of a component's configuration that it has made itself.
const HASH: &str = "kubeadm.kubernetes.io/component-config.hash";

/// The key of `kubeadm-certs`.
pub(super) const CERTIFICATE_KEY_BYTES: usize = 32;

/// The objects of a step in the order in which they are created; `arguments` are the values of `${name}`.
#[must_use]
pub(super) fn step(name: &str, arguments: &[(&str, &str)]) -> Vec<Value> {
    let texts = packed::unpack(PACKED);
    let text = texts.split("== ").find_map(|text| text.strip_prefix(name)?.strip_prefix('\n'));
    // They parse: a test reads them all.
    let mut objects = yaml_to_values(text.unwrap_or_default(), false).unwrap_or_default();
    for object in &mut objects {
        fill(object, arguments);
        let group = kind_of(object).map_or("", |(_, group, _, _)| *group);
        object["apiVersion"] = if group.is_empty() { "v1".into() } else { format!("{group}/v1").into() };
    }
    objects
}

fn kind_of(object: &Value) -> Option<&'static (&'static str, &'static str, &'static str, bool)> {
    KINDS.iter().find(|(kind, ..)| object["kind"] == *kind)
}

fn fill(value: &mut Value, arguments: &[(&str, &str)]) {
    match value {
        Value::String(text) if text.contains("${") => *text = filled(text, arguments),
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, arguments)),
        Value::Object(members) => members.values_mut().for_each(|member| fill(member, arguments)),
        _ => {}
    }
}

/// What is put in is not searched again.
fn filled(text: &str, arguments: &[(&str, &str)]) -> String {
    let mut parts = text.split("${");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        let value = arguments.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        filled.push_str(value.unwrap_or_default());
        filled.push_str(rest);
    }
    filled
}

/// Where an object is in the API; `None` for a kind that no step makes.
#[must_use]
pub(super) fn path_of(object: &Value) -> Option<ResourcePath> {
    let (_, group, plural, has_namespace) = *kind_of(object)?;
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str()?;
    Some(if has_namespace {
        ResourcePath::namespaced(group, plural, metadata["namespace"].as_str()?, name)
    } else {
        ResourcePath::whole(group, plural, name)
    })
}

/// Marks a ConfigMap with the hash of its data, by which kubeadm knows that no user has changed it.
pub(super) fn mark(config_map: &mut Value) {
    config_map["metadata"]["annotations"][HASH] = data_hash(config_map).into();
}

/// Whether no user has changed it.
pub(super) fn is_marked(config_map: &Value) -> bool {
    config_map["metadata"]["annotations"][HASH] == data_hash(config_map)
}

fn data_hash(config_map: &Value) -> String {
    let mut hash = Sha256::new();
    for value in config_map["data"].as_object().into_iter().flat_map(|data| data.values()) {
        hash.update(value.as_str().unwrap_or_default());
    }
    format!("sha256:{}", hex::encode(&hash.finalize()))
}

/// # Errors
/// It is not the form of `kubeadm certs certificate-key`.
pub(super) fn parse_certificate_key(text: &str) -> Result<[u8; CERTIFICATE_KEY_BYTES], String> {
    let mut key = [0; CERTIFICATE_KEY_BYTES];
    let digits = text.as_bytes();
    let is_read = digits.len() == 2 * key.len()
        && key.iter_mut().zip(digits.chunks(2)).all(|(byte, pair)| {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let value = digit(0).zip(digit(1)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
            value.map(|value| *byte = value).is_some()
        });
    is_read.then_some(key).ok_or_else(|| {
        format!("the certificate key must be {CERTIFICATE_KEY_BYTES} bytes as hexadecimal digits: make one with \"agent certs certificate-key\"")
    })
}

/// kubeadm's encryption: AES-256-GCM; the nonce, the text, the tag.
#[must_use]
pub(super) fn seal(key: &[u8; CERTIFICATE_KEY_BYTES], nonce: [u8; aead::NONCE_LEN], text: &[u8]) -> Vec<u8> {
    let mut sealed = text.to_vec();
    // Neither can fail: the key has the right length, and a certificate is shorter than the cipher's limit.
    if let Ok(cipher) = aead::UnboundKey::new(&aead::AES_256_GCM, key).map(aead::LessSafeKey::new) {
        let unique = aead::Nonce::assume_unique_for_key(nonce);
        if cipher.seal_in_place_append_tag(unique, aead::Aad::empty(), &mut sealed).is_err() {
            sealed.clear();
        }
    }
    [&nonce[..], &sealed].concat()
}

/// What was sealed; `None` if it was with another key, or was changed.
#[must_use]
pub(super) fn open(key: &[u8; CERTIFICATE_KEY_BYTES], sealed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, text) = sealed.split_first_chunk::<{ aead::NONCE_LEN }>()?;
    let cipher = aead::LessSafeKey::new(aead::UnboundKey::new(&aead::AES_256_GCM, key).ok()?);
    let mut text = text.to_vec();
    let unique = aead::Nonce::assume_unique_for_key(*nonce);
    cipher.open_in_place(unique, aead::Aad::empty(), &mut text).ok().map(|text| text.to_vec())
}

/// The Secret `kubeadm-certs`, which goes when its owner does: the Secret of a token that the token cleaner deletes in time.
#[must_use]
pub(super) fn certificates(sealed: &[(&str, Vec<u8>)], owner: &Value) -> Value {
    let data: serde_json::Map<_, _> =
        sealed.iter().map(|(name, value)| ((*name).to_owned(), base64::encode(value).into())).collect();
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": {"name": "kubeadm-certs", "namespace": "kube-system", "ownerReferences": [{
            "apiVersion": "v1", "kind": "Secret", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }]},
    })
}

/// The kubeconfig of `cluster-info`: a server and its authorities (base64 of PEM), and no user.
#[must_use]
pub(super) fn cluster_info(server: &str, authorities: &str) -> String {
    yaml::to_string(&json!({
        "apiVersion": "v1", "kind": "Config", "contexts": null, "current-context": "", "users": null,
        "clusters": [{"name": "", "cluster": {"certificate-authority-data": authorities, "server": server}}],
    }))
}

#[cfg(test)]
mod tests;
