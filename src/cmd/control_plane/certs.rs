//! The certificates of a control plane, in kubeadm's order, with its names, fields and rules for files that exist.
//!
//! Owns the files in `certificatesDir`.

use std::net::IpAddr;
use std::path::Path;

use super::config::{ClusterConfig, Etcd, InitSettings, checks, path};
use super::context::{Context, Visibility};
pub(crate) use crate::agent::control_plane::certificates::{CERTS, CertSpec, Names};
pub(crate) use crate::agent::control_plane::{keys, sign};
use crate::cmd::init::InitError;
use crate::model::ordered::Sortable as _;
use crate::platform::x509::{self, CERTIFICATE, pem_blocks};
use crate::serve::server::pki::verify_chain;
use sign::{Leaf, Signer, Terms};

const PUBLIC_KEY: &str = "PUBLIC KEY";

/// What a certificate is for, on this node of this cluster.
pub(crate) fn leaf(spec: &CertSpec, settings: &InitSettings) -> Leaf {
    let node = settings.node.name.as_str();
    let (names, addresses) = alternative_names(spec.names, settings);
    Leaf {
        common_name: if spec.common_name.is_empty() { node } else { spec.common_name }.to_owned(),
        organizations: Vec::new(),
        is_server: spec.is_server,
        is_client: spec.is_client,
        names,
        addresses,
    }
}

/// Names, sorted, and addresses, each once.
fn alternative_names(of: Names, settings: &InitSettings) -> (Vec<String>, Vec<IpAddr>) {
    let (cluster, node) = (&settings.cluster, settings.node.name.as_str());
    let advertised = settings.endpoint.advertise_address;
    let (mut given, mut addresses): (Vec<String>, Vec<IpAddr>) = match of {
        Names::None => return Default::default(),
        Names::ApiServer => {
            let mut names =
                ["kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned).to_vec();
            names.push(format!("kubernetes.default.svc.{}", cluster.dns_domain));
            let (host, _) = checks::host_and_port(&cluster.control_plane_endpoint).unwrap_or_default();
            names.extend((!host.is_empty()).then(|| host.to_owned()));
            names.extend(cluster.api_server_sans.iter().cloned());
            (names, cluster.service_address(1).into_iter().chain([advertised]).collect())
        }
        Names::EtcdServer | Names::EtcdPeer => {
            let more = match (&cluster.etcd, of) {
                (Etcd::Local(local), Names::EtcdServer) => local.server_sans.as_slice(),
                (Etcd::Local(local), _) => local.peer_sans.as_slice(),
                (Etcd::External(_), _) => &[],
            };
            let names = ["localhost".to_owned()].into_iter().chain(more.iter().cloned()).collect();
            (
                names,
                vec![advertised, IpAddr::from([127, 0, 0, 1]), IpAddr::from(std::net::Ipv6Addr::LOCALHOST)],
            )
        }
    };
    given.push(node.to_owned());
    let mut names = Vec::new();
    for name in given {
        match name.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => names.push(name),
        }
    }
    names.order_by(Ord::cmp);
    names.dedup();
    let mut each: Vec<IpAddr> = Vec::new();
    for address in addresses {
        if !each.contains(&address) {
            each.push(address);
        }
    }
    (names, each)
}

/// An authority's file, with its key if that is there.
pub(crate) fn signer(context: &Context<'_, '_>, base: &str) -> Result<Signer, InitError> {
    let cluster = &context.settings.cluster;
    let (file, key_file) = (cluster.cert(base, "crt"), cluster.cert(base, "key"));
    let refused = |why: String| {
        InitError::ControlPlane(format!("couldn't load CA certificate {base}: {}: {why}", file.display()))
    };
    let certificate = context
        .read(&file)?
        .ok_or_else(|| refused("no such file: run the phase that makes it".to_owned()))?;
    let key = context.read(&key_file)?;
    Signer::existing(&certificate, key.as_deref()).map_err(refused)
}

pub(crate) fn terms<'a>(cluster: &'a ClusterConfig, context: &Context<'_, '_>) -> Terms<'a> {
    Terms { algorithm: &cluster.algorithm, validity: cluster.validity, now: context.now() }
}

/// The phase `certs/NAME`.
pub(super) fn run(context: &mut Context<'_, '_>, phase: &str) -> Result<(), InitError> {
    match CERTS.iter().find(|spec| spec.phase == phase) {
        None => service_accounts(context),
        Some(spec) if spec.signer.is_empty() => make_authority(context, spec),
        Some(spec) => make_leaf(context, spec),
    }
}

fn make_authority(context: &mut Context<'_, '_>, spec: &CertSpec) -> Result<(), InitError> {
    let (base, cluster) = (spec.base, context.settings.cluster.clone());
    if spec.is_of_etcd() && matches!(cluster.etcd, Etcd::External(_)) {
        return context
            .say(&format!("[certs] External etcd mode: Skipping {base} certificate authority generation\n"));
    }
    if context.has(&cluster.cert(base, "crt")) {
        let found = signer(context, base)?;
        check_validity(context, base, &found.certificate);
        let keyless = if found.has_key() { "" } else { "keyless " };
        return context.say(&format!("[certs] Using existing {base} {keyless}certificate authority\n"));
    }
    refuse_leftover(context, base)?;
    let terms = Terms { validity: cluster.ca_validity, ..terms(&cluster, context) };
    let (made, key) = Signer::create(spec.common_name, terms).map_err(InitError::ControlPlane)?;
    context.say(&format!("[certs] Generating {base:?} certificate and key\n"))?;
    store(context, base, made.certificate, key)
}

fn make_leaf(context: &mut Context<'_, '_>, spec: &CertSpec) -> Result<(), InitError> {
    let (base, cluster) = (spec.base, context.settings.cluster.clone());
    if spec.is_of_etcd() && matches!(cluster.etcd, Etcd::External(_)) {
        return context.say(&format!("[certs] External etcd mode: Skipping {base} certificate generation\n"));
    }
    let authority = signer(context, spec.signer)?;
    if let Some(found) = context.read(&cluster.cert(base, "crt"))? {
        check_validity(context, base, &found);
        verify_chain(&found, &authority.certificate, context.now()).map_err(|why| {
            InitError::ControlPlane(format!(
                "[certs] certificate {base} not signed by CA certificate {}: {why}",
                spec.signer
            ))
        })?;
        check_key(context, base, &found)?;
        return context.say(&format!("[certs] Using existing {base} certificate and key on disk\n"));
    }
    if !authority.has_key() {
        return Err(InitError::ControlPlane(format!(
            "couldn't load CA certificate {0}: its key {1} is missing: put it there, or the certificate {base} that it \
             signed",
            spec.signer,
            cluster.cert(spec.signer, "key").display(),
        )));
    }
    refuse_leftover(context, base)?;
    let leaf = leaf(spec, &context.settings);
    let pair = authority.sign(&leaf, terms(&cluster, context)).map_err(InitError::ControlPlane)?;
    context.say(&format!("[certs] Generating {base:?} certificate and key\n"))?;
    if !leaf.names.is_empty() {
        let addresses: Vec<String> = leaf.addresses.iter().map(ToString::to_string).collect();
        context.say(&format!(
            "[certs] {base} serving cert is signed for DNS names [{}] and IPs [{}]\n",
            leaf.names.join(" "),
            addresses.join(" ")
        ))?;
    }
    store(context, base, pair.certificate, pair.key)
}

/// The phase `control-plane-prepare/certs` of a node that joins: the authorities and the key of service accounts are the
/// cluster's.
pub(super) fn join(context: &mut Context<'_, '_>) -> Result<(), InitError> {
    let at = path(&context.settings.cluster.cert_dir);
    context.say(&format!("[certs] Using certificateDir folder {at:?}\n"))?;
    check_shared(context)?;
    let has_etcd = matches!(context.settings.cluster.etcd, Etcd::Local(_));
    for spec in CERTS.iter().filter(|spec| !spec.signer.is_empty() && (has_etcd || !spec.is_of_etcd())) {
        check_names(context, spec)?;
        make_leaf(context, spec)?;
    }
    service_accounts(context)?;
    context.say(&format!("[certs] Valid certificates and keys now exist in {at:?}\n"))
}

/// What control-plane nodes share must be there before one joins. The keys of authorities may be elsewhere.
pub(super) fn check_shared(context: &Context<'_, '_>) -> Result<(), InitError> {
    let cluster = &context.settings.cluster;
    let has_etcd = matches!(cluster.etcd, Etcd::Local(_));
    for spec in CERTS.iter().filter(|spec| spec.signer.is_empty() && (has_etcd || !spec.is_of_etcd())) {
        signer(context, spec.base)?;
    }
    match ["key", "pub"].map(|extension| cluster.cert("sa", extension)).iter().find(|file| !context.has(file))
    {
        None => Ok(()),
        Some(file) => Err(InitError::ControlPlane(format!(
            "failure loading key for service account: {} is not there",
            file.display()
        ))),
    }
}

/// A certificate of another node, copied with the shared files, has other names.
fn check_names(context: &Context<'_, '_>, spec: &CertSpec) -> Result<(), InitError> {
    let file = context.settings.cluster.cert(spec.base, "crt");
    let Some(found) = context.read(&file)? else { return Ok(()) };
    let der = pem_blocks(&found, CERTIFICATE).into_iter().next().unwrap_or_default();
    let (names, addresses) = x509::alternative_names(&der);
    let wanted = leaf(spec, &context.settings);
    let name = wanted.names.iter().find(|name| !names.contains(name)).cloned();
    let address = wanted.addresses.iter().find(|address| !addresses.contains(address));
    match name.or_else(|| address.map(ToString::to_string)) {
        None => Ok(()),
        Some(missing) => Err(InitError::ControlPlane(format!(
            "certificate {} is invalid: {} is not for {missing}: remove it and its key to generate them again",
            spec.base,
            file.display()
        ))),
    }
}

/// What serves with a certificate needs its key.
fn check_key(context: &Context<'_, '_>, base: &str, certificate: &str) -> Result<(), InitError> {
    let file = context.settings.cluster.cert(base, "key");
    let refused =
        |why: &str| InitError::ControlPlane(format!("failure loading {base} key: {}: {why}", path(&file)));
    let key = context
        .read(&file)?
        .ok_or_else(|| refused("no such file: restore it, or remove its certificate to generate both"))?;
    let der = pem_blocks(certificate, CERTIFICATE).into_iter().next().unwrap_or_default();
    sign::key_of(&der, &key).map_err(|why| refused(&why)).map(drop)
}

/// A key without its certificate may be one that others still use.
fn refuse_leftover(context: &Context<'_, '_>, base: &str) -> Result<(), InitError> {
    let key = context.settings.cluster.cert(base, "key");
    if !context.has(&key) {
        return Ok(());
    }
    Err(InitError::ControlPlane(format!(
        "failure loading {base} certificate: {} is there without its certificate: restore the certificate, or remove the \
         key to generate both",
        key.display()
    )))
}

/// The key first: a certificate without it would be taken for one whose key is kept elsewhere.
fn store(
    context: &mut Context<'_, '_>,
    base: &str,
    certificate: String,
    key: String,
) -> Result<(), InitError> {
    let cluster = &context.settings.cluster;
    let (file, key_file) = (cluster.cert(base, "crt"), cluster.cert(base, "key"));
    context.put(key_file, 0o600, key, Visibility::Secret)?;
    context.put(file, 0o644, certificate, Visibility::Secret)
}

fn service_accounts(context: &mut Context<'_, '_>) -> Result<(), InitError> {
    let cluster = context.settings.cluster.clone();
    let (file, public) = (cluster.cert("sa", "key"), cluster.cert("sa", "pub"));
    if let Some(key) = context.read(&file)? {
        let key = keys::read(&key).map_err(|why| {
            InitError::ControlPlane(format!("couldn't load the private key {}: {why}", file.display()))
        })?;
        context.say("[certs] Using the existing \"sa\" key\n")?;
        let expected = key.public_key_pem();
        if context.read(&public)?.is_some_and(|found| is_same_key(&found, &expected)) {
            return Ok(());
        }
        // Tokens that the key signs would be refused with another.
        context.say("[certs] Writing the public key of \"sa\"\n")?;
        return context.put(public, 0o600, expected, Visibility::Secret);
    }
    if is_external(context, "ca") && context.has(&public) {
        return context.say("[certs] Using existing sa keys\n");
    }
    let (key, public_key) = sign::key_pair(&cluster.algorithm).map_err(InitError::ControlPlane)?;
    context.say("[certs] Generating \"sa\" key and public key\n")?;
    context.put(file, 0o600, key, Visibility::Secret)?;
    context.put(public, 0o600, public_key, Visibility::Secret)
}

fn is_same_key(found: &str, expected: &str) -> bool {
    pem_blocks(found, PUBLIC_KEY) == pem_blocks(expected, PUBLIC_KEY)
}

/// Warns of a certificate that is not valid now.
fn check_validity(context: &mut Context<'_, '_>, base: &str, certificate: &str) {
    let now = context.now();
    let Some(der) = pem_blocks(certificate, CERTIFICATE).into_iter().next() else { return };
    let (Some(start), Some(end)) = (x509::not_before(&der), x509::not_after(&der)) else { return };
    if now < start || now > end {
        let why = if now < start { "not yet valid" } else { "expired" };
        context.warn(&format!(
            "WARNING: could not validate bounds for certificate {base}: the certificate is {why}: NotBefore: {}, \
             NotAfter: {}, now: {}",
            start.to_rfc3339(),
            end.to_rfc3339(),
            now.to_rfc3339()
        ));
    }
}

/// Whether the user keeps the key of an authority elsewhere: its certificate is there without it.
pub(crate) fn is_external(context: &Context<'_, '_>, base: &str) -> bool {
    let cluster = &context.settings.cluster;
    context.has(&cluster.cert(base, "crt")) && !context.has(&cluster.cert(base, "key"))
}

/// What an authority without its key must have signed before.
pub(super) fn check_external(context: &Context<'_, '_>) -> Result<(), InitError> {
    for (base, what) in [("ca", "external CA"), ("front-proxy-ca", "external front-proxy CA")] {
        if !is_external(context, base) {
            continue;
        }
        let authority = signer(context, base)?;
        for spec in CERTS.iter().filter(|spec| spec.signer == base) {
            let (file, key) = (
                context.settings.cluster.cert(spec.base, "crt"),
                context.settings.cluster.cert(spec.base, "key"),
            );
            let refused = |at: &Path, why: &str| {
                InitError::ControlPlane(format!("invalid or incomplete {what}: {}: {why}", path(at)))
            };
            let certificate = context.read(&file)?.ok_or_else(|| refused(&file, "no such file"))?;
            let key_text = context.read(&key)?.ok_or_else(|| refused(&key, "no such file"))?;
            let der = pem_blocks(&certificate, CERTIFICATE).into_iter().next().unwrap_or_default();
            sign::key_of(&der, &key_text).map_err(|why| refused(&key, &why))?;
            verify_chain(&certificate, &authority.certificate, context.now())
                .map_err(|why| refused(&file, &why))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
