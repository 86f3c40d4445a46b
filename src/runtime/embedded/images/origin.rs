//! Where a layer's content came from: which pulls may reuse it without downloading it, and which must first
//! show that they have access.
//!
//! Owns the lines behind the account of a layer (`layers/<24 hex>.usage`).

use std::fmt;
use std::path::PathBuf;

use super::documents::{self, ManifestDocument};
use super::index::ImageRecord;
use super::{ImageError, ImageStore, io_error};
use crate::platform::sys::disk_usage::disk_usage;
use crate::platform::sys::durable::write_durably;

/// The source of a layer's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin<'a> {
    /// An archive on this device: every image may use it.
    Archive,
    Registry {
        /// `docker.io`, `localhost:5000`.
        name: &'a str,
        /// The digest that the layer has there, compressed.
        blob: &'a str,
    },
}

/// A line of the account.
impl fmt::Display for Origin<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archive => formatter.write_str("archive"),
            Self::Registry { name, blob } => write!(formatter, "registry {name} {blob}"),
        }
    }
}

impl ImageStore {
    /// Whether the layer exists and this registry has delivered it before as this blob, or it came from an
    /// archive on the device. Only then does access to the blob mean access to the content: an image's
    /// configuration may name any layer.
    #[must_use]
    pub(in crate::runtime) fn has_layer_from(&self, diff_id: &str, origin: Origin<'_>) -> bool {
        self.has_layer(diff_id) && self.came_from(diff_id, origin).unwrap_or(false)
    }

    fn came_from(&self, diff_id: &str, origin: Origin<'_>) -> Result<bool, ImageError> {
        let account = std::fs::read_to_string(self.account(diff_id)?).unwrap_or_default();
        let mut lines = account.lines().skip(1).peekable();
        if lines.peek().is_some() {
            let wanted = [Origin::Archive.to_string(), origin.to_string()];
            return Ok(lines.any(|line| wanted.iter().any(|wanted| wanted == line)));
        }
        // Written by an older version: use the images that have the layer.
        let index = self.load()?;
        Ok(index.images.iter().any(|record| self.brought(record, diff_id, origin)))
    }

    fn brought(&self, record: &ImageRecord, diff_id: &str, origin: Origin<'_>) -> bool {
        let Some(at) = record.layers.iter().position(|layer| layer == diff_id) else { return false };
        let Origin::Registry { name, blob } = origin else { return record.pinned };
        let manifest = self.read_document(&record.manifest).ok();
        let manifest =
            manifest.and_then(|bytes| documents::decode::<ManifestDocument>(&record.manifest, &bytes).ok());
        let has_blob = manifest.and_then(|found| found.layers.into_iter().nth(at));
        record.pinned || record.source == name && has_blob.is_some_and(|layer| layer.digest == blob)
    }

    /// Records that the content also came from there.
    pub(super) fn add_origin(&self, diff_id: &str, origin: Origin<'_>) -> Result<(), ImageError> {
        if self.came_from(diff_id, origin)? {
            return Ok(());
        }
        let path = self.account(diff_id)?;
        let _lock = self.lock()?;
        let known = std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'));
        let account = known.unwrap_or_else(|| {
            let (bytes, inodes) = disk_usage(&path.with_extension("")).unwrap_or_default();
            format!("{bytes} {inodes}\n")
        });
        write_durably(&path, format!("{account}{origin}\n").as_bytes(), 0o644)
            .map_err(io_error("write", &path))
    }

    fn account(&self, diff_id: &str) -> Result<PathBuf, ImageError> {
        Ok(self.layer(diff_id)?.with_extension("usage"))
    }
}
