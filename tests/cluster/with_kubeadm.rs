//! kubeadm goes on with what `agent init --control-plane` has made, and the agent with what `kubeadm init` has made.

use std::fs;
use std::path::Path;

use edge_agent::codec::yaml::yaml_to_values;

use super::another::Another;
use super::control_plane::{ADDRESS, VERSION};
use super::images;
use super::machine::{Host, NAME, wait};
use super::whole::{ADMIN, MACHINE_FACTS, deploy, get, host, init_with, kubectl, static_pods};
use super::whole::{wait_for_pods, wait_until_ready};

const SOCKET: &str = "--cri-socket=unix:///run/agent/cri.sock";
/// Their images are not here.
const ALONE: &str = "dns: {disabled: true}\nproxy: {disabled: true}\n";
/// As a machine that has no such program or file beside it finds it.
const FACTS: &str = "--ignore-preflight-errors=SystemVerification,Service-kubelet,Swap,NumCPU,Mem,\
                     FileContent--proc-sys-net-bridge-bridge-nf-call-iptables,FileContent--proc-sys-net-ipv4-ip_forward";

fn run(host: &Host, program: &str, words: &[&str]) -> String {
    host.run(program, words).unwrap_or_else(|error| panic!("{program} {words:?}: {error}"))
}

fn manifests() -> Vec<(String, String)> {
    let names = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let read = |name: &str| fs::read_to_string(format!("/etc/kubernetes/manifests/{name}.yaml"));
    names.map(|name| (name.to_owned(), read(name).expect("a manifest"))).into()
}

#[test]
fn kubeadm_renews_and_upgrades_what_the_agent_has_made() {
    let host = host();
    init_with(&host, ALONE);
    wait_until_ready(&host, NAME);
    let (before, processes) = (manifests(), static_pods(&host));
    let certificate = || fs::read_to_string("/etc/kubernetes/pki/apiserver.crt").expect("a certificate");
    let first = certificate();
    let said = run(&host, "kubeadm", &["certs", "renew", "all"]);
    assert!(said.contains("certificate for serving the Kubernetes API renewed"), "{said}");
    assert!(!said.contains("MISSING") && certificate() != first, "{said}");

    // The Job needs an image that is not here; kubeadm looks for CoreDNS even if it is disabled.
    let facts = format!("{MACHINE_FACTS},CreateJob,CoreDNSUnsupportedPlugins,CoreDNSMigration");
    let words =
        ["upgrade", "apply", VERSION, "--yes", "--force", "--certificate-renewal=false", &facts, ADMIN];
    let said = run(&host, "kubeadm", &words);
    assert!(said.contains("SUCCESS"), "{said}");
    let equal = said.matches("Current and new manifests of").count();
    assert_eq!(equal, before.len(), "{said}");
    assert_eq!(manifests(), before, "kubeadm writes other manifests");
    assert_eq!(static_pods(&host), processes, "static pods were restarted");
    wait_until_ready(&host, NAME);
}

#[test]
fn kubeadm_joins_a_control_plane_and_a_worker() {
    let machines = [Another::start("second", "192.0.2.11"), Another::start("third", "192.0.2.12")];
    let host = host();
    for machine in &machines {
        machine.connect();
    }
    let [second, third] = machines;
    init_with(&host, &format!("controlPlaneEndpoint: 192.0.2.10:6443\n{ALONE}"));
    wait_until_ready(&host, NAME);
    let config = host.path("init.yaml").display().to_string();
    let said = run(&host, "agent", &["init", "phase", "upload-certs", "--upload-certs", "--config", &config]);
    let key = said.lines().last().expect("a key").trim().to_owned();
    let line = run(&host, "kubeadm", &["token", "create", "--print-join-command", ADMIN]);
    let archives = host.path("images");

    let as_kubelet = |host: &Host, words: &[&str], line: &str| {
        let line: Vec<&str> = line.split_whitespace().skip(1).collect();
        host.run("systemctl", &["start", "kubelet"])?;
        wait("the socket that kubeadm asks", || {
            if Path::new("/run/agent/cri.sock").exists() { Ok(()) } else { Err(host.log("kubelet")) }
        });
        host.run("kubeadm", &[&line[..], &[SOCKET, FACTS], words].concat())
    };
    let words = line.clone();
    let joined = second.run(move |host| {
        // The others are there, as links to the same files.
        let archives = fs::read_dir(archives).expect("archives").flatten();
        for archive in archives.filter(|archive| archive.file_name().to_string_lossy().starts_with("kube-")) {
            let to = host.path("images").join(archive.file_name());
            fs::copy(archive.path(), to).expect("copy an archive");
        }
        let address = "--apiserver-advertise-address=192.0.2.11";
        as_kubelet(host, &["--control-plane", "--certificate-key", &key, address], &words)
    });
    let joined = joined.unwrap_or_else(|error| panic!("{error}"));
    assert!(joined.contains("This node has joined the cluster and a new control plane instance"), "{joined}");
    let node = wait_until_ready(&host, "second");
    assert_eq!(node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"], "");
    let endpoints = get(&host, "/api/v1/namespaces/default/endpoints/kubernetes").expect("endpoints");
    let addresses = endpoints["subsets"][0]["addresses"].as_array().map(Vec::len);
    assert_eq!(addresses, Some(2), "{endpoints}");

    // The agent would have written the same static pods.
    let pods = second.run(|host| {
        let values = || manifests().into_iter().map(|(_, text)| yaml_to_values(&text, true).expect("YAML"));
        let theirs: Vec<_> = values().collect();
        for words in [&["control-plane-prepare", "control-plane"][..], &["etcd-join"]] {
            run(host, "agent", &[&["join", "phase"], words].concat());
        }
        (theirs, values().collect::<Vec<_>>())
    });
    assert_eq!(pods.0, pods.1, "kubeadm's is on the left");

    let joined = third.run(move |host| as_kubelet(host, &[], &line));
    joined.unwrap_or_else(|error| panic!("{error}"));
    wait_until_ready(&host, "third");
    for name in [NAME, "second"] {
        run(&host, "kubectl", &[ADMIN, "cordon", name]);
    }
    deploy(&host, "web", 1);
    assert_eq!(wait_for_pods(&host, "web", 1), ["third"]);
    // The members of etcd, by the API server that is on the second machine.
    let ready = "--server=https://192.0.2.11:6443";
    let said = kubectl(&host, &[ready, "get", "--raw", "/readyz"]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(said.trim(), "ok");
}

/// With the algorithms and files of kubeadm.
#[test]
fn the_agent_goes_on_with_what_kubeadm_has_made() {
    let second = Another::start("second", "192.0.2.11");
    let host = host();
    second.connect();
    run(&host, "systemctl", &["start", "kubelet"]);
    wait("the socket that kubeadm asks", || {
        if Path::new("/run/agent/cri.sock").exists() { Ok(()) } else { Err(host.log("kubelet")) }
    });
    let config = host.path("kubeadm.yaml").display().to_string();
    let text = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {{advertiseAddress: {ADDRESS}}}\n\
         nodeRegistration: {{taints: [], criSocket: 'unix:///run/agent/cri.sock'}}\n---\n\
         apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {VERSION}\n\
         controlPlaneEndpoint: {ADDRESS}\n{ALONE}---\n\
         apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: cgroupfs\n"
    );
    fs::write(&config, text).expect("write the configuration");
    run(&host, "kubeadm", &["init", "--config", &config, "--upload-certs", FACTS]);
    wait_until_ready(&host, NAME);
    let key = fs::read_to_string("/etc/kubernetes/pki/ca.key").expect("a key");
    assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----"), "kubeadm has other keys now");

    let said = run(&host, "agent", &["certs", "renew", "all"]);
    assert!(said.contains("certificate for serving etcd renewed") && !said.contains("MISSING"), "{said}");
    let said = run(&host, "kubeadm", &["certs", "check-expiration"]);
    assert!(said.contains("364d") && !said.contains("MISSING"), "{said}");
    // What is there is what the agent makes of the cluster's configuration.
    let (before, processes) = (manifests(), static_pods(&host));
    let said = run(&host, "agent", &["upgrade", "apply", VERSION, "--yes", MACHINE_FACTS]);
    assert!(said.contains("SUCCESS"), "{said}");
    let equal = said.matches("Current and new manifests of").count();
    assert_eq!((equal, manifests() == before, static_pods(&host) == processes), (4, true, true), "{said}");

    let uploaded =
        run(&host, "agent", &["init", "phase", "upload-certs", "--upload-certs", "--config", &config]);
    let key = uploaded.trim().lines().last().expect("a key").to_owned();
    let words = ["token", "create", "--print-join-command", "--certificate-key", &key, ADMIN];
    let line = run(&host, "agent", &words);
    let joined = second.run(move |host| {
        images::offer(&host.path("images"), &host.path(""));
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        host.run("agent", &[&words[..], &[MACHINE_FACTS, "--timeout=3m"]].concat())
    });
    let joined = joined.unwrap_or_else(|error| panic!("{error}"));
    assert!(joined.contains("a new control plane instance was created"), "{joined}");
    let node = wait_until_ready(&host, "second");
    assert_eq!(node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"], "");
    let reset = second.run(|host| host.run("agent", &["reset", "--force"]));
    let reset = reset.unwrap_or_else(|error| panic!("{error}"));
    assert!(reset.contains("[reset] Removed the etcd member on this node from the etcd cluster"), "{reset}");
    assert!(kubectl(&host, &["get", "--raw", "/readyz"]).is_ok_and(|said| said.trim() == "ok"));
}
