//! The image store: documents, unpacked layers, names. It consists of files only, shared between processes
//! under a lock, and is never "valid" but broken: everything was synced before it got its name here.
//!
//! Owns `<data>/images`. Everything here blocks: for the pool of `rt::blocking` or a process of its own.
//!
//! | path | what |
//! |---|---|
//! | `index.json` | images: names, digests, layers; archives that were imported |
//! | `blobs/sha256/<hex>` | manifests and configurations |
//! | `layers/<24 hex of the diff id>/` | a layer as overlayfs takes it; short, because mount options are |
//! | `layers/<24 hex>.usage` | its bytes and inodes; then one line per source of its content |
//! | `tmp/` | incomplete content; each entry is locked by the process that writes it |
//! | `lock`, `users` | excludes concurrent changes; excludes garbage collection while images are brought in |
//! | `claims` | empty; one byte of it is locked for each layer that is being brought in |

mod archive;
mod change;
pub mod compression;
mod copy;
pub mod documents;
mod import;
mod index;
mod merged;
mod origin;
pub mod platform;
pub mod reference;
pub mod tar;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod unpack;
pub mod watch;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use change::{NewImage, Pruned};
pub(crate) use origin::Origin;
pub(crate) use reference::{Reference, normalise_reference};
pub(crate) use tar::TarError;
pub(crate) use unpack::{LayerError, UnpackLimits};

use crate::codec::hex;
use crate::model::ordered::Sortable as _;
use crate::platform::sys::dir::Handle;
use crate::platform::sys::disk_usage::disk_usage;
use crate::platform::sys::durable::sync_dir;
use crate::platform::sys::layer::{LayerDir, has_extended};
use crate::platform::sys::lock::{self, ByteLock, FileLock};
use crate::runtime::DiskFigures;
use index::ImageRecord;

/// Layers of an image that overlayfs and one page of mount options take.
pub(in crate::runtime) const MAX_LAYERS: usize = 127;
/// The longest manifest, index or configuration.
pub(in crate::runtime) const MAX_DOCUMENT: usize = 4 * 1024 * 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Digest of its configuration, `sha256:…`: CRI's image id.
    pub id: String,
    /// `docker.io/library/busybox:1.36`…
    pub repo_tags: Vec<String>,
    /// `docker.io/library/busybox@sha256:…` (digest of the requested manifest or index).
    pub repo_digests: Vec<String>,
    /// Size as CRI consumers expect it: the sum of the compressed layers and the documents.
    pub size_bytes: u64,
    pub defaults: ImageDefaults,
    /// Unpacked layers, topmost first, as an overlay mount wants them; at least one.
    pub layers: Vec<PathBuf>,
    /// Never collected as garbage (came from an archive on the device).
    pub pinned: bool,
    /// Its source, for people: an archive or a registry.
    pub source: String,
}

/// The part of an image's configuration that containers inherit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageDefaults {
    /// `User`: `uid`, `user`, `uid:gid`, `user:group`.
    pub user: String,
    pub env: Vec<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub working_dir: String,
    pub stop_signal: String,
    pub labels: BTreeMap<String, String>,
    pub volumes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("{what} {path:?}")]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The image does not match its digest or description.
    #[error("{0}")]
    Invalid(String),
    #[error("image {0:?} not found")]
    NotFound(String),
    #[error("invalid image reference {reference:?}: {problem}")]
    Reference { reference: String, problem: &'static str },
    #[error("cannot read {what}: {problem}")]
    Document { what: String, problem: String },
    #[error("unpack layer {layer}")]
    Layer {
        /// Its diff id.
        layer: String,
        #[source]
        source: LayerError,
    },
    /// A layer was removed between its unpacking and the image's commit: unpack it again.
    #[error("layer {0} does not exist: pull or import the image again")]
    LayerMissing(String),
    #[error("read the archive")]
    Archive(#[source] TarError),
    #[error("import {path:?}")]
    Import {
        path: PathBuf,
        #[source]
        source: Box<ImageError>,
    },
    #[error("lock the image store")]
    Lock(#[source] lock::LockError),
}

/// Makes an error from the kernel's answer.
fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Io { what, path, source }
}

/// A point at which the power may fail; tests cut it here.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "fails in tests")]
fn step(_name: &'static str) -> io::Result<()> {
    Ok(())
}
#[cfg(test)]
use testing::step;

/// The store in one directory. Cheap to open; holds no state that another process could change.
#[derive(Clone, Debug)]
pub struct ImageStore {
    root: PathBuf,
}

/// Held while an image is brought in, from before its first layer until after its commit: meanwhile layers
/// without an image are not collected.
#[derive(Debug)]
pub(in crate::runtime) struct Bringing {
    _lock: FileLock,
}

/// Held while a layer is brought in.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: ByteLock,
}

impl ImageStore {
    /// Opens the store and creates what is missing. Removes what interrupted unpackings left (after a power
    /// cut), unless their lock is held.
    pub fn open(root: &Path) -> Result<Self, ImageError> {
        let store = Self { root: root.to_owned() };
        // Pods with user namespaces pass through; incomplete content is private.
        for (path, mode) in [
            (root.to_owned(), 0o711),
            (store.blobs(), 0o700),
            (store.root.join("layers"), 0o711),
            (store.root.join("layers/empty"), 0o755),
            (store.temporary(), 0o700),
        ] {
            crate::platform::sys::dir::make_dir(&path, mode).map_err(io_error("make", &path))?;
        }
        if let Some(_lock) = lock::try_acquire(&root.join("lock")).map_err(ImageError::Lock)? {
            store.clean_temporary();
        }
        Ok(store)
    }

    #[must_use]
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// See [`Bringing`].
    pub(in crate::runtime) fn bring(&self) -> Result<Bringing, ImageError> {
        let lock = lock::acquire_shared(&self.root.join("users")).map_err(ImageError::Lock)?;
        Ok(Bringing { _lock: lock })
    }

    /// The image by name (`busybox`, `busybox:1.36`, `busybox@sha256:…`), by id, or by the beginning of an
    /// id.
    pub fn resolve(&self, reference: &str) -> Result<Option<Image>, ImageError> {
        let index = self.load()?;
        let Some(at) = index.find(reference)? else { return Ok(None) };
        Ok(self.whole(&index.images[at]))
    }

    /// All images, ordered by their first name. Damaged ones are left out and logged.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let index = self.load()?;
        let mut images: Vec<Image> = index.images.iter().filter_map(|record| self.whole(record)).collect();
        images.order_by(|one, two| (&one.repo_tags, &one.id).cmp(&(&two.repo_tags, &two.id)));
        Ok(images)
    }

    /// An image of which nothing is missing. A damaged image counts as absent, so that it is pulled or
    /// imported again.
    fn whole(&self, record: &ImageRecord) -> Option<Image> {
        match self.image(record) {
            Ok(image) => Some(image),
            Err(error) => {
                let err = crate::platform::logging::chain(&error);
                log::warn!(image = record.id.as_str(), err = err; "Image is damaged; pull or import it again");
                None
            }
        }
    }

    fn image(&self, record: &ImageRecord) -> Result<Image, ImageError> {
        let config = self.read_document(&record.id)?;
        let config: documents::ConfigDocument = documents::decode(&record.id, &config)?;
        let mut layers: Vec<PathBuf> = Vec::with_capacity(record.layers.len());
        for layer in record.layers.iter().rev() {
            let path = self.layer(layer)?;
            let root = match Handle::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(ImageError::LayerMissing(layer.clone()));
                }
                other => other.map_err(io_error("open", &path))?,
            };
            // A second mount of the same layer adds nothing, and overlayfs refuses it.
            if !layers.contains(&path) {
                layers.push(path);
            }
            // Overlayfs ignores the opaque mark on a root: the layers below such a root are hidden by leaving
            // them out.
            if has_extended(&root, unpack::OPAQUE, b"y").unwrap_or(false) {
                break;
            }
        }
        if layers.is_empty() {
            layers.push(self.root.join("layers/empty"));
        }
        Ok(Image {
            id: record.id.clone(),
            repo_tags: record.names.clone(),
            repo_digests: record.digests.clone(),
            size_bytes: record.size,
            defaults: config.config.into_defaults(),
            layers,
            pinned: record.pinned,
            source: record.source.clone(),
        })
    }

    /// Where the layer is or would be.
    fn layer(&self, diff_id: &str) -> Result<PathBuf, ImageError> {
        Ok(self.root.join("layers").join(short(diff_id)?))
    }

    /// Whether the layer is in the store, complete.
    #[must_use]
    pub(in crate::runtime) fn has_layer(&self, diff_id: &str) -> bool {
        self.layer(diff_id).is_ok_and(|path| path.is_dir())
    }

    /// Claims the layer for this process; `None` while another holds the claim, whose end (or death) frees
    /// it. Two layers may, rarely, block each other, and no process may take a second claim while it holds
    /// one.
    pub(in crate::runtime) fn claim_layer(&self, diff_id: &str) -> Result<Option<Claim>, ImageError> {
        let byte = u16::from_str_radix(&short(diff_id)?[..4], 16).unwrap_or_default();
        let lock =
            lock::try_acquire_byte(&self.root.join("claims"), byte.into()).map_err(ImageError::Lock)?;
        Ok(lock.map(|lock| Claim { _lock: lock }))
    }

    /// Unpacks a layer from its decompressed archive; a layer that exists is only compared. Its content must
    /// have the digest `diff_id`. Several may unpack the same layer at the same time.
    ///
    /// # Errors
    /// When the archive is invalid, or cannot be written. Nothing is left of it then.
    pub(in crate::runtime) fn unpack_layer(
        &self,
        diff_id: &str,
        tar: &mut dyn Read,
        limits: &UnpackLimits,
        origin: Origin<'_>,
    ) -> Result<(), ImageError> {
        let target = self.layer(diff_id)?;
        if target.is_dir() {
            unpack::compare(diff_id, tar, limits)
                .map_err(|source| ImageError::Layer { layer: diff_id.to_owned(), source })?;
            return self.add_origin(diff_id, origin);
        }
        let staging = self.stage()?;
        let result = Self::fill(&staging.path, diff_id, tar, limits, origin)
            .and_then(|()| self.publish(&staging.path, &target));
        // The next process that opens the store finds interrupted ones, and this one if it cannot be removed.
        remove_tree(&staging.path);
        result
    }

    fn fill(
        staging: &Path,
        diff_id: &str,
        tar: &mut dyn Read,
        limits: &UnpackLimits,
        origin: Origin<'_>,
    ) -> Result<(), ImageError> {
        let (root, times, usage) = (staging.join("layer"), staging.join("times"), staging.join("usage"));
        crate::platform::sys::dir::make_dir(&root, 0o755).map_err(io_error("make", &root))?;
        let scratch = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&times)
            .map_err(io_error("make", &times))?;
        let written = unpack::unpack(&root, scratch, diff_id, tar, limits)
            .map_err(|source| ImageError::Layer { layer: diff_id.to_owned(), source })?;
        std::fs::write(&usage, format!("{} {}\n{origin}\n", written.bytes, written.inodes))
            .map_err(io_error("write", &usage))?;
        step("layer filled").map_err(io_error("sync", staging))?;
        // One system call for thousands of files.
        LayerDir::open(&root).and_then(|root| root.sync_file_system()).map_err(io_error("sync", &root))
    }

    fn publish(&self, staging: &Path, target: &Path) -> Result<(), ImageError> {
        step("layer synced").map_err(io_error("rename", staging))?;
        let usage = target.with_extension("usage");
        std::fs::rename(staging.join("usage"), &usage).map_err(io_error("rename to", &usage))?;
        match std::fs::rename(staging.join("layer"), target) {
            // Another process was faster with the same content.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) => {}
            other => other.map_err(io_error("rename to", target))?,
        }
        step("layer renamed").map_err(io_error("sync", target))?;
        let layers = self.root.join("layers");
        sync_dir(&layers).map_err(io_error("sync", &layers))
    }

    /// A manifest or configuration by its digest, verified.
    pub(in crate::runtime) fn read_document(&self, digest: &str) -> Result<Vec<u8>, ImageError> {
        let path = self.blob(digest)?;
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ImageError::NotFound(digest.to_owned()));
            }
            other => other.map_err(io_error("open", &path))?,
        };
        let bytes = compression::read_bounded(&mut file, MAX_DOCUMENT).map_err(io_error("read", &path))?;
        if digest_of(&bytes) == digest {
            Ok(bytes)
        } else {
            Err(ImageError::Document {
                what: path.display().to_string(),
                problem: "its digest does not match".into(),
            })
        }
    }

    /// Stores a manifest or configuration; returns its digest.
    pub(in crate::runtime) fn write_document(&self, bytes: &[u8]) -> Result<String, ImageError> {
        let digest = digest_of(bytes);
        if bytes.len() > MAX_DOCUMENT {
            return Err(ImageError::Document {
                what: digest,
                problem: format!("it is larger than {MAX_DOCUMENT} bytes"),
            });
        }
        let path = self.blob(&digest)?;
        if self.read_document(&digest).is_ok() {
            return Ok(digest);
        }
        let staging = self.stage()?;
        let result = (|| {
            let new = staging.path.join("document");
            index::write_synced(&new, bytes)?;
            step("document written").map_err(io_error("rename", &new))?;
            std::fs::rename(&new, &path).map_err(io_error("rename to", &path))?;
            sync_dir(&self.blobs()).map_err(io_error("sync", &path))
        })();
        remove_tree(&staging.path);
        result.map(|()| digest)
    }

    fn blob(&self, digest: &str) -> Result<PathBuf, ImageError> {
        match digest.strip_prefix("sha256:") {
            Some(hex) if documents::is_digest(digest) => Ok(self.blobs().join(hex)),
            _ => Err(ImageError::Invalid(format!("{digest:?} is not a sha256 digest"))),
        }
    }

    fn temporary(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// A new directory for incomplete content.
    fn stage(&self) -> Result<Staging, ImageError> {
        let _lock = self.lock()?;
        let temporary = self.temporary();
        for number in 0..u32::MAX {
            let path = temporary.join(number.to_string());
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error("make", &path)(error)),
                Ok(()) => {
                    let lock = lock::try_acquire_existing(&path).map_err(ImageError::Lock)?;
                    return Ok(Staging { path, _lock: lock });
                }
            }
        }
        Err(ImageError::Invalid(format!("too many leftovers in {}", temporary.display())))
    }

    /// Removes incomplete content that no process is writing. The lock is held.
    fn clean_temporary(&self) {
        let Ok(entries) = std::fs::read_dir(self.temporary()) else { return };
        for entry in entries.flatten() {
            if let Ok(Some(_abandoned)) = lock::try_acquire_existing(&entry.path()) {
                remove_tree(&entry.path());
            }
        }
    }

    /// Excludes other changes.
    fn lock(&self) -> Result<FileLock, ImageError> {
        lock::acquire(&self.root.join("lock")).map_err(ImageError::Lock)
    }

    pub(crate) fn usage(&self) -> Result<DiskFigures, ImageError> {
        let measure = |path: &Path| disk_usage(path).unwrap_or_default();
        let mut all = Vec::from([self.blobs(), self.temporary()].map(|place| measure(&place)));
        let layers = self.root.join("layers");
        let entries = match std::fs::read_dir(&layers) {
            // `kubeadm reset` empties the kubelet's directory while CRI is served.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            entries => Some(entries.map_err(io_error("list", &layers))?),
        };
        for entry in entries.into_iter().flatten().flatten() {
            let path = entry.path();
            let account = path.with_extension("usage");
            if path == account {
                continue;
            }
            let known = std::fs::read_to_string(&account).ok().and_then(|line| {
                let mut words = line.split_whitespace().map(str::parse);
                Some((words.next()?.ok()?, words.next()?.ok()?))
            });
            all.push(known.unwrap_or_else(|| measure(&path)));
        }
        let [bytes, inodes] = [|part: &(u64, u64)| part.0, |part: &(u64, u64)| part.1]
            .map(|of| Some(all.iter().map(of).fold(0, u64::saturating_add)));
        Ok(DiskFigures { place: self.root.clone(), bytes, inodes })
    }
}

/// A directory below `tmp`, locked.
struct Staging {
    path: PathBuf,
    _lock: Option<FileLock>,
}

/// `sha256:…` of bytes.
#[must_use]
pub fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(&Sha256::digest(bytes)))
}

/// The name of a layer's directory.
fn short(diff_id: &str) -> Result<&str, ImageError> {
    let hex = diff_id.strip_prefix("sha256:").filter(|_| documents::is_digest(diff_id));
    hex.and_then(|hex| hex.get(..24))
        .ok_or_else(|| ImageError::Invalid(format!("{diff_id:?} is not a sha256 digest")))
}

/// Removes one of the store's directories with everything below it; what cannot be removed is left for the
/// next time.
fn remove_tree(path: &Path) {
    let removed = crate::platform::sys::dir::remove_contents(path).map_err(|error| error.source);
    if let Err(error) = removed.and_then(|()| std::fs::remove_dir(path))
        && error.kind() != io::ErrorKind::NotFound
    {
        log::warn!(path = path.display().to_string(), err:% = error; "Failed to remove leftover files");
    }
}
