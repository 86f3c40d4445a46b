//! Stock kubectl, as somebody whom the agent has given a kubeconfig.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::agent::AgentProcess;
use super::api::Api;

/// kubectl and whose file it uses.
pub struct Kubectl {
    config: PathBuf,
    home: PathBuf,
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
    /// As a person of this name, by `agent kubeconfig` with these options. Caches are kept in `directory`.
    pub fn of(api: &Api, agent: &AgentProcess, directory: &Path, name: &str, options: &[&str]) -> Self {
        let home = directory.join(format!("kubectl-{name}"));
        fs::create_dir_all(&home).expect("create a home");
        let config = home.join("config");
        fs::write(&config, api.kubeconfig(agent, name, options)).expect("write");
        Self { config, home }
    }

    /// Not started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
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
