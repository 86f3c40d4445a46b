//! `index.json`: which images there are and what they are called.
//!
//! Owns the file, its atomic replacement, and the recovery from a damaged one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::documents::{self, ConfigDocument, ManifestDocument};
use super::{ImageError, ImageStore, io_error, step};
use crate::model::api::record::record;
use crate::platform::sys::durable::sync_dir;

const NAME: &str = "index.json";
/// The previous index, for names when the newest is damaged.
const PREVIOUS: &str = "index.previous.json";
const NEW: &str = "index.new.json";
/// Thousands of images fit.
const MAX_INDEX: usize = 16 * 1024 * 1024;

record! {
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(super) struct Index as snake_case {
        pub version: u32,
        pub images: Vec<ImageRecord>,
        /// Archives that were imported from the images directory.
        #[serde(skip_serializing_if = "unset")]
        pub archives: Vec<Archive>,
    }

    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(super) struct ImageRecord as snake_case {
        /// Digest of the configuration.
        pub id: String,
        /// Digest of the manifest that is kept here.
        pub manifest: String,
        pub names: Vec<String>,
        pub digests: Vec<String>,
        /// Diff ids, bottom first.
        pub layers: Vec<String>,
        pub size: u64,
        pub pinned: bool,
        /// Where it came from, for people.
        pub source: String,
    }

    /// An archive as it was when it was imported.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(super) struct Archive as snake_case {
        pub path: String,
        pub size: u64,
        /// Nanoseconds since 1970.
        pub mtime: i64,
        pub inode: u64,
        /// Ids of its images; none when it could not be read.
        pub images: Vec<String>,
    }
}

impl ImageStore {
    /// Reads the index; a damaged one is replaced in memory by what can be known without it. Writes nothing.
    pub(super) fn load(&self) -> Result<Index, ImageError> {
        match read(&self.root.join(NAME)) {
            Ok(Some(index)) => Ok(index),
            Ok(None) => Ok(read(&self.root.join(PREVIOUS)).ok().flatten().unwrap_or_default()),
            Err(ImageError::Document { .. }) => self.rebuilt(),
            Err(error) => Err(error),
        }
    }

    /// As [`ImageStore::load`], with the lock held: a damaged index is set aside and replaced.
    pub(super) fn load_for_change(&self) -> Result<Index, ImageError> {
        let path = self.root.join(NAME);
        let Err(ImageError::Document { problem, .. }) = read(&path) else { return self.load() };
        let index = self.rebuilt()?;
        let aside = (0..u32::MAX)
            .map(|number| self.root.join(format!("index.damaged-{number}.json")))
            .find(|aside| !aside.exists())
            .unwrap_or_else(|| self.root.join("index.damaged.json"));
        std::fs::rename(&path, &aside).map_err(io_error("set aside", &path))?;
        log::warn!(
            path = path.display().to_string(), aside = aside.display().to_string(), err = problem,
            images = index.images.len();
            "Image index was damaged; moved it aside and rebuilt it from the complete images"
        );
        self.save(&index)?;
        Ok(index)
    }

    /// Replaces the index atomically.
    pub(super) fn save(&self, index: &Index) -> Result<(), ImageError> {
        let (path, new) = (self.root.join(NAME), self.root.join(NEW));
        let bytes = serde_json::to_value(index)
            .map(|value| value.to_string().into_bytes())
            .map_err(|error| ImageError::Document { what: NAME.to_owned(), problem: error.to_string() })?;
        write_synced(&new, &bytes)?;
        step("index written").map_err(io_error("write", &new))?;
        let previous = self.root.join(PREVIOUS);
        match std::fs::remove_file(&previous).and_then(|()| std::fs::hard_link(&path, &previous)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("replace", &previous)(error));
            }
            _ => {}
        }
        if !previous.exists() && path.exists() {
            std::fs::hard_link(&path, &previous).map_err(io_error("make", &previous))?;
        }
        step("index kept").map_err(io_error("write", &new))?;
        std::fs::rename(&new, &path).map_err(io_error("replace", &path))?;
        step("index renamed").map_err(io_error("sync", &self.root))?;
        sync_dir(&self.root).map_err(io_error("sync", &self.root))
    }

    /// Rebuilds the index from documents and layers; names come from the previous index.
    fn rebuilt(&self) -> Result<Index, ImageError> {
        let mut index = read(&self.root.join(PREVIOUS)).ok().flatten().unwrap_or_default();
        index.version = 1;
        index.images.retain(|record| {
            self.read_document(&record.id).is_ok()
                && self.read_document(&record.manifest).is_ok()
                && record.layers.iter().all(|layer| self.has_layer(layer))
        });
        let blobs = self.blobs();
        for name in std::fs::read_dir(&blobs).map_err(io_error("list", &blobs))?.flatten() {
            let digest = format!("sha256:{}", name.file_name().to_string_lossy());
            let Ok(bytes) = self.read_document(&digest) else { continue };
            let Ok(manifest) = documents::decode::<ManifestDocument>(&digest, &bytes) else { continue };
            let id = manifest.config.digest;
            if index.images.iter().any(|record| record.id == id) {
                continue;
            }
            let Ok(config) = self.read_document(&id) else { continue };
            let Ok(config) = documents::decode::<ConfigDocument>(&id, &config) else { continue };
            let layers = config.rootfs.diff_ids;
            if layers.iter().all(|layer| self.has_layer(layer)) {
                let size = manifest.layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.size));
                let source = "found after the index was damaged".to_owned();
                index.images.push(ImageRecord {
                    id,
                    manifest: digest,
                    layers,
                    size,
                    source,
                    ..ImageRecord::default()
                });
            }
        }
        Ok(index)
    }
}

fn read(path: &Path) -> Result<Option<Index>, ImageError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_error("open", path))?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_INDEX as u64).read_to_end(&mut bytes).map_err(io_error("read", path))?;
    documents::decode(&path.display().to_string(), &bytes).map(Some)
}

/// Writes a file and syncs its content to the disk, but not its name.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(io_error("write", path))
}

impl ImageStore {
    /// Documents by digest.
    pub(super) fn blobs(&self) -> PathBuf {
        self.root.join("blobs/sha256")
    }
}
