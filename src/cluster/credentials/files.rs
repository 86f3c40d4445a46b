//! The files of credentials: whether they changed, and what is in them.
//!
//! Owns the bounds of what is read. All of it may block and runs where blocking is allowed.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::cluster::kubeconfig::{Kubeconfig, PemSource};

/// Authorities of a cluster, a certificate chain, a token.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The version of a file: inode, size, mtime. `None`: it cannot be read.
pub(super) type Stamp = Option<[i64; 4]>;

/// What a kubeconfig's files contain.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub authorities: Option<Vec<u8>>,
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    pub token: Option<String>,
}

/// The files that a kubeconfig names.
pub(super) fn paths(config: &Kubeconfig) -> Vec<PathBuf> {
    let client = config.client.iter().flat_map(|(certificate, key)| [certificate, key]);
    let pem = config.authorities.iter().chain(client).filter_map(|source| match source {
        PemSource::File(path) => Some(path.clone()),
        PemSource::Data(_) => None,
    });
    pem.chain(config.token_file.clone()).collect()
}

/// A renewed file has another stamp, also one that a link leads to.
pub(super) fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    Some([number(found.ino()), number(found.len()), found.mtime(), found.mtime_nsec()])
}

/// The text of a small file.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB"))
    } else {
        Ok(bytes)
    }
}

/// Reads all files of a kubeconfig. What cannot be read stays as it was in `old`.
///
/// # Errors
/// Beside what could be read: the failures, in words that name the files.
pub(super) fn contents(config: &Kubeconfig, old: &Contents) -> (Contents, Vec<String>) {
    let mut failures = Vec::new();
    let mut take = |what: &str, source: &PemSource| match source {
        PemSource::Data(data) => Some(data.clone()),
        PemSource::File(path) => match read(path) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                failures.push(format!("read {what} {}: {error}", path.display()));
                None
            }
        },
    };
    let authorities = config.authorities.as_ref().and_then(|source| take("certificate authority", source));
    let client = config.client.as_ref().and_then(|(certificate, key)| {
        let certificate = take("client certificate", certificate);
        certificate.zip(take("client key", key))
    });
    let token_file = config.token_file.clone().map(PemSource::File);
    let token = token_file.as_ref().and_then(|file| take("token", file));
    let token = token.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    if token.as_ref().is_some_and(String::is_empty) {
        failures.push("read empty token from the token file".to_owned());
    }
    let token = token.filter(|token| !token.is_empty());
    let contents = Contents {
        authorities: authorities.or_else(|| old.authorities.clone()),
        client: client.or_else(|| old.client.clone()),
        token: token.or_else(|| old.token.clone()),
    };
    (contents, failures)
}
