//! Certificates on disk in upstream's layout, so that this program and the stock kubelet can follow each other.
//!
//! Owns, of each prefix, `PREFIX-DATE.pem` (certificate, then key), the links `PREFIX-current.pem` and
//! `PREFIX-updated.pem`, and `PREFIX.key.tmp`; and the text of a kubeconfig that names them. Files of others, and
//! earlier pairs, stay.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use super::request::is_of_key;
use crate::model::types::Timestamp;
use crate::platform::sys::dir::make_dir;
use crate::platform::sys::durable::{sync_dir, write_durably};

/// A pair cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PairError {
    #[error("{action} {}", path.display())]
    File {
        /// The operation that failed.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Upstream refuses it, too.
    #[error("expected {path:?} to be a symlink but it is a file: remove it")]
    NotALink { path: PathBuf },
    /// The issued certificate is of another key.
    #[error("the issued certificate does not match the key of its request")]
    OtherKey,
    /// An error of the library, not caused by the user.
    #[error("generate a key")]
    Make(#[source] rcgen::Error),
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PairError {
    move |source| PairError::File { action, path: path.to_owned(), source }
}

/// The pairs of one prefix. All calls block.
#[derive(Clone, Debug)]
pub(crate) struct PairFiles {
    directory: PathBuf,
    prefix: &'static str,
}

impl PairFiles {
    /// Completes an update that was interrupted between its two links.
    ///
    /// # Errors
    /// The links cannot be read or renamed.
    pub(crate) fn open(directory: &Path, prefix: &'static str) -> Result<Self, PairError> {
        let directory = std::path::absolute(directory).map_err(failed("find", directory))?;
        let files = Self { directory, prefix };
        let (current, updated) = (files.current_path(), files.path("-updated.pem"));
        if !current.exists() && is_link(&updated)? {
            fs::rename(&updated, &current).map_err(failed("rename", &updated))?;
        }
        Ok(files)
    }

    fn path(&self, end: &str) -> PathBuf {
        self.directory.join(format!("{}{end}", self.prefix))
    }

    /// The path that kubeconfigs name; it may not exist yet.
    #[must_use]
    pub(crate) fn current_path(&self) -> PathBuf {
        self.path("-current.pem")
    }

    /// The current pair, certificate and key in one PEM text: of the link, or of the files `PREFIX.crt` and
    /// `PREFIX.key`, as upstream.
    ///
    /// # Errors
    /// There is one, and it cannot be read.
    pub(crate) fn current(&self) -> Result<Option<String>, PairError> {
        if let Some(pair) = read(&self.current_path())? {
            return Ok(Some(pair));
        }
        let (certificate, key) = (read(&self.path(".crt"))?, read(&self.path(".key"))?);
        Ok(certificate.zip(key).map(|(certificate, key)| format!("{certificate}\n{key}")))
    }

    /// Makes this pair the current one: the file is durable first, then the link `updated`, then the link
    /// `current` in one step. A power cut leaves the earlier pair or an update that [`open`](Self::open) completes.
    ///
    /// # Errors
    /// A file cannot be written, or `current` is not a link. The earlier pair stays.
    pub(crate) fn update(&self, certificate: &str, key: &str, now: Timestamp) -> Result<(), PairError> {
        make_dir(&self.directory, 0o755).map_err(failed("create the directory", &self.directory))?;
        let (current, updated) = (self.current_path(), self.path("-updated.pem"));
        is_link(&current)?;
        if is_link(&updated)? {
            fs::remove_file(&updated).map_err(failed("remove", &updated))?;
        }
        let date = now.to_rfc3339().replace(['T', ':'], "-").replace('Z', "");
        let file = self.path(&format!("-{date}.pem"));
        let pair = format!("{}\n{}\n", certificate.trim(), key.trim());
        write_durably(&file, pair.as_bytes(), 0o600).map_err(failed("write", &file))?;
        std::os::unix::fs::symlink(&file, &updated).map_err(failed("create the link", &updated))?;
        fs::rename(&updated, &current).map_err(failed("rename", &updated))?;
        sync_dir(&self.directory).map_err(failed("sync", &self.directory))
    }

    /// The certificate of a request that was made by the pending key becomes the current pair, and the key is
    /// pending no more.
    ///
    /// # Errors
    /// As [`update`](Self::update), and when it is of another key.
    pub(crate) fn complete(&self, certificate: &str, now: Timestamp) -> Result<(), PairError> {
        let key = self.pending_key()?;
        if !is_of_key(certificate, &key) {
            return Err(PairError::OtherKey);
        }
        self.update(certificate, &key.serialize_pem(), now)?;
        self.drop_pending_key();
        Ok(())
    }

    /// The key of a request that has no answer yet; kept over crashes, so that the request is found again.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub(crate) fn pending_key(&self) -> Result<KeyPair, PairError> {
        let path = self.path(".key.tmp");
        let found = read(&path)?.and_then(|pem| KeyPair::from_pem(&pem).ok());
        if let Some(key) = found.filter(|key| key.is_compatible(&PKCS_ECDSA_P256_SHA256)) {
            return Ok(key);
        }
        // None, or a torn one.
        let key = KeyPair::generate().map_err(PairError::Make)?;
        make_dir(&self.directory, 0o755).map_err(failed("create the directory", &self.directory))?;
        write_durably(&path, key.serialize_pem().as_bytes(), 0o600).map_err(failed("write", &path))?;
        Ok(key)
    }

    /// The next request is made by another key, under another name.
    pub(crate) fn drop_pending_key(&self) {
        let path = self.path(".key.tmp");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!(path:% = path.display(), err:% = error; "Failed to remove private key file");
            }
            _ => {}
        }
    }
}

/// False: there is nothing.
fn is_link(path: &Path) -> Result<bool, PairError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Ok(true),
        Ok(_) => Err(PairError::NotALink { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn read(path: &Path) -> Result<Option<String>, PairError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// The cluster's part of a kubeconfig.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterEntry {
    /// `https://10.0.0.1:6443`.
    pub server: String,
    /// Absolute; empty: `authority_data`.
    pub authority_file: String,
    /// Base64 of PEM.
    pub authority_data: String,
    pub insecure: bool,
    /// `tls-server-name`, if not the server's.
    pub server_name: String,
    pub proxy_url: String,
}

/// A kubeconfig of upstream's names whose user is the pair at `pair`. Upstream loses `tls-server-name` and
/// `proxy-url` here; without them the server could not be reached.
#[must_use]
pub(crate) fn kubeconfig_of_pair(cluster: &ClusterEntry, pair: &Path) -> String {
    let pair = pair.to_string_lossy();
    let user = [("client-certificate", &*pair), ("client-key", &*pair)];
    kubeconfig(cluster, ["default-cluster", "default-auth", "default-context"], Some("default"), &user)
}

/// A kubeconfig in which a user (`users` are the entry's fields) of a cluster is the current context.
#[must_use]
pub(crate) fn kubeconfig(
    cluster: &ClusterEntry,
    [cluster_name, user_name, context]: [&str; 3],
    namespace: Option<&str>,
    users: &[(&str, &str)],
) -> String {
    // Strings of JSON are strings of YAML.
    let text = |value: &str| serde_json::Value::from(value).to_string();
    let mut out = "apiVersion: v1\nkind: Config\nclusters:\n- cluster:\n".to_owned();
    let (data, file) = (&cluster.authority_data, &cluster.authority_file);
    for (key, value) in [
        ("certificate-authority", file.as_str()),
        ("certificate-authority-data", if file.is_empty() { data } else { "" }),
        ("proxy-url", &cluster.proxy_url),
        ("server", &cluster.server),
        ("tls-server-name", &cluster.server_name),
    ] {
        if !value.is_empty() {
            let _ = writeln!(out, "    {key}: {}", text(value));
        }
    }
    if cluster.insecure {
        out += "    insecure-skip-tls-verify: true\n";
    }
    let (cluster_name, user_name, context) = (text(cluster_name), text(user_name), text(context));
    let _ = writeln!(out, "  name: {cluster_name}\ncontexts:\n- context:\n    cluster: {cluster_name}");
    if let Some(namespace) = namespace {
        let _ = writeln!(out, "    namespace: {}", text(namespace));
    }
    let _ = writeln!(out, "    user: {user_name}\n  name: {context}\ncurrent-context: {context}");
    let _ = writeln!(out, "users:\n- name: {user_name}\n  user:");
    for (key, value) in users {
        let _ = writeln!(out, "    {key}: {}", text(value));
    }
    out
}

#[cfg(test)]
mod tests;
