//! Logs, streams into pods, and the kubelet's own API behind the node's proxy.
//!
//! Owns the translation of the API server's parameters into the kubelet's, the choice of a container, and failures as
//! objects.

use hyper::{Response, StatusCode};

use super::path::RequestInfo;
use super::status::{self, Failure};
use super::{LocalApi, access};
use crate::model::api::pod::{Container, Pod};
use crate::serve::server::answer::{Served, answer, outcome};
use crate::serve::server::body::Body;
use crate::serve::server::delegate::DelegatedRequest;
use crate::serve::server::route::{self, ContainerTarget, Parameters, PodName, Refused, Route};

/// Answers `log`, `exec`, `attach`, `portforward`.
pub(super) async fn pod(
    api: &LocalApi,
    wanted: &RequestInfo,
    part: &str,
    visit: DelegatedRequest,
) -> Result<Response<Body>, Failure> {
    let name = wanted.name.as_deref().unwrap_or_default();
    let namespace = wanted.namespace.as_deref().unwrap_or_default();
    let found = api.node.pod(namespace, name, None);
    let pod = found.ok_or_else(|| status::not_found(wanted.resource, name))?;
    if !visit.served.debugging {
        return Err(Failure::new(405, "MethodNotAllowed", "Debug endpoints are disabled."));
    }
    let parameters = route::parameters(visit.request.uri().query().unwrap_or_default());
    let parameters = to_kubelet_parameters(parameters);
    let asked = PodName { namespace: namespace.to_owned(), name: name.to_owned(), uid: None };
    let target = || -> Result<ContainerTarget, Failure> {
        let container = container(&pod, &parameters)?;
        Ok(ContainerTarget { pod: asked.clone(), container: container.as_str().into() })
    };
    let meant = |read: Result<Route, Refused>| read.map_err(|refused| refusal(refused, &pod));
    let route = match part {
        "log" => {
            let options = route::log_options(&parameters);
            Route::ContainerLogs(target()?, options.map_err(|refused| refusal(refused, &pod))?)
        }
        "exec" => {
            let command = route::values(&parameters, "command");
            if command.is_empty() {
                return Err(status::bad_request("you must specify at least one command for the container"));
            }
            let target = target()?;
            meant(route::requested_streams(&parameters).map(|streams| Route::Exec(target, command, streams)))?
        }
        "attach" => {
            let target = target()?;
            meant(route::requested_streams(&parameters).map(|streams| Route::Attach(target, streams)))?
        }
        _ => meant(route::ports(&parameters).map(|ports| Route::PortForward(asked, ports)))?,
    };
    log_session(&visit, part, namespace, name);
    let DelegatedRequest { request, served, place, .. } = visit;
    let answered = outcome(request, route, &api.node, served, &api.clock, place).await;
    answered.map_err(|(code, message)| failed(code, &message, wanted))
}

const FLAGS: [&str; 7] = ["follow", "previous", "stderr", "stdin", "stdout", "timestamps", "tty"];

/// The API server accepts more spellings of true than the kubelet: everything but 0 and false. Python's
/// client sends True.
fn to_kubelet_parameters(mut parameters: Parameters) -> Parameters {
    for (name, value) in &mut parameters {
        if FLAGS.contains(&name.as_str()) {
            let is_no = value == "0" || value.eq_ignore_ascii_case("false");
            (if is_no { "false" } else { "true" }).clone_into(value);
        }
    }
    parameters
}

/// Logs who entered a container, as an audit trail.
fn log_session(visit: &DelegatedRequest, part: &str, namespace: &str, name: &str) {
    if matches!(part, "exec" | "attach") {
        log::info!(user = visit.user.name, verb = part, pod = format!("{namespace}/{name}"); "Client \
             started a session in a container");
    }
}

/// The named container, or the only one. Otherwise the API server's message.
fn container(pod: &Pod, parameters: &Parameters) -> Result<String, Failure> {
    let names = |list: &[Container]| list.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
    let (containers, init) = (names(&pod.spec.containers), names(&pod.spec.init_containers));
    let ephemeral = names(&pod.spec.ephemeral_containers);
    let name = &pod.metadata.name;
    let chosen = route::values(parameters, "container").into_iter().find(|container| !container.is_empty());
    match (chosen, containers.as_slice()) {
        (Some(chosen), _) if [&containers, &init, &ephemeral].iter().any(|list| list.contains(&chosen)) => {
            Ok(chosen)
        }
        (Some(chosen), _) => {
            Err(status::bad_request(format!("container {chosen} is not valid for pod {name}")))
        }
        (None, [only]) if init.is_empty() => Ok(only.clone()),
        // As upstream: the message lists init containers, too, and a single other container is not chosen
        // beside them.
        (None, _) => {
            let listed = |names: &[String]| format!("[{}]", names.join(" "));
            let mut message = format!(
                "a container name must be specified for pod {name}, choose one of: {}",
                listed(&containers)
            );
            for (what, names) in [("init", &init), ("debug", &ephemeral)] {
                if !names.is_empty() {
                    message += &[" or one of the ", what, " containers: ", &listed(names)].concat();
                }
            }
            Err(status::bad_request(message))
        }
    }
}

fn refusal(refused: Refused, pod: &Pod) -> Failure {
    match refused {
        Refused::Invalid(422, message) => {
            let message = format!("PodLogOptions \"{}\" is invalid: {message}", pod.metadata.name);
            Failure::new(422, "Invalid", message).about("", "PodLogOptions", &pod.metadata.name)
        }
        Refused::Invalid(_, message) => status::bad_request(message),
        Refused::NotServed(why) => Failure::new(501, "NotImplemented", why),
        Refused::NotFound => status::no_such_path(),
        Refused::Method(_) => status::method_not_allowed(),
    }
}

fn failed(code: StatusCode, message: &str, wanted: &RequestInfo) -> Failure {
    let name = wanted.name.as_deref().unwrap_or_default();
    let reason = match code.as_u16() {
        400 => return status::bad_request(message),
        404 => "NotFound",
        _ => return status::internal(message),
    };
    Failure::new(code.as_u16(), reason, message).about("", wanted.resource.plural, name)
}

/// `NAME`, `NAME:PORT`, `SCHEME:NAME:PORT`: the name, and the port if present.
fn addressed(name: &str) -> (&str, &str) {
    match name.split(':').collect::<Vec<_>>().as_slice() {
        [name, port] | [_, name, port] => (*name, *port),
        _ => (name, ""),
    }
}

/// Answers `/api/v1/nodes/NODE/proxy/...`: the kubelet's own API, with its own authorization.
pub(super) async fn node_proxy(
    api: &LocalApi,
    wanted: &RequestInfo,
    visit: DelegatedRequest,
) -> Result<Response<Body>, Failure> {
    let (name, port) = addressed(wanted.name.as_deref().unwrap_or_default());
    if name != api.node.name() {
        return Err(status::not_found(wanted.resource, name));
    }
    let own = api.cluster.node().port.to_string();
    if !port.is_empty() && port != own {
        let message = format!(
            "error trying to reach service: the proxy of node \"{name}\" only serves kubelet port {own}; \
             connect to the node's address for port {port:?}"
        );
        return Err(Failure::new(503, "ServiceUnavailable", message));
    }
    let DelegatedRequest { request, user, policy, served, place } = visit;
    let path = if wanted.rest.is_empty() { "/" } else { &wanted.rest };
    let asked = access::attributes_of(wanted);
    let is_allowed =
        policy.allows(&user, request.method().as_str(), path) || api.access(policy, &user).may(&asked);
    if !is_allowed {
        return Err(access::refusal(&user, &asked));
    }
    let query = request.uri().query().unwrap_or_default().to_owned();
    let route = route::route(request.method().as_str(), path, &query);
    let served = Served { agent_resources: false, ..served };
    Ok(answer(request, route, &api.node, served, &api.clock, place).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use serde_json::json;

    fn chosen(pod: serde_json::Value, query: &str) -> Result<String, String> {
        let pod: Pod = decode(pod).unwrap().object;
        container(&pod, &route::parameters(query)).map_err(|failure| failure.message)
    }

    #[test]
    fn yes_and_no_are_read_as_an_api_server_reads_them() {
        let query =
            "stdout=True&stderr=1&stdin=False&tty=0&follow=&previous=FALSE&timestamps=yes&command=True";
        let read = to_kubelet_parameters(route::parameters(query));
        let words: Vec<&str> = read.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(words, ["true", "true", "false", "false", "true", "false", "true", "True"]);
    }

    #[test]
    fn the_node_behind_a_proxy_may_be_named_with_its_port() {
        for (name, meant) in [
            ("edge", ("edge", "")),
            ("edge:10250", ("edge", "10250")),
            ("https:edge:10250", ("edge", "10250")),
            ("https:edge:", ("edge", "")),
        ] {
            assert_eq!(addressed(name), meant, "{name}");
        }
    }

    #[test]
    fn a_container_is_chosen_as_an_api_server_does() {
        let pod = |containers: &[&str], init: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
            json!({"metadata": {"name": "web"}, "spec": {"containers": list(containers), "initContainers": list(init)}})
        };
        assert_eq!(chosen(pod(&["a"], &[]), ""), Ok("a".to_owned()));
        assert_eq!(chosen(pod(&["a"], &["i"]), "container=i"), Ok("i".to_owned()));
        assert_eq!(
            chosen(pod(&["a", "b"], &["i"]), "container="),
            Err("a container name must be specified for pod web, choose one of: [a b] or one of the init containers: [i]".to_owned())
        );
        assert_eq!(
            chosen(pod(&["a"], &[]), "container=x"),
            Err("container x is not valid for pod web".to_owned())
        );
    }
}
