//! A containerd of one test's own: own root, state, socket, images and bridge network. It and all it started is gone when
//! the value is dropped.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::image;
use super::scratch::Scratch;
use super::wait::wait_for;

/// Longest a daemon may take to answer, on a machine that is busy compiling.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Distinguishes the processes that tests start in containers.
static NEXT_EXEC: AtomicU32 = AtomicU32::new(0);

/// A running containerd.
pub struct Containerd {
    // Before the directory: the daemon is reaped first.
    daemon: RefCell<Option<Child>>,
    /// Labels never change; asking for them costs a process each.
    labels: RefCell<BTreeMap<String, BTreeMap<String, String>>>,
    scratch: Scratch,
}

/// One record of the runtime: a pod's sandbox or a container in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    /// Label `io.kubernetes.pod.name`.
    pub pod: String,
    /// Label `io.kubernetes.container.name`; empty for a sandbox.
    pub container: String,
    /// The runtime's id.
    pub id: String,
    /// Its first process, while one runs.
    pub pid: Option<u32>,
    /// Label `io.kubernetes.pod.uid`.
    pub uid: String,
}

impl Instance {
    /// True for the record that holds a pod's namespaces.
    pub fn is_sandbox(&self) -> bool {
        self.container.is_empty()
    }
}

impl Containerd {
    /// Starts one with the test images in it and pods on a bridge of its own.
    pub fn start() -> Self {
        let scratch = Scratch::new();
        write_config(&scratch);
        write_network(&scratch);
        let containerd = Self { daemon: RefCell::new(None), labels: RefCell::new(BTreeMap::new()), scratch };
        containerd.start_daemon();
        for archive in image::archives() {
            containerd.ctr(&["images", "import", &archive.to_string_lossy()]);
        }
        containerd
    }

    /// Starts the daemon and waits until it answers.
    pub fn start_daemon(&self) {
        let log =
            File::options().create(true).append(true).open(self.log_file()).expect("open containerd's log");
        let child = Command::new("containerd")
            .arg("--config")
            .arg(self.scratch.path().join("containerd.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start containerd; scripts/test installs it");
        *self.daemon.borrow_mut() = Some(child);
        wait_for("containerd to answer", START_PATIENCE, || {
            if let Some(status) =
                self.daemon.borrow_mut().as_mut().expect("set above").try_wait().expect("wait")
            {
                return Err(format!("it ended with {status}: {}", self.log_tail()));
            }
            // The CRI plug-in is ready last; it opens for requests when this file of its shows up in the plug-in list.
            let plugins = self.try_ctr(&["plugins", "ls", "id==cri"])?;
            if plugins.contains(" ok") { Ok(()) } else { Err(plugins) }
        });
    }

    /// Ends the daemon; containers stay, as in an upgrade of containerd.
    pub fn end_daemon(&self, signal: Signal) {
        let mut child = self.daemon.borrow_mut().take().expect("the daemon runs");
        kill(pid_of(&child), signal).expect("end containerd");
        child.wait().expect("reap containerd");
    }

    /// The CRI endpoint.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The test's directory, for whatever else the test needs.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Runs `ctr` in the namespace of pods and returns what it prints; fails the test when `ctr` fails.
    pub fn ctr(&self, arguments: &[&str]) -> String {
        self.try_ctr(arguments).unwrap_or_else(|error| panic!("{error}; containerd: {}", self.log_tail()))
    }

    /// As [`Self::ctr`], for commands that may fail.
    pub fn try_ctr(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("ctr")
            .arg("--address")
            .arg(self.socket())
            .args(["--connect-timeout", "5s", "--namespace", "k8s.io"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("start ctr: {error}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("ctr {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
        }
    }

    /// Every sandbox and container, sorted by pod and name; ended ones have no pid.
    pub fn instances(&self) -> Vec<Instance> {
        let tasks = self.ctr(&["tasks", "list"]);
        let pids: BTreeMap<&str, u32> = tasks
            .lines()
            .skip(1)
            .filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
                [id, pid, "RUNNING"] => Some((id, pid.parse().ok()?)),
                _ => None,
            })
            .collect();
        let mut instances: Vec<Instance> = self
            .ctr(&["containers", "list", "--quiet"])
            .lines()
            .filter_map(|id| self.instance(id, pids.get(id).copied()))
            .collect();
        instances.sort();
        instances
    }

    /// The containers of a pod whose process runs, sandboxes left out.
    pub fn running(&self, pod: &str) -> Vec<Instance> {
        let instances = self.instances().into_iter();
        instances
            .filter(|instance| instance.pod == pod && !instance.is_sandbox() && instance.pid.is_some())
            .collect()
    }

    /// Runs a command in a container and returns what it prints.
    pub fn exec(&self, instance: &Instance, command: &[&str]) -> String {
        let name = format!("exec{}", NEXT_EXEC.fetch_add(1, Ordering::Relaxed));
        let mut arguments = vec!["tasks", "exec", "--exec-id", &name, &instance.id];
        arguments.extend(command);
        self.ctr(&arguments)
    }

    /// The end of the daemon's log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_file())
    }

    /// `None` when the record has gone since it was listed.
    fn instance(&self, id: &str, pid: Option<u32>) -> Option<Instance> {
        let labels = self.labels_of(id)?;
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        Some(Instance {
            pod: label("io.kubernetes.pod.name"),
            container: label("io.kubernetes.container.name"),
            id: id.to_owned(),
            pid,
            uid: label("io.kubernetes.pod.uid"),
        })
    }

    fn labels_of(&self, id: &str) -> Option<BTreeMap<String, String>> {
        if let Some(labels) = self.labels.borrow().get(id) {
            return Some(labels.clone());
        }
        let info = self.try_ctr(&["containers", "info", id]).ok()?;
        let info: Value = serde_json::from_str(&info).expect("ctr prints JSON");
        let pairs = info["Labels"].as_object().into_iter().flatten();
        let labels: BTreeMap<String, String> =
            pairs.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect();
        self.labels.borrow_mut().insert(id.to_owned(), labels.clone());
        Some(labels)
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("containerd.sock")
    }

    fn log_file(&self) -> PathBuf {
        self.scratch.path().join("containerd.log")
    }
}

impl Drop for Containerd {
    #[expect(clippy::print_stderr, reason = "the test runner shows it beside the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- containerd\n{}", self.log_tail());
        }
        if let Some(mut child) = self.daemon.borrow_mut().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The last few kilobytes of a log.
pub fn tail(path: &Path) -> String {
    const BYTES: usize = 6000;
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text[text.len().saturating_sub(BYTES)..]).into_owned()
}

/// The id to signal a child by.
pub fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("process ids are positive and small"))
}

/// The same containerd as the demo's.
fn write_config(scratch: &Scratch) {
    let template = include_str!("../../scripts/containerd.toml");
    let config = template.replace("@ROOT@", &scratch.path().to_string_lossy());
    fs::write(scratch.path().join("containerd.toml"), config).expect("write containerd's configuration");
}

/// A bridge with addresses from a file of the test; containerd adds the loopback device itself.
fn write_network(scratch: &Scratch) {
    let network = json!({
        "cniVersion": "0.4.0",
        "name": "test",
        "plugins": [{
            "type": "bridge",
            "bridge": scratch.bridge(),
            "isGateway": true,
            "ipMasq": false,
            // A pod that calls itself through its Service, where br_netfilter is loaded.
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": scratch.path().join("leases"),
                "ranges": [[{ "subnet": format!("{}.0/24", scratch.net()) }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    });
    fs::write(scratch.dir("cni").join("10-test.conflist"), network.to_string())
        .expect("write the pod network");
}
