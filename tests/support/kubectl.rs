//! Stock kubectl, as somebody whom the agent has given a kubeconfig: Debian's, and another one where the machine has it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::agent::AgentProcess;
use super::api::Api;

/// A kubectl and whose file it uses.
pub struct Kubectl {
    program: PathBuf,
    config: PathBuf,
    home: PathBuf,
}

/// The package `kubernetes-client`, installed or unpacked by `scripts/setup test`.
fn debians() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
    let unpacked = target.join("test-tools/usr/bin/kubectl");
    if unpacked.exists() {
        return unpacked;
    }
    let installed = PathBuf::from("/usr/bin/kubectl");
    let owner = Command::new("dpkg").arg("-S").arg(&installed).output().expect("run dpkg");
    let owner = String::from_utf8_lossy(&owner.stdout).into_owned();
    assert!(
        owner.starts_with("kubernetes-client:"),
        "run scripts/setup test: no kubectl of Debian's, {owner:?}"
    );
    installed
}

/// What it said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub ok: bool,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Kubectl {
    /// Debian's, as a person of this name, by `agent kubeconfig` with these options. Caches are kept in `directory`.
    pub fn of(api: &Api, agent: &AgentProcess, directory: &Path, name: &str, options: &[&str]) -> Self {
        let home = directory.join(format!("kubectl-{name}"));
        fs::create_dir_all(&home).expect("create a home");
        let config = home.join("config");
        fs::write(&config, api.kubeconfig(agent, name, options)).expect("write");
        Self { program: debians(), config, home }
    }

    /// The same person with every kubectl that there is: Debian's, and the one that people use here if it is another.
    pub fn with_each(self) -> Vec<Self> {
        let found = Command::new("sh").args(["-c", "command -v kubectl"]).output().expect("run sh");
        let other = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
        if other.as_os_str().is_empty() || other == self.program {
            return vec![self];
        }
        let home = self.home.join("other");
        fs::create_dir_all(&home).expect("create a home");
        let other = Self { program: other, config: self.config.clone(), home };
        vec![self, other]
    }

    /// Not started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.config).env("HOME", &self.home).stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub fn run(&self, arguments: &[&str]) -> Said {
        let output = self.command(arguments).output().expect("kubectl is installed by scripts/setup test");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said {
            ok: output.status.success(),
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// What it prints when all is well.
    pub fn out(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert!(said.ok, "kubectl {}: {said:?}", arguments.join(" "));
        said.out
    }

    /// In the background, writing into a file, until the guard is dropped.
    pub fn follow(&self, arguments: &[&str], file: &Path) -> Following {
        let out = File::create(file).expect("create a file");
        let child = self.command(arguments).stdout(out).stderr(Stdio::null()).spawn().expect("start kubectl");
        Following(child)
    }
}

/// A kubectl that runs.
pub struct Following(Child);

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
