//! A node of one test: a simulated runtime, an agent, and shorthands for what tests ask of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use edge_agent::model::observed::ContainerStateKind;
use serde_json::{Value, json};

use crate::support::agent::{AgentProcess, PATIENCE, pod_name};
use crate::support::fake_cri::FakeCri;
use crate::support::scratch::Scratch;
use crate::support::wait::{stays, wait_for};

/// The image that is on the node.
pub const IMAGE: &str = "localhost/test:1";
/// How long something that must not happen is watched for.
pub const A_WHILE: Duration = Duration::from_millis(700);

/// A runtime and an agent that has not been started.
pub struct Node {
    // In this order: the agent is gone before the runtime, and both before the directory.
    pub agent: AgentProcess,
    pub cri: FakeCri,
    pub scratch: Scratch,
}

impl Node {
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let cri = FakeCri::start(&scratch.path().join("cri.sock"));
        cri.add_image(IMAGE);
        let agent = AgentProcess::new(scratch.path(), &cri.endpoint());
        // Quick to notice what is only found by asking again, and no word to the host's control groups.
        agent.configure(
            "fileCheckFrequency: 200ms\nhttpCheckFrequency: 100ms\nruntimeRequestTimeout: 2s\n\
             cgroupsPerQOS: false\nenforceNodeAllocatable: []\n",
        );
        Self { agent, cri, scratch }
    }

    /// Has the agent make cgroups after all, below a root of its own.
    pub fn with_cgroups(&self) {
        let file = self.agent.config_file();
        let text = std::fs::read_to_string(&file).expect("read the configuration");
        let kept =
            text.lines().filter(|line| !line.contains("cgroupsPerQOS") && !line.contains("enforceNode"));
        std::fs::write(&file, kept.collect::<Vec<_>>().join("\n")).expect("write the configuration");
    }

    /// Writes a pod's manifest, named after the pod.
    pub fn apply(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().expect("pods of tests have names");
        self.agent.write_manifest(&format!("{name}.yaml"), &pod.to_string());
    }

    /// Starts the agent with a pod `neighbour` and waits until that runs: whatever else happens must not touch it.
    pub fn start_with_neighbour(&mut self) -> Running {
        self.apply(&pod("neighbour"));
        self.agent.start();
        self.running("neighbour")
    }

    /// Waits until the pod has one running container.
    pub fn running(&self, name: &str) -> Running {
        self.running_other_than(name, None)
    }

    /// Waits until the pod has one running container that is not `old`.
    pub fn running_other_than(&self, name: &str, old: Option<&Running>) -> Running {
        wait_for(&format!("a container of {name} to run"), PATIENCE, || {
            let mut all = self.all_running();
            match all.remove(&pod_name(name)).as_deref() {
                Some([one]) if Some(one) != old => Ok(one.clone()),
                other => Err(format!("{other:?} beside {all:?}; agent: {}", self.agent.log_tail())),
            }
        })
    }

    /// Container ids of the running containers by pod.
    pub fn all_running(&self) -> BTreeMap<String, Vec<Running>> {
        let mut found: BTreeMap<String, Vec<Running>> = BTreeMap::new();
        for (id, container) in &self.cri.state().world.containers {
            if container.observed.state == ContainerStateKind::Running {
                let pod = container.observed.pod.name.clone();
                found.entry(pod).or_default().push(Running(id.to_string()));
            }
        }
        found
    }

    /// Waits until nothing of the pod runs and its sandbox is stopped or gone.
    pub fn stopped(&self, name: &str) {
        let name = pod_name(name);
        wait_for(&format!("{name} to be stopped"), PATIENCE, || {
            let state = self.cri.state();
            let ready = state
                .world
                .sandboxes
                .values()
                .any(|sandbox| sandbox.observed.ready && *sandbox.observed.pod.name == *name);
            drop(state);
            if ready || self.all_running().contains_key(&name) { Err(self.agent.log_tail()) } else { Ok(()) }
        });
    }

    /// Fails unless this container of the pod, and no other, runs now and for a while.
    pub fn keeps_running(&self, name: &str, container: &Running) {
        stays(&format!("the container of {name}"), A_WHILE, || {
            let running = self.all_running().remove(&pod_name(name)).unwrap_or_default();
            if running == [container.clone()] { Ok(()) } else { Err(format!("{running:?}")) }
        });
    }

    /// Waits until `agent status` names a problem that contains all these words, and returns its message.
    pub fn problem(&mut self, words: &[&str]) -> String {
        wait_for(&format!("a problem that says {words:?}"), PATIENCE, || {
            self.agent.assert_alive();
            let problems = self.problems()?;
            let found = problems.iter().find(|problem| words.iter().all(|word| problem.contains(word)));
            found.cloned().ok_or_else(|| format!("{problems:#?}"))
        })
    }

    /// `origin: message` of every problem that `agent status` shows now.
    pub fn problems(&self) -> Result<Vec<String>, String> {
        let status = self.agent.status_json()?;
        let sources = status["sources"].as_array().into_iter().flatten();
        let problems = sources.flat_map(|source| source["problems"].as_array().into_iter().flatten());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(problems
            .map(|problem| format!("{}: {}", text(&problem["origin"]), text(&problem["message"])))
            .collect())
    }

    /// Waits until no problem is shown.
    pub fn no_problems(&mut self) {
        wait_for("no problems", PATIENCE, || {
            self.agent.assert_alive();
            let problems = self.problems()?;
            if problems.is_empty() { Ok(()) } else { Err(format!("{problems:#?}")) }
        });
    }

    /// Log lines that contain all these words.
    pub fn log_lines(&self, words: &[&str]) -> Vec<String> {
        let log = self.agent.log();
        log.lines().filter(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned).collect()
    }

    /// Waits until the log has a line with all these words.
    pub fn logged(&self, words: &[&str]) -> String {
        wait_for(&format!("a log line that says {words:?}"), PATIENCE, || {
            self.log_lines(words).pop().ok_or_else(|| self.agent.log_tail())
        })
    }

    /// How often the runtime was asked for this.
    pub fn calls(&self, name: &str) -> usize {
        self.cri.call_names().iter().filter(|call| **call == name).count()
    }

    /// Where a file of the manifest directory is.
    pub fn manifest(&self, file: &str) -> std::path::PathBuf {
        self.agent.manifest_dir().join(file)
    }
}

/// One running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running(pub String);

/// A pod with one container `main` that runs until it is stopped.
pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent" }],
        },
    })
}

/// As [`pod`], with the container's name, which chooses its script in the runtime, and a restart policy.
pub fn job(name: &str, container: &str, policy: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["restartPolicy"] = json!(policy);
    pod["spec"]["containers"][0]["name"] = json!(container);
    pod
}

/// The standard error of a run that has ended.
pub fn said(output: &std::process::Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Proportional memory of a process in kilobytes.
pub fn pss_kb(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(Path::new(&path)).expect("read the agent's memory map");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("the map has a sum");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kilobytes")
}
