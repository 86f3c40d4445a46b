//! `agent run`: a pod from an image and a few options, as `kubectl run` creates it.
//!
//! Owns the pod's manifest and the steps after its creation.

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::apply::MANAGER;
use super::args::{Common, Has, Own, UsageError, bad_option, text, value};
use super::exec::{self, ExecOrAttach};
use super::table::printable;
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, api, logs, print, to_yaml, wait};
use crate::cmd::help;
use crate::platform::rt;

#[derive(Debug)]
struct StartArgs {
    common: Common,
    name: Option<String>,
    image: Option<String>,
    env: Vec<(String, String)>,
    port: Option<u16>,
    host_port: Option<u16>,
    labels: Vec<(String, String)>,
    restart: String,
    pull: Option<String>,
    is_command: bool,
    stdin: bool,
    tty: bool,
    attach: bool,
    remove: bool,
    dry_run: bool,
    timeout: Duration,
    words: Vec<String>,
}

fn wrong(message: impl Into<String>) -> UsageError {
    UsageError::Option { message: message.into() }
}

fn one_of(name: &str, given: &str, allowed: &[&str]) -> Result<String, UsageError> {
    let known = allowed.iter().find(|known| given.eq_ignore_ascii_case(known));
    let message = || wrong(format!("{name} {given:?}: use one of {}", allowed.join(", ")));
    known.map(|known| (*known).to_owned()).ok_or_else(message)
}

fn pair(name: &str, given: &str) -> Result<(String, String), UsageError> {
    let pair = given.split_once('=').filter(|(key, _)| !key.is_empty());
    let message = || wrong(format!("{name} {given:?}: must be NAME=VALUE"));
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(message)
}

fn parse(arguments: &[String]) -> Result<StartArgs, UsageError> {
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let (own, words) = arguments.split_at(end);
    let mut wanted = StartArgs {
        common: Common::default(),
        name: None,
        image: None,
        env: Vec::new(),
        port: None,
        host_port: None,
        labels: Vec::new(),
        restart: "Always".to_owned(),
        pull: None,
        is_command: false,
        stdin: false,
        tty: false,
        attach: false,
        remove: false,
        dry_run: false,
        timeout: Duration::from_secs(300),
        words: words.iter().skip(1).cloned().collect(),
    };
    let mut first = None;
    wanted.common = Common::parse(own, Has::Namespace, &mut |own, parser| {
        let port = |parser: &mut lexopt::Parser, name: &str| {
            let given = text(value(parser)?);
            let parsed = given.parse().ok().filter(|port| *port > 0);
            parsed.ok_or_else(|| wrong(format!("{name} {given:?}: must be a number from 1 to 65535")))
        };
        match own {
            Own::Option("--name") => wanted.name = Some(text(value(parser)?)),
            Own::Option("--image") => wanted.image = Some(text(value(parser)?)),
            Own::Option("-e" | "--env") => wanted.env.push(pair("--env", &text(value(parser)?))?),
            Own::Option("--port") => wanted.port = Some(port(parser, "--port")?),
            Own::Option("--host-port") => wanted.host_port = Some(port(parser, "--host-port")?),
            Own::Option("-l" | "--labels") => {
                for given in text(value(parser)?).split(',') {
                    wanted.labels.push(pair("--labels", given)?);
                }
            }
            Own::Option("--restart") => {
                let policies = ["Always", "OnFailure", "Never"];
                wanted.restart = one_of("--restart", &text(value(parser)?), &policies)?;
            }
            Own::Option("--image-pull-policy") => {
                let policies = ["Always", "IfNotPresent", "Never"];
                wanted.pull = Some(one_of("--image-pull-policy", &text(value(parser)?), &policies)?);
            }
            Own::Option("--timeout") => {
                wanted.timeout = super::args::duration(parser, "--timeout", "5m")?.to_std();
            }
            Own::Option("--command") => wanted.is_command = true,
            Own::Option("-i" | "--stdin") => wanted.stdin = true,
            Own::Option("-t" | "--tty") => wanted.tty = true,
            Own::Option("--attach") => wanted.attach = true,
            Own::Option("--rm") => wanted.remove = true,
            Own::Option("--dry-run") => {
                // This is kubectl's `client` dry run.
                if parser.optional_value().is_some_and(|given| given != "client") {
                    return Err(wrong("--dry-run only prints the manifest: omit its value"));
                }
                wanted.dry_run = true;
            }
            Own::Option("-o" | "--output") => {
                one_of("--output", &text(value(parser)?), &["yaml"])?;
            }
            Own::Word(word) if first.is_none() => first = Some(word.to_owned()),
            // Without `--`, as in `agent exec`: the remaining arguments are the container's.
            Own::Word(word) if wanted.words.is_empty() => {
                wanted.words.push(word.to_owned());
                let rest = parser.raw_args().map_err(|error| bad_option(&error))?;
                wanted.words.extend(rest.map(text));
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if !wanted.common.help {
        check(&mut wanted, first)?;
    }
    Ok(wanted)
}

/// Checks combinations of options; `first` is the first positional argument.
fn check(wanted: &mut StartArgs, first: Option<String>) -> Result<(), UsageError> {
    let first = first.ok_or_else(|| wrong("missing image: agent run IMAGE"))?;
    match &wanted.image {
        Some(_) => {
            wanted.name.get_or_insert(first);
        }
        None => wanted.image = Some(first),
    }
    if wanted.host_port.is_some() && wanted.port.is_none() {
        wanted.port = wanted.host_port;
    }
    let attaches = wanted.stdin || wanted.attach;
    if wanted.tty && !wanted.stdin {
        return Err(wrong("-t requires -i"));
    }
    if wanted.remove && !attaches {
        return Err(wrong("--rm should only be used for attached containers: add -i or --attach"));
    }
    if wanted.dry_run && attaches && wanted.remove {
        return Err(wrong("--rm and --dry-run cannot be used together"));
    }
    if wanted.is_command && wanted.words.is_empty() {
        return Err(wrong("--command: missing command: agent run IMAGE --command -- PROGRAM"));
    }
    Ok(())
}

/// `registry.example:5000/team/my_app:v1@sha256:...` is `my-app`.
fn name_of(image: &str) -> String {
    let image = image.split('@').next().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let name = last.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    name.trim_matches('-').to_owned()
}

/// The manifest as `kubectl run` creates it.
fn manifest(wanted: &StartArgs, name: &str, image: &str) -> Value {
    let mut container = json!({"name": name, "image": image});
    if !wanted.words.is_empty() {
        container[if wanted.is_command { "command" } else { "args" }] = json!(wanted.words);
    }
    if !wanted.env.is_empty() {
        let env = wanted.env.iter().map(|(name, value)| json!({"name": name, "value": value}));
        container["env"] = env.collect();
    }
    if let Some(port) = wanted.port {
        container["ports"] = json!([{"containerPort": port}]);
        if let Some(host_port) = wanted.host_port {
            container["ports"][0]["hostPort"] = json!(host_port);
        }
    }
    if let Some(policy) = &wanted.pull {
        container["imagePullPolicy"] = json!(policy);
    }
    if wanted.stdin {
        (container["stdin"], container["stdinOnce"]) = (json!(true), json!(true));
    }
    if wanted.tty {
        container["tty"] = json!(true);
    }
    let labels: serde_json::Map<String, Value> = if wanted.labels.is_empty() {
        [("run".to_owned(), json!(name))].into_iter().collect()
    } else {
        wanted.labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
    };
    let mut metadata = json!({"name": name, "labels": labels});
    if wanted.common.one_namespace() != "default" {
        metadata["namespace"] = json!(wanted.common.one_namespace());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], "restartPolicy": wanted.restart},
    })
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text("run"))?;
        return Ok(EXIT_OK);
    }
    let image = wanted.image.clone().unwrap_or_default();
    let name = wanted.name.clone().unwrap_or_else(|| name_of(&image));
    let manifest = manifest(&wanted, &name, &image);
    if wanted.dry_run {
        print(environment, &to_yaml(&manifest)?)?;
        return Ok(EXIT_OK);
    }
    let attaches = wanted.stdin || wanted.attach;
    let created =
        rt::run(create(&wanted, &name, &manifest, attaches, environment)).map_err(CliError::Runtime)?;
    if !attaches {
        return created.map(|_| EXIT_OK);
    }
    let is_running = match created {
        Ok(is_running) => is_running,
        Err(error) => {
            return Err(remove_after(&wanted, &name, environment).err().unwrap_or(error));
        }
    };
    let shown = show(&wanted, &name, is_running, environment);
    let code = shown.and_then(|code| match code {
        EXIT_OK => rt::run(exit_code(&wanted, &name)).map_err(CliError::Runtime)?,
        code => Ok(code),
    });
    remove_after(&wanted, &name, environment)?;
    code
}

/// With `--rm` the pod is deleted, whatever its result.
fn remove_after(wanted: &StartArgs, name: &str, environment: &mut Environment<'_>) -> Result<(), CliError> {
    if !wanted.remove {
        return Ok(());
    }
    rt::run(async {
        let path = pod_path(wanted, name)?;
        let reply = api::request(&wanted.common.socket, Method::DELETE, &path, None).await?;
        if reply.code == 404 {
            return Ok(());
        }
        let uid = reply.accepted()?.object["metadata"]["uid"].clone();
        let is_gone = |object: Option<&Value>| object.is_none_or(|object| object["metadata"]["uid"] != uid);
        let resource = api::resource("pods").map_err(CliError::Usage)?;
        let (place, deadline) = ((wanted.common.one_namespace(), name), Instant::now() + wanted.timeout);
        if !wait::until(&wanted.common.socket, resource, place, true, deadline, &is_gone).await? {
            return Err(CliError::Answer(format!(
                "timed out waiting for pod {name:?} to terminate; it is still Terminating"
            )));
        }
        let _ = writeln!(environment.err, "pod \"{}\" deleted", printable(name));
        Ok(())
    })
    .map_err(CliError::Runtime)?
}

fn pod_path(wanted: &StartArgs, name: &str) -> Result<String, CliError> {
    let resource = api::resource("pods").map_err(CliError::Usage)?;
    Ok(api::path(resource, Some(wanted.common.one_namespace()), Some(name)))
}

/// Creates the pod. To attach, waits until its container runs (true) or has ended (false).
async fn create(
    wanted: &StartArgs,
    name: &str,
    manifest: &Value,
    attaches: bool,
    environment: &mut Environment<'_>,
) -> Result<bool, CliError> {
    let resource = api::resource("pods").map_err(CliError::Usage)?;
    let namespace = wanted.common.one_namespace();
    let query = api::query(&[("fieldManager", MANAGER.to_owned()), ("fieldValidation", "Strict".to_owned())]);
    let path = api::path(resource, Some(namespace), None) + &query;
    let content = Some((api::OBJECTS, manifest));
    let reply = api::request(&wanted.common.socket, Method::POST, &path, content).await?.accepted()?;
    reply.warn(environment);
    if !attaches {
        print(environment, &format!("pod/{} created\n", printable(name)))?;
        return Ok(false);
    }
    let deadline = Instant::now() + wanted.timeout;
    let state = |object: Option<&Value>, state: &str| {
        object.is_some_and(|object| object["status"]["containerStatuses"][0]["state"][state].is_object())
    };
    let has_started = |object: Option<&Value>| state(object, "running") || has_ended(object);
    let place = (namespace, name);
    if !wait::until(&wanted.common.socket, resource, place, false, deadline, &has_started).await? {
        return Err(CliError::Answer(format!(
            "pod {name:?} did not start within {} seconds: see agent describe pod {name}",
            wanted.timeout.as_secs()
        )));
    }
    let object = api::fetch(&wanted.common.socket, &pod_path(wanted, name)?, api::OBJECTS).await?;
    Ok(state(Some(&object), "running"))
}

fn has_ended(object: Option<&Value>) -> bool {
    let Some(status) = object.map(|object| &object["status"]) else { return true };
    status["containerStatuses"][0]["state"]["terminated"].is_object()
        || status["containerStatuses"][0]["lastState"]["terminated"].is_object()
        || matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Shows the container's output until it ends or the user interrupts. Without stdin the log has all of it.
fn show(
    wanted: &StartArgs,
    name: &str,
    is_running: bool,
    environment: &mut Environment<'_>,
) -> Result<u8, CliError> {
    let socket = format!("--socket={}", wanted.common.socket.display());
    let mut words: Vec<String> =
        vec![name.to_owned(), "-n".to_owned(), wanted.common.one_namespace().to_owned()];
    words.push(socket);
    if wanted.stdin && is_running {
        let mut attached = words.clone();
        attached.push("-i".to_owned());
        attached.extend(wanted.tty.then(|| "-t".to_owned()));
        match exec::run(ExecOrAttach::Attach, &attached, environment) {
            // What a program writes at once may be over before it is attached: its log has it.
            Ok((EXIT_OK, false)) => {}
            Ok((code, _)) => return Ok(code),
            Err(CliError::Answer(why)) => {
                // kubectl's message.
                let name = printable(name);
                let _ = writeln!(
                    environment.err,
                    "warning: couldn't attach to pod/{name}, falling back to streaming logs: {}",
                    printable(&why)
                );
            }
            Err(error) => return Err(error),
        }
    }
    words.extend((!wanted.stdin && is_running).then(|| "-f".to_owned()));
    logs::run(&words, environment)
}

/// The container's exit code once it has ended; 0 if it restarts.
async fn exit_code(wanted: &StartArgs, name: &str) -> Result<u8, CliError> {
    if wanted.restart != "Never" {
        return Ok(EXIT_OK);
    }
    let resource = api::resource("pods").map_err(CliError::Usage)?;
    let place = (wanted.common.one_namespace(), name);
    let deadline = Instant::now() + wanted.timeout;
    let socket = &wanted.common.socket;
    if !wait::until(socket, resource, place, false, deadline, &has_ended).await? {
        return Ok(EXIT_OK);
    }
    let object = api::fetch(socket, &pod_path(wanted, name)?, api::OBJECTS).await?;
    let code = object["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_i64();
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(EXIT_FAILED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<StartArgs, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn pod_is_the_one_that_kubectl_run_makes() {
        let wanted = parsed(
            "registry.example:5000/team/My_app:v1 -e A=b=c --port 80 --host-port=8080 -it --rm --restart never -- sh -c ls",
        )
        .unwrap();
        let image = wanted.image.clone().unwrap();
        let name = name_of(&image);
        let expected = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "my-app", "labels": {"run": "my-app"}},
            "spec": {"restartPolicy": "Never", "containers": [{
                "name": "my-app", "image": "registry.example:5000/team/My_app:v1", "args": ["sh", "-c", "ls"],
                "env": [{"name": "A", "value": "b=c"}], "ports": [{"containerPort": 80, "hostPort": 8080}],
                "stdin": true, "stdinOnce": true, "tty": true,
            }]},
        });
        assert_eq!(manifest(&wanted, &name, &image), expected);
        let wanted = parsed("web --image nginx@sha256:00 -n x --command -l a=b,c= -- run").unwrap();
        let made = manifest(&wanted, wanted.name.as_deref().unwrap(), wanted.image.as_deref().unwrap());
        assert_eq!(made["metadata"], json!({"name": "web", "namespace": "x", "labels": {"a": "b", "c": ""}}));
        assert_eq!(made["spec"]["containers"][0]["command"], json!(["run"]));
        assert_eq!(name_of("nginx@sha256:00"), "nginx");
        assert_eq!(parsed("busybox echo --loud").unwrap().words, ["echo", "--loud"]);
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for (line, words) in [
            ("", "missing image"),
            ("a --rm", "--rm"),
            ("a -t", "-t requires -i"),
            ("a --restart sometimes", "Always, OnFailure, Never"),
            ("a --env x", "NAME=VALUE"),
            ("a --port 0", "--port"),
            ("a --command", "missing command"),
        ] {
            let said = parsed(line).unwrap_err();
            assert!(said.contains(words), "{line}: {said}");
        }
    }
}
