//! The agent as its own runtime, where that differs from any other runtime: what happens when one of its processes dies at a
//! bad moment, when the machine starts anew, and that nothing stays behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::agent::{AgentProcess, PATIENCE, binary};
use crate::support::containerd::Instance;
use crate::support::embedded::Embedded;
use crate::support::image::BUSYBOX;
use crate::support::scratch::is_gone;
use crate::support::wait::{pause, stays, wait_for};

mod changes;
mod deaths;
mod faults;
mod rounds;

/// An agent without any other runtime.
struct Node {
    // Before the directories: the agent is gone first.
    agent: AgentProcess,
    runtime: Embedded,
}

impl Node {
    fn new() -> Self {
        Self::of(&binary())
    }

    fn of(program: &Path) -> Self {
        let runtime = Embedded::new();
        let mut agent = AgentProcess::new(runtime.scratch().path(), "embedded").with_program(program);
        runtime.configure(&mut agent);
        Self { agent, runtime }
    }

    fn apply(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().expect("pods of tests have names");
        self.agent.write_manifest(&format!("{name}.yaml"), &pod.to_string());
    }

    /// The containers whose process runs.
    fn running(&self) -> Vec<Instance> {
        let all = self.runtime.instances().into_iter();
        all.filter(|instance| !instance.is_sandbox() && instance.pid.is_some()).collect()
    }

    /// Waits until exactly one container runs that is not the one with this id.
    fn one_running_other_than(&self, id: &str) -> Instance {
        wait_for("one container to run", PATIENCE, || match &self.running()[..] {
            [only] if only.id != id => Ok(only.clone()),
            other => Err(format!("{other:?}; agent: {}", self.agent.log_tail())),
        })
    }

    /// The sandbox whose monitor runs.
    fn sandbox(&self) -> Instance {
        let all = self.runtime.instances();
        let mut live = all.iter().filter(|instance| instance.is_sandbox() && instance.pid.is_some());
        live.next().unwrap_or_else(|| panic!("no monitor runs: {all:?}")).clone()
    }

    /// Waits until neither record nor process, mount, cgroup, link or writable layer is left.
    fn nothing_is_left(&self) {
        wait_for("everything to be gone", PATIENCE, || {
            let left = self.left();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}; agent: {}", self.agent.log_tail())) }
        });
    }

    fn left(&self) -> Vec<String> {
        let state = self.runtime.state_dir();
        let shown = |path: PathBuf| path.display().to_string();
        let mut left: Vec<String> = [state.join("sandboxes"), state.join("network"), self.layers()]
            .iter()
            .flat_map(|directory| entries(directory))
            .map(shown)
            .collect();
        left.extend(mounts_below(&state).into_iter().map(shown));
        left.extend(monitors_of(&state).iter().map(|pid| format!("process {pid}")));
        let root = self.runtime.scratch().path().file_name().expect("scratch directories have names");
        let mut hierarchies = entries(Path::new("/sys/fs/cgroup"));
        hierarchies.push(PathBuf::from("/sys/fs/cgroup"));
        for hierarchy in hierarchies {
            pod_cgroups(&hierarchy.join(root), &mut left);
        }
        let bridge = self.runtime.scratch().bridge();
        left.extend(entries(&Path::new("/sys/class/net").join(bridge).join("brif")).into_iter().map(shown));
        left
    }

    fn layers(&self) -> PathBuf {
        self.agent.root_dir().join("runtime/containers")
    }
}

/// A pod that runs until it is told to stop, from an image that is never pulled.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.1; done"],
            }],
        },
    })
}

/// What is in a directory, but for files the runtime keeps there for itself.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    named.map(|entry| entry.path()).collect()
}

fn pod_cgroups(directory: &Path, left: &mut Vec<String>) {
    for path in entries(directory).into_iter().filter(|path| path.is_dir()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("pod") || name.starts_with("monitor") {
            left.push(path.display().to_string());
        } else {
            pod_cgroups(&path, left);
        }
    }
}

fn mounts_below(root: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").expect("read mounts");
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(root)).collect()
}

/// Monitors of sandboxes in a state directory.
fn monitors_of(state: &Path) -> Vec<i32> {
    let wanted = state.join("sandboxes").display().to_string();
    let pids = entries(Path::new("/proc")).into_iter().filter_map(|path| {
        let arguments = fs::read_to_string(path.join("cmdline")).ok()?;
        let mut arguments = arguments.split('\0').skip(1);
        let is_monitor = arguments.next() == Some("monitor") && arguments.next()?.starts_with(&wanted);
        is_monitor.then(|| path.file_name()?.to_str()?.parse().ok()).flatten()
    });
    pids.collect()
}

fn kill9(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("process ids are small"));
    kill(pid, Signal::SIGKILL).expect("kill a process");
}
