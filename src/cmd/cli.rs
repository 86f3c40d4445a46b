//! Subcommands that query the agent (`status`, `get`, `ps`, `describe`, `logs`), connect to its pods (`exec`,
//! `attach`, `cp`, `port-forward`), or change its state: `run`, `apply`, `delete`, `stop` through its API,
//! `image` in the image store, `source` the desired state. Each parses, calls and renders.
//!
//! Owns their output and exit codes.

mod api;
mod apply;
mod args;
mod claims;
mod client;
mod completion;
mod copy;
mod delete;
mod describe;
mod events;
mod exec;
mod files;
mod findings;
mod forward;
mod get;
mod image;
mod jsonpath;
pub(crate) mod kubeconfig;
mod listing;
mod logs;
mod objects;
mod offline;
mod ps;
mod resolve;
mod restart;
mod snapshot;
mod source;
mod start;
mod status;
mod table;
mod tabs;
mod target;
mod top;
mod wait;

use std::io::{self, Write};

use serde::Serialize;

pub(super) use api::post;
pub(crate) use args::UsageError;
pub(crate) use client::ClientError;
pub(crate) use client::fetch_report;
pub(crate) use table::render as columns;

pub(crate) use crate::codec::yaml::text as yaml;
use crate::model::types::Timestamp;
use crate::platform::logging::chain;
use crate::serve::localapi::age;
use crate::serve::server::pki::PkiError;
use crate::store::StoreError;

pub(super) const EXIT_OK: u8 = 0;
/// The command failed, or `status` found a problem.
pub(super) const EXIT_FAILED: u8 = 1;
pub(super) const EXIT_USAGE: u8 = 2;

/// The surroundings of a command, besides the agent.
pub struct Environment<'a> {
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
    /// Standard output is a terminal.
    pub terminal: bool,
    /// Colours are allowed: see [`wants_colour`].
    pub colour: bool,
    /// The time from which ages are computed.
    pub now: Timestamp,
}

/// Whether colours are allowed on a terminal: `NO_COLOR` is not set (<https://no-color.org>), and the
/// terminal is not dumb.
#[must_use]
pub fn wants_colour(no_color: Option<&str>, term: Option<&str>) -> bool {
    no_color.is_none_or(str::is_empty) && term != Some("dumb")
}

#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error("{0}")]
    Usage(UsageError),
    #[error("connect to the agent")]
    Client(#[source] ClientError),
    #[error("the agent is not running, and its last known state cannot be read")]
    Store(#[source] StoreError),
    #[error("{kind} {name:?} not found in namespace {namespace:?}")]
    NotFound { kind: &'static str, name: String, namespace: String },
    #[error(transparent)]
    Image(#[from] image::ImageCommandError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("{0}")]
    Answer(String),
    #[error("encode the output")]
    Encode(#[source] serde_json::Error),
    #[error("write the output")]
    Output(#[source] io::Error),
    /// Of a command in a container, to anything but standard output.
    #[error("write the output of the command")]
    CommandOutput(#[source] io::Error),
    #[error("start the async runtime")]
    Runtime(#[source] io::Error),
}

/// Pods as `agent status -o wide` shows them.
#[must_use]
pub fn pods_table(pods: &[crate::model::api::pod::Pod], now: Timestamp) -> String {
    table::render(&status::pod_rows(pods, true, now))
}

/// Runs a command of [`crate::agent::config::CLIENT_COMMANDS`] with the arguments after its name; returns the
/// exit code.
pub fn run(command: &str, arguments: &[String], mut environment: Environment<'_>) -> u8 {
    let result = match command {
        "status" => status::run(arguments, &mut environment),
        "source" => source::run(arguments, &mut environment),
        "get" => get::run(arguments, &mut environment),
        "image" => image::run(arguments, &mut environment),
        "describe" => describe::run(arguments, &mut environment),
        "delete" => delete::run(arguments, &mut environment),
        "run" => start::run(arguments, &mut environment),
        "apply" => apply::run(arguments, &mut environment),
        "snapshot" => snapshot::run(arguments, &mut environment),
        "restart" => restart::run(restart::Act::Restart, arguments, &mut environment),
        "stop" => restart::run(restart::Act::Stop, arguments, &mut environment),
        "ps" => ps::run(arguments, &mut environment),
        "cp" => copy::run(arguments, &mut environment),
        "completion" => completion::run(arguments, &mut environment),
        "kubeconfig" => kubeconfig::run(arguments, &mut environment),
        "events" => events::run(arguments, &mut environment),
        "top" => top::run(arguments, &mut environment),
        "resolve" => resolve::run(arguments, &mut environment),
        "wait" => wait::run(arguments, &mut environment),
        "exec" => exec::run(exec::ExecOrAttach::Exec, arguments, &mut environment).map(|ended| ended.0),
        "attach" => exec::run(exec::ExecOrAttach::Attach, arguments, &mut environment).map(|ended| ended.0),
        "port-forward" => forward::run(arguments, &mut environment),
        "logs" => logs::run(arguments, &mut environment),
        _ => Err(CliError::Usage(UsageError::UnknownCommand { name: command.to_owned() })),
    };
    finish(command, result, &mut environment)
}

/// Reports an error, and returns the exit code.
fn finish(command: &str, result: Result<u8, CliError>, environment: &mut Environment<'_>) -> u8 {
    match result {
        Ok(code) => code,
        // `agent get pods | head` is not an error.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => EXIT_OK,
        Err(error) => {
            // The write may fail: standard error may be closed, too.
            let _ = writeln!(environment.err, "error: {}", chain(&error));
            if matches!(error, CliError::Usage(_)) {
                let _ = writeln!(environment.err, "See \"agent {command} --help\".");
                return EXIT_USAGE;
            }
            EXIT_FAILED
        }
    }
}

/// The resources of `agent get`.
fn resources() -> String {
    api::listed().map(|resource| resource.plural).collect::<Vec<_>>().join(", ")
}

/// Writes a whole output at once.
fn print(environment: &mut Environment<'_>, text: &str) -> Result<(), CliError> {
    environment
        .out
        .write_all(text.as_bytes())
        .and_then(|()| environment.out.flush())
        .map_err(CliError::Output)
}

/// An object as indented JSON, as kubectl prints it.
fn to_json(object: &impl Serialize) -> Result<String, CliError> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    serde_json::to_value(object)
        .and_then(|value| value.serialize(&mut serializer))
        .map_err(CliError::Encode)?;
    text.push(b'\n');
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn to_yaml(object: &impl Serialize) -> Result<String, CliError> {
    serde_json::to_value(object).map(|value| yaml::to_string(&value)).map_err(CliError::Encode)
}

#[cfg(test)]
mod tests;
