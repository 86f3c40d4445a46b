//! The agent as its own runtime, with everything of one test's own: state, images, bridge, addresses. What runs is read from
//! the runtime's records and from the kernel, not asked of the agent.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::agent::AgentProcess;
use super::containerd::Instance;
use super::image;
use super::scratch::{Scratch, is_gone};

/// The embedded runtime of one test's agent.
pub struct Embedded {
    /// An agent may have made a table for its bridge.
    configured: Cell<bool>,
    scratch: Scratch,
}

impl Embedded {
    /// Prepares the directories; the agent does the rest.
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let images = scratch.dir("images");
        for archive in image::archives() {
            let name = archive.file_name().expect("archives are files");
            std::os::unix::fs::symlink(&archive, images.join(name)).expect("offer an image");
        }
        let second = scratch.path().join("second");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}.calls\nexec runc \"$@\"\n", second.display());
        fs::write(&second, script).expect("write the handler");
        fs::set_permissions(&second, fs::Permissions::from_mode(0o755)).expect("make the handler a program");
        Self { configured: Cell::new(false), scratch }
    }

    /// What the handler `second`, which is runc, was called with.
    pub fn second_calls(&self) -> String {
        fs::read_to_string(self.scratch.path().join("second.calls")).unwrap_or_default()
    }

    /// Its directory, for whatever else the test needs.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Where records are.
    pub fn state_dir(&self) -> PathBuf {
        self.scratch.path().join("state")
    }

    /// Points an agent at it.
    pub fn configure(&self, agent: &mut AgentProcess) {
        let path = |name: &str| self.scratch.path().join(name).display().to_string();
        agent.argument(format!("--runtime-state-dir={}", self.state_dir().display()));
        agent.argument(format!("--images-dir={}", path("images")));
        agent.argument(format!("--cni-conf-dir={}", path("no-cni")));
        agent.argument(format!("--bridge-name={}", self.scratch.bridge()));
        agent.argument(format!("--runtime-handlers=second={}", path("second")));
        agent.configure(&format!("podCIDR: {}.0/24\n", self.scratch.net()));
        self.configured.set(true);
    }

    /// Every sandbox and container, sorted by pod and name; ended ones have no pid.
    pub fn instances(&self) -> Vec<Instance> {
        let mut instances = Vec::new();
        for directory in below(&self.state_dir().join("sandboxes")) {
            let Some(record) = json(&directory.join("sandbox.json")) else { continue };
            let pod = &record["config"]["pod"];
            let pod = |field: &str| pod[field].as_str().unwrap_or_default().to_owned();
            instances.push(Instance {
                pod: pod("name"),
                container: String::new(),
                id: name_of(&directory),
                pid: alive(&directory.join("monitor.pid")),
                uid: pod("uid"),
            });
            for directory in below(&directory.join("containers")) {
                let Some(record) = json(&directory.join("container.json")) else { continue };
                let label =
                    |key: &str| record["config"]["labels"][key].as_str().unwrap_or_default().to_owned();
                let ended = directory.join("exited").exists();
                instances.push(Instance {
                    pod: label("io.kubernetes.pod.name"),
                    container: label("io.kubernetes.container.name"),
                    id: name_of(&directory),
                    pid: if ended { None } else { alive(&directory.join("started")) },
                    uid: label("io.kubernetes.pod.uid"),
                });
            }
        }
        instances.sort();
        instances
    }

    /// Runs a command in a container's namespaces and root and returns what it prints.
    pub fn exec(instance: &Instance, command: &[&str]) -> String {
        let pid = instance.pid.expect("it runs").to_string();
        let output = Command::new("nsenter")
            .args(["--target", &pid, "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd", "--"])
            .args(command)
            .stdin(Stdio::null())
            .output()
            .expect("start nsenter");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?} in {instance:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // The bridge goes with the scratch directory; the table of the same name has nobody else.
        if self.configured.get() {
            for family in ["ip", "ip6"] {
                let table = ["delete", "table", family, &self.scratch.bridge()];
                let _ = Command::new("nft").args(table).stderr(Stdio::null()).status();
            }
        }
    }
}

/// Directories in a directory.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn name_of(directory: &Path) -> String {
    directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn json(file: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// The process a file names first, unless it is gone.
fn alive(file: &Path) -> Option<u32> {
    let text = fs::read_to_string(file).ok()?;
    let pid: u32 = text.split_whitespace().next()?.parse().ok()?;
    (!is_gone(i32::try_from(pid).ok()?)).then_some(pid)
}
