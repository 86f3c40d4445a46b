//! `agent init --control-plane` from an empty machine to a cluster that runs pods.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::another::Another;
use super::control_plane::{ADDRESS, VERSION, make_network, said};
use super::machine::{Host, NAME, wait};
use super::traces::traces;
use super::{condition, container, images};
use crate::support::embedded::Embedded;

/// What is found wrong with the machine that tests run on.
pub const MACHINE_FACTS: &str =
    "--ignore-preflight-errors=SystemVerification,Service-kubelet,NumCPU,Mem,Swap";
const STATIC_PODS: [&str; 4] = ["etcd-", "kube-apiserver-", "kube-controller-manager-", "kube-scheduler-"];
pub const ADMIN: &str = "--kubeconfig=/etc/kubernetes/admin.conf";

/// A machine with the images of a control plane; the calling thread is in its network.
pub fn host() -> Host {
    let runtime = Embedded::new();
    make_network();
    let host = Host::of(runtime);
    images::offer(&host.path("images"), &host.path(""));
    host
}

fn init(host: &Host) -> String {
    init_with(host, "")
}

/// With more lines of the ClusterConfiguration.
pub fn init_with(host: &Host, lines: &str) -> String {
    init_at(host, VERSION, lines)
}

/// At a version of Kubernetes.
pub fn init_at(host: &Host, version: &str, lines: &str) -> String {
    try_init_at(host, version, lines).unwrap_or_else(|error| panic!("{error}"))
}

pub fn try_init(host: &Host, lines: &str) -> Result<String, String> {
    try_init_at(host, VERSION, lines)
}

fn try_init_at(host: &Host, version: &str, lines: &str) -> Result<String, String> {
    let config = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {{advertiseAddress: {ADDRESS}}}\n\
         nodeRegistration: {{taints: []}}\n---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {version}\n\
         networking: {{podSubnet: 10.244.0.0/16}}\n{lines}"
    );
    let file = host.path("init.yaml").display().to_string();
    fs::write(&file, config).expect("write the configuration");
    let words = ["init", "--control-plane", "--config", &file, MACHINE_FACTS, "--timeout=3m"];
    host.run("agent", &words)
}

pub fn kubectl(host: &Host, words: &[&str]) -> Result<String, String> {
    host.run("kubectl", &[&[ADMIN], words].concat())
}

pub fn get(host: &Host, path: &str) -> Result<Value, String> {
    let text = kubectl(host, &["get", "--raw", path])?;
    serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
}

pub fn wait_until_ready(host: &Host, name: &str) -> Value {
    wait(&format!("node {name} to be ready"), || {
        let node = get(host, &format!("/api/v1/nodes/{name}"))?;
        if condition(&node, "Ready") == "True" { Ok(node) } else { Err(node["status"].to_string()) }
    })
}

/// Two pods that the scheduler places.
pub fn deploy(host: &Host, name: &str, replicas: u32) {
    let labels = json!({ "app": name });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": "default" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels },
            "spec": { "terminationGracePeriodSeconds": 1, "containers": [container("sleep 1000")] },
        } },
    });
    let file = host.path("deployment.json").display().to_string();
    fs::write(&file, deployment.to_string()).expect("write the object");
    kubectl(host, &["apply", "-f", &file]).unwrap_or_else(|error| panic!("{error}"));
}

/// Waits until so many pods of a Deployment are available; the nodes where they run.
pub fn wait_for_pods(host: &Host, name: &str, count: u64) -> Vec<String> {
    wait(&format!("pods of {name}"), || {
        let deployment = get(host, &format!("/apis/apps/v1/namespaces/default/deployments/{name}"))?;
        let status = &deployment["status"];
        let is_current = status["observedGeneration"] == deployment["metadata"]["generation"];
        if is_current && status["availableReplicas"] == count { Ok(()) } else { Err(status.to_string()) }
    });
    let pods =
        get(host, &format!("/api/v1/namespaces/default/pods?labelSelector=app={name}")).expect("a list");
    let nodes = pods["items"].as_array().into_iter().flatten();
    nodes.filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).collect()
}

/// The processes of the static pods.
pub fn static_pods(host: &Host) -> Vec<(String, u32)> {
    let is_static = |pod: &str| STATIC_PODS.iter().any(|name| pod.starts_with(name));
    host.running().into_iter().filter(|(pod, _)| is_static(pod)).collect()
}

#[test]
fn an_empty_machine_becomes_a_cluster_and_survives_a_power_cut() {
    let host = host();
    let said = init(&host);
    assert!(said.contains("Your Kubernetes control-plane has initialized successfully!"), "{said}");
    let node = wait_until_ready(&host, NAME);
    assert_eq!(node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"], "");
    assert_eq!(node["status"]["addresses"][0], json!({ "type": "InternalIP", "address": ADDRESS }), "{node}");
    deploy(&host, "web", 2);
    assert_eq!(wait_for_pods(&host, "web", 2), [NAME, NAME]);
    for (kind, name) in [("deployments", "coredns"), ("daemonsets", "kube-proxy")] {
        get(&host, &format!("/apis/apps/v1/namespaces/kube-system/{kind}/{name}")).expect(name);
    }

    // kubeadm reads what was made.
    let said = host.run("kubeadm", &["certs", "check-expiration"]).unwrap_or_else(|error| panic!("{error}"));
    assert!(!said.contains("MISSING") && said.contains("super-admin.conf"), "{said}");
    let tokens = |program: &str| {
        let said = host.run(program, &["token", "list", ADMIN]).unwrap_or_else(|error| panic!("{error}"));
        said.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(tokens("agent"), tokens("kubeadm"));

    // Another run changes nothing that runs.
    let before = static_pods(&host);
    assert_eq!(before.len(), STATIC_PODS.len(), "{before:?}");
    let again = host.run(
        "agent",
        &["init", "phase", "control-plane", "all", "--config", &host.path("init.yaml").display().to_string()],
    );
    again.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(static_pods(&host), before, "static pods were restarted");

    host.cut_power();
    host.run("systemctl", &["start", "agent"]).unwrap_or_else(|error| panic!("{error}"));
    wait_until_ready(&host, NAME);
    wait("the pods after the power cut", || {
        let running = host.running();
        let count = running.iter().filter(|(pod, _)| pod.starts_with("web-")).count();
        if count == 2 { Ok(()) } else { Err(format!("{running:?}")) }
    });
    wait_for_pods(&host, "web", 2);
}

#[test]
fn machines_join_what_the_agent_has_made() {
    let second = Another::start("second", "192.0.2.11");
    let host = host();
    second.connect();
    let made = init(&host);
    let line = made.split("agent join").nth(1).expect("how machines join");
    let line = line.split("\n\n").next().unwrap_or_default().replace("\\\n", " ");
    let line = format!("join {line}");
    let joined = second.run(move |host| {
        let words: Vec<&str> = line.split_whitespace().collect();
        host.run("agent", &[&words[..], &[MACHINE_FACTS]].concat())
    });
    joined.unwrap_or_else(|error| panic!("{error}"));
    let node = wait_until_ready(&host, "second");
    assert!(node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"].is_null(), "{node}");
    // One for each: they may not be on one node.
    kubectl(&host, &["cordon", NAME]).unwrap_or_else(|error| panic!("{error}"));
    deploy(&host, "web", 1);
    assert_eq!(wait_for_pods(&host, "web", 1), ["second"]);
    assert!(Path::new("/etc/kubernetes/admin.conf").exists());
}

/// Names of etcd's members, and whether they vote.
fn etcd_members() -> Result<Vec<(String, bool)>, String> {
    let pki = |name: &str| format!("/etc/kubernetes/pki/etcd/{name}");
    let (authority, certificate, key) =
        (pki("ca.crt"), pki("healthcheck-client.crt"), pki("healthcheck-client.key"));
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--fail",
        "--cacert",
        &authority,
        "--cert",
        &certificate,
        "--key",
        &key,
        "-d",
        "{}",
    ]);
    let text = said(curl.arg("https://127.0.0.1:2379/v3/cluster/member/list"))?;
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    let members = answer["members"].as_array().into_iter().flatten();
    let shown = |member: &Value| {
        (member["name"].as_str().unwrap_or_default().to_owned(), member["isLearner"] != true)
    };
    let mut members: Vec<_> = members.map(shown).collect();
    members.sort();
    Ok(members)
}

fn voting(names: &[&str]) -> Vec<(String, bool)> {
    names.iter().map(|name| ((*name).to_owned(), true)).collect()
}

#[test]
fn a_control_plane_gets_another_node_and_loses_it() {
    let second = Another::start("second", "192.0.2.11");
    let host = host();
    second.connect();
    init_with(&host, &format!("controlPlaneEndpoint: {ADDRESS}\n"));
    let config = host.path("init.yaml").display().to_string();
    let run = |words: &[&str]| host.run("agent", words).unwrap_or_else(|error| panic!("{error}"));
    let uploaded = run(&["init", "phase", "upload-certs", "--upload-certs", "--config", &config]);
    let key = uploaded.trim().lines().last().expect("a key").to_owned();
    let line = run(&["token", "create", "--print-join-command", "--certificate-key", &key, ADMIN]);
    assert!(line.starts_with("agent join ") && line.contains("--control-plane"), "{line}");
    let before = second.run(|host| {
        images::offer(&host.path("images"), &host.path(""));
        traces(host)
    });
    let joined = second.run(move |host| {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        host.run("agent", &[&words[..], &[MACHINE_FACTS, "--timeout=3m"]].concat())
    });
    let joined = joined.unwrap_or_else(|error| panic!("{error}"));
    assert!(joined.contains("a new control plane instance was created"), "{joined}");
    assert!(joined.contains("* A new etcd member was added"), "{joined}");
    assert_eq!(etcd_members().expect("members"), voting(&[NAME, "second"]));
    let node = wait_until_ready(&host, "second");
    assert_eq!(node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"], "");
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let is_tainted = |taint: &Value| taint["key"] == "node-role.kubernetes.io/control-plane";
    assert!(taints.iter().any(is_tainted), "{node}");
    for server in [ADDRESS, "192.0.2.11"] {
        let server = format!("--server=https://{server}:6443");
        let said = kubectl(&host, &[&server, "get", "nodes", "-o", "name"]);
        assert_eq!(said.unwrap_or_else(|error| panic!("{error}")), "node/machine\nnode/second\n", "{server}");
    }

    // Phases alone find what is there, and change nothing that runs.
    let again = second.run(|host| {
        let before = static_pods(host);
        for line in [
            "control-plane-prepare all",
            "check-etcd",
            "etcd-join",
            "kubelet-wait-bootstrap",
            "control-plane-join all",
            "wait-control-plane",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            host.run("agent", &[&["join", "phase"][..], &words].concat())
                .map_err(|why| format!("{line}: {why}"))?;
        }
        let refused = host.run("agent", &["join", "phase", "kubelet-start"]);
        assert!(refused.is_err_and(|why| why.contains("and status \"Ready\" already exists")));
        assert_eq!(static_pods(host), before, "static pods were restarted");
        Ok::<_, String>(())
    });
    again.unwrap_or_else(|error| panic!("{error}"));

    let reset = second.run(|host| host.run("agent", &["reset", "--force"]));
    let reset = reset.unwrap_or_else(|error| panic!("{error}"));
    assert!(reset.contains("[reset] Removed the etcd member on this node from the etcd cluster"), "{reset}");
    assert!(!reset.contains("not created by the agent"), "{reset}");
    assert_eq!(second.run(traces), before, "reset has left something: {reset}");
    assert_eq!(etcd_members().expect("members"), voting(&[NAME]));
    drop(second);
    deploy(&host, "web", 2);
    assert_eq!(wait_for_pods(&host, "web", 2), [NAME, NAME]);
}

#[test]
fn a_reset_leaves_nothing_of_a_control_plane() {
    let host = host();
    let before = traces(&host);
    let flags = fs::read_to_string("/etc/default/agent").expect("the service's flags");
    init(&host);
    fs::write("/etc/kubernetes/pki/mine.pem", "the user's").expect("write a file");
    let would = host.run("agent", &["reset", "--dry-run"]).unwrap_or_else(|error| panic!("{error}"));
    for words in [
        "Would remove the etcd member on this node",
        "Would delete contents",
        "kube-apiserver.yaml",
        "ca.key",
    ] {
        assert!(would.contains(words), "{words}: {would}");
    }
    assert_eq!(static_pods(&host).len(), STATIC_PODS.len());
    let said = host.run("agent", &["reset", "--force"]).unwrap_or_else(|error| panic!("{error}"));
    assert!(said.contains("[reset] Deleted contents of the etcd data directory: /var/lib/etcd"), "{said}");
    assert!(said.contains("network traffic filtering rules"), "{said}");
    assert!(!said.contains("Failed to remove etcd member"), "{said}");
    assert_eq!(fs::read_to_string("/etc/kubernetes/pki/mine.pem").expect("it stays"), "the user's");
    fs::remove_dir_all("/etc/kubernetes/pki").expect("remove the user's");
    fs::remove_dir("/etc/kubernetes").expect("nothing else is there");
    assert_eq!(traces(&host), before, "reset has left something: {said}");
    for path in ["/var/lib/etcd", "/etc/kubernetes"] {
        assert!(!Path::new(path).exists(), "{path} is still there");
    }
    assert_eq!(fs::read_to_string("/etc/default/agent").expect("the service's flags"), flags);
    // The machine can become one again.
    init(&host);
    wait_until_ready(&host, NAME);
}
