//! Joining as an operator does: `agent join` and `agent leave`, and kubeadm with the agent as its kubelet.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::machine::{Machine, NAME, wait};
use super::{condition, container, summary};

/// What kubeadm finds wrong with the machine that tests run on, not with the agent.
const MACHINE_FACTS: &str = "--ignore-preflight-errors=SystemVerification,Service-kubelet,Swap,NumCPU,Mem,FileContent--proc-sys-net-bridge-bridge-nf-call-iptables,FileContent--proc-sys-net-ipv4-ip_forward";
const NODE_FILES: [&str; 3] =
    ["/etc/kubernetes/kubelet.conf", "/etc/kubernetes/bootstrap-kubelet.conf", "/etc/kubernetes/pki/ca.crt"];

fn static_pod() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "static" },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [container("sleep 1000")] },
    });
    fs::write("/etc/kubernetes/manifests/static.yaml", pod.to_string()).expect("write a manifest");
}

/// Two pods of a Deployment.
fn deploy(machine: &Machine) {
    let template = json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [container("sleep 1000")] },
    });
    machine.plane.apply(&[json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "web" } }, "template": template },
    })]);
}

fn wait_until_ready(machine: &Machine) -> Value {
    wait("the node to be ready", || {
        let node = machine.plane.get(&format!("/api/v1/nodes/{NAME}"))?;
        if condition(&node, "Ready") == "True" { Ok(node) } else { Err(node["status"].to_string()) }
    })
}

/// A machine that has joined, with a static pod and two of a Deployment; the process of the static one.
fn joined() -> (Machine, u32) {
    let machine = Machine::new();
    static_pod();
    let said = machine.join("agent", &[MACHINE_FACTS]).unwrap_or_else(|error| panic!("{error}"));
    assert!(said.contains("This node has joined the cluster:"), "{said}");
    assert!(!machine.log("agent").contains("No certificate yet"), "{}", machine.log("agent"));
    let node = wait_until_ready(&machine);
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"].as_str().map(|it| &it[..8]), Some("v1.36.0+"));
    deploy(&machine);
    let process = machine.wait_for_pods(&["web-", "web-", "static-"]);
    (machine, process)
}

fn assert_alone(machine: &Machine) {
    for path in NODE_FILES {
        assert!(!Path::new(path).exists(), "{path} is still there");
    }
    let left = fs::read_dir("/var/lib/kubelet/pki").expect("the node's own certificates").flatten();
    let left: Vec<_> = left.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    assert!(!left.iter().any(|name| name.starts_with("kubelet-client")), "{left:?}");
    let flags = fs::read_to_string("/etc/default/agent").expect("the service's flags");
    assert!(!flags.contains("kubeconfig") && flags.contains("--cgroup-root"), "{flags}");
    wait("the agent without a cluster", || {
        let report = machine.status()?;
        let sources = report["sources"].as_array().cloned().unwrap_or_default();
        let has_cluster = sources.iter().any(|source| source["name"] == "cluster");
        if report["cluster"].is_null() && !has_cluster { Ok(()) } else { Err(report.to_string()) }
    });
}

#[test]
fn a_node_joins_leaves_and_joins_again() {
    let (machine, process) = joined();
    let again = machine.join("agent", &[MACHINE_FACTS]).expect_err("it is a node already");
    assert!(again.contains("already exists: this machine is a node of a cluster"), "{again}");
    assert!(!again.contains("LocalPods"), "pods of the cluster are taken for the node's own: {again}");
    let said = machine.run("agent", &["leave"]).unwrap_or_else(|error| panic!("{error}"));
    assert!(said.contains(&format!("kubectl delete node {NAME}")), "{said}");
    assert_alone(&machine);
    assert_eq!(machine.wait_for_pods(&["static-"]), process, "the static pod was restarted");
    // Both were evicted, and have nowhere to go.
    wait("the pods to wait for another node", || {
        let pods = machine.plane.pods("default", "app=web")?;
        let are_free = pods.iter().all(|pod| pod["spec"]["nodeName"].is_null());
        if pods.len() == 2 && are_free { Ok(()) } else { Err(summary(&pods)) }
    });
    let nodes = machine.plane.get(&format!("/api/v1/nodes/{NAME}")).expect("a node may not delete itself");
    assert_eq!(nodes["spec"]["unschedulable"], true, "it is not cordoned");

    machine.plane.kubectl(&["delete", "node", NAME]);
    machine.join("agent", &[MACHINE_FACTS]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(machine.wait_for_pods(&["web-", "web-", "static-"]), process);
    let said = machine.run("agent", &["reset", "--force"]).unwrap_or_else(|error| panic!("{error}"));
    assert!(said.contains("Pods removed: 3"), "{said}");
    assert_eq!(machine.running(), []);
    for path in NODE_FILES.into_iter().chain(["/var/lib/kubelet/agent.db", "/etc/default/agent"]) {
        assert!(!Path::new(path).exists(), "{path} is still there");
    }
    let refusals = machine.plane.refusals();
    assert!(refusals.is_empty(), "the API server refused: {refusals:#?}");
}

#[test]
fn a_disruption_budget_delays_leaving() {
    let (machine, _) = joined();
    machine.plane.apply(&[json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
        "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "web" } } },
    })]);
    wait("the budget to count", || {
        let budget = machine.plane.get("/apis/policy/v1/namespaces/default/poddisruptionbudgets/web")?;
        if budget["status"]["currentHealthy"] == 2 { Ok(()) } else { Err(budget.to_string()) }
    });
    let said = machine.run("agent", &["leave", "--timeout=2s"]).expect_err("the budget allows no eviction");
    assert!(said.contains("disruption budget") && said.contains("Nothing else was changed"), "{said}");
    machine.wait_for_pods(&["web-", "web-", "static-"]);
    assert_eq!(machine.status().expect("a report")["cluster"]["link"]["state"], "online");
    machine.run("agent", &["leave", "--now"]).unwrap_or_else(|error| panic!("{error}"));
    machine.wait_for_pods(&["static-"]);
    assert_alone(&machine);
}

#[test]
fn leaving_offline_needs_force() {
    let (mut machine, process) = joined();
    machine.plane.kill("kube-apiserver");
    wait("the link to be lost", || {
        let link = machine.status()?["cluster"]["link"].clone();
        if link["state"] == "offline" { Ok(()) } else { Err(link.to_string()) }
    });
    let said = machine.run("agent", &["leave"]).expect_err("the pods would be started nowhere else");
    assert!(said.contains("the API server does not answer") && said.contains("--force"), "{said}");
    assert_eq!(machine.wait_for_pods(&["web-", "web-", "static-"]), process);
    machine.run("agent", &["leave", "--force"]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(machine.wait_for_pods(&["static-"]), process, "the static pod was restarted");
    assert_alone(&machine);
}

#[test]
fn kubeadm_joins_and_resets_the_agent_as_kubelet() {
    let machine = Machine::new();
    machine.run("systemctl", &["start", "kubelet"]).unwrap_or_else(|error| panic!("{error}"));
    wait("the socket that kubeadm asks", || {
        if Path::new("/run/agent/cri.sock").exists() { Ok(()) } else { Err(machine.log("kubelet")) }
    });
    let socket = "--cri-socket=unix:///run/agent/cri.sock";
    let said = machine.join("kubeadm", &[socket, MACHINE_FACTS]).unwrap_or_else(|error| panic!("{error}"));
    assert!(said.contains("This node has joined the cluster:"), "{said}");
    assert!(!machine.log("kubelet").contains("No certificate yet"), "{}", machine.log("kubelet"));
    wait_until_ready(&machine);
    deploy(&machine);
    machine.wait_for_pods(&["web-", "web-"]);
    let refused = machine.run("agent", &["leave"]).expect_err("kubeadm's files are kubeadm's");
    assert!(refused.contains("kubeadm reset"), "{refused}");

    let said = machine.run("kubeadm", &["reset", "-f", socket]).unwrap_or_else(|error| panic!("{error}"));
    assert!(!said.contains("Failed to remove containers"), "{said}");
    assert_eq!(machine.running(), [], "{said}{}", machine.log("agent-cri"));
    let left = fs::read_dir("/var/lib/kubelet").expect("the directory stays").flatten();
    let left: Vec<_> = left.map(|it| it.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    // It may join again as it is.
    machine.plane.kubectl(&["delete", "node", NAME]);
    machine.join("kubeadm", &[socket, MACHINE_FACTS]).unwrap_or_else(|error| panic!("{error}"));
    machine.wait_for_pods(&["web-", "web-"]);
    let refusals = machine.plane.refusals();
    assert!(refusals.is_empty(), "the API server refused: {refusals:#?}");
}
