//! `agent exec` and `agent attach`: into a container, with the local terminal if requested, as kubectl does.
//!
//! Owns the commands and the local terminal.

use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::Path;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::args::{Common, Has, Own, UsageError, bad_option, text, value};
use super::target::{self, FoundPod};
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, client, print};
use crate::cmd::help;
use crate::platform::rt;
use crate::platform::sys::raw_mode::RawMode;
use crate::platform::sys::streams::terminal_size;
use crate::serve::streaming::client::{self as streams, Ended, OutputStream};
use crate::serve::streaming::{Streams, TerminalSize};

/// The size of a read from standard input.
const READ: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExecOrAttach {
    Exec,
    Attach,
}

#[derive(Debug, PartialEq, Eq)]
struct ExecArgs {
    common: Common,
    pod: Option<String>,
    container: Option<String>,
    stdin: bool,
    tty: bool,
    quiet: bool,
    command: Vec<String>,
}

fn parse(entry: ExecOrAttach, arguments: &[String]) -> Result<ExecArgs, UsageError> {
    let mut wanted = ExecArgs {
        common: Common::default(),
        pod: None,
        container: None,
        stdin: false,
        tty: false,
        quiet: false,
        command: Vec::new(),
    };
    wanted.common = Common::parse(arguments, Has::Namespace, &mut |own, parser| {
        match own {
            Own::Option("-c" | "--container") => wanted.container = Some(text(value(parser)?)),
            Own::Option("-i" | "--stdin") => wanted.stdin = true,
            Own::Option("-t" | "--tty") => wanted.tty = true,
            Own::Option("-q" | "--quiet") => wanted.quiet = true,
            Own::Word(word) if wanted.pod.is_none() => wanted.pod = Some(word.to_owned()),
            // All following arguments are the command's, with or without `--` before it.
            Own::Word(word) if entry == ExecOrAttach::Exec => {
                wanted.command.push(word.to_owned());
                let rest = parser.raw_args().map_err(|error| bad_option(&error))?;
                wanted.command.extend(rest.map(text));
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let message = |message: &str| Err(UsageError::Option { message: message.to_owned() });
    match (entry, &wanted) {
        (_, wanted) if wanted.common.help => {}
        (ExecOrAttach::Exec, ExecArgs { pod: None, .. }) => {
            return message("pod and command are required: agent exec POD -- COMMAND");
        }
        (ExecOrAttach::Attach, ExecArgs { pod: None, .. }) => {
            return message("missing pod name: agent attach POD");
        }
        (ExecOrAttach::Exec, ExecArgs { command, .. }) if command.is_empty() => {
            return message("missing command: agent exec POD -- COMMAND");
        }
        _ => {}
    }
    Ok(wanted)
}

/// Runs it; returns the exit code, and whether there was any output.
pub(super) fn run(
    entry: ExecOrAttach,
    arguments: &[String],
    environment: &mut Environment<'_>,
) -> Result<(u8, bool), CliError> {
    let wanted = parse(entry, arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text(if entry == ExecOrAttach::Exec { "exec" } else { "attach" }))?;
        return Ok((EXIT_OK, true));
    }
    let (ended, has_output) = rt::run(enter(entry, wanted, environment)).map_err(CliError::Runtime)??;
    match ended {
        Ended::Code(0) => Ok((EXIT_OK, has_output)),
        Ended::Code(code) => {
            // kubectl's message.
            let _ = writeln!(environment.err, "command terminated with exit code {code}");
            Ok((u8::try_from(code).unwrap_or(EXIT_FAILED), has_output))
        }
        Ended::Failed(words) => Err(CliError::Answer(words)),
        Ended::Lost => Err(CliError::Answer("the connection was lost".to_owned())),
    }
}

async fn enter(
    entry: ExecOrAttach,
    mut wanted: ExecArgs,
    environment: &mut Environment<'_>,
) -> Result<(Ended, bool), CliError> {
    let name = wanted.pod.take().unwrap_or_default();
    let found = target::find(&wanted.common.socket, wanted.common.one_namespace(), &name).await?;
    let container = found.container(wanted.container.as_deref(), environment);
    let (mut stdin, mut tty) = (wanted.stdin, wanted.tty);
    let mut say = |words: &str| {
        if !wanted.quiet {
            let _ = writeln!(environment.err, "{words}");
        }
    };
    if entry == ExecOrAttach::Attach {
        let (has_terminal, reads) = found.is_interactive(&container);
        if tty && !has_terminal {
            say(&format!("Unable to use a TTY - container {container} did not allocate one"));
        }
        if stdin && !reads {
            say(&format!(
                "Container {container} cannot read standard input: its spec does not set stdin: true"
            ));
        }
        // A container with a terminal has no separate stderr, whether this side is a terminal or not.
        (tty, stdin) = (has_terminal, stdin && reads);
    } else if tty && !io::stdin().is_terminal() {
        say("Unable to use a TTY - input is not a terminal or the right kind of file");
        tty = false;
    }
    let streams = Streams { stdin, stdout: true, stderr: !tty, tty };
    let resource = resource(entry, &found, &container, streams, &wanted.command);
    let io = client::upgrade(&wanted.common.socket, &resource, streams::COMMAND).await?;
    if entry == ExecOrAttach::Attach {
        say("If you don't see a command prompt, try pressing enter.");
    }
    let mut ends = signal(SignalKind::terminate()).map_err(CliError::Runtime)?;
    // From here on every key is sent to the program, including Ctrl-C.
    let _raw = if tty && stdin && io::stdin().is_terminal() {
        Some(RawMode::enter().map_err(CliError::Runtime)?)
    } else {
        None
    };
    let typed = if stdin { read_stdin()? } else { mpsc::channel(1).1 };
    let sizes = if tty { follow_size()? } else { mpsc::channel(1).1 };
    let (out, err) = (&mut *environment.out, &mut *environment.err);
    let (mut has_output, mut failed): (_, fn(io::Error) -> CliError) = (false, CliError::Output);
    let write = |output, bytes: &[u8]| {
        has_output = true;
        let is_stdout = output == OutputStream::Stdout;
        let to = if is_stdout { &mut *out } else { &mut *err };
        failed = if is_stdout { CliError::Output } else { CliError::CommandOutput };
        to.write_all(bytes).and_then(|()| to.flush())
    };
    let ended = tokio::select! {
        ended = streams::command(io, streams, typed, sizes, write) => ended,
        _ = ends.recv() => Ok(Ended::Lost),
    };
    let ended = ended.map_err(failed)?;
    Ok((ended, has_output))
}

/// The path of the request.
fn resource(
    entry: ExecOrAttach,
    found: &FoundPod,
    container: &str,
    streams: Streams,
    command: &[String],
) -> String {
    let kind = if entry == ExecOrAttach::Exec { "exec" } else { "attach" };
    let mut resource = format!("/{kind}/{}/{}?output=1", found.path(), client::escaped(container));
    let parts = [("input", streams.stdin), ("error", streams.stderr), ("tty", streams.tty)];
    for (name, _) in parts.iter().filter(|(_, wanted)| *wanted) {
        resource.extend(["&", name, "=1"]);
    }
    for word in command {
        resource.extend(["&command=", &client::escaped(word)]);
    }
    resource
}

/// Runs a command in a container with this program's streams. `input` ends when its sender is dropped. Needs
/// a `LocalSet`.
pub(super) async fn exec(
    socket: &Path,
    (found, container): (&FoundPod, &str),
    command: &[String],
    input: Option<mpsc::Receiver<Vec<u8>>>,
    write: impl FnMut(OutputStream, &[u8]) -> io::Result<()>,
) -> Result<Ended, CliError> {
    let streams = Streams { stdin: input.is_some(), stdout: true, stderr: true, tty: false };
    let resource = resource(ExecOrAttach::Exec, found, container, streams, command);
    let io = client::upgrade(socket, &resource, streams::COMMAND).await?;
    let input = input.unwrap_or_else(|| mpsc::channel(1).1);
    let ended = streams::command(io, streams, input, mpsc::channel(1).1, write).await;
    ended.map_err(CliError::CommandOutput)
}

/// Starts a thread that reads for the life of the process: a blocking read of a terminal cannot be cancelled.
fn read_stdin() -> Result<mpsc::Receiver<Vec<u8>>, CliError> {
    let (sender, typed) = mpsc::channel(1);
    let read = move || {
        let (mut stdin, mut block) = (io::stdin().lock(), vec![0; READ]);
        loop {
            match stdin.read(&mut block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    if sender.blocking_send(block[..count].to_vec()).is_err() {
                        return;
                    }
                }
            }
        }
    };
    rt::spawn_thread("stdin", read).map_err(CliError::Runtime)?;
    Ok(typed)
}

/// The terminal's size, now and after every change.
fn follow_size() -> Result<mpsc::Receiver<TerminalSize>, CliError> {
    let (sender, sizes) = mpsc::channel(1);
    let mut changes = signal(SignalKind::window_change()).map_err(CliError::Runtime)?;
    rt::spawn("get the terminal size", async move {
        // Without a local terminal no size is sent.
        while let Ok((width, height)) = terminal_size(io::stdout().as_fd()) {
            if sender.send(TerminalSize { width, height }).await.is_err() {
                return;
            }
            changes.recv().await;
        }
    });
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(entry: ExecOrAttach, line: &str) -> Result<ExecArgs, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(entry, &words).map_err(|error| error.to_string())
    }

    #[test]
    fn what_follows_the_pod_is_the_commands_own() {
        for line in ["web -it -c app -- ls -l --color", "-it -c app web ls -l --color"] {
            let wanted = parsed(ExecOrAttach::Exec, line).unwrap();
            assert_eq!(wanted.command, ["ls", "-l", "--color"], "{line}");
            assert_eq!((wanted.pod.as_deref(), wanted.container.as_deref()), (Some("web"), Some("app")));
            assert!(wanted.stdin && wanted.tty && !wanted.quiet);
        }
        assert!(parsed(ExecOrAttach::Exec, "web").unwrap_err().contains("missing command"));
        assert!(parsed(ExecOrAttach::Exec, "").unwrap_err().contains("agent exec POD -- COMMAND"));
        assert!(parsed(ExecOrAttach::Exec, "web --color ls").unwrap_err().contains("--color"));
        assert!(parsed(ExecOrAttach::Attach, "web ls").unwrap_err().contains("ls"));
        assert!(parsed(ExecOrAttach::Attach, "").unwrap_err().contains("agent attach POD"));
        assert!(parsed(ExecOrAttach::Attach, "--help").unwrap().common.help);
    }
}
