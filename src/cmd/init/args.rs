//! Arguments of `preflight`, `init` and `reset`.
//!
//! Owns their names, defaults and help. Names are kubeadm's where it has the flag.

use crate::cmd::help;
use std::path::{Path, PathBuf};

use lexopt::Arg;

use super::preflight::Ignored;

/// Names of a command's phases, each with a line of help.
pub(super) type Phases = Vec<(&'static str, &'static str)>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("{0}")]
    Option(String),
    #[error("invalid phase name: {0}")]
    Phase(String),
    #[error("missing phase name: use one of {0}")]
    NoPhase(String),
    #[error("unexpected argument {0:?}")]
    Unexpected(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cmd) struct InitOptions {
    /// Of `init phase NAME`, `reset phase NAME`.
    pub(in crate::cmd) phase: Option<String>,
    pub(in crate::cmd) config: Option<PathBuf>,
    pub(in crate::cmd) cert_dir: Option<PathBuf>,
    pub(in crate::cmd) endpoint: Option<String>,
    pub(in crate::cmd) skip_phases: Vec<String>,
    pub(in crate::cmd) ignored: Ignored,
    pub(in crate::cmd) dry_run: bool,
    pub(in crate::cmd) example: bool,
    pub(in crate::cmd) force: bool,
    pub(in crate::cmd) volumes: bool,
    /// Of an administrator of the cluster.
    pub(in crate::cmd) kubeconfig: Option<PathBuf>,
    /// `--cleanup-tmp-dir`.
    pub(in crate::cmd) cleans_temporary: bool,
    pub(in crate::cmd) verbose: bool,
    pub(in crate::cmd) no_self_test: bool,
    pub(in crate::cmd) json: bool,
    pub(in crate::cmd) help: bool,
    /// The machine's root directory, or that of an offline system.
    pub(in crate::cmd) rootfs: PathBuf,
    /// The program for the system in `rootfs`; by default this one.
    pub(in crate::cmd) program: Option<PathBuf>,
    /// Everything after `--`: flags of the agent itself.
    pub(in crate::cmd) agent_flags: Vec<String>,
}

pub(super) fn help(command: &str, phases: &Phases) -> String {
    let text = match command {
        "preflight" => return help::text("preflight"),
        "reset" => help::text("reset"),
        _ => help::text("init"),
    };
    let listed: String =
        phases.iter().map(|(name, help)| ["  ", &format!("{name:<18} {help}"), "\n"].concat()).collect();
    format!("{text}{listed}\nExit status: 0 on success, 1 on failure, 2 for bad usage.\n")
}

impl InitOptions {
    pub(super) fn parse(command: &str, arguments: &[String], phases: &Phases) -> Result<Self, UsageError> {
        let mut options = Self { rootfs: PathBuf::from("/"), ..Self::default() };
        let end = arguments.iter().position(|argument| argument == "--");
        let (own, flags) = arguments.split_at(end.unwrap_or(arguments.len()));
        options.agent_flags = flags.iter().skip(1).cloned().collect();
        let mut words = Vec::new();
        let mut parser = lexopt::Parser::from_args(own);
        let (checks, init, reset) = (command == "preflight", command == "init", command == "reset");
        while let Some(argument) = parser.next().map_err(|error| bad(&error))? {
            match argument {
                Arg::Long("config") => options.config = Some(text(&mut parser)?.into()),
                Arg::Long("cert-dir") if !checks => options.cert_dir = Some(text(&mut parser)?.into()),
                Arg::Long("kubeconfig") if reset => options.kubeconfig = Some(text(&mut parser)?.into()),
                Arg::Long("cleanup-tmp-dir") if reset => options.cleans_temporary = true,
                Arg::Long("container-runtime-endpoint" | "cri-socket") => {
                    options.endpoint = Some(endpoint(&text(&mut parser)?));
                }
                Arg::Long("ignore-preflight-errors") => {
                    options.ignored.add(&text(&mut parser)?).map_err(UsageError::Option)?;
                }
                Arg::Long("skip-phases") if !checks => {
                    options
                        .skip_phases
                        .extend(text(&mut parser)?.split(',').map(|name| name.trim().to_owned()));
                }
                Arg::Long("rootfs") if !checks => options.rootfs = text(&mut parser)?.into(),
                Arg::Long("program") if init => options.program = Some(text(&mut parser)?.into()),
                Arg::Long("dry-run") if !checks => options.dry_run = true,
                Arg::Long("example") if init => options.example = true,
                Arg::Long("volumes") if reset => options.volumes = true,
                Arg::Short('f') | Arg::Long("force") if reset => options.force = true,
                Arg::Long("skip-self-test") if !reset => options.no_self_test = true,
                Arg::Short('v') | Arg::Long("verbose") if checks => options.verbose = true,
                Arg::Short('o') | Arg::Long("output") if checks => {
                    options.json = match text(&mut parser)?.as_str() {
                        "json" => true,
                        "text" => false,
                        other => {
                            let message = format!("unknown output format {other:?}: use one of text, json");
                            return Err(UsageError::Option(message));
                        }
                    };
                }
                Arg::Short('h') | Arg::Long("help") => options.help = true,
                Arg::Value(word) => words.push(word.to_string_lossy().into_owned()),
                other => return Err(UsageError::Option(other.unexpected().to_string())),
            }
        }
        options.parse_phase(&words, phases)?;
        if options.program.is_some() && options.is_live() {
            let message = "--program requires --rootfs DIR: without it, the service runs this program";
            return Err(UsageError::Option(message.to_owned()));
        }
        if init && options.config.is_some() && options.endpoint.is_some() {
            let message =
                "can not mix '--config' with arguments [container-runtime-endpoint]: set it in the file";
            return Err(UsageError::Option(message.to_owned()));
        }
        if reset && options.config.is_some() {
            let mixed = [
                ("cert-dir", options.cert_dir.is_some()),
                ("cleanup-tmp-dir", options.cleans_temporary),
                ("cri-socket", options.endpoint.is_some()),
                ("force", options.force),
            ];
            let mixed: Vec<_> =
                mixed.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
            if !mixed.is_empty() {
                let message = format!("can not mix '--config' with arguments [{}]", mixed.join(" "));
                return Err(UsageError::Option(message));
            }
        }
        // The service has to find them, too. `reset` first looks whose they are.
        if let Some(directory) = options.cert_dir.as_ref().filter(|_| !reset) {
            options.agent_flags.push(format!("--cert-dir={}", directory.display()));
        }
        Ok(options)
    }

    fn parse_phase(&mut self, words: &[String], phases: &Phases) -> Result<(), UsageError> {
        let names: Vec<&str> = phases.iter().map(|(name, _)| *name).collect();
        let is_known = |name: &str| names.contains(&name);
        match words {
            [] => {}
            [word] if word == "phase" && !names.is_empty() => {
                if !self.help {
                    return Err(UsageError::NoPhase(names.join(", ")));
                }
            }
            [word, name] if word == "phase" && is_known(alias(name)) => {
                self.phase = Some(alias(name).to_owned());
            }
            [word, name, ..] if word == "phase" && !names.is_empty() => {
                return Err(UsageError::Phase(name.clone()));
            }
            [word, ..] => return Err(UsageError::Unexpected(word.clone())),
        }
        match self.skip_phases.iter().find(|name| !is_known(name)) {
            Some(name) => Err(UsageError::Phase(name.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn has_phase(&self, name: &str) -> bool {
        match &self.phase {
            Some(only) => only == name,
            None => !self.skip_phases.iter().any(|skipped| skipped == name),
        }
    }

    /// The system is this machine's running system.
    pub(super) fn is_live(&self) -> bool {
        self.rootfs == Path::new("/")
    }

    /// A path of the target system as seen from here.
    pub(super) fn rooted(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.rootfs.join(path.strip_prefix("/").unwrap_or(path))
    }
}

fn bad(error: &lexopt::Error) -> UsageError {
    UsageError::Option(error.to_string())
}

/// The value of an option.
pub(in crate::cmd) fn text(parser: &mut lexopt::Parser) -> Result<String, UsageError> {
    let value = parser.value().map_err(|error| bad(&error))?;
    Ok(value.to_string_lossy().into_owned())
}

/// kubeadm's other names of phases.
fn alias(name: &str) -> &str {
    match name {
        "pre-flight" => "preflight",
        "cleanupnode" => "cleanup-node",
        other => other,
    }
}

/// kubeadm prefixes a path with the scheme; the embedded runtime has none.
pub(super) fn endpoint(given: &str) -> String {
    if given.starts_with('/') { format!("unix://{given}") } else { given.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(command: &str, line: &str) -> Result<InitOptions, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        InitOptions::parse(command, &words, &super::super::phases_of(command))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_are_kubeadms_and_what_follows_two_dashes_is_the_agents() {
        let options = parse(
            "init",
            "--cri-socket /run/c.sock --skip-phases=preflight,wait --ignore-preflight-errors Swap,MEM -- --v 4",
        )
        .unwrap();
        assert_eq!(options.endpoint.as_deref(), Some("unix:///run/c.sock"));
        assert!(!options.has_phase("wait") && options.has_phase("start"));
        assert_eq!(options.agent_flags, ["--v", "4"]);
        let only = parse("init", "phase certs").unwrap();
        assert!(only.has_phase("certs") && !only.has_phase("start"));
        assert_eq!(parse("init", "--rootfs /image").unwrap().rooted("/etc/x"), Path::new("/image/etc/x"));
        assert!(parse("reset", "-f --volumes phase pods").unwrap().volumes);
        let reset =
            parse("reset", "--cleanup-tmp-dir --kubeconfig /k --cert-dir /p phase cleanupnode").unwrap();
        assert!(reset.cleans_temporary && reset.has_phase("cleanup-node") && reset.agent_flags.is_empty());
        assert!(parse("preflight", "-o json").unwrap().json);
    }

    #[test]
    fn what_a_command_does_not_have_is_refused_by_name() {
        let said = |command, line| parse(command, line).unwrap_err();
        assert!(said("init", "--volumes").contains("--volumes"));
        assert!(said("reset", "--example").contains("--example"));
        assert!(said("preflight", "--dry-run").contains("--dry-run"));
        assert_eq!(said("init", "--skip-phases=cert"), "invalid phase name: cert");
        assert_eq!(said("init", "phase kubelet-start"), "invalid phase name: kubelet-start");
        assert!(said("reset", "phase").contains("cleanup-node"));
        assert!(said("init", "--config a --cri-socket /b").contains("can not mix"));
        let mixed = "can not mix '--config' with arguments [cri-socket force]";
        assert_eq!(said("reset", "--config a -f --cri-socket /b"), mixed);
        assert_eq!(said("init", "now"), "unexpected argument \"now\"");
        assert!(said("preflight", "-o xml").contains("text, json"));
        assert!(said("init", "--ignore-preflight-errors=all,Mem").contains("'all'"));
    }
}
