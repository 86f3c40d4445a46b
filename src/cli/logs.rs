//! `agent logs`: what a container wrote, as kubectl shows it.
//!
//! Owns the command and the choice of the container. Must not know where logs are: the agent reads them.

use std::path::PathBuf;

use lexopt::Arg;

use super::args::{UsageError, bad_option, duration, text, value};
use super::{CliError, EXIT_OK, Environment, client, print};
use crate::api::pod::Pod;
use crate::server::ObjectDetail;

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

/// kubectl's.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

struct Wanted {
    socket: PathBuf,
    namespace: String,
    pod: Option<String>,
    container: Option<String>,
    /// As the API wants them.
    parameters: Vec<(&'static str, String)>,
    help: bool,
}

fn parse(arguments: &[String]) -> Result<Wanted, UsageError> {
    let mut wanted = Wanted {
        socket: PathBuf::from(crate::server::DEFAULT_SOCKET),
        namespace: "default".to_owned(),
        pod: None,
        container: None,
        parameters: Vec::new(),
        help: false,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(|error| bad_option(&error))? {
        let parameters = &mut wanted.parameters;
        match argument {
            Arg::Short('c') | Arg::Long("container") => wanted.container = Some(text(value(&mut parser)?)),
            Arg::Short('n') | Arg::Long("namespace") => wanted.namespace = text(value(&mut parser)?),
            Arg::Long("socket") => wanted.socket = value(&mut parser)?.into(),
            Arg::Short('f') | Arg::Long("follow") => parameters.push(("follow", "true".to_owned())),
            Arg::Short('p') | Arg::Long("previous") => parameters.push(("previous", "true".to_owned())),
            Arg::Long("timestamps") => parameters.push(("timestamps", "true".to_owned())),
            Arg::Long("tail") => parameters.push(("tailLines", text(value(&mut parser)?))),
            Arg::Long("limit-bytes") => parameters.push(("limitBytes", text(value(&mut parser)?))),
            Arg::Long("since-time") => parameters.push(("sinceTime", text(value(&mut parser)?))),
            Arg::Long("since") => {
                let since = duration(&mut parser, "--since", "10m")?;
                // As kubectl: what is asked for in parts of a second is rounded up.
                let seconds = since.to_std().as_millis().div_ceil(1000);
                parameters.push(("sinceSeconds", seconds.to_string()));
            }
            Arg::Short('h') | Arg::Long("help") => wanted.help = true,
            Arg::Value(word) if wanted.pod.is_none() => wanted.pod = Some(text(word)),
            Arg::Value(word) => return Err(UsageError::Unexpected { given: text(word) }),
            other => return Err(bad_option(&other.unexpected())),
        }
    }
    // kubectl's word for all of it.
    wanted.parameters.retain(|(name, value)| !(*name == "tailLines" && value == "-1"));
    Ok(wanted)
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.help {
        print(environment, HELP)?;
        return Ok(EXIT_OK);
    }
    let Some(name) = &wanted.pod else {
        let message = "say whose: agent logs POD".to_owned();
        return Err(CliError::Usage(UsageError::Option { message }));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CliError::Runtime)?;
    let report = runtime.block_on(client::fetch_report(&wanted.socket, ObjectDetail::Counted));
    let report = report.map_err(CliError::Client)?;
    let pod = find(&report.pods, &wanted.namespace, name, &report.node_name)
        .ok_or_else(|| CliError::NotFound { name: name.clone(), namespace: wanted.namespace.clone() })?;
    let container = wanted.container.clone().unwrap_or_else(|| {
        let (chosen, others) = default_container(pod);
        if let Some(others) = others {
            // kubectl's words.
            let _ = writeln!(environment.err, "Defaulted container {chosen:?} out of: {others}");
        }
        chosen
    });
    let query: Vec<String> =
        wanted.parameters.iter().map(|(name, value)| format!("{name}={}", client::escaped(value))).collect();
    let resource = format!(
        "/containerLogs/{}/{}/{}?{}",
        client::escaped(&wanted.namespace),
        client::escaped(&pod.metadata.name),
        client::escaped(&container),
        query.join("&")
    );
    let out = &mut *environment.out;
    let mut write = |piece: &[u8]| out.write_all(piece).and_then(|()| out.flush());
    runtime.block_on(client::stream(&wanted.socket, &resource, &mut write))?;
    Ok(EXIT_OK)
}

/// By its full name, else by that without the node's.
fn find<'a>(pods: &'a [Pod], namespace: &str, name: &str, node: &str) -> Option<&'a Pod> {
    let of_namespace = || pods.iter().filter(|pod| pod.metadata.namespace == namespace);
    let full = format!("{name}-{node}");
    of_namespace()
        .find(|pod| pod.metadata.name == name)
        .or_else(|| of_namespace().find(|pod| pod.metadata.name == full))
}

/// The container, and all names if there was a choice that nobody made.
fn default_container(pod: &Pod) -> (String, Option<String>) {
    let spec = &pod.spec;
    let named = pod.metadata.annotations.get(DEFAULT_CONTAINER);
    if let Some(named) = named.filter(|named| spec.containers.iter().any(|found| found.name == **named)) {
        return (named.clone(), None);
    }
    let first = spec.containers.first().map(|found| found.name.clone()).unwrap_or_default();
    let inits = spec.init_containers.iter().map(|found| format!("{} (init)", found.name));
    let all: Vec<String> = spec.containers.iter().map(|found| found.name.clone()).chain(inits).collect();
    (first, (all.len() > 1).then(|| all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::decode::decode;

    fn pod(name: &str, containers: &[&str]) -> Pod {
        let containers: Vec<_> = containers.iter().map(|name| serde_json::json!({ "name": name })).collect();
        let pod = serde_json::json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "containers": containers, "initContainers": [{ "name": "setup" }] },
        });
        decode::<Pod>(pod).unwrap().object
    }

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

    #[test]
    fn pods_are_found_with_and_without_the_nodes_name_and_the_default_container_is_kubectls() {
        let pods = [pod("web-box", &["main", "side"]), pod("web", &["x"])];
        let name = |asked| find(&pods, "default", asked, "box").map(|pod| pod.metadata.name.as_str());
        assert_eq!((name("web"), name("web-box"), name("we")), (Some("web"), Some("web-box"), None));
        assert!(find(&pods, "other", "web", "box").is_none());
        let others = "main, side, setup (init)".to_owned();
        assert_eq!(default_container(&pods[0]), ("main".to_owned(), Some(others)));
        let mut chosen = pod("a", &["main", "side"]);
        chosen.metadata.annotations.insert(DEFAULT_CONTAINER.to_owned(), "side".to_owned());
        assert_eq!(default_container(&chosen), ("side".to_owned(), None));
        chosen.metadata.annotations.insert(DEFAULT_CONTAINER.to_owned(), "none".to_owned());
        assert_eq!(default_container(&chosen).0, "main");
    }
}
