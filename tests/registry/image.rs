//! Images for registries, made on the spot: a tar archive, its compressed form, a configuration, a manifest.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use edge_agent::runtime::embedded::images::{ImageStore, digest_of};
use edge_agent::runtime::embedded::registry::{Progress, PullError, PullRequest, Pulled, pull};
use serde_json::{Value, json};

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Content and its digest.
#[derive(Clone)]
pub struct Blob {
    pub digest: String,
    pub bytes: Vec<u8>,
}

impl Blob {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { digest: digest_of(&bytes), bytes }
    }

    pub fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.bytes.len()})
    }
}

/// One image.
#[derive(Clone)]
pub struct TestImage {
    pub layers: Vec<Blob>,
    pub config: Blob,
    pub manifest: Blob,
}

/// An archive with one file.
pub fn tar_of(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[108..116].copy_from_slice(b"0000000\0");
    header[116..124].copy_from_slice(b"0000000\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    header[136..148].copy_from_slice(b"00000000000\0");
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("compress into memory");
    encoder.finish().expect("compress into memory")
}

/// Bytes that no compression makes smaller.
pub fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

impl TestImage {
    /// With these archives as layers, compressed, for a machine of this architecture.
    pub fn of(archives: &[Vec<u8>], architecture: &str) -> Self {
        let layers: Vec<Blob> = archives.iter().map(|archive| Blob::new(gzip(archive))).collect();
        let diff_ids: Vec<String> = archives.iter().map(|archive| digest_of(archive)).collect();
        Self::with(layers, &diff_ids, architecture)
    }

    pub fn with(layers: Vec<Blob>, diff_ids: &[String], architecture: &str) -> Self {
        let config = json!({"os": "linux", "architecture": architecture, "config": {"Cmd": ["/hello"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        Self::of_parts(layers, Blob::new(config.to_string().into_bytes()))
    }

    /// The one of a `docker save` archive with one layer; `directory` is for its parts.
    pub fn of_archive(archive: &Path, directory: &Path) -> Self {
        let tar = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(directory).status();
        assert!(tar.expect("start tar").success(), "unpack {}", archive.display());
        let read = |name: &str| std::fs::read(directory.join(name)).expect("read a part of the archive");
        let listed: Value = serde_json::from_slice(&read("manifest.json")).expect("it is JSON");
        let name = |value: &Value| value.as_str().expect("it is a name").to_owned();
        let layer = Blob::new(gzip(&read(&name(&listed[0]["Layers"][0]))));
        Self::of_parts(vec![layer], Blob::new(read(&name(&listed[0]["Config"]))))
    }

    fn of_parts(layers: Vec<Blob>, config: Blob) -> Self {
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST,
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": layers.iter().map(|layer| layer.descriptor(LAYER)).collect::<Vec<_>>()});
        let manifest = Blob::new(manifest.to_string().into_bytes());
        Self { layers, config, manifest }
    }

    /// A small one of two layers.
    pub fn small() -> Self {
        Self::of(&[tar_of("hello", b"hello, edge\n"), tar_of("noise", &noise(300_000, 7))], "amd64")
    }

    pub fn blobs(&self) -> impl Iterator<Item = &Blob> {
        self.layers.iter().chain([&self.config])
    }

    /// An index of images by platform.
    pub fn index(images: &[(&Self, Value)]) -> Blob {
        let manifests: Vec<Value> = images
            .iter()
            .map(|(image, platform)| {
                let mut descriptor = image.manifest.descriptor(MANIFEST);
                descriptor["platform"] = platform.clone();
                descriptor
            })
            .collect();
        Blob::new(
            json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}).to_string().into_bytes(),
        )
    }
}

/// A request for amd64 with short patience.
pub fn request(image: &str, store: &Path) -> PullRequest {
    PullRequest {
        image: image.to_owned(),
        platform: "linux/amd64".to_owned(),
        store: store.to_owned(),
        stall_timeout_ms: 1000,
        ..PullRequest::default()
    }
}

/// Pulls in this process.
pub fn pull_here(request: &PullRequest) -> Result<(Pulled, Vec<Progress>), PullError> {
    let store = ImageStore::open(&request.store).expect("open the store");
    let mut heard = Vec::new();
    pull(&store, request, &mut |progress| heard.push(progress)).map(|pulled| (pulled, heard))
}

/// The whole message of a pull that fails, after a look that nothing of it is in the store.
pub fn failure(request: &PullRequest) -> String {
    let message = failure_of(request);
    assert_eq!(left_in(&request.store), Vec::<PathBuf>::new(), "left in the store");
    message
}

/// The whole message of a pull that fails.
pub fn failure_of(request: &PullRequest) -> String {
    edge_agent::platform::logging::chain(&pull_here(request).expect_err("the pull fails"))
}

/// Layers and unfinished things in the store, and images by name.
pub fn left_in(store: &Path) -> Vec<PathBuf> {
    let opened = ImageStore::open(store).expect("open the store");
    assert!(opened.list().expect("list the store").is_empty(), "no image got a name");
    ["layers", "tmp"]
        .iter()
        .flat_map(|name| std::fs::read_dir(store.join(name)).expect("list the store"))
        .map(|entry| entry.expect("list the store").path())
        .filter(|path| !path.ends_with("empty"))
        .collect()
}
