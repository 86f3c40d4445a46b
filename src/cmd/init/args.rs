//! Arguments of `preflight`, `init` and `reset`.
//!
//! Owns their names, defaults and help. Names are kubeadm's where it has the flag. Must not know what they lead to.

use std::path::{Path, PathBuf};

use lexopt::Arg;

use super::preflight::Ignored;

/// Names of a command's phases, each with a line of help.
pub(super) type Phases = Vec<(&'static str, &'static str)>;

/// The command line makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UsageError {
    #[error("{0}")]
    Option(String),
    #[error("invalid phase name: {0}")]
    Phase(String),
    #[error("say which phase: {0}")]
    NoPhase(String),
    #[error("unexpected argument {0:?}")]
    Unexpected(String),
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Of `init phase NAME`, `reset phase NAME`.
    pub(super) phase: Option<String>,
    pub(super) config: Option<PathBuf>,
    pub(super) cert_dir: Option<PathBuf>,
    pub(super) endpoint: Option<String>,
    pub(super) skip_phases: Vec<String>,
    pub(super) ignored: Ignored,
    pub(super) dry_run: bool,
    pub(super) example: bool,
    pub(super) force: bool,
    pub(super) volumes: bool,
    pub(super) verbose: bool,
    pub(super) control_plane: bool,
    pub(super) no_self_test: bool,
    pub(super) json: bool,
    pub(super) help: bool,
    /// The machine's root directory, or that of a system that does not run.
    pub(super) rootfs: PathBuf,
    /// The program for the system in `rootfs`; this one if none is given.
    pub(super) program: Option<PathBuf>,
    /// Everything after `--`: for the agent itself.
    pub(super) agent_flags: Vec<String>,
}

const PREFLIGHT: &str = "\
Look at this machine and tell what is in the way of running pods, and what helps. Changes nothing: a test container runs in
a directory and a cgroup of its own, which are removed.

Usage: agent preflight [options] [-- FLAGS OF THE AGENT]

Options:
      --config FILE                      KubeletConfiguration the agent is to have (default /var/lib/kubelet/config.yaml,
                                         if it is there)
      --container-runtime-endpoint URL   Runtime the agent is to use (default embedded); also --cri-socket
      --control-plane                    Also check what a control plane beside it needs: 2 CPUs, 1700 MB, its ports
      --ignore-preflight-errors LIST     Checks whose errors are shown as warnings, by name, 'all' for all of them
      --skip-self-test                   Run no test container
  -o, --output text|json                 text, or everything for programs
  -v, --verbose                          Show what is well, too
  -h, --help                             This text

Exit status: 0 when there is no error, 1 when there is one, 2 for bad usage. docs/init.md has every check.
";

const INIT: &str = "\
Set this machine up as a node of its own: check it, make certificates and a kubeconfig, write the configuration, start the
service, wait until it is healthy. May be repeated: what is there and valid is kept, what differs is kept and named.

Usage: agent init [options] [-- FLAGS OF THE AGENT]
       agent init phase NAME [options]

Flags after -- are written to /etc/default/agent, for the service.

Options:
      --cert-dir DIR                     Where certificates are (default ROOT-DIR/pki)
      --config FILE                      KubeletConfiguration to install, instead of one with commented defaults
      --container-runtime-endpoint URL   Runtime to use, written into the configuration (default embedded); also --cri-socket
      --dry-run                          Print what would be done and written; change nothing
      --example                          Write a manifest of a small web server, too
      --ignore-preflight-errors LIST     Checks whose errors are shown as warnings, by name, 'all' for all of them
      --program FILE                     With --rootfs: the program to put there, such as one for another processor
      --rootfs DIR                       Set up the system in DIR, which does not run (an image): nothing is checked or
                                         started, the program is put there, and certificates are made at its first boot
      --skip-phases LIST                 Phases to leave out
      --skip-self-test                   Run no test container
  -h, --help                             This text

Phases, in this order:
";

const RESET: &str = "\
Undo what agent init did: stop the service and its pods, remove the agent's state and what init wrote. Data of claims stays
unless --volumes is given; manifests, container logs and files that somebody changed stay, and are named.

Usage: agent reset [options] [-- FLAGS OF THE AGENT]
       agent reset phase NAME [options]

Options:
      --cert-dir DIR                     Where certificates are (default ROOT-DIR/pki)
      --dry-run                          Print what would be done; change nothing
  -f, --force                            Do not ask
      --ignore-preflight-errors LIST     Checks whose errors are shown as warnings
      --rootfs DIR                       Reset the system in DIR, which does not run
      --skip-phases LIST                 Phases to leave out
      --volumes                          Delete the data of claims (/var/lib/kubelet/volumes), for good
  -h, --help                             This text

Phases, in this order:
";

/// The text of `--help`.
pub(super) fn help(command: &str, phases: &Phases) -> String {
    let text = match command {
        "preflight" => return PREFLIGHT.to_owned(),
        "reset" => RESET,
        _ => INIT,
    };
    let listed: String =
        phases.iter().map(|(name, help)| ["  ", &format!("{name:<18} {help}"), "\n"].concat()).collect();
    format!("{text}{listed}\nExit status: 0, 1 when it failed, 2 for bad usage.\n")
}

impl Options {
    /// # Errors
    /// An option that the command does not have, or one without its value.
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
                Arg::Long("config") if !reset => options.config = Some(text(&mut parser)?.into()),
                Arg::Long("cert-dir") if !checks => options.cert_dir = Some(text(&mut parser)?.into()),
                Arg::Long("container-runtime-endpoint" | "cri-socket") if !reset => {
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
                Arg::Long("control-plane") if checks => options.control_plane = true,
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
        options.take_phase(&words, phases)?;
        if options.program.is_some() && options.is_live() {
            let message = "--program is for --rootfs DIR: here the program that you call is the service's";
            return Err(UsageError::Option(message.to_owned()));
        }
        if init && options.config.is_some() && options.endpoint.is_some() {
            let message =
                "can not mix '--config' with arguments [container-runtime-endpoint]: write it into the file";
            return Err(UsageError::Option(message.to_owned()));
        }
        // The service has to find them, too.
        if let Some(directory) = &options.cert_dir {
            options.agent_flags.push(format!("--cert-dir={}", directory.display()));
        }
        Ok(options)
    }

    fn take_phase(&mut self, words: &[String], phases: &Phases) -> Result<(), UsageError> {
        let names: Vec<&str> = phases.iter().map(|(name, _)| *name).collect();
        let is_known = |name: &str| names.contains(&name);
        match words {
            [] => {}
            [word] if word == "phase" && !names.is_empty() => {
                if !self.help {
                    return Err(UsageError::NoPhase(names.join(", ")));
                }
            }
            [word, name] if word == "phase" && is_known(name) => self.phase = Some(name.clone()),
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

    /// Whether this phase is to be carried out.
    pub(super) fn has_phase(&self, name: &str) -> bool {
        match &self.phase {
            Some(only) => only == name,
            None => !self.skip_phases.iter().any(|skipped| skipped == name),
        }
    }

    /// The system is this machine's, and it runs.
    pub(super) fn is_live(&self) -> bool {
        self.rootfs == Path::new("/")
    }

    /// A path of the system that is set up, as it is here.
    pub(super) fn rooted(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.rootfs.join(path.strip_prefix("/").unwrap_or(path))
    }
}

fn bad(error: &lexopt::Error) -> UsageError {
    UsageError::Option(error.to_string())
}

/// The value of an option.
fn text(parser: &mut lexopt::Parser) -> Result<String, UsageError> {
    let value = parser.value().map_err(|error| bad(&error))?;
    Ok(value.to_string_lossy().into_owned())
}

/// kubeadm puts the scheme before a path; the embedded runtime has none.
fn endpoint(given: &str) -> String {
    if given.starts_with('/') { format!("unix://{given}") } else { given.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(command: &str, line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(command, &words, &super::super::phases_of(command)).map_err(|error| error.to_string())
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
        assert_eq!(said("init", "now"), "unexpected argument \"now\"");
        assert!(said("preflight", "-o xml").contains("text, json"));
        assert!(said("init", "--ignore-preflight-errors=all,Mem").contains("'all'"));
    }
}
