//! What a pod's security fields look like on the wire: message for message what the kubelet sends. AppArmor's are with the
//! conversion's own tests: not every machine has it, and admission looks.
#![expect(clippy::unnecessary_wraps, reason = "messages hold their parts as options")]

use std::fs;

use edge_agent::platform::proto::runtime as cri;
use edge_agent::platform::proto::runtime::NamespaceMode::{Container, Node as OfNode, Pod as OfPod};
use edge_agent::platform::proto::runtime::security_profile::ProfileType;
use edge_agent::runtime::RuntimeHandler;
use serde_json::{Value, json};

use super::node::{Node, pod};
use crate::support::agent::{PATIENCE, pod_name};
use crate::support::wait::wait_for;

/// Ids in one pod's range.
const IDS: u32 = 65_536;

pub fn with_handlers(node: &Node) {
    let handler = |name: &str, user_namespaces| RuntimeHandler {
        name: name.into(),
        user_namespaces,
        ..RuntimeHandler::default()
    };
    let status = &mut node.cri.state().world.status;
    status.handlers = vec![handler("", true), handler("kata", true), handler("plain", false)];
    status.supplemental_groups_policy = Some(true);
}

fn spec(name: &str, fields: &Value) -> Value {
    let mut pod = pod(name);
    let spec = pod["spec"].as_object_mut().expect("a pod has a spec");
    spec.extend(fields.as_object().expect("fields").clone());
    pod
}

/// The last messages that made the pod's sandbox and its container, and the handler asked for.
fn made(node: &Node, name: &str) -> (cri::PodSandboxConfig, cri::ContainerConfig, String) {
    let state = node.cri.state();
    let mut containers = state.world.containers.values().map(|container| &container.observed);
    let container = containers.find(|container| *container.pod.name == *pod_name(name)).expect("it runs");
    let (sandbox, container) = (container.sandbox.to_string(), container.id.to_string());
    (
        state.sandbox_configs[&sandbox].clone(),
        state.container_configs[&container].clone(),
        state.runtime_handlers[&sandbox].clone(),
    )
}

fn sandbox_security(config: &cri::PodSandboxConfig) -> cri::LinuxSandboxSecurityContext {
    config.linux.clone().and_then(|linux| linux.security_context).expect("the sandbox has a context")
}

fn container_security(config: &cri::ContainerConfig) -> cri::LinuxContainerSecurityContext {
    config.linux.clone().and_then(|linux| linux.security_context).expect("the container has a context")
}

fn namespaces(
    network: cri::NamespaceMode,
    pid: cri::NamespaceMode,
    ipc: cri::NamespaceMode,
    users: &[cri::IdMapping],
) -> Option<cri::NamespaceOption> {
    let mode = if users.is_empty() { OfNode } else { OfPod };
    Some(cri::NamespaceOption {
        network: network.into(),
        pid: pid.into(),
        ipc: ipc.into(),
        target_id: String::new(),
        userns_options: Some(cri::UserNamespace {
            mode: mode.into(),
            uids: users.to_vec(),
            gids: users.to_vec(),
        }),
    })
}

fn profile(kind: ProfileType, reference: &str) -> Option<cri::SecurityProfile> {
    Some(cri::SecurityProfile { profile_type: kind.into(), localhost_ref: reference.into() })
}

fn int(value: i64) -> Option<cri::Int64Value> {
    Some(cri::Int64Value { value })
}

fn selinux(type_: &str, level: &str) -> Option<cri::SeLinuxOption> {
    Some(cri::SeLinuxOption { r#type: type_.into(), level: level.into(), ..cri::SeLinuxOption::default() })
}

#[test]
fn every_security_field_arrives_as_the_kubelet_sends_it() {
    let mut node = Node::new();
    with_handlers(&node);
    let mut all = spec(
        "all",
        &json!({
            "os": {"name": "linux"},
            "hostUsers": false,
            "runtimeClassName": "kata",
            "overhead": {"cpu": "100m", "memory": "1Mi"},
            "securityContext": {
                "runAsUser": 1000, "runAsGroup": 2000, "runAsNonRoot": true,
                "fsGroup": 3000, "supplementalGroups": [4000, 5000], "supplementalGroupsPolicy": "Strict",
                "seLinuxOptions": {"level": "s0:c1"},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }),
    );
    let container = &mut all["spec"]["containers"][0];
    container["lifecycle"] = json!({"stopSignal": "SIGRTMIN+3"});
    container["securityContext"] = json!({
        "runAsUser": 1001, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
        "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
        "seLinuxOptions": {"type": "web_t"},
        "seccompProfile": {"type": "Localhost", "localhostProfile": "web.json"},
        "procMount": "Unmasked",
    });
    node.apply(&all);
    node.agent.start();
    node.running("all");
    let (sandbox, container, handler) = made(&node, "all");
    assert_eq!(handler, "kata");
    let users = [cri::IdMapping { host_id: IDS, container_id: 0, length: IDS }];
    let groups = vec![3000, 4000, 5000];
    let strict = i32::from(cri::SupplementalGroupsPolicy::Strict);
    assert_eq!(
        sandbox_security(&sandbox),
        cri::LinuxSandboxSecurityContext {
            namespace_options: namespaces(OfPod, Container, OfPod, &users),
            selinux_options: selinux("", "s0:c1"),
            run_as_user: int(1000),
            run_as_group: int(2000),
            supplemental_groups: groups.clone(),
            supplemental_groups_policy: strict,
            seccomp: profile(ProfileType::RuntimeDefault, ""),
            ..cri::LinuxSandboxSecurityContext::default()
        }
    );
    let overhead = sandbox.linux.and_then(|linux| linux.overhead).expect("the sandbox has overhead");
    assert_eq!((overhead.cpu_shares, overhead.cpu_quota), (102, 10_000));
    assert_eq!(overhead.memory_limit_in_bytes, 1 << 20);
    let seccomp = node.agent.root_dir().join("seccomp/web.json").display().to_string();
    assert_eq!(
        container_security(&container),
        cri::LinuxContainerSecurityContext {
            capabilities: Some(cri::Capability {
                add_capabilities: vec!["NET_BIND_SERVICE".into()],
                drop_capabilities: vec!["ALL".into()],
                add_ambient_capabilities: Vec::new(),
            }),
            namespace_options: namespaces(OfPod, Container, OfPod, &users),
            selinux_options: selinux("web_t", ""),
            run_as_user: int(1001),
            run_as_group: int(2000),
            readonly_rootfs: true,
            supplemental_groups: groups,
            supplemental_groups_policy: strict,
            no_new_privs: true,
            seccomp: profile(ProfileType::Localhost, &seccomp),
            ..cri::LinuxContainerSecurityContext::default()
        }
    );
    assert_eq!(container.stop_signal(), cri::Signal::Sigrtminplus3);
    assert!(!container.mounts.is_empty());
    for mount in &container.mounts {
        assert_eq!((&mount.uid_mappings[..], &mount.gid_mappings[..]), (&users[..], &users[..]), "{mount:?}");
    }
}

#[test]
fn security_contexts_of_default_and_privileged_pods() {
    let mut node = Node::new();
    node.apply(&pod("plain"));
    let host = json!({"hostNetwork": true, "hostPID": true, "hostIPC": true});
    let mut open = spec("open", &host);
    open["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    node.apply(&open);
    node.agent.start();
    node.running("plain");
    node.running("open");
    let (sandbox, container, handler) = made(&node, "plain");
    assert_eq!(handler, "");
    let of_sandbox = sandbox_security(&sandbox);
    assert_eq!(of_sandbox.namespace_options, namespaces(OfPod, Container, OfPod, &[]));
    assert_eq!(of_sandbox.seccomp, profile(ProfileType::RuntimeDefault, ""));
    let own = container_security(&container);
    assert_eq!(own.namespace_options, namespaces(OfPod, Container, OfPod, &[]));
    assert_eq!(own.seccomp, profile(ProfileType::Unconfined, ""));
    assert_eq!((own.apparmor, own.selinux_options, own.run_as_user), (None, None, int(0)));
    assert_eq!((own.masked_paths.len(), own.readonly_paths.len()), (12, 5));
    assert!(!own.privileged && !own.no_new_privs && !own.readonly_rootfs);
    assert!(container.mounts.iter().all(|mount| mount.uid_mappings.is_empty()));
    let (sandbox, container, _) = made(&node, "open");
    let of_sandbox = sandbox_security(&sandbox);
    assert!(of_sandbox.privileged, "a container is");
    assert_eq!(of_sandbox.namespace_options, namespaces(OfNode, OfNode, OfNode, &[]));
    assert!(container_security(&container).privileged);
}

#[test]
fn user_namespace_ranges_survive_restarts_and_are_freed() {
    let mut node = Node::new();
    with_handlers(&node);
    let own = json!({"hostUsers": false});
    node.apply(&spec("first", &own));
    node.agent.start();
    let first = node.running("first");
    node.agent.kill9();
    node.apply(&spec("second", &own));
    node.agent.start();
    node.running("second");
    node.keeps_running("first", &first);
    let host_of = |name: &str| {
        let options = container_security(&made(&node, name).1).namespace_options.expect("namespaces");
        options.userns_options.expect("users").uids[0].host_id
    };
    assert_eq!((host_of("first"), host_of("second")), (IDS, 2 * IDS));
    node.agent.remove_manifest("first.yaml");
    node.stopped("first");
    node.logged(&["first-edge"]);
    wait_for("the range to be free", PATIENCE, || {
        let pods = fs::read_dir(node.agent.root_dir().join("pods")).map_err(|error| error.to_string())?;
        let left = pods.flatten().filter(|pod| pod.path().join("userns").exists()).count();
        if left == 1 { Ok(()) } else { Err(format!("{left} pods have a range")) }
    });
    node.apply(&spec("third", &own));
    node.running("third");
    let options = container_security(&made(&node, "third").1).namespace_options.expect("namespaces");
    assert_eq!(options.userns_options.expect("users").uids[0].host_id, IDS);
}

#[test]
fn features_the_runtime_lacks_are_reported_as_events() {
    let mut node = Node::new();
    with_handlers(&node);
    node.apply(&spec("lost", &json!({"runtimeClassName": "gvisor"})));
    node.apply(&spec("rooted", &json!({"runtimeClassName": "plain", "hostUsers": false})));
    let long = "s".repeat(60);
    node.apply(&spec("long", &json!({"subdomain": long, "setHostnameAsFQDN": true})));
    node.agent.start();
    let no_handler = "is not a handler of the container runtime, which supports";
    node.logged(&["lost-edge", "FailedCreatePodSandBox", "gvisor", no_handler]);
    node.logged(&["rooted-edge", "PodFeatureUnsupported", "does not support user namespaces"]);
    node.logged(&["long-edge", "FailedCreatePodSandBox", "is too long (64 characters is the max"]);
    assert_eq!(node.calls("RunPodSandbox"), 0, "it was not even asked");
    // A runtime that does not tell its handlers refuses in its own words.
    node.cri.state().world.status.handlers.clear();
    node.logged(&["lost-edge", "FailedCreatePodSandBox", "no runtime for", "gvisor", "is configured"]);
}
