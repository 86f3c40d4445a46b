//! `agent certs generate-csr`: keys and requests for every certificate of a control plane, for an authority elsewhere.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::certs::{self, CERTS, keys, sign};
use super::config::{Etcd, InitSettings, path};
use super::kubeconfigs::{CONFS, data, document, server};
use crate::agent::control_plane::sign::Leaf;
use crate::cluster::pki::request::{CertificateSigner, RequestTemplate, request_pem};
use crate::cmd::cli::yaml;
use crate::cmd::init::install::File;
use crate::cmd::init::{InitError, InitSession, write};
use crate::platform::x509::Subject;

/// Writes them, each beside the place of its certificate. What exists stops it.
pub(super) fn generate(
    session: &mut InitSession<'_>,
    settings: &InitSettings,
    confs: &Path,
) -> Result<(), InitError> {
    let cluster = &settings.cluster;
    session.print(&format!("generating keys and CSRs in {}\n", path(&cluster.cert_dir)))?;
    let has_etcd = matches!(cluster.etcd, Etcd::Local(_));
    for spec in CERTS.iter().filter(|spec| !spec.signer.is_empty() && (has_etcd || !spec.is_of_etcd())) {
        let (key, request) = (cluster.cert(spec.base, "key"), cluster.cert(spec.base, "csr"));
        let place = cluster.cert_dir.join(spec.base);
        refuse(&[&key, &request], "key or CSR", &place)?;
        let made = request_of(&certs::leaf(spec, settings), &cluster.algorithm)?;
        store(key, made.key)?;
        store(request, made.request)?;
        session.print(&format!("  {}\n", spec.base))?;
    }
    session.print(&format!("generating keys and CSRs in {}\n", path(confs)))?;
    for spec in &CONFS {
        let file = confs.join(spec.file());
        let request = confs.join(format!("{}.csr", spec.file()));
        refuse(&[&file, &request], "kubeconfig or CSR", &file)?;
        let leaf = spec.leaf(&settings.node.name);
        let made = request_of(&leaf, &cluster.algorithm)?;
        let credentials = json!({ "client-key-data": data(&made.key) });
        let (name, at) = (leaf.common_name.as_str(), server(spec, settings));
        let mut conf = document(&cluster.name, &at, name, "", &credentials);
        // Its owner adds the authority and the certificate.
        conf["clusters"][0]["cluster"] = json!({ "server": at });
        store(file, yaml::to_string(&conf))?;
        store(request, made.request)?;
        session.print(&format!("  {}\n", spec.file()))?;
    }
    Ok(())
}

struct Request {
    key: String,
    request: String,
}

fn request_of(leaf: &Leaf, algorithm: &str) -> Result<Request, InitError> {
    let failed = InitError::ControlPlane;
    let (key, _) = sign::key_pair(algorithm).map_err(failed)?;
    let pair = keys::read(&key).map_err(failed)?;
    let template = RequestTemplate {
        signer: CertificateSigner::Client,
        subject: Subject { common_name: leaf.common_name.clone(), organizations: leaf.organizations.clone() },
        names: leaf.names.clone(),
        addresses: leaf.addresses.clone(),
    };
    let request = request_pem(&template, &pair).map_err(|error| failed(error.to_string()))?;
    Ok(Request { key, request })
}

fn refuse(files: &[&PathBuf], what: &str, place: &Path) -> Result<(), InitError> {
    if files.iter().any(|file| file.exists()) {
        return Err(InitError::ControlPlane(format!("file already exists: {what} {}", path(place))));
    }
    Ok(())
}

fn store(path: PathBuf, content: String) -> Result<(), InitError> {
    write(&File { path, mode: 0o600, content })
}
