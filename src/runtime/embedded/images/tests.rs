use std::os::unix::fs::MetadataExt;

use serde_json::json;

use super::testing::{Tar, directory};
use super::*;

fn unpack(store: &ImageStore, layer: &[u8]) -> Result<PathBuf, ImageError> {
    let diff_id = digest_of(layer);
    store.unpack_layer(&diff_id, &mut &layer[..], &UnpackLimits::default())?;
    store.layer(&diff_id)
}

/// Configuration of an image with these layers.
fn config(layers: &[&[u8]]) -> Vec<u8> {
    let diff_ids: Vec<_> = layers.iter().map(|layer| digest_of(layer)).collect();
    json!({
        "architecture": platform::Platform::current().architecture, "os": "linux",
        "config": {"User": "1:2", "Env": ["A=b"], "Entrypoint": ["/bin/a"], "Cmd": null, "Volumes": {"/data": {}}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
    .to_string()
    .into_bytes()
}

/// As `docker save` made it for ten years.
fn docker_archive(names: &[&str], layers: &[&[u8]]) -> Vec<u8> {
    let config = config(layers);
    let hex = digest_of(&config)[7..].to_owned();
    let mut tar = Tar::default();
    let mut paths = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        let path = format!("{at}/layer.tar");
        tar = tar.entry(b'0', &path, "", 0o644, layer);
        paths.push(path);
    }
    let manifest = json!([{"Config": format!("{hex}.json"), "RepoTags": names, "Layers": paths}]);
    tar.entry(b'0', &format!("{hex}.json"), "", 0o644, &config)
        .entry(b'0', "manifest.json", "", 0o644, manifest.to_string().as_bytes())
        .end()
}

#[test]
fn a_docker_archive_is_imported_resolved_and_listed() {
    let root = directory("docker");
    let store = ImageStore::open(&root.join("store")).unwrap();
    let (bottom, top) = (Tar::default().file("etc/a", "a").end(), Tar::default().file("etc/b", "b").end());
    let archive = root.join("a.tar");
    std::fs::write(&archive, docker_archive(&["busybox:1.36"], &[&bottom, &top])).unwrap();
    let images = store.import(&archive).unwrap();
    assert_eq!(images[0].repo_tags, ["docker.io/library/busybox:1.36"]);
    assert!(images[0].pinned);
    assert_eq!(images[0].defaults.volumes, ["/data"]);
    assert!(images[0].layers[0].join("etc/b").is_file() && images[0].layers[1].join("etc/a").is_file());
    assert_eq!(std::fs::metadata(images[0].layers[0].join("etc/b")).unwrap().mtime(), 0o13_000_000_000);
    let hex = &images[0].id[7..];
    for name in ["busybox:1.36", "docker.io/library/busybox:1.36", &images[0].id, hex, &hex[..12]] {
        assert_eq!(store.resolve(name).unwrap().as_ref(), Some(&images[0]), "{name}");
    }
    assert_eq!(store.resolve("busybox").unwrap(), None);
    assert_eq!(store.list().unwrap(), images);
    std::fs::remove_dir_all(&root).unwrap();
}
