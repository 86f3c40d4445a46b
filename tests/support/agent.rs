//! The real program, as a process, with everything it writes below one directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use super::containerd::{pid_of, tail};
use super::wait::wait_for;

/// The node's name; static pods carry it as a suffix.
pub const NODE: &str = "edge";
/// How long pods and the agent may take on a machine that is busy compiling.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test: `AGENT_BIN`, or the one built with the tests.
pub fn binary() -> PathBuf {
    std::env::var_os("AGENT_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_agent")), PathBuf::from)
}

/// An agent's directories and, while it runs, its process.
pub struct AgentProcess {
    program: PathBuf,
    root: PathBuf,
    endpoint: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    child: Option<Child>,
}

/// Without it upstream's default thresholds act.
const NO_EVICTION: &str = "evictionHard: {}\n";

impl AgentProcess {
    /// Prepares one that will live below `directory` and speak to the runtime at `endpoint`. Nothing runs yet.
    pub fn new(directory: &Path, endpoint: &str) -> Self {
        let root = directory.join("agent");
        fs::create_dir_all(root.join("manifests")).expect("make the manifest directory");
        // Ports are the whole machine's: tests that want the API on TCP choose theirs.
        // Its pods' cgroups are its own too: agents beside it take lost ones for theirs. The machine may be as full as it is: no
        // image and no pod goes for that, unless a test says when.
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodLogsDir: {}\ncgroupRoot: {}\n\
             enableServer: false\nhealthzPort: 0\nevictionPressureTransitionPeriod: 1s\n\
             imageGCHighThresholdPercent: 100\n{NO_EVICTION}",
            root.join("log/pods").display(),
            cgroup_root(directory),
        );
        fs::write(root.join("config.yaml"), config).expect("write the agent's configuration");
        Self {
            program: binary(),
            root,
            endpoint: endpoint.to_owned(),
            // Addresses of Services are the whole machine's: tests that want them choose a range.
            arguments: vec!["--service-cidr=".to_owned()],
            environment: Vec::new(),
            child: None,
        }
    }

    /// Adds an argument to every start from now on; a later one wins over an earlier one.
    pub fn argument(&mut self, argument: impl Into<String>) {
        self.arguments.push(argument.into());
    }

    /// Adds a variable to the environment of every start from now on.
    pub fn variable(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Adds lines to the `--config` file.
    pub fn configure(&self, lines: &str) {
        let mut config = fs::read_to_string(self.config_file()).expect("read the configuration");
        if lines.contains("evictionHard:") {
            config = config.replace(NO_EVICTION, "");
        }
        config.push_str(lines);
        fs::write(self.config_file(), config).expect("add to the configuration");
    }

    /// The `--config` file.
    pub fn config_file(&self) -> PathBuf {
        self.root.join("config.yaml")
    }

    /// Uses another program than the tests' own.
    pub fn with_program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// The kubelet root directory.
    pub fn root_dir(&self) -> PathBuf {
        self.root.join("kubelet")
    }

    /// Where pods' logs go; the symlinks are in `containers` beside it.
    pub fn pod_logs_dir(&self) -> PathBuf {
        self.root.join("log/pods")
    }

    /// Where manifests are read from.
    pub fn manifest_dir(&self) -> PathBuf {
        self.root.join("manifests")
    }

    /// Puts a manifest into place in one step, as a careful user does.
    pub fn write_manifest(&self, file: &str, text: &str) {
        let unfinished = self.root.join(format!("{file}.unfinished"));
        fs::write(&unfinished, text).expect("write a manifest");
        fs::rename(&unfinished, self.manifest_dir().join(file)).expect("put the manifest into place");
    }

    /// Takes a manifest away.
    pub fn remove_manifest(&self, file: &str) {
        fs::remove_file(self.manifest_dir().join(file)).expect("remove a manifest");
    }

    /// Starts the agent; it may need a moment before it answers.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "the agent runs already");
        let log =
            File::options().create(true).append(true).open(self.log_file()).expect("open the agent's log");
        let child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start the agent");
        self.child = Some(child);
    }

    /// Runs `--runonce` to its end.
    pub fn run_once(&self, arguments: &[&str]) -> Output {
        let output = self
            .command()
            .arg("--runonce")
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("run the agent");
        fs::write(self.log_file(), &output.stderr).expect("keep what the agent said");
        output
    }

    /// The process id while it runs.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the agent runs").id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(pid_of(self.child.as_ref().expect("the agent runs")), signal).expect("signal the agent");
    }

    /// Waits until it has ended by itself or by a signal sent before.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the agent was started");
        wait_for("the agent to end", PATIENCE, || {
            child
                .try_wait()
                .expect("look after the agent")
                .ok_or_else(|| format!("it runs: {}", self.log_tail()))
        })
    }

    /// How it ended, when it has by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().expect("the agent was started").try_wait().expect("look after the agent")
    }

    /// Everything it has logged so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    /// Kills it without warning.
    pub fn kill9(&mut self) {
        let mut child = self.child.take().expect("the agent runs");
        if let Some(status) = child.try_wait().expect("look after the agent") {
            panic!("the agent ended by itself: {status}: {}", self.log_tail());
        }
        child.kill().expect("kill the agent");
        child.wait().expect("reap the agent");
    }

    /// Asks it to end and waits until it has.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait_for_end()
    }

    /// Fails the test if the agent has ended.
    pub fn assert_alive(&mut self) {
        let ended =
            self.child.as_mut().expect("the agent was started").try_wait().expect("look after the agent");
        assert!(ended.is_none(), "the agent ended: {ended:?}: {}", self.log_tail());
    }

    /// Runs a sub-command against the agent's socket and returns what it prints.
    pub fn cli(&self, arguments: &[&str]) -> Result<String, String> {
        let root = self.root_dir().display().to_string();
        self.ask(&[arguments, &["--root-dir", &root]].concat())
    }

    /// The same of a sub-command that needs a running agent.
    pub fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.program)
            .args(arguments)
            .arg("--socket")
            .arg(self.socket())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("start the agent's command line: {error}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("agent {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
        }
    }

    /// Runs `agent image` on the images of the embedded runtime.
    pub fn image_cli(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.arg("image").args(arguments).arg("--root-dir").arg(self.root_dir()).stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("start agent image: {error}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(format!("agent image {}: {}", arguments.join(" "), said.trim()))
        }
    }

    /// What `agent status` says, for programs; an error unless it is the running agent that says it.
    pub fn status_json(&self) -> Result<Value, String> {
        let status = self.json(&["status", "-o", "json", "--exit-zero"])?;
        if status["pid"] == self.pid() { Ok(status) } else { Err(format!("not the agent: {status}")) }
    }

    /// Everything the agent finds wrong with manifests, as JSON text.
    pub fn problems(&self) -> Result<String, String> {
        let status = self.status_json()?;
        let sources = status["sources"].as_array().into_iter().flatten();
        Ok(sources.map(|source| source["problems"].to_string()).collect())
    }

    /// The pod of a manifest, as `agent get pods` shows it; `name` without the node's suffix.
    pub fn pod(&self, name: &str) -> Result<Value, String> {
        let list = self.json(&["get", "pods", "-o", "json"])?;
        let wanted = pod_name(name);
        let mut items = list["items"].as_array().into_iter().flatten();
        let found = items.find(|pod| pod["metadata"]["name"] == *wanted);
        found.cloned().ok_or_else(|| format!("no pod {wanted} in {list}"))
    }

    /// The pod as the store has it, without asking the agent.
    pub fn stored_pod(&self, name: &str) -> Result<Value, String> {
        let mut command = Command::new(&self.program);
        command.args(["get", "pods", "-o", "json", "--socket"]).arg(self.root.join("no.sock"));
        let output = command.arg("--root-dir").arg(self.root_dir()).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("start the agent's command line: {error}"))?;
        let list: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
        let wanted = pod_name(name);
        let mut items = list["items"].as_array().into_iter().flatten();
        items
            .find(|pod| pod["metadata"]["name"] == *wanted)
            .cloned()
            .ok_or_else(|| format!("no {wanted}: {list}"))
    }

    /// Waits until the pod is as `look` wants it, and returns what `look` made of it.
    pub fn wait_for_pod<T>(&mut self, name: &str, what: &str, look: impl Fn(&Value) -> Option<T>) -> T {
        wait_for(&format!("pod {name} to be {what}"), PATIENCE, || {
            self.assert_alive();
            let pod = self.pod(name)?;
            look(&pod).ok_or_else(|| pod["status"].to_string())
        })
    }

    /// Waits for a phase.
    pub fn wait_for_phase(&mut self, name: &str, phase: &str) -> Value {
        self.wait_for_pod(name, phase, |pod| (pod["status"]["phase"] == phase).then(|| pod.clone()))
    }

    /// The end of what the agent has logged.
    pub fn log_tail(&self) -> String {
        tail(&self.log_file())
    }

    /// The file the agent logs to.
    pub fn log_file(&self) -> PathBuf {
        self.root.join("agent.log")
    }

    fn json(&self, arguments: &[&str]) -> Result<Value, String> {
        let text = self.cli(arguments)?;
        serde_json::from_str(&text).map_err(|error| format!("agent {}: {error}: {text}", arguments.join(" ")))
    }

    /// Where the running agent answers.
    pub fn socket(&self) -> PathBuf {
        self.root.join("agent.sock")
    }

    /// A command of the program that needs no running agent.
    pub fn command_of(&self, command: &str) -> Command {
        let mut started = Command::new(&self.program);
        started.arg(command);
        started
    }

    /// The agent with all its arguments, not yet started.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(format!("--config={}", self.config_file().display()))
            .arg(format!("--root-dir={}", self.root_dir().display()))
            .arg(format!("--manifest-dir={}", self.manifest_dir().display()))
            .arg(format!("--container-runtime-endpoint={}", self.endpoint))
            .arg(format!("--agent-socket={}", self.socket().display()))
            .arg(format!("--hostname-override={NODE}"))
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Drop for AgentProcess {
    #[expect(clippy::print_stderr, reason = "the test runner shows it beside the failure")]
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- agent\n{}", self.log_tail());
        }
    }
}

/// The cgroup below which the agent of a scratch directory keeps its pods: two agents must not share one.
pub fn cgroup_root(directory: &Path) -> String {
    format!("/{}", directory.file_name().expect("scratch directories have names").to_string_lossy())
}

/// A static pod's name on this node.
pub fn pod_name(name: &str) -> String {
    format!("{name}-{NODE}")
}
