//! Debian's docker-registry on the loopback: open, with a password, with TLS of a self-made authority.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use edge_agent::platform::rt;
use edge_agent::runtime::ImageAuth;
use edge_agent::runtime::embedded::images::ImageStore;
use edge_agent::runtime::embedded::registry::{
    LayerState, Progress, PullError, PullErrorKind, PullRequest, Pulled, pull_in_child,
};
use serde_json::json;

use super::fake::FakeRegistry;
use super::image::{Blob, INDEX, MANIFEST, TestImage, failure, left_in, noise, pull_here, request, tar_of};
use crate::support::agent::binary;
use crate::support::scratch::Scratch;
use crate::support::wait::{pause, wait_for, wait_until};

/// `me` with the password `hush`, as htpasswd -B writes it; docker-registry takes nothing but bcrypt.
pub const HTPASSWD: &str = "me:$2y$05$abcdefghijklmnopqrstuulzd.YqjLDl8lvpSmVj3De/fioSBHnUa\n";

/// A running docker-registry.
pub struct Registry {
    pub port: u16,
    child: Child,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    /// On this directory of content, with these further lines of configuration.
    pub fn start(scratch: &Scratch, name: &str, more: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = scratch.path().join(format!("{name}.yml"));
        let content = scratch.dir("content");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\nhttp:\n  addr: 127.0.0.1:{port}\n{more}",
            content.display()
        );
        std::fs::write(&config, text).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start docker-registry; scripts/setup test installs it");
        let registry = Self { port, child };
        wait_until("docker-registry to listen", Duration::from_secs(20), || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        registry
    }

    /// A name of an image in it.
    pub fn reference(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// A request that it must take.
    pub fn send(&self, method: &str, target: &str, content_type: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 20"), "{method} {target}: {answer}");
        answer
    }

    /// Gives it a blob.
    pub fn push_blob(&self, repository: &str, blob: &Blob) {
        let answer = self.send("POST", &format!("/v2/{repository}/blobs/uploads/"), "text/plain", b"");
        let location = answer.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().trim();
        let base = format!("http://127.0.0.1:{}", self.port);
        let path = location.strip_prefix(&base).unwrap_or(location);
        self.send("PUT", &format!("{path}&digest={}", blob.digest), "application/octet-stream", &blob.bytes);
    }

    /// Gives it an image.
    pub fn push(&self, repository: &str, tag: &str, image: &TestImage) {
        for blob in image.blobs() {
            self.push_blob(repository, blob);
        }
        self.send("PUT", &format!("/v2/{repository}/manifests/{tag}"), MANIFEST, &image.manifest.bytes);
    }
}

fn ids(store: &Path) -> Vec<(String, Vec<String>, Vec<String>)> {
    let images = ImageStore::open(store).unwrap().list().unwrap();
    images.into_iter().map(|image| (image.id, image.repo_tags, image.repo_digests)).collect()
}

#[test]
fn an_index_is_pulled_by_tag_and_by_digest() {
    let scratch = Scratch::new();
    let registry = Registry::start(&scratch, "open", "");
    let here = TestImage::of(&[tar_of("hello", b"amd64"), tar_of("noise", &noise(200_000, 3))], "amd64");
    let other = TestImage::of(&[tar_of("hello", b"arm64")], "arm64");
    registry.push("a/b", "amd", &here);
    registry.push("a/b", "arm", &other);
    let index = TestImage::index(&[
        (&other, json!({"os": "linux", "architecture": "arm64"})),
        (&here, json!({"os": "linux", "architecture": "amd64"})),
    ]);
    registry.send("PUT", "/v2/a/b/manifests/v1", INDEX, &index.bytes);

    let store = scratch.dir("images");
    let tagged = registry.reference("a/b:v1");
    let (pulled, heard) = pull_here(&request(&tagged, &store)).unwrap();
    let repo_digest = registry.reference(&format!("a/b@{}", index.digest));
    let expected = Pulled {
        image_id: here.config.digest.clone(),
        reference: tagged.clone(),
        repo_digest: repo_digest.clone(),
    };
    assert_eq!(pulled, expected);
    assert_eq!(ids(&store), [(here.config.digest.clone(), vec![tagged.clone()], vec![repo_digest.clone()])]);
    let resolved = Progress::Resolved { reference: tagged, digest: index.digest.clone() };
    assert_eq!(heard.first(), Some(&resolved));
    for layer in &here.layers {
        let end = heard.iter().rev().find_map(|progress| match progress {
            Progress::Layer { digest, done, total, state } if *digest == layer.digest => {
                Some((*done, *total, *state))
            }
            _ => None,
        });
        let size = layer.bytes.len() as u64;
        assert_eq!(end, Some((size, size, LayerState::Done)));
    }
    let image = ImageStore::open(&store).unwrap().resolve(&repo_digest).unwrap().unwrap();
    assert_eq!(std::fs::read(image.layers.last().unwrap().join("hello")).unwrap(), b"amd64");

    // By digest into another store, which then has no tag of it.
    let by_digest = scratch.dir("by-digest");
    pull_here(&request(&repo_digest, &by_digest)).unwrap();
    let by_digest_alone = [(here.config.digest.clone(), vec![], vec![repo_digest])];
    assert_eq!(ids(&by_digest), by_digest_alone);

    // A tag beside the digest, even one that names another image there, is neither made nor moved.
    let both = registry.reference(&format!("a/b:amd@{}", index.digest));
    let beside = scratch.dir("beside");
    let (pulled, _) = pull_here(&request(&both, &beside)).unwrap();
    assert_eq!((pulled.image_id, pulled.reference), (here.config.digest.clone(), both.clone()));
    assert_eq!(ids(&beside), by_digest_alone);
    pull_here(&request(&registry.reference("a/b:amd"), &beside)).unwrap();
    let tagged = ids(&beside);
    pull_here(&request(&both, &beside)).unwrap();
    let other_tag = registry.reference(&format!("a/b:gone@{}", index.digest));
    pull_here(&request(&other_tag, &beside)).unwrap();
    assert_eq!(ids(&beside), tagged);
    // A store that is opened again, as after a restart, has it by the whole reference.
    let store = ImageStore::open(&beside).unwrap();
    for reference in [&both, &other_tag] {
        assert_eq!(store.resolve(reference).unwrap().unwrap().id, here.config.digest);
    }
    assert_eq!(store.resolve(&registry.reference("a/b:gone")).unwrap(), None);

    let missing = scratch.dir("missing");
    let message = failure(&request(&registry.reference("a/b:nope"), &missing));
    let reference = registry.reference("a/b:nope");
    assert_eq!(message, format!("failed to resolve reference {reference:?}: {reference}: not found"));
}

#[test]
fn a_password_opens_a_closed_registry() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    Registry::start(&scratch, "open", "").push("private/app", "v1", &image);
    let passwords = scratch.path().join("htpasswd");
    std::fs::write(&passwords, HTPASSWD).unwrap();
    let closed = format!("auth:\n  htpasswd: {{realm: edge, path: {}}}\n", passwords.display());
    let registry = Registry::start(&scratch, "closed", &closed);
    let store = scratch.dir("images");
    let asked = request(&registry.reference("private/app:v1"), &store);
    let message = failure(&asked);
    assert!(message.ends_with("authorization failed: no basic auth credentials"), "{message}");
    let with = |password: &str| PullRequest {
        auth: Some(ImageAuth::of_user("me".into(), password.into())),
        ..asked.clone()
    };
    let message = failure(&with("guessed"));
    assert!(message.contains("pull access denied") && !message.contains("guessed"), "{message}");
    assert_eq!(pull_here(&with("hush")).unwrap().0.image_id, image.config.digest);
}

/// Runs openssl with these arguments.
pub fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn tls_trusts_the_authority_that_hosts_toml_names() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    Registry::start(&scratch, "open", "").push("a/b", "v1", &image);
    let keys = scratch.dir("keys");
    std::fs::write(
        keys.join("ext"),
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    for line in [
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=edge -days 2",
        "req -newkey rsa:2048 -nodes -keyout s.key -out s.csr -subj /CN=localhost",
        "x509 -req -in s.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out s.pem -days 2 -extfile ext",
    ] {
        openssl(&keys, line);
    }
    let tls = format!("  tls: {{certificate: {0}/s.pem, key: {0}/s.key}}\n", keys.display());
    let registry = Registry::start(&scratch, "tls", &tls);
    let store = scratch.dir("images");
    let certs = scratch.dir("certs.d");
    let host = certs.join(format!("127.0.0.1:{}", registry.port));
    std::fs::create_dir_all(&host).unwrap();
    let asked = PullRequest { hosts_dirs: vec![certs], ..request(&registry.reference("a/b:v1"), &store) };
    let configure = |text: &str| {
        let text = format!("server = \"https://127.0.0.1:{}\"\n{text}", registry.port);
        std::fs::write(host.join("hosts.toml"), text).unwrap();
    };
    configure("");
    let message = failure(&asked);
    assert!(message.contains("x509: certificate signed by unknown authority"), "{message}");
    configure("skip_verify = true\n");
    pull_here(&PullRequest { store: scratch.dir("skipped"), ..asked.clone() }).unwrap();
    configure(&format!("ca = \"{}\"\n", keys.join("ca.pem").display()));
    assert_eq!(pull_here(&asked).unwrap().0.image_id, image.config.digest);
}

/// The program.
pub fn agent() -> PathBuf {
    binary()
}

fn in_child(request: &PullRequest, progress: impl FnMut(Progress)) -> Result<Pulled, PullError> {
    rt::run(pull_in_child(&agent(), request, progress)).unwrap()
}

#[test]
fn the_child_pulls_and_says_what_happens() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = FakeRegistry::start(&image, |_, _| false);
    let store = scratch.dir("images");
    let mut heard = Vec::new();
    let pulled = in_child(&request(&registry.reference(), &store), |progress| heard.push(progress)).unwrap();
    assert_eq!(pulled.image_id, image.config.digest);
    assert!(matches!(heard.last(), Some(Progress::Done { .. })), "{heard:?}");
    let error =
        in_child(&request(&format!("127.0.0.1:{}/no/such:v1", registry.port), &store), |_| ()).unwrap_err();
    assert_eq!(error.kind(), PullErrorKind::NotFound, "{error}");
    let died =
        rt::run(pull_in_child(Path::new("/bin/false"), &request("a", &store), |_| ())).unwrap().unwrap_err();
    assert!(died.to_string().contains("exit status: 1"), "{died}");
}

#[test]
fn stalled_pull_is_aborted_and_its_child_process_ends() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = FakeRegistry::start(&image, |asked, _| {
        if asked.path.contains("/blobs/") {
            pause(Duration::from_secs(20));
        }
        false
    });
    let store = scratch.dir("images");
    let asked = PullRequest {
        progress_deadline_ms: 1000,
        stall_timeout_ms: 15_000,
        ..request(&registry.reference(), &store)
    };
    let error = in_child(&asked, |_| ()).unwrap_err();
    assert_eq!(error.to_string(), "no data received for 1 s");
    let own = std::process::id();
    wait_for("the child to be gone", Duration::from_secs(5), || {
        let threads = std::fs::read_dir(format!("/proc/{own}/task")).unwrap().flatten();
        let of_thread = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children"));
        let children = threads.filter_map(|thread| of_thread(thread).ok()).collect::<Vec<_>>().join(" ");
        if children.trim().is_empty() { Ok(()) } else { Err(children) }
    });
    assert_eq!(left_in(&store), Vec::<PathBuf>::new());
}

/// The promise about memory, as far as a test is long: a third of it is noise that no compression makes smaller.
#[test]
fn a_big_image_is_pulled_within_a_few_megabytes() {
    let scratch = Scratch::new();
    let megabytes: usize =
        std::env::var("AGENT_PULL_MEGABYTES").ok().and_then(|text| text.parse().ok()).unwrap_or(48);
    let each = megabytes * 1_000_000 / 3;
    let archives: Vec<Vec<u8>> = (0..3).map(|seed| tar_of("noise", &noise(each, seed))).collect();
    let image = TestImage::of(&archives, "amd64");
    drop(archives);
    let registry = FakeRegistry::start(&image, |_, _| false);
    let store = scratch.dir("images");
    let own = std::process::id();
    let mut peak = 0_u64;
    let began = std::time::Instant::now();
    in_child(&request(&registry.reference(), &store), |_| {
        let threads = std::fs::read_dir(format!("/proc/{own}/task")).unwrap().flatten();
        let of_thread = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children"));
        let children = threads.filter_map(|thread| of_thread(thread).ok()).collect::<Vec<_>>().join(" ");
        for pid in children.split_whitespace() {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                line.split_whitespace().next()?.parse::<u64>().ok()
            };
            peak = peak.max(field("RssAnon:").unwrap_or(0));
        }
    })
    .unwrap();
    let took = began.elapsed();
    println!("{megabytes} MB in {took:?}: anonymous memory of the child at most {peak} kB");
    assert!(peak > 0 && peak < 8_000, "{peak} kB");
}
