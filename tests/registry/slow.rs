//! Registries that are slow or fall silent on purpose, and connections that break: a pull ends, and goes on where it can.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use edge_agent::runtime::embedded::registry::PullRequest;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

use super::fake::{Asked, FakeRegistry};
use super::image::{TestImage, failure, pull_here, request};
use crate::support::scratch::Scratch;
use crate::support::wait::pause;

/// Far above what the pulls below need, far below what they would need without a least rate.
const SOON: Duration = Duration::from_secs(20);

fn is_last_layer(asked: &Asked, image: &TestImage) -> bool {
    asked.path.contains(&image.layers[1].digest)
}

/// Promises so many bytes and sends one every 50 ms, until the other side hangs up.
fn drip(stream: &mut TcpStream, length: usize, bytes: &[u8]) {
    let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes());
    for byte in bytes.iter().cycle() {
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        pause(Duration::from_millis(50));
    }
}

fn impatient(image: &str, store: &std::path::Path) -> PullRequest {
    PullRequest { rate_window_ms: 1000, ..request(image, store) }
}

#[test]
fn a_layer_that_trickles_is_given_up_and_the_message_says_so() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let seen = image.clone();
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        is_last_layer(asked, &seen) && {
            let bytes = &seen.layers[1].bytes;
            drip(stream, bytes.len(), bytes);
            true
        }
    });
    let began = Instant::now();
    let store = scratch.dir("images");
    let error = pull_here(&impatient(&registry.reference(), &store)).unwrap_err();
    let message = edge_agent::platform::logging::chain(&error);
    assert!(
        message.contains("bytes received in 1 s, less than the minimum of 512 bytes per second"),
        "{message}"
    );
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn a_manifest_that_trickles_is_given_up_too() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = FakeRegistry::start(&image, |asked, stream| {
        asked.path.contains("/manifests/") && {
            drip(stream, 1_000_000, b" ");
            true
        }
    });
    let began = Instant::now();
    let message = failure(&impatient(&registry.reference(), &scratch.dir("images")));
    assert!(message.contains("less than the minimum of 512 bytes per second"), "{message}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn server_that_keeps_hanging_up_is_asked_five_times() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let seen = image.clone();
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        is_last_layer(asked, &seen) && {
            let (bytes, from) = (&seen.layers[1].bytes, asked.offset());
            send_part(stream, bytes, from, from + 10);
            true
        }
    });
    let error = pull_here(&request(&registry.reference(), &scratch.dir("images"))).unwrap_err();
    let message = edge_agent::platform::logging::chain(&error);
    assert!(message.contains("closed before the answer was complete"), "{message}");
    let asks = registry.asked().iter().filter(|head| head.contains(&image.layers[1].digest)).count();
    assert_eq!(asks, 5);
}

#[test]
fn slow_mirror_is_replaced_by_the_registry_in_mid_layer() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let seen = image.clone();
    let mirror = FakeRegistry::start(&image, move |asked, stream| {
        is_last_layer(asked, &seen) && {
            let bytes = &seen.layers[1].bytes;
            drip(stream, bytes.len(), bytes);
            true
        }
    });
    let registry = FakeRegistry::start(&image, |_, _| false);
    let hosts = scratch.dir("certs.d").join("registry.example");
    std::fs::create_dir_all(&hosts).unwrap();
    let text = format!(
        "server = \"http://127.0.0.1:{}\"\n[host.\"http://127.0.0.1:{}\"]\n",
        registry.port, mirror.port
    );
    std::fs::write(hosts.join("hosts.toml"), text).unwrap();
    let request = PullRequest {
        hosts_dirs: vec![scratch.dir("certs.d")],
        ..impatient("registry.example/a/b:v1", &scratch.dir("images"))
    };
    assert_eq!(pull_here(&request).unwrap().0.image_id, image.config.digest);
    let heads = registry.asked();
    assert_eq!(heads.len(), 1, "{heads:?}");
    assert!(heads[0].contains("\nrange: bytes="), "what the mirror sent is not asked for again: {heads:?}");
}

#[test]
fn a_connection_that_is_reset_goes_on_where_it_was() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let seen = image.clone();
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        if !is_last_layer(asked, &seen) || asked.offset() > 0 {
            return false;
        }
        send_part(stream, &seen.layers[1].bytes, 0, 100_000);
        // Everything has arrived before the connection is torn down.
        let _ = stream.set_read_timeout(Some(Duration::from_millis(300)));
        let _ = stream.read(&mut [0]);
        let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&*stream, sockopt::Linger, &at_once).unwrap();
        true
    });
    pull_here(&request(&registry.reference(), &scratch.dir("images"))).unwrap();
    let heads = registry.asked();
    let resumed = heads.iter().filter(|head| head.contains("range: bytes=100000-")).count();
    assert_eq!(resumed, 1, "{heads:?}");
}

/// Promises all from `from` on, and sends it up to `to`.
fn send_part(stream: &mut TcpStream, bytes: &[u8], from: usize, to: usize) {
    let status = if from == 0 { "200 OK" } else { "206 Partial Content" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{}\r\n\r\n",
        bytes.len() - from,
        bytes.len() - 1,
        bytes.len()
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&bytes[from..to.min(bytes.len())]);
}
