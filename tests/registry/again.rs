//! The same image again: at the same time, later when nothing has changed, and after somebody gave up in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use edge_agent::platform::rt;
use edge_agent::runtime::embedded::images::ImageStore;
use edge_agent::runtime::embedded::registry::{LayerState, Progress, PullError, PullRequest, pull_until};

use super::docker::agent;
use super::fake::{FakeRegistry, answer, answer_head};
use super::image::{TestImage, failure_of, pull_here, request};
use crate::support::scratch::Scratch;
use crate::support::wait::pause;

fn methods(registry: &FakeRegistry) -> Vec<String> {
    registry.asked().iter().map(|head| head.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn two_pulls_of_one_image_at_once_bring_each_layer_once() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let seen = image.clone();
    let registry = FakeRegistry::start(&image, move |asked, _| {
        // Long enough for the other pull to come to the same layer.
        if seen.layers.iter().any(|layer| asked.path.ends_with(&layer.digest)) {
            pause(Duration::from_millis(400));
        }
        false
    });
    let request = request(&registry.reference(), &scratch.dir("images"));
    let both = std::thread::scope(|scope| {
        let pulls = [0, 1].map(|_| scope.spawn(|| pull_here(&request).unwrap()));
        pulls.map(|pull| pull.join().unwrap())
    });
    let heads = registry.asked();
    for layer in &image.layers {
        let brings = |head: &&String| head.starts_with("get ") && head.contains(&layer.digest);
        let asks = heads.iter().filter(brings).count();
        assert_eq!(asks, 1, "{heads:?}");
        let ends = both.iter().map(|(_, heard)| {
            let mut of_layer = heard.iter().rev().filter_map(|progress| match progress {
                Progress::Layer { digest, state, .. } if *digest == layer.digest => Some(*state),
                _ => None,
            });
            of_layer.next().unwrap()
        });
        let ends: Vec<LayerState> = ends.collect();
        assert!(ends.contains(&LayerState::Done) && ends.contains(&LayerState::Exists), "{ends:?}");
    }
    assert_eq!(both[0].0, both[1].0);
}

#[test]
fn interrupted_pull_keeps_only_its_complete_layers() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let seen = image.clone();
    let stage = Arc::new(AtomicU8::new(0));
    let now = Arc::clone(&stage);
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        let hangs = asked.path.ends_with(&seen.layers[1].digest) && now.load(Ordering::SeqCst) == 0;
        if hangs {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", seen.layers[1].bytes.len());
            let _ = std::io::Write::write_all(stream, head.as_bytes());
            let _ = std::io::Write::write_all(stream, &seen.layers[1].bytes[..150_000]);
            pause(Duration::from_secs(120));
        }
        hangs
    });
    let store = scratch.dir("images");
    let asked = PullRequest { stall_timeout_ms: 30_000, ..request(&registry.reference(), &store) };
    // Until the first layer is there and some of the second has come.
    let (said, heard) = tokio::sync::watch::channel(false);
    let mut first_done = false;
    let progress = |news: Progress| {
        if let Progress::Layer { digest, done, state, .. } = news {
            first_done |= digest == image.layers[0].digest && state == LayerState::Done;
            if first_done && digest == image.layers[1].digest && done > 0 {
                said.send_replace(true);
            }
        }
    };
    let stop = async {
        let mut heard = heard.clone();
        let _ = heard.wait_for(|stop| *stop).await;
    };
    let given_up = rt::run(pull_until(&agent(), &asked, progress, stop)).unwrap();
    assert!(matches!(given_up, Err(PullError::Interrupted)), "{given_up:?}");
    let opened = ImageStore::open(&store).unwrap();
    assert!(opened.list().unwrap().is_empty(), "no image got a name");
    assert_eq!(std::fs::read_dir(store.join("tmp")).unwrap().count(), 0);
    stage.store(1, Ordering::SeqCst);
    let _ = registry.asked();
    pull_here(&asked).unwrap();
    let heads = registry.asked();
    let brings = |head: &String| head.starts_with("get ") && head.contains(&image.layers[0].digest);
    assert!(!heads.iter().any(brings), "{heads:?}");
}

#[test]
fn an_unchanged_tag_is_asked_for_by_head_alone() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let stage = Arc::new(AtomicU8::new(0));
    let now = Arc::clone(&stage);
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        if !asked.head.starts_with("head ") {
            return false;
        }
        match now.load(Ordering::SeqCst) {
            0 => return false,
            // The tag has moved, so the head says.
            1 => {
                let other = format!("Docker-Content-Digest: sha256:{}", "0".repeat(64));
                answer_head(stream, "200 OK", &[&other], 9);
            }
            2 => answer_head(stream, "405 Method Not Allowed", &[], 0),
            _ => answer(stream, "401 Unauthorized", &["WWW-Authenticate: Basic realm=\"r\""], b""),
        }
        true
    });
    let store = scratch.dir("images");
    let asked = request(&registry.reference(), &store);
    let first = pull_here(&asked).unwrap().0;
    assert_eq!(methods(&registry)[0], "get /v2/a/b/manifests/v1", "nothing to compare with yet");

    assert_eq!(pull_here(&asked).unwrap().0, first);
    assert_eq!(methods(&registry), ["head /v2/a/b/manifests/v1"]);
    // By digest it cannot have changed, and whether we may have it is asked all the same.
    let by_digest = PullRequest { image: first.repo_digest.clone(), ..asked.clone() };
    assert_eq!(pull_here(&by_digest).unwrap().0.image_id, first.image_id);
    assert_eq!(methods(&registry).len(), 1);
    // For another machine it is another image.
    let other_machine = PullRequest { platform: "linux/arm64".to_owned(), ..asked.clone() };
    let _ = pull_here(&other_machine);
    let is_for_all = |method: &String| method.starts_with("get ") || method.contains("/blobs/");
    assert!(methods(&registry).iter().all(is_for_all));

    for moved in [1, 2] {
        stage.store(moved, Ordering::SeqCst);
        assert_eq!(pull_here(&asked).unwrap().0, first);
        let methods = methods(&registry);
        assert_eq!(methods[..2], ["head /v2/a/b/manifests/v1", "get /v2/a/b/manifests/v1"], "{methods:?}");
        let is_layer = |method: &str| image.layers.iter().any(|layer| method.contains(&layer.digest));
        let brings = methods.iter().any(|method| method.starts_with("get ") && is_layer(method));
        assert_eq!(brings, moved == 2, "where HEAD is not known they come once more: {methods:?}");
    }
    // Whoever lost the right to it does not get it by its being here.
    let closed = FakeRegistry::start(&image, |_, stream| {
        answer(
            stream,
            "403 Forbidden",
            &[],
            b"{\"errors\":[{\"code\":\"DENIED\",\"message\":\"no longer\"}]}",
        );
        true
    });
    ImageStore::open(&store).unwrap().tag(&first.reference, &closed.reference()).unwrap();
    let message = failure_of(&PullRequest { image: closed.reference(), ..asked });
    assert!(message.contains("pull access denied") && message.contains("no longer"), "{message}");
}
