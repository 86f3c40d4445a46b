//! Lifecycle hooks and the grace period of a stop: what a handler does, to which target, and how much time is
//! left.
//!
//! Owns the arithmetic of grace periods and upstream's messages about failed hooks.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::model::api::decode::decode;
use crate::model::api::pod::{Container, ContainerPort, HttpGetAction, LifecycleHandler, Pod};
use crate::model::containers::find_container;
use crate::model::labels;
use crate::model::types::{ContainerName, PodRef};
use crate::pod::target::{HttpTarget, PortError, http_target};

/// The shortest grace period that is passed to a runtime (upstream).
pub(super) const MIN_STOP_GRACE: Duration = Duration::from_secs(2);
/// A pod is not reported as late before this (upstream).
const LEAST_KILL_WAIT: Duration = Duration::from_secs(10);
/// Characters of a failed command's output that the message contains.
const MAX_OUTPUT_CHARS: usize = 1024;

/// A hook, and the parts of its container that it refers to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hook {
    pub handler: LifecycleHandler,
    /// Where named ports are looked up.
    pub ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HookCall {
    /// Run a command in the container, as it is written (upstream expands nothing here).
    Exec(Vec<String>),
    /// Send a request. Any answer is a success.
    HttpGet(HttpTarget),
    Sleep(Duration),
}

/// The hook to run right after the container has started.
#[must_use]
pub(crate) fn post_start(container: &Container) -> Option<Hook> {
    let handler = container.lifecycle.as_ref()?.post_start.clone()?;
    Some(Hook { handler, ports: container.ports.clone() })
}

/// The hook to run before the container is stopped. For a pod that is known from the runtime alone, it comes
/// from the container's `annotations`.
#[must_use]
pub(crate) fn pre_stop(
    pod: &Pod,
    name: &ContainerName,
    annotations: &BTreeMap<String, String>,
) -> Option<Hook> {
    // Every container of a manifest has an image.
    match find_container(pod, name).filter(|(container, _)| !container.image.is_empty()) {
        Some((container, _)) => pre_stop_of(container),
        None => pre_stop_of(&restore(annotations)?),
    }
}

fn pre_stop_of(container: &Container) -> Option<Hook> {
    let handler = container.lifecycle.as_ref()?.pre_stop.clone()?;
    Some(Hook { handler, ports: container.ports.clone() })
}

/// A container restored from its annotations; `None` when they hold no hook. Invalid ones count as absent
/// (upstream).
fn restore(annotations: &BTreeMap<String, String>) -> Option<Container> {
    let parsed = |key| annotations.get(key).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let handler = parsed(labels::PRE_STOP_HANDLER)?;
    let ports = parsed(labels::CONTAINER_PORTS).unwrap_or_else(|| json!([]));
    let with_ports =
        |ports: Value| decode::<Container>(json!({"lifecycle": {"preStop": handler}, "ports": ports}));
    with_ports(ports).or_else(|_| with_ports(json!([]))).ok().map(|decoded| decoded.object)
}

/// The call that `hook` makes for a container of a pod with this address.
pub(super) fn hook_call(hook: &Hook, pod_ip: Option<&str>) -> Result<HookCall, String> {
    let handler = &hook.handler;
    if let Some(exec) = &handler.exec {
        Ok(HookCall::Exec(exec.command.clone()))
    } else if let Some(get) = &handler.http_get {
        http_request(get, &hook.ports, pod_ip).map(HookCall::HttpGet)
    } else if let Some(sleep) = &handler.sleep {
        Ok(HookCall::Sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))))
    } else {
        // The API accepts tcpSocket, but upstream has never implemented it.
        let kind = if handler.tcp_socket.is_some() { "tcpSocket" } else { "none" };
        Err(format!("invalid handler: {kind}"))
    }
}

/// Without the pod's address only a request to another host has a target.
fn http_request(
    get: &HttpGetAction,
    ports: &[ContainerPort],
    pod_ip: Option<&str>,
) -> Result<HttpTarget, String> {
    if get.host.is_empty() && pod_ip.is_none() {
        return Err("failed to find networking container: the pod has no IP address".to_owned());
    }
    http_target(get, ports, pod_ip.unwrap_or_default()).map_err(|error| match error {
        PortError::Unknown(name) => format!("port {name} not found"),
        PortError::Invalid(number) => format!("invalid port number: {number}"),
    })
}

/// Upstream's message for a failed hook: the status shows it, events do not, since it may contain secrets.
#[must_use]
pub(super) fn failure_message(
    handler: &LifecycleHandler,
    container: &str,
    pod: &PodRef,
    error: &HookError,
) -> String {
    let pod = pod.to_string();
    let error_text = &error.text;
    if let Some(exec) = &handler.exec {
        let output: String = error.output.chars().take(MAX_OUTPUT_CHARS).collect();
        format!(
            "Exec lifecycle hook ([{}]) for Container {container:?} in Pod {pod:?} failed - error: {error_text}, message: {output:?}",
            exec.command.join(" ")
        )
    } else if let Some(get) = &handler.http_get {
        format!(
            "HTTP lifecycle hook ({}) for Container {container:?} in Pod {pod:?} failed - error: {error_text}",
            get.path
        )
    } else if let Some(sleep) = &handler.sleep {
        format!(
            "Sleep lifecycle hook ({}) for Container {container:?} in Pod {pod:?} failed - error: {error_text}",
            sleep.seconds
        )
    } else {
        format!("Cannot run handler: {error_text}")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HookError {
    pub text: String,
    pub output: String,
}

impl From<String> for HookError {
    fn from(text: String) -> Self {
        Self { text, output: String::new() }
    }
}

/// The error of a command that ended with `exit_code`; `None` for success.
#[must_use]
pub(super) fn exec_error(command: &[String], exit_code: i32, output: &[u8]) -> Option<HookError> {
    let text = format!("command '{}' exited with {exit_code}", command.join(" "));
    let output = String::from_utf8_lossy(output).into_owned();
    (exit_code != 0).then_some(HookError { text, output })
}

/// The grace period passed to the runtime when this much time is left; never below the minimum.
#[must_use]
pub(super) fn stop_grace(left: Duration) -> Duration {
    left.max(MIN_STOP_GRACE)
}

/// A pod that lives longer than this after its removal began has exceeded its grace (upstream: `killPodNow`).
#[must_use]
pub(super) fn longest_kill(grace_seconds: i64) -> Duration {
    let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
    grace.saturating_add(grace / 2).max(LEAST_KILL_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::pod::{ExecAction, IntOrString, Lifecycle, PodSpec, SleepAction, TcpSocketAction};

    fn ports() -> Vec<ContainerPort> {
        let port = |name: &str, container_port| ContainerPort {
            name: name.to_owned(),
            container_port,
            ..ContainerPort::default()
        };
        vec![port("web", 8080), port("81", 9), port("bad", 0)]
    }

    fn get(port: IntOrString) -> HttpGetAction {
        HttpGetAction { port, path: "/x?y".to_owned(), scheme: "HTTP".to_owned(), ..HttpGetAction::default() }
    }

    fn http(get: HttpGetAction) -> LifecycleHandler {
        LifecycleHandler { http_get: Some(get), ..LifecycleHandler::default() }
    }

    fn exec(words: &[&str]) -> LifecycleHandler {
        let command = words.iter().map(|word| (*word).to_owned()).collect();
        LifecycleHandler { exec: Some(ExecAction { command }), ..LifecycleHandler::default() }
    }

    #[test]
    fn each_handler_means_one_call() {
        let call = |handler, ip| hook_call(&Hook { handler, ports: ports() }, ip);
        let written = exec(&["echo", "$(NAME)"]);
        assert_eq!(call(written, None), Ok(HookCall::Exec(vec!["echo".into(), "$(NAME)".into()])));
        let sleep = |seconds| LifecycleHandler {
            sleep: Some(SleepAction { seconds }),
            ..LifecycleHandler::default()
        };
        assert_eq!(call(sleep(5), None), Ok(HookCall::Sleep(Duration::from_secs(5))));
        assert_eq!(call(sleep(-5), None), Ok(HookCall::Sleep(Duration::ZERO)));
        let tcp =
            LifecycleHandler { tcp_socket: Some(TcpSocketAction::default()), ..LifecycleHandler::default() };
        assert_eq!(call(tcp, None), Err("invalid handler: tcpSocket".to_owned()));
        assert_eq!(call(LifecycleHandler::default(), None), Err("invalid handler: none".to_owned()));
        let to_pod = get(IntOrString::String("web".into()));
        let request = |https, host: &str, port| HttpTarget {
            https,
            host: host.to_owned(),
            port,
            path: "/x?y".to_owned(),
            headers: Vec::new(),
        };
        assert_eq!(
            call(http(to_pod.clone()), Some("10.0.0.7")),
            Ok(HookCall::HttpGet(request(false, "10.0.0.7", 8080)))
        );
        assert!(call(http(to_pod), None).unwrap_err().starts_with("failed to find networking container"));
        let wrong = |port| call(http(get(port)), Some("10.0.0.7")).unwrap_err();
        assert_eq!(wrong(IntOrString::String("nope".into())), "port nope not found");
        assert_eq!(wrong(IntOrString::Int(0)), "invalid port number: 0");
        let elsewhere = HttpGetAction {
            host: "[fd00::1]".to_owned(),
            scheme: "HTTPS".to_owned(),
            ..get(IntOrString::Int(443))
        };
        assert_eq!(call(http(elsewhere), None), Ok(HookCall::HttpGet(request(true, "fd00::1", 443))));
    }

    #[test]
    fn hook_failure_messages_match_upstream() {
        let pod = PodRef { namespace: "shop".into(), name: "web".into(), uid: "u1".into() };
        let words =
            |handler: &LifecycleHandler, error: &HookError| failure_message(handler, "c", &pod, error);
        let error = exec_error(&["sh".into(), "-c".into()], 3, b"no\n").unwrap();
        assert_eq!(
            words(&exec(&["sh", "-c"]), &error),
            "Exec lifecycle hook ([sh -c]) for Container \"c\" in Pod \"web_shop(u1)\" failed - error: \
             command 'sh -c' exited with 3, message: \"no\\n\""
        );
        assert_eq!(
            words(&http(get(IntOrString::Int(1))), &"refused".to_owned().into()),
            "HTTP lifecycle hook (/x?y) for Container \"c\" in Pod \"web_shop(u1)\" failed - error: refused"
        );
        assert_eq!(
            words(&LifecycleHandler::default(), &"invalid handler: none".to_owned().into()),
            "Cannot run handler: invalid handler: none"
        );
        assert_eq!(exec_error(&["true".into()], 0, b"fine"), None);
        let long = exec_error(&["x".into()], 1, &vec![b'a'; 100_000]).unwrap();
        assert!(words(&exec(&["x"]), &long).len() < 2 * MAX_OUTPUT_CHARS);
    }

    #[test]
    fn orphan_pod_hook_is_read_from_container_annotations() {
        let annotations = |handler: &str, ports: &str| {
            BTreeMap::from([
                (labels::PRE_STOP_HANDLER.to_owned(), handler.to_owned()),
                (labels::CONTAINER_PORTS.to_owned(), ports.to_owned()),
            ])
        };
        let written = r#"{"httpGet":{"path":"/bye","port":"web","scheme":"HTTP"}}"#;
        let named = r#"[{"name":"web","containerPort":8080}]"#;
        let with_container = |image: &str, lifecycle| {
            let container =
                Container { name: "c".into(), image: image.into(), lifecycle, ..Container::default() };
            Pod { spec: PodSpec { containers: vec![container], ..PodSpec::default() }, ..Pod::default() }
        };
        let find = |pod: &Pod, annotations| pre_stop(pod, &"c".into(), &annotations);
        let orphan = with_container("", None);
        let hook = find(&orphan, annotations(written, named)).unwrap();
        assert_eq!(
            hook_call(&hook, Some("10.0.0.7"))
                .map(|call| matches!(call, HookCall::HttpGet(get) if get.port == 8080)),
            Ok(true)
        );
        let hook = find(&orphan, annotations(r#"{"exec":{"command":["bye"]}}"#, "nonsense")).unwrap();
        assert_eq!(hook.handler, exec(&["bye"]));
        assert_eq!(find(&orphan, annotations("{not json", named)), None);
        assert_eq!(find(&orphan, BTreeMap::new()), None);
        assert_eq!(find(&Pod::default(), annotations(written, named)).map(|hook| hook.ports.len()), Some(1));
        let spec_says_none = with_container("nginx", None);
        assert_eq!(find(&spec_says_none, annotations(written, named)), None);
        let lifecycle = Lifecycle { pre_stop: Some(exec(&["spec"])), ..Lifecycle::default() };
        let hook = find(&with_container("nginx", Some(lifecycle)), annotations(written, named)).unwrap();
        assert_eq!(hook.handler, exec(&["spec"]));
    }

    #[test]
    fn the_runtime_is_never_asked_for_less_than_two_seconds() {
        let seconds = Duration::from_secs;
        for (left, asked) in [(0, 2), (1, 2), (2, 2), (3, 3), (30, 30)] {
            assert_eq!(stop_grace(seconds(left)), seconds(asked));
        }
        for (grace, longest) in [(0, 10), (6, 10), (30, 45), (-1, 10)] {
            assert_eq!(longest_kill(grace), seconds(longest));
        }
    }
}
