//! Registries that do everything wrong: each is named in the message, and leaves nothing behind.

use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use edge_agent::runtime::ImageAuth;
use edge_agent::runtime::embedded::images::{ImageStore, digest_of};
use edge_agent::runtime::embedded::registry::{Progress, PullRequest};
use serde_json::json;

use super::fake::{Asked, FakeRegistry, answer, answer_head};
use super::image::{Blob, MANIFEST, TestImage, failure, gzip, pull_here, request, tar_of};
use crate::support::scratch::Scratch;
use crate::support::wait::pause;

/// How long a server says nothing. Far longer than the client waits, on whatever machine.
const A_LONG_TIME: Duration = Duration::from_secs(60);

fn is_layer(asked: &Asked, image: &TestImage, index: usize) -> bool {
    asked.path.ends_with(&image.layers[index].digest)
}

/// The message of a pull of `a/b:v1` with this fault.
fn fails(
    image: &TestImage,
    fault: impl Fn(&Asked, &mut TcpStream) -> bool + Send + Sync + 'static,
) -> String {
    let scratch = Scratch::new();
    let registry = FakeRegistry::start(image, fault);
    failure(&request(&registry.reference(), &scratch.dir("images")))
}

#[track_caller]
fn says(message: &str, words: &str) {
    assert!(message.contains(words), "{words:?} in {message:?}");
}

#[test]
fn a_blob_that_is_cut_goes_on_where_it_was_cut() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let seen = image.clone();
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        if !is_layer(asked, &seen, 1) || asked.offset() > 200_000 {
            return false;
        }
        // Promises all of the rest and sends a part of it.
        let (bytes, from) = (&seen.layers[1].bytes, asked.offset());
        let status = if from == 0 { "200 OK" } else { "206 Partial Content" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{}\r\n\r\n",
            bytes.len() - from,
            bytes.len() - 1,
            bytes.len()
        );
        let _ = std::io::Write::write_all(stream, head.as_bytes());
        let _ = std::io::Write::write_all(stream, &bytes[from..from + 90_000]);
        true
    });
    pull_here(&request(&registry.reference(), &scratch.dir("images"))).unwrap();
    let ranges: Vec<String> = registry
        .asked()
        .iter()
        .filter_map(|head| head.lines().find_map(|line| line.strip_prefix("range: ")).map(str::to_owned))
        .collect();
    assert_eq!(ranges, ["bytes=90000-", "bytes=180000-", "bytes=270000-"]);
}

#[test]
fn a_server_without_ranges_is_read_past_what_is_known() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let (seen, asks) = (image.clone(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asks);
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        if !is_layer(asked, &seen, 1) {
            return false;
        }
        let bytes = &seen.layers[1].bytes;
        let part = if count.fetch_add(1, Ordering::SeqCst) == 0 { 100_000 } else { bytes.len() };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
        let _ = std::io::Write::write_all(stream, head.as_bytes());
        let _ = std::io::Write::write_all(stream, &bytes[..part]);
        true
    });
    pull_here(&request(&registry.reference(), &scratch.dir("images"))).unwrap();
    assert_eq!(asks.load(Ordering::SeqCst), 2);
}

#[test]
fn a_busy_server_is_asked_again() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = FakeRegistry::start(&image, |asked, stream| {
        match asked.number {
            0 => answer(stream, "503 Service Unavailable", &[], b""),
            1 => answer(stream, "429 Too Many Requests", &["Retry-After: 1"], b""),
            // A connection that is closed without a word.
            2 => {}
            _ => return false,
        }
        true
    });
    let began = Instant::now();
    pull_here(&request(&registry.reference(), &scratch.dir("images"))).unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1), "Retry-After is honoured");
}

#[test]
fn stalled_connection_is_reopened() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let seen = image.clone();
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        if !is_layer(asked, &seen, 1) || asked.offset() > 0 {
            return false;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", seen.layers[1].bytes.len());
        let _ = std::io::Write::write_all(stream, head.as_bytes());
        let _ = std::io::Write::write_all(stream, &seen.layers[1].bytes[..50_000]);
        pause(A_LONG_TIME);
        true
    });
    let began = Instant::now();
    pull_here(&request(&registry.reference(), &scratch.dir("images"))).unwrap();
    assert!(began.elapsed() < A_LONG_TIME, "{:?}", began.elapsed());
}

#[test]
fn content_that_is_not_the_promised_one_is_refused() {
    let image = TestImage::of(&[tar_of("hello", b"hello")], "amd64");
    let mut other = image.layers[0].bytes.clone();
    other[20] ^= 1;
    let seen = image.clone();
    let message = fails(&image, move |asked, stream| {
        is_layer(asked, &seen, 0) && {
            answer(stream, "200 OK", &[], &other);
            true
        }
    });
    says(&message, "failed to pull and unpack image \"127.0.0.1:");
    says(&message, "digest mismatch: content has sha256:");

    let seen = image.clone();
    let message = fails(&image, move |asked, stream| {
        is_layer(asked, &seen, 0) && {
            answer(stream, "200 OK", &[], &seen.layers[0].bytes[1..]);
            true
        }
    });
    says(&message, "size mismatch: ");

    // Right by its own digest, and not what the configuration says.
    let lie = TestImage::with(image.layers.clone(), std::slice::from_ref(&image.config.digest), "amd64");
    says(&fails(&lie, |_, _| false), "unpack layer sha256:");
    let short = TestImage::with(image.layers.clone(), &[], "amd64");
    says(&fails(&short, |_, _| false), "lists 0 layers, the manifest 1");
    // A tag's promise in the header, too.
    let wrong = format!("Docker-Content-Digest: sha256:{}", "0".repeat(64));
    let bytes = image.manifest.bytes.clone();
    let message = fails(&image, move |asked, stream| {
        asked.path.contains("/manifests/") && {
            answer(stream, "200 OK", &[&wrong], &bytes);
            true
        }
    });
    says(&message, "failed to resolve reference");
    says(&message, "digest mismatch");
}

#[test]
fn redirects_end_and_take_no_secrets_along() {
    let image = TestImage::small();
    let message = fails(&image, |asked, stream| {
        asked.path.contains("/blobs/") && {
            answer(stream, "302 Found", &[&format!("Location: {}x", asked.path)], b"");
            true
        }
    });
    says(&message, "stopped after 5 redirects");

    let scratch = Scratch::new();
    let storage = FakeRegistry::start(&image, |_, _| false);
    let port = storage.port;
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        if asked.header("authorization").is_none() {
            answer(stream, "401 Unauthorized", &["WWW-Authenticate: Basic realm=\"r\""], b"");
        } else if asked.path.contains("/blobs/") {
            let location = format!("Location: http://localhost:{port}{}?X-Signature=s", asked.path);
            answer(stream, "307 Temporary Redirect", &[&location], b"");
        } else {
            return false;
        }
        true
    });
    let auth = ImageAuth::of_user("me".into(), "hush".into());
    let request = PullRequest { auth: Some(auth), ..request(&registry.reference(), &scratch.dir("images")) };
    pull_here(&request).unwrap();
    let heads = storage.asked();
    assert_eq!(heads.len(), 3, "configuration and layers come from the storage: {heads:?}");
    assert!(heads.iter().all(|head| !head.contains("authorization")), "{heads:?}");
}

#[test]
fn endless_auth_challenges_stop_after_a_few_requests() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = FakeRegistry::start(&image, |asked, stream| {
        if asked.path.starts_with("/token") {
            answer(stream, "200 OK", &[], format!("{{\"token\":\"t{}\"}}", asked.number).as_bytes());
        } else {
            let host = asked.header("host").unwrap_or_default();
            let challenge = format!("WWW-Authenticate: Bearer realm=\"http://{host}/token\",service=\"s\"");
            answer(
                stream,
                "401 Unauthorized",
                &[&challenge],
                b"{\"errors\":[{\"code\":\"UNAUTHORIZED\",\"message\":\"who?\"}]}",
            );
        }
        true
    });
    let auth = ImageAuth::of_user("me".into(), "hush-hush".into());
    let request = PullRequest { auth: Some(auth), ..request(&registry.reference(), &scratch.dir("images")) };
    let message = failure(&request);
    says(&message, "pull access denied, repository does not exist or may require authorization");
    says(&message, "UNAUTHORIZED: who?");
    assert!(!message.contains("hush"), "{message}");
    assert!(registry.asked().len() <= 6);
}

#[test]
fn tokens_are_fetched_with_the_scope_and_kept() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = FakeRegistry::start(&image, |asked, stream| {
        if asked.path.starts_with("/token") {
            // "me:hush"
            if asked.header("authorization") == Some("basic bwu6ahvzaa==") {
                answer(stream, "200 OK", &[], b"{\"access_token\":\"good\"}");
            } else {
                answer(stream, "401 Unauthorized", &[], b"{\"details\":\"incorrect username or password\"}");
            }
            return true;
        }
        let allowed = asked.header("authorization") == Some("bearer good");
        if !allowed {
            let host = asked.header("host").unwrap_or_default();
            let challenge = format!(
                "WWW-Authenticate: Bearer realm=\"http://{host}/token?a=b\",service=\"s t\",scope=\"repository:a/b:pull\""
            );
            answer(stream, "401 Unauthorized", &[&challenge], b"");
        }
        !allowed
    });
    let with = |username: &str, password: &str| PullRequest {
        auth: Some(ImageAuth::of_user(username.into(), password.into())),
        ..request(&registry.reference(), &scratch.dir("images"))
    };
    let message = failure(&with("me", "wrong"));
    says(&message, "failed to fetch token from http://127.0.0.1:");
    says(&message, "incorrect username or password");
    assert!(!message.contains("wrong"), "{message}");
    let _ = registry.asked();
    pull_here(&with("me", "hush")).unwrap();
    let heads = registry.asked();
    let tokens: Vec<&String> = heads.iter().filter(|head| head.starts_with("get /token")).collect();
    assert_eq!(tokens.len(), 1, "one token serves all requests");
    says(tokens[0], "get /token?a=b&scope=repository%3aa%2fb%3apull&service=s%20t ");
}

#[test]
fn documents_that_are_too_long_or_nonsense_are_refused() {
    let image = TestImage::small();
    let with_manifest = |body: Vec<u8>| {
        fails(&image, move |asked, stream| {
            asked.path.contains("/manifests/") && {
                answer(stream, "200 OK", &[&format!("Content-Type: {MANIFEST}")], &body);
                true
            }
        })
    };
    says(&with_manifest(vec![b'['; 5_000_000]), "longer than the limit of 4194304 bytes");
    says(&with_manifest(b"<html>Sign in to the hotel's Wi-Fi</html>".to_vec()), "not JSON");
    says(&with_manifest(b"{\"schemaVersion\":1,\"fsLayers\":[]}".to_vec()), "schema 1");
    says(&with_manifest(vec![b'['; 100_000]), "not JSON");
    let missing = fails(&image, |asked, stream| {
        asked.path.contains("/manifests/") && {
            answer(stream, "404 Not Found", &[], b"");
            true
        }
    });
    says(&missing, "failed to resolve reference \"127.0.0.1:");
    says(&missing, "a/b:v1: not found");
}

#[test]
fn a_bomb_does_not_fill_memory_nor_the_store() {
    // Not a tar archive, a thousand times as long as its compressed form.
    let zeros = vec![1_u8; 50_000_000];
    let bomb = TestImage::of(&[zeros], "amd64");
    let message = fails(&bomb, |_, _| false);
    says(&message, "unpack layer sha256:");
}

#[test]
fn an_index_is_searched_for_the_platform() {
    let scratch = Scratch::new();
    let image = TestImage::of(&[tar_of("hello", b"v6")], "arm");
    let index = TestImage::index(&[(&image, json!({"os": "linux", "architecture": "arm", "variant": "v6"}))]);
    let registry = FakeRegistry::serving(&image, &index, |_, _| false);
    let mut request = request(&registry.reference(), &scratch.dir("images"));
    let message = failure(&request);
    says(&message, "no match for platform in manifest: linux/amd64 is not among linux/arm/v6");
    request.platform = "linux/arm/v7".to_owned();
    let (pulled, _) = pull_here(&request).unwrap();
    assert_eq!(pulled.image_id, image.config.digest);
    assert_eq!(pulled.repo_digest, format!("127.0.0.1:{}/a/b@{}", registry.port, index.digest));
}

#[test]
fn configuration_of_another_platform_is_pulled_with_a_warning() {
    let scratch = Scratch::new();
    let warnings = |image: &TestImage, tag: &Blob, store: &str| {
        let registry = FakeRegistry::serving(image, tag, |_, _| false);
        let (_, heard) = pull_here(&request(&registry.reference(), &scratch.dir(store))).unwrap();
        let warning = |progress| match progress {
            Progress::Warning { message, .. } => Some(message),
            _ => None,
        };
        heard.into_iter().filter_map(warning).collect::<Vec<_>>()
    };
    let layer = [tar_of("hello", b"hello")];
    let foreign = TestImage::of(&layer, "arm64");
    let words = ["its configuration is for linux/arm64, not for linux/amd64: it may not run"];
    assert_eq!(warnings(&foreign, &foreign.manifest, "single"), words);
    for (number, platform) in
        [json!({"os": "linux", "architecture": "amd64"}), json!(null)].iter().enumerate()
    {
        let index = TestImage::index(&[(&foreign, platform.clone())]);
        assert_eq!(warnings(&foreign, &index, &format!("index-{number}")), words, "{platform}");
    }
    for (number, architecture) in ["amd64", "x86_64", "386", ""].into_iter().enumerate() {
        let image = TestImage::of(&layer, architecture);
        assert!(warnings(&image, &image.manifest, &format!("good-{number}")).is_empty(), "{architecture}");
    }
}

#[test]
fn a_mirror_that_fails_is_followed_by_the_registry() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let mirror = FakeRegistry::start(&image, |asked, stream| {
        asked.path.contains("/blobs/") && {
            answer(stream, "404 Not Found", &[], b"");
            true
        }
    });
    let registry = FakeRegistry::start(&image, |_, _| false);
    let hosts = scratch.dir("certs.d").join("registry.example");
    std::fs::create_dir_all(&hosts).unwrap();
    let text = format!(
        "server = \"http://127.0.0.1:{}\"\n[host.\"http://127.0.0.1:{}\"]\ncapabilities = [\"pull\", \"resolve\"]\n\
         [host.\"http://127.0.0.1:{}\".header]\nx-mirror = [\"yes\"]\n",
        registry.port, mirror.port, mirror.port
    );
    std::fs::write(hosts.join("hosts.toml"), text).unwrap();
    let request = PullRequest {
        hosts_dirs: vec![scratch.dir("certs.d")],
        ..request("registry.example/a/b:v1", &scratch.dir("images"))
    };
    pull_here(&request).unwrap();
    let first = &mirror.asked()[0];
    says(first, "get /v2/a/b/manifests/v1?ns=registry.example http");
    says(first, "x-mirror: yes");
    let heads = registry.asked();
    assert_eq!(heads.len(), 3, "{heads:?}");
    assert!(heads.iter().all(|head| head.contains("/blobs/") && !head.contains("x-mirror")), "{heads:?}");
}

/// Each request for it, as method and nothing else.
fn asks_for(registry: &FakeRegistry, blob: &Blob) -> Vec<String> {
    let heads = registry.asked();
    let of_blob = heads.iter().filter(|head| head.contains(&blob.digest));
    of_blob.map(|head| head.split(' ').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_layer_that_is_there_is_asked_for_by_head_alone() {
    let scratch = Scratch::new();
    let base = tar_of("base", b"base");
    let old = TestImage::of(std::slice::from_ref(&base), "amd64");
    let new = TestImage::of(&[base, tar_of("new", b"new")], "amd64");
    let shared = new.layers[0].clone();
    let (old_manifest, old_config) = (old.manifest.clone(), old.config.clone());
    let stage = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&stage);
    // One registry with two tags of which one moves.
    let registry = FakeRegistry::start(&new, move |asked, stream| {
        let stage = now.load(Ordering::SeqCst);
        let ends = |blob: &Blob| asked.path.ends_with(&blob.digest);
        match stage {
            0 if asked.path.ends_with("/manifests/v1") => {
                answer(stream, "200 OK", &[&format!("Content-Type: {MANIFEST}")], &old_manifest.bytes);
            }
            0 if ends(&old_config) => answer(stream, "200 OK", &[], &old_config.bytes),
            // Storage elsewhere, which the pull has no business with.
            1 if ends(&shared) => {
                answer_head(stream, "307 Temporary Redirect", &["Location: http://127.0.0.1:9/x"], 0);
            }
            2 if asked.head.starts_with("head ") => answer_head(stream, "405 Method Not Allowed", &[], 0),
            3 if ends(&shared) => answer(stream, "403 Forbidden", &[], b""),
            _ => return false,
        }
        true
    });
    let pull = |store: &str| pull_here(&request(&registry.reference(), &scratch.dir(store)));
    pull("images").unwrap();
    let shared = &new.layers[0];
    assert_eq!(asks_for(&registry, shared), ["get"]);
    stage.store(1, Ordering::SeqCst);
    pull("images").unwrap();
    assert_eq!(asks_for(&registry, shared), ["head"]);
    let forget = || {
        let store = ImageStore::open(&scratch.dir("images")).unwrap();
        store.untag(&registry.reference()).unwrap();
    };
    // Where HEAD is not known it comes once more; without the right to it nothing does.
    for (at, expected) in [(2, "there"), (3, "denied")] {
        forget();
        stage.store(at, Ordering::SeqCst);
        let pulled = pull("images");
        assert_eq!(asks_for(&registry, shared), ["head", "get"], "{expected}");
        match pulled {
            Ok(_) => assert_eq!(expected, "there"),
            Err(error) => {
                let message = edge_agent::platform::logging::chain(&error);
                assert!(expected == "denied" && message.contains("403"), "{message}");
            }
        }
    }
}

#[test]
fn a_layer_of_another_registry_or_blob_has_to_be_brought() {
    let scratch = Scratch::new();
    let private = tar_of("private", b"private");
    let image = TestImage::of(std::slice::from_ref(&private), "amd64");
    let registry = FakeRegistry::start(&image, |_, _| false);
    pull_here(&request(&registry.reference(), &scratch.dir("images"))).unwrap();
    // Another registry that says it has the very blob, and does not.
    let blob = image.layers[0].clone();
    let liar = FakeRegistry::start(&image, move |asked, stream| {
        let is_blob = asked.path.ends_with(&blob.digest);
        if is_blob && asked.head.starts_with("head ") {
            answer_head(stream, "200 OK", &[], blob.bytes.len());
        } else if is_blob {
            answer(stream, "200 OK", &[], &vec![0; blob.bytes.len()]);
        }
        is_blob
    });
    let message = failure_of_second(&liar.reference(), &scratch.dir("images"));
    assert!(message.contains("digest mismatch"), "{message}");
    // A blob of one's own, with a configuration that names the other's layer.
    let other = gzip(&tar_of("mine", b"mine"));
    let mine = TestImage::with(vec![Blob::new(other)], &[digest_of(&private)], "amd64");
    let own = FakeRegistry::start(&mine, |_, _| false);
    let message = failure_of_second(&own.reference(), &scratch.dir("images"));
    assert!(message.contains("damaged or was modified"), "{message}");
    // Who has the content gets it by the blob that it has.
    let honest = FakeRegistry::start(&image, |_, _| false);
    pull_here(&request(&honest.reference(), &scratch.dir("images"))).unwrap();
    assert_eq!(asks_for(&honest, &image.layers[0]), ["get"]);
}

fn failure_of_second(reference: &str, store: &Path) -> String {
    edge_agent::platform::logging::chain(&pull_here(&request(reference, store)).expect_err("the pull fails"))
}

#[test]
fn a_cleanup_in_the_middle_of_a_pull_takes_nothing_of_it() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let (seen, asks) = (image.clone(), Arc::new(AtomicUsize::new(0)));
    let (store, count) = (scratch.path().to_owned(), Arc::clone(&asks));
    let registry = FakeRegistry::start(&image, move |asked, _| {
        // Layers come side by side: whichever is there by now is no image's yet.
        if (0..2).any(|layer| is_layer(asked, &seen, layer)) {
            ImageStore::open(&store).expect("open the store").prune(&[]).expect("clean up");
            count.fetch_add(1, Ordering::SeqCst);
        }
        false
    });
    let (pulled, _) = pull_here(&request(&registry.reference(), scratch.path())).expect("it is pulled");
    assert_eq!(asks.load(Ordering::SeqCst), 2);
    let store = ImageStore::open(scratch.path()).expect("open the store");
    let whole = store.resolve(&pulled.image_id).expect("the store is whole").expect("the image is there");
    let content = store.image_file(&whole, "/hello", 100).expect("it can be read");
    assert_eq!(content.as_deref(), Some(&b"hello, edge\n"[..]));
    assert!(whole.layers.iter().all(|layer| layer.is_dir()), "{:?}", whole.layers);
    // What a container has stays, and goes when it has it no more.
    assert_eq!(
        store.prune(std::slice::from_ref(&pulled.image_id)).expect("clean up").images,
        Vec::<String>::new()
    );
    assert_eq!(store.prune(&[]).expect("clean up").layers, 2);
}
