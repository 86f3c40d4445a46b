//! Images from archives: `docker save`, OCI image layouts as archive or directory, compressed or not.
//!
//! Owns the two layouts.

use crate::model::api::record::record;
use crate::model::ordered::Sortable as _;
use std::path::Path;

use serde_json::json;

use super::archive::Files;
use super::compression::Decompress;
use super::documents::{self, ConfigDocument, Descriptor, ManifestDocument, is_digest};
use super::platform::Platform;
use super::{
    Image, ImageError, ImageStore, MAX_LAYERS, NewImage, Origin, UnpackLimits, digest_of, normalise_reference,
};

/// Depth of nested indexes.
const MAX_DEPTH: usize = 4;
const NAME: &str = "io.containerd.image.name";
const REF_NAME: &str = "org.opencontainers.image.ref.name";

#[derive(Default)]
struct ArchiveImage {
    config: Vec<u8>,
    manifest: Vec<u8>,
    /// Whether registries would find the manifest by the same digest.
    has_digest: bool,
    /// File and size of each layer, bottom first.
    layers: Vec<(String, u64)>,
    names: Vec<String>,
}

record! {
    /// One of `manifest.json` of `docker save`.
    #[derive(Clone, Debug, Default)]
    struct Saved as PascalCase {
        config: String,
        repo_tags: Vec<String>,
        layers: Vec<String>,
    }
}

impl ImageStore {
    /// Imports all images of an archive or an OCI layout directory that run on this machine. They are pinned.
    ///
    /// # Errors
    /// [`ImageError::Import`] with the reason. Images before the broken one stay.
    pub(crate) fn import(&self, archive: &Path) -> Result<Vec<Image>, ImageError> {
        self.import_for(archive, &Platform::current())
            .map_err(|error| ImageError::Import { path: archive.to_owned(), source: Box::new(error) })
    }

    pub(super) fn import_for(&self, archive: &Path, platform: &Platform) -> Result<Vec<Image>, ImageError> {
        let _bringing = self.bring()?;
        let mut files = Files::open(archive)?;
        let found = if files.has("index.json") && files.has("oci-layout") {
            from_layout(&mut files, archive, platform)?
        } else if files.has("manifest.json") {
            from_docker(&mut files)?
        } else {
            return Err(ImageError::Invalid(
                "not an OCI image layout (oci-layout, index.json) or docker save archive (manifest.json): \
                 create one with \"docker save -o FILE IMAGE\" or \"skopeo copy docker://IMAGE \
                 oci-archive:FILE:IMAGE\""
                    .to_owned(),
            ));
        };
        let mut images = Vec::new();
        for found in found {
            images.push(self.import_one(&mut files, found, archive)?);
        }
        if images.is_empty() {
            return Err(ImageError::Invalid("it contains no image".to_owned()));
        }
        Ok(images)
    }

    fn import_one(
        &self,
        files: &mut Files,
        found: ArchiveImage,
        archive: &Path,
    ) -> Result<Image, ImageError> {
        let config: ConfigDocument = documents::decode("the image's configuration", &found.config)?;
        let diff_ids = config.rootfs.diff_ids;
        if diff_ids.len() != found.layers.len() || diff_ids.len() > MAX_LAYERS {
            return Err(ImageError::Invalid(format!(
                "the image has {} layers but its configuration lists {} (limit {MAX_LAYERS})",
                found.layers.len(),
                diff_ids.len()
            )));
        }
        let mut order: Vec<usize> = (0..diff_ids.len()).collect();
        order.order_by_key(|at| files.position(&found.layers[*at].0));
        for at in order {
            let (diff_id, (name, _)) = (&diff_ids[at], &found.layers[at]);
            if self.has_layer_from(diff_id, Origin::Archive) {
                continue;
            }
            let file = files.file(name)?;
            let mut layer = Decompress::new(file).map_err(super::io_error("read", Path::new(name)))?;
            self.unpack_layer(diff_id, &mut layer, &UnpackLimits::default(), Origin::Archive)?;
        }
        let manifest_digest = digest_of(&found.manifest);
        let digests = found
            .names
            .iter()
            .filter(|_| found.has_digest)
            .filter_map(|name| Some(normalise_reference(name).ok()?.with_digest(&manifest_digest)))
            .collect();
        self.commit(NewImage {
            config: found.config,
            manifest: found.manifest,
            layer_sizes: found.layers.iter().map(|(_, size)| *size).collect(),
            names: found.names,
            digests,
            pinned: true,
            source: archive.display().to_string(),
        })
    }
}

fn blob(digest: &str) -> Result<String, ImageError> {
    match digest.strip_prefix("sha256:") {
        Some(hex) if is_digest(digest) => Ok(format!("blobs/sha256/{hex}")),
        _ => Err(ImageError::Invalid(format!("{digest:?} is not a sha256 digest"))),
    }
}

/// A document, checked against the digest that names it.
fn verified(files: &mut Files, digest: &str) -> Result<Vec<u8>, ImageError> {
    let bytes = files.document(&blob(digest)?)?;
    if digest_of(&bytes) == digest {
        Ok(bytes)
    } else {
        Err(ImageError::Document {
            what: digest.to_owned(),
            problem: "its content does not match the digest".into(),
        })
    }
}

fn from_layout(
    files: &mut Files,
    archive: &Path,
    platform: &Platform,
) -> Result<Vec<ArchiveImage>, ImageError> {
    let index = files.document("index.json")?;
    let index: ManifestDocument = documents::decode("index.json", &index)?;
    let saved = if files.has("manifest.json") { saved(files)? } else { Vec::new() };
    // Those of one name are one image for several machines.
    let mut chosen: Vec<(Vec<String>, u8, Descriptor)> = Vec::new();
    let mut others = Vec::new();
    for descriptor in index.manifests {
        let names = names(&descriptor, archive);
        let Some((rank, manifest)) = choose(files, descriptor, platform, &mut others, 0)? else { continue };
        match chosen.iter_mut().find(|(same, ..)| !names.is_empty() && *same == names) {
            Some(present) if present.1 <= rank => {}
            Some(present) => (present.1, present.2) = (rank, manifest),
            None => chosen.push((names, rank, manifest)),
        }
    }
    if chosen.is_empty() && !others.is_empty() {
        return Err(ImageError::Invalid(format!(
            "it contains no image for {platform}, only for {}: save it for this platform",
            others.join(", ")
        )));
    }
    let mut found = Vec::new();
    for (mut names, _, descriptor) in chosen {
        let manifest_bytes = verified(files, &descriptor.digest)?;
        let manifest: ManifestDocument = documents::decode(&descriptor.digest, &manifest_bytes)?;
        let config = verified(files, &manifest.config.digest)?;
        for saved in &saved {
            if blob(&manifest.config.digest)? == saved.config {
                names.extend(saved.repo_tags.iter().cloned());
            }
        }
        let layers = manifest
            .layers
            .iter()
            .map(|layer| Ok((blob(&layer.digest)?, layer.size)))
            .collect::<Result<_, ImageError>>()?;
        found.push(ArchiveImage { config, manifest: manifest_bytes, has_digest: true, layers, names });
    }
    Ok(found)
}

/// The manifest that a descriptor leads to, and how well it fits; `None` for other platforms and for what is
/// no image.
fn choose(
    files: &mut Files,
    descriptor: Descriptor,
    platform: &Platform,
    others: &mut Vec<String>,
    depth: usize,
) -> Result<Option<(u8, Descriptor)>, ImageError> {
    let mut rank = 0;
    if let Some(offered) = &descriptor.platform {
        // Signatures and bills of material are "unknown/unknown".
        if offered.os == "unknown" {
            return Ok(None);
        }
        let Some(fit) = platform.rank(offered) else {
            others.push(offered.to_string());
            return Ok(None);
        };
        rank = fit;
    }
    // `docker save` names variants that it did not save.
    if depth > 0 && !files.has(&blob(&descriptor.digest)?) {
        return Ok(None);
    }
    let bytes = verified(files, &descriptor.digest)?;
    let document: ManifestDocument = documents::decode(&descriptor.digest, &bytes)?;
    if document.manifests.is_empty() {
        // A manifest without layers of a file system is an artefact of something else.
        let is_image = document.config.media_type.ends_with("image.v1+json")
            || document.config.media_type.ends_with("image.config.v1+json")
            || document.config.media_type.is_empty();
        if descriptor.platform.is_none() && is_image {
            let config = verified(files, &document.config.digest)?;
            let config: ConfigDocument = documents::decode(&document.config.digest, &config)?;
            let Some(fit) = platform.rank(&config.platform()) else {
                others.push(config.platform().to_string());
                return Ok(None);
            };
            rank = fit;
        }
        return Ok(is_image.then_some((rank, descriptor)));
    }
    if depth >= MAX_DEPTH {
        return Err(ImageError::Invalid("its indexes are nested too deeply".to_owned()));
    }
    let mut best: Option<(u8, Descriptor)> = None;
    for inner in document.manifests {
        if let Some((fit, manifest)) = choose(files, inner, platform, others, depth + 1)?
            && best.as_ref().is_none_or(|(other, _)| fit < *other)
        {
            best = Some((fit, manifest));
        }
    }
    Ok(best)
}

/// Names that the index of a layout gives an image. A bare tag (`latest`, `1.36`, as umoci writes it) belongs
/// to the image that the file or directory is named after.
fn names(descriptor: &Descriptor, archive: &Path) -> Vec<String> {
    let annotation = |key: &str| descriptor.annotations.get(key).filter(|name| !name.is_empty());
    let Some(given) = annotation(NAME).or_else(|| annotation(REF_NAME)) else { return Vec::new() };
    let name = if is_tag(given) {
        let stem = archive.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let stem = stem.split('.').next().unwrap_or_default();
        format!("{stem}:{given}")
    } else {
        given.clone()
    };
    if let Err(error) = normalise_reference(&name) {
        log::warn!(
            path = archive.display().to_string(), err = crate::platform::logging::chain(&error);
            "Invalid image name in archive, importing image without it"
        );
        return Vec::new();
    }
    vec![name]
}

fn is_tag(name: &str) -> bool {
    let version = name.strip_prefix('v').unwrap_or(name);
    name == "latest" || (version.starts_with(|c: char| c.is_ascii_digit()) && !name.contains(['/', ':']))
}

fn saved(files: &mut Files) -> Result<Vec<Saved>, ImageError> {
    let bytes = files.document("manifest.json")?;
    documents::decode("manifest.json", &bytes)
}

/// As `docker save` wrote them before it had OCI layouts; others still do.
fn from_docker(files: &mut Files) -> Result<Vec<ArchiveImage>, ImageError> {
    let mut found = Vec::new();
    for saved in saved(files)? {
        let config = files.document(&saved.config)?;
        let layers: Vec<(String, u64)> = saved
            .layers
            .into_iter()
            .map(|name| {
                let size = files.position(&name).map_or(0, |(_, size)| size);
                (name, size)
            })
            .collect();
        let decoded: ConfigDocument = documents::decode(&saved.config, &config)?;
        // Made here, so that every image has one; no registry knows it by its digest.
        let descriptors: Vec<_> = decoded
            .rootfs
            .diff_ids
            .iter()
            .zip(&layers)
            .map(|(digest, (_, size))| {
                json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": size})
            })
            .collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest_of(&config),
                "size": config.len(),
            },
            "layers": descriptors,
        });
        let manifest = manifest.to_string().into_bytes();
        found.push(ArchiveImage { config, manifest, has_digest: false, layers, names: saved.repo_tags });
    }
    Ok(found)
}
