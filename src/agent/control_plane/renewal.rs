//! Certificates in the place of those that end. They keep names, addresses, groups and usages, so that neither a
//! configuration nor a running API server is needed.
//!
//! Owns the files of certificates while it replaces them.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::certificates::{CERTS, CONFS, CertSpec, ConfSpec};
use super::sign::{Leaf, Signer, Terms};
use crate::codec::base64;
use crate::codec::yaml::{text, yaml_to_values};
use crate::model::ordered::Sortable as _;
use crate::platform::sys::durable::write_durably;
use crate::platform::x509::{self, CERTIFICATE, pem_blocks};
use crate::serve::server::pki::Pair;

/// Where the certificates and the kubeconfigs are.
#[derive(Clone)]
pub(crate) struct Directories {
    /// `/etc/kubernetes/pki`.
    pub certs: PathBuf,
    /// `/etc/kubernetes`.
    pub confs: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewalError {
    #[error("{action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: {why}", path.display())]
    Content { path: PathBuf, why: String },
    #[error("the certificate authority {} is not there", .0.display())]
    NoAuthority(PathBuf),
    #[error("failed to renew certificate {name}: {why}")]
    Refused { name: String, why: String },
}

/// What became of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Done,
    Missing,
    /// The key of its authority is kept elsewhere.
    External,
}

/// A certificate that can be renewed.
pub(crate) enum Place {
    File(&'static CertSpec),
    Conf(&'static ConfSpec),
}

impl Place {
    /// All, by their names.
    pub(crate) fn all() -> Vec<(String, Self)> {
        let leaves = CERTS.iter().filter(|spec| !spec.signer.is_empty());
        let mut all: Vec<_> = leaves.map(|spec| (spec.phase.to_owned(), Self::File(spec))).collect();
        // The kubelet renews its own.
        let confs = CONFS.iter().filter(|spec| spec.phase != "kubelet");
        all.extend(confs.map(|spec| (spec.file(), Self::Conf(spec))));
        all.order_by(|one, other| one.0.cmp(&other.0));
        all
    }

    /// The file of its authority, without the extension.
    pub(crate) fn authority(&self) -> &'static str {
        match self {
            Self::File(spec) => spec.signer,
            Self::Conf(_) => "ca",
        }
    }

    fn path(&self, directories: &Directories) -> PathBuf {
        match self {
            Self::File(spec) => directories.certs.join(format!("{}.crt", spec.base)),
            Self::Conf(spec) => directories.confs.join(spec.file()),
        }
    }

    /// The certificate (PEM); `None`: there is none.
    pub(crate) fn certificate(&self, directories: &Directories) -> Result<Option<String>, RenewalError> {
        let path = self.path(directories);
        let Some(found) = read(&path)? else { return Ok(None) };
        match self {
            Self::File(_) => Ok(Some(found)),
            Self::Conf(_) => {
                let conf = conf(&path, &found)?;
                let data = user(&conf).map(|user| &conf["users"][user]["user"]["client-certificate-data"]);
                let data = data.and_then(Value::as_str).and_then(base64::decode);
                Ok(data.and_then(|data| String::from_utf8(data).ok()))
            }
        }
    }

    fn store(&self, directories: &Directories, pair: &Pair, authority: &str) -> Result<(), RenewalError> {
        let path = self.path(directories);
        match self {
            Self::File(_) => {
                write(&path.with_extension("key"), &pair.key, 0o600)?;
                write(&path, &pair.certificate, 0o644)
            }
            Self::Conf(_) => {
                let mut conf = conf(&path, &read(&path)?.unwrap_or_default())?;
                let data = |text: &str| Value::String(base64::encode(text.as_bytes()));
                let cluster = entry(&conf, "clusters", &context(&conf)["cluster"]);
                if let Some(user) = user(&conf) {
                    let user = &mut conf["users"][user]["user"];
                    user["client-certificate-data"] = data(&pair.certificate);
                    user["client-key-data"] = data(&pair.key);
                }
                if let Some(cluster) = cluster {
                    conf["clusters"][cluster]["cluster"]["certificate-authority-data"] = data(authority);
                }
                write(&path, &text::to_string(&conf), 0o600)
            }
        }
    }

    /// What the certificate before is for.
    fn leaf(&self, old: &str) -> Option<Leaf> {
        let der = pem_blocks(old, CERTIFICATE).into_iter().next()?;
        let subject = x509::subject(&der)?;
        let (names, addresses) = x509::alternative_names(&der);
        let (is_server, is_client) = match self {
            Self::File(spec) => (spec.is_server, spec.is_client),
            Self::Conf(_) => (false, true),
        };
        let (common_name, organizations) = (subject.common_name, subject.organizations);
        Some(Leaf { common_name, organizations, is_server, is_client, names, addresses })
    }
}

/// Replaces one of [`Place::all`].
pub(crate) fn renew(
    (name, place): &(String, Place),
    directories: &Directories,
    terms: Terms<'_>,
) -> Result<Renewed, RenewalError> {
    let Some(old) = place.certificate(directories)? else { return Ok(Renewed::Missing) };
    let file = |extension: &str| directories.certs.join(format!("{}.{extension}", place.authority()));
    let authority = read(&file("crt"))?.ok_or_else(|| RenewalError::NoAuthority(file("crt")))?;
    let Some(key) = read(&file("key"))? else { return Ok(Renewed::External) };
    let refused = |why: String| RenewalError::Refused { name: name.clone(), why };
    let signer = Signer::existing(&authority, Some(&key)).map_err(refused)?;
    let leaf = place.leaf(&old).ok_or_else(|| refused("it is no certificate".to_owned()))?;
    let pair = signer.sign(&leaf, terms).map_err(refused)?;
    place.store(directories, &pair, &authority)?;
    Ok(Renewed::Done)
}

/// `etcd/ca`, in the words of the table.
#[must_use]
pub(crate) fn authority_name(base: &str) -> String {
    base.replace('/', "-")
}

fn conf(path: &Path, text: &str) -> Result<Value, RenewalError> {
    let failed = |why: String| RenewalError::Content { path: path.to_owned(), why };
    let values = yaml_to_values(text, false).map_err(|error| failed(error.to_string()))?;
    Ok(values.into_iter().next().unwrap_or_default())
}

/// The current context.
fn context(conf: &Value) -> &Value {
    let at = entry(conf, "contexts", &conf["current-context"]);
    at.map_or(&Value::Null, |at| &conf["contexts"][at]["context"])
}

/// The position of the current context's user.
fn user(conf: &Value) -> Option<usize> {
    entry(conf, "users", &context(conf)["user"])
}

fn entry(conf: &Value, list: &str, name: &Value) -> Option<usize> {
    conf[list].as_array()?.iter().position(|one| one["name"] == *name)
}

pub(crate) fn read(path: &Path) -> Result<Option<String>, RenewalError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RenewalError::File { action: "read", path: path.to_owned(), source }),
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), RenewalError> {
    let failed = |source| RenewalError::File { action: "write", path: path.to_owned(), source };
    write_durably(path, text.as_bytes(), mode).map_err(failed)
}
