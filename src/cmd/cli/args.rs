//! Common arguments of all commands, and those that `status`, `get`, `describe` and `delete` share.
//!
//! Owns their names and defaults.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::Arg;

use crate::model::duration::GoDuration;

pub(super) const DEFAULT_ROOT_DIR: &str = "/var/lib/kubelet";

/// The options with the same meaning in every command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Common {
    pub socket: PathBuf,
    /// `None`: all namespaces.
    pub namespace: Option<String>,
    pub help: bool,
}

/// Which common options a command has; each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Has {
    Socket,
    Namespace,
    AllNamespaces,
}

/// An argument of the command's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own<'a> {
    /// With its dashes; its value has not been read yet.
    Option(&'a str),
    Word(&'a str),
}

impl Default for Common {
    fn default() -> Self {
        let socket = PathBuf::from(crate::serve::server::DEFAULT_SOCKET);
        Self { socket, namespace: Some("default".to_owned()), help: false }
    }
}

impl Common {
    /// Parses the arguments. Those that are not common are passed to `own`, which returns whether the command
    /// has them.
    pub(super) fn parse(
        arguments: &[String],
        has: Has,
        own: &mut dyn FnMut(Own<'_>, &mut lexopt::Parser) -> Result<bool, UsageError>,
    ) -> Result<Self, UsageError> {
        let mut common = Self::default();
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(|error| bad_option(&error))? {
            let name = match argument {
                Arg::Short(letter) => format!("-{letter}"),
                Arg::Long(name) => format!("--{name}"),
                Arg::Value(word) => {
                    let word = text(word);
                    if own(Own::Word(&word), &mut parser)? {
                        continue;
                    }
                    return Err(UsageError::Unexpected { given: word });
                }
            };
            match name.as_str() {
                "-h" | "--help" => common.help = true,
                "--socket" => common.socket = value(&mut parser)?.into(),
                "-n" | "--namespace" if has >= Has::Namespace => {
                    common.namespace = Some(text(value(&mut parser)?));
                }
                "-A" | "--all-namespaces" if has >= Has::AllNamespaces => common.namespace = None,
                _ if own(Own::Option(&name), &mut parser)? => {}
                _ => return Err(bad_option(&lexopt::Error::UnexpectedOption(name))),
            }
        }
        Ok(common)
    }

    /// The namespace of a command that uses only one.
    pub(super) fn one_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CliOptions {
    pub socket: PathBuf,
    pub root_dir: PathBuf,
    pub output: OutputFormat,
    pub namespace: Option<String>,
    pub all_namespaces: bool,
    pub no_headers: bool,
    /// Of `ps`: also containers that do not run.
    pub all: bool,
    pub exit_zero: bool,
    pub show_secrets: bool,
    pub show_managed_fields: bool,
    /// Of `get`: also watch for changes.
    pub watch: bool,
    pub selector: Option<String>,
    pub field_selector: Option<String>,
    /// For [`OutputFormat::JsonPath`].
    pub template: Option<String>,
    /// Of `delete`: confirmed.
    pub yes: bool,
    pub help: bool,
    /// The positional arguments.
    pub words: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OutputFormat {
    #[default]
    Text,
    Wide,
    Json,
    Yaml,
    Name,
    JsonPath,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("unknown command {name:?}")]
    UnknownCommand { name: String },
    #[error("{message}")]
    Option {
        /// The parser's message.
        message: String,
    },
    #[error("unknown output format {given:?}: use one of {allowed}")]
    Output {
        given: String,
        /// The supported ones.
        allowed: &'static str,
    },
    #[error(
        "unknown resource type {given:?}: use pods, nodes, configmaps, secrets or persistentvolumeclaims (pvc)"
    )]
    Resource { given: String },
    #[error("the server doesn't have a resource type {given:?}: use one of {}", crate::cmd::cli::resources())]
    Unknown { given: String },
    #[error("missing resource type: agent get {}", crate::cmd::cli::resources())]
    NoResource,
    #[error("missing resource type: agent describe pod|node|configmap|secret|pvc|namespace NAME")]
    NothingToDescribe,
    #[error("nothing to delete: agent delete pod NAME, or agent delete -f FILE")]
    NothingToDelete,
    #[error("--yes deletes the data of claims (pvc) only: omit it to delete {given:?}")]
    NoData { given: String },
    #[error("unexpected argument {given:?}")]
    Unexpected { given: String },
    #[error("a resource cannot be retrieved by name across all namespaces: use --namespace")]
    NameInAllNamespaces,
}

/// The options of a command beyond the common ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Status,
    Get,
    Describe,
    /// Of `delete` for the data of claims.
    Delete,
    Ps,
}

impl CliOptions {
    pub(super) fn parse(command: Command, arguments: &[String]) -> Result<Self, UsageError> {
        let mut options = Self {
            socket: PathBuf::from(crate::serve::server::DEFAULT_SOCKET),
            root_dir: PathBuf::from(DEFAULT_ROOT_DIR),
            output: OutputFormat::default(),
            namespace: None,
            all_namespaces: false,
            no_headers: false,
            all: false,
            exit_zero: false,
            show_secrets: false,
            show_managed_fields: false,
            watch: false,
            selector: None,
            field_selector: None,
            template: None,
            yes: false,
            help: false,
            words: Vec::new(),
        };
        let pods = command != Command::Status;
        let shows = command != Command::Delete;
        let common = Common::parse(arguments, Has::Socket, &mut |own, parser| {
            match own {
                Own::Option("--root-dir") => options.root_dir = value(parser)?.into(),
                Own::Option("-o" | "--output") if shows && command != Command::Describe => {
                    let given = text(value(parser)?);
                    match given.strip_prefix("jsonpath=").filter(|_| command == Command::Get) {
                        Some(template) => {
                            (options.output, options.template) =
                                (OutputFormat::JsonPath, Some(template.to_owned()));
                        }
                        None => options.output = output(command, &given)?,
                    }
                }
                // Whether it was given matters: `None` is not the same as the default namespace.
                Own::Option("-n" | "--namespace") if pods => options.namespace = Some(text(value(parser)?)),
                Own::Option("-A" | "--all-namespaces") if pods && shows => options.all_namespaces = true,
                Own::Option("-w" | "--watch") if command == Command::Get => options.watch = true,
                Own::Option("-l" | "--selector") if command == Command::Get => {
                    options.selector = Some(text(value(parser)?));
                }
                Own::Option("--field-selector") if command == Command::Get => {
                    options.field_selector = Some(text(value(parser)?));
                }
                Own::Option("--no-headers") if matches!(command, Command::Get | Command::Ps) => {
                    options.no_headers = true;
                }
                Own::Option("--show-managed-fields") if command == Command::Get => {
                    options.show_managed_fields = true;
                }
                Own::Option("-a" | "--all") if command == Command::Ps => options.all = true,
                Own::Option("--show-secrets") if pods && shows => options.show_secrets = true,
                Own::Option("--yes") if !shows => options.yes = true,
                Own::Option("--exit-zero") if !pods => options.exit_zero = true,
                Own::Word(word) => options.words.push(word.to_owned()),
                Own::Option(_) => return Ok(false),
            }
            Ok(true)
        })?;
        (options.socket, options.help) = (common.socket, common.help);
        Ok(options)
    }

    /// The selectors as parameters of the Kubernetes API.
    pub(super) fn selectors(&self) -> Vec<(&'static str, String)> {
        let both = [("labelSelector", &self.selector), ("fieldSelector", &self.field_selector)];
        both.into_iter().filter_map(|(name, given)| Some((name, given.clone()?))).collect()
    }
}

pub(super) fn value(parser: &mut lexopt::Parser) -> Result<OsString, UsageError> {
    parser.value().map_err(|error| bad_option(&error))
}

pub(super) fn text(value: OsString) -> String {
    value.into_string().unwrap_or_else(|value| value.to_string_lossy().into_owned())
}

/// A positive duration. `name` and `example` are for the error.
pub(super) fn duration(
    parser: &mut lexopt::Parser,
    name: &str,
    example: &str,
) -> Result<GoDuration, UsageError> {
    let given = text(value(parser)?);
    let parsed = GoDuration::parse(&given).ok().filter(|parsed| parsed.as_nanos() > 0);
    let message = || format!("{name} {given:?}: must be a duration such as {example}");
    parsed.ok_or_else(|| UsageError::Option { message: message() })
}

pub(super) fn bad_option(error: &lexopt::Error) -> UsageError {
    UsageError::Option { message: error.to_string() }
}

fn output(command: Command, given: &str) -> Result<OutputFormat, UsageError> {
    match (given, command) {
        ("json", _) => Ok(OutputFormat::Json),
        ("yaml", _) => Ok(OutputFormat::Yaml),
        ("wide", _) => Ok(OutputFormat::Wide),
        ("name", Command::Get) => Ok(OutputFormat::Name),
        _ => {
            let allowed = if command == Command::Get {
                "json, yaml, wide, name, jsonpath=TEMPLATE"
            } else {
                "json, yaml, wide"
            };
            Err(UsageError::Output { given: given.to_owned(), allowed })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(command: Command, line: &str) -> Result<CliOptions, UsageError> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        CliOptions::parse(command, &words)
    }

    #[test]
    fn options_are_accepted_anywhere_and_in_every_usual_form() {
        let options = parse(Command::Get, "pods -nkube-system --output=json web --root-dir /r").unwrap();
        assert_eq!(options.words, ["pods", "web"]);
        assert_eq!(options.namespace.as_deref(), Some("kube-system"));
        assert_eq!(options.output, OutputFormat::Json);
        assert_eq!(options.root_dir, PathBuf::from("/r"));
        assert_eq!(options.socket, PathBuf::from("/run/agent/agent.sock"));
    }

    #[test]
    fn what_a_command_does_not_have_is_refused_by_name() {
        let message = |command, line| parse(command, line).unwrap_err().to_string();
        assert!(message(Command::Status, "-A").contains("'-A'"));
        assert!(message(Command::Get, "--exit-zero").contains("--exit-zero"));
        assert!(message(Command::Get, "--socket").contains("--socket"));
        let refused = message(Command::Status, "-o name");
        assert_eq!(refused, "unknown output format \"name\": use one of json, yaml, wide");
    }
}
