//! The real program with real containers: what a user of static pods can rely on. Each scenario runs on containerd and on the
//! agent's own runtime, but for those that are about containerd itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::agent::{AgentProcess, PATIENCE};
use crate::support::containerd::Instance;
use crate::support::image::BUSYBOX;
use crate::support::runtime::{TestRuntime, on_both_runtimes, on_every_daemon, on_every_runtime};
use crate::support::wait::wait_for;

mod accounts;
mod anywhere;
mod cgroups;
mod client;
mod commands;
mod csi;
mod devices;
mod disk;
mod fixture;
mod hooks;
mod inside;
mod kubectl;
mod lifecycle;
mod logs;
mod managers;
mod manifests;
mod network;
mod objects;
mod pressure;
mod probes;
mod registries;
mod resources;
mod restarts;
mod runonce;
mod security;
mod services;
mod serving;
mod stats;
mod storm;
mod survival;
mod volumes;
mod whole_storm;
mod workloads;

/// A node: a runtime, an agent, and a directory that containers write into.
struct Node {
    // Before the runtime: the agent is gone first.
    agent: AgentProcess,
    runtime: TestRuntime,
}

impl Node {
    /// Nothing of the agent runs yet.
    fn new() -> Self {
        let runtime = TestRuntime::start();
        let agent = runtime.agent();
        runtime.scratch().dir("out");
        Self { agent, runtime }
    }

    /// With the agent started on these pods.
    fn with_pods(pods: &[&Value]) -> Self {
        let mut node = Self::new();
        for pod in pods {
            node.apply(pod);
        }
        node.agent.start();
        node
    }

    /// Writes a pod's manifest, named after the pod.
    fn apply(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().expect("pods of tests have names");
        self.agent.write_manifest(&format!("{name}.yaml"), &pod.to_string());
    }

    /// Takes a pod's manifest away.
    fn delete(&self, name: &str) {
        self.agent.remove_manifest(&format!("{name}.yaml"));
    }

    /// A file in the directory that containers see as `/out`.
    fn out(&self, file: &str) -> PathBuf {
        self.runtime.scratch().dir("out").join(file)
    }

    /// Waits until a container has written a file that ends in a line end, and returns its text.
    fn written(&self, file: &str) -> String {
        let path = self.out(file);
        wait_for(&format!("{file} to be written"), PATIENCE, || {
            let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
            if text.ends_with('\n') { Ok(text) } else { Err(text) }
        })
    }

    /// Waits until a file that containers write says exactly this.
    fn wait_written(&self, file: &str, text: &str) {
        wait_for(&format!("{file} to say {text:?}"), PATIENCE, || match self.written(file) {
            found if found == text => Ok(()),
            found => Err(format!("{found:?}; agent: {}", self.agent.log_tail())),
        });
    }

    /// Lets containers that are not root write into [`Node::out`].
    fn everybody_may_write(&self) {
        let out = self.runtime.scratch().dir("out");
        fs::set_permissions(out, fs::Permissions::from_mode(0o777)).expect("open the directory");
    }

    /// Waits until exactly one container of the pod runs, and returns it.
    fn running(&self, pod: &str) -> Instance {
        self.running_other_than(pod, "")
    }

    /// Waits until exactly one container of the pod runs and it is not the one with this id.
    fn running_other_than(&self, pod: &str, id: &str) -> Instance {
        wait_for(&format!("one new container of {pod} to run"), PATIENCE, || {
            let running = self.runtime.running(&full_name(pod));
            match &running[..] {
                [only] if only.id != id => Ok(only.clone()),
                _ => Err(format!("{running:?}; agent: {}", self.agent.log_tail())),
            }
        })
    }

    /// Waits until nothing of the pod is left in the runtime, neither sandbox nor container record.
    fn gone(&self, pod: &str) {
        let pod = full_name(pod);
        wait_for(&format!("{pod} to be gone"), PATIENCE, || {
            let left: Vec<Instance> =
                self.runtime.instances().into_iter().filter(|instance| instance.pod == pod).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}; agent: {}", self.agent.log_tail())) }
        });
    }

    /// A container like the `main` of [`Node::pod`].
    fn container(&self, name: &str, command: &str) -> Value {
        let mut container = self.pod("unused", command)["spec"]["containers"][0].take();
        container["name"] = json!(name);
        container
    }

    /// A pod on the node's network whose one container `main` runs a shell command and sees [`Node::out`] as `/out`. It
    /// need not be waited for when it is stopped.
    fn pod(&self, name: &str, command: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name },
            "spec": {
                "hostNetwork": true,
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main",
                    "image": BUSYBOX,
                    "imagePullPolicy": "Never",
                    "command": ["sh", "-c", command],
                    "volumeMounts": [{ "name": "out", "mountPath": "/out" }],
                }],
                "volumes": [{ "name": "out", "hostPath": { "path": self.runtime.scratch().dir("out"), "type": "Directory" } }],
            },
        })
    }
}

use crate::support::agent::pod_name as full_name;
