//! Changes of the store: adding and removing images and names.
//!
//! Owns the order of steps: a power cut at any of them leaves all or nothing.

use std::collections::BTreeSet;

use super::documents::{self, ConfigDocument};
use super::index::{ImageRecord, Index};
use super::{
    Image, ImageError, ImageStore, MAX_LAYERS, Reference, io_error, normalise_reference, remove_tree, short,
    step,
};
use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::platform::sys::durable::sync_dir;
use crate::platform::sys::lock;

/// An image whose layers are unpacked.
#[derive(Clone, Debug, Default)]
pub struct NewImage {
    /// The configuration; its digest is the image's id.
    pub config: Vec<u8>,
    pub manifest: Vec<u8>,
    /// Compressed bytes of each layer, as transferred.
    pub layer_sizes: Vec<u64>,
    /// Names with tags, in full or short. They are moved here from other images that have them.
    pub names: Vec<String>,
    /// Names with digests, `docker.io/library/busybox@sha256:…`.
    pub digests: Vec<String>,
    /// Never collected as garbage.
    pub pinned: bool,
    /// Its source, for people.
    pub source: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub images: Vec<String>,
    pub layers: usize,
    /// Bytes of the layers.
    pub bytes: u64,
}

impl Index {
    /// The position of the image; see [`ImageStore::resolve`].
    pub(super) fn find(&self, reference: &str) -> Result<Option<usize>, ImageError> {
        let by_id = |id: &str| self.images.iter().position(|record| record.id == id);
        if documents::is_digest(reference) {
            return Ok(by_id(reference));
        }
        let name = normalise_reference(reference);
        if let Ok(name) = &name
            && let Some(at) = self.images.iter().position(|record| record.is_called(name))
        {
            return Ok(Some(at));
        }
        let hex = reference.strip_prefix("sha256:").unwrap_or(reference);
        if hex.len() >= 4 && hex.len() <= 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let prefix = format!("sha256:{hex}");
            let mut fitting = (0..self.images.len()).filter(|at| self.images[*at].id.starts_with(&prefix));
            let first = fitting.next();
            if fitting.next().is_some() {
                return Err(ImageError::Invalid(format!(
                    "image id prefix {hex} is ambiguous: use a longer one"
                )));
            }
            return Ok(first);
        }
        name.map(|_| None)
    }
}

impl ImageRecord {
    fn is_called(&self, name: &Reference) -> bool {
        let name = name.stored_name();
        self.digests.contains(&name) || self.names.contains(&name)
    }
}

impl ImageStore {
    /// Records an image whose layers are in the store. Names are moved from older images, as registries move
    /// tags.
    ///
    /// # Errors
    /// [`ImageError::LayerMissing`] when a layer has been collected meanwhile; others when a document is
    /// invalid.
    pub(crate) fn commit(&self, new: NewImage) -> Result<Image, ImageError> {
        let config: ConfigDocument = documents::decode("the image's configuration", &new.config)?;
        let layers = config.rootfs.diff_ids;
        if layers.len() > MAX_LAYERS {
            return Err(ImageError::Invalid(format!(
                "the image has {} layers, more than the limit of {MAX_LAYERS}",
                layers.len()
            )));
        }
        let names: Vec<String> = new
            .names
            .iter()
            .map(|name| normalise_reference(name).map(|name| name.tagged().unwrap_or_default()))
            .collect::<Result<_, _>>()?;
        let _bringing = self.bring()?;
        let id = self.write_document(&new.config)?;
        let manifest = self.write_document(&new.manifest)?;
        step("documents kept").map_err(io_error("write", &self.root))?;
        let _lock = self.lock()?;
        // Under the lock, which collecting layers takes, too.
        if let Some(missing) = layers.iter().find(|layer| !self.has_layer(layer)) {
            return Err(ImageError::LayerMissing(missing.clone()));
        }
        let mut index = self.load_for_change()?;
        index.version = 1;
        let before = index.clone();
        for record in &mut index.images {
            record.names.retain(|name| !names.contains(name) || record.id == id);
        }
        let documents_size = (new.config.len() + new.manifest.len()) as u64;
        let size = new.layer_sizes.iter().fold(documents_size, |sum, size| sum.saturating_add(*size));
        let at = index.images.iter().position(|record| record.id == id).unwrap_or_else(|| {
            index.images.push(ImageRecord::default());
            index.images.len() - 1
        });
        let record = &mut index.images[at];
        let pinned = record.pinned || new.pinned;
        record.names.extend(names);
        record.digests.extend(new.digests);
        for list in [&mut record.names, &mut record.digests] {
            list.retain(|name| !name.is_empty());
            list.order_by(Ord::cmp);
            list.dedup();
        }
        if record.id.is_empty() {
            (record.source, record.size) = (new.source, size);
        }
        (record.id, record.manifest, record.layers, record.pinned) = (id, manifest, layers, pinned);
        let image = self.image(&index.images[at])?;
        if index != before {
            // Their names are durable, unless their own sync failed in an earlier attempt: the index must not
            // name what may be gone after a power cut. Costs nothing when there is nothing to write.
            for directory in [self.root.join("layers"), self.blobs()] {
                sync_dir(&directory).map_err(io_error("sync", &directory))?;
            }
            self.save(&index)?;
        }
        Ok(image)
    }

    /// Gives an image one more name, moved from another image that has it.
    pub fn tag(&self, reference: &str, name: &str) -> Result<(), ImageError> {
        let name = normalise_reference(name)?.tagged().ok_or_else(|| ImageError::Reference {
            reference: name.to_owned(),
            problem: "the name must have a tag, not a digest",
        })?;
        self.change(|index| {
            let at = index.find(reference)?.ok_or_else(|| ImageError::NotFound(reference.to_owned()))?;
            for record in &mut index.images {
                record.names.retain(|other| *other != name);
            }
            index.images[at].names.push(name);
            Ok(())
        })
    }

    /// Removes a name; the image stays.
    pub fn untag(&self, name: &str) -> Result<(), ImageError> {
        let wanted = normalise_reference(name)?;
        self.change(|index| {
            let record = index.images.iter_mut().find(|record| record.is_called(&wanted));
            let record = record.ok_or_else(|| ImageError::NotFound(name.to_owned()))?;
            for list in [&mut record.names, &mut record.digests] {
                list.retain(|name| *name != wanted.stored_name());
            }
            Ok(())
        })
    }

    /// Removes an image with all its names, and the layers that no other image uses.
    pub(crate) fn remove(&self, reference: &str) -> Result<Pruned, ImageError> {
        let mut images = Vec::new();
        self.change(|index| {
            let at = index.find(reference)?.ok_or_else(|| ImageError::NotFound(reference.to_owned()))?;
            images.push(index.images.remove(at).id);
            Ok(())
        })?;
        self.sweep(images)
    }

    /// Removes images that are neither pinned nor among `in_use` (ids), and layers and documents without an
    /// image.
    pub fn prune(&self, in_use: &[String]) -> Result<Pruned, ImageError> {
        let mut images = Vec::new();
        self.change(|index| {
            index.images.retain(|record| {
                let keep = record.pinned || in_use.contains(&record.id);
                if !keep {
                    images.push(record.id.clone());
                }
                keep
            });
            Ok(())
        })?;
        self.sweep(images)
    }

    /// Changes the index under the lock; writes it if it has changed.
    pub(super) fn change(
        &self,
        change: impl FnOnce(&mut Index) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let _lock = self.lock()?;
        let mut index = self.load_for_change()?;
        let before = index.clone();
        change(&mut index)?;
        if index == before { Ok(()) } else { self.save(&index) }
    }

    /// Removes layers and documents without an image, unless an image is being brought in: then the next
    /// removal takes them along.
    fn sweep(&self, images: Vec<String>) -> Result<Pruned, ImageError> {
        let mut pruned = Pruned { images, ..Pruned::default() };
        let Some(alone) = lock::try_acquire(&self.root.join("users")).map_err(ImageError::Lock)? else {
            return Ok(pruned);
        };
        let staging = self.stage()?;
        {
            let _lock = self.lock()?;
            let index = self.load_for_change()?;
            let mut kept = BTreeSet::from(["empty".to_owned()]);
            for layer in index.images.iter().flat_map(|record| &record.layers) {
                kept.insert(short(layer)?.to_owned());
            }
            let layers = self.root.join("layers");
            for entry in std::fs::read_dir(&layers).map_err(io_error("list", &layers))?.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let stem = name.strip_suffix(".usage").unwrap_or(&name);
                if kept.contains(stem) {
                    continue;
                }
                if stem == name {
                    pruned.layers += 1;
                } else if let Ok(line) = std::fs::read_to_string(entry.path()) {
                    let bytes = line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
                    pruned.bytes = pruned.bytes.saturating_add(bytes.unwrap_or_default());
                }
                // Its name is removed at once, its content when there is time.
                let target = staging.path.join(&name);
                std::fs::rename(entry.path(), &target).map_err(io_error("move away", &entry.path()))?;
            }
            step("layers moved").map_err(io_error("remove", &staging.path))?;
            let documents: BTreeSet<&str> = index
                .images
                .iter()
                .flat_map(|record| [&record.id, &record.manifest])
                .filter_map(|digest| digest.strip_prefix("sha256:"))
                .into_set();
            let blobs = self.blobs();
            for entry in std::fs::read_dir(&blobs).map_err(io_error("list", &blobs))?.flatten() {
                if !documents.contains(&*entry.file_name().to_string_lossy()) {
                    std::fs::remove_file(entry.path()).map_err(io_error("remove", &entry.path()))?;
                }
            }
        }
        drop(alone);
        remove_tree(&staging.path);
        Ok(pruned)
    }
}
