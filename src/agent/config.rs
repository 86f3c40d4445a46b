//! The command line and the configuration file, resolved to one value with the origin of every setting.
//!
//! Owns flags, `KubeletConfiguration` v1beta1, precedence and validation. Reads files at start only. Must not
//! know what any setting does.

mod args;
mod changes;
mod cri;
mod effects;
mod error;
mod explain;
mod fields;
mod flags;
mod gates;
mod help;
mod load;
mod resolve;
mod suggest;
mod tree;
mod typed;
mod validate;
mod value;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;

use serde_json::Value;

pub use crate::model::duration::{DurationError, GoDuration};
pub(crate) use changes::ConfigChanges;
pub use cri::CriFlags;
pub use error::{ConfigError, ConfigFinding, FileError, Findings, FlagError, RunOnceError};
pub use fields::{
    ConfigTaint, KubeletConfiguration, MemoryReservation, ShutdownGracePeriodByPodPriority, VmoduleItem,
};
pub(crate) use flags::{AgentFlags, RunOnceWait};
pub(crate) use gates::FeatureGates;
pub(crate) use help::CLIENT_COMMANDS;
pub(crate) use resolve::{Origin, Provenance};
pub(crate) use typed::is_own_socket;
pub(in crate::agent) use validate::{parse_sloppy, tls_settings};
pub use value::ValueError;
pub(crate) use value::parse_bool;

use args::{Args, Command, scan};
use suggest::nearest;

use crate::platform::logging::chain;

/// The host's facts on which the configuration depends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub hostname: String,
}

impl Environment {
    /// The facts of this host. An unreadable host name is empty, and then `--hostname-override` is required.
    #[must_use]
    pub fn from_host() -> Self {
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { hostname: hostname.trim().to_owned() }
    }
}

#[derive(Debug)]
pub enum Invocation {
    Run(Box<Resolved>),
    /// Print this and exit 0.
    Help(String),
    /// Print the version and exit 0.
    Version(VersionKind),
    /// Print the resolved configuration and exit 0.
    Config {
        /// Every setting with its origin instead of a file.
        explain: bool,
        resolved: Box<Resolved>,
    },
    /// One of [`CLIENT_COMMANDS`].
    Client {
        command: &'static str,
        /// The arguments without the command's name, unparsed.
        args: Vec<OsString>,
    },
    /// `agent cri`: the embedded runtime, served as CRI.
    Cri {
        flags: CriFlags,
        resolved: Box<Resolved>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionKind {
    Plain,
    /// Everything known about the build.
    Raw,
}

/// The agent's effective configuration, validated.
#[derive(Debug)]
pub struct Resolved {
    /// The flags that are not fields of the file.
    pub flags: AgentFlags,
    /// The file's fields after all layers.
    pub kubelet: KubeletConfiguration,
    pub feature_gates: FeatureGates,
    /// `--hostname-override` or the host's name, lower-case.
    pub node_name: String,
    /// `--node-ip` as far as it parses; at most one of each family.
    pub node_ips: Vec<IpAddr>,
    pub provenance: Provenance,
    /// Warnings for the log: deprecated flags, lenient decoding, dubious values.
    pub warnings: Vec<String>,
    /// `FLAG: --name="value"` for every flag, in alphabetical order.
    pub flag_dump: Vec<String>,
    document: Value,
    args: Args,
    environment: Environment,
    /// Flags that were given and have no effect where the runtime connects pods.
    without_network: Vec<&'static str>,
    /// A Docker Engine has answered at the runtime's endpoint.
    is_docker: Rc<Cell<bool>>,
}

impl Resolved {
    /// `seccompDefault` of the file or `--seccomp-default`.
    #[must_use]
    pub(crate) fn seccomp_default(&self) -> bool {
        self.flags.seccomp_default || self.kubelet.seccomp_default
    }

    /// The rules that only a start has: other commands read the files of a node whose kubeconfig is named elsewhere,
    /// or is not there yet.
    ///
    /// # Errors
    /// What would prevent the start.
    pub fn check_start(&self) -> Result<(), ConfigError> {
        let is_joined = !self.flags.kubeconfig.is_empty();
        validate::start(&self.kubelet, is_joined).map_err(ConfigError::Configuration)
    }

    /// A runtime was found at the endpoint.
    pub(crate) fn found_runtime(&self, is_docker: bool) {
        self.is_docker.set(is_docker);
        let endpoint = &self.kubelet.container_runtime_endpoint;
        for flag in self.without_network.iter().filter(|_| !is_docker) {
            log::warn!(
                "--{flag} has no effect: it configures the embedded runtime and Docker, and containerRuntimeEndpoint is {endpoint:?}"
            );
        }
    }

    /// The agent itself connects pods and resolves their devices: on the embedded runtime and on Docker.
    #[must_use]
    pub(crate) fn owns_pod_network(&self) -> bool {
        self.is_docker.get() || self.kubelet.container_runtime_endpoint == "embedded"
    }

    /// What reads the files of the same command line again, with the error as its text.
    pub(crate) fn reader(&self) -> Box<dyn Fn() -> Result<Self, String>> {
        let (args, environment) = (self.args.clone(), self.environment.clone());
        let is_docker = Rc::clone(&self.is_docker);
        Box::new(move || {
            let read = typed::resolve(&args, &environment).and_then(|mut resolved| {
                typed::check_embedded_only(&args, &mut resolved)?;
                resolved.check_start()?;
                resolved.is_docker = Rc::clone(&is_docker);
                Ok(resolved)
            });
            read.map_err(|error| chain(&error))
        })
    }

    /// The file and the directory of the configuration on the command line.
    pub(crate) fn files(&self) -> [Option<PathBuf>; 2] {
        ["config", "config-dir"].map(|flag| {
            let path = self.args.value(flag).and_then(Value::as_str).filter(|path| !path.is_empty());
            path.map(PathBuf::from)
        })
    }

    /// The fields that differ from the configuration at the start, and from the one taken over last.
    pub(crate) fn changes_since(&self, start: &Value, last: &Value) -> ConfigChanges {
        changes::changes(start, last, &self.document())
    }

    /// This configuration as far as a running agent takes it over: the other fields are those of the start.
    pub(crate) fn taken_over(mut self, start: &Value) -> Self {
        let document = changes::taken_over(start, &self.document);
        typed::replace(&mut self, document);
        self
    }

    /// The fields as a file says them, header values included.
    pub(crate) fn document(&self) -> Value {
        changes::written(&self.document, &self.provenance)
    }

    /// The resolved `KubeletConfiguration` as YAML that `--config` would read, header values masked.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        explain::yaml(&explain::masked(&self.document()))
    }

    /// The resolved `KubeletConfiguration` as one line of JSON for the log, header values masked.
    #[must_use]
    pub fn config_log(&self) -> String {
        self.to_json().to_string()
    }

    /// The resolved `KubeletConfiguration` as JSON, header values masked.
    #[must_use]
    pub(crate) fn to_json(&self) -> Value {
        self.masked()
    }

    /// Every flag and its value, both without dashes and in its own syntax, header values masked.
    #[must_use]
    pub(crate) fn flag_values(&self) -> Vec<(String, String)> {
        let values = explain::flag_values(self);
        values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Every setting: path, value, origin, and whether this version acts on it.
    #[must_use]
    pub fn explain(&self) -> String {
        explain::table(self)
    }

    fn masked(&self) -> Value {
        explain::masked(&self.document)
    }
}

/// The other commands of this version.
const COMMANDS: [&str; 4] = ["config", "cri", "help", "version"];

/// Parses the arguments (without the program's name), and reads the files they name.
///
/// # Errors
/// The first error that prevents a start; invalid values are reported together.
pub fn parse(arguments: &[OsString], environment: &Environment) -> Result<Invocation, ConfigError> {
    let mut args = scan(arguments, false)?;
    let Some(command) = args.command.take() else {
        return run(&args, environment, |resolved| Invocation::Run(Box::new(resolved)));
    };
    let Command { name, mut before, rest, after_bool } = command;
    let joined = |mut before: Vec<OsString>, rest: Vec<OsString>| {
        before.extend(rest);
        before
    };
    if let Some((command, _)) = CLIENT_COMMANDS.iter().find(|(command, _)| *command == name) {
        return Ok(Invocation::Client { command, args: joined(before, rest) });
    }
    match name.as_str() {
        "help" => Ok(Invocation::Help(help::text())),
        "version" => Ok(Invocation::Version(VersionKind::Plain)),
        "cri" => {
            let (flags, others) = cri::own_flags(joined(before, rest))?;
            let args = scan(&others, false)?;
            if let Some(extra) = &args.command {
                return Err(unknown_command(&extra.name, extra.after_bool.as_deref()));
            }
            run(&args, environment, |resolved| Invocation::Cri { flags, resolved: Box::new(resolved) })
        }
        "config" => {
            before.extend(rest);
            let args = scan(&before, true)?;
            if let Some(extra) = &args.command {
                if DOCUMENT_COMMANDS.contains(&extra.name.as_str()) {
                    return Ok(Invocation::Client { command: "config", args: before });
                }
                return Err(unknown_command(&extra.name, extra.after_bool.as_deref()));
            }
            let explain = args.explain;
            run(&args, environment, |resolved| Invocation::Config { explain, resolved: Box::new(resolved) })
        }
        _ => Err(unknown_command(&name, after_bool.as_deref())),
    }
}

/// Of `agent config`: they are about kubeadm's documents, not about the agent's configuration.
const DOCUMENT_COMMANDS: [&str; 4] = ["print", "validate", "migrate", "images"];

fn unknown_command(name: &str, after_bool: Option<&str>) -> ConfigError {
    let known = CLIENT_COMMANDS.iter().map(|(command, _)| *command).chain(COMMANDS);
    let hint = match (after_bool, nearest(name, known)) {
        (Some(flag), _) if matches!(name, "true" | "false") => format!(": write {flag}={name}"),
        (_, Some(near)) => format!(", did you mean {near}?"),
        _ => String::new(),
    };
    ConfigError::UnknownCommand { name: name.chars().take(64).collect(), hint }
}

fn run(
    args: &Args,
    environment: &Environment,
    wrap: impl FnOnce(Resolved) -> Invocation,
) -> Result<Invocation, ConfigError> {
    if args.value("help") == Some(&Value::Bool(true)) {
        return Ok(Invocation::Help(help::text()));
    }
    match args.value("version").and_then(Value::as_str) {
        Some("true") => return Ok(Invocation::Version(VersionKind::Plain)),
        Some("raw") => return Ok(Invocation::Version(VersionKind::Raw)),
        _ => {}
    }
    let mut invocation = wrap(typed::resolve(args, environment)?);
    // `agent cri` is the embedded runtime, whatever runtime the same configuration names for the kubelet.
    if let Invocation::Run(resolved) | Invocation::Config { resolved, .. } = &mut invocation {
        typed::check_embedded_only(args, resolved)?;
    }
    Ok(invocation)
}
