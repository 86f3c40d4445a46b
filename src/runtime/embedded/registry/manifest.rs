//! Documents of a registry: index, manifest and configuration, and which image of an index fits this machine.
//!
//! Owns shapes and limits.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::PullError;
use super::error::invalid;
use crate::codec::hex;
use crate::model::api::decode::decode;
use crate::runtime::embedded::images::documents::ConfigDocument;
use crate::runtime::embedded::images::platform::Platform;

/// As in containerd and the registries themselves: a longer manifest is an attack.
pub(super) const MAX_MANIFEST_BYTES: usize = 4 * 1024 * 1024;
/// A configuration holds the history and some labels.
pub(super) const MAX_CONFIG_BYTES: usize = 4 * 1024 * 1024;
/// The limit of other runtimes and of overlay mounts.
const MAX_LAYERS: usize = 127;

/// All supported media types, for `Accept`.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, */*";

/// A pointer to content.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    pub urls: Vec<String>,
    platform: Option<Platform>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Raw {
    schema_version: u32,
    config: Option<Descriptor>,
    layers: Vec<Descriptor>,
    manifests: Vec<Descriptor>,
    fs_layers: Vec<Value>,
}

/// A document that a tag or digest refers to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Document {
    /// Images for several platforms.
    Index(Vec<Descriptor>),
    Manifest {
        config: Descriptor,
        layers: Vec<Descriptor>,
    },
}

/// `sha256:` and 64 digits; other algorithms are refused by name.
pub(super) fn check_digest(digest: &str) -> Result<(), PullError> {
    let (algorithm, hex) = digest.split_once(':').unwrap_or_default();
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    match algorithm {
        "sha256" if hex.len() == 64 && hex.bytes().all(is_hex) => Ok(()),
        "sha512" => Err(invalid(digest, "digests of sha512 are not supported, only those of sha256")),
        _ => Err(invalid(digest.chars().take(200).collect::<String>(), "not a sha256 digest")),
    }
}

/// `sha256:` and these bytes.
pub(super) fn name_of(hash: &[u8]) -> String {
    "sha256:".to_owned() + &hex::encode(hash)
}

fn from_json<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, PullError> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| invalid(what, format!("not JSON: {error}")))?;
    if !value.is_object() {
        return Err(invalid(what, "not a JSON object"));
    }
    decode(value).map(|decoded| decoded.object).map_err(|error| invalid(what, error.to_string()))
}

pub(super) fn parse(bytes: &[u8], content_type: &str, what: &str) -> Result<Document, PullError> {
    let raw: Raw = from_json(bytes, what)?;
    if raw.schema_version == 1
        || !raw.fs_layers.is_empty()
        || content_type.contains("docker.distribution.manifest.v1")
    {
        return Err(invalid(what, "manifest schema 1 is deprecated and not supported: push the image again"));
    }
    match raw.config {
        Some(config) if raw.manifests.is_empty() => {
            check_image(&config, &raw.layers, what)?;
            Ok(Document::Manifest { config, layers: raw.layers })
        }
        None if !raw.manifests.is_empty() => Ok(Document::Index(raw.manifests)),
        _ => Err(invalid(what, format!("not an image manifest or index (content type {content_type:?})"))),
    }
}

fn check_image(config: &Descriptor, layers: &[Descriptor], what: &str) -> Result<(), PullError> {
    if layers.len() > MAX_LAYERS {
        return Err(invalid(what, format!("{} layers, more than the limit of {MAX_LAYERS}", layers.len())));
    }
    check_digest(&config.digest)?;
    for layer in layers {
        check_digest(&layer.digest)?;
        let kind = &layer.media_type;
        if kind.ends_with("+encrypted") {
            return Err(invalid(&layer.digest, "encrypted layers are not supported"));
        }
        if !kind.is_empty() && !kind.contains(".tar") {
            return Err(invalid(&layer.digest, format!("not a container image layer, but {kind:?}")));
        }
    }
    if config.size > MAX_CONFIG_BYTES as u64 {
        return Err(invalid(
            &config.digest,
            format!("configuration of {} bytes is larger than 4 MiB", config.size),
        ));
    }
    Ok(())
}

/// The manifest for this platform. Attestations have the platform `unknown` and never match.
pub(super) fn choose(offered: Vec<Descriptor>, wanted: &Platform) -> Result<Descriptor, PullError> {
    let rank = |descriptor: &Descriptor| wanted.rank(&descriptor.platform.clone().unwrap_or_default());
    let names: Vec<String> =
        offered.iter().filter_map(|one| one.platform.as_ref()).map(Platform::to_string).collect();
    let best = offered.into_iter().filter_map(|one| Some((rank(&one)?, one))).min_by_key(|(rank, _)| *rank);
    best.map(|(_, descriptor)| descriptor)
        .ok_or_else(|| PullError::Platform { wanted: wanted.to_string(), offered: names.join(", ") })
}

/// Reads the configuration of an image of so many layers.
pub(super) fn config(config: &[u8], layers: usize, what: &str) -> Result<ConfigDocument, PullError> {
    let config: ConfigDocument = from_json(config, what)?;
    let found = &config.rootfs.diff_ids;
    if found.len() != layers {
        return Err(invalid(what, format!("lists {} layers, the manifest {layers}", found.len())));
    }
    found.iter().try_for_each(|digest| check_digest(digest))?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn digest(letter: &str) -> String {
        format!("sha256:{}", letter.repeat(64))
    }

    fn parsed(value: &Value) -> Result<Document, String> {
        parse(value.to_string().as_bytes(), "", "it").map_err(|error| error.to_string())
    }

    #[test]
    fn an_index_yields_the_image_of_the_platform() {
        let entry =
            |letter, platform: Value| json!({"digest": digest(letter), "size": 1, "platform": platform});
        let index = json!({"schemaVersion": 2, "manifests": [
            entry("a", json!({"os": "linux", "architecture": "arm", "variant": "v6"})),
            entry("b", json!({"os": "linux", "architecture": "amd64"})),
            entry("c", json!({"os": "unknown", "architecture": "unknown"})),
        ]});
        let Ok(Document::Index(offered)) = parsed(&index) else { panic!("it is an index") };
        let wanted = |architecture: &str, variant: &str| Platform {
            os: "linux".into(),
            architecture: architecture.into(),
            variant: variant.into(),
        };
        assert_eq!(choose(offered.clone(), &wanted("arm", "v7")).unwrap().digest, digest("a"));
        assert_eq!(choose(offered.clone(), &wanted("amd64", "")).unwrap().digest, digest("b"));
        let error = choose(offered, &wanted("riscv64", "")).unwrap_err().to_string();
        assert!(error.contains("linux/riscv64 is not among linux/arm/v6, linux/amd64"), "{error}");
    }

    #[test]
    fn what_is_no_image_is_refused_by_name() {
        let config = json!({"digest": digest("a"), "size": 1});
        let layer = |kind: &str, digest: &str| json!({"mediaType": kind, "digest": digest, "size": 1});
        let tar = "application/vnd.oci.image.layer.v1.tar+gzip";
        let image = |layers: Value| json!({"schemaVersion": 2, "config": config, "layers": layers});
        assert!(parsed(&image(json!([layer(tar, &digest("b"))]))).is_ok());
        let sha512 = format!("sha512:{}", "a".repeat(128));
        for (document, words) in [
            (json!({"schemaVersion": 1, "fsLayers": [{"blobSum": "x"}]}), "schema 1"),
            (json!({"schemaVersion": 2}), "not an image manifest"),
            (json!([1]), "not a JSON object"),
            (image(json!([layer(tar, &sha512)])), "sha512"),
            (image(json!([layer(tar, "sha256:../../x")])), "not a sha256 digest"),
            (
                image(json!([layer("application/vnd.cncf.helm.chart", &digest("b"))])),
                "not a container image layer",
            ),
            (image(json!([layer(&format!("{tar}+encrypted"), &digest("b"))])), "encrypted"),
            (image(json!(vec![layer(tar, &digest("b")); 128])), "128 layers"),
            (json!({"schemaVersion": 2, "config": {"digest": digest("a"), "size": 5_000_000}}), "4 MiB"),
        ] {
            let error = parsed(&document).unwrap_err();
            assert!(error.contains(words), "{document}: {error}");
        }
        assert!(parse(b"<html>", "text/html", "it").unwrap_err().to_string().contains("not JSON"));
    }

    #[test]
    fn a_configuration_names_as_many_layers_as_the_manifest() {
        let config = json!({"rootfs": {"diff_ids": [digest("a")]}}).to_string();
        assert_eq!(super::config(config.as_bytes(), 1, "it").unwrap().rootfs.diff_ids, [digest("a")]);
        let error = super::config(config.as_bytes(), 2, "it").unwrap_err().to_string();
        assert_eq!(error, "it: lists 1 layers, the manifest 2");
    }
}
