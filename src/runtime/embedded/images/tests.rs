//! The store as its callers see it: hostile layers, power cuts, names, archives, memory.

use std::os::unix::fs::MetadataExt;

use serde_json::json;

use proptest::prelude::*;

use super::testing::{Tar, cut_at, directory};
use super::*;
use crate::codec::hex;

fn unpack(store: &ImageStore, layer: &[u8]) -> Result<PathBuf, ImageError> {
    let diff_id = digest_of(layer);
    store.unpack_layer(&diff_id, &mut &layer[..], &UnpackLimits::default(), Origin::Archive)?;
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

/// Error of a layer, with its causes, in one line.
fn refusal(store: &ImageStore, layer: &[u8]) -> String {
    crate::platform::logging::chain(&unpack(store, layer).unwrap_err())
}

#[test]
fn hostile_layers_are_refused_by_name_and_touch_nothing_outside() {
    let root = directory("hostile");
    let canary = root.join("canary");
    std::fs::create_dir(&canary).unwrap();
    std::fs::write(canary.join("file"), "untouched").unwrap();
    let outside = canary.display().to_string();
    let store = ImageStore::open(&root.join("store")).unwrap();
    let tar = Tar::default;
    let up = "../../../../../../../../..";
    for (layer, expected) in [
        (tar().file("../file", "x"), "the path leads outside"),
        (tar().file("a/../../file", "x"), "the path leads outside"),
        (tar().file(&format!("{up}{outside}/file"), "x"), "the path leads outside"),
        (tar().hard_link("a", &format!("{outside}/file")), "No such file"),
        (tar().hard_link("a", &format!("{up}{outside}/file")), "the link leads outside"),
        (tar().link("l", &outside).hard_link("a", "l/file"), "No such file"),
        (tar().link("l", &outside).file("l/file", "x"), "not a directory in this layer"),
        (tar().link("l", &format!("{up}{outside}")).file("l/new", "x"), "not a directory in this layer"),
        (tar().link("l", "loop").link("loop", "l").file("l/new", "x"), "Too many levels"),
        (tar().file("a", "x").file("a/b", "x"), "not a directory in this layer"),
        (tar().dir("d").hard_link("a", "d"), "a hard link to a directory"),
        (tar().file("a", "x").link("l", "/").hard_link("l/a", "a"), "a hard link to itself"),
        (tar().pax("SCHILY.xattr.trusted.overlay.redirect", b"/etc").dir("a"), "images must not set"),
        (tar().pax("SCHILY.xattr.trusted.overlay.opaque", b"y").dir("a"), "images must not set"),
        (tar().pax("path", b"x\0y").file("a", ""), "leads outside"),
        (tar().pax("GNU.sparse.major", b"1").file("a", ""), "sparse files are not supported"),
        (tar().entry(b'S', "a", "", 0o644, b""), "sparse files are not supported"),
        (tar().file(".wh.", ""), "empty whiteout"),
        (tar().file(".wh...", ""), "empty whiteout"),
        (
            tar().file(&"d/".repeat(49), "").pax("path", "d/".repeat(1000).as_bytes()).dir("x"),
            "directories in a path",
        ),
        (tar().pax("path", "d".repeat(5000).as_bytes()).dir("x"), "bytes in a path"),
        (tar().pax("path", "d".repeat(300).as_bytes()).dir("x"), "too long"),
        (tar().file("./.", "x"), "only a directory can be the root"),
        (tar().link("a", ""), "a link without a target"),
    ] {
        let error = refusal(&store, &layer.end());
        assert!(error.contains(expected), "{error:?} should say {expected:?}");
    }
    // What is refused leaves nothing; what is only odd stays inside.
    let odd = tar()
        .file(&format!("{outside}/file"), "absolute")
        .link("absolute", &outside)
        .file("absolute/through", "link")
        .dir("d")
        .link("d", &outside)
        .dir("d")
        .file("d/new", "x")
        .entry(b'3', "null", "", 0o666, b"")
        .entry(b'6', "pipe", "", 0o644, b"");
    let layer = unpack(&store, &odd.end()).unwrap();
    let inside = layer.join(outside.trim_start_matches('/'));
    assert_eq!(std::fs::read_to_string(inside.join("file")).unwrap(), "absolute");
    assert_eq!(std::fs::read_to_string(inside.join("through")).unwrap(), "link");
    assert!(layer.join("d").symlink_metadata().unwrap().is_dir());
    let names: Vec<_> = std::fs::read_dir(&canary).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"]);
    assert_eq!(std::fs::read_to_string(canary.join("file")).unwrap(), "untouched");
    assert_eq!(std::fs::read_dir(store.temporary()).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(root.join("store/layers")).unwrap().count(), 3);
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn layer_unpacks_to_overlayfs_modes_links_and_whiteouts() {
    let root = directory("nodes");
    let store = ImageStore::open(&root).unwrap();
    let long = format!("long/{}", "n".repeat(200));
    let layer = Tar::default()
        .entry(b'0', "bin/su", "", 0o4755, b"su")
        .hard_link("bin/sudo", "bin/su")
        .pax(
            "SCHILY.xattr.security.capability",
            &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        )
        .file("bin/ping", "ping")
        .pax("path", long.as_bytes())
        .file("x", "long")
        .dir("etc")
        .file("etc/.wh.gone", "")
        .file("opt/.wh..wh..opq", "")
        .dir("back")
        .file(".wh.back", "")
        .file(".wh..wh.plnk", "")
        .entry(b'5', "./", "", 0o711, b"")
        .end();
    // Without the padding at the end, as umoci writes it.
    let layer = &layer[..layer.len() - 1024];
    let path = unpack(&store, layer).unwrap();
    let look = |name: &str| std::fs::symlink_metadata(path.join(name)).unwrap();
    assert_eq!(look("bin/su").mode() & 0o7777, 0o4755);
    assert_eq!(look("bin/su").ino(), look("bin/sudo").ino());
    assert_eq!(look("").mode() & 0o7777, 0o711);
    assert_eq!(look("etc").mtime(), 0o13_000_000_000);
    assert_eq!((look("etc/gone").rdev(), look("etc/gone").mode() & 0o170_000), (0, 0o020_000));
    assert_eq!(std::fs::read_to_string(path.join(&long)).unwrap(), "long");
    let has = |name: &str, key: &str, value: &[u8]| {
        has_extended(&Handle::open(&path).unwrap().entry(name.as_ref()).unwrap(), key, value).unwrap()
    };
    assert!(has("opt", unpack::OPAQUE, b"y") && has("back", unpack::OPAQUE, b"y"));
    assert!(!has("etc", unpack::OPAQUE, b"y"));
    assert!(!path.join(".wh..wh.plnk").exists());
    // The same again writes nothing, and has to be the same.
    let inode = look("etc").ino();
    let again = |content: &[u8], name: &str| {
        let origin = Origin::Registry { name, blob: "sha256:b" };
        store.unpack_layer(&digest_of(layer), &mut &content[..], &UnpackLimits::default(), origin)
    };
    assert!(again(b"", "r.example").is_err());
    let from =
        |name: &str| store.has_layer_from(&digest_of(layer), Origin::Registry { name, blob: "sha256:b" });
    assert!(from("r.example"), "an archive brought it");
    let account = path.with_extension("usage");
    let text = std::fs::read_to_string(&account).unwrap();
    std::fs::write(&account, text.replace("archive", "registry r.example sha256:a")).unwrap();
    assert!(!from("r.example"), "another blob");
    again(layer, "r.example").unwrap();
    assert!(from("r.example") && !from("s.example"));
    assert_eq!(look("etc").ino(), inode);
    let usage = store.usage().unwrap();
    assert!(usage.inodes >= Some(10) && usage.bytes >= Some(3 * 4096), "{usage:?}");
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn limits_hold_and_a_wrong_digest_leaves_nothing() {
    let root = directory("limits");
    let store = ImageStore::open(&root).unwrap();
    let layer = Tar::default().file("a", &"x".repeat(5000)).file("b", "y").end();
    let with = |limits: UnpackLimits| {
        let error =
            store.unpack_layer(&digest_of(&layer), &mut &layer[..], &limits, Origin::Archive).unwrap_err();
        crate::platform::logging::chain(&error)
    };
    let limits = UnpackLimits::default();
    assert!(with(UnpackLimits { entries: 1, ..limits }).contains("more than 1 entries"));
    assert!(with(UnpackLimits { bytes: 4000, ..limits }).contains("more than 4000 bytes"));
    let all = UnpackLimits { free_bytes: u64::MAX, free_percent: 100, ..limits };
    assert!(with(all).contains("no space for the layer"));
    let bounds =
        [0, 6 << 20, 100 << 20, 2 << 30].map(|bytes| UnpackLimits::for_compressed(bytes).bytes >> 20);
    assert_eq!(bounds, [1024, 1024, 10_000, 65_536]);
    // A layer that unpacks to far more than its compressed size must leave the free space that eviction
    // needs.
    let keep = crate::model::amount::Amount::parse("99.999%");
    let large = Tar::default().file("a", &"x".repeat(40 << 20)).end();
    let unpack = |keep_after| {
        let limits = UnpackLimits { keep, keep_after, ..limits };
        store.unpack_layer(&digest_of(&large), &mut &large[..], &limits, Origin::Archive)
    };
    let error = crate::platform::logging::chain(&unpack(1 << 20).unwrap_err());
    assert!(error.contains("no space for the layer"), "{error}");
    unpack(64 << 20).unwrap();
    // Endless zeros after the archive are a bomb, too.
    let mut endless = layer.chain(io::repeat(0));
    let bytes = 1 << 20;
    let error = store.unpack_layer(
        &digest_of(&layer),
        &mut endless,
        &UnpackLimits { bytes, ..limits },
        Origin::Archive,
    );
    assert!(crate::platform::logging::chain(&error.unwrap_err()).contains("more than 1048576 bytes"));
    let other = digest_of(b"other");
    let error = store.unpack_layer(&other, &mut &layer[..], &limits, Origin::Archive).unwrap_err();
    assert!(crate::platform::logging::chain(&error).contains("damaged or was modified"));
    assert!(!store.has_layer(&other) && !store.has_layer(&digest_of(&layer)));
    assert_eq!(std::fs::read_dir(store.temporary()).unwrap().count(), 0);
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_power_cut_at_any_step_leaves_all_or_nothing() {
    let root = directory("power");
    let layer = Tar::default().file("etc/a", "a").end();
    let archive = root.join("a.tar");
    std::fs::write(&archive, docker_archive(&["a"], &[&layer])).unwrap();
    for step in [
        "layer filled",
        "layer synced",
        "layer renamed",
        "document written",
        "documents kept",
        "index written",
        "index kept",
        "index renamed",
    ] {
        let place = root.join("store");
        let _ = std::fs::remove_dir_all(&place);
        let store = ImageStore::open(&place).unwrap();
        cut_at(Some(step));
        store.import(&archive).expect_err(step);
        cut_at(None);
        let store = ImageStore::open(&place).unwrap();
        for image in store.list().unwrap() {
            assert_eq!(std::fs::read_to_string(image.layers[0].join("etc/a")).unwrap(), "a", "{step}");
        }
        let images = store.import(&archive).unwrap();
        assert_eq!(store.list().unwrap(), images, "{step}");
        cut_at(Some("layers moved"));
        store.remove("a").unwrap_err();
        cut_at(None);
        assert_eq!(ImageStore::open(&place).unwrap().list().unwrap(), [], "{step}");
        store.prune(&[]).unwrap();
        assert_eq!(std::fs::read_dir(store.blobs()).unwrap().count(), 0, "{step}");
        assert_eq!(std::fs::read_dir(place.join("layers")).unwrap().count(), 1, "{step}");
        assert_eq!(std::fs::read_dir(store.temporary()).unwrap().count(), 0, "{step}");
    }
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn staging_is_removed_for_dead_processes_and_kept_for_live_ones() {
    let root = directory("leftovers");
    let store = ImageStore::open(&root).unwrap();
    std::fs::create_dir_all(root.join("tmp/7/layer/etc")).unwrap();
    let living = store.stage().unwrap();
    ImageStore::open(&root).unwrap();
    assert!(living.path.is_dir() && !root.join("tmp/7").exists());
    drop(living);
    ImageStore::open(&root).unwrap();
    assert_eq!(std::fs::read_dir(root.join("tmp")).unwrap().count(), 0);
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_damaged_index_is_set_aside_and_made_again() {
    let root = directory("damaged");
    let store = ImageStore::open(&root.join("store")).unwrap();
    let layers = [Tar::default().file("a", "a").end(), Tar::default().file("b", "b").end()];
    for (name, layer) in ["one", "two"].iter().zip(&layers) {
        let archive = root.join(name);
        std::fs::write(&archive, docker_archive(&[name], &[layer])).unwrap();
        store.import(&archive).unwrap();
    }
    let index = root.join("store/index.json");
    std::fs::write(&index, "{\"images\": [").unwrap();
    // Names of the first are in the index before the damaged one; the second is found without.
    assert_eq!(store.list().unwrap().len(), 2);
    assert!(store.resolve("one").unwrap().is_some());
    store.tag("one", "again").unwrap();
    assert!(store.resolve("again").unwrap().is_some());
    assert!(root.join("store/index.damaged-0.json").is_file());
    assert_eq!(store.list().unwrap().len(), 2);
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn tag_moves_to_the_new_image_and_unused_images_are_pruned() {
    let root = directory("prune");
    let store = ImageStore::open(&root).unwrap();
    let shared = Tar::default().file("shared", "").end();
    let mut ids = Vec::new();
    for number in 0..3 {
        let own = Tar::default().file("own", &number.to_string()).end();
        unpack(&store, &shared).unwrap();
        unpack(&store, &own).unwrap();
        let image = store
            .commit(NewImage {
                config: config(&[&shared, &own]),
                manifest: format!("{{\"number\": {number}}}").into_bytes(),
                layer_sizes: vec![10, 20],
                names: vec!["a:v1".to_owned(), format!("b:{number}")],
                pinned: number == 0,
                ..NewImage::default()
            })
            .unwrap();
        ids.push(image.id);
    }
    assert_eq!(store.resolve("a:v1").unwrap().unwrap().id, ids[2]);
    assert_eq!(store.resolve("b:0").unwrap().unwrap().repo_tags, ["docker.io/library/b:0"]);
    store.untag("b:1").unwrap();
    let bringing = store.bring().unwrap();
    let pruned = store.prune(&[ids[2].clone()]).unwrap();
    assert_eq!((pruned.images, pruned.layers), (vec![ids[1].clone()], 0), "somebody may need the layers");
    drop(bringing);
    assert_eq!(store.prune(&[ids[2].clone()]).unwrap().layers, 1);
    assert_eq!(store.remove("a:v1").unwrap().layers, 1);
    assert!(store.has_layer(&digest_of(&shared)));
    assert!(matches!(store.remove("a:v1"), Err(ImageError::NotFound(_))));
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_commit_without_its_layers_is_refused() {
    let root = directory("missing");
    let store = ImageStore::open(&root).unwrap();
    let new = NewImage { config: config(&[b"x"]), manifest: b"{}".to_vec(), ..NewImage::default() };
    assert!(matches!(store.commit(new), Err(ImageError::LayerMissing(_))));
    assert_eq!(store.list().unwrap(), []);
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn image_file_follows_links_and_respects_whiteouts() {
    let root = directory("merged");
    let store = ImageStore::open(&root).unwrap();
    let bottom = Tar::default()
        .file("usr/etc/passwd", "bottom")
        .file("usr/etc/group", "bottom")
        .file("gone/file", "x")
        .file("opaque/file", "x")
        .link("circle", "circle")
        .end();
    let top = Tar::default()
        .link("etc", "usr/../usr/etc")
        .file("usr/etc/passwd", "top")
        .file(".wh.gone", "")
        .file("opaque/.wh..wh..opq", "")
        .file("opaque/new", "new")
        .link("out", "../../../../etc/hostname")
        .end();
    let layers = [unpack(&store, &top).unwrap(), unpack(&store, &bottom).unwrap()];
    let image = Image { layers: layers.to_vec(), ..Image::default() };
    for (path, expected) in [
        ("/etc/passwd", Some("top")),
        ("etc/group", Some("bottom")),
        ("/gone/file", None),
        ("/opaque/file", None),
        ("/opaque/new", Some("new")),
        ("/circle", None),
        ("/out", None),
        ("/etc", None),
        ("/etc/passwd/x", None),
    ] {
        let found = store.image_file(&image, path, 100).unwrap();
        assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{path}");
    }
    assert!(store.image_file(&image, "/etc/passwd", 2).is_err());
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn two_that_unpack_the_same_layer_both_succeed() {
    let root = directory("concurrent");
    let content = "x".repeat(100_000);
    let layer = (0..200).fold(Tar::default(), |tar, at| tar.file(&format!("d{at}/f"), &content)).end();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (root, layer) = (root.clone(), layer.clone());
            crate::platform::rt::spawn_thread("unpack", move || {
                unpack(&ImageStore::open(&root).unwrap(), &layer).unwrap();
            })
            .unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let store = ImageStore::open(&root).unwrap();
    assert!(store.has_layer(&digest_of(&layer)));
    assert_eq!(std::fs::read_dir(store.temporary()).unwrap().count(), 0);
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn broken_archive_does_not_block_others_and_imports_run_once() {
    let root = directory("watch");
    let store = ImageStore::open(&root.join("store")).unwrap();
    let layer = Tar::default().file("a", "a").end();
    std::fs::write(root.join("b.tar"), docker_archive(&["b"], &[&layer])).unwrap();
    std::fs::write(root.join("a.tar"), "no archive").unwrap();
    std::fs::write(root.join(".c.tar"), "being written").unwrap();
    let mut broken = watch::Broken::default();
    let first = store.import_new(&root, &mut broken).unwrap();
    assert_eq!(first.images.len(), 1);
    assert_eq!(first.failed.len(), 1);
    assert!(first.failed[0].0.ends_with("a.tar"));
    let problems: Vec<_> = broken.problems().collect();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].0.ends_with("a.tar") && problems[0].1.ends_with(": replace it with a complete one"));
    let written = std::fs::metadata(root.join("store/index.json")).unwrap().ino();
    for mut broken in [broken.clone(), watch::Broken::default()] {
        assert!(store.import_new(&root, &mut broken).unwrap().images.is_empty());
    }
    assert!(store.import_new(&root, &mut broken).unwrap().failed.is_empty(), "told of once");
    assert_eq!(
        std::fs::metadata(root.join("store/index.json")).unwrap().ino(),
        written,
        "nothing is written"
    );
    std::fs::write(root.join("a.tar"), docker_archive(&["a"], &[&layer])).unwrap();
    assert_eq!(store.import_new(&root, &mut broken).unwrap().images.len(), 1);
    assert_eq!(broken.problems().count(), 0);
    std::fs::remove_dir_all(&store.resolve("a").unwrap().unwrap().layers[0]).unwrap();
    assert_eq!((store.resolve("a").unwrap(), store.list().unwrap()), (None, Vec::new()), "damaged is absent");
    assert_eq!(
        store.import_new(&root, &mut broken).unwrap().images.len(),
        1,
        "and brought anew, for both names"
    );
    std::fs::remove_file(root.join("a.tar")).unwrap();
    store.import_new(&root, &mut broken).unwrap();
    assert!(store.resolve("a").unwrap().is_some());
    std::fs::remove_dir_all(&root).unwrap();
}

/// An OCI layout below `root`, its index for two machines.
fn layout(root: &Path, layer: &[u8]) {
    let put = |bytes: &[u8]| {
        let digest = digest_of(bytes);
        let path = root.join("blobs/sha256");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join(&digest[7..]), bytes).unwrap();
        json!({"digest": digest, "size": bytes.len()})
    };
    let platform = platform::Platform::current();
    let manifest = json!({
        "schemaVersion": 2, "config": put(&config(&[layer])),
        "layers": [put(&zstd::encode_all(layer, 1).unwrap())],
    });
    let mut ours = put(manifest.to_string().as_bytes());
    ours["platform"] = json!({"os": "linux", "architecture": platform.architecture});
    let mut other = put(b"{}");
    other["platform"] = json!({"os": "linux", "architecture": "s390x"});
    let mut index = put(json!({"schemaVersion": 2, "manifests": [other, ours]}).to_string().as_bytes());
    index["annotations"] = json!({"org.opencontainers.image.ref.name": "edge.example/app:v1"});
    std::fs::write(root.join("index.json"), json!({"manifests": [index]}).to_string()).unwrap();
    std::fs::write(root.join("oci-layout"), "{\"imageLayoutVersion\": \"1.0.0\"}").unwrap();
}

#[test]
fn oci_layout_imports_from_directory_and_compressed_archives() {
    let root = directory("layout");
    let store = ImageStore::open(&root.join("store")).unwrap();
    let unpacked = root.join("unpacked");
    layout(&unpacked, &Tar::default().file("a", "a").end());
    let first = store.import(&unpacked).unwrap();
    assert_eq!(first[0].repo_tags, ["edge.example/app:v1"]);
    assert!(first[0].repo_digests[0].starts_with("edge.example/app@sha256:"));
    let tar =
        std::process::Command::new("tar").arg("-C").arg(&unpacked).args(["-c", "."]).output().unwrap().stdout;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    io::Write::write_all(&mut gzip, &tar).unwrap();
    for archive in [zstd::encode_all(&tar[..], 1).unwrap(), gzip.finish().unwrap(), tar] {
        store.remove("edge.example/app:v1").unwrap();
        std::fs::write(root.join("a.tar"), archive).unwrap();
        let again = store.import(&root.join("a.tar")).unwrap();
        assert_eq!((&again[0].id, &again[0].repo_digests), (&first[0].id, &first[0].repo_digests));
    }
    let elsewhere =
        platform::Platform { os: "linux".into(), architecture: "riscv64".into(), variant: String::new() };
    let error = store.import_for(&unpacked, &elsewhere).unwrap_err().to_string();
    assert!(error.contains("no image for linux/riscv64") && error.contains("linux/s390x"), "{error}");
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_layer_whose_root_is_opaque_hides_those_below() {
    let root = directory("opaque");
    let store = ImageStore::open(&root).unwrap();
    let (bottom, top) = (Tar::default().file("a", "").end(), Tar::default().file(".wh..wh..opq", "").end());
    unpack(&store, &bottom).unwrap();
    let visible = unpack(&store, &top).unwrap();
    let new =
        NewImage { config: config(&[&bottom, &top, &top]), manifest: b"{}".to_vec(), ..NewImage::default() };
    assert_eq!(store.commit(new).unwrap().layers, [visible]);
    std::fs::remove_dir_all(&root).unwrap();
}

/// Zeros that look like one large file, never in memory at once.
#[test]
fn a_large_layer_needs_little_memory() {
    let root = directory("large");
    let store = ImageStore::open(&root).unwrap();
    let size: u64 = 24 << 20;
    let header = Tar::default().pax("size", size.to_string().as_bytes()).file("large", "").0;
    let source = || (&header[..]).chain(io::repeat(7).take(size)).chain(io::repeat(0).take(1024));
    let mut sha = Sha256::new();
    let mut all = source();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match all.read(&mut buffer).unwrap() {
            0 => break,
            count => sha.update(&buffer[..count]),
        }
    }
    let diff_id = format!("sha256:{}", hex::encode(&sha.finalize()));
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    // The first use of code pages also counts: run it once before measuring.
    let other = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    assert!(
        store.unpack_layer(other, &mut source(), &UnpackLimits::default(), Origin::Archive).is_err(),
        "it is another one"
    );
    // From here on.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    store.unpack_layer(&diff_id, &mut source(), &UnpackLimits::default(), Origin::Archive).unwrap();
    let grown = peak() - before;
    assert_eq!(store.layer(&diff_id).unwrap().join("large").metadata().unwrap().len(), size);
    assert!(grown <= 1024, "{grown} kB for 24 MB");
    std::fs::remove_dir_all(&root).unwrap();
}

fn entries() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        "[ab]{1,2}(/[ab.]{1,2}){0,3}",
        "(\\.\\./|/|\\.wh\\.|a/){0,3}[ab]?",
        Just("a/.wh..wh..opq".to_owned()),
        Just("/canary/file".to_owned()),
        Just("../../../canary/file".to_owned()),
    ];
    let kind = prop::sample::select(b"01234567xLKgS".to_vec());
    let one = (kind, name.clone(), name, prop::collection::vec(any::<u8>(), 0..40));
    prop::collection::vec(one, 0..12).prop_map(|list| {
        list.iter()
            .fold(Tar::default(), |tar, (kind, path, link, content)| {
                let content: &[u8] = if *kind == b'0' || *kind > b'7' { content } else { b"" };
                tar.entry(*kind, path, link, 0o644, content)
            })
            .end()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_archive_escapes_or_panics(mut tar in entries(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), cut in 0..2000_usize) {
        let root = directory("fuzz");
        let canary = root.join("canary");
        std::fs::create_dir(&canary).unwrap();
        std::fs::write(canary.join("file"), "untouched").unwrap();
        let store = ImageStore::open(&root.join("store")).unwrap();
        for (at, byte) in damage {
            let at = at.index(tar.len());
            tar[at] = byte;
        }
        tar.truncate(tar.len().saturating_sub(cut.saturating_sub(1000)));
        let unpacked = unpack(&store, &tar).is_ok();
        prop_assert_eq!(std::fs::read_to_string(canary.join("file")).unwrap(), "untouched");
        prop_assert_eq!(std::fs::read_dir(&canary).unwrap().count(), 1);
        prop_assert_eq!(std::fs::read_dir(&root).unwrap().count(), 2);
        prop_assert_eq!(std::fs::read_dir(store.temporary()).unwrap().count(), 0);
        prop_assert_eq!(std::fs::read_dir(root.join("store/layers")).unwrap().count(), 1 + 2 * usize::from(unpacked));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn no_bytes_are_too_much_for_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let mut reader = tar::TarReader::new(&bytes[..]);
        while let Ok(Some(_)) = reader.next_entry() {}
    }
}
