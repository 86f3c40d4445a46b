//! `agent completion`: scripts for shells, and the completions.
//!
//! The scripts are a few lines each and call this program for every word, so that completions match this
//! version and the running agent. Owns both.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::args::{Common, Has, Own, UsageError};
use super::{CliError, EXIT_OK, Environment, api, client, print};
use crate::cmd::help;
use crate::model::api::pod::Pod;
use crate::model::ordered::Sortable as _;
use crate::platform::rt;
use crate::platform::sys::command;
use crate::serve::server::{AgentReport, ObjectDetail};

const BASH: &str = r#"# bash completion of agent                                 -*- shell-script -*-
_agent() {
	mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	[ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
	[[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != */ ]] || compopt -o nospace
}
complete -F _agent agent
"#;

const ZSH: &str = r#"#compdef agent
_agent() {
	local -a found
	found=("${(@f)$("${words[1]}" completion words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	if [[ -n "${found[1]}" ]]; then
		compadd -- "${found[@]}"
	else
		_files
	fi
}
if [[ "${funcstack[1]}" = "_agent" ]]; then
	_agent "$@"
else
	compdef _agent agent
fi
"#;

const FISH: &str = r#"# fish completion of agent
function __agent_complete
	set -l before (commandline -opc)
	set -l current (commandline -ct)
	set -l found ($before[1] completion words $before[2..-1] "$current" 2>/dev/null)
	if test (count $found) -gt 0
		printf '%s\n' $found
	else
		__fish_complete_path "$current"
	end
end
complete -c agent -f -a '(__agent_complete)'
"#;

/// Beyond this a shell offers nothing rather than wait for the agent.
const PATIENCE: Duration = Duration::from_secs(1);
const LONGEST_HELP: u64 = 256 * 1024;

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    // Called by the scripts: the words after the program's name, the last of them unfinished.
    if let Some(("words", words)) = arguments.split_first().map(|(first, words)| (first.as_str(), words)) {
        // bash splits `--option=value`.
        let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "=").collect();
        print(environment, &offered(&words).iter().map(|word| [word, "\n"].concat()).collect::<String>())?;
        return Ok(EXIT_OK);
    }
    let mut shell = None;
    let common = Common::parse(arguments, Has::Socket, &mut |own, _| {
        match own {
            Own::Word(word) if shell.is_none() => shell = Some(word.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })
    .map_err(CliError::Usage)?;
    if common.help {
        print(environment, &help::text("completion"))?;
        return Ok(EXIT_OK);
    }
    let script = match shell.as_deref() {
        Some("bash") => BASH,
        Some("zsh") => ZSH,
        Some("fish") => FISH,
        _ => {
            let message = "missing shell: agent completion bash, zsh or fish".to_owned();
            return Err(CliError::Usage(UsageError::Option { message }));
        }
    };
    print(environment, script)?;
    Ok(EXIT_OK)
}

/// The completions of the last word.
fn offered(words: &[&str]) -> Vec<String> {
    let (current, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (*last, before));
    let place = CompletionPlace::of(before);
    let mut offered = match &place {
        CompletionPlace::Command => {
            let mut commands = commands(&help(None));
            if current.starts_with('-') {
                commands = options(&help(None));
            }
            commands
        }
        CompletionPlace::Argument { command, .. } if current.starts_with('-') => {
            options(&help(Some(command)))
        }
        place => place.candidates(current),
    };
    offered.retain(|word| word.starts_with(current));
    offered.order_by(Ord::cmp);
    offered.dedup();
    offered
}

/// The kind of the word to complete.
#[derive(Debug, PartialEq, Eq)]
enum CompletionPlace<'a> {
    Command,
    /// The value of an option.
    Value {
        option: &'a str,
        given: Given<'a>,
    },
    Argument {
        command: &'a str,
        given: Given<'a>,
    },
}

/// The arguments before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Given<'a> {
    socket: Option<&'a str>,
    namespace: Option<&'a str>,
    /// The positional arguments.
    words: Vec<&'a str>,
}

/// The options of all commands that take a value, as needed to find the positional arguments.
const WITH_VALUE: [&str; 28] = [
    "-n",
    "--namespace",
    "-c",
    "--container",
    "-o",
    "--output",
    "-l",
    "--selector",
    "-f",
    "--filename",
    "--socket",
    "--root-dir",
    "--field-selector",
    "--for",
    "--timeout",
    "--tail",
    "--since",
    "--since-time",
    "--limit-bytes",
    "--sort-by",
    "--types",
    "--grace-period",
    "--name",
    "--image",
    "--env",
    "-e",
    "--restart",
    "--port",
];

impl<'a> CompletionPlace<'a> {
    fn of(before: &[&'a str]) -> Self {
        let Some((command, rest)) = before.split_first() else { return Self::Command };
        let follows = matches!(*command, "logs" | "exec" | "events");
        let takes = |word: &str| WITH_VALUE.contains(&word) && !(word == "-f" && follows);
        let (mut given, mut rest) = (Given::default(), rest.iter().copied());
        while let Some(word) = rest.next() {
            if let Some((option, value)) = word.split_once('=').filter(|_| word.starts_with("--")) {
                given.take(option, value);
            } else if takes(word) {
                match rest.next() {
                    Some(value) => given.take(word, value),
                    None => return Self::Value { option: word, given },
                }
            } else if !word.starts_with('-') {
                given.words.push(word);
            }
        }
        Self::Argument { command, given }
    }

    fn candidates(&self, current: &str) -> Vec<String> {
        let fixed = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match self {
            Self::Command => Vec::new(),
            Self::Value { option, given } => match *option {
                "-n" | "--namespace" => given.names("namespaces"),
                "-c" | "--container" => given.words.first().map_or(Vec::new(), |pod| given.containers(pod)),
                "-o" | "--output" => fixed(&["json", "yaml", "wide", "name", "jsonpath="]),
                "--restart" => fixed(&["Always", "OnFailure", "Never"]),
                "--sort-by" => fixed(&["cpu", "memory"]),
                "--types" => fixed(&["Normal", "Warning"]),
                "--for" => fixed(&["condition=", "jsonpath=", "create", "delete"]),
                _ => Vec::new(),
            },
            Self::Argument { command, given } => match (*command, given.words.as_slice()) {
                ("get" | "describe" | "delete" | "wait", []) => match current.split_once('/') {
                    Some((kind, _)) => {
                        given.names(kind).iter().map(|name| format!("{kind}/{name}")).collect()
                    }
                    None => kinds(),
                },
                ("get" | "describe" | "delete" | "wait", [kind, ..]) => match kind.split_once('/') {
                    Some((kind, _)) => {
                        given.names(kind).iter().map(|name| format!("{kind}/{name}")).collect()
                    }
                    None => given.names(kind),
                },
                ("logs", [pod]) => given.containers(pod),
                ("logs" | "exec" | "attach" | "port-forward", []) | ("restart" | "stop", _) => {
                    given.names("pods")
                }
                ("cp", _) => given.names("pods").iter().map(|pod| format!("{pod}:")).collect(),
                ("top", []) => fixed(&["pods", "nodes"]),
                ("completion", []) => fixed(&["bash", "zsh", "fish"]),
                ("upgrade", []) => fixed(&["status", "rollback", "watch", "plan", "apply", "node", "diff"]),
                ("image", []) => fixed(&["ls", "pull", "import", "rm", "prune", "inspect"]),
                _ => Vec::new(),
            },
        }
    }
}

impl<'a> Given<'a> {
    fn take(&mut self, option: &str, value: &'a str) {
        match option {
            "-n" | "--namespace" => self.namespace = Some(value),
            "--socket" => self.socket = Some(value),
            _ => {}
        }
    }

    fn socket(&self) -> PathBuf {
        PathBuf::from(self.socket.unwrap_or(crate::serve::server::DEFAULT_SOCKET))
    }

    /// The names of objects of a kind; none when the agent does not answer.
    fn names(&self, kind: &str) -> Vec<String> {
        let Ok(resource) = api::resource(kind) else { return Vec::new() };
        let (socket, namespace) = (self.socket(), self.namespace.unwrap_or("default"));
        let asked =
            async { tokio::time::timeout(PATIENCE, api::selected(&socket, resource, namespace, None)).await };
        rt::run(asked).ok().and_then(Result::ok).and_then(Result::ok).unwrap_or_default()
    }

    fn containers(&self, pod: &str) -> Vec<String> {
        let report = report(&self.socket()).unwrap_or_default();
        let short = pod.rsplit('/').next().unwrap_or_default();
        let full = format!("{short}-{}", report.node_name);
        let is_it = |found: &&Pod| {
            found.metadata.namespace == self.namespace.unwrap_or("default")
                && (found.metadata.name == short || found.metadata.name == full)
        };
        let pod = report.pods.iter().find(is_it);
        let spec = pod.map(|pod| &pod.spec);
        let all = spec.into_iter().flat_map(|spec| spec.containers.iter().chain(&spec.init_containers));
        all.map(|container| container.name.clone()).collect()
    }
}

fn report(socket: &Path) -> Option<AgentReport> {
    let asked =
        async { tokio::time::timeout(PATIENCE, client::fetch_report(socket, ObjectDetail::Counted)).await };
    rt::run(asked).ok()?.ok()?.ok()
}

/// Kinds that can be listed, and their short names.
fn kinds() -> Vec<String> {
    let names = super::api::listed().flat_map(|resource| {
        [resource.plural].into_iter().chain(resource.short_names.iter().copied()).map(str::to_owned)
    });
    names.collect()
}

/// The help of the program, or of one of its commands.
fn help(of: Option<&str>) -> String {
    let mut program = Command::new("/proc/self/exe");
    program.args(of).arg("--help");
    let answer = command::run(&mut program, &[], LONGEST_HELP, PATIENCE);
    answer.map(|answer| String::from_utf8_lossy(&answer.output).into_owned()).unwrap_or_default()
}

/// The commands in the help text: the lines `  agent NAME ...`.
fn commands(help: &str) -> Vec<String> {
    let named = help.lines().filter_map(|line| line.strip_prefix("  agent ")?.split(' ').next());
    let is_name =
        |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-');
    named.filter(is_name).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// `-x` and `--xyz` at the beginning of a line of a help text.
fn options(help: &str) -> Vec<String> {
    let lines = help.lines().filter(|line| line.trim_start().starts_with('-'));
    let words = lines.flat_map(|line| line.split_whitespace().take_while(|word| word.starts_with('-')));
    let names = words.map(|word| word.trim_end_matches(','));
    names.map(|name| name.split(['=', '[']).next().unwrap_or_default().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_place_follows_from_the_preceding_arguments() {
        let place = |line: &'static str| {
            CompletionPlace::of(&line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>())
        };
        assert_eq!(place(""), CompletionPlace::Command);
        assert!(matches!(place("get -n"), CompletionPlace::Value { option: "-n", .. }));
        let CompletionPlace::Argument { command, given } = place("logs -f web -n x --socket=/s --tail 3")
        else {
            panic!()
        };
        assert_eq!(
            (command, given.words, given.namespace, given.socket),
            ("logs", vec!["web"], Some("x"), Some("/s"))
        );
        assert!(matches!(place("apply -f"), CompletionPlace::Value { option: "-f", .. }));
        assert_eq!(place("top").candidates(""), ["pods", "nodes"]);
        assert!(place("get").candidates("").contains(&"po".to_owned()));
        assert_eq!(place("get po --socket /nowhere").candidates(""), Vec::<String>::new());
    }

    #[test]
    fn options_and_commands_are_read_from_help_texts() {
        let help = "Usage: agent x [options]\n\nOptions:\n  -f, --follow   Go on -- really\n      --dry-run[=x]\n      --tail LINES   -1 is all\n";
        assert_eq!(options(help), ["-f", "--follow", "--dry-run", "--tail"]);
        let help = "Usage:\n  agent [flags]      run\n  agent --runonce\n  agent version   it\n\nCommands:\n  agent port-forward   x\n";
        assert_eq!(commands(help), ["version", "port-forward"]);
    }
}
