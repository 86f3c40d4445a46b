//! What `agent init --control-plane` puts into a cluster beside what kubeadm puts there for the same configuration, and kubeadm's
//! commands on what the agent has made.

use std::collections::BTreeMap;
use std::process::Command;

use edge_agent::codec::yaml::yaml_to_values;
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, Options, program, said};
use crate::support::agent::binary;
use crate::support::scratch::Scratch;

/// Collections, and which of their objects are meant.
const COLLECTIONS: [(&str, &[&str]); 10] = [
    (
        "/api/v1/namespaces/kube-system/configmaps",
        &["kubeadm-config", "kubelet-config", "coredns", "kube-proxy"],
    ),
    ("/api/v1/namespaces/kube-public/configmaps", &["cluster-info"]),
    ("/api/v1/namespaces/kube-system/secrets", &["kubeadm-certs", "bootstrap-token-abcdef"]),
    ("/api/v1/namespaces/kube-system/services", &["kube-dns"]),
    ("/api/v1/namespaces/kube-system/serviceaccounts", &["coredns", "kube-proxy"]),
    ("/apis/apps/v1/namespaces/kube-system/deployments", &["coredns"]),
    ("/apis/apps/v1/namespaces/kube-system/daemonsets", &["kube-proxy"]),
    ("/apis/rbac.authorization.k8s.io/v1/roles", &["kubeadm:", "kube-proxy"]),
    ("/apis/rbac.authorization.k8s.io/v1/rolebindings", &["kubeadm:", "kube-proxy"]),
    ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &["kubeadm:", "system:coredns"]),
];
const PHASES: [&[&str]; 4] =
    [&["upload-config", "all"], &["upload-certs", "--upload-certs"], &["bootstrap-token"], &["addon", "all"]];

/// An object without what differs from one creation to the next: texts that are documents are read, keys and hashes are named.
fn meaning(mut object: Value) -> Value {
    for name in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
        object["metadata"].as_object_mut().map(|metadata| metadata.remove(name));
    }
    object.as_object_mut().map(|members| members.remove("status"));
    let hash = &mut object["metadata"]["annotations"]["kubeadm.kubernetes.io/component-config.hash"];
    if hash.as_str().is_some_and(|hash| hash.starts_with("sha256:")) {
        *hash = "a hash".into();
    }
    for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
        (owner["name"], owner["uid"]) = ("a token".into(), "its own".into());
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let is_secret = name == "kubeadm-certs";
    for (key, text) in object["data"].as_object_mut().into_iter().flatten() {
        if is_secret || key == "expiration" || key.starts_with("jws-") {
            *text = "something".into();
        } else if let Ok(mut values) = yaml_to_values(text.as_str().unwrap_or_default(), false) {
            // Our keys are others.
            for value in values.iter_mut().filter_map(Value::as_object_mut) {
                value.remove("encryptionAlgorithm");
            }
            *text = json!(values);
        }
    }
    object
}

fn objects(plane: &ControlPlane) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for (path, names) in COLLECTIONS {
        let list = plane.get(path).unwrap_or_else(|error| panic!("{error}"));
        for object in list["items"].as_array().cloned().unwrap_or_default() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if names.iter().any(|wanted| name.starts_with(wanted)) {
                found.insert(format!("{path}/{name}"), meaning(object));
            }
        }
    }
    found
}

fn agent(words: &[&str]) -> String {
    said(Command::new(binary()).args(words)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn objects_of_a_cluster_are_those_of_kubeadm() {
    let scratch = Scratch::new();
    let plane = ControlPlane::start(scratch.path(), &Options::default());
    let conf = plane.conf("super-admin");
    let kubeconfig = ["--kubeconfig", &conf];
    for phase in PHASES {
        plane.kubeadm(&[phase, &kubeconfig].concat());
    }
    // The controller signs in its own time.
    let signed = || {
        let all = objects(&plane);
        let info = &all["/api/v1/namespaces/kube-public/configmaps/cluster-info"];
        if info["data"]["jws-kubeconfig-abcdef"].is_null() { Err(info.to_string()) } else { Ok(all) }
    };
    let theirs = plane.wait("the signature of the controller", signed);
    assert!(theirs.len() > 25, "{:#?}", theirs.keys());
    for (path, name) in theirs.keys().filter_map(|path| path.rsplit_once('/')) {
        let kind = path.rsplit('/').next().unwrap_or_default();
        let namespace = if path.contains("kube-public") || name.contains("signer") {
            "kube-public"
        } else {
            "kube-system"
        };
        plane.kubectl(&["-n", namespace, "delete", "--ignore-not-found", kind, name]);
    }
    let config = plane.configuration();
    // A second time, everything is there already.
    for _ in 0..2 {
        for phase in PHASES {
            let own = ["--control-plane", "--config", &config];
            agent(&[&["init", "phase"], phase, &own, &kubeconfig].concat());
        }
    }
    let ours = plane.wait("the signature of the controller", signed);
    for (path, their) in &theirs {
        assert_eq!(ours.get(path), Some(their), "{path}");
    }
    assert_eq!(ours.len(), theirs.len(), "{:#?}", ours.keys());

    let line = agent(&["token", "create", "--print-join-command", "--kubeconfig", &conf]);
    let token = line.split_whitespace().find(|word| word.len() == 23 && word.contains('.')).expect("a token");
    assert!(
        line.starts_with("agent join ") && line.contains(" --discovery-token-ca-cert-hash sha256:"),
        "{line}"
    );
    let kubeadm = |words: &[&str]| said(Command::new(program("kubeadm")).args(words).args(kubeconfig));
    let listed = kubeadm(&["token", "list"]).unwrap_or_else(|error| panic!("{error}"));
    let own = agent(&["token", "list", "--kubeconfig", &conf]);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&own), words(&listed));
    assert!(own.contains(token), "{own}");
    agent(&["token", "delete", token, "--kubeconfig", &conf]);
    assert!(!kubeadm(&["token", "list"]).expect("a list").contains(token));
}

#[test]
fn certificates_that_kubeadm_made_are_renewed() {
    let scratch = Scratch::new();
    let plane = ControlPlane::start(scratch.path(), &Options::default());
    let (pki, conf) = (plane.pki(""), plane.conf("admin").replace("/admin.conf", ""));
    let places = ["--cert-dir", &pki, "--kubeconfig-dir", &conf];
    let report = agent(&[&["certs", "check-expiration"][..], &places].concat());
    assert!(report.contains("364d") && !report.contains("!MISSING!"), "{report}");
    let done = agent(&[&["certs", "renew", "all"][..], &places].concat());
    assert_eq!(done.matches(" renewed\n").count(), 11, "{done}");
    for (leaf, authority) in
        [("apiserver", "ca"), ("etcd/server", "etcd/ca"), ("front-proxy-client", "front-proxy-ca")]
    {
        let (leaf, authority) = (plane.pki(&format!("{leaf}.crt")), plane.pki(&format!("{authority}.crt")));
        said(Command::new("openssl").args(["verify", "-CAfile", &authority, &leaf]))
            .unwrap_or_else(|error| panic!("{error}"));
    }
    // The server accepts the administrator's new certificate.
    let who = said(Command::new(program("kubectl")).args([
        "--kubeconfig",
        &plane.conf("super-admin"),
        "auth",
        "whoami",
    ]));
    assert!(who.as_ref().is_ok_and(|who| who.contains("kubernetes-super-admin")), "{who:?}");
}
