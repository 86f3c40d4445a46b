//! `agent image pull` as somebody types it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::docker::{HTPASSWD, Registry, agent};
use super::fake::FakeRegistry;
use super::image::TestImage;
use crate::support::scratch::Scratch;
use crate::support::wait::{pause, wait_until};

fn command(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(agent());
    command.args(["image", "pull", "--root-dir"]).arg(root).args(arguments);
    // Nothing of whoever runs the tests: neither passwords nor proxies.
    command.env("HOME", root).env_remove("HTTP_PROXY").env_remove("http_proxy").stdin(Stdio::null());
    command
}

/// Exit code, standard output, standard error.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn run(root: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    said(&command(root, arguments).output().unwrap())
}

#[test]
fn images_are_pulled_and_what_came_of_each_is_said() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = Registry::start(&scratch, "open", "");
    registry.push("a/b", "v1", &image);
    let root = scratch.dir("root");
    let (good, bad) = (registry.reference("a/b:v1"), registry.reference("a/b:none"));
    let for_amd64 = ["--platform", "linux/amd64"];

    let (code, out, err) = run(&root, &[&bad, &good, for_amd64[0], for_amd64[1]]);
    assert_eq!(code, Some(1), "{out}{err}");
    assert_eq!(err, format!("error: failed to resolve reference {bad:?}: {bad}: not found\n"));
    let first = format!("{good} is {}", image.manifest.digest);
    let last = format!("Pulled {good}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((lines.first(), lines.last()), (Some(&first.as_str()), Some(&last.as_str())), "{out}");
    for layer in &image.layers {
        assert!(out.contains(&format!("{}: complete (", &layer.digest[7..19])), "{out}");
    }

    let (code, out, _) = run(&root, &[&good, "-q", for_amd64[0], for_amd64[1]]);
    assert_eq!((code, out), (Some(0), format!("{}\n", image.config.digest)));
    let (code, out, _) = run(&root, &[&good, "-o", "json", for_amd64[0], for_amd64[1]]);
    let found: Value = serde_json::from_str(&out).unwrap();
    let repo_digest = registry.reference(&format!("a/b@{}", image.manifest.digest));
    let expected = json!({"images": [{"image": good, "id": image.config.digest, "repoDigest": repo_digest}]});
    assert_eq!((code, found), (Some(0), expected));

    for wrong in
        [&["--platform", "arm", "x"][..], &["--creds"], &[], &["--creds", "a:b", "--creds-file", "f", "x"]]
    {
        let (code, _, err) = run(&root, wrong);
        assert_eq!(code, Some(2), "{wrong:?}: {err}");
        assert!(err.contains("agent image"), "{err}");
    }
    let (code, _, err) = run(&root, &["a//b"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("couldn't parse image reference"), "{err}");
}

/// The agent's own images are at their usual place, which is the test's own here.
#[test]
fn images_of_a_control_plane_come_from_a_registry() {
    let scratch = Scratch::new();
    let registry = Registry::start(&scratch, "open", "");
    let agent_says = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs images /var/lib && \"$0\" \"$@\" && \"$0\" image ls",
        ]);
        command.arg(agent()).args(["config", "images"]).args(words).env("HOME", scratch.path());
        said(&command.stdin(Stdio::null()).output().unwrap())
    };
    let of = ["--image-repository", &registry.reference("k8s"), "--kubernetes-version", "v1.36.2"];
    let (code, list, err) = agent_says(&[&["list"], &of[..]].concat());
    assert_eq!(code, Some(0), "{err}");
    let images: Vec<&str> = list.lines().filter(|line| line.starts_with("127.0.0.1")).collect();
    assert_eq!(images.len(), 7, "{list}");
    let image = TestImage::small();
    for name in &images[1..] {
        let (repository, tag) = name.split_once('/').unwrap().1.rsplit_once(':').unwrap();
        registry.push(repository, tag, &image);
    }
    let (code, _, err) = agent_says(&[&["pull"], &of[..]].concat());
    assert_eq!(code, Some(1));
    assert!(err.contains(&format!("failed to pull image {:?}", images[0])), "{err}");
    let (repository, tag) = images[0].split_once('/').unwrap().1.rsplit_once(':').unwrap();
    registry.push(repository, tag, &image);
    let (code, out, err) = agent_says(&[&["pull"], &of[..]].concat());
    assert_eq!(code, Some(0), "{err}");
    for name in &images {
        let repository = name.rsplit_once(':').unwrap().0;
        assert!(out.contains(&format!("[config/images] Pulled {name}\n")), "{out}");
        assert!(out.lines().any(|line| line.starts_with(&format!("{repository} "))), "not listed: {out}");
    }
}

#[test]
fn credentials_come_from_flags_file_stdin_or_node_config() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    Registry::start(&scratch, "open", "").push("private/app", "v1", &image);
    let passwords = scratch.path().join("htpasswd");
    std::fs::write(&passwords, HTPASSWD).unwrap();
    let closed = format!("auth:\n  htpasswd: {{realm: edge, path: {}}}\n", passwords.display());
    let registry = Registry::start(&scratch, "closed", &closed);
    let name = registry.reference("private/app:v1");
    let base = [name.as_str(), "-q", "--platform", "linux/amd64"];
    let with = |more: &[&str], store: &str| run(&scratch.dir(store), &[&base, more].concat());

    let (code, _, err) = with(&[], "none");
    assert_eq!(code, Some(1));
    assert!(err.contains("no basic auth credentials"), "{err}");
    let (code, out, err) = with(&["--creds", "me:guessed"], "none");
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("pull access denied") && !err.contains("guessed"), "{err}");

    assert_eq!(with(&["--creds", "me:hush"], "given").0, Some(0));
    let file = scratch.path().join("creds");
    std::fs::write(&file, "me:hush\n").unwrap();
    assert_eq!(with(&["--creds-file", file.to_str().unwrap()], "file").0, Some(0));

    let mut piped = command(&scratch.dir("piped"), &[&base[..], &["--creds", "me"]].concat());
    let mut child =
        piped.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hush\n").unwrap();
    assert_eq!(
        said(&child.wait_with_output().unwrap()),
        (Some(0), format!("{}\n", image.config.digest), String::new())
    );

    let login = json!({"username": "me", "password": "hush"});
    let config = json!({"auths": {format!("127.0.0.1:{}", registry.port): login}});
    std::fs::write(scratch.dir("node").join("config.json"), config.to_string()).unwrap();
    assert_eq!(with(&[], "node").0, Some(0));
}

#[test]
fn ctrl_c_leaves_only_complete_layers_for_the_next_pull() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let seen = image.clone();
    let mended = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&mended);
    let registry = FakeRegistry::start(&image, move |asked, stream| {
        !now.load(Ordering::SeqCst) && asked.path.ends_with(&seen.layers[1].digest) && {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", seen.layers[1].bytes.len());
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&seen.layers[1].bytes[..100_000]);
            pause(Duration::from_secs(120));
            true
        }
    });
    let root = scratch.dir("root");
    let name = registry.reference();
    let mut child = command(&root, &[&name, "--platform", "linux/amd64"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = &image.layers[0].digest[7..19];
    assert!(lines.any(|line| line.unwrap().starts_with(&format!("{first}: complete"))));
    let images = root.join("runtime/images");
    wait_until("the second layer to be begun", Duration::from_secs(10), || {
        std::fs::read_dir(images.join("tmp")).unwrap().count() == 1
    });
    // Twice, as `timeout` does and people in a hurry do.
    for _ in 0..2 {
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
        pause(Duration::from_millis(5));
    }
    let status = child.wait().unwrap();
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(status.code(), Some(1), "{err}");
    assert_eq!(err, "error: interrupted; complete layers are kept for the next attempt\n");
    assert_eq!(std::fs::read_dir(images.join("tmp")).unwrap().count(), 0);
    let list = Command::new(agent()).args(["image", "ls", "-q", "--root-dir"]).arg(&root).output().unwrap();
    assert!(list.stdout.is_empty(), "no image got a name");

    mended.store(true, Ordering::SeqCst);
    let _ = registry.asked();
    let (code, _, err) = run(&root, &[&name, "--platform", "linux/amd64"]);
    assert_eq!(code, Some(0), "{err}");
    let heads = registry.asked();
    let brings = |head: &String| head.starts_with("get ") && head.contains(&image.layers[0].digest);
    assert!(!heads.iter().any(brings), "{heads:?}");
}

/// A proxy that connects to `port` whatever it is asked for; the heads it gets.
fn proxy(port: u16) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let (said, heads) = mpsc::channel();
    let serve = move || {
        for mut client in listener.incoming().flatten() {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).unwrap_or(0) == 1 {
                head.push(byte[0]);
            }
            if said.send(String::from_utf8_lossy(&head).into_owned()).is_err() {
                return;
            }
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let back = move || {
                drop(std::io::copy(&mut from, &mut to).map(|_| to.shutdown(std::net::Shutdown::Write)));
            };
            std::thread::Builder::new().spawn(back).unwrap();
            let forth = move || drop(std::io::copy(&mut client, &mut server));
            std::thread::Builder::new().spawn(forth).unwrap();
        }
    };
    std::thread::Builder::new().spawn(serve).unwrap();
    (own, heads)
}

#[test]
fn the_proxy_of_the_environment_is_used_for_other_machines() {
    let scratch = Scratch::new();
    let image = TestImage::small();
    let registry = FakeRegistry::start(&image, |_, _| false);
    let (port, heads) = proxy(registry.port);
    let hosts = scratch.dir("certs.d").join("registry.test");
    std::fs::create_dir_all(&hosts).unwrap();
    std::fs::write(hosts.join("hosts.toml"), "server = \"http://registry.test:5000\"\n").unwrap();
    let certs = scratch.dir("certs.d");
    let pull = |store: &str, proxy: &str| {
        let arguments = [
            "registry.test/a/b:v1",
            "--platform",
            "linux/amd64",
            "--registry-hosts-dir",
            certs.to_str().unwrap(),
        ];
        let output = command(&scratch.dir(store), &arguments).env("HTTP_PROXY", proxy).output().unwrap();
        said(&output)
    };
    // "me:hush"
    let (code, _, err) = pull("through", &format!("http://me:hush@127.0.0.1:{port}"));
    assert_eq!(code, Some(0), "{err}");
    let heads: Vec<String> = heads.try_iter().collect();
    assert!(!heads.is_empty());
    for head in &heads {
        assert!(head.starts_with("CONNECT registry.test:5000 HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("Proxy-Authorization: Basic bWU6aHVzaA==\r\n"), "{head}");
    }
    // One that cannot be used is not gone around, and its password is nobody's business.
    let (code, _, err) = pull("bad", "socks5://me:hush@127.0.0.1:1080");
    assert_eq!(code, Some(1));
    assert!(
        err.contains("HTTP_PROXY: unsupported scheme; use http:// or https://") && !err.contains("hush"),
        "{err}"
    );
}
