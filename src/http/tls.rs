//! Whom an HTTPS client trusts, and with which cryptography.
//!
//! Owns the choice of the rustls provider and where certificates are read from. Must not know requests.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

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

/// The one place that names the cryptography behind TLS.
#[must_use]
pub fn tls_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A set of trusted authorities that is read only when needed; equal as long as its file is the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// No TLS expected.
    None,
    /// The authorities of a PEM file.
    File {
        /// The file.
        path: PathBuf,
        /// Device, inode, size, mtime: a renewed bundle is read again.
        identity: (u64, u64, u64, i64, i64),
    },
}

impl Roots {
    /// The configured file, or the system's bundle (`SSL_CERT_FILE` overrides where that is).
    pub fn find(encrypted: bool, ca_file: Option<&Path>) -> Result<Self, HttpError> {
        if !encrypted {
            return Ok(Self::None);
        }
        if let Some(path) = ca_file {
            return Self::of_file(path)
                .map_err(|source| HttpError::ReadAuthorities { path: path.to_owned(), source });
        }
        if let Some(path) = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from) {
            return Self::of_file(&path).map_err(|source| HttpError::ReadAuthorities { path, source });
        }
        SYSTEM_BUNDLES
            .iter()
            .find_map(|path| Self::of_file(Path::new(path)).ok())
            .ok_or(HttpError::NoAuthorities)
    }

    fn of_file(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        if !found.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if found.len() > MAX_BUNDLE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 8 MiB"));
        }
        let identity = (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec());
        Ok(Self::File { path: path.to_owned(), identity })
    }

    /// Reads the certificates.
    pub fn load(&self) -> Result<TlsConfig, HttpError> {
        let certificates = match self {
            Self::None => Vec::new(),
            Self::File { path, .. } => read_certificates(path)?,
        };
        Ok(TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(RootCerts::new_with_certs(&certificates))
            .unversioned_rustls_crypto_provider(tls_provider())
            .build())
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
