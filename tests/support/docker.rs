//! A Docker Engine of one test's own: Debian's, with its own root, socket, images and containerd. It and all it started is gone
//! when the value is dropped.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use super::agent::AgentProcess;
use super::containerd::{Instance, pid_of, tail};
use super::image;
use super::scratch::Scratch;
use super::wait::wait_for;

/// Longest a daemon may take to answer, on a machine that is busy compiling.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A running engine.
pub struct Docker {
    // Before the directory: the daemon is reaped first.
    daemon: RefCell<Option<Child>>,
    scratch: Scratch,
}

impl Docker {
    /// Starts one with the test images in it. Its containers outlive it, as `live-restore` says.
    pub fn start() -> Self {
        let scratch = Scratch::new();
        let second = scratch.path().join("second");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}.calls\nexec runc \"$@\"\n", second.display());
        fs::write(&second, script).expect("write the second runtime");
        fs::set_permissions(&second, fs::Permissions::from_mode(0o755)).expect("make it a program");
        // Not the machine's settings.
        fs::write(scratch.path().join("daemon.json"), "{}").expect("write the engine's settings");
        let docker = Self { daemon: RefCell::new(None), scratch };
        docker.start_daemon();
        for archive in image::archives() {
            let bytes = fs::read(archive).expect("read an image");
            let (status, said) = docker.call("POST", "/images/load", &bytes).expect("load an image");
            assert!(status == 200 && !said.contains("\"error\""), "load an image: {status} {said}");
        }
        docker
    }

    /// Starts the daemon and waits until it answers.
    pub fn start_daemon(&self) {
        let log = File::options().create(true).append(true).open(self.log_file()).expect("open docker's log");
        let path = |name: &str| self.scratch.path().join(name).display().to_string();
        let child = Command::new(dockerd())
            .args([
                "--data-root",
                &path("docker"),
                "--exec-root",
                &path("exec"),
                "--pidfile",
                &path("docker.pid"),
            ])
            .args(["--host", &self.endpoint(), "--group", "root", "--config-file", &path("daemon.json")])
            .args([
                "--iptables=false",
                "--ip6tables=false",
                "--bridge=none",
                "--userland-proxy=false",
                "--live-restore",
            ])
            .args(["--add-runtime", &format!("second={}", path("second"))])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start dockerd; scripts/setup test unpacks it");
        *self.daemon.borrow_mut() = Some(child);
        wait_for("Docker to answer", START_PATIENCE, || {
            if let Some(status) =
                self.daemon.borrow_mut().as_mut().expect("set above").try_wait().expect("wait")
            {
                return Err(format!("it ended with {status}: {}", self.log_tail()));
            }
            self.call("GET", "/_ping", &[]).map(drop)
        });
    }

    /// Ends the daemon; containers stay, as in an upgrade of Docker.
    pub fn end_daemon(&self, signal: Signal) {
        let mut child = self.daemon.borrow_mut().take().expect("the daemon runs");
        kill(pid_of(&child), signal).expect("end dockerd");
        child.wait().expect("reap dockerd");
    }

    /// For `--container-runtime-endpoint`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The test's directory, for whatever else the test needs.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// What the handler `second`, which is runc, was called with.
    pub fn second_calls(&self) -> String {
        fs::read_to_string(self.scratch.path().join("second.calls")).unwrap_or_default()
    }

    /// Points an agent at it, with a pod network of the test's own.
    pub fn configure(&self, agent: &mut AgentProcess) {
        let path = |name: &str| self.scratch.path().join(name).display().to_string();
        agent.argument(format!("--runtime-state-dir={}", path("state")));
        agent.argument(format!("--cni-conf-dir={}", path("no-cni")));
        agent.argument(format!("--bridge-name={}", self.scratch.bridge()));
        agent.configure(&format!("podCIDR: {}.0/24\n", self.scratch.net()));
    }

    /// Every sandbox and container, sorted by pod and name; ended ones have no pid.
    pub fn instances(&self) -> Vec<Instance> {
        let listed = self.get("/containers/json?all=1");
        let mut instances: Vec<Instance> =
            listed.as_array().expect("a list").iter().filter_map(|item| self.instance(item)).collect();
        instances.sort();
        instances
    }

    /// The end of the daemon's log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_file())
    }

    /// What the engine says of something that exists.
    pub fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, &[]).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("Docker answers JSON")
    }

    /// One request, with its status and its answer. HTTP/1.0: the answer ends with the connection.
    pub fn call(&self, method: &str, path: &str, body: &[u8]) -> Result<(u16, String), String> {
        let exchange = || {
            let mut stream = UnixStream::connect(self.socket())?;
            let head = format!(
                "{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/x-tar\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes())?;
            stream.write_all(body)?;
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                // An engine that has not read an archive's padding resets the connection after its answer.
                Err(error) if error.kind() != ErrorKind::ConnectionReset || answer.is_empty() => Err(error),
                _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
            }
        };
        let answer = exchange().map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
        Ok((status, body.to_owned()))
    }

    /// `None` for what is not of a pod, or has gone since it was listed.
    fn instance(&self, item: &Value) -> Option<Instance> {
        let id = item["Id"].as_str()?.to_owned();
        let label = |key: &str| item["Labels"][key].as_str().unwrap_or_default().to_owned();
        let (status, found) = self.call("GET", &format!("/containers/{id}/json"), &[]).ok()?;
        let found: Value = serde_json::from_str(&found).ok().filter(|_| status == 200)?;
        let pid =
            found["State"]["Pid"].as_u64().filter(|pid| *pid > 0).and_then(|pid| u32::try_from(pid).ok());
        Some(Instance {
            pod: label("io.kubernetes.pod.name"),
            container: label("io.kubernetes.container.name"),
            pid,
            uid: label("io.kubernetes.pod.uid"),
            id,
        })
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("docker.sock")
    }

    fn log_file(&self) -> PathBuf {
        self.scratch.path().join("dockerd.log")
    }
}

impl Drop for Docker {
    #[expect(clippy::print_stderr, reason = "the test runner shows it beside the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- dockerd\n{}", self.log_tail());
        }
        for family in ["ip", "ip6"] {
            let table = ["delete", "table", family, &self.scratch.bridge()];
            let _ = Command::new("nft").args(table).stderr(Stdio::null()).status();
        }
        if let Some(mut child) = self.daemon.borrow_mut().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `DOCKERD`, the one that `scripts/setup test` has unpacked, or an installed one.
fn dockerd() -> PathBuf {
    if let Some(chosen) = std::env::var_os("DOCKERD") {
        return PathBuf::from(chosen);
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target directory");
    let unpacked = target.join("test-tools/usr/sbin/dockerd");
    if unpacked.exists() { unpacked } else { PathBuf::from("dockerd") }
}
