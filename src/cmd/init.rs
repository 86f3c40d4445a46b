//! `agent preflight`, `agent init`, `agent join`, `agent leave`, `agent reset`: checks a machine, sets it up, alone or as a
//! node of a cluster, and undoes the setup. Words, names of phases and checks, and the order of steps are kubeadm's (1.36)
//! where it has them.
//!
//! | module | what |
//! |---|---|
//! | `facts` | what is known of the machine |
//! | `preflight` | the checks of these facts |
//! | `self_test` | a real container |
//! | `install` | which files a setup has (pure) |
//! | `phases` | the steps of `init`, one after the other |
//! | `service` | systemd, OpenRC |
//! | `join`, `leave` | the way into a cluster, and out of it |
//! | `reset` | the removal |
//!
//! Owns what these commands write and print. The agent itself needs none of it: it runs from its flags alone.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::agent::config::{self, ConfigError, Invocation, Resolved};
use crate::agent::kubelet::setup::configs;
use crate::cmd::cli::{EXIT_FAILED, EXIT_OK, EXIT_USAGE, Environment};
use crate::platform::logging::chain;
use crate::platform::sys::node;
use crate::serve::server::pki::PkiError;

pub(super) mod args;
pub mod facts;
pub(super) mod install;
mod join;
mod leave;
mod phases;
pub(super) mod preflight;
mod reset;
mod self_test;
mod service;

pub(in crate::cmd) use join::{JoinOptions, find, host, is_free, joining, local_pods, wait_for_certificate};
pub(in crate::cmd) use phases::wait_until_healthy;

use args::{InitOptions, UsageError};
use facts::ProbedMachine;
pub(super) use phases::write;
use preflight::{PreflightFinding, PreflightTask, Purpose};

/// The configuration that `init` writes and the service reads.
const CONFIG_FILE: &str = "/var/lib/kubelet/config.yaml";
/// The service's flags besides the configuration.
const DEFAULTS_FILE: &str = "/etc/default/agent";

#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0:?} after -- is not a flag of the agent: only agent flags may follow --")]
    NotAFlag(String),
    #[error("preflight checks failed")]
    Preflight,
    #[error("{action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The cluster or the way to it.
    #[error("{0}")]
    Join(String),
    /// Something of a control plane.
    #[error("{0}")]
    ControlPlane(String),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("{} already exists but was signed by another certificate authority: remove it to generate a new \
             one", .0.display())]
    WrongAuthority(PathBuf),
    #[error("{0}")]
    Service(String),
    #[error("the agent is not healthy: GET {at}: {why}")]
    Unhealthy { at: String, why: String },
    #[error("aborted, nothing was changed (use --force to skip the confirmation)")]
    Aborted,
    #[error("stop the pods: {0} (use --skip-phases=pods to leave them running)")]
    Pods(String),
    #[error("an agent is using {}: stop it first", .0.display())]
    Running(PathBuf),
    #[error("failed to remove: {0}")]
    RemovalFailed(String),
    #[error("error execution phase {phase}")]
    Phase {
        phase: &'static str,
        #[source]
        source: Box<InitError>,
    },
    #[error("write the output")]
    Output(#[source] io::Error),
}

/// Runs one of the three commands and returns the exit code: 0, 1 on failure (kubeadm has no other), 2 for an
/// invalid command line.
pub fn run(command: &str, arguments: &[String], environment: Environment<'_>) -> u8 {
    let mut session = InitSession { environment };
    if command == "join" {
        let result = join::run(&mut session, arguments);
        return finish(&mut session, command, result);
    }
    if command == "leave" {
        let result = leave::run(&mut session, arguments);
        return finish(&mut session, command, result);
    }
    let phases = phases_of(command);
    let result =
        InitOptions::parse(command, arguments, &phases).map_err(InitError::from).and_then(|options| {
            if options.help {
                session.print(&args::help(command, &phases))?;
                return Ok(());
            }
            match command {
                "preflight" => session.preflight(&options),
                "reset" => reset::run(&mut session, &options),
                _ => phases::run(&mut session, &options),
            }
        });
    finish(&mut session, command, result)
}

pub(super) fn finish(session: &mut InitSession<'_>, command: &str, result: Result<(), InitError>) -> u8 {
    let error = match result {
        Ok(()) => return EXIT_OK,
        Err(InitError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return EXIT_OK,
        Err(error) => error,
    };
    session.print_error(&format!("error: {}\n", chain(&error)));
    if let InitError::Usage(_) = error {
        session.print_error(&format!("See \"agent {command} --help\".\n"));
        return EXIT_USAGE;
    }
    EXIT_FAILED
}

fn phases_of(command: &str) -> args::Phases {
    match command {
        "init" => phases::PHASES.iter().map(|phase| (phase.name, phase.help)).collect(),
        "reset" => reset::PHASES.iter().map(|phase| (phase.name, phase.help)).collect(),
        _ => Vec::new(),
    }
}

pub(crate) struct InitSession<'a> {
    pub(super) environment: Environment<'a>,
}

impl InitSession<'_> {
    /// Prints to standard output at once.
    pub(super) fn print(&mut self, text: &str) -> Result<(), InitError> {
        let out = &mut self.environment.out;
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(InitError::Output)
    }

    pub(super) fn print_error(&mut self, text: &str) {
        // The write may fail: standard error may be closed, too.
        let _ = self.environment.err.write_all(text.as_bytes());
    }

    pub(super) fn warn(&mut self, warnings: &[String]) {
        for warning in warnings {
            self.print_error(&["W ", warning, "\n"].concat());
        }
    }

    fn preflight(&mut self, options: &InitOptions) -> Result<(), InitError> {
        let resolved = resolve(options)?;
        self.say_checks(options.json)?;
        let findings = self.check(options, &resolved, &Purpose::of(&resolved));
        self.show_checks(&findings, options)
    }

    pub(super) fn say_checks(&mut self, json: bool) -> Result<(), InitError> {
        if json { Ok(()) } else { self.print("[preflight] Running pre-flight checks\n") }
    }

    /// What `agent preflight` prints, and how it ends.
    pub(super) fn show_checks(
        &mut self,
        findings: &[PreflightFinding],
        options: &InitOptions,
    ) -> Result<(), InitError> {
        if options.json {
            let text = serde_json::to_string_pretty(&preflight::to_json(findings)).unwrap_or_default();
            self.print(&format!("{text}\n"))?;
        } else {
            self.print_error(&preflight::report(findings, options.verbose));
            if !preflight::has_errors(findings) {
                self.print(&format!("[preflight] This machine can run pods: {}\n", summarize(findings)))?;
            }
        }
        passed(findings)
    }

    /// Prints warnings and errors.
    pub(super) fn judge(&mut self, findings: &[PreflightFinding]) -> Result<(), InitError> {
        self.print_error(&preflight::report(findings, false));
        passed(findings)
    }

    /// All findings, with ignored errors as warnings.
    pub(super) fn check(
        &self,
        options: &InitOptions,
        resolved: &Resolved,
        wanted: &Purpose,
    ) -> Vec<PreflightFinding> {
        let machine = self.machine(Path::new("/"));
        if wanted.task == PreflightTask::Upgrade {
            let mut findings = vec![preflight::privileged(machine.uid)];
            findings.extend(preflight::check(&machine.gather(&wanted.interest()), wanted));
            options.ignored.apply(&mut findings);
            return findings;
        }
        if wanted.task == PreflightTask::Instance {
            let mut findings = preflight::check(&machine.gather(&wanted.interest()), wanted);
            options.ignored.apply(&mut findings);
            return findings;
        }
        let mut findings = vec![preflight::privileged(machine.uid)];
        options.ignored.apply(&mut findings);
        if preflight::has_errors(&findings) {
            return findings;
        }
        let facts = machine.gather(&wanted.interest());
        findings.extend(preflight::check(&facts, wanted));
        let has_socket = !findings.iter().any(|finding| finding.name == "CRI");
        if options.no_self_test {
            findings.push(PreflightFinding::skipped("CRI", "skipped: --skip-self-test"));
        } else if facts.uid == 0 && has_socket {
            let endpoint = &resolved.kubelet.container_runtime_endpoint;
            let embedded = configs::embedded(resolved);
            findings.extend(self_test::run(endpoint, &resolved.flags.root_dir, embedded));
        }
        options.ignored.apply(&mut findings);
        findings
    }

    fn machine(&self, root: &Path) -> ProbedMachine {
        const PROXIES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];
        let names = PROXIES.into_iter().flat_map(|name| [name.to_owned(), name.to_ascii_lowercase()]);
        let proxies = names.filter_map(|name| std::env::var(&name).ok().map(|value| (name, value)));
        ProbedMachine {
            root: root.to_owned(),
            uid: node::user_id(),
            now: self.environment.now,
            cpus: node::cpu_count(),
            proxies: proxies.filter(|(_, value)| !value.is_empty()).collect(),
        }
    }
}

fn passed(findings: &[PreflightFinding]) -> Result<(), InitError> {
    if preflight::has_errors(findings) { Err(InitError::Preflight) } else { Ok(()) }
}

fn summarize(findings: &[PreflightFinding]) -> String {
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (well, warnings) = (of(preflight::Severity::Ok), of(preflight::Severity::Warning));
    let plural = if warnings == 1 { "" } else { "s" };
    format!("{well} checks passed, {warnings} warning{plural}")
}

/// The configuration that the agent would get: the file, the service's flags or those given here, and the
/// requested runtime.
pub(super) fn resolve(options: &InitOptions) -> Result<Resolved, InitError> {
    let mut arguments = Vec::new();
    let installed = options.rooted(CONFIG_FILE);
    match &options.config {
        Some(file) => arguments.push(format!("--config={}", file.display())),
        None if installed.exists() => arguments.push(format!("--config={}", installed.display())),
        // The value that `init` writes.
        None => arguments.push(format!("--pod-manifest-path={}", install::MANIFESTS)),
    }
    if options.config.is_none() && !installed.exists() {
        arguments.push("--address=127.0.0.1".to_owned());
    }
    if options.agent_flags.is_empty() {
        let defaults = std::fs::read_to_string(options.rooted(DEFAULTS_FILE)).unwrap_or_default();
        arguments.extend(install::service_flags(&defaults));
    } else {
        arguments.extend(options.agent_flags.iter().cloned());
    }
    if let Some(endpoint) = &options.endpoint {
        arguments.push(format!("--container-runtime-endpoint={endpoint}"));
    }
    let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
    match config::parse(&arguments, &config::Environment::from_host())? {
        Invocation::Run(resolved) => Ok(*resolved),
        _ => Err(InitError::NotAFlag(options.agent_flags.join(" "))),
    }
}

/// The names of the phases of a standalone node.
pub(super) fn standalone_phases() -> Vec<&'static str> {
    phases::PHASES.iter().map(|phase| phase.name).collect()
}

/// Creates the directories that the agent has before its first pod.
pub(super) fn prepare_node() -> Result<(), InitError> {
    for (path, mode) in install::directories().into_iter().filter(|(path, _)| !path.exists()) {
        let failed = |source| InitError::File { action: "create directory", path: path.clone(), source };
        crate::platform::sys::dir::make_dir(&path, mode).map_err(failed)?;
    }
    Ok(())
}

/// Makes the service run the agent as a node of a cluster, with these flags besides the files of kubeadm, and (re)starts
/// it.
pub(super) fn start_node(session: &mut InitSession<'_>, flags: &[String]) -> Result<(), InitError> {
    let defaults = join::with_cluster_flags(&join::read(DEFAULTS_FILE)?, flags);
    phases::write(&install::File::new(DEFAULTS_FILE, 0o644, defaults))?;
    let live = InitOptions {
        phase: Some("systemd".to_owned()),
        rootfs: PathBuf::from("/"),
        ..InitOptions::default()
    };
    phases::run(session, &live)?;
    restart_node(session)
}

/// (Re)starts the service; without an init system, what to run is printed.
pub(super) fn restart_node(session: &mut InitSession<'_>) -> Result<(), InitError> {
    let live = InitOptions { rootfs: PathBuf::from("/"), ..InitOptions::default() };
    let init_system = machine_of(&live, session);
    let commands = service::start(init_system);
    if commands.is_empty() {
        let flags = install::service_flags(&join::read(DEFAULTS_FILE)?);
        let command = install::command(&flags);
        return session.print(&format!("[kubelet-start] Start the agent manually: {command}\n"));
    }
    session.print("[kubelet-start] Starting the kubelet\n")?;
    service::call(init_system, commands)
}

/// Only the init system is determined.
fn machine_of(options: &InitOptions, session: &InitSession<'_>) -> facts::InitSystem {
    session.machine(&options.rootfs).init_system()
}
