//! Security contexts, seen from the inside, and refusals.

use serde_json::{Value, json};

use super::Node;

/// What the kernel says of the container's shell.
fn status_of(node: &Node, pod: &str) -> impl Fn(&str) -> String + use<> {
    let text = node.written(pod);
    move |field: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
        line.unwrap_or_else(|| panic!("no {field} in {text}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn introspective(node: &Node, name: &str) -> Value {
    node.pod(
        name,
        &format!("cat /proc/self/status > /out/{name}.part; mv /out/{name}.part /out/{name}; sleep 1000"),
    )
}

fn a_container_runs_as_the_user_and_groups_it_is_given() {
    let mut node = Node::new();
    node.everybody_may_write();
    let mut pod = introspective(&node, "who");
    pod["spec"]["securityContext"] =
        json!({ "runAsUser": 1234, "runAsGroup": 2345, "supplementalGroups": [3456] });
    pod["spec"]["containers"][0]["securityContext"] = json!({ "runAsUser": 4321, "runAsNonRoot": true });
    node.apply(&pod);
    node.agent.start();
    let status = status_of(&node, "who");
    assert_eq!(status("Uid"), "4321 4321 4321 4321");
    assert_eq!(status("Gid"), "2345 2345 2345 2345");
    assert!(status("Groups").split(' ').any(|group| group == "3456"), "{}", status("Groups"));
}

fn capabilities_privilege_escalation_and_seccomp_are_as_asked() {
    let mut node = Node::new();
    let mut bare = introspective(&node, "bare");
    bare["spec"]["containers"][0]["securityContext"] = json!({
        "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
        "allowPrivilegeEscalation": false,
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    let mut open = introspective(&node, "open");
    open["spec"]["containers"][0]["securityContext"] = json!({ "seccompProfile": { "type": "Unconfined" } });
    node.apply(&bare);
    node.apply(&open);
    node.agent.start();
    let (bare, open) = (status_of(&node, "bare"), status_of(&node, "open"));
    // CAP_NET_BIND_SERVICE is number 10.
    assert_eq!(bare("CapEff"), "0000000000000400");
    assert_eq!((bare("NoNewPrivs").as_str(), bare("Seccomp").as_str()), ("1", "2"));
    assert_eq!((open("NoNewPrivs").as_str(), open("Seccomp").as_str()), ("0", "0"));
}

fn a_read_only_root_and_the_usual_hidden_paths_hold() {
    let mut node = Node::new();
    let mut pod = node.pod("sealed", "(touch /x 2>/dev/null && echo writable || echo sealed; wc -c < /proc/interrupts; echo 1 2>/dev/null > /proc/sys/vm/overcommit_memory && echo tuned || echo refused) > /out/sealed.part; mv /out/sealed.part /out/sealed; sleep 1000");
    pod["spec"]["containers"][0]["securityContext"] = json!({ "readOnlyRootFilesystem": true });
    node.apply(&pod);
    node.agent.start();
    assert_eq!(node.written("sealed"), "sealed\n0\nrefused\n");
}

fn run_as_non_root_refuses_an_image_that_runs_as_root() {
    let mut node = Node::new();
    let mut pod = node.pod("root", "sleep 1000");
    pod["spec"]["securityContext"] = json!({ "runAsNonRoot": true });
    node.apply(&pod);
    node.agent.start();
    let message = node.agent.wait_for_pod("root", "refused", |pod| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        (waiting["reason"] == "CreateContainerConfigError").then(|| waiting["message"].to_string())
    });
    assert!(message.contains("container has runAsNonRoot and image will run as root"), "{message}");
}

fn a_safe_sysctl_is_set_and_an_unsafe_one_is_refused() {
    let mut node = Node::new();
    let with = |name: &str, sysctl: &str, value: &str| {
        let mut pod = node.pod(
            name,
            &format!("cat /proc/sys/net/ipv4/ip_unprivileged_port_start > /out/{name}; sleep 1000"),
        );
        pod["spec"].as_object_mut().expect("an object").remove("hostNetwork");
        pod["spec"]["securityContext"] = json!({ "sysctls": [{ "name": sysctl, "value": value }] });
        pod
    };
    let (safe, unsafe_one) =
        (with("safe", "net.ipv4.ip_unprivileged_port_start", "80"), with("unsafe", "kernel.msgmax", "65536"));
    node.apply(&safe);
    node.apply(&unsafe_one);
    node.agent.start();
    assert_eq!(node.written("safe"), "80\n");
    let message = node.agent.wait_for_pod("unsafe", "refused", |pod| {
        (pod["status"]["reason"] == "SysctlForbidden").then(|| pod["status"]["message"].to_string())
    });
    assert!(message.contains("forbidden sysctl") && message.contains("kernel.msgmax"), "{message}");
}

fn a_runtime_class_is_the_runtimes_handler_of_that_name() {
    let mut node = Node::new();
    let mut known = node.pod("known", "sleep 1000");
    known["spec"]["runtimeClassName"] = json!("second");
    let mut unknown = node.pod("unknown", "sleep 1000");
    unknown["spec"]["runtimeClassName"] = json!("moon");
    node.apply(&known);
    node.apply(&unknown);
    node.agent.start();
    let container = node.running("known");
    assert!(node.runtime.is_second(&container), "{container:?} was not made by the handler");
    let message = node.agent.wait_for_pod("unknown", "refused", |pod| {
        (pod["status"]["reason"] == "FailedCreatePodSandBox").then(|| pod["status"]["message"].to_string())
    });
    assert!(message.contains("moon"), "{message}");
}

fn processes_of_a_pod_share_what_it_says_they_share() {
    let mut node = Node::new();
    let mut pod = node.pod(
        "shared",
        "until ps | grep -q [9]87654; do sleep 0.05; done; ps > /out/ps; echo >> /out/ps; sleep 1000",
    );
    pod["spec"].as_object_mut().expect("an object").remove("hostNetwork");
    pod["spec"]["shareProcessNamespace"] = json!(true);
    let other = node.container("other", "exec sleep 987654");
    pod["spec"]["containers"].as_array_mut().expect("a list").push(other);
    node.apply(&pod);
    node.agent.start();
    assert!(node.written("ps").contains("987654"));
}

super::on_every_runtime! {
    a_container_runs_as_the_user_and_groups_it_is_given,
    capabilities_privilege_escalation_and_seccomp_are_as_asked,
    a_read_only_root_and_the_usual_hidden_paths_hold,
    run_as_non_root_refuses_an_image_that_runs_as_root,
    a_safe_sysctl_is_set_and_an_unsafe_one_is_refused,
    a_runtime_class_is_the_runtimes_handler_of_that_name,
    processes_of_a_pod_share_what_it_says_they_share,
}
