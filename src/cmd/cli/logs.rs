//! `agent logs`: output of containers, as kubectl shows it.
//!
//! Owns the command, and merging the lines of several containers.

use std::io;
use std::path::PathBuf;

use tokio::sync::mpsc;

use super::args::{Common, Has, Own, UsageError, duration, text, value};
use super::target::{self, FoundPod};
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, api, client, print};
use crate::cmd::help;
use crate::platform::rt;

/// kubectl's default with a selector.
const TAIL_OF_SELECTED: &str = "10";
/// The most chunks that wait to be written, over all followed containers.
const PIECES: usize = 16;

struct LogsArgs {
    common: Common,
    pod: Option<String>,
    container: Option<String>,
    all_containers: bool,
    selector: Option<String>,
    prefix: bool,
    follow: bool,
    at_once: usize,
    parameters: Vec<(&'static str, String)>,
}

fn parse(arguments: &[String]) -> Result<LogsArgs, UsageError> {
    let mut wanted = LogsArgs {
        common: Common::default(),
        pod: None,
        container: None,
        all_containers: false,
        selector: None,
        prefix: false,
        follow: false,
        at_once: 5,
        parameters: Vec::new(),
    };
    let wrong = |message: String| UsageError::Option { message };
    wanted.common = Common::parse(arguments, Has::Namespace, &mut |own, parser| {
        let parameters = &mut wanted.parameters;
        match own {
            Own::Option("-c" | "--container") => wanted.container = Some(text(value(parser)?)),
            Own::Option("--all-containers") => wanted.all_containers = true,
            Own::Option("-l" | "--selector") => wanted.selector = Some(text(value(parser)?)),
            Own::Option("--prefix") => wanted.prefix = true,
            Own::Option("-f" | "--follow") => {
                wanted.follow = true;
                parameters.push(("follow", "true".to_owned()));
            }
            Own::Option("--max-log-requests") => {
                let given = text(value(parser)?);
                let parsed = given.parse().ok().filter(|number| *number > 0);
                let message = || wrong(format!("--max-log-requests {given:?}: must be a number"));
                wanted.at_once = parsed.ok_or_else(message)?;
            }
            Own::Option("-p" | "--previous") => parameters.push(("previous", "true".to_owned())),
            Own::Option("--timestamps") => parameters.push(("timestamps", "true".to_owned())),
            Own::Option("--tail") => parameters.push(("tailLines", text(value(parser)?))),
            Own::Option("--limit-bytes") => parameters.push(("limitBytes", text(value(parser)?))),
            Own::Option("--since-time") => parameters.push(("sinceTime", text(value(parser)?))),
            Own::Option("--since") => {
                let since = duration(parser, "--since", "10m")?;
                // As kubectl: fractions of a second are rounded up.
                let seconds = since.to_std().as_millis().div_ceil(1000);
                parameters.push(("sinceSeconds", seconds.to_string()));
            }
            Own::Word(word) if wanted.pod.is_none() => wanted.pod = Some(word.to_owned()),
            Own::Word(word) if wanted.container.is_none() => wanted.container = Some(word.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if wanted.selector.is_some() && !wanted.parameters.iter().any(|(name, _)| *name == "tailLines") {
        wanted.parameters.push(("tailLines", TAIL_OF_SELECTED.to_owned()));
    }
    // kubectl's value for no limit.
    wanted.parameters.retain(|(name, value)| !(*name == "tailLines" && value == "-1"));
    if wanted.common.help {
        return Ok(wanted);
    }
    match (&wanted.pod, &wanted.selector) {
        (None, None) => Err(wrong("missing pod name: agent logs POD".to_owned())),
        (Some(_), Some(_)) => Err(wrong("a pod name and -l cannot be used together".to_owned())),
        _ if wanted.all_containers && wanted.container.is_some() => {
            Err(wrong("a container name and --all-containers cannot be used together".to_owned()))
        }
        _ => Ok(wanted),
    }
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text("logs"))?;
        return Ok(EXIT_OK);
    }
    rt::run(show(&wanted, environment)).map_err(CliError::Runtime)?
}

struct Log {
    resource: String,
    prefix: String,
}

async fn show(wanted: &LogsArgs, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let socket = &wanted.common.socket;
    let namespace = wanted.common.one_namespace();
    let mut logs = Vec::new();
    if let Some(name) = &wanted.pod {
        let found = target::find(socket, namespace, name).await?;
        add(wanted, &found, &mut logs, environment);
    } else {
        let pods = api::resource("pods").map_err(CliError::Usage)?;
        let names = api::selected(socket, pods, namespace, wanted.selector.as_deref()).await?;
        if names.is_empty() {
            let _ = writeln!(environment.err, "No resources found in {namespace} namespace.");
        }
        for name in names {
            let found = target::find(socket, namespace, &name).await?;
            add(wanted, &found, &mut logs, environment);
        }
    }
    if let [Log { resource, prefix }] = &logs[..]
        && prefix.is_empty()
    {
        let out = &mut *environment.out;
        let mut write = |piece: &[u8]| out.write_all(piece).and_then(|()| out.flush());
        client::stream(socket, resource, "*/*", &mut write).await?;
        return Ok(EXIT_OK);
    }
    if wanted.follow && logs.len() > wanted.at_once {
        // kubectl's message.
        return Err(CliError::Answer(format!(
            "you are attempting to follow {} log streams, but maximum allowed concurrency is {}, use --max-log-requests to increase the limit",
            logs.len(),
            wanted.at_once
        )));
    }
    if wanted.follow {
        follow(socket.clone(), logs, environment).await
    } else {
        show_sequentially(wanted, logs, environment).await
    }
}

fn add(wanted: &LogsArgs, found: &FoundPod, logs: &mut Vec<Log>, environment: &mut Environment<'_>) {
    let containers = if wanted.all_containers {
        let spec = &found.pod().spec;
        let all = spec.init_containers.iter().chain(&spec.containers).map(|container| container.name.clone());
        all.collect()
    } else {
        vec![found.container(wanted.container.as_deref(), environment)]
    };
    let query: Vec<String> =
        wanted.parameters.iter().map(|(name, value)| format!("{name}={}", client::escaped(value))).collect();
    for container in containers {
        let resource =
            format!("/containerLogs/{}/{}?{}", found.path(), client::escaped(&container), query.join("&"));
        let prefix =
            if wanted.prefix { format!("[pod/{}/{container}] ", found.name()) } else { String::new() };
        logs.push(Log { resource, prefix });
    }
}

async fn show_sequentially(
    wanted: &LogsArgs,
    logs: Vec<Log>,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    let mut code = EXIT_OK;
    for Log { resource, prefix } in logs {
        let mut lines = Lines::new(prefix);
        let out = &mut *environment.out;
        let mut write = |piece: &[u8]| out.write_all(&lines.complete_lines(piece)).and_then(|()| out.flush());
        let shown = client::stream(&wanted.common.socket, &resource, "*/*", &mut write).await;
        let rest = lines.last_line();
        environment.out.write_all(&rest).map_err(CliError::Output)?;
        match shown {
            Ok(()) => {}
            Err(CliError::Answer(words)) => {
                let _ = writeln!(environment.err, "error: {words}");
                code = EXIT_FAILED;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(code)
}

/// Follows all logs at once, line by line.
async fn follow(socket: PathBuf, logs: Vec<Log>, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let (sender, mut pieces) = mpsc::channel::<Result<Vec<u8>, CliError>>(PIECES);
    for Log { resource, prefix } in logs {
        let (socket, sender) = (socket.clone(), sender.clone());
        rt::spawn("log", async move {
            let (piece, mut whole) = mpsc::unbounded_channel::<Vec<u8>>();
            let mut lines = Lines::new(prefix);
            let mut write = |bytes: &[u8]| {
                piece
                    .send(lines.complete_lines(bytes))
                    .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
            };
            let result = {
                let mut shown = std::pin::pin!(client::stream(&socket, &resource, "*/*", &mut write));
                loop {
                    tokio::select! {
                        biased;
                        // Chunks are written before more is read.
                        Some(bytes) = whole.recv() => {
                            if sender.send(Ok(bytes)).await.is_err() {
                                return;
                            }
                        }
                        result = &mut shown => break result,
                    }
                }
            };
            while let Ok(bytes) = whole.try_recv() {
                let _ = sender.send(Ok(bytes)).await;
            }
            let _ = sender.send(Ok(lines.last_line())).await;
            if let Err(error) = result {
                let _ = sender.send(Err(error)).await;
            }
        });
    }
    drop(sender);
    let mut code = EXIT_OK;
    while let Some(piece) = pieces.recv().await {
        match piece {
            Ok(bytes) => {
                let out = &mut *environment.out;
                out.write_all(&bytes).and_then(|()| out.flush()).map_err(CliError::Output)?;
            }
            Err(error) => {
                let _ = writeln!(environment.err, "error: {error}");
                code = EXIT_FAILED;
            }
        }
    }
    Ok(code)
}

/// Splits one log into lines, each with a prefix.
struct Lines {
    prefix: String,
    begun: Vec<u8>,
}

impl Lines {
    fn new(prefix: String) -> Self {
        Self { prefix, begun: Vec::new() }
    }

    fn complete_lines(&mut self, piece: &[u8]) -> Vec<u8> {
        self.begun.extend_from_slice(piece);
        let end = self.begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let rest = self.begun.split_off(end);
        let whole = std::mem::replace(&mut self.begun, rest);
        let lines = whole.split_inclusive(|byte| *byte == b'\n');
        lines.flat_map(|line| [self.prefix.as_bytes(), line].concat()).collect()
    }

    /// The last line, without a line break.
    fn last_line(&mut self) -> Vec<u8> {
        if self.begun.is_empty() { Vec::new() } else { self.complete_lines(b"\n") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_the_apis_parameters_and_bad_ones_are_named() {
        let parse = |line: &str| parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let wanted =
            parse("web -f -p --tail 3 --since 1m30s --since-time x --timestamps --limit-bytes 9 -c a")
                .unwrap();
        let query: Vec<String> =
            wanted.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let all =
            "follow=true previous=true tailLines=3 sinceSeconds=90 sinceTime=x timestamps=true limitBytes=9";
        assert_eq!(query.join(" "), all);
        assert_eq!((wanted.pod.as_deref(), wanted.container.as_deref()), (Some("web"), Some("a")));
        assert!(parse("web --tail -1").unwrap().parameters.is_empty());
        assert_eq!(parse("web side").unwrap().container.as_deref(), Some("side"));
        assert_eq!(parse("-l app=web").unwrap().parameters, [("tailLines", "10".to_owned())]);
        assert_eq!(parse("-l app=web --tail=2").unwrap().parameters, [("tailLines", "2".to_owned())]);
        let said = |line: &str| parse(line).map(drop).unwrap_err().to_string();
        assert!(said("web --since yesterday").contains("--since"));
        assert!(said("web side other").contains("other"));
        assert!(said("web -l a=b").contains("cannot be used together"));
        assert!(said("web side --all-containers").contains("cannot be used together"));
        assert!(said("web --lines").contains("--lines"));
        assert!(said("").contains("agent logs POD"));
    }

    #[test]
    fn lines_of_pieces_get_their_prefix_once() {
        let mut lines = Lines::new("[p] ".to_owned());
        assert_eq!(lines.complete_lines(b"on"), b"");
        assert_eq!(lines.complete_lines(b"e\ntwo\nth"), b"[p] one\n[p] two\n");
        assert_eq!(lines.last_line(), b"[p] th\n");
        assert_eq!(lines.last_line(), b"");
    }
}
