//! Which authorities an HTTPS client trusts, and with which cryptography.
//!
//! Owns the choice of the rustls provider and where certificates are read from.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider};

use super::HttpError;

/// Where distributions keep the bundle of trusted authorities.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// A bundle is a few hundred kilobytes.
const MAX_BUNDLE_BYTES: u64 = 8 * 1024 * 1024;

/// The only place that names the cryptography behind TLS.
#[must_use]
pub(crate) fn tls_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A set of trusted authorities that is read only when needed; equal as long as its file is the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::platform) enum Roots {
    /// No TLS expected.
    None,
    /// The authorities of a PEM file.
    File(FileVersion),
}

/// A version of a file; equal as long as the file is neither replaced nor written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::platform) struct FileVersion {
    path: PathBuf,
    /// Device, inode, size, mtime.
    identity: (u64, u64, u64, i64, i64),
}

impl FileVersion {
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        if !found.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if found.len() > MAX_BUNDLE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 8 MiB"));
        }
        let identity = (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec());
        Ok(Self { path: path.to_owned(), identity })
    }
}

/// The client certificate and its key, which may be in the same file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// PEM, the certificate first, then its intermediates.
    pub certificate: PathBuf,
    /// PEM; `None`: with the certificate.
    pub key: Option<PathBuf>,
}

impl ClientFiles {
    fn key(&self) -> &Path {
        self.key.as_deref().unwrap_or(&self.certificate)
    }

    pub(super) fn load(&self) -> Result<ClientCert, HttpError> {
        let chain = read_certificates(&self.certificate)?;
        let path = self.key();
        let pem = fs::read(path).map_err(|source| HttpError::ReadKey { path: path.to_owned(), source })?;
        let key = PrivateKey::from_pem(&pem).map_err(|_| HttpError::Key { path: path.to_owned() })?;
        Ok(ClientCert::new_with_certs(&chain, key))
    }
}

/// Both sides of trust, as file versions: a renewed file makes a different value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::platform) struct Trust {
    roots: Roots,
    client: Option<(ClientFiles, [FileVersion; 2])>,
}

impl Trust {
    /// The trust that a request needs; empty when it is not encrypted.
    pub(in crate::platform) fn find(
        encrypted: bool,
        ca_file: Option<&Path>,
        client: Option<&ClientFiles>,
    ) -> Result<Self, HttpError> {
        let roots = Roots::find(encrypted, ca_file)?;
        let version = |path: &Path| {
            FileVersion::of(path).map_err(|source| HttpError::ReadKey { path: path.to_owned(), source })
        };
        let client = match client.filter(|_| encrypted) {
            Some(files) => Some((files.clone(), [version(&files.certificate)?, version(files.key())?])),
            None => None,
        };
        Ok(Self { roots, client })
    }

    pub(in crate::platform) fn load(&self) -> Result<TlsConfig, HttpError> {
        let certificates = match &self.roots {
            Roots::None => Vec::new(),
            Roots::File(file) => read_certificates(&file.path)?,
        };
        let client = self.client.as_ref().map(|(files, _)| files.load()).transpose()?;
        Ok(TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(RootCerts::new_with_certs(&certificates))
            .client_cert(client)
            .unversioned_rustls_crypto_provider(tls_provider())
            .build())
    }
}

impl Roots {
    /// The configured file, or the system's bundle (`SSL_CERT_FILE` overrides its path).
    pub(in crate::platform) fn find(encrypted: bool, ca_file: Option<&Path>) -> Result<Self, HttpError> {
        if !encrypted {
            return Ok(Self::None);
        }
        if let Some(path) = ca_file {
            return FileVersion::of(path)
                .map(Self::File)
                .map_err(|source| HttpError::ReadAuthorities { path: path.to_owned(), source });
        }
        if let Some(path) = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from) {
            return FileVersion::of(&path)
                .map(Self::File)
                .map_err(|source| HttpError::ReadAuthorities { path, source });
        }
        SYSTEM_BUNDLES
            .iter()
            .find_map(|path| FileVersion::of(Path::new(path)).ok().map(Self::File))
            .ok_or(HttpError::NoAuthorities)
    }

    /// The path of the authorities' file.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::None => None,
            Self::File(file) => Some(&file.path),
        }
    }
}

pub(super) fn read_certificates(path: &Path) -> Result<Vec<Certificate<'static>>, HttpError> {
    let pem =
        fs::read(path).map_err(|source| HttpError::ReadAuthorities { path: path.to_owned(), source })?;
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate =
            certificate.map_err(|source| HttpError::ParseAuthorities { path: path.to_owned(), source })?;
        certificates.push(Certificate::from_der(&certificate).to_owned());
    }
    if certificates.is_empty() {
        return Err(HttpError::EmptyAuthorities { path: path.to_owned() });
    }
    Ok(certificates)
}
