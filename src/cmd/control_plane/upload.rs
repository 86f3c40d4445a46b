//! What a cluster has to know of how it was made, for nodes that join: the phases `upload-config` and `upload-certs`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::api::{Api, ApiPhaseError};
use super::config::{ClusterConfig, Etcd};
use super::objects;
use super::random::fill;
use super::tokens::{self, record};
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::Transport;
use crate::cmd::cli::yaml;
use crate::codec::base64;
use crate::model::types::Timestamp;

/// kubeadm's: how long `kubeadm-certs` is there.
const CERTIFICATES_LAST: Duration = Duration::from_secs(2 * 3600);

/// `upload-config/kubeadm`: the ClusterConfiguration.
pub(crate) async fn kubeadm_config<T: Transport>(
    api: &Api<'_, T>,
    cluster: &Value,
) -> Result<(), ApiPhaseError> {
    (api.say)(
        "[upload-config] Storing the configuration used in ConfigMap \"kubeadm-config\" in the \"kube-system\" Namespace\n",
    );
    let texts = objects::step("upload-config", &[("config", &yaml::to_string(cluster))]);
    let mut texts = texts.iter();
    if let Some(config) = texts.next() {
        // Other tools keep their settings beside it.
        api.merge(config).await?;
    }
    for object in texts {
        api.apply(object).await?;
    }
    Ok(())
}

/// `upload-config/kubelet`: the KubeletConfiguration of nodes that join; `is_given`: the user has written it.
pub(crate) async fn kubelet_config<T: Transport>(
    api: &Api<'_, T>,
    kubelet: &Value,
    is_given: bool,
) -> Result<(), ApiPhaseError> {
    (api.say)(
        "[kubelet] Creating a ConfigMap \"kubelet-config\" in namespace kube-system with the configuration for the kubelets in the cluster\n",
    );
    let mut kubelet = kubelet.clone();
    // The runtime is each node's own.
    kubelet["containerRuntimeEndpoint"] = "".into();
    let mut texts = objects::step("kubelet-config", &[("config", &yaml::to_string(&kubelet))]);
    if let Some(config) = texts.first_mut().filter(|_| !is_given) {
        objects::mark(config);
    }
    for object in &texts {
        api.apply(object).await?;
    }
    Ok(())
}

/// `upload-certs`: the shared keys and certificates, by their names in the Secret, for the next control-plane nodes.
pub(crate) async fn certificates<T: Transport>(
    api: &Api<'_, T>,
    key: &[u8; objects::CERTIFICATE_KEY_BYTES],
    files: &[(&'static str, Vec<u8>)],
    now: Timestamp,
) -> Result<(), ApiPhaseError> {
    (api.say)(
        "[upload-certs] Storing the certificates in Secret \"kubeadm-certs\" in the \"kube-system\" Namespace\n",
    );
    let record = record::Record {
        description: record::UPLOAD.to_owned(),
        expires: Some(now.saturating_add(CERTIFICATES_LAST)),
        ..tokens::split(&tokens::random()?)
    };
    let owner = api.apply(&record.to_secret()).await?;
    let mut sealed = Vec::new();
    for (name, text) in files {
        let mut nonce = [0; 12];
        fill(&mut nonce)?;
        // A file that is not there is an empty value, as kubeadm's readers expect.
        let value = if text.is_empty() { Vec::new() } else { objects::seal(key, nonce, text) };
        sealed.push((*name, value));
    }
    api.apply(&objects::certificates(&sealed, &owner)).await?;
    for object in &objects::step("upload-certs", &[]) {
        api.apply(object).await?;
    }
    Ok(())
}

/// Where the shared files are on a node, by their names in the Secret.
pub(crate) fn shared(cluster: &ClusterConfig) -> Vec<(&'static str, PathBuf)> {
    let own = |name: &str| cluster.cert_dir.join(name);
    let names =
        ["ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.pub", "sa.key"].into_iter();
    let mut files: Vec<(&'static str, PathBuf)> = names.map(|name| (name, own(name))).collect();
    match &cluster.etcd {
        Etcd::Local(_) => {
            files.extend([("etcd-ca.crt", own("etcd/ca.crt")), ("etcd-ca.key", own("etcd/ca.key"))]);
        }
        Etcd::External(etcd) => files.extend([
            ("external-etcd-ca.crt", etcd.ca_file.as_str().into()),
            ("external-etcd.crt", etcd.cert_file.as_str().into()),
            ("external-etcd.key", etcd.key_file.as_str().into()),
        ]),
    }
    files
}

/// The phase `download-certs` of a node that joins: places and texts of the shared files. What was not there is left out.
pub(crate) async fn download<T: Transport>(
    api: &Api<'_, T>,
    key: &[u8; objects::CERTIFICATE_KEY_BYTES],
    cluster: &ClusterConfig,
) -> Result<Vec<(PathBuf, String)>, ApiPhaseError> {
    let of = ResourcePath::namespaced("", "secrets", "kube-system", "kubeadm-certs");
    let broken = |why: String| ApiPhaseError::Broken(format!("error downloading certs: {why}"));
    let secret = api.get(&of).await?.ok_or_else(|| {
        broken(
            "Secret \"kubeadm-certs\" was not found in the \"kube-system\" Namespace. This Secret might have expired. \
             Please, run `agent init phase upload-certs --upload-certs` on a control plane to generate a new one"
                .to_owned(),
        )
    })?;
    let mut files = Vec::new();
    for (name, path) in shared(cluster) {
        let missing = || broken(format!("couldn't find required certificate or key {name:?} in the Secret"));
        let sealed = secret["data"][name].as_str().and_then(base64::decode).ok_or_else(missing)?;
        if sealed.is_empty() {
            continue;
        }
        let text = objects::open(key, &sealed).and_then(|text| String::from_utf8(text).ok());
        let text = text.ok_or_else(|| {
            broken(format!("error decoding secret data with provided key: {name} was not encrypted with it"))
        })?;
        files.push((path, text));
    }
    Ok(files)
}

/// A new certificate key.
pub(crate) fn certificate_key() -> Result<[u8; objects::CERTIFICATE_KEY_BYTES], ApiPhaseError> {
    let mut key = [0; objects::CERTIFICATE_KEY_BYTES];
    fill(&mut key)?;
    Ok(key)
}

#[cfg(test)]
mod tests;
