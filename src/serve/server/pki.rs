//! The node's own certificates: its authority, its serving certificate, and client certificates for users.
//!
//! Owns the files `agent-ca.*` and `agent-sa.key` in the certificate directory, and `kubelet.*` unless the user provides
//! them.
//!
//! A box without a battery boots in 1970 and learns the time later, if ever. So no certificate of the agent
//! begins to be valid "now": all are valid since [`FLOOR`], and validity is checked at the later of the clock
//! and `FLOOR`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use time::OffsetDateTime;
use webpki::EndEntityCert;

use crate::model::types::Timestamp;
use crate::platform::sys::durable::write_durably;
use crate::platform::sys::lock;
use crate::platform::x509::Subject;

/// 2026-01-01: an earlier clock is wrong, as this program did not exist then.
pub(crate) const FLOOR: Timestamp = Timestamp::from_secs(1_767_225_600);
/// RFC 5280's "no well-defined expiration date": a box outlives any number of years we could choose.
const FOR_EVER: i64 = 253_402_300_799;
const SERVING_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// A serving certificate with less time left is replaced.
const RENEW_BEFORE: Duration = Duration::from_secs(73 * 24 * 3600);

/// An error of a certificate file.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("{action} {}", path.display())]
    File {
        /// The operation that failed.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}: {message}", path.display())]
    Content {
        path: PathBuf,
        /// What is wrong and how to fix it.
        message: String,
    },
    /// Another process is creating certificates, or the lock file cannot be opened.
    #[error(transparent)]
    Lock(#[from] lock::LockError),
    /// An error of the library, not caused by the user.
    #[error("generate a certificate")]
    Make(#[from] rcgen::Error),
}

/// A certificate and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The certificate, then its authority's.
    pub certificate: String,
    /// PKCS #8.
    pub key: String,
}

/// The clock, or [`FLOOR`] if the clock is earlier.
#[must_use]
pub(crate) fn plausible(now: Timestamp) -> Timestamp {
    now.max(FLOOR)
}

/// The same for certificate verification.
#[must_use]
pub(in crate::serve) fn unix_time(now: Timestamp) -> UnixTime {
    let seconds = plausible(now).as_nanos() / 1_000_000_000;
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}

/// The prefix of the name of every authority that the agent creates.
const NAME: &str = "agent-ca@";

/// Signs serving and client certificates.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// `agent-ca.crt`: what clients trust.
#[must_use]
pub(crate) fn authority_file(directory: &Path) -> PathBuf {
    directory.join("agent-ca.crt")
}

fn authority_key_file(directory: &Path) -> PathBuf {
    directory.join("agent-ca.key")
}

impl Authority {
    /// Reads the node's authority if it exists.
    ///
    /// # Errors
    /// As [`open`](Self::open), and when there is none: nothing is created.
    pub(crate) fn existing(directory: &Path, node_name: &str) -> Result<Self, PkiError> {
        let file = authority_file(directory);
        // The key may exist without its certificate, when creating the authority was interrupted.
        if read(&file)?.is_none() {
            let message = "not found: the agent generates it at its first start; set its certificate \
                           directory with --cert-dir, or its root directory with --root-dir"
                .to_owned();
            return Err(PkiError::Content { path: file, message });
        }
        Self::open(directory, node_name)
    }

    /// Reads the node's authority, or creates it: once in the life of a node.
    ///
    /// # Errors
    /// Files that cannot be read or written, or with other content. A key that is missing beside its
    /// certificate is an error too: a new one would silently invalidate the certificates that were issued.
    pub fn open(directory: &Path, node_name: &str) -> Result<Self, PkiError> {
        let (file, key_file) = (authority_file(directory), authority_key_file(directory));
        let fail = |action| move |source| PkiError::File { action, path: directory.to_owned(), source };
        crate::platform::sys::dir::make_dir(directory, 0o755).map_err(fail("create the directory"))?;
        // The agent and a command that writes a kubeconfig may run at the same time and each create an
        // authority.
        let _lock = lock::acquire(&directory.join(".lock"))?;
        let (certificate, key) = (read(&file)?, read(&key_file)?);
        let key = match (&certificate, key) {
            (Some(_), None) => {
                let message = format!(
                    "its key {} is missing: restore it, or remove this file to generate a new authority",
                    key_file.display()
                );
                return Err(PkiError::Content { path: file, message });
            }
            (_, Some(key)) => KeyPair::from_pem(&key).map_err(|_| {
                let message = "no private key in PEM; restore it, or remove it and agent-ca.crt to generate \
                               a new authority";
                PkiError::Content { path: key_file, message: message.to_owned() }
            })?,
            (None, None) => {
                let key = KeyPair::generate()?;
                write(&key_file, &key.serialize_pem(), 0o600)?;
                key
            }
        };
        let Some(certificate) = certificate else {
            // Also after a power cut between the two writes.
            let params = authority_params(&format!("{NAME}{node_name}"));
            let certificate = params.self_signed(&key)?.pem();
            write(&file, &certificate, 0o644)?;
            return Ok(Self { certificate, issuer: Issuer::new(params, key) });
        };
        let content = |message: &str| PkiError::Content { path: file.clone(), message: message.to_owned() };
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|_| {
            content("no certificate in PEM; restore it, or remove it to regenerate it from its key")
        })?;
        let parsed = EndEntityCert::try_from(&der).map_err(|_| content("not an X.509 certificate"))?;
        if parsed.subject_public_key_info().as_ref() != rcgen::PublicKeyData::subject_public_key_info(&key) {
            return Err(content("does not match agent-ca.key; remove it to regenerate it from that key"));
        }
        let name = Subject::parse(parsed.subject()).common_name;
        Ok(Self { certificate, issuer: Issuer::new(authority_params(&name), key) })
    }

    /// The certificate, PEM.
    #[must_use]
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a client with this name and group.
    pub(crate) fn client(
        &self,
        user: &str,
        group: &str,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Pair, PkiError> {
        let mut params = leaf(user, lifetime, now);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    /// Whether a client certificate (PEM) is of this authority and remains valid for at least `RENEW_BEFORE`.
    #[must_use]
    pub(crate) fn is_client_valid(&self, certificate: &str, now: Timestamp) -> bool {
        let holds = || {
            let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
            let parsed = EndEntityCert::try_from(&der).ok()?;
            let root = CertificateDer::from_pem_slice(self.certificate.as_bytes()).ok()?;
            let anchors = [webpki::anchor_from_trusted_cert(&root).ok()?];
            let (at, usage) = (unix_time(now.saturating_add(RENEW_BEFORE)), webpki::KeyUsage::client_auth());
            let algorithms = webpki::ALL_VERIFICATION_ALGS;
            parsed.verify_for_usage(algorithms, &anchors, &[], at, usage, None, None).ok().map(drop)
        };
        holds().is_some()
    }

    fn server(&self, node_name: &str, names: &[String], now: Timestamp) -> Result<Pair, PkiError> {
        let mut params = leaf(&format!("system:node:{node_name}"), SERVING_LIFETIME, now);
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = names
            .iter()
            .filter_map(|name| match name.parse::<IpAddr>() {
                Ok(address) => Some(SanType::IpAddress(address)),
                // A host name may be invalid in DNS.
                Err(_) => name.as_str().try_into().ok().map(SanType::DnsName),
            })
            .collect();
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Result<Pair, PkiError> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Pair { certificate: certificate.pem() + &self.certificate, key: key.serialize_pem() })
    }
}

fn moment(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at.as_nanos() / 1_000_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.not_before = moment(FLOOR);
    params.not_after = OffsetDateTime::from_unix_timestamp(FOR_EVER).unwrap_or(params.not_after);
    params
}

fn leaf(name: &str, lifetime: Duration, now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params.not_before = moment(FLOOR);
    params.not_after = moment(plausible(now).saturating_add(lifetime));
    params
}

/// The file of [`token_key`].
#[must_use]
pub(crate) fn token_key_file(directory: &Path) -> PathBuf {
    directory.join("agent-sa.key")
}

/// The key that signs the tokens of service accounts (PKCS #8, DER); with `creates` it is made if there is none: once in
/// the life of a node.
pub(crate) fn token_key(directory: &Path, creates: bool) -> Result<Option<Vec<u8>>, PkiError> {
    let file = token_key_file(directory);
    let content = |pem: &str| {
        if let Ok(PrivateKeyDer::Pkcs8(key)) = PrivateKeyDer::from_pem_slice(pem.as_bytes()) {
            return Ok(Some(key.secret_pkcs8_der().to_vec()));
        }
        let message = "no private key in PEM; restore it, or remove it to generate another one, which makes all tokens \
                       invalid";
        Err(PkiError::Content { path: file.clone(), message: message.to_owned() })
    };
    match read(&file)? {
        Some(pem) => return content(&pem),
        None if !creates => return Ok(None),
        None => {}
    }
    let fail = |action| move |source| PkiError::File { action, path: directory.to_owned(), source };
    crate::platform::sys::dir::make_dir(directory, 0o755).map_err(fail("create the directory"))?;
    let _lock = lock::acquire(&directory.join(".lock"))?;
    if let Some(pem) = read(&file)? {
        return content(&pem);
    }
    let key = KeyPair::generate()?;
    write(&file, &key.serialize_pem(), 0o600)?;
    Ok(Some(key.serialize_der()))
}

/// The serving certificate when the user names none: `kubelet.crt` and `kubelet.key`, upstream's names. They
/// are kept while they are valid; those that the agent created are replaced when they expire soon or do not
/// contain the node's current names. A pair of another authority is used as it is.
pub(crate) fn serving_pair(
    directory: &Path,
    authority: &Authority,
    node_name: &str,
    names: &[String],
    now: Timestamp,
) -> Result<Pair, PkiError> {
    let (file, key_file) = (directory.join("kubelet.crt"), directory.join("kubelet.key"));
    if let (Some(certificate), Some(key)) = (read(&file)?, read(&key_file)?)
        && let Some(standing) = standing(&certificate, &key, authority, names, now)
        && standing != Standing::Expiring
    {
        return Ok(Pair { certificate, key });
    }
    let pair = authority.server(node_name, names, now)?;
    // The key is written first: a certificate without its key is recreated as well.
    write(&key_file, &pair.key, 0o600)?;
    write(&file, &pair.certificate, 0o644)?;
    log::info!(path:% = file.display(); "Generated serving certificate");
    Ok(pair)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    OtherCa,
    Valid,
    /// Expires soon, or does not contain the node's names.
    Expiring,
}

/// `None`: the two do not belong together.
fn standing(
    certificate: &str,
    key: &str,
    authority: &Authority,
    names: &[String],
    now: Timestamp,
) -> Option<Standing> {
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
    let parsed = EndEntityCert::try_from(&der).ok()?;
    let own = KeyPair::from_pem(key);
    let is_pair = |key: &KeyPair| {
        rcgen::PublicKeyData::subject_public_key_info(key) == parsed.subject_public_key_info().as_ref()
    };
    if !Subject::parse(parsed.issuer()).common_name.starts_with(NAME) {
        return Some(Standing::OtherCa);
    }
    // Keys of kinds that only others create (RSA) cannot be parsed here.
    if own.as_ref().is_ok_and(|key| !is_pair(key)) {
        return None;
    }
    let root = CertificateDer::from_pem_slice(authority.certificate.as_bytes()).ok()?;
    let anchor = webpki::anchor_from_trusted_cert(&root).ok()?;
    let holds_at = |at: Timestamp| {
        parsed
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                std::slice::from_ref(&anchor),
                &[],
                unix_time(at),
                webpki::KeyUsage::server_auth(),
                None,
                None,
            )
            .map(drop)
    };
    match holds_at(now.saturating_add(RENEW_BEFORE)) {
        Ok(()) => {
            let has = |name: &String| {
                ServerName::try_from(name.as_str())
                    .is_ok_and(|name| parsed.verify_is_valid_for_subject_name(&name).is_ok())
            };
            let nameable = |name: &&String| ServerName::try_from(name.as_str()).is_ok();
            let all = names.iter().filter(nameable).all(has);
            Some(if all { Standing::Valid } else { Standing::Expiring })
        }
        // It expires soon, or is of an earlier authority of this node.
        Err(_) => Some(Standing::Expiring),
    }
}

/// Whether a serving pair that the agent created has to be replaced, because it expires soon or lacks one of
/// the node's names. False for pairs of other authorities.
#[must_use]
pub(crate) fn is_due(pair: &Pair, authority: &Authority, names: &[String], now: Timestamp) -> bool {
    standing(&pair.certificate, &pair.key, authority, names, now) == Some(Standing::Expiring)
}

/// Whether a certificate leads to one of these authorities, over others in its file, and is valid now, whatever it is for.
/// Both are PEM.
///
/// # Errors
/// Why it does not.
pub(crate) fn verify_chain(certificate: &str, authorities: &str, now: Timestamp) -> Result<(), String> {
    let chain = certificates(certificate);
    let roots = certificates(authorities);
    let anchors: Vec<_> =
        roots.iter().filter_map(|root| webpki::anchor_from_trusted_cert(root).ok()).collect();
    let (leaf, others) = chain.split_first().ok_or("no certificate in PEM")?;
    let parsed = EndEntityCert::try_from(leaf).map_err(|error| error.to_string())?;
    let is_for = |usage| {
        let algorithms = webpki::ALL_VERIFICATION_ALGS;
        parsed.verify_for_usage(algorithms, &anchors, others, unix_time(now), usage, None, None).map(drop)
    };
    let verified =
        is_for(webpki::KeyUsage::client_auth()).or_else(|_| is_for(webpki::KeyUsage::server_auth()));
    verified.map_err(|error| error.to_string())
}

fn certificates(text: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok).collect()
}

fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::File { action: "read", path: path.to_owned(), source }),
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let fail = |action| move |source| PkiError::File { action, path: path.to_owned(), source };
    let directory = path.parent().unwrap_or(Path::new("/"));
    crate::platform::sys::dir::make_dir(directory, 0o755).map_err(fail("create the directory of"))?;
    write_durably(path, text.as_bytes(), mode).map_err(fail("write"))
}

#[cfg(test)]
mod tests;
