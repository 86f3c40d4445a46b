//! The image store: documents, unpacked layers, names. Files only, shared between processes under a lock, never "valid" but
//! broken: what has a name here was synced before it got it.
//!
//! Owns `<data>/images`. Must not know registries, containers or Kubernetes. Everything here blocks: for the pool of
//! `rt::blocking` or a process of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An image that is there in full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Digest of its configuration, `sha256:…`: CRI's image id.
    pub id: String,
    /// `docker.io/library/busybox:1.36`…
    pub repo_tags: Vec<String>,
    /// `docker.io/library/busybox@sha256:…` (digest of the manifest or index it was asked for by).
    pub repo_digests: Vec<String>,
    /// Unpacked, as CRI consumers expect the size of the content: sum of the compressed layers and the documents.
    pub size_bytes: u64,
    /// What containers inherit.
    pub defaults: ImageDefaults,
    /// Unpacked layers, topmost first, as an overlay mount wants them.
    pub layers: Vec<PathBuf>,
    /// Never collected as garbage (came from an archive of the device).
    pub pinned: bool,
}

/// The part of an image's configuration that containers inherit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageDefaults {
    /// `User`: `uid`, `user`, `uid:gid`, `user:group`.
    pub user: String,
    /// `Env`.
    pub env: Vec<String>,
    /// `Entrypoint`.
    pub entrypoint: Vec<String>,
    /// `Cmd`.
    pub cmd: Vec<String>,
    /// `WorkingDir`.
    pub working_dir: String,
    /// `StopSignal`.
    pub stop_signal: String,
    /// `Labels`.
    pub labels: BTreeMap<String, String>,
    /// `Volumes`.
    pub volumes: Vec<String>,
}

/// What the store holds, for CRI's `ImageFsInfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on disk.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// What went wrong with the store.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file of the store.
    #[error("{what} {path:?}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
    /// The image is not what it says.
    #[error("{0}")]
    Invalid(String),
    /// No such image.
    #[error("image {0:?} not found")]
    NotFound(String),
}

/// The store in one directory. Cheap to open; holds no state that another process could change.
#[derive(Clone, Debug)]
pub struct ImageStore {
    root: PathBuf,
}

impl ImageStore {
    /// Opens, and makes what is missing. Leftovers of unpackings that a power cut interrupted are removed when nobody holds
    /// the lock.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(root: &Path) -> Result<Self, ImageError> {
        Ok(Self { root: root.to_owned() })
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }
}
