//! `agent logs`: what a container wrote, as kubectl shows it.
//!
//! Owns the command. Must not know where logs are: the agent reads them.

use super::args::{Common, Has, Own, UsageError, duration, text, value};
use super::{CliError, EXIT_OK, Environment, client, print, target};

const HELP: &str = "\
Print what a container of a pod wrote.

Usage: agent logs POD [options]

POD may leave out the node's name at the end. Without -c it is the container that the annotation
kubectl.kubernetes.io/default-container names, else the first one.

Options:
  -c, --container NAME      Which container
  -f, --follow              Go on as it writes, until it ends
  -p, --previous            Of the instance before the last restart
      --tail LINES          Only the last lines
      --since TIME          Only what is newer than so long, such as 10m
      --since-time TIME     Only what is newer than this, such as 2026-01-31T12:00:00Z
      --timestamps          Each line with the time it was written
      --limit-bytes BYTES   Not more than so much
  -n, --namespace NAME      Namespace of the pod (default \"default\")
      --socket PATH         Socket of the agent (default /run/agent/agent.sock)
  -h, --help                This text

Exit status: 0, 1 if there is no such pod or log, 2 for bad usage.
";

struct Wanted {
    common: Common,
    pod: Option<String>,
    container: Option<String>,
    /// As the API wants them.
    parameters: Vec<(&'static str, String)>,
}

fn parse(arguments: &[String]) -> Result<Wanted, UsageError> {
    let mut wanted = Wanted { common: Common::default(), pod: None, container: None, parameters: Vec::new() };
    wanted.common = Common::parse(arguments, Has::Namespace, &mut |own, parser| {
        let parameters = &mut wanted.parameters;
        match own {
            Own::Option("-c" | "--container") => wanted.container = Some(text(value(parser)?)),
            Own::Option("-f" | "--follow") => parameters.push(("follow", "true".to_owned())),
            Own::Option("-p" | "--previous") => parameters.push(("previous", "true".to_owned())),
            Own::Option("--timestamps") => parameters.push(("timestamps", "true".to_owned())),
            Own::Option("--tail") => parameters.push(("tailLines", text(value(parser)?))),
            Own::Option("--limit-bytes") => parameters.push(("limitBytes", text(value(parser)?))),
            Own::Option("--since-time") => parameters.push(("sinceTime", text(value(parser)?))),
            Own::Option("--since") => {
                let since = duration(parser, "--since", "10m")?;
                // As kubectl: what is asked for in parts of a second is rounded up.
                let seconds = since.to_std().as_millis().div_ceil(1000);
                parameters.push(("sinceSeconds", seconds.to_string()));
            }
            Own::Word(word) if wanted.pod.is_none() => wanted.pod = Some(word.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    // kubectl's word for all of it.
    wanted.parameters.retain(|(name, value)| !(*name == "tailLines" && value == "-1"));
    Ok(wanted)
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, HELP)?;
        return Ok(EXIT_OK);
    }
    let Some(name) = &wanted.pod else {
        let message = "say whose: agent logs POD".to_owned();
        return Err(CliError::Usage(UsageError::Option { message }));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CliError::Runtime)?;
    let found = runtime.block_on(target::find(&wanted.common.socket, wanted.common.one_namespace(), name))?;
    let container = found.container(wanted.container.as_deref(), environment);
    let query: Vec<String> =
        wanted.parameters.iter().map(|(name, value)| format!("{name}={}", client::escaped(value))).collect();
    let resource =
        format!("/containerLogs/{}/{}?{}", found.path(), client::escaped(&container), query.join("&"));
    let out = &mut *environment.out;
    let mut write = |piece: &[u8]| out.write_all(piece).and_then(|()| out.flush());
    runtime.block_on(client::stream(&wanted.common.socket, &resource, "*/*", &mut write))?;
    Ok(EXIT_OK)
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
        let said = |line: &str| parse(line).map(drop).unwrap_err().to_string();
        assert!(said("web --since yesterday").contains("--since"));
        assert!(said("web other").contains("other"));
        assert!(said("web --lines").contains("--lines"));
    }
}
